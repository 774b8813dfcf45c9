/* quant/encode_k.c - super-blocks of 256 from values, without search: each part gets the scale that
 * its extremes ask for, the parts' scales are rounded to the few bits the format has, and the codes
 * follow from the rounded scales. For tests and tools.
 */
#include <math.h>
#include <string.h>

#include "quant/blocks.h"

enum { PARTS_MAX = 16 };

/* What a super-block says about its parts: value = d * scale * code - d_min * min. */
typedef struct {
    float   d, d_min;
    int     scale[PARTS_MAX];
    int     min[PARTS_MAX];
} parts;

static int clamp_round(float value, int low, int high)
{
    const float rounded = nearbyintf(value);

    return rounded <= (float)low ? low : rounded >= (float)high ? high : (int)rounded;
}

static float as_f16(float value)
{
    return bt_quant_f16_to_f32(bt_quant_f32_to_f16(value));
}

static float inverse_of(float value)
{
    return value != 0.0f ? 1.0f / value : 0.0f;
}

static float largest_of(const float *values, int n)
{
    float largest = 0.0f;

    for (int i = 0; i < n; i++) {
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    }
    return largest;
}

/* Types with a minimum: code 0 stands for -d_min * min <= 0, code_max for the largest value. */
static void fit_with_min(const float *from, int part, int code_max, int field_max, parts *ret)
{
    float     scale[PARTS_MAX] = { 0 }, min[PARTS_MAX] = { 0 };
    const int n_parts = BT_BLOCK_LARGE / part;

    for (int p = 0; p < n_parts; p++) {
        float low = 0.0f, high = from[p * part];
        for (int i = 0; i < part; i++) {
            const float value = from[p * part + i];
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        min[p] = -low;
        scale[p] = (high > low ? high - low : 0.0f) / (float)code_max;
    }
    ret->d = as_f16(largest_of(scale, n_parts) / (float)field_max);
    ret->d_min = as_f16(largest_of(min, n_parts) / (float)field_max);
    for (int p = 0; p < n_parts; p++) {
        ret->scale[p] = clamp_round(scale[p] * inverse_of(ret->d), 0, field_max);
        ret->min[p] = clamp_round(min[p] * inverse_of(ret->d_min), 0, field_max);
    }
}

/* Types without: codes -zero .. zero - 1, the part's extreme at -zero. */
static void fit_signed(const float *from, int part, int zero, int field_max, parts *ret)
{
    float     scale[PARTS_MAX] = { 0 };
    const int n_parts = BT_BLOCK_LARGE / part;

    for (int p = 0; p < n_parts; p++) {
        float extreme = 0.0f;
        for (int i = 0; i < part; i++) {
            const float value = from[p * part + i];
            extreme = fabsf(value) > fabsf(extreme) ? value : extreme;
        }
        scale[p] = extreme / (float)-zero;
    }
    ret->d = as_f16(largest_of(scale, n_parts) / (float)field_max);
    for (int p = 0; p < n_parts; p++) {
        ret->scale[p] = clamp_round(scale[p] * inverse_of(ret->d), -field_max, field_max);
        ret->min[p] = 0;
    }
    ret->d_min = 0.0f;
}

static int code_of(const parts *fit, int p, float value, int low, int high)
{
    const float step = fit->d * (float)fit->scale[p];

    return clamp_round((value + fit->d_min * (float)fit->min[p]) * inverse_of(step), low, high);
}

void bt_quant_encode_q2_k(const float *from, uint8_t *to)
{
    parts fit;

    fit_with_min(from, 16, 3, 15, &fit);
    memset(to, 0, 84);
    for (int g = 0; g < 16; g++) {
        to[g] = (uint8_t)(fit.scale[g] | fit.min[g] << 4);
    }
    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int code = code_of(&fit, e / 16, from[e], 0, 3);
        to[16 + 32 * (e / 128) + e % 32] |= (uint8_t)(code << (2 * (e % 128 / 32)));
    }
    bt_put_le16(to + 80, bt_quant_f32_to_f16(fit.d));
    bt_put_le16(to + 82, bt_quant_f32_to_f16(fit.d_min));
}

