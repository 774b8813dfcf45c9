/* tests/kernels/check_attention.c - attention over pages, against the reference in double.
 *
 * Bound of a value. Scores: two chains of head_dim / 2 fused operations and one addition, then the
 * scale: d = (gamma(head_dim / 2 + 1) + u) * scale * sum |q k|, and with a cap 2^-21 of the capped
 * score more. A weight errs relatively by the exponent's error, d + u * |score - max|, and by the
 * exponential, 2^-22, once more for each page that moves the maximum. Both the sum of the weights
 * and y carry these, and a chain of one operation per key and page:
 *
 *     |y - exact| <= (2 (d + u (largest - smallest score) + 2^-22 (n_pages + 2))
 *                     + 2 gamma(n_keys + 2 n_pages + LANES)) * sum p |v|
 *
 * sum p |v| is the reference on a second pool, which holds the magnitudes of the values. Rows that
 * a query must not see hold NaN in every bit pattern's worst sense: 0xff bytes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

typedef struct {
    uint32_t n_heads, n_kv_heads, dim, dim_v, page_tokens, n_rows, position, window;
    float    softcap;
    bt_type  type_k, type_v;
} shape;

typedef struct {
    shape            s;
    uint32_t         n_pages;
    uint32_t        *pages;
    guarded          pool, magnitudes, q, y, want, sizes, scratch;
    bt_cpu_attention a;
    double           score_size;      /* largest scale * sum |q k| */
    double           score_span;
} attention_case;

static uint64_t row_bytes(bt_type type, uint32_t n)
{
    uint64_t bytes = 0;

    if (!bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), n, &bytes)) {
        abort();
    }
    return bytes;
}

/* Writes K and V of position p into both pools; returns the decoded key through `key`. */
static void put_row(attention_case *c, uint32_t p, float *key)
{
    const shape *s = &c->s;
    const uint32_t n_k = s->n_kv_heads * s->dim, n_v = s->n_kv_heads * s->dim_v;
    const size_t at = c->a.page_bytes * c->pages[p / s->page_tokens];
    const uint32_t row = p % s->page_tokens;
    float *k = malloc(sizeof(float) * n_k), *v = malloc(sizeof(float) * n_v);

    fill_pattern(PATTERN_NORMAL, k, n_k);
    fill_pattern(PATTERN_NORMAL, v, n_v);
    uint8_t *k_to = (uint8_t *)c->pool.data + at + c->a.k_offset + row * c->a.k_row_bytes;
    uint8_t *v_to = (uint8_t *)c->pool.data + at + c->a.v_offset + row * c->a.v_row_bytes;
    uint8_t *size_to = (uint8_t *)c->magnitudes.data + at + c->a.v_offset + row * c->a.v_row_bytes;
    bool ok = bt_quant_type_encode(s->type_k, k, k_to, n_k) == BT_OK
              && bt_quant_type_encode(s->type_v, v, v_to, n_v) == BT_OK
              && bt_quant_type_decode(s->type_k, k_to, key, n_k) == BT_OK
              && bt_quant_type_decode(s->type_v, v_to, v, n_v) == BT_OK;
    for (uint32_t i = 0; i < n_v; i++) {
        v[i] = fabsf(v[i]);
    }
    ok = ok && bt_quant_type_encode(s->type_v, v, size_to, n_v) == BT_OK;
    memcpy((uint8_t *)c->magnitudes.data + at + c->a.k_offset + row * c->a.k_row_bytes, k_to,
           c->a.k_row_bytes);
    if (!ok) {
        abort();
    }
    free(k);
    free(v);
}

/* How large scores and the sums behind them get, for any row and head: for the bound. */
static void measure_scores(attention_case *c, const float *key)
{
    const shape *s = &c->s;
    const float *q = c->q.data;

    for (uint32_t r = 0; r < s->n_rows; r++) {
        for (uint32_t h = 0; h < s->n_heads; h++) {
            const float *k = key + h / (s->n_heads / s->n_kv_heads) * s->dim;
            double size = 0.0;
            for (uint32_t i = 0; i < s->dim; i++) {
                size += fabs((double)q[(r * s->n_heads + h) * s->dim + i] * k[i]);
            }
            c->score_size = fmax(c->score_size, size * c->a.scale);
        }
    }
}

