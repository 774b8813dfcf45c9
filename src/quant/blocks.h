/* quant/blocks.h - the fields of blocks that more than one reader needs: code tables and the
 * packed scales of K types. Private to quant/ and to the repacking of cpu/.
 *
 * All take pointers into a stored block; nothing is aligned there.
 */
#ifndef BT_QUANT_BLOCKS_H
#define BT_QUANT_BLOCKS_H

#include <stdint.h>

#include "base/bytes.h"
#include "quant/types.h"

enum { BT_BLOCK_SMALL = 32, BT_BLOCK_LARGE = 256 };

/* IQ4_NL and IQ4_XS: a 4-bit code names one of these. */
extern const int8_t bt_quant_iq4_values[16];
/* MXFP4: the e2m1 values, doubled so that they are whole. */
extern const int8_t bt_quant_e2m1_doubled[16];

static inline float bt_quant_block_f16(const uint8_t *at)
{
    return bt_quant_f16_to_f32(bt_get_le16(at));
}

/* MXFP4: 2^(e - 128), the half that undoes the doubling included. */
static inline float bt_quant_block_e8m0_half(uint8_t e)
{
    return bt_float_of_bits(e >= 2 ? (uint32_t)(e - 1) << 23 : 0x00200000u << e);
}

/* Q4_K, Q5_K: 6-bit scale and minimum of sub-block j (0..7) from the 12 packed bytes. */
static inline void bt_quant_block_scale_min(const uint8_t packed[12], unsigned j,
                                            uint8_t *ret_scale, uint8_t *ret_min)
{
    if (j < 4) {
        *ret_scale = packed[j] & 63u;
        *ret_min = packed[j + 4] & 63u;
    } else {
        *ret_scale = (uint8_t)((packed[j + 4] & 15u) | (packed[j - 4] >> 6) << 4);
        *ret_min = (uint8_t)(packed[j + 4] >> 4 | (packed[j] >> 6) << 4);
    }
}

/* Q3_K: signed scale of group g (0..15) of 16 values. */
static inline int8_t bt_quant_block_q3_scale(const uint8_t packed[12], unsigned g)
{
    const unsigned low = g < 8 ? packed[g] & 15u : (unsigned)packed[g - 8] >> 4;
    const unsigned high = (unsigned)packed[8 + g % 4] >> (2 * (g / 4)) & 3u;

    return (int8_t)((int)(low | high << 4) - 32);
}

/* IQ4_XS: signed scale of sub-block j (0..7). */
static inline int8_t bt_quant_block_iq4_xs_scale(uint16_t scales_high, const uint8_t scales_low[4],
                                                 unsigned j)
{
    const unsigned low = (unsigned)scales_low[j / 2] >> (4 * (j % 2)) & 15u;
    const unsigned high = (unsigned)scales_high >> (2 * j) & 3u;

    return (int8_t)((int)(low | high << 4) - 32);
}

/* One block to f32: the decoders of the types. */
typedef void bt_block_decode(const uint8_t *from, float *to);
bt_block_decode bt_quant_decode_q4_0, bt_quant_decode_q4_1, bt_quant_decode_q5_0,
    bt_quant_decode_q5_1, bt_quant_decode_q8_0, bt_quant_decode_q8_1, bt_quant_decode_iq4_nl,
    bt_quant_decode_mxfp4, bt_quant_decode_q2_k, bt_quant_decode_q3_k, bt_quant_decode_q4_k,
    bt_quant_decode_q5_k, bt_quant_decode_q6_k, bt_quant_decode_q8_k, bt_quant_decode_iq4_xs;

/* One block from f32. */
typedef void bt_block_encode(const float *from, uint8_t *to);
bt_block_encode bt_quant_encode_q4_0, bt_quant_encode_q4_1, bt_quant_encode_q5_0,
    bt_quant_encode_q5_1, bt_quant_encode_q8_0, bt_quant_encode_iq4_nl, bt_quant_encode_mxfp4,
    bt_quant_encode_q2_k, bt_quant_encode_q3_k, bt_quant_encode_q4_k, bt_quant_encode_q5_k,
    bt_quant_encode_q6_k;

#endif
