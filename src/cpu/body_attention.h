/* cpu/body_attention.h - attention over pages, for any vector width.
 *
 * A "line" is one query row of one head. The lines of a key head share its keys and values, so a
 * pass takes all of them (up to BT_ATTENTION_LINES_MAX) through the pages in order of position:
 *
 *     keys of the page -> f32, turned so that a vector holds one dimension of LANES positions
 *     values of the page -> f32
 *     per line: scores -> running maximum m and weights p = e^(score - m)
 *               y = y * e^(m_before - m) + sum over positions of p * v
 *
 * A score is the sum of two chains, over even and over odd dimensions; y is one chain over
 * ascending positions, interrupted by one scaling per page. Which lines share a pass, a tile or a
 * call changes nothing of that, so a line's bits are its own. Positions that a line does not see are
 * masked in the scores and left out of the sums: their bytes may be anything.
 */
#ifndef BT_CPU_BODY_ATTENTION_H
#define BT_CPU_BODY_ATTENTION_H

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "cpu/body_math.h"
#include "cpu/tiers.h"

typedef struct {
    const float *q;
    float       *y;
    uint32_t     first, last;       /* positions seen: first <= p < last */
    float        max;
    float        keep;              /* e^(max before this page - max) */
    float        total[LANES];      /* sums of the weights, lane by lane */
} attention_line;

typedef struct {
    const bt_cpu_attention *a;
    uint32_t kv_head;
    uint32_t tokens_padded, dim_v_padded;
    float   *keys;                  /* [head_dim][tokens_padded] */
    float   *values;                /* [page_tokens][dim_v_padded]; before that, keys as rows */
    float   *scores;                /* [line][tokens_padded] */
    uint32_t n_lines;
    attention_line lines[BT_ATTENTION_LINES_MAX];
} attention_pass;

