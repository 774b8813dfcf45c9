/* wire/order.h - in which order a worker sends what it computes: the values of PREFILL's `order`.
 *
 * Threads: any. Failure: none.
 */
#ifndef BT_WIRE_ORDER_H
#define BT_WIRE_ORDER_H

#include <stdbool.h>

/* All but the first are for comparing. */
#define BT_WIRE_ORDER_LIST(X)                                                                      \
    X(PUSH,   0, "push")       /* layers as they are computed, split by route/chunk_plan.h */      \
    X(CHUNKS, 1, "chunks")     /* chunks as they are computed */                                   \
    X(BULK,   2, "bulk")       /* everything once all is computed */                               \
    X(LAYERS, 3, "layers")     /* layers as they are computed, not split */                        \
    X(TAPER,  4, "taper")      /* chunks as they are computed, split by route/chunk_plan.h */

typedef enum {
#define X(name, number, text) BT_WIRE_ORDER_##name = number,
    BT_WIRE_ORDER_LIST(X)
#undef X
    BT_WIRE_ORDER_COUNT
} bt_wire_order;

/* False for a name that is not in the list. */
bool bt_wire_order_parse(const char *name, bt_wire_order *ret_order);

#endif
