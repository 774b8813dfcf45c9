/* cli/answering.h - what the verbs that answer prompts (serve, run) share: options of the context,
 * of prefill elsewhere and of sampling; an engine and its workers opened by them.
 *
 * Lifetime: bt_answering_check to bt_answering_close. What fails is said on standard error.
 */
#ifndef BT_CLI_ANSWERING_H
#define BT_CLI_ANSWERING_H

#include "cli/setup.h"
#include "engine/engine.h"
#include "handoff/client.h"

typedef struct {
    bt_setup_options setup;            /* first: bt_setup_option_table */
    uint32_t    n_ctx, n_parallel, n_batch, chunk, snapshot_every;
    uint64_t    snapshot_bytes;
    const char *type_k, *type_v;
    const char *workers, *min_tokens, *policy, *wire_type, *handoff, *trace_file, *key_file;
    uint32_t    n_prefill, n_prefill_chunk;
    uint64_t    link_buffer;
    bt_sampler_options sampling;
    int32_t     seed;
} bt_answering_options;

#define BT_ANSWERING_DEFAULTS                                                                     \
    .n_batch = 2048, .chunk = 512, .snapshot_every = BT_SNAPSHOT_EVERY,                           \
    .snapshot_bytes = BT_SNAPSHOT_BYTES, .type_k = "f16", .type_v = "f16", .min_tokens = "auto",  \
    .policy = "fallback", .wire_type = "stored", .handoff = "push", .seed = -1,                   \
    /* As bt_sample_defaults(), which a constant cannot call. */                                 \
    .sampling = { .seed = BT_SEED_RANDOM, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f,       \
                  .min_p = 0.05f, .penalty_last_n = 64, .penalty_repeat = 1.0f }

/* At offset 0 of a verb's options struct: its first member must be a bt_answering_options. -np and
 * -n are the verb's own, since their defaults and meaning differ. */
extern const bt_option bt_context_option_table[], bt_prefill_option_table[],
        bt_sampling_option_table[];

typedef struct {
    bt_type           type_k, type_v;
    uint32_t          min_tokens;
    bt_kv_codec     codec;
    bt_wire_order     order;
    bt_prefill_policy policy;
    bt_setup          setup;
    bt_engine        *engine;
    bt_prefill       *prefill;         /* NULL: no workers */
    bt_sampler_options sampling;       /* what an option sets, else the model file, else our own */
} bt_answering;

/* Options of prefill elsewhere that do nothing without workers: a usage error and its exit code, or
 * 0. `workers`: there are some; `for_others`: this process prefills for others (--prefill-listen),
 * which also wants a key, buffers and a timeline. */
int  bt_answering_refuse_idle(bool workers, bool for_others);
/* Reads what stands in the options as text, and puts the rest in order; false: said what is wrong,
 * the exit code is 2. */
bool bt_answering_check(bt_answering_options *o, bt_answering *ret_a);
/* Whether the files that are named are there and of the right kind, said before anything is started
 * or loaded; false: said why, the exit code is 1. */
bool bt_answering_look(const bt_answering_options *o);
typedef struct {
    uint32_t    queue_max;
    bool        push;                  /* the engine also prefills for others */
    const char *workers;               /* in place of the option's, and may be set anew; or NULL */
} bt_answering_how;

/* Model, tokenizer, engine and workers. `a` has been checked; close it in any case. */
bool bt_answering_open(const bt_answering_options *o, const bt_answering_how *how, bt_answering *a);
void bt_answering_close(bt_answering *a);

#endif
