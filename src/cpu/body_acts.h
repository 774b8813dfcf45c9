/* cpu/body_acts.h - activation rows to blocks of bytes, any width; included several times. */
#ifndef BT_CPU_BODY_ACTS_H
#define BT_CPU_BODY_ACTS_H

#include <string.h>

#include "base/bytes.h"
#include "cpu/acts.h"
#include "cpu/pack.h"
#include "cpu/tiers.h"

enum { SMALLEST_BITS = 0x0d800000 };     /* 2^-100; 127 over it is still a number */

BT_INLINE void convert_part(const float *x, int part, bt_act_block *to)
{
    const uint32_t bits = largest_magnitude_bits_of_16(x);
    const float    largest = bt_float_of_bits(bits);
    int8_t        *q = to->q + BT_ACT_PART * part;

    if (bits >= SMALLEST_BITS && bits < 0x7f800000u) {
        const int32_t sum = round_16_to_i8(x, (float)BT_ACT_CODE_MAX / largest, q);
        to->scale[part] = largest * (1.0f / (float)BT_ACT_CODE_MAX);
        to->part_sum[part] = to->scale[part] * (float)sum;
        return;
    }
    memset(q, 0, BT_ACT_PART);
    to->scale[part] = bits < SMALLEST_BITS ? 0.0f : bt_float_of_bits(0x7fc00000u);
    to->part_sum[part] = to->scale[part];
}

static void act_convert(const bt_cpu_matrix *w, const float *x, void *to)
{
    bt_act_block *blocks = to;

    if (w->layout == BT_PACK_LAYOUT_FILE || bt_pack_kind_of(w->type)->codes == BT_CODES_PLAIN) {
        memcpy(to, x, sizeof(float) * w->n_in);
        return;
    }
    for (uint32_t b = 0; b < w->n_in / BT_ACT_BLOCK; b++) {
        convert_part(x + BT_ACT_BLOCK * b, 0, &blocks[b]);
        convert_part(x + BT_ACT_BLOCK * b + BT_ACT_PART, 1, &blocks[b]);
        blocks[b].sum = blocks[b].part_sum[0] + blocks[b].part_sum[1];
        memset(blocks[b].unused, 0, sizeof blocks[b].unused);
    }
}

static uint32_t act_form(const bt_cpu_matrix *w)
{
    const bool plain = w->layout == BT_PACK_LAYOUT_FILE
                       || bt_pack_kind_of(w->type)->codes == BT_CODES_PLAIN;

    return plain ? BT_ACT_FORM_F32 : BT_ACT_FORM_Q8;
}

static size_t act_row_bytes(const bt_cpu_matrix *w)
{
    return act_form(w) == BT_ACT_FORM_F32 ? sizeof(float) * w->n_in
                                          : sizeof(bt_act_block) * (w->n_in / BT_ACT_BLOCK);
}

#endif
