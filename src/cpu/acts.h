/* cpu/acts.h - activations as quantised weights want them. Private to cpu/ and its tests.
 *
 * A row becomes blocks of 32 signed bytes with one f32 scale per 16 of them: x = scale * q, where
 * scale = (largest magnitude of the 16) / c with c in 124 .. 127, and q is rounded to the nearest,
 * ties to even. c is the one that leaves the smallest squared error. Two scales instead of one cost
 * a few float operations per block, the choice of c nothing after the conversion; together they
 * take 40 % and more off the squared error (docs/quants.md). A part whose largest magnitude is below
 * 2^-100 counts as zero. A part with an infinity or a NaN gets the scale NaN, so that it cannot
 * pass for a number.
 *
 * A block fills one cache line.
 */
#ifndef BT_CPU_ACTS_H
#define BT_CPU_ACTS_H

#include <stdint.h>

enum { BT_ACT_BLOCK = 32, BT_ACT_PART = 16, BT_ACT_CODE_MAX = 127, BT_ACT_CODE_MAX_LEAST = 124 };

typedef struct {
    int8_t q[BT_ACT_BLOCK];
    float  scale[2];
    float  part_sum[2];     /* scale[h] * (sum of q of part h) */
    float  sum;             /* part_sum[0] + part_sum[1] */
    float  unused[3];
} bt_act_block;

_Static_assert(sizeof(bt_act_block) == 64, "one cache line");

#endif
