/* kv/codec.h - K and V rows as they travel: as they are stored, or narrower.
 *
 * A form says which element types rows have on the wire. "As stored" copies bytes and is exact.
 * f16 and q8_0 are written by the sender, row by row, and turned back into the stored type by the
 * receiver; digests, credit and counters are all of the bytes that travel.
 *
 * How far a value may move: f16, half a unit in its last place, 2^-11 of it. q8_0, in each block of
 * 32, (1/254 + 2^-11) of the block's largest magnitude: half a step of 1/127, and what rounding the
 * step to f16 takes away. Storing the result as f16 adds 2^-11 of it.
 *
 * Lifetime: a form borrows the layout; scratch is opened and closed. Threads: a form is immutable,
 * scratch is for one thread at a time. Failure: init (rows that do not divide into blocks), open
 * (memory).
 */
#ifndef BT_KV_CODEC_H
#define BT_KV_CODEC_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/step.h"

/*    name   number in PREFILL (docs/wire.md), as people write it */
#define BT_KV_CODEC_LIST(X)                                                                      \
    X(STORED, 0, "stored")                                                                         \
    X(F16,    1, "f16")                                                                            \
    X(Q8_0,   2, "q8_0")

typedef enum {
#define X(name, number, text) BT_KV_CODEC_##name = number,
    BT_KV_CODEC_LIST(X)
#undef X
    BT_KV_CODEC_COUNT
} bt_kv_codec;

/* False for a name that is not in the list. */
bool bt_kv_codec_parse(const char *name, bt_kv_codec *ret_codec);

typedef struct {
    const bt_kv_layout *layout;
    bt_kv_codec codec;               /* STORED also where the codec's type is the stored one */
    bt_type       type_k, type_v;      /* on the wire */
} bt_kv_form;

BT_MUST_CHECK bt_status bt_kv_codec_form_init(bt_kv_form *ret_form,
                                                   const bt_kv_layout *layout, uint32_t codec,
                                                   bt_error *err);
bt_kv_form bt_kv_codec_stored(const bt_kv_layout *layout);      /* what cannot fail */
/* "f16", or "f16/q8_0" where K and V differ. Cut to `size`. Returns `to`. */
char *bt_kv_codec_form_name(const bt_kv_form *f, char *to, size_t size);

/* Bytes of one row on the wire; 0: the layer keeps none. */
uint32_t bt_kv_codec_k_bytes(const bt_kv_form *f, uint32_t layer);
uint32_t bt_kv_codec_v_bytes(const bt_kv_form *f, uint32_t layer);
size_t   bt_kv_codec_layer_bytes(const bt_kv_form *f, uint32_t layer);     /* both */
uint64_t bt_kv_codec_token_bytes(const bt_kv_form *f); /* of all layers */
size_t   bt_kv_codec_layer_bytes_max(const bt_kv_form *f);

/* ---- conversion (not for STORED) ---- */

enum { BT_KV_ROWS_AT_ONCE = 32 };

typedef struct {
    uint8_t *k, *v;                    /* BT_KV_ROWS_AT_ONCE rows of the widest layer, as stored */
    float   *values;                   /* of one row */
} bt_kv_scratch;

BT_MUST_CHECK bt_status bt_kv_codec_scratch_open(bt_kv_scratch *ret_scratch, const bt_kv_form *f,
                                                   bt_error *err);
void bt_kv_codec_scratch_close(bt_kv_scratch *scratch);           /* a zeroed one is fine */

/* n <= BT_KV_ROWS_AT_ONCE rows of a layer between scratch and wire bytes. */
void bt_kv_codec_encode(const bt_kv_form *f, const bt_kv_scratch *scratch, uint32_t layer,
                             uint32_t n, uint8_t *to_k, uint8_t *to_v);
void bt_kv_codec_decode(const bt_kv_form *f, const bt_kv_scratch *scratch, uint32_t layer,
                             uint32_t n, const uint8_t *from_k, const uint8_t *from_v);

#endif