static attention_case case_make(const shape *s)
{
    attention_case c = { .s = *s };
    const uint32_t last = s->position + s->n_rows;

    c.n_pages = (last + s->page_tokens - 1) / s->page_tokens;
    c.pages = malloc(sizeof(uint32_t) * c.n_pages);
    for (uint32_t i = 0; i < c.n_pages; i++) {
        c.pages[i] = c.n_pages - 1 - i;
    }
    const size_t k_row = row_bytes(s->type_k, s->n_kv_heads * s->dim);
    const size_t v_row = row_bytes(s->type_v, s->n_kv_heads * s->dim_v);
    const uint32_t dim = s->dim > s->dim_v ? s->dim : s->dim_v;
    const size_t scratch = bt_cpu_attention_scratch(s->n_heads, dim, s->page_tokens);
    c.a = (bt_cpu_attention){
        .n_rows = s->n_rows, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .head_dim = s->dim,
        .head_dim_v = s->dim_v, .q_stride = s->n_heads * s->dim, .y_stride = s->n_heads * s->dim_v,
        .position = s->position, .window = s->window, .scale = 1.0f / sqrtf(s->dim),
        .softcap = s->softcap, .type_k = s->type_k, .type_v = s->type_v,
        .page_bytes = (k_row + v_row) * s->page_tokens, .page_tokens = s->page_tokens,
        .pages = c.pages, .k_offset = 0, .v_offset = k_row * s->page_tokens, .k_row_bytes = k_row,
        .v_row_bytes = v_row, .head_first = 0, .head_last = s->n_heads,
    };
    c.pool = guarded_alloc(c.a.page_bytes * c.n_pages);
    c.magnitudes = guarded_alloc(c.pool.size);
    memset(c.pool.data, 0xff, c.pool.size);
    memset(c.magnitudes.data, 0xff, c.pool.size);
    c.q = guarded_alloc(sizeof(float) * s->n_rows * s->n_heads * s->dim);
    fill_pattern(PATTERN_NORMAL, c.q.data, c.q.size / sizeof(float));
    c.y = guarded_alloc(sizeof(float) * s->n_rows * s->n_heads * s->dim_v);
    c.want = guarded_alloc(c.y.size);
    c.sizes = guarded_alloc(c.y.size);
    c.scratch = guarded_alloc((sizeof(float) * scratch + 63) / 64 * 64);
    const uint32_t first = s->window && s->position >= s->window ? s->position - s->window + 1 : 0;
    float         *key = malloc(sizeof(float) * s->n_kv_heads * s->dim);
    for (uint32_t p = first; p < last; p++) {
        put_row(&c, p, key);
        measure_scores(&c, key);
    }
    c.score_span = 2.0 * c.score_size;
    free(key);
    c.a.q = c.q.data;
    c.a.scratch = c.scratch.data;
    return c;
}

static void case_done(attention_case *c)
{
    guarded *all[] = { &c->pool, &c->magnitudes, &c->q, &c->y, &c->want, &c->sizes, &c->scratch };

    for (size_t i = 0; i < BT_LEN(all); i++) {
        guarded_free(all[i]);
    }
    free(c->pages);
}

static double relative_bound(const attention_case *c)
{
    const double u = 0x1p-24, n_keys = c->s.position + c->s.n_rows, n_pages = c->n_pages;
    double       score = (gamma_of(c->s.dim / 2 + 2) + u) * c->score_size;

    if (c->s.softcap != 0.0f) {
        score += 0x1p-21 * c->s.softcap + 3.0 * u * c->s.softcap;
    }
    return 2.0 * (score + u * c->score_span + 0x1p-22 * (n_pages + 2.0))
           + 2.0 * gamma_of(n_keys + 2.0 * n_pages + 16.0);
}