static uint32_t padded_to_lanes(uint32_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* n values, from a whole block on, as f32. */
static void values_to_f32(bt_type type, const uint8_t *row, size_t first, uint32_t n, float *to)
{
    uint32_t i = 0;

    if (type == BT_TYPE_F16) {
        for (; n - i >= LANES; i += LANES) {
            vf_store(to + i, vf_from_f16(row + 2 * (first + i)));
        }
    } else if (type == BT_TYPE_BF16) {
        for (; n - i >= LANES; i += LANES) {
            vf_store(to + i, vf_from_bf16(row + 2 * (first + i)));
        }
    }
    if (i < n) {
        uint64_t  offset = 0;
        const bool whole = bt_type_row_bytes(bt_type_find((uint32_t)type), first + i, &offset);
        const bt_status status = bt_type_decode(type, row + offset, to + i, n - i);
        BT_ASSERT(whole && status == BT_OK);
    }
}

/* keys[d][t] = rows[t][d] for positions first <= t < last of the page. */
static void turn_keys(attention_pass *p, const float *rows, size_t row_stride, uint32_t first,
                      uint32_t last)
{
    const uint32_t dim = p->a->head_dim;

    for (uint32_t t = first / LANES * LANES; t < last; t += LANES) {
        const bool whole = p->a->page_tokens - t >= LANES;
        uint32_t   d = 0;
        for (; whole && dim - d >= LANES; d += LANES) {
            transpose_tile(rows + t * row_stride + d, row_stride,
                           p->keys + (size_t)d * p->tokens_padded + t, p->tokens_padded);
        }
        for (; d < dim; d++) {
            for (uint32_t u = t; u < last && u < t + LANES; u++) {
                p->keys[(size_t)d * p->tokens_padded + u] = rows[u * row_stride + d];
            }
        }
    }
}

static void load_page(attention_pass *p, uint32_t page, uint32_t first, uint32_t last)
{
    const bt_cpu_attention *a = p->a;
    const uint8_t *base = a->kv_base + a->page_bytes * a->pages[page];
    const size_t   first_k = (size_t)p->kv_head * a->head_dim;
    const size_t   first_v = (size_t)p->kv_head * a->head_dim_v;
    const uint8_t *keys = base + a->k_offset, *values = base + a->v_offset;

    if (a->type_k == BT_TYPE_F32) {
        turn_keys(p, (const float *)(const void *)keys + first_k, a->k_row_bytes / sizeof(float),
                  first, last);
    } else {
        for (uint32_t t = first; t < last; t++) {
            values_to_f32(a->type_k, keys + t * a->k_row_bytes, first_k, a->head_dim,
                          p->values + (size_t)t * a->head_dim);
        }
        turn_keys(p, p->values, a->head_dim, first, last);
    }
    for (uint32_t t = first; t < last; t++) {
        values_to_f32(a->type_v, values + t * a->v_row_bytes, first_v, a->head_dim_v,
                      p->values + (size_t)t * p->dim_v_padded);
    }
}

/* Scores of `lines` lines (a constant) at `vectors` vectors of positions from t on. */
BT_INLINE void score_tile(const attention_pass *p, int lines, int vectors, uint32_t line, uint32_t t)
{
    const uint32_t dim = p->a->head_dim;
    const size_t   stride = p->tokens_padded;
    const float   *keys = p->keys + t;
    vf             even[SCORE_LINES][2], odd[SCORE_LINES][2];

    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        even[l][0] = even[l][1] = odd[l][0] = odd[l][1] = vf_zero();
    }
    for (uint32_t d = 0; d + 1 < dim; d += 2) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            const vf k0 = vf_load(keys + d * stride + LANES * v);
            const vf k1 = vf_load(keys + (d + 1) * stride + LANES * v);
            BT_UNROLL
            for (int l = 0; l < lines; l++) {
                even[l][v] = vf_fma(k0, vf_set(p->lines[line + l].q[d]), even[l][v]);
                odd[l][v] = vf_fma(k1, vf_set(p->lines[line + l].q[d + 1]), odd[l][v]);
            }
        }
    }
    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            if (dim % 2) {
                const vf k = vf_load(keys + (dim - 1) * stride + LANES * v);
                even[l][v] = vf_fma(k, vf_set(p->lines[line + l].q[dim - 1]), even[l][v]);
            }
            vf_store(p->scores + (line + l) * stride + t + LANES * v, vf_add(even[l][v], odd[l][v]));
        }
    }
}

#define CASE_LINES(call, n) case n: call(n); break

static void score_lines(const attention_pass *p, uint32_t line, uint32_t n, uint32_t t, bool pair)
{
#define SCORE(n) pair ? score_tile(p, n, 2, line, t) : score_tile(p, n, 1, line, t)
    switch (n) {
        CASE_LINES(SCORE, 1);
        CASE_LINES(SCORE, 2);
        CASE_LINES(SCORE, 3);
#if SCORE_LINES_MANY
        CASE_LINES(SCORE, 4);
        CASE_LINES(SCORE, 5);
        CASE_LINES(SCORE, 6);
#endif
    default:
        break;
    }
#undef SCORE
}

static void score_page(const attention_pass *p, uint32_t line_first, uint32_t line_last,
                       uint32_t first, uint32_t last)
{
    for (uint32_t t = first / LANES * LANES; t < last;) {
        const bool pair = t + LANES < last;
        for (uint32_t line = line_first; line < line_last; line += SCORE_LINES) {
            const uint32_t n = line_last - line < SCORE_LINES ? line_last - line : SCORE_LINES;
            score_lines(p, line, n, t, pair);
        }
        t += pair ? 2 * LANES : LANES;
    }
}

