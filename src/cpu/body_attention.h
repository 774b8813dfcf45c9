/* cpu/body_attention.h - attention over pages, for any vector width; included several times.
 *
 * A "line" is one query row of one head. The lines of a key head, a "group", share its keys and
 * values. A pass takes up to BT_ATTENTION_LINES_MAX lines through the pages in order of position,
 * and all of its groups through a page before the next one is touched:
 *
 *     keys of the page -> f32, turned so that a vector holds one dimension of LANES positions
 *     values of the page -> f32
 *     per line: scores -> running maximum m and weights p = e^(score - m)
 *               y = y * e^(m_before - m) + sum over positions of p * v
 *
 * A score is the sum of two chains, over even and over odd dimensions; y is one chain over
 * ascending positions, interrupted by one scaling per page. Which lines share a pass, a tile or a
 * call changes nothing of that, so a line's bits are its own. Positions that a line does not see
 * are masked in the scores and left out of the sums: their bytes may be anything.
 */
#ifndef BT_CPU_BODY_ATTENTION_H
#define BT_CPU_BODY_ATTENTION_H

#include <math.h>
#include <string.h>

#include "cpu/body_attention_tiles.h"

typedef struct {
    uint32_t kv_head, line, end;        /* lines [line, end), by ascending position */
} attention_group;

typedef struct {
    const bt_cpu_attention *a;
    size_t   tokens_padded, dim_v_padded;
    float   *keys;                      /* [head_dim][tokens_padded] */
    float   *values;                    /* [page_tokens][dim_v_padded]; first, the keys as rows */
    float   *scores;                    /* [line][tokens_padded] */
    uint32_t n_lines, n_groups;
    attention_group groups[BT_ATTENTION_LINES_MAX];
    const float *q[BT_ATTENTION_LINES_MAX];
    float       *y[BT_ATTENTION_LINES_MAX];
    uint32_t first[BT_ATTENTION_LINES_MAX];    /* positions seen: first <= p < last */
    uint32_t last[BT_ATTENTION_LINES_MAX];
    float    max[BT_ATTENTION_LINES_MAX];      /* of the scores so far */
    float    keep[BT_ATTENTION_LINES_MAX];     /* e^(max before this page - max) */
    float    total[BT_ATTENTION_LINES_MAX][LANES];   /* of the weights so far */
} attention_pass;

/* What a line sees of a page, counted from the page's start. */
typedef struct {
    uint32_t first, last;
} seen;

