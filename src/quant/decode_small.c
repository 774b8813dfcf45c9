/* quant/decode_small.c - blocks of 32 values: one scale each, 4 to 8 bits a value.
 *
 * Types of 4 and 5 bits keep value j in the low half of byte j and value j + 16 in the high half;
 * the fifth bits are a 32-bit word of their own, bit i for value i.
 */
#include "quant/blocks.h"

const int8_t bt_quant_iq4_values[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};
const int8_t bt_quant_e2m1_doubled[16] = {
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
};

void bt_quant_decode_q4_0(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const uint8_t *codes = from + 2;

    for (int j = 0; j < 16; j++) {
        to[j] = d * (float)((codes[j] & 15) - 8);
        to[j + 16] = d * (float)((codes[j] >> 4) - 8);
    }
}

void bt_quant_decode_q4_1(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const float    m = bt_quant_block_f16(from + 2);
    const uint8_t *codes = from + 4;

    for (int j = 0; j < 16; j++) {
        to[j] = d * (float)(codes[j] & 15) + m;
        to[j + 16] = d * (float)(codes[j] >> 4) + m;
    }
}

void bt_quant_decode_q5_0(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const uint32_t high = bt_get_le32(from + 2);
    const uint8_t *codes = from + 6;

    for (int j = 0; j < 16; j++) {
        const int fifth = (int)(high >> j & 1u) << 4;
        const int fifth_upper = (int)(high >> (j + 16) & 1u) << 4;

        to[j] = d * (float)(((codes[j] & 15) | fifth) - 16);
        to[j + 16] = d * (float)((codes[j] >> 4 | fifth_upper) - 16);
    }
}

void bt_quant_decode_q5_1(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const float    m = bt_quant_block_f16(from + 2);
    const uint32_t high = bt_get_le32(from + 4);
    const uint8_t *codes = from + 8;

    for (int j = 0; j < 16; j++) {
        const int fifth = (int)(high >> j & 1u) << 4;
        const int fifth_upper = (int)(high >> (j + 16) & 1u) << 4;

        to[j] = d * (float)((codes[j] & 15) | fifth) + m;
        to[j + 16] = d * (float)(codes[j] >> 4 | fifth_upper) + m;
    }
}

static void decode_signed_bytes(float d, const uint8_t *codes, float *to, int n)
{
    for (int i = 0; i < n; i++) {
        to[i] = d * (float)(int8_t)codes[i];
    }
}

void bt_quant_decode_q8_0(const uint8_t *from, float *to)
{
    decode_signed_bytes(bt_quant_block_f16(from), from + 2, to, BT_BLOCK_SMALL);
}

void bt_quant_decode_q8_1(const uint8_t *from, float *to)
{
    /* Bytes 2 and 3 hold d times the sum of the codes: a convenience of dot products. */
    decode_signed_bytes(bt_quant_block_f16(from), from + 4, to, BT_BLOCK_SMALL);
}

static void decode_table(float d, const int8_t table[16], const uint8_t *codes, float *to)
{
    for (int j = 0; j < 16; j++) {
        to[j] = d * (float)table[codes[j] & 15];
        to[j + 16] = d * (float)table[codes[j] >> 4];
    }
}

void bt_quant_decode_iq4_nl(const uint8_t *from, float *to)
{
    decode_table(bt_quant_block_f16(from), bt_quant_iq4_values, from + 2, to);
}

void bt_quant_decode_mxfp4(const uint8_t *from, float *to)
{
    decode_table(bt_quant_block_e8m0_half(from[0]), bt_quant_e2m1_doubled, from + 1, to);
}

void bt_quant_decode_iq4_xs(const uint8_t *from, float *to)
{
    const float    d = bt_quant_block_f16(from);
    const uint16_t scales_high = bt_get_le16(from + 2);

    for (unsigned j = 0; j < 8; j++) {
        const int8_t scale = bt_quant_block_iq4_xs_scale(scales_high, from + 4, j);
        decode_table(d * (float)scale, bt_quant_iq4_values, from + 8 + 16 * j, to + 32 * j);
    }
}
