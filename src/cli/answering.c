#include "cli/answering.h"

#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "cpu/kernels.h"
#include "link/key.h"
#include "sample/options.h"

#define AT(field) offsetof(bt_answering_options, field)

const bt_option bt_context_option_table[] = {
    { "Context", "-c, --ctx-size", "N", "CTX_SIZE", BT_OPT_U32, AT(n_ctx),
      "KV positions, shared by all requests; 0: what the model was trained for, as far as half "
      "of the free memory goes (default: 0)", false, 0, BT_CONTEXT_MAX },
    { "Context", "-b, --batch-size", "N", "BATCH", BT_OPT_U32, AT(n_batch),
      "tokens of all requests in a step (default: 2048)", false, 1, BT_STEP_ROWS_MAX },
    { "Context", "-ub, --ubatch-size", "N", "UBATCH", BT_OPT_U32, AT(chunk),
      "tokens of one prompt in a step (default: 512)", false, 1, BT_STEP_ROWS_MAX },
    { "Context", "-ctk, --cache-type-k", "TYPE", "CACHE_TYPE_K", BT_OPT_TEXT, AT(type_k),
      "type of cached keys: f32, f16, bf16, q8_0, ... (default: f16)", false },
    { "Context", "-ctv, --cache-type-v", "TYPE", "CACHE_TYPE_V", BT_OPT_TEXT, AT(type_v),
      "type of cached values (default: f16)", false },
    { "Context", "--snapshot-every", "N", "SNAPSHOT_EVERY", BT_OPT_U32, AT(snapshot_every),
      "models with recurrent layers: keep the state each so many tokens (default: 1024)", false, 1,
      BT_CONTEXT_MAX },
    { "Context", "--snapshot-bytes", "BYTES", "SNAPSHOT_BYTES", BT_OPT_SIZE, AT(snapshot_bytes),
      "memory for kept states at most; 0: keep none (default: 2G)", false },
    { 0 }
};

const bt_option bt_prefill_option_table[] = {
    { "Prefill elsewhere", "--prefill-device", "HOST:PORT[;...]", "PREFILL_DEVICE", BT_OPT_TEXT,
      AT(workers), "workers that prefill prompts (default: none)", false },
    { "Prefill elsewhere", "--n-prefill", "N", "N_PREFILL", BT_OPT_U32, AT(n_prefill),
      "prompts in flight per worker (default: what it offers)", false, 0, BT_STREAMS_PER_PEER_MAX },
    { "Prefill elsewhere", "--n-prefill-chunk", "N", "N_PREFILL_CHUNK", BT_OPT_U32,
      AT(n_prefill_chunk), "tokens of a prompt per step there; 0: the worker's (default: 0)", false,
      0, BT_STEP_ROWS_MAX },
    { "Prefill elsewhere", "--prefill-min-tokens", "N|auto", "PREFILL_MIN_TOKENS", BT_OPT_TEXT,
      AT(min_tokens), "shorter prompts stay here; auto: by measured rates (default: auto)", false },
    { "Prefill elsewhere", "--prefill-policy", "NAME", "PREFILL_POLICY", BT_OPT_TEXT, AT(policy),
      "when a worker fails: fallback (prefill here) or fail; hedge: as fallback, and prefill here "
      "as well when it is late (default: fallback)", false },
    { "Prefill elsewhere", "--prefill-wire-type", "TYPE", "PREFILL_WIRE_TYPE", BT_OPT_TEXT,
      AT(wire_type), "rows travel as f16 or q8_0, for a slow link; stored: as they are in memory, "
      "bit for bit (default: stored)", false },
    { "Prefill elsewhere", "--handoff", "NAME", "HANDOFF", BT_OPT_TEXT, AT(handoff),
      "what travels when: push: layers as they are computed; to compare with: layers (the same, "
      "chunks not cut), chunks, taper (chunks that get smaller), bulk (all at the end) "
      "(default: push)", false },
    { "Prefill elsewhere", "--trace-handoff", "FILE", "TRACE_HANDOFF", BT_OPT_TEXT, AT(trace_file),
      "a timeline of every such prompt, for chrome://tracing or ui.perfetto.dev; the file begins "
      "anew", false },
    { "Prefill elsewhere", "--key-file", "FILE", "KEY_FILE", BT_OPT_TEXT, AT(key_file),
      "key shared with the workers; turns on TLS 1.3", false },
    { "Prefill elsewhere", "--link-buffer", "BYTES", "LINK_BUFFER", BT_OPT_SIZE, AT(link_buffer),
      "socket buffers (default: the kernel's tuning)", false, 0,
      BT_LINK_BUFFER_MAX },
    { 0 }
};

