/* cpu/body_rows.h - norms, pointwise functions, rotations; any width; included several times. */
#ifndef BT_CPU_BODY_ROWS_H
#define BT_CPU_BODY_ROWS_H

#include <math.h>

#include "base/check.h"
#include "cpu/body_math.h"
#include "cpu/tables.h"

/* The squares are exact in f64, and so few roundings follow that the sum is good to 2^-48. */
static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    vd low = vd_zero(), high = vd_zero();

    for (uint32_t i = 0; i < n; i += LANES) {
        const vf v = vf_load_part(x + i, n - i);
        low = vd_fma(vd_low(v), vd_low(v), low);
        high = vd_fma(vd_high(v), vd_high(v), high);
    }
    const double mean = vd_sum(vd_add(low, high)) / (double)n;
    const vf     by = vf_set((float)(1.0 / sqrt(mean + (double)eps)));
    for (uint32_t i = 0; i < n; i += LANES) {
        const vf v = vf_mul(vf_load_part(x + i, n - i), by);
        vf_store_part(y + i, vf_mul(v, vf_load_part(w + i, n - i)), n - i);
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf_store_part(y + i, vf_add(vf_load_part(y + i, n - i), vf_load_part(x + i, n - i)), n - i);
    }
}

static void scale(float *y, const float *x, uint32_t n, float by)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf_store_part(y + i, vf_mul(vf_load_part(x + i, n - i), vf_set(by)), n - i);
    }
}

/* x / (1 + e^-t): silu for t = x; the tanh form of gelu for t = 2 sqrt(2 / pi) (x + 0.044715 x^3),
 * since (1 + tanh u) / 2 = 1 / (1 + e^-2u). Sigmoid is 1 / (1 + e^-x). */
BT_INLINE vf gated(vf x, bt_activation act)
{
    vf t = x;

    if (act == BT_ACT_GELU_TANH) {
        const vf cubic = vf_fma(vf_mul(x, x), vf_set(0.044715f), vf_set(1.0f));
        t = vf_mul(vf_mul(x, cubic), vf_set(1.59576912f));
    }
    return vf_div(act == BT_ACT_SIGMOID ? vf_set(1.0f) : x,
                  vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_zero(), t))));
}

static void glu(float *y, const float *gate, const float *up, uint32_t n, bt_activation act)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const vf g = vf_load_part(gate + i, n - i), u = vf_load_part(up + i, n - i);
        const vf done = act == BT_ACT_SILU ? gated(g, BT_ACT_SILU)
                        : act == BT_ACT_GELU_TANH ? gated(g, BT_ACT_GELU_TANH)
                                                  : gated(g, BT_ACT_SIGMOID);
        vf_store_part(y + i, vf_mul(done, u), n - i);
    }
}

static void softcap(float *x, uint32_t n, float cap)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const vf v = vf_tanh(vf_div(vf_load_part(x + i, n - i), vf_set(cap)));
        vf_store_part(x + i, vf_mul(v, vf_set(cap)), n - i);
    }
}

static void rope_halves(float *x, const float *cos, const float *sin, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += LANES) {
        const uint32_t n = half - i;
        const vf a = vf_load_part(x + i, n), b = vf_load_part(x + half + i, n);
        const vf c = vf_load_part(cos + i, n), s = vf_load_part(sin + i, n);
        vf_store_part(x + i, vf_fnma(b, s, vf_mul(a, c)), n);
        vf_store_part(x + half + i, vf_fma(a, s, vf_mul(b, c)), n);
    }
}

static void rope_pairs(float *x, const float *cos, const float *sin, uint32_t half)
{
    uint32_t i = 0;

    for (; half - i >= LANES / 2; i += LANES / 2) {
        const vf v = vf_load(x + 2 * i);
        const vf c = vf_load_doubled(cos + i);
        const vf s = vf_negate_even(vf_load_doubled(sin + i));
        vf_store(x + 2 * i, vf_fma(vf_swap_pairs(v), s, vf_mul(v, c)));
    }
    for (; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t n_rot, bt_rope_style style)
{
    if (style == BT_ROPE_NORM) {
        rope_pairs(x, cos, sin, n_rot / 2);
    } else {
        rope_halves(x, cos, sin, n_rot / 2);
    }
}

static void kv_store(bt_type type, const float *x, void *to, uint32_t n)
{
    uint16_t *halves = to;
    uint32_t  i = 0;

    if (type == BT_TYPE_F16) {
        for (; n - i >= LANES; i += LANES) {
            vf_to_f16(halves + i, vf_load(x + i));
        }
    } else if (type == BT_TYPE_BF16) {
        for (; n - i >= LANES; i += LANES) {
            vf_to_bf16(halves + i, vf_load(x + i));
        }
    }
    /* The rest of those two, and all of the other types. `to` moves by whole blocks only. */
    const bt_status status = bt_quant_type_encode(type, x + i, halves + i, n - i);
    BT_ASSERT(status == BT_OK);
}

#endif
