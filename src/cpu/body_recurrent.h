/* cpu/body_recurrent.h - convolutions and the delta rule, any width; included several times.
 *
 * A row of the state is one chain of operations over the tokens, whatever its neighbours: sums run
 * over ascending vectors of keys and end in vf_sum(); the state is rounded to f32 after each token.
 * So neither the number of tokens in a call nor the split of rows changes a bit.
 */
#ifndef BT_CPU_BODY_RECURRENT_H
#define BT_CPU_BODY_RECURRENT_H

#include <math.h>
#include <string.h>

#include "cpu/body_math.h"
#include "cpu/tables.h"

/* After body_rows.h, which has the activations. */
static void short_conv(float *y, const float *const *x, const float *taps, size_t tap_stride,
                       uint32_t n_taps, uint32_t n, bt_activation act)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf sum = vf_zero();
        for (uint32_t m = 0; m < n_taps; m++) {
            sum = vf_fma(vf_load_part(taps + m * tap_stride + i, n - i),
                         vf_load_part(x[m] + i, n - i), sum);
        }
        sum = act == BT_ACT_SILU ? gated(sum, BT_ACT_SILU)
              : act == BT_ACT_GELU_TANH ? gated(sum, BT_ACT_GELU_TANH)
                                        : gated(sum, BT_ACT_SIGMOID);
        vf_store_part(y + i, sum, n - i);
    }
}

/* ---- delta_scan ---- */

/* Rows that wait in the first level of cache while all tokens that are ready pass by. */
enum { DELTA_BLOCK_ROWS = 32 };

/* Tokens made ready: vectors are padded with zeros to whole ones. */
typedef struct {
    uint32_t n, dim;
    float   *q, *k;                      /* [BT_DELTA_TOKENS][dim] */
    float   *keep, *beta;                /* [BT_DELTA_TOKENS] */
} ready_tokens;

static void scaled_unit(const float *x, uint32_t n, float eps, float scale, float *to)
{
    vd low = vd_zero(), high = vd_zero();

    for (uint32_t i = 0; i < n; i += LANES) {
        const vf v = vf_load_part(x + i, n - i);
        low = vd_fma(vd_low(v), vd_low(v), low);
        high = vd_fma(vd_high(v), vd_high(v), high);
    }
    const double length = sqrt(vd_sum(vd_add(low, high)));
    const double least = length > (double)eps ? length : (double)eps;
    const vf     by = vf_set((float)((double)scale / least));
    for (uint32_t i = 0; i < n; i += LANES) {
        vf_store(to + i, vf_mul(vf_load_part(x + i, n - i), by));
    }
}

static void make_ready(const bt_cpu_delta *d, uint32_t first, ready_tokens *r)
{
    r->n = d->n_tokens - first < BT_DELTA_TOKENS ? d->n_tokens - first : BT_DELTA_TOKENS;
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t t = first + i;
        scaled_unit(d->q + t * d->q_stride, d->dk, d->l2_eps, d->scale, r->q + i * r->dim);
        scaled_unit(d->k + t * d->k_stride, d->dk, d->l2_eps, 1.0f, r->k + i * r->dim);
        bt_cpu_delta_gates(d->alpha[t * d->alpha_stride], d->dt_bias, d->decay,
                           d->beta[t * d->beta_stride], &r->keep[i], &r->beta[i]);
    }
}

/* One token and `rows` rows of the state. whole: dk is a multiple of LANES. Both are constants. */
BT_INLINE void delta_rows(const ready_tokens *r, uint32_t i, float *state, uint32_t dk,
                          const float *v, float *y, int rows, bool whole)
{
    const float *k = r->k + i * r->dim, *q = r->q + i * r->dim;
    const float  keep = r->keep[i], beta = r->beta[i];
    vf           held[DELTA_ROWS], answer[DELTA_ROWS], delta[DELTA_ROWS];

    BT_UNROLL
    for (int c = 0; c < rows; c++) {
        held[c] = answer[c] = vf_zero();
    }
    for (uint32_t at = 0; at < dk; at += LANES) {
        const vf keys = vf_load(k + at);
        BT_UNROLL
        for (int c = 0; c < rows; c++) {
            const float *from = state + (size_t)c * dk + at;
            held[c] = vf_fma(whole ? vf_load(from) : vf_load_part(from, dk - at), keys, held[c]);
        }
    }
    BT_UNROLL
    for (int c = 0; c < rows; c++) {
        delta[c] = vf_set(beta * (v[c] - keep * vf_sum(held[c])));
    }
    for (uint32_t at = 0; at < dk; at += LANES) {
        const vf keys = vf_load(k + at), query = vf_load(q + at), kept = vf_set(keep);
        BT_UNROLL
        for (int c = 0; c < rows; c++) {
            float   *to = state + (size_t)c * dk + at;
            const vf old = whole ? vf_load(to) : vf_load_part(to, dk - at);
            const vf now = vf_fma(delta[c], keys, vf_mul(old, kept));
            answer[c] = vf_fma(now, query, answer[c]);
            if (whole) {
                vf_store(to, now);
            } else {
                vf_store_part(to, now, dk - at);
            }
        }
    }
    BT_UNROLL
    for (int c = 0; c < rows; c++) {
        y[c] = vf_sum(answer[c]);
    }
}

BT_INLINE void delta_block(const bt_cpu_delta *d, const ready_tokens *r, uint32_t first,
                           uint32_t row, uint32_t row_last, bool whole)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const float *v = d->v + (first + i) * d->v_stride;
        float       *y = d->y + (first + i) * d->y_stride;
        uint32_t     c = row;
        for (; row_last - c >= DELTA_ROWS; c += DELTA_ROWS) {
            delta_rows(r, i, d->state + (size_t)c * d->dk, d->dk, v + c, y + c, DELTA_ROWS, whole);
        }
        for (; c < row_last; c++) {
            delta_rows(r, i, d->state + (size_t)c * d->dk, d->dk, v + c, y + c, 1, whole);
        }
    }
}

static void delta_scan(const bt_cpu_delta *d)
{
    ready_tokens r = { .dim = (d->dk + LANES - 1) / LANES * LANES };

    r.q = d->scratch;
    r.k = r.q + (size_t)BT_DELTA_TOKENS * r.dim;
    r.keep = r.k + (size_t)BT_DELTA_TOKENS * r.dim;
    r.beta = r.keep + BT_DELTA_TOKENS;
    for (uint32_t first = 0; first < d->n_tokens; first += BT_DELTA_TOKENS) {
        make_ready(d, first, &r);
        for (uint32_t row = d->row_first; row < d->row_last; row += DELTA_BLOCK_ROWS) {
            const uint32_t last = d->row_last - row < DELTA_BLOCK_ROWS ? d->row_last
                                                                       : row + DELTA_BLOCK_ROWS;
            if (d->dk % LANES == 0) {
                delta_block(d, &r, first, row, last, true);
            } else {
                delta_block(d, &r, first, row, last, false);
            }
        }
    }
}

#endif
