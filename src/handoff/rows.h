/* handoff/rows.h - K and V rows as they travel: as they are stored, or narrower.
 *
 * A form says which element types rows have on the wire. "As stored" copies bytes and is exact.
 * f16 and q8_0 are written by the sender, row by row, and turned back into the stored type by the
 * receiver; digests, credit and counters are all of the bytes that travel.
 *
 * How far a value may move: f16, half a unit in its last place, 2^-11 of it. q8_0, in each block of
 * 32, (1/254 + 2^-11) of the block's largest magnitude: half a step of 1/127, and what rounding the
 * step to f16 takes away. Storing the result as f16 adds 2^-11 of it.
 *
 * Lifetime: a form borrows the layout; a room is opened and closed. Threads: a form is immutable, a
 * room is for one thread at a time. Failure: init (rows that do not divide into blocks), open
 * (memory).
 */
#ifndef BT_HANDOFF_ROWS_H
#define BT_HANDOFF_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/step.h"

/*    name   number in PREFILL (docs/wire.md), as people write it */
#define BT_ROWS_CODEC_LIST(X)                                                                      \
    X(STORED, 0, "stored")                                                                         \
    X(F16,    1, "f16")                                                                            \
    X(Q8_0,   2, "q8_0")

typedef enum {
#define X(name, number, text) BT_ROWS_##name = number,
    BT_ROWS_CODEC_LIST(X)
#undef X
    BT_ROWS_CODEC_COUNT
} bt_rows_codec;

/* What leaves when. All but the first are for comparing. */
#define BT_ROWS_ORDER_LIST(X)                                                                      \
    X(PUSH,   0, "push")       /* layers as they are computed, chunks cut by handoff/taper.h */    \
    X(CHUNKS, 1, "chunks")     /* chunks as they are computed */                                   \
    X(BULK,   2, "bulk")       /* all when all is computed */                                      \
    X(LAYERS, 3, "layers")     /* layers as they are computed, no cuts */                          \
    X(TAPER,  4, "taper")      /* chunks as they are computed, cut by handoff/taper.h */

typedef enum {
#define X(name, number, text) BT_ROWS_##name = number,
    BT_ROWS_ORDER_LIST(X)
#undef X
    BT_ROWS_ORDER_COUNT
} bt_rows_order;

/* False for a name that is not in the list. */
bool bt_handoff_codec_codec_parse(const char *name, bt_rows_codec *ret_codec);
bool bt_handoff_codec_order_parse(const char *name, bt_rows_order *ret_order);

typedef struct {
    const bt_kv_layout *layout;
    bt_rows_codec codec;               /* STORED also where the codec's type is the stored one */
    bt_type       type_k, type_v;      /* on the wire */
} bt_rows_form;

BT_MUST_CHECK bt_status bt_handoff_codec_form_init(bt_rows_form *ret_form,
                                                   const bt_kv_layout *layout, uint32_t codec,
                                                   bt_error *err);
bt_rows_form bt_handoff_codec_stored(const bt_kv_layout *layout);      /* what cannot fail */
/* "f16", or "f16/q8_0" where K and V differ. Cut to `size`. Returns `to`. */
char *bt_handoff_codec_form_name(const bt_rows_form *f, char *to, size_t size);

/* Bytes of one row on the wire; 0: the layer keeps none. */
uint32_t bt_handoff_codec_k_bytes(const bt_rows_form *f, uint32_t layer);
uint32_t bt_handoff_codec_v_bytes(const bt_rows_form *f, uint32_t layer);
size_t   bt_handoff_codec_layer_bytes(const bt_rows_form *f, uint32_t layer);     /* both */
uint64_t bt_handoff_codec_token_bytes(const bt_rows_form *f); /* of all layers */
size_t   bt_handoff_codec_layer_bytes_max(const bt_rows_form *f);

/* ---- turning rows (not for STORED) ---- */

enum { BT_ROWS_AT_ONCE = 32 };

typedef struct {
    uint8_t *k, *v;                    /* BT_ROWS_AT_ONCE rows of the widest layer, as stored */
    float   *values;                   /* of one row */
} bt_rows_room;

BT_MUST_CHECK bt_status bt_handoff_codec_room_open(bt_rows_room *ret_room, const bt_rows_form *f,
                                                   bt_error *err);
void bt_handoff_codec_room_close(bt_rows_room *room);           /* a zeroed one is fine */

/* n <= BT_ROWS_AT_ONCE rows of a layer between the room and wire bytes. */
void bt_handoff_codec_encode(const bt_rows_form *f, const bt_rows_room *room, uint32_t layer,
                             uint32_t n, uint8_t *to_k, uint8_t *to_v);
void bt_handoff_codec_decode(const bt_rows_form *f, const bt_rows_room *room, uint32_t layer,
                             uint32_t n, const uint8_t *from_k, const uint8_t *from_v);

#endif