const bt_option bt_sampling_option_table[] = {
    { "Sampling", "--temp, --temperature", "X", "TEMP", BT_OPT_F32, AT(sampling.temperature),
      "0: always the most likely token (default: 0.8)", false, 0, 100 },
    { "Sampling", "--top-k", "N", "TOP_K", BT_OPT_I32, AT(sampling.top_k),
      "0: off (default: 40)", false, -1, INT32_MAX },
    { "Sampling", "--top-p", "X", "TOP_P", BT_OPT_F32, AT(sampling.top_p),
      "1: off (default: 0.95)", false, 0, 1 },
    { "Sampling", "--min-p", "X", "MIN_P", BT_OPT_F32, AT(sampling.min_p),
      "0: off (default: 0.05)", false, 0, 1 },
    { "Sampling", "-s, --seed", "N", "SEED", BT_OPT_I32, AT(seed), "-1: random (default: -1)",
      false, -1, INT32_MAX },
    { "Sampling", "--repeat-penalty", "X", "REPEAT_PENALTY", BT_OPT_F32,
      AT(sampling.penalty_repeat), "1: off (default: 1)", false, 0.01, 100 },
    { "Sampling", "--repeat-last-n", "N", "REPEAT_LAST_N", BT_OPT_I32,
      AT(sampling.penalty_last_n), "tokens that penalties look back; -1: all (default: 64)",
      false, -1, INT32_MAX },
    { "Sampling", "--presence-penalty", "X", "PRESENCE_PENALTY", BT_OPT_F32,
      AT(sampling.penalty_presence), "0: off (default: 0)", false, -100, 100 },
    { "Sampling", "--frequency-penalty", "X", "FREQUENCY_PENALTY", BT_OPT_F32,
      AT(sampling.penalty_frequency), "0: off (default: 0)", false, -100, 100 },
    { 0 }
};

static bool choose_policy(const char *name, bt_prefill_policy *ret_policy)
{
    *ret_policy = strcmp(name, "fail") == 0    ? BT_POLICY_FAIL
                  : strcmp(name, "hedge") == 0 ? BT_POLICY_HEDGE : BT_POLICY_FALLBACK;
    if (*ret_policy == BT_POLICY_FALLBACK && strcmp(name, "fallback") != 0) {
        bt_cli_usage_error("%s is '%.60s', but must be fallback, fail or hedge",
                           bt_cli_set_by("--prefill-policy"), name);
        return false;
    }
    return true;
}

static bool choose_rows(const bt_answering_options *o, bt_answering *a)
{
    if (!bt_kv_codec_parse(o->wire_type, &a->codec)) {
        bt_cli_usage_error("%s is '%.60s', but must be stored, f16 or q8_0",
                           bt_cli_set_by("--prefill-wire-type"), o->wire_type);
        return false;
    }
    if (!bt_wire_order_parse(o->handoff, &a->order)) {
        bt_cli_usage_error("%s is '%.60s', but must be push, layers, chunks, taper or bulk",
                           bt_cli_set_by("--handoff"), o->handoff);
        return false;
    }
    return true;
}

static bool check_workers(const char *workers)
{
    bt_error err;
    uint32_t n;
    if (!workers) {
        return true;
    }
    bt_status s = bt_handoff_client_check_workers(workers, &n, &err);
    if (s == BT_OK && n == 0) {
        s = bt_fail(&err, BT_E_BADINPUT, "no worker in '%s'", workers);
    }
    if (s != BT_OK) {
        bt_cli_usage_error("%s: %s", bt_cli_set_by("--prefill-device"), err.text);
    }
    return s == BT_OK;
}

bool bt_answering_check(bt_answering_options *o, bt_answering *ret_a)
{
    bt_answering a = { 0 };
    if (!bt_setup_cache_type(o->type_k, "-ctk", &a.type_k) ||
        !bt_setup_cache_type(o->type_v, "-ctv", &a.type_v) ||
        !bt_setup_min_tokens(o->min_tokens, &a.min_tokens) ||
        !choose_policy(o->policy, &a.policy) || !choose_rows(o, &a) ||
        !check_workers(o->workers)) {
        return false;
    }
    o->chunk = o->chunk < o->n_batch ? o->chunk : o->n_batch;
    o->sampling.seed = (uint32_t)o->seed;       /* -1 is BT_SEED_RANDOM */
    *ret_a = a;
    return true;
}

int bt_answering_refuse_idle(bool workers, bool for_others)
{
    static const char *const ways[] = { "--key-file", "--link-buffer", "--trace-handoff", NULL };
    static const char *const others[] = { "--n-prefill", "--n-prefill-chunk",
                                          "--prefill-min-tokens", "--prefill-policy",
                                          "--prefill-wire-type", "--handoff", NULL };
    static const char *const why = "without --prefill-device HOST:PORT";
    const int code = workers || for_others ? 0 : bt_cli_refuse_idle(ways, why);
    return workers || code != 0 ? code : bt_cli_refuse_idle(others, why);
}

