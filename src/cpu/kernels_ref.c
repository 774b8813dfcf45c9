/* cpu/kernels_ref.c - every slot in readable C: what faster ISAs are tested against.
 *
 * Weights are used as the file has them, activations as they come, and everything is summed in
 * double, in order of the index. So this ISA is also the exact engine that quantised activations
 * are measured against. Built with -ffp-contract=off like the rest of the tree.
 */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "cpu/tables.h"

enum { CHUNK = 256, ROWS_AT_ONCE = 16 };    /* a multiple of every block; see dot_rows() */

/* ---- Weights ------------------------------------------------------------------------------- */

static size_t pack_bytes(bt_type type, uint32_t n_out, uint32_t n_in)
{
    (void)type;
    (void)n_out;
    (void)n_in;
    return 0;
}

static void pack(bt_type type, uint32_t n_out, uint32_t n_in, const void *rows, void *to,
                 uint32_t out_first, uint32_t out_last)
{
    (void)type;
    (void)n_out;
    (void)n_in;
    (void)rows;
    (void)to;
    (void)out_first;
    (void)out_last;
    const bool the_reference_has_a_packed_layout = false;
    BT_ASSERT(the_reference_has_a_packed_layout);
}

static uint32_t layout_of(bt_type type, bool packed)
{
    (void)type;
    (void)packed;
    return 0;
}

static size_t act_row_bytes(const bt_cpu_matrix *w)
{
    return sizeof(float) * w->n_in;
}

static uint32_t act_form(const bt_cpu_matrix *w)
{
    (void)w;
    return BT_ACT_FORM_F32;
}

static void act_convert(const bt_cpu_matrix *w, const float *x, void *to)
{
    memcpy(to, x, sizeof(float) * w->n_in);
}

static const uint8_t *row_of(bt_type type, const void *rows, uint32_t n_in, uint32_t index)
{
    uint64_t row_bytes = 0;
    const bool known =
            bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), n_in, &row_bytes);

    BT_ASSERT(known);
    return (const uint8_t *)rows + row_bytes * index;
}

/* Values [first, first + n) of a stored row; first and n are multiples of the block. */
static void decode_part(bt_type type, const uint8_t *row, size_t first, size_t n, float *to)
{
    uint64_t offset = 0;
    const bool known = bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), first, &offset);
    const bt_status status = bt_quant_type_decode(type, row + offset, to, n);

    BT_ASSERT(known);
    BT_ASSERT(status == BT_OK);
}

static void dot_rows(const bt_cpu_matrix *w, uint32_t output, const uint8_t *acts,
                     size_t act_stride_bytes, uint32_t n_rows, double sums[ROWS_AT_ONCE])
{
    const uint8_t *row = row_of(w->type, w->data, w->n_in, output);
    float          weights[CHUNK];

    for (uint32_t r = 0; r < n_rows; r++) {
        sums[r] = 0.0;
    }
    for (uint32_t first = 0; first < w->n_in; first += CHUNK) {
        const uint32_t n = w->n_in - first < CHUNK ? w->n_in - first : CHUNK;
        decode_part(w->type, row, first, n, weights);
        for (uint32_t r = 0; r < n_rows; r++) {
            float x[CHUNK];
            memcpy(x, acts + r * act_stride_bytes + sizeof(float) * first, sizeof(float) * n);
            for (uint32_t i = 0; i < n; i++) {
                sums[r] += (double)weights[i] * (double)x[i];
            }
        }
    }
}

void bt_cpu_linear_ref(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                       uint32_t n_rows, uint32_t out_first, uint32_t out_last, const float *bias,
                       bool add, float *y, size_t y_stride)
{
    double sums[ROWS_AT_ONCE];

    for (uint32_t first = 0; first < n_rows; first += ROWS_AT_ONCE) {
        const uint32_t n = n_rows - first < ROWS_AT_ONCE ? n_rows - first : ROWS_AT_ONCE;
        const uint8_t *from = (const uint8_t *)acts + first * act_stride_bytes;
        for (uint32_t o = out_first; o < out_last; o++) {
            dot_rows(w, o, from, act_stride_bytes, n, sums);
            for (uint32_t r = 0; r < n; r++) {
                float *to = y + (first + r) * y_stride + o;
                const double sum = sums[r] + (bias ? (double)bias[o] : 0.0);
                *to = (float)(add ? (double)*to + sum : sum);
            }
        }
    }
}

static void decode_row(bt_type type, const void *rows, uint32_t n_in, uint32_t index, float *to)
{
    decode_part(type, row_of(type, rows, n_in, index), 0, n_in, to);
}

/* ---- One row ------------------------------------------------------------------------------- */

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    const double by = 1.0 / sqrt(sum / (double)n + (double)eps);
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (float)((double)x[i] * by * (double)w[i]);
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

