/* sample/sampler.h - logits to a token.
 *
 * The chain and its order are docs/sampling.md: logit bias, penalties, top-k, top-p, min-p,
 * temperature, then the draw. Temperature <= 0 is greedy: the first of the largest.
 *
 * Lifetime: create to destroy, one per request. Threads: owned by one.
 * Failure:  create; pick() fails with BT_E_DEVICE when no logit is finite, never with a token.
 *           Nothing allocates after create.
 */
#ifndef BT_SAMPLE_SAMPLER_H
#define BT_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct bt_sampler bt_sampler;

typedef struct { uint32_t id; float bias; } bt_logit_bias;      /* -INFINITY bans */

typedef struct {
    uint32_t seed;               /* BT_SEED_RANDOM: from the system */
    float    temperature;
    int32_t  top_k;              /* <= 0: off */
    float    top_p;              /* >= 1: off */
    float    min_p;              /* <= 0: off */
    uint32_t min_keep;
    int32_t  penalty_last_n;     /* 0: off, -1: whole context */
    float    penalty_repeat, penalty_frequency, penalty_presence;
    const bt_logit_bias *bias;   /* borrowed during create */
    size_t   n_bias;
} bt_sampler_options;

#define BT_SEED_RANDOM 0xFFFFFFFFu

/* The field's defaults: 0.8, 40, 0.95, 0.05, last 64, no penalties, random seed. */
bt_sampler_options bt_sample_defaults(void);

typedef struct { uint32_t id; float logprob; } bt_token_logprob;

BT_MUST_CHECK bt_status bt_sample_create(const bt_sampler_options *o, uint32_t n_vocab,
                                         uint32_t n_context, bt_sampler **ret_sampler,
                                         bt_error *err);
void     bt_sample_destroy(bt_sampler *s);
uint32_t bt_sample_seed(const bt_sampler *s);                  /* the one in use */
/* Feeds history (the prompt) to the penalties without drawing. */
void     bt_sample_accept(bt_sampler *s, uint32_t token);
/* Draws from one row of n_vocab logits (not changed) and accepts the token. */
BT_MUST_CHECK bt_status bt_sample_pick(bt_sampler *s, const float *logits, uint32_t *ret_token,
                                       bt_error *err);
/* Log probabilities of the raw logits: the n most likely, best first, and that of `token`.
 * to has room for n. */
void bt_sample_logprobs(bt_sampler *s, const float *logits, uint32_t token, uint32_t n,
                        bt_token_logprob *to, float *ret_logprob);

#endif
