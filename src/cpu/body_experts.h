/* cpu/body_experts.h - choice of experts, sum of what they say; included several times. */
#ifndef BT_CPU_BODY_EXPERTS_H
#define BT_CPU_BODY_EXPERTS_H

#include "base/limits.h"
#include "cpu/body_math.h"
#include "cpu/tables.h"

/* Exponentials are summed in order, in double. With e^0 = 1 among the chosen and at most
 * BT_EXPERTS_MAX in all, the chosen shares' sum never falls to 2^-14. */
static double sum_of_exp(const float *scores, uint32_t n, float most)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i += LANES) {
        float e[LANES];
        vf_store(e, vf_exp(vf_sub(vf_load_part(scores + i, n - i), vf_set(most))));
        for (uint32_t lane = 0; lane < LANES && i + lane < n; lane++) {
            sum += (double)e[lane];
        }
    }
    return sum;
}

static void route(const float *scores, uint32_t n, uint32_t n_used, bool renormalise, float *to)
{
    uint32_t best[BT_EXPERTS_USED_MAX];
    float    chosen[BT_EXPERTS_USED_MAX];

    bt_cpu_best_scores(scores, n, n_used, best);
    for (uint32_t j = 0; j < n_used; j++) {
        chosen[j] = scores[best[j]];
        to[j] = (float)best[j];
    }
    const float  most = chosen[0];
    const double sum = renormalise ? sum_of_exp(chosen, n_used, most)
                                   : sum_of_exp(scores, n, most);
    for (uint32_t j = 0; j < n_used; j += LANES) {
        const vf e = vf_exp(vf_sub(vf_load_part(chosen + j, n_used - j), vf_set(most)));
        vf_store_part(to + n_used + j, vf_div(e, vf_set((float)sum)), n_used - j);
    }
}

static void combine(float *y, const float *x, size_t x_stride, const float *shares, uint32_t n_used,
                    uint32_t n, bool add)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vf sum = add ? vf_load_part(y + i, n - i) : vf_zero();
        for (uint32_t j = 0; j < n_used; j++) {
            sum = vf_fma(vf_set(shares[j]), vf_load_part(x + j * x_stride + i, n - i), sum);
        }
        vf_store_part(y + i, sum, n - i);
    }
}

#endif
