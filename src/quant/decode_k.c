/* quant/decode_k.c - super-blocks of 256 values: an f16 scale (and minimum) for all, small integer
 * scales for parts of 16 or 32 values.
 *
 * Every product d * scale is formed in f32 before it meets a code. It is exact (11 bits by at most
 * 8), and so is its product with the code for all but Q6_K and Q8_K, where one rounding happens.
 */
#include "quant/blocks.h"

/* 2-bit codes: 32 bytes hold four rows of 32 values, row k at bits 2k and 2k + 1. */
void bt_quant_decode_q2_k(const uint8_t *from, float *to)
{
    const uint8_t *scales = from;
    const uint8_t *codes = from + 16;
    const float    d = bt_quant_block_f16(from + 80);
    const float    d_min = bt_quant_block_f16(from + 82);

    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int     half = e / 128, row = e % 128 / 32, column = e % 32;
        const uint8_t scale = scales[8 * half + 2 * row + column / 16];
        const int     code = codes[32 * half + column] >> (2 * row) & 3;

        to[e] = d * (float)(scale & 15) * (float)code - d_min * (float)(scale >> 4);
    }
}

/* As Q2_K with a third bit, stored apart: bit k of byte i of the mask belongs to row k. A clear
 * bit means minus four. */
void bt_quant_decode_q3_k(const uint8_t *from, float *to)
{
    const uint8_t *mask = from;
    const uint8_t *codes = from + 32;
    const uint8_t *scales = from + 96;
    const float    d = bt_quant_block_f16(from + 108);

    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int      half = e / 128, row = e % 128 / 32, column = e % 32;
        const unsigned group = (unsigned)(8 * half + 2 * row + column / 16);
        const int      low = codes[32 * half + column] >> (2 * row) & 3;
        const int      high = mask[column] >> (4 * half + row) & 1;

        to[e] = d * (float)bt_quant_block_q3_scale(scales, group) * (float)(low - (high ? 0 : 4));
    }
}

/* Two neighbouring sub-blocks of 32 share 32 bytes: low halves, then high halves. */
void bt_quant_decode_q4_k(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const float    d_min = bt_quant_block_f16(from + 2);
    const uint8_t *codes = from + 16;

    for (unsigned j = 0; j < 8; j++) {
        uint8_t scale, min;
        bt_quant_block_scale_min(from + 4, j, &scale, &min);
        for (unsigned l = 0; l < 32; l++) {
            const int code = codes[32 * (j / 2) + l] >> (4 * (j % 2)) & 15;
            to[32 * j + l] = d * (float)scale * (float)code - d_min * (float)min;
        }
    }
}

/* As Q4_K with a fifth bit: bit j of byte l belongs to value l of sub-block j. */
void bt_quant_decode_q5_k(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const float    d_min = bt_quant_block_f16(from + 2);
    const uint8_t *fifths = from + 16;
    const uint8_t *codes = from + 48;

    for (unsigned j = 0; j < 8; j++) {
        uint8_t scale, min;
        bt_quant_block_scale_min(from + 4, j, &scale, &min);
        for (unsigned l = 0; l < 32; l++) {
            const int low = codes[32 * (j / 2) + l] >> (4 * (j % 2)) & 15;
            const int code = low | (fifths[l] >> j & 1) << 4;
            to[32 * j + l] = d * (float)scale * (float)code - d_min * (float)min;
        }
    }
}

/* In each half of 128: four rows of 32. Rows 0, 2 (1, 3) are the low and high halves of the first
 * (second) 32 bytes; the upper two bits of row k are bits 2k and 2k + 1 of 32 further bytes. */
void bt_quant_decode_q6_k(const uint8_t *from, float *to)
{
    const float d = bt_quant_block_f16(from + 208);

    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int    half = e / 128, row = e % 128 / 32, column = e % 32;
        const int    low = from[64 * half + 32 * (row % 2) + column] >> (4 * (row / 2)) & 15;
        const int    high = from[128 + 32 * half + column] >> (2 * row) & 3;
        const int8_t scale = (int8_t)from[192 + 8 * half + 2 * row + column / 16];

        to[e] = d * (float)scale * (float)((low | high << 4) - 32);
    }
}

void bt_quant_decode_q8_k(const uint8_t *from, float *to)
{
    const float d = bt_float_of_bits(bt_get_le32(from));

    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        to[e] = d * (float)(int8_t)from[4 + e];
    }
}
