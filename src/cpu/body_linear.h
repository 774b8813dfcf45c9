/* cpu/body_linear.h - y = W x for quantised weights in strips (cpu/pack.h), for any vector width.
 *
 * A tile is a vector of outputs times up to TILE_ROWS activation rows: the block's codes are
 * unpacked into registers once and meet every row. Per block of 32 inputs and output, with i0 and i1
 * the integer sums of code times q over each part of 16 (exact), one row does
 *
 *     scales per 32:  acc += scale * (i0 * x.scale[0] + i1 * x.scale[1]);   acc += addend * x.sum
 *     scales per 16:  acc += scale[h] * (ih * x.scale[h]), h = 0, 1;
 *                     acc += addend[h] * x.part_sum[h], h = 0, 1
 *
 * where the addend is minus scale * zero, or minus the minimum. Every line is one fused operation
 * per `+=`, in this order, blocks ascending: nothing else decides an output's bits.
 *
 * The including file defines dot_part(w, q, code_max): the integer sums of 4 code vectors with 16
 * activation codes.
 */
#ifndef BT_CPU_BODY_LINEAR_H
#define BT_CPU_BODY_LINEAR_H

#include "cpu/acts.h"
#include "cpu/pack.h"
#include "cpu/tiers.h"

#if defined(__clang__)
#define BT_UNROLL _Pragma("unroll")
#else
#define BT_UNROLL _Pragma("GCC unroll 16")
#endif

enum { STRIPS_AT_ONCE = 4 };     /* stay in cache while all rows pass by */

/* One call, the same for all tiles. */
typedef struct {
    const bt_pack_kind *kind;
    bt_pack_strip       at;
    uint32_t            n_blocks;
    const float        *bias;
    bool                add;
    float              *y;
    size_t              y_stride, act_stride;      /* in floats; in bytes */
    const uint8_t      *acts;
} linear_job;

/* What a block's codes are multiplied with, one lane per output. */
typedef struct {
    vf scale[2], addend[2];
} block_scales;

/* v: half-bytes shifted down, upper bits of the byte cleared */
#define UPPER_HALF(v) vi_and(vi_shift_right16(v, 4), vi_set8(15))

BT_INLINE void unpack_nibbles(const uint8_t *at, vi w[8])
{
    BT_UNROLL
    for (int s = 0; s < 4; s++) {
        const vi v = vi_load(at + BT_STRIP_VECTOR * s);
        w[s] = vi_and(v, vi_set8(15));
        w[s + 4] = UPPER_HALF(v);
    }
}

/* Or-s bit `s` of v, moved to bit `to`, into each byte of w. Both constants. */
#define OR_BIT(w, v, s, to)                                                                       \
    vi_or(w, vi_and((s) > (to) ? vi_shift_right16(v, (s) > (to) ? (s) - (to) : 0)                 \
                               : vi_shift_left16(v, (s) > (to) ? 0 : (to) - (s)),                 \
                    vi_set8((uint8_t)(1u << (to)))))
/* The same for the two bits from 2 t. */
#define OR_TWO_BITS(w, v, t, to)                                                                  \
    vi_or(w, vi_and(2 * (t) > (to) ? vi_shift_right16(v, 2 * (t) > (to) ? 2 * (t) - (to) : 0)     \
                                   : vi_shift_left16(v, 2 * (t) > (to) ? 0 : (to) - 2 * (t)),     \
                    vi_set8((uint8_t)(3u << (to)))))

BT_INLINE void add_single_bits(vi v, int to, vi w[8])
{
    w[0] = to == 4 ? OR_BIT(w[0], v, 0, 4) : OR_BIT(w[0], v, 0, 2);
    w[1] = to == 4 ? OR_BIT(w[1], v, 1, 4) : OR_BIT(w[1], v, 1, 2);
    w[2] = to == 4 ? OR_BIT(w[2], v, 2, 4) : OR_BIT(w[2], v, 2, 2);
    w[3] = to == 4 ? OR_BIT(w[3], v, 3, 4) : OR_BIT(w[3], v, 3, 2);
    w[4] = to == 4 ? OR_BIT(w[4], v, 4, 4) : OR_BIT(w[4], v, 4, 2);
    w[5] = to == 4 ? OR_BIT(w[5], v, 5, 4) : OR_BIT(w[5], v, 5, 2);
    w[6] = to == 4 ? OR_BIT(w[6], v, 6, 4) : OR_BIT(w[6], v, 6, 2);
    w[7] = to == 4 ? OR_BIT(w[7], v, 7, 4) : OR_BIT(w[7], v, 7, 2);
}

