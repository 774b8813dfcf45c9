/* wire/order.c - see order.h. */
#include "wire/order.h"

#include <string.h>

bool bt_wire_order_parse(const char *name, bt_wire_order *ret_order)
{
    static const char *const names[BT_WIRE_ORDER_COUNT] = {
#define X(order, number, text) [number] = text,
        BT_WIRE_ORDER_LIST(X)
#undef X
    };
    for (unsigned i = 0; i < BT_WIRE_ORDER_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret_order = (bt_wire_order)i;
            return true;
        }
    }
    return false;
}
