/* kv/codec_fast.h - f16 rows to q8_0 blocks and back, the pair that matters, at the speed of a
 * link. Private to kv/codec.c.
 *
 * The same bits as bt_quant_type_encode() of bt_quant_type_decode() and the other way round, for
 * everything but NaN (which stays NaN); loops without branches, which compilers turn into vectors.
 * Threads: any.
 */
#ifndef BT_KV_CODEC_FAST_H
#define BT_KV_CODEC_FAST_H

#include <stddef.h>
#include <stdint.h>

/* n values, a multiple of 32. */
void bt_kv_codec_f16_to_q8_0(const uint8_t *from, uint8_t *to, size_t n);
void bt_kv_codec_q8_0_to_f16(const uint8_t *from, uint8_t *to, size_t n);

#endif
