/* quant/encode.c - blocks from values, the straightforward way: scales from the extremes, codes
 * from rounding. No search and no importance weights; a file made with those is better than what
 * comes out here. Codes are computed with the scale as stored, so decoding errs by at most half a
 * step inside the covered range.
 *
 * Values are expected to be finite and their block's range to fit an f16 scale.
 */
#include <math.h>
#include <string.h>

#include "quant/blocks.h"

static float reciprocal_or_zero(float value)
{
    return value != 0.0f ? 1.0f / value : 0.0f;
}

/* round(value) held inside [low, high]; a tie goes to the even neighbour. */
static int code_of(float value, int low, int high)
{
    const float rounded = nearbyintf(value);

    return rounded <= (float)low ? low : rounded >= (float)high ? high : (int)rounded;
}

/* The value that lies farthest from zero, with its sign; the first of equals. */
static float extreme_of(const float *values, int n)
{
    float extreme = 0.0f;

    for (int i = 0; i < n; i++) {
        if (fabsf(values[i]) > fabsf(extreme)) {
            extreme = values[i];
        }
    }
    return extreme;
}

static void range_of(const float *values, int n, float *ret_min, float *ret_max)
{
    *ret_min = *ret_max = values[0];
    for (int i = 1; i < n; i++) {
        *ret_min = values[i] < *ret_min ? values[i] : *ret_min;
        *ret_max = values[i] > *ret_max ? values[i] : *ret_max;
    }
}

static float put_f16(uint8_t *to, float value)
{
    bt_put_le16(to, bt_quant_f32_to_f16(value));
    return bt_quant_block_f16(to);
}

/* Codes 0 .. 2 * zero - 1 around `zero`: the extreme gets the code at the long end, 0. */
static void codes_around(const float *from, int zero, float d, uint8_t codes[32])
{
    const float inverse = reciprocal_or_zero(d);

    for (int i = 0; i < BT_BLOCK_SMALL; i++) {
        codes[i] = (uint8_t)(code_of(from[i] * inverse, -zero, zero - 1) + zero);
    }
}

static void codes_above(const float *from, float min, int code_max, float d, uint8_t codes[32])
{
    const float inverse = reciprocal_or_zero(d);

    for (int i = 0; i < BT_BLOCK_SMALL; i++) {
        codes[i] = (uint8_t)code_of((from[i] - min) * inverse, 0, code_max);
    }
}

/* The low four bits of code j and of code j + 16 share byte j. */
static void put_nibbles(const uint8_t codes[32], uint8_t to[16])
{
    for (int j = 0; j < 16; j++) {
        to[j] = (uint8_t)((codes[j] & 15) | (codes[j + 16] & 15) << 4);
    }
}

static void put_fifth_bits(const uint8_t codes[32], uint8_t to[4])
{
    uint32_t bits = 0;

    for (int i = 0; i < BT_BLOCK_SMALL; i++) {
        bits |= (uint32_t)(codes[i] >> 4 & 1) << i;
    }
    bt_put_le32(to, bits);
}

void bt_quant_encode_q4_0(const float *from, uint8_t *to)
{
    uint8_t     codes[32];
    const float d = put_f16(to, extreme_of(from, BT_BLOCK_SMALL) / -8.0f);

    codes_around(from, 8, d, codes);
    put_nibbles(codes, to + 2);
}

void bt_quant_encode_q5_0(const float *from, uint8_t *to)
{
    uint8_t     codes[32];
    const float d = put_f16(to, extreme_of(from, BT_BLOCK_SMALL) / -16.0f);

    codes_around(from, 16, d, codes);
    put_fifth_bits(codes, to + 2);
    put_nibbles(codes, to + 6);
}

void bt_quant_encode_q4_1(const float *from, uint8_t *to)
{
    uint8_t codes[32];
    float   min, max;

    range_of(from, BT_BLOCK_SMALL, &min, &max);
    const float d = put_f16(to, (max - min) / 15.0f);
    codes_above(from, put_f16(to + 2, min), 15, d, codes);
    put_nibbles(codes, to + 4);
}

void bt_quant_encode_q5_1(const float *from, uint8_t *to)
{
    uint8_t codes[32];
    float   min, max;

    range_of(from, BT_BLOCK_SMALL, &min, &max);
    const float d = put_f16(to, (max - min) / 31.0f);
    codes_above(from, put_f16(to + 2, min), 31, d, codes);
    put_fifth_bits(codes, to + 4);
    put_nibbles(codes, to + 8);
}

void bt_quant_encode_q8_0(const float *from, uint8_t *to)
{
    const float d = put_f16(to, fabsf(extreme_of(from, BT_BLOCK_SMALL)) / 127.0f);
    const float inverse = reciprocal_or_zero(d);

    for (int i = 0; i < BT_BLOCK_SMALL; i++) {
        to[2 + i] = (uint8_t)(int8_t)code_of(from[i] * inverse, -127, 127);
    }
}

static uint8_t nearest_code(const int8_t table[16], float value)
{
    uint8_t best = 0;

    for (uint8_t code = 1; code < 16; code++) {
        if (fabsf(value - (float)table[code]) < fabsf(value - (float)table[best])) {
            best = code;
        }
    }
    return best;
}

static void put_table_codes(const int8_t table[16], const float *from, float d, uint8_t to[16])
{
    uint8_t     codes[32];
    const float inverse = reciprocal_or_zero(d);

    for (int i = 0; i < BT_BLOCK_SMALL; i++) {
        codes[i] = nearest_code(table, from[i] * inverse);
    }
    put_nibbles(codes, to);
}

void bt_quant_encode_iq4_nl(const float *from, uint8_t *to)
{
    const float d = put_f16(to, extreme_of(from, BT_BLOCK_SMALL) / -127.0f);

    put_table_codes(bt_quant_iq4_values, from, d, to + 2);
}

/* The smallest power of two whose largest code, 12, still reaches the extreme. */
void bt_quant_encode_mxfp4(const float *from, uint8_t *to)
{
    const float extreme = fabsf(extreme_of(from, BT_BLOCK_SMALL));
    int         exponent = 0;

    if (extreme > 0.0f) {
        const float fraction = frexpf(extreme, &exponent);   /* in [1/2, 1): times 16, 8 to 16 */
        exponent += fraction <= 0.75f ? 124 : 125;
        exponent = exponent < 0 ? 0 : exponent > 254 ? 254 : exponent;
    }
    to[0] = (uint8_t)exponent;
    put_table_codes(bt_quant_e2m1_doubled, from, bt_quant_block_e8m0_half(to[0]), to + 1);
}
