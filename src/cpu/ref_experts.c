/* cpu/ref_experts.c - slots of experts in readable C. */
#include <math.h>

#include "base/limits.h"
#include "cpu/tables.h"

/* The smallest normal f16: what a sum of shares counts as at least. */
static const double LEAST_SUM = 0x1p-14;

/* Insertion into a short list: nearly every score ends at its first comparison. */
void bt_cpu_best_scores(const float *scores, uint32_t n, uint32_t n_used, uint32_t *ret_best)
{
    uint32_t n_found = 0;

    for (uint32_t i = 0; i < n; i++) {
        const bool number = scores[i] == scores[i];
        uint32_t   at = n_found;
        /* Past those that are worse: equals stay in front, and NaNs come last. */
        while (at > 0 && number && !(scores[ret_best[at - 1]] >= scores[i])) {
            at--;
        }
        if (at == n_used) {
            continue;
        }
        n_found += n_found < n_used;
        for (uint32_t j = n_found - 1; j > at; j--) {
            ret_best[j] = ret_best[j - 1];
        }
        ret_best[at] = i;
    }
}

static void route(const float *scores, uint32_t n, uint32_t n_used, bool renormalise, float *to)
{
    uint32_t best[BT_EXPERTS_USED_MAX];
    double   sum = 0.0;

    bt_cpu_best_scores(scores, n, n_used, best);
    const double most = (double)scores[best[0]];
    double all = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        all += exp((double)scores[i] - most);
    }
    for (uint32_t j = 0; j < n_used; j++) {
        sum += exp((double)scores[best[j]] - most) / all;
    }
    for (uint32_t j = 0; j < n_used; j++) {
        const double share = exp((double)scores[best[j]] - most) / all;
        to[j] = (float)best[j];
        to[n_used + j] = (float)(renormalise ? share / fmax(sum, LEAST_SUM) : share);
    }
}

static void combine(float *y, const float *x, size_t x_stride, const float *shares, uint32_t n_used,
                    uint32_t n, bool add)
{
    for (uint32_t i = 0; i < n; i++) {
        double sum = add ? (double)y[i] : 0.0;
        for (uint32_t j = 0; j < n_used; j++) {
            sum += (double)shares[j] * (double)x[j * x_stride + i];
        }
        y[i] = (float)sum;
    }
}

void bt_cpu_kernels_ref_experts(bt_cpu_kernels *k)
{
    k->route = route;
    k->combine = combine;
}
