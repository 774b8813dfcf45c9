/* cpu/ref_recurrent.c - slots of recurrent layers in readable C, and the gates of the delta rule,
 * which every ISA takes from here.
 *
 * Everything is summed in double; the state is rounded to f32 after every token, as it is kept.
 */
#include <math.h>

#include "cpu/tables.h"

/* ---- gates ---- */

/* Functions of the library differ in the last place from machine to machine, and a state that is
 * handed over must not: these are plain sums and products, good to about 2^-50. */

/* e^x; 0 below -745. */
static double exponential(double x)
{
    static const double per_ln2 = 0x1.71547652b82fep+0;
    static const double ln2_upper = 0x1.62e42fee00000p-1, ln2_lower = 0x1.a39ef35793c76p-33;

    if (!(x >= -745.0)) {
        return x < 0.0 ? 0.0 : x;        /* a NaN stays one */
    }
    const double n = floor((x < 709.0 ? x : 709.0) * per_ln2 + 0.5);
    const double r = ((x < 709.0 ? x : 709.0) - n * ln2_upper) - n * ln2_lower;
    double sum = 1.0;
    for (int i = 13; i >= 1; i--) {      /* Taylor; the next term is below 2^-57 */
        sum = 1.0 + sum * r / i;
    }
    return ldexp(sum, (int)n);
}

/* log(1 + y) for y >= 0: 1 + y = m 2^e with m in [1/sqrt 2, sqrt 2], log m = 2 atanh s. */
static double log_of_one_plus(double y)
{
    static const double ln2 = 0x1.62e42fefa39efp-1;
    int    e = 0;
    double m = frexp(1.0 + y, &e);
    double s = 0.0;

    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    /* Near 1 the sum 1 + y has lost digits of y, which this form keeps. */
    s = e == 0 ? y / (2.0 + y) : (m - 1.0) / (m + 1.0);
    const double z = s * s;
    double sum = 0.0;
    for (int i = 21; i >= 1; i -= 2) {   /* z <= 0.0295: the next term is below 2^-54 */
        sum = sum * z + 1.0 / i;
    }
    return e * ln2 + 2.0 * s * sum;
}

static double softplus(double x)
{
    return x > 20.0 ? x : log_of_one_plus(exponential(x));
}

void bt_cpu_delta_gates(float alpha, float dt_bias, float decay, float beta, float *ret_keep,
                        float *ret_beta)
{
    *ret_keep = (float)exponential((double)decay * softplus((double)alpha + (double)dt_bias));
    *ret_beta = (float)(1.0 / (1.0 + exponential(-(double)beta)));
}

/* ---- short_conv ---- */

static void short_conv(float *y, const float *const *x, const float *taps, size_t tap_stride,
                       uint32_t n_taps, uint32_t n, bt_activation act)
{
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (uint32_t m = 0; m < n_taps; m++) {
            sum += (double)taps[m * tap_stride + i] * (double)x[m][i];
        }
        y[i] = (float)bt_cpu_activate(sum, act);
    }
}

/* ---- delta_scan ---- */

static void unit_vector(const float *x, uint32_t n, float eps, float scale, double *to)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    const double length = sqrt(sum) > (double)eps ? sqrt(sum) : (double)eps;
    for (uint32_t i = 0; i < n; i++) {
        to[i] = (double)x[i] * ((double)scale / length);
    }
}

static void one_token(const bt_cpu_delta *d, uint32_t t, double *q, double *k)
{
    float keep, beta;

    unit_vector(d->q + t * d->q_stride, d->dk, d->l2_eps, d->scale, q);
    unit_vector(d->k + t * d->k_stride, d->dk, d->l2_eps, 1.0f, k);
    bt_cpu_delta_gates(d->alpha[t * d->alpha_stride], d->dt_bias, d->decay,
                       d->beta[t * d->beta_stride], &keep, &beta);
    for (uint32_t c = d->row_first; c < d->row_last; c++) {
        float *row = d->state + (size_t)c * d->dk;
        double held = 0.0, answer = 0.0;
        for (uint32_t i = 0; i < d->dk; i++) {
            held += (double)row[i] * k[i];
        }
        const double v = (double)d->v[t * d->v_stride + c];
        const double delta = (double)beta * (v - (double)keep * held);
        for (uint32_t i = 0; i < d->dk; i++) {
            row[i] = (float)((double)keep * (double)row[i] + delta * k[i]);
            answer += (double)row[i] * q[i];
        }
        d->y[t * d->y_stride + c] = (float)answer;
    }
}

static void delta_scan(const bt_cpu_delta *d)
{
    double *q = (double *)(void *)d->scratch, *k = q + d->dk;

    for (uint32_t t = 0; t < d->n_tokens; t++) {
        one_token(d, t, q, k);
    }
}

size_t bt_cpu_delta_scratch(uint32_t dk)
{
    /* Keys and queries of the tokens made ready at a time, whole vectors of up to 16 each, and
     * their gates; at least two vectors of doubles. */
    const size_t dim = ((size_t)dk + 15) / 16 * 16;

    return (2 * dim + 16) * BT_DELTA_TOKENS;
}

void bt_cpu_kernels_ref_recurrent(bt_cpu_kernels *k)
{
    k->short_conv = short_conv;
    k->delta_scan = delta_scan;
}