static void scale(float *y, const float *x, uint32_t n, float by)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = x[i] * by;
    }
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* x (1 + tanh t) / 2 in the form that does not cancel for negative t. */
static double gelu_tanh(double x)
{
    const double root_2_over_pi = 0.79788456080286535588;

    return x / (1.0 + exp(-2.0 * root_2_over_pi * (x + 0.044715 * x * x * x)));
}

double bt_cpu_activate(double x, bt_activation act)
{
    switch (act) {
    case BT_ACT_SILU:      return silu(x);
    case BT_ACT_GELU_TANH: return gelu_tanh(x);
    case BT_ACT_SIGMOID:   break;
    }
    return 1.0 / (1.0 + exp(-x));
}

static void glu(float *y, const float *gate, const float *up, uint32_t n, bt_activation act)
{
    for (uint32_t i = 0; i < n; i++) {
        const double g = (double)gate[i];
        y[i] = (float)(bt_cpu_activate(g, act) * (double)up[i]);
    }
}

static void softcap(float *x, uint32_t n, float cap)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = (float)((double)cap * tanh((double)x[i] / (double)cap));
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t n_rot, bt_rope_style style)
{
    const uint32_t half = n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        float       *a = style == BT_ROPE_NORM ? x + 2 * i : x + i;
        float       *b = style == BT_ROPE_NORM ? a + 1 : a + half;
        const double from_a = (double)*a, from_b = (double)*b;
        const double c = (double)cos[i], s = (double)sin[i];
        *a = (float)(from_a * c - from_b * s);
        *b = (float)(from_a * s + from_b * c);
    }
}

static void kv_store(bt_type type, const float *x, void *to, uint32_t n)
{
    const bt_status status = bt_quant_type_encode(type, x, to, n);

    BT_ASSERT(status == BT_OK);
}

/* ---- Attention ----------------------------------------------------------------------------- */

static const uint8_t *cached_row(const bt_cpu_attention *a, uint32_t position, size_t offset,
                                 size_t row_bytes)
{
    return a->kv_base + a->page_bytes * a->pages[position / a->page_tokens] + offset
           + row_bytes * (position % a->page_tokens);
}

/* One query head of one row: softmax with a running maximum, key after key. */
static void attend(const bt_cpu_attention *a, uint32_t r, uint32_t head)
{
    const uint32_t last = a->position + r;
    const uint32_t first = a->window && last >= a->window ? last - a->window + 1 : 0;
    const size_t   kv_head = head / (a->n_heads / a->n_kv_heads);
    const float   *q = a->q + r * a->q_stride + (size_t)head * a->head_dim;
    float         *y = a->y + r * a->y_stride + (size_t)head * a->head_dim_v;
    double        *sum = (double *)(void *)a->scratch;
    float         *row = a->scratch + 2 * (size_t)a->head_dim_v;
    double         max = -HUGE_VAL, total = 0.0;

    memset(sum, 0, sizeof(double) * a->head_dim_v);
    for (uint32_t p = first; p <= last; p++) {
        decode_part(a->type_k, cached_row(a, p, a->k_offset, a->k_row_bytes),
                    kv_head * a->head_dim, a->head_dim, row);
        double score = 0.0;
        for (uint32_t i = 0; i < a->head_dim; i++) {
            score += (double)q[i] * (double)row[i];
        }
        score *= (double)a->scale;
        if (a->softcap != 0.0f) {
            score = (double)a->softcap * tanh(score / (double)a->softcap);
        }
        const double new_max = score > max ? score : max;
        const double keep = exp(max - new_max), weight = exp(score - new_max);
        max = new_max;
        total = total * keep + weight;
        decode_part(a->type_v, cached_row(a, p, a->v_offset, a->v_row_bytes),
                    kv_head * a->head_dim_v, a->head_dim_v, row);
        for (uint32_t i = 0; i < a->head_dim_v; i++) {
            sum[i] = sum[i] * keep + weight * (double)row[i];
        }
    }
    for (uint32_t i = 0; i < a->head_dim_v; i++) {
        y[i] = (float)(sum[i] / total);
    }
}

static void attention(const bt_cpu_attention *a)
{
    for (uint32_t r = 0; r < a->n_rows; r++) {
        for (uint32_t head = a->head_first; head < a->head_last; head++) {
            attend(a, r, head);
        }
    }
}

void bt_cpu_kernels_ref(bt_cpu_kernels *k)
{
    *k = (bt_cpu_kernels){
        .isa = BT_ISA_REF,
        .pack_bytes = pack_bytes,
        .pack = pack,
        .layout_of = layout_of,
        .act_row_bytes = act_row_bytes,
        .act_form = act_form,
        .act_convert = act_convert,
        .linear = bt_cpu_linear_ref,
        .decode_row = decode_row,
        .rmsnorm = rmsnorm,
        .add = add,
        .scale = scale,
        .glu = glu,
        .softcap = softcap,
        .rope = rope,
        .kv_store = kv_store,
        .attention = attention,
    };
}