BT_INLINE void add_upper_pairs(vi v, vi w[4])
{
    w[0] = OR_TWO_BITS(w[0], v, 0, 4);
    w[1] = OR_TWO_BITS(w[1], v, 1, 4);
    w[2] = OR_TWO_BITS(w[2], v, 2, 4);
    w[3] = OR_TWO_BITS(w[3], v, 3, 4);
}

BT_INLINE void unpack_pairs(vi v, vi w[4])
{
    w[0] = vi_and(v, vi_set8(3));
    w[1] = vi_and(vi_shift_right16(v, 2), vi_set8(3));
    w[2] = vi_and(vi_shift_right16(v, 4), vi_set8(3));
    w[3] = vi_and(vi_shift_right16(v, 6), vi_set8(3));
}

BT_INLINE void unpack(bt_pack_codes codes, const uint8_t *at, const uint8_t *table, vi w[8])
{
    if (codes == BT_CODES_2 || codes == BT_CODES_3) {
        unpack_pairs(vi_load(at), w);
        unpack_pairs(vi_load(at + BT_STRIP_VECTOR), w + 4);
        if (codes == BT_CODES_3) {
            add_single_bits(vi_load(at + 2 * BT_STRIP_VECTOR), 2, w);
        }
        return;
    }
    if (codes == BT_CODES_8) {
        BT_UNROLL
        for (int s = 0; s < 8; s++) {
            w[s] = vi_load(at + BT_STRIP_VECTOR * s);
        }
        return;
    }
    unpack_nibbles(at, w);
    if (codes == BT_CODES_5) {
        add_single_bits(vi_load(at + 4 * BT_STRIP_VECTOR), 4, w);
    } else if (codes == BT_CODES_6) {
        add_upper_pairs(vi_load(at + 4 * BT_STRIP_VECTOR), w);
        add_upper_pairs(vi_load(at + 5 * BT_STRIP_VECTOR), w + 4);
    } else if (codes == BT_CODES_TABLE) {
        BT_UNROLL
        for (int s = 0; s < 8; s++) {
            w[s] = vi_lookup(table, w[s]);
        }
    }
}

/* Scales of block b for lanes from `lane`; `strip` is the strip's first byte. */
BT_INLINE block_scales small_scales(const linear_job *job, bt_pack_scales scales, int zero,
                                    const uint8_t *strip, uint32_t b, uint32_t lane)
{
    const size_t index = (size_t)b * BT_STRIP + lane;
    block_scales s = { 0 };

    if (scales == BT_SCALES_E8M0) {
        s.scale[0] = vf_from_e8m0_half(strip + index);
    } else {
        s.scale[0] = vf_from_f16(strip + 2 * index);
    }
    s.addend[0] = scales == BT_SCALES_F16_MIN ? vf_from_f16(strip + job->at.min_at + 2 * index)
                                              : vf_mul(s.scale[0], vf_set((float)-zero));
    return s;
}

BT_INLINE block_scales record_scales(bt_pack_scales scales, int zero, const uint8_t *record,
                                     uint32_t j, uint32_t lane)
{
    const bool     has_min = scales == BT_SCALES_U8_32_MIN || scales == BT_SCALES_U8_16_MIN;
    const uint32_t n_parts = scales == BT_SCALES_I8_16 || scales == BT_SCALES_U8_16_MIN ? 2 : 1;
    const vf       d = vf_from_f16(record + 2 * lane);
    const uint8_t *ints = record + 64 + 16 * n_parts * j + lane;
    block_scales   s = { 0 };

    BT_UNROLL
    for (uint32_t h = 0; h < n_parts; h++) {
        s.scale[h] = vf_mul(d, has_min ? vf_from_u8(ints + 16 * h) : vf_from_i8(ints + 16 * h));
        if (has_min) {
            const vf d_min = vf_mul(vf_from_f16(record + 32 + 2 * lane), vf_set(-1.0f));
            s.addend[h] = vf_mul(d_min, vf_from_u8(ints + 16 * (8 * n_parts + h)));
        } else {
            s.addend[h] = vf_mul(s.scale[h], vf_set((float)-zero));
        }
    }
    return s;
}

