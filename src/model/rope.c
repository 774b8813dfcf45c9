/* Angles per position (docs/models/rope.md): computed in double, kept in f32. */
#include <math.h>

#include "model/family.h"

static const double PI = 3.14159265358979323846;

/* The pair that has turned `turns` times over the original context. */
static double pair_of_turns(const bt_model_config *c, double turns)
{
    return c->n_rot * log(c->rope_ctx_original / (turns * 2.0 * PI)) /
           (2.0 * log((double)c->rope_base));
}

/* 1: the pair turns fast and keeps its angle, 0: slow, and is squeezed by the factor. */
static double yarn_keeps(const bt_model_config *c, uint32_t pair)
{
    const double fast_turns = 32.0, slow_turns = 1.0;
    const double low = fmax(0.0, floor(pair_of_turns(c, fast_turns)));
    const double high = fmin(c->n_rot - 1.0, ceil(pair_of_turns(c, slow_turns)));
    const double along = (pair - low) / fmax(0.001, high - low);
    return 1.0 - fmin(1.0, fmax(0.0, along));
}

void bt_model_rope_frequencies(const bt_model_config *c, bool sliding, const float *factors,
                               float *ret_frequencies)
{
    const double base = (double)(sliding ? c->rope_base_swa : c->rope_base);
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        double f = pow(base, -2.0 * i / c->n_rot);
        if (factors) {
            f /= (double)factors[i];
        }
        if (!sliding) {
            const double squeezed = f / (double)c->rope_factor;
            const double keeps = c->rope_scaling == BT_ROPE_YARN ? yarn_keeps(c, i) : 0.0;
            f = squeezed * (1.0 - keeps) + f * keeps;
        }
        ret_frequencies[i] = (float)f;
    }
}

float bt_model_rope_magnitude(const bt_model_config *c, bool sliding)
{
    double m = (double)c->rope_attn_factor;
    if (!sliding && c->rope_scaling == BT_ROPE_YARN) {
        m *= 1.0 + 0.1 * log((double)c->rope_factor);
    }
    return (float)m;
}