static size_t padded_to_lanes(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* keys[d][t] = rows[t][d] for positions first <= t < last of the page. */
static void turn_keys(attention_pass *p, const float *rows, size_t row_stride, seen at)
{
    const uint32_t dim = p->a->head_dim;

    for (uint32_t t = at.first / LANES * LANES; t < at.last; t += LANES) {
        const bool whole = p->a->page_tokens - t >= LANES;
        uint32_t   d = 0;
        for (; whole && dim - d >= LANES; d += LANES) {
            transpose_tile(rows + t * row_stride + d, row_stride,
                           p->keys + d * p->tokens_padded + t, p->tokens_padded);
        }
        for (; d < dim; d++) {
            for (uint32_t u = t; u < at.last && u < t + LANES; u++) {
                p->keys[d * p->tokens_padded + u] = rows[u * row_stride + d];
            }
        }
    }
}

static void load_page(attention_pass *p, uint32_t kv_head, uint32_t page, seen at)
{
    const bt_cpu_attention *a = p->a;
    const uint8_t *base = a->kv_base + a->page_bytes * a->pages[page];
    const size_t   first_k = (size_t)kv_head * a->head_dim;
    const size_t   first_v = (size_t)kv_head * a->head_dim_v;

    if (a->type_k == BT_TYPE_F32) {
        const float *rows = (const float *)(const void *)(base + a->k_offset);
        turn_keys(p, rows + first_k, a->k_row_bytes / sizeof(float), at);
    } else {
        rows_to_f32(a->type_k, base + a->k_offset, a->k_row_bytes, first_k, a->head_dim, at.first,
                    at.last, p->values, a->head_dim);
        turn_keys(p, p->values, a->head_dim, at);
    }
    rows_to_f32(a->type_v, base + a->v_offset, a->v_row_bytes, first_v, a->head_dim_v, at.first,
                at.last, p->values, p->dim_v_padded);
}

static void score_lines(const attention_pass *p, uint32_t line, uint32_t n, uint32_t t, bool pair)
{
    const float        *keys = p->keys + t;
    const float *const *q = p->q + line;
    const size_t        stride = p->tokens_padded;
    const uint32_t      dim = p->a->head_dim;
    float              *scores = p->scores + line * stride + t;

#define PAIR(n) score_tile(keys, stride, q, dim, n, 2, scores)
#define SINGLE(n) score_tile(keys, stride, q, dim, n, 1, scores)
    if (pair) {
        FOR_LINES(n, PAIR)
    } else {
        FOR_LINES(n, SINGLE)
    }
#undef PAIR
#undef SINGLE
}

static void score_page(const attention_pass *p, uint32_t line, uint32_t end, seen at)
{
    for (uint32_t t = at.first / LANES * LANES; t < at.last;) {
        const bool pair = t + LANES < at.last;
        for (uint32_t l = line; l < end; l += SCORE_LINES) {
            score_lines(p, l, end - l < SCORE_LINES ? end - l : SCORE_LINES, t, pair);
        }
        t += pair ? 2 * LANES : LANES;
    }
}

/* Scales a line's scores, masks those it does not see, and returns the largest. */
BT_INLINE float finish_scores(const bt_cpu_attention *a, float *scores, seen at)
{
    const vf low = vf_set(-INFINITY);
    vf       largest = low;

    for (uint32_t t = at.first / LANES * LANES; t < at.last; t += LANES) {
        vf s = vf_mul(vf_load(scores + t), vf_set(a->scale));
        if (a->softcap != 0.0f) {
            s = vf_mul(vf_tanh(vf_div(s, vf_set(a->softcap))), vf_set(a->softcap));
        }
        s = vf_keep(s, at.first > t ? at.first - t : 0, at.last - t, low);
        largest = vf_max(largest, s);
        vf_store(scores + t, s);
    }
    return vf_largest(largest);
}

/* Scores become weights; e^-inf of the masked ones is 0. */
BT_INLINE void weigh(float *scores, float max, float keep, float *total, seen at)
{
    vf sum = vf_mul(vf_load(total), vf_set(keep));

    for (uint32_t t = at.first / LANES * LANES; t < at.last; t += LANES) {
        const vf weight = vf_exp(vf_sub(vf_load(scores + t), vf_set(max)));
        sum = vf_add(sum, weight);
        vf_store(scores + t, weight);
    }
    vf_store(total, sum);
}

static void sum_lines(const attention_pass *p, uint32_t line, uint32_t n, seen at)
{
    const uint32_t dim = p->a->head_dim_v;
    const float   *keep = p->keep + line, *weights = p->scores + line * p->tokens_padded;

    for (uint32_t d = 0; d < dim;) {
        const bool     whole = dim - d >= SUM_VECTORS * LANES;
        const uint32_t n_last = whole || dim - d >= LANES ? LANES : dim - d;
        float         *y[SUM_LINES] = { 0 };
        for (uint32_t l = 0; l < n; l++) {
            y[l] = p->y[line + l] + d;
        }
#define WHOLE(n) sum_tile(y, keep, weights, p->tokens_padded, p->values + d, p->dim_v_padded,    \
                          at.first, at.last, n, SUM_VECTORS, n_last)
#define SINGLE(n) sum_tile(y, keep, weights, p->tokens_padded, p->values + d, p->dim_v_padded,   \
                           at.first, at.last, n, 1, n_last)
        if (whole) {
            FOR_LINES(n, WHOLE)
        } else {
            FOR_LINES(n, SINGLE)
        }
#undef WHOLE
#undef SINGLE
        d += whole ? SUM_VECTORS * LANES : LANES;
    }
}

/* Lines [line, end) see the same of the page. */
static void attend_page(attention_pass *p, uint32_t line, uint32_t end, seen at)
{
    float before[BT_ATTENTION_LINES_MAX];

    score_page(p, line, end, at);
    for (uint32_t l = line; l < end; l++) {
        const float largest = finish_scores(p->a, p->scores + l * p->tokens_padded, at);
        before[l] = p->max[l];
        p->max[l] = largest > p->max[l] ? largest : p->max[l];
    }
    for (uint32_t l = line; l < end; l += LANES) {
        const vf old = vf_load_part(before + l, end - l), new = vf_load_part(p->max + l, end - l);
        vf_store_part(p->keep + l, vf_exp(vf_sub(old, new)), end - l);
    }
    for (uint32_t l = line; l < end; l++) {
        weigh(p->scores + l * p->tokens_padded, p->max[l], p->keep[l], p->total[l], at);
    }
    for (uint32_t l = line; l < end; l += SUM_LINES) {
        sum_lines(p, l, end - l < SUM_LINES ? end - l : SUM_LINES, at);
    }
}

static seen seen_of_page(const attention_pass *p, uint32_t line, uint32_t start)
{
    const uint32_t tokens = p->a->page_tokens, first = p->first[line], last = p->last[line];
    const uint32_t reach = last <= start ? 0 : last - start;

    return (seen){ first > start ? first - start : 0, reach < tokens ? reach : tokens };
}

static void run_group(attention_pass *p, const attention_group *group, uint32_t page)
{
    const uint32_t start = page * p->a->page_tokens;
    const seen     any = { seen_of_page(p, group->line, start).first,
                           seen_of_page(p, group->end - 1, start).last };

    load_page(p, group->kv_head, page, any);
    for (uint32_t line = group->line; line < group->end;) {
        const seen at = seen_of_page(p, line, start);
        uint32_t   end = line + 1;
        for (; end < group->end; end++) {
            const seen other = seen_of_page(p, end, start);
            if (other.first != at.first || other.last != at.last) {
                break;
            }
        }
        if (at.first < at.last) {
            attend_page(p, line, end, at);
        }
        line = end;
    }
}

