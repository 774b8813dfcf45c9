/* cpu/body_linear.h - y = W x for quantised weights in strips, any width; included several times.
 *
 * A tile is a vector of outputs times up to TILE_ROWS activation rows: the block's codes are
 * unpacked into registers once and meet every row. Per block of 32 inputs and output, with i0 and
 * i1 the integer sums of code times q over each part of 16 (exact), one row does
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
#include "cpu/body_math.h"
#include "cpu/body_unpack.h"
#include "cpu/pack.h"
#include "cpu/tables.h"

/* Sizes of what should stay in cache: a tile's activations in the first level while the strips of a
 * panel pass by, a group of rows in the second while all panels do. None of them changes a bit:
 * sums that are interrupted are kept as they are. */
enum {
    PANEL_STRIPS = 4,
    PANEL = PANEL_STRIPS * BT_STRIP,
    SPAN_BLOCKS = 32,                    /* a multiple of 8 */
    GROUP_BYTES = 512 * 1024,
};

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

/* The part of the work that one tile does: blocks [first, last) for `rows` rows from `row` on and
 * outputs [out, out + LANES), of which those below out_last are wanted. */
typedef struct {
    const uint8_t *strip;
    float         *carry;                /* [rows][PANEL] sums of the blocks before */
    uint32_t       block_first, block_last;
    uint32_t       row, out, out_last;
} tile_part;

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

BT_INLINE void store_outputs(const linear_job *job, const tile_part *part, uint32_t r, vf acc)
{
    float         *y = job->y + (part->row + r) * job->y_stride + part->out;
    const uint32_t n = part->out_last - part->out;

    if (job->bias) {
        acc = vf_add(acc, vf_load_part(job->bias + part->out, n));
    }
    if (job->add) {
        acc = vf_add(vf_load_part(y, n), acc);
    }
    vf_store_part(y, acc, n);
}

/* codes, scales, zero, code_max and rows are constants at each use. */
BT_INLINE void tile(const linear_job *job, const tile_part *part, bt_pack_codes codes,
                    bt_pack_scales scales, int zero, int code_max, int rows)
{
    const bool     large = scales >= BT_SCALES_I8_32;
    const int      n_parts = scales == BT_SCALES_I8_16 || scales == BT_SCALES_U8_16_MIN ? 2 : 1;
    const uint32_t lane = part->out % BT_STRIP;
    const uint8_t *acts = job->acts + part->row * job->act_stride;
    float         *carry = part->carry + part->out % PANEL;
    vf             acc[TILE_ROWS];

    BT_UNROLL
    for (int r = 0; r < rows; r++) {
        acc[r] = part->block_first ? vf_load(carry + PANEL * r) : vf_zero();
    }
    for (uint32_t b = part->block_first; b < part->block_last; b++) {
        const uint8_t *record = part->strip + (size_t)(b / 8) * job->kind->record_bytes;
        const uint8_t *code_bytes = large
            ? record + job->kind->codes_at + b % 8 * job->kind->block_bytes
            : part->strip + job->at.codes_at + (size_t)b * job->kind->block_bytes;
        const block_scales s = large ? record_scales(scales, zero, record, b % 8, lane)
                                     : small_scales(&job->at, scales, zero, part->strip, b, lane);
        vi w[8];

        unpack(codes, code_bytes + 4 * lane, job->kind->table, w);
        BT_UNROLL
        for (int r = 0; r < rows; r++) {
            const void         *row = acts + r * job->act_stride;
            const bt_act_block *x = (const bt_act_block *)row + b;
            acc[r] = row_block(w, x, &s, n_parts, code_max, acc[r]);
        }
    }
    BT_UNROLL
    for (int r = 0; r < rows; r++) {
        if (part->block_last == job->n_blocks) {
            store_outputs(job, part, (uint32_t)r, acc[r]);
        } else {
            vf_store(carry + PANEL * r, acc[r]);
        }
    }
}

