/* cpu/body_attention_tiles.h - the inner loops of body_attention.h; included several times. */
#ifndef BT_CPU_BODY_ATTENTION_TILES_H
#define BT_CPU_BODY_ATTENTION_TILES_H

#include "base/check.h"
#include "cpu/body_math.h"
#include "cpu/tables.h"

/* A stored row of `type`: n values from value `first` (of a whole block) on, as f32. */
BT_INLINE void row_to_f32(bt_type type, const uint8_t *row, size_t first, uint32_t n, float *to)
{
    uint32_t i = 0;

    if (type == BT_TYPE_F16 || type == BT_TYPE_BF16) {
        const uint8_t *from = row + 2 * first;
        for (; n - i >= LANES; i += LANES) {
            vf_store(to + i, type == BT_TYPE_F16 ? vf_from_f16(from + 2 * i)
                                                 : vf_from_bf16(from + 2 * i));
        }
    }
    if (i < n) {
        uint64_t  offset = 0;
        const bool whole =
                bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), first + i, &offset);
        const bt_status status = bt_quant_type_decode(type, row + offset, to + i, n - i);
        BT_ASSERT(whole && status == BT_OK);
    }
}

/* Rows [t_first, t_last) of a page. */
static void rows_to_f32(bt_type type, const uint8_t *rows, size_t row_bytes, size_t first,
                        uint32_t n, uint32_t t_first, uint32_t t_last, float *to, size_t to_stride)
{
#define ROWS(type)                                                                \
    for (uint32_t t = t_first; t < t_last; t++) {                                 \
        row_to_f32(type, rows + t * row_bytes, first, n, to + t * to_stride);     \
    }
    if (type == BT_TYPE_F16) {
        ROWS(BT_TYPE_F16)
    } else if (type == BT_TYPE_BF16) {
        ROWS(BT_TYPE_BF16)
    } else {
        ROWS(type)
    }
#undef ROWS
}

/* One dimension of the keys meets one of each query: `lines` x `vectors` (constants) sums. */
BT_INLINE void score_step(const float *keys, const float *const q[], uint32_t d, int lines,
                          int vectors, vf sums[][2])
{
    vf k[2];

    BT_UNROLL
    for (int v = 0; v < vectors; v++) {
        k[v] = vf_load(keys + LANES * v);
    }
    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        const vf x = vf_set(q[l][d]);
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            sums[l][v] = vf_fma(k[v], x, sums[l][v]);
        }
    }
}

/* scores[l][...] = q[l] . keys for `lines` queries and `vectors` vectors of positions. Two chains
 * per score, over even and over odd dimensions. */
BT_INLINE void score_tile(const float *keys, size_t stride, const float *const q[], uint32_t dim,
                          int lines, int vectors, float *scores)
{
    vf       even[SCORE_LINES][2], odd[SCORE_LINES][2];
    uint32_t d = 0;

    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        even[l][0] = even[l][1] = odd[l][0] = odd[l][1] = vf_zero();
    }
    for (; d + 1 < dim; d += 2) {
        score_step(keys + d * stride, q, d, lines, vectors, even);
        score_step(keys + (d + 1) * stride, q, d + 1, lines, vectors, odd);
    }
    if (d < dim) {
        score_step(keys + d * stride, q, d, lines, vectors, even);
    }
    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            vf_store(scores + l * stride + LANES * v, vf_add(even[l][v], odd[l][v]));
        }
    }
}

/* y[l] = y[l] * keep[l] + weights[l] . values for `lines` lines and `vectors` vectors (constants);
 * n_last is how many values the last vector has. */
BT_INLINE void sum_tile(float *const y[], const float *keep, const float *weights,
                        size_t weight_stride, const float *values, size_t value_stride,
                        uint32_t first, uint32_t last, int lines, int vectors, uint32_t n_last)
{
    vf acc[SUM_LINES][SUM_VECTORS];

    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            const uint32_t n = v == vectors - 1 ? n_last : LANES;
            acc[l][v] = vf_mul(vf_load_part(y[l] + LANES * v, n), vf_set(keep[l]));
        }
    }
    for (uint32_t t = first; t < last; t++) {
        vf x[SUM_VECTORS];
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            x[v] = vf_load(values + t * value_stride + LANES * v);
        }
        BT_UNROLL
        for (int l = 0; l < lines; l++) {
            const vf weight = vf_set(weights[l * weight_stride + t]);
            BT_UNROLL
            for (int v = 0; v < vectors; v++) {
                acc[l][v] = vf_fma(weight, x[v], acc[l][v]);
            }
        }
    }
    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            const uint32_t n = v == vectors - 1 ? n_last : LANES;
            vf_store_part(y[l] + LANES * v, acc[l][v], n);
        }
    }
}

/* do_lines(N) for the N that is n: tiles need their size as a constant. */
#if ATTENTION_LINES == 6
#define FOR_LINES(n, do_lines)           \
    switch (n) {                         \
    case 1: do_lines(1); break;          \
    case 2: do_lines(2); break;          \
    case 3: do_lines(3); break;          \
    case 4: do_lines(4); break;          \
    case 5: do_lines(5); break;          \
    default: do_lines(6); break;         \
    }
#elif ATTENTION_LINES == 3
#define FOR_LINES(n, do_lines)           \
    switch (n) {                         \
    case 1: do_lines(1); break;          \
    case 2: do_lines(2); break;          \
    default: do_lines(3); break;         \
    }
#endif

#endif
