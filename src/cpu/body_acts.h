/* cpu/body_acts.h - activation rows to blocks of bytes, any width; included several times. */
#ifndef BT_CPU_BODY_ACTS_H
#define BT_CPU_BODY_ACTS_H

#include <string.h>

#include "base/bytes.h"
#include "cpu/acts.h"
#include "cpu/pack.h"
#include "cpu/tables.h"

enum { SMALLEST_BITS = 0x0d800000 };     /* 2^-100; 127 over it is still a number */

/* The largest magnitude becomes one of these codes, whichever leaves the smallest squared error: a
 * slightly coarser step often happens to meet the 16 values better. */
static const float CODE_MAX[4] = { 127.0f, 126.0f, 125.0f, 124.0f };
static const float STEP[4] = { 1.0f / 127.0f, 1.0f / 126.0f, 1.0f / 125.0f, 1.0f / 124.0f };
static const float SQUARED_STEP[4] = {
    1.0f / (127.0f * 127.0f), 1.0f / (126.0f * 126.0f), 1.0f / (125.0f * 125.0f),
    1.0f / (124.0f * 124.0f),
};

enum { PARTS_AT_ONCE = 64 };

/* Largest magnitudes of n parts as bits, and what turns each part's values into codes for each of
 * the four code ranges; 0 for parts that have no scale. */
BT_INLINE void find_factors(const float *x, int n, uint32_t *bits, float factors[][4])
{
    for (int p = 0; p < n; p++) {
        bits[p] = largest_magnitude_bits_of_16(x + BT_ACT_PART * p);
        const bool  usual = bits[p] >= SMALLEST_BITS && bits[p] < 0x7f800000u;
        const float inverse = usual ? 1.0f / bt_float_of_bits(bits[p]) : 0.0f;
        quad_store(factors[p], quad_mul(quad_set(inverse), CODE_MAX));
    }
}

BT_INLINE void find_best(const float *x, int n, float factors[][4], int *best)
{
    for (int p = 0; p < n; p++) {
        const quad sums = squared_error_sums_of_16(x + BT_ACT_PART * p, factors[p]);
        best[p] = index_of_smallest(quad_mul(sums, SQUARED_STEP));
    }
}

BT_INLINE void round_part(const float *x, uint32_t bits, float factor, float step, int part,
                          bt_act_block *to)
{
    int8_t *q = to->q + BT_ACT_PART * part;

    if (bits >= SMALLEST_BITS && bits < 0x7f800000u) {
        const int32_t sum = round_16_to_i8(x, factor, q);
        to->scale[part] = bt_float_of_bits(bits) * step;
        to->part_sum[part] = to->scale[part] * (float)sum;
        return;
    }
    memset(q, 0, BT_ACT_PART);
    to->scale[part] = bits < SMALLEST_BITS ? 0.0f : bt_float_of_bits(0x7fc00000u);
    to->part_sum[part] = to->scale[part];
}

/* In three loops over some parts: each is a long chain of dependent operations, and the shorter it
 * is, the more parts the processor has in work at once. */
static void convert_parts(const float *x, int n, bt_act_block *to)
{
    uint32_t bits[PARTS_AT_ONCE];
    float    factors[PARTS_AT_ONCE][4];
    int      best[PARTS_AT_ONCE];

    find_factors(x, n, bits, factors);
    find_best(x, n, factors, best);
    for (int p = 0; p < n; p++, x += BT_ACT_PART) {
        bt_act_block *block = to + p / 2;
        round_part(x, bits[p], factors[p][best[p]], STEP[best[p]], p % 2, block);
        if (p % 2) {
            block->sum = block->part_sum[0] + block->part_sum[1];
            memset(block->unused, 0, sizeof block->unused);
        }
    }
}

static void act_convert(const bt_cpu_matrix *w, const float *x, void *to)
{
    bt_act_block *blocks = to;

    if (w->layout == BT_PACK_LAYOUT_FILE || bt_cpu_pack_kind_of(w->type)->codes == BT_CODES_PLAIN) {
        memcpy(to, x, sizeof(float) * w->n_in);
        return;
    }
    for (uint32_t i = 0; i < w->n_in; i += PARTS_AT_ONCE * BT_ACT_PART) {
        const uint32_t n = (w->n_in - i) / BT_ACT_PART;
        convert_parts(x + i, n < PARTS_AT_ONCE ? (int)n : PARTS_AT_ONCE, blocks + i / BT_ACT_BLOCK);
    }
}

static uint32_t act_form(const bt_cpu_matrix *w)
{
    const bool plain = w->layout == BT_PACK_LAYOUT_FILE
                       || bt_cpu_pack_kind_of(w->type)->codes == BT_CODES_PLAIN;

    return plain ? BT_ACT_FORM_F32 : BT_ACT_FORM_Q8;
}

static size_t act_row_bytes(const bt_cpu_matrix *w)
{
    return act_form(w) == BT_ACT_FORM_F32 ? sizeof(float) * w->n_in
                                          : sizeof(bt_act_block) * (w->n_in / BT_ACT_BLOCK);
}

#endif