typedef void tile_function(const linear_job *job, const tile_part *part);
typedef struct {
    tile_function *full, *four, *one;     /* TILE_ROWS, 4 and 1 rows */
} tile_set;

#define DEFINE_TILE(name, rows, ...)                                    \
    static void name(const linear_job *job, const tile_part *part)      \
    {                                                                   \
        tile(job, part, __VA_ARGS__, rows);                             \
    }

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

#define X(type, ...)                                \
    DEFINE_TILE(full_##type, TILE_ROWS, __VA_ARGS__) \
    DEFINE_TILE(four_##type, 4, __VA_ARGS__)         \
    DEFINE_TILE(one_##type, 1, __VA_ARGS__)
LINEAR_LIST(X)
#undef X

static const tile_set TILE_SETS[BT_TYPE_ID_MAX] = {
#define X(type, ...) [BT_TYPE_##type] = { full_##type, four_##type, one_##type },
    LINEAR_LIST(X)
#undef X
};

static void run_tiles(const linear_job *job, const tile_set *tiles, tile_part part, uint32_t n_rows)
{
    const uint32_t end = part.row + n_rows;

    while (part.row < end) {
        const uint32_t left = end - part.row;
        const uint32_t n = left >= TILE_ROWS ? TILE_ROWS : left >= 4 ? 4 : 1;
        (n == TILE_ROWS ? tiles->full : n == 4 ? tiles->four : tiles->one)(job, &part);
        part.row += n;
        part.carry += n * PANEL;
    }
}

/* Up to TILE_ROWS rows from `row` on, outputs [first, last) of one panel. */
static void run_panel(const linear_job *job, const tile_set *tiles, const uint8_t *strips,
                      uint32_t row, uint32_t n_rows, uint32_t first, uint32_t last)
{
    float carry[TILE_ROWS * PANEL];

    for (uint32_t b = 0; b < job->n_blocks; b += SPAN_BLOCKS) {
        for (uint32_t out = first; out < last; out += LANES) {
            const tile_part part = {
                .strip = strips + out / BT_STRIP * job->at.size,
                .carry = carry,
                .block_first = b,
                .block_last = job->n_blocks - b < SPAN_BLOCKS ? job->n_blocks : b + SPAN_BLOCKS,
                .row = row,
                .out = out,
                .out_last = last,
            };
            run_tiles(job, tiles, part, n_rows);
        }
    }
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void linear_strips(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                          uint32_t n_rows, uint32_t out_first, uint32_t out_last,
                          const float *bias, bool add, float *y, size_t y_stride)
{
    const bt_pack_kind *kind = bt_cpu_pack_kind_of(w->type);
    const linear_job    job = {
        .kind = kind,
        .at = bt_cpu_pack_strip_of(kind, w->n_in),
        .n_blocks = w->n_in / BT_STRIP_BLOCK,
        .bias = bias,
        .add = add,
        .y = y,
        .y_stride = y_stride,
        .acts = acts,
        .act_stride = act_stride_bytes,
    };
    const uint32_t fitting = (uint32_t)(GROUP_BYTES / sizeof(bt_act_block)) / job.n_blocks;
    const uint32_t tiles_fitting = fitting / TILE_ROWS < 4 ? 4 : fitting / TILE_ROWS;
    const uint32_t group = tiles_fitting * TILE_ROWS;

    for (uint32_t start = 0; start < n_rows; start += group) {
        const uint32_t end = start + least(group, n_rows - start);
        for (uint32_t first = out_first; first < out_last; first += PANEL) {
            const uint32_t last = first + least(PANEL, out_last - first);
            for (uint32_t row = start; row < end; row += TILE_ROWS) {
                run_panel(&job, &TILE_SETS[w->type], w->data, row, least(TILE_ROWS, end - row),
                          first, last);
            }
        }
    }
}

#endif