static void check_values(attention_case *c, const bt_cpu_kernels *k)
{
    const bt_cpu_kernels *ref = bt_cpu_kernels_get(BT_ISA_REF);
    bt_cpu_attention      a = c->a;
    const size_t          n = c->y.size / sizeof(float);
    const double          relative = relative_bound(c);
    const float          *y = c->y.data, *want = c->want.data, *size = c->sizes.data;

    a.kv_base = c->pool.data;
    a.y = c->want.data;
    ref->attention(&a);
    a.y = c->y.data;
    k->attention(&a);
    a.kv_base = c->magnitudes.data;
    a.y = c->sizes.data;
    ref->attention(&a);
    for (size_t i = 0; i < n; i++) {
        if (!within(y[i], want[i], relative * size[i] + 0x1p-126)) {
            check_failed("%u/%u heads of %u, pages of %u, %s, position %u, window %u: value %zu is "
                         "%.9g instead of %.9g",
                         c->s.n_heads, c->s.n_kv_heads, c->s.dim, c->s.page_tokens,
                         bt_quant_type_find((uint32_t)c->s.type_k)->name, c->s.position,
                         c->s.window, i, y[i], want[i]);
            return;
        }
    }
}

/* Rows alone, in groups, and heads apart, into `want`: the bits of all at once in `y`. */
static void check_invariance(attention_case *c, const bt_cpu_kernels *k)
{
    const uint32_t group[] = { 1, 2, 5 };

    for (size_t g = 0; g < BT_LEN(group); g++) {
        memset(c->want.data, 0xff, c->want.size);
        for (uint32_t r = 0; r < c->s.n_rows; r += group[g]) {
            bt_cpu_attention a = c->a;
            const uint32_t   left = c->s.n_rows - r;
            a.kv_base = c->pool.data;
            a.position = c->a.position + r;
            a.n_rows = left < group[g] ? left : group[g];
            a.q = c->a.q + r * c->a.q_stride;
            a.y = (float *)c->want.data + r * c->a.y_stride;
            for (uint32_t h = 0; h < c->s.n_heads; h = a.head_last) {
                const uint32_t width = 1 + random_below(c->s.n_heads);
                a.head_first = h;
                a.head_last = c->s.n_heads - h < width ? c->s.n_heads : h + width;
                k->attention(&a);
            }
        }
        if (memcmp(c->want.data, c->y.data, c->y.size) != 0) {
            check_failed("%u rows at a time differ from all rows at once", group[g]);
        }
    }
}

void check_attention(const bt_cpu_kernels *k)
{
    const shape shapes[] = {
        { 1, 1, 64, 64, 32, 1, 0, 0, 0.0f, BT_TYPE_F16, BT_TYPE_F16 },
        { 9, 3, 64, 64, 32, 1, 99, 0, 0.0f, BT_TYPE_F16, BT_TYPE_F16 },
        { 9, 3, 64, 64, 32, 41, 70, 0, 0.0f, BT_TYPE_F16, BT_TYPE_F16 },
        { 4, 1, 256, 256, 16, 33, 5, 20, 0.0f, BT_TYPE_F16, BT_TYPE_F16 },
        { 16, 8, 128, 128, 32, 7, 130, 0, 0.0f, BT_TYPE_BF16, BT_TYPE_BF16 },
        { 8, 8, 64, 64, 64, 3, 200, 64, 0.0f, BT_TYPE_F32, BT_TYPE_F32 },
        { 6, 2, 96, 32, 32, 9, 40, 0, 0.0f, BT_TYPE_Q8_0, BT_TYPE_Q8_0 },
        { 6, 2, 96, 64, 32, 9, 40, 7, 0.0f, BT_TYPE_F16, BT_TYPE_Q8_0 },
        { 5, 1, 40, 24, 10, 17, 23, 9, 0.0f, BT_TYPE_F16, BT_TYPE_F32 },
        { 2, 1, 7, 3, 4, 11, 2, 0, 0.0f, BT_TYPE_F32, BT_TYPE_F16 },
        { 70, 1, 16, 16, 8, 3, 9, 0, 0.0f, BT_TYPE_F16, BT_TYPE_F16 },
        { 4, 2, 64, 64, 32, 6, 60, 0, 20.0f, BT_TYPE_F16, BT_TYPE_F16 },
        { 3, 1, 32, 32, 1, 5, 12, 4, 0.0f, BT_TYPE_F32, BT_TYPE_F32 },
    };

    for (size_t i = 0; i < BT_LEN(shapes); i++) {
        attention_case c = case_make(&shapes[i]);
        check_values(&c, k);
        check_invariance(&c, k);
        case_done(&c);
    }
}