void bt_quant_encode_q3_k(const float *from, uint8_t *to)
{
    parts fit;

    fit_signed(from, 16, 4, 31, &fit);
    memset(to, 0, 110);
    for (int g = 0; g < 16; g++) {
        const unsigned field = (unsigned)(fit.scale[g] + 32);
        to[96 + g % 8] |= (uint8_t)((field & 15u) << (g < 8 ? 0 : 4));
        to[104 + g % 4] |= (uint8_t)((field >> 4) << (2 * (g / 4)));
    }
    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int row = e % 128 / 32;
        const int code = code_of(&fit, e / 16, from[e], -4, 3) + 4;
        to[32 + 32 * (e / 128) + e % 32] |= (uint8_t)((code & 3) << (2 * row));
        to[e % 32] |= (uint8_t)((code >> 2) << (4 * (e / 128) + row));
    }
    bt_put_le16(to + 108, bt_quant_f32_to_f16(fit.d));
}

/* The 12 bytes of Q4_K and Q5_K; quant/blocks.h reads them back. */
static void put_scales_and_mins(const parts *fit, uint8_t to[12])
{
    for (int j = 0; j < 4; j++) {
        to[j] = (uint8_t)(fit->scale[j] | (fit->scale[j + 4] >> 4) << 6);
        to[j + 4] = (uint8_t)(fit->min[j] | (fit->min[j + 4] >> 4) << 6);
        to[j + 8] = (uint8_t)((fit->scale[j + 4] & 15) | (fit->min[j + 4] & 15) << 4);
    }
}

void bt_quant_encode_q4_k(const float *from, uint8_t *to)
{
    parts fit;

    fit_with_min(from, 32, 15, 63, &fit);
    memset(to, 0, 144);
    bt_put_le16(to, bt_quant_f32_to_f16(fit.d));
    bt_put_le16(to + 2, bt_quant_f32_to_f16(fit.d_min));
    put_scales_and_mins(&fit, to + 4);
    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int j = e / 32;
        const int code = code_of(&fit, j, from[e], 0, 15);
        to[16 + 32 * (j / 2) + e % 32] |= (uint8_t)(code << (4 * (j % 2)));
    }
}

void bt_quant_encode_q5_k(const float *from, uint8_t *to)
{
    parts fit;

    fit_with_min(from, 32, 31, 63, &fit);
    memset(to, 0, 176);
    bt_put_le16(to, bt_quant_f32_to_f16(fit.d));
    bt_put_le16(to + 2, bt_quant_f32_to_f16(fit.d_min));
    put_scales_and_mins(&fit, to + 4);
    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int j = e / 32;
        const int code = code_of(&fit, j, from[e], 0, 31);
        to[48 + 32 * (j / 2) + e % 32] |= (uint8_t)((code & 15) << (4 * (j % 2)));
        to[16 + e % 32] |= (uint8_t)((code >> 4) << j);
    }
}

void bt_quant_encode_q6_k(const float *from, uint8_t *to)
{
    parts fit;

    fit_signed(from, 16, 32, 127, &fit);
    memset(to, 0, 210);
    for (int e = 0; e < BT_BLOCK_LARGE; e++) {
        const int half = e / 128, row = e % 128 / 32, column = e % 32;
        const int code = code_of(&fit, e / 16, from[e], -32, 31) + 32;
        to[64 * half + 32 * (row % 2) + column] |= (uint8_t)((code & 15) << (4 * (row / 2)));
        to[128 + 32 * half + column] |= (uint8_t)((code >> 4) << (2 * row));
    }
    for (int g = 0; g < 16; g++) {
        to[192 + g] = (uint8_t)(int8_t)fit.scale[g];
    }
    bt_put_le16(to + 208, bt_quant_f32_to_f16(fit.d));
}