static void run_pass(attention_pass *p)
{
    const uint32_t tokens = p->a->page_tokens, dim = p->a->head_dim_v;
    const uint32_t page_last = (p->last[p->n_lines - 1] - 1) / tokens;

    for (uint32_t page = p->first[0] / tokens; page <= page_last; page++) {
        for (uint32_t g = 0; g < p->n_groups; g++) {
            run_group(p, &p->groups[g], page);
        }
    }
    for (uint32_t l = 0; l < p->n_lines; l++) {
        const vf total = vf_set(vf_sum(vf_load(p->total[l])));
        for (uint32_t d = 0; d < dim; d += LANES) {
            float *y = p->y[l] + d;
            vf_store_part(y, vf_div(vf_load_part(y, dim - d), total), dim - d);
        }
    }
}

static void add_line(attention_pass *p, uint32_t row, uint32_t head)
{
    const bt_cpu_attention *a = p->a;
    const uint32_t          position = a->position + row;
    const uint32_t          l = p->n_lines++;

    p->q[l] = a->q + row * a->q_stride + (size_t)head * a->head_dim;
    p->y[l] = a->y + row * a->y_stride + (size_t)head * a->head_dim_v;
    p->first[l] = a->window && position >= a->window ? position - a->window + 1 : 0;
    p->last[l] = position + 1;
    p->max[l] = -INFINITY;
    memset(p->total[l], 0, sizeof p->total[l]);
    memset(p->y[l], 0, sizeof(float) * a->head_dim_v);
}

/* Query heads [head, head + n) of rows [row, row_end), all of one key head, as a further group. */
static void add_group(attention_pass *p, uint32_t row, uint32_t row_end, uint32_t head, uint32_t n)
{
    attention_group *group = &p->groups[p->n_groups++];

    group->kv_head = head / (p->a->n_heads / p->a->n_kv_heads);
    group->line = p->n_lines;
    for (uint32_t r = row; r < row_end; r++) {
        for (uint32_t h = head; h < head + n; h++) {
            add_line(p, r, h);
        }
    }
    group->end = p->n_lines;
}

/* How many heads from `head` on may be one group. */
static uint32_t heads_together(const bt_cpu_attention *a, uint32_t head)
{
    const uint32_t per_kv_head = a->n_heads / a->n_kv_heads;
    uint32_t       n = per_kv_head - head % per_kv_head;

    n = n < a->head_last - head ? n : a->head_last - head;
    return n < BT_ATTENTION_LINES_MAX ? n : BT_ATTENTION_LINES_MAX;
}

/* Few rows: as many key heads to a pass as fit, so that a page is read from its start to its end.
 * Returns the next head. */
static uint32_t attend_few_rows(attention_pass *p, uint32_t head)
{
    const bt_cpu_attention *a = p->a;

    p->n_lines = p->n_groups = 0;
    while (head < a->head_last) {
        const uint32_t n = heads_together(a, head);
        if (p->n_lines + n * a->n_rows > BT_ATTENTION_LINES_MAX) {
            break;
        }
        add_group(p, 0, a->n_rows, head, n);
        head += n;
    }
    run_pass(p);
    return head;
}

/* Many rows: a pass is one key head and as many rows as fit, so that turning a page pays for many
 * lines. */
static void attend_many_rows(attention_pass *p, uint32_t head, uint32_t n)
{
    const uint32_t n_rows = p->a->n_rows, rows_max = BT_ATTENTION_LINES_MAX / n;

    for (uint32_t row = 0; row < n_rows; row += rows_max) {
        p->n_lines = p->n_groups = 0;
        add_group(p, row, n_rows - row < rows_max ? n_rows : row + rows_max, head, n);
        run_pass(p);
    }
}

static void attention(const bt_cpu_attention *a)
{
    const size_t   dim = padded_to_lanes(a->head_dim > a->head_dim_v ? a->head_dim : a->head_dim_v);
    attention_pass p = { .a = a };

    p.tokens_padded = padded_to_lanes(a->page_tokens);
    p.dim_v_padded = padded_to_lanes(a->head_dim_v);
    p.keys = a->scratch;
    p.values = p.keys + dim * p.tokens_padded;
    p.scores = p.values + dim * p.tokens_padded;
    for (uint32_t head = a->head_first; head < a->head_last;) {
        const uint32_t n = heads_together(a, head);
        if ((uint64_t)n * a->n_rows <= BT_ATTENTION_LINES_MAX) {
            head = attend_few_rows(&p, head);
        } else {
            attend_many_rows(&p, head, n);
            head += n;
        }
    }
}

#endif