bool bt_answering_look(const bt_answering_options *o)
{
    bt_link_key key;
    bt_error err;
    if (!bt_setup_check(&o->setup)) {
        return false;
    }
    if (o->key_file && bt_link_key_load(o->key_file, &key, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    if (o->key_file) {
        bt_link_key_forget(&key);
    }
    return true;
}

static bt_status open_engine(const bt_answering_options *o, const bt_answering_how *how,
                             bt_answering *a, bt_error *err)
{
    const bt_engine_options engine = {
        .file = a->setup.file, .model = a->setup.model,
        .tokenizer = a->setup.tokenizer, .device = a->setup.device,
        .n_parallel = o->n_parallel,
        .n_ctx = bt_setup_context(&a->setup, o->n_ctx, a->type_k, a->type_v),
        .n_batch = o->n_batch, .n_prefill_chunk = o->chunk, .type_k = a->type_k,
        .type_v = a->type_v, .queue_max = how->queue_max, .push = how->push,
        .snapshot_every = o->snapshot_every, .snapshot_bytes = o->snapshot_bytes,
    };
    return bt_engine_create(&engine, &a->engine, err);
}

static bt_status open_workers(const bt_answering_options *o, const bt_answering_how *how,
                              bt_answering *a, bt_error *err)
{
    const bt_prefill_options prefill = {
        .addresses = how->workers ? how->workers : o->workers,
        .addresses_change = how->workers != NULL,
        .min_tokens = a->min_tokens, .n_prefill = o->n_prefill,
        .n_prefill_chunk = o->n_prefill_chunk, .codec = a->codec, .order = a->order,
        .trace_file = o->trace_file,
        .numerics = o->setup.isa ? o->setup.isa : bt_cpu_isa_name(bt_cpu_isa_detect()),
        .link = { .key_file = o->key_file,
                  .buffer_bytes = (uint32_t)o->link_buffer },
    };
    return prefill.addresses ? bt_handoff_client_open(&prefill, a->engine, &a->prefill, err)
                             : BT_OK;
}

/* The file's maker knows the model, whoever writes an option knows what he wants. */
static void choose_sampling(const bt_answering_options *o, bt_answering *a)
{
    const bt_sampler_options *set = &o->sampling;
    bt_sample_hints hints = { .options = bt_sample_defaults() };
    bt_error err = { 0 };
    if (bt_sample_hints_read(a->setup.file, &hints, &err) != BT_OK) {
        bt_log(BT_LOG_WARN, "sampling_hints_refused", "reason=%s", err.text);
        hints = (bt_sample_hints){ .options = bt_sample_defaults() };
    }
    if (hints.unsupported[0]) {
        bt_log(BT_LOG_WARN, "sampling_hints_ignored", "keys=%s", hints.unsupported);
    }
    bt_sampler_options *s = &a->sampling;
    *s = hints.options;
    s->seed = set->seed;
    s->temperature = bt_cli_is_set("--temp") ? set->temperature : s->temperature;
    s->top_k = bt_cli_is_set("--top-k") ? set->top_k : s->top_k;
    s->top_p = bt_cli_is_set("--top-p") ? set->top_p : s->top_p;
    s->min_p = bt_cli_is_set("--min-p") ? set->min_p : s->min_p;
    s->penalty_repeat = bt_cli_is_set("--repeat-penalty") ? set->penalty_repeat : s->penalty_repeat;
    s->penalty_last_n = bt_cli_is_set("--repeat-last-n") ? set->penalty_last_n : s->penalty_last_n;
    s->penalty_presence =
            bt_cli_is_set("--presence-penalty") ? set->penalty_presence : s->penalty_presence;
    s->penalty_frequency =
            bt_cli_is_set("--frequency-penalty") ? set->penalty_frequency : s->penalty_frequency;
}

bool bt_answering_open(const bt_answering_options *o, const bt_answering_how *how, bt_answering *a)
{
    bt_error err = { 0 };
    if (!bt_setup_open(&o->setup, true, &a->setup)) {
        return false;
    }
    choose_sampling(o, a);
    if (open_engine(o, how, a, &err) != BT_OK || open_workers(o, how, a, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

void bt_answering_close(bt_answering *a)
{
    bt_handoff_client_stop(a->prefill);
    bt_engine_destroy(a->engine);
    bt_handoff_client_close(a->prefill);
    bt_setup_close(&a->setup);
}