/* One row's share of one block. */
BT_INLINE vf row_block(const vi w[8], const bt_act_block *x, const block_scales *s, int n_parts,
                       int code_max, vf acc)
{
    const vf i0 = vf_from_i32(dot_part(w, x->q, code_max));
    const vf i1 = vf_from_i32(dot_part(w + 4, x->q + BT_ACT_PART, code_max));
    const vf t0 = vf_mul(i0, vf_set(x->scale[0]));

    if (n_parts == 1) {
        acc = vf_fma(vf_fma(i1, vf_set(x->scale[1]), t0), s->scale[0], acc);
        return vf_fma(s->addend[0], vf_set(x->sum), acc);
    }
    acc = vf_fma(t0, s->scale[0], acc);
    acc = vf_fma(vf_mul(i1, vf_set(x->scale[1])), s->scale[1], acc);
    acc = vf_fma(s->addend[0], vf_set(x->part_sum[0]), acc);
    return vf_fma(s->addend[1], vf_set(x->part_sum[1]), acc);
}

BT_INLINE void store_outputs(const linear_job *job, uint32_t row, uint32_t out, uint32_t out_last,
                             vf acc)
{
    float         *y = job->y + row * job->y_stride + out;
    const uint32_t n = out_last - out;

    if (job->bias) {
        acc = vf_add(acc, vf_load_part(job->bias + out, n));
    }
    if (job->add) {
        acc = vf_add(vf_load_part(y, n), acc);
    }
    vf_store_part(y, acc, n);
}

/* Outputs [out, out + LANES) of `rows` rows from `row` on. All but job, strip, row, out and out_last
 * are constants at each use. */
BT_INLINE void tile(const linear_job *job, bt_pack_codes codes, bt_pack_scales scales, int zero,
                    int code_max, int rows, const uint8_t *strip, uint32_t row, uint32_t out,
                    uint32_t out_last)
{
    const bool     large = scales >= BT_SCALES_I8_32;
    const int      n_parts = scales == BT_SCALES_I8_16 || scales == BT_SCALES_U8_16_MIN ? 2 : 1;
    const uint32_t lane = out % BT_STRIP;
    const uint8_t *acts = job->acts + row * job->act_stride;
    vf             acc[TILE_ROWS];

    BT_UNROLL
    for (int r = 0; r < rows; r++) {
        acc[r] = vf_zero();
    }
    for (uint32_t b = 0; b < job->n_blocks; b++) {
        const uint8_t *record = strip + (size_t)(b / 8) * job->kind->record_bytes;
        const uint8_t *code_bytes = large
            ? record + job->kind->codes_at + b % 8 * job->kind->block_bytes
            : strip + job->at.codes_at + (size_t)b * job->kind->block_bytes;
        const block_scales s = large ? record_scales(scales, zero, record, b % 8, lane)
                                     : small_scales(job, scales, zero, strip, b, lane);
        vi w[8];

        unpack(codes, code_bytes + 4 * lane, job->kind->table, w);
        BT_UNROLL
        for (int r = 0; r < rows; r++) {
            const bt_act_block *x = (const bt_act_block *)(const void *)(acts + r * job->act_stride);
            acc[r] = row_block(w, x + b, &s, n_parts, code_max, acc[r]);
        }
    }
    BT_UNROLL
    for (int r = 0; r < rows; r++) {
        store_outputs(job, row + (uint32_t)r, out, out_last, acc[r]);
    }
}

/* All rows for the strips of [out, out_last), which stay in cache meanwhile. */
#define DEFINE_LINEAR(name, codes, scales, zero, code_max)                                         \
    static void tile_full_##name(const linear_job *job, const uint8_t *strip, uint32_t row,        \
                                 uint32_t out, uint32_t out_last)                                  \
    {                                                                                              \
        tile(job, codes, scales, zero, code_max, TILE_ROWS, strip, row, out, out_last);            \
    }                                                                                              \
    static void tile_four_##name(const linear_job *job, const uint8_t *strip, uint32_t row,        \
                                 uint32_t out, uint32_t out_last)                                  \
    {                                                                                              \
        tile(job, codes, scales, zero, code_max, 4, strip, row, out, out_last);                    \
    }                                                                                              \
    static void tile_one_##name(const linear_job *job, const uint8_t *strip, uint32_t row,         \
                                uint32_t out, uint32_t out_last)                                   \
    {                                                                                              \
        tile(job, codes, scales, zero, code_max, 1, strip, row, out, out_last);                    \
    }