/* Scores of positions [first, last) of the page become weights. */
static void weigh(const bt_cpu_attention *a, attention_line *line, float *scores, uint32_t first,
                  uint32_t last)
{
    const vf low = vf_set(-INFINITY);
    vf       largest = low;

    for (uint32_t t = first / LANES * LANES; t < last; t += LANES) {
        vf s = vf_mul(vf_load(scores + t), vf_set(a->scale));
        if (a->softcap != 0.0f) {
            s = vf_mul(vf_tanh(vf_div(s, vf_set(a->softcap))), vf_set(a->softcap));
        }
        s = vf_keep(s, first > t ? first - t : 0, last - t, low);
        largest = vf_max(largest, s);
        vf_store(scores + t, s);
    }
    const float page_max = vf_largest(largest);
    const float max = page_max > line->max ? page_max : line->max;
    const vf    keep = vf_exp(vf_set(line->max - max));
    vf          total = vf_mul(vf_load(line->total), keep);

    for (uint32_t t = first / LANES * LANES; t < last; t += LANES) {
        const vf e = vf_exp(vf_sub(vf_load(scores + t), vf_set(max)));
        const vf p = vf_keep(e, first > t ? first - t : 0, last - t, vf_zero());
        total = vf_add(total, p);
        vf_store(scores + t, p);
    }
    vf_store(line->total, total);
    line->max = max;
    line->keep = vf_first(keep);
}

/* y = y * keep + weights . values for `lines` lines and `vectors` vectors (constants) from
 * dimension d on; n_last is how many values the last vector has. */
BT_INLINE void sum_tile(const attention_pass *p, int lines, int vectors, uint32_t line, uint32_t d,
                        uint32_t n_last, uint32_t first, uint32_t last)
{
    vf acc[SUM_LINES][SUM_VECTORS];

    BT_UNROLL
    for (int l = 0; l < lines; l++) {
        const attention_line *at = &p->lines[line + l];
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            const uint32_t n = v == vectors - 1 ? n_last : LANES;
            acc[l][v] = vf_mul(vf_load_part(at->y + d + LANES * v, n), vf_set(at->keep));
        }
    }
    for (uint32_t t = first; t < last; t++) {
        const float *values = p->values + (size_t)t * p->dim_v_padded + d;
        vf           x[SUM_VECTORS];
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            x[v] = vf_load(values + LANES * v);
        }
        BT_UNROLL
        for (int l = 0; l < lines; l++) {
            const vf weight = vf_set(p->scores[(size_t)(line + l) * p->tokens_padded + t]);
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
            vf_store_part(p->lines[line + l].y + d + LANES * v, acc[l][v], n);
        }
    }
}

static void sum_lines(const attention_pass *p, uint32_t line, uint32_t n, uint32_t first,
                      uint32_t last)
{
    const uint32_t dim = p->a->head_dim_v;

    for (uint32_t d = 0; d < dim;) {
        const bool     whole = dim - d >= SUM_VECTORS * LANES;
        const uint32_t n_last = whole ? LANES : dim - d < LANES ? dim - d : LANES;
#define SUM(n) whole ? sum_tile(p, n, SUM_VECTORS, line, d, n_last, first, last) \
                     : sum_tile(p, n, 1, line, d, n_last, first, last)
        switch (n) {
            CASE_LINES(SUM, 1);
            CASE_LINES(SUM, 2);
            CASE_LINES(SUM, 3);
#if SCORE_LINES_MANY
            CASE_LINES(SUM, 4);
            CASE_LINES(SUM, 5);
            CASE_LINES(SUM, 6);
#endif
        default:
            break;
        }
#undef SUM
        d += whole ? SUM_VECTORS * LANES : LANES;
    }
}

/* Lines [line, end) see the same positions [first, last) of the page. */
static void attend_page(attention_pass *p, uint32_t line, uint32_t end, uint32_t first, uint32_t last)
{
    score_page(p, line, end, first, last);
    for (uint32_t l = line; l < end; l++) {
        weigh(p->a, &p->lines[l], p->scores + (size_t)l * p->tokens_padded, first, last);
    }
    for (uint32_t l = line; l < end; l += SUM_LINES) {
        sum_lines(p, l, end - l < SUM_LINES ? end - l : SUM_LINES, first, last);
    }
}

/* What a line sees of the page that starts at `start`. */
static void seen_of_page(const attention_line *line, uint32_t start, uint32_t tokens,
                         uint32_t *ret_first, uint32_t *ret_last)
{
    *ret_first = line->first > start ? line->first - start : 0;
    *ret_last = line->last <= start ? 0 : line->last - start < tokens ? line->last - start : tokens;
}