typedef void tile_function(const linear_job *job, const uint8_t *strip, uint32_t row, uint32_t out,
                           uint32_t out_last);
typedef struct {
    tile_function *full, *four, *one;     /* TILE_ROWS, 4 and 1 rows */
} tile_set;

/*     type    codes           scales               zero  largest code */
#define LINEAR_LIST(X)                                                  \
    X(Q4_0,   BT_CODES_4,     BT_SCALES_F16,        8,    15)           \
    X(Q4_1,   BT_CODES_4,     BT_SCALES_F16_MIN,    0,    15)           \
    X(Q5_0,   BT_CODES_5,     BT_SCALES_F16,        16,   31)           \
    X(Q5_1,   BT_CODES_5,     BT_SCALES_F16_MIN,    0,    31)           \
    X(Q8_0,   BT_CODES_8,     BT_SCALES_F16,        128,  255)          \
    X(IQ4_NL, BT_CODES_TABLE, BT_SCALES_F16,        128,  255)          \
    X(MXFP4,  BT_CODES_TABLE, BT_SCALES_E8M0,       12,   24)           \
    X(Q2_K,   BT_CODES_2,     BT_SCALES_U8_16_MIN,  0,    3)            \
    X(Q3_K,   BT_CODES_3,     BT_SCALES_I8_16,      4,    7)            \
    X(Q4_K,   BT_CODES_4,     BT_SCALES_U8_32_MIN,  0,    15)           \
    X(Q5_K,   BT_CODES_5,     BT_SCALES_U8_32_MIN,  0,    31)           \
    X(Q6_K,   BT_CODES_6,     BT_SCALES_I8_16,      32,   63)           \
    X(IQ4_XS, BT_CODES_TABLE, BT_SCALES_I8_32,      128,  255)

#define X(type, codes, scales, zero, code_max) DEFINE_LINEAR(type, codes, scales, zero, code_max)
LINEAR_LIST(X)
#undef X

static const tile_set TILE_SETS[BT_TYPE_ID_MAX] = {
#define X(type, codes, scales, zero, code_max) \
    [BT_TYPE_##type] = { tile_full_##type, tile_four_##type, tile_one_##type },
    LINEAR_LIST(X)
#undef X
};

static void rows_of_strip(const linear_job *job, const tile_set *tiles, const uint8_t *strip,
                          uint32_t row, uint32_t n_rows, uint32_t out, uint32_t out_last)
{
    const uint32_t end = row + n_rows;

    for (; end - row >= TILE_ROWS; row += TILE_ROWS) {
        tiles->full(job, strip, row, out, out_last);
    }
    for (; end - row >= 4; row += 4) {
        tiles->four(job, strip, row, out, out_last);
    }
    for (; row < end; row++) {
        tiles->one(job, strip, row, out, out_last);
    }
}

static void linear_strips(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                          uint32_t n_rows, uint32_t out_first, uint32_t out_last,
                          const float *bias, bool add, float *y, size_t y_stride)
{
    const bt_pack_kind *kind = bt_pack_kind_of(w->type);
    const linear_job    job = {
        .kind = kind,
        .at = bt_pack_strip_of(kind, w->n_in),
        .n_blocks = w->n_in / BT_STRIP_BLOCK,
        .bias = bias,
        .add = add,
        .y = y,
        .y_stride = y_stride,
        .acts = acts,
        .act_stride = act_stride_bytes,
    };
    const tile_set *tiles = &TILE_SETS[w->type];
    const uint32_t  panel = STRIPS_AT_ONCE * BT_STRIP;

    for (uint32_t first = out_first; first < out_last; first += panel) {
        const uint32_t last = out_last - first < panel ? out_last : first + panel;
        for (uint32_t row = 0; row < n_rows; row += TILE_ROWS) {
            const uint32_t n = n_rows - row < TILE_ROWS ? n_rows - row : TILE_ROWS;
            for (uint32_t out = first; out < last; out += LANES) {
                const uint8_t *strip = (const uint8_t *)w->data + out / BT_STRIP * job.at.size;
                rows_of_strip(&job, tiles, strip, row, n, out, last);
            }
        }
    }
}

#endif