static void run_pass(attention_pass *p)
{
    const uint32_t tokens = p->a->page_tokens;
    const uint32_t begin = p->lines[0].first, end = p->lines[p->n_lines - 1].last;

    for (uint32_t page = begin / tokens; page <= (end - 1) / tokens; page++) {
        const uint32_t start = page * tokens;
        load_page(p, page, begin > start ? begin - start : 0,
                  end - start < tokens ? end - start : tokens);
        for (uint32_t line = 0; line < p->n_lines;) {
            uint32_t first, last, next = line + 1;
            seen_of_page(&p->lines[line], start, tokens, &first, &last);
            for (; next < p->n_lines; next++) {
                uint32_t other_first, other_last;
                seen_of_page(&p->lines[next], start, tokens, &other_first, &other_last);
                if (other_first != first || other_last != last) {
                    break;
                }
            }
            if (first < last) {
                attend_page(p, line, next, first, last);
            }
            line = next;
        }
    }
    for (uint32_t l = 0; l < p->n_lines; l++) {
        const float by = vf_sum(vf_load(p->lines[l].total));
        for (uint32_t d = 0; d < p->a->head_dim_v; d += LANES) {
            const uint32_t n = p->a->head_dim_v - d;
            vf_store_part(p->lines[l].y + d,
                          vf_div(vf_load_part(p->lines[l].y + d, n), vf_set(by)), n);
        }
    }
}

static void add_line(attention_pass *p, uint32_t row, uint32_t head)
{
    const bt_cpu_attention *a = p->a;
    attention_line         *line = &p->lines[p->n_lines++];
    const uint32_t          position = a->position + row;

    line->q = a->q + row * a->q_stride + (size_t)head * a->head_dim;
    line->y = a->y + row * a->y_stride + (size_t)head * a->head_dim_v;
    line->first = a->window && position >= a->window ? position - a->window + 1 : 0;
    line->last = position + 1;
    line->max = -INFINITY;
    memset(line->total, 0, sizeof line->total);
    memset(line->y, 0, sizeof(float) * a->head_dim_v);
}

/* Rows [row, ...) of query heads [head, head + n_heads), which share a key head. */
static void attend_rows(const bt_cpu_attention *a, uint32_t head, uint32_t n_heads)
{
    const uint32_t dim = padded_to_lanes(a->head_dim > a->head_dim_v ? a->head_dim : a->head_dim_v);
    const uint32_t rows_max = BT_ATTENTION_LINES_MAX / n_heads;
    attention_pass p = {
        .a = a,
        .kv_head = head / (a->n_heads / a->n_kv_heads),
        .tokens_padded = padded_to_lanes(a->page_tokens),
        .dim_v_padded = padded_to_lanes(a->head_dim_v),
    };

    p.keys = a->scratch;
    p.values = p.keys + (size_t)dim * p.tokens_padded;
    p.scores = p.values + (size_t)dim * p.tokens_padded;
    for (uint32_t row = 0; row < a->n_rows; row += rows_max) {
        const uint32_t n = a->n_rows - row < rows_max ? a->n_rows - row : rows_max;
        p.n_lines = 0;
        for (uint32_t r = row; r < row + n; r++) {
            for (uint32_t h = head; h < head + n_heads; h++) {
                add_line(&p, r, h);
            }
        }
        run_pass(&p);
    }
}

static void attention(const bt_cpu_attention *a)
{
    const uint32_t group = a->n_heads / a->n_kv_heads;

    for (uint32_t head = a->head_first; head < a->head_last;) {
        uint32_t n = group - head % group;
        n = n < a->head_last - head ? n : a->head_last - head;
        n = n < BT_ATTENTION_LINES_MAX ? n : BT_ATTENTION_LINES_MAX;
        attend_rows(a, head, n);
        head += n;
    }
}

#endif
