/* cli/decode.c - see decode.h. */
#include "cli/decode.h"

#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "sample/options.h"

static int check_workers(const char *workers)
{
    bt_error err;
    uint32_t n;
    if (!workers) {
        return 0;
    }
    bt_status s = bt_handoff_client_check_workers(workers, &n, &err);
    if (s == BT_OK && n == 0) {
        s = bt_fail(&err, BT_E_BADINPUT, "no worker in '%s'", workers);
    }
    return s == BT_OK ? 0 : bt_cli_usage_error("%s: %s", bt_cli_set_by("--prefill-device"),
                                               err.text);
}

static int refuse_idle(bool workers, bool for_others)
{
    static const char *const of_links[] = { "--key-file", "--link-buffer", "--trace-handoff",
                                            NULL };
    static const char *const others[] = { "--n-prefill", "--n-prefill-chunk",
                                          "--prefill-min-tokens", "--prefill-policy",
                                          "--prefill-wire-type", "--handoff", NULL };
    static const char *const why = "without --prefill-device HOST:PORT";
    const int code = workers || for_others ? 0 : bt_cli_refuse_idle(of_links, why);
    return workers || code != 0 ? code : bt_cli_refuse_idle(others, why);
}

int bt_decode_check(bt_decode_options *o, bool workers, bool for_others)
{
    int code = bt_runtime_check_template(o->answer.chat_template) ? 0 : 2;
    if (code == 0) {
        code = check_workers(o->remote.workers);
    }
    if (code == 0) {
        code = refuse_idle(workers || o->remote.workers, for_others);
    }
    if (o->context.chunk > o->context.n_batch) {
        o->context.chunk = o->context.n_batch;
    }
    o->sampling.sampler.seed = (uint32_t)o->sampling.seed;      /* -1 is BT_SEED_RANDOM */
    return code;
}

bt_prefill_policy bt_decode_policy(const bt_decode_options *o)
{
    return strcmp(o->remote.policy, "fail") == 0    ? BT_POLICY_FAIL
           : strcmp(o->remote.policy, "hedge") == 0 ? BT_POLICY_HEDGE : BT_POLICY_FALLBACK;
}

static bool open_workers(const bt_decode_options *o, const bt_decode_how *how, bt_decode *d)
{
    bt_error err;
    bt_prefill_options prefill = {
        .addresses = how->workers ? how->workers : o->remote.workers,
        .addresses_change = how->workers != NULL,
        .min_tokens = o->remote.min_tokens, .n_prefill = o->remote.n_prefill,
        .n_prefill_chunk = o->remote.n_prefill_chunk, .trace_file = o->runtime.link.trace_file,
        .numerics = bt_runtime_isa(&o->runtime.machine), .link = bt_runtime_link(&o->runtime.link),
    };
    if (!prefill.addresses) {
        return true;
    }
    /* The tables of options have the same names. */
    const bool known = bt_kv_codec_parse(o->remote.wire_type, &prefill.codec) &&
                       bt_wire_order_parse(o->remote.handoff, &prefill.order);
    BT_ASSERT(known);
    if (bt_handoff_client_open(&prefill, d->runtime.engine, &d->prefill, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

/* The maker of the file knows the model; whoever sets an option knows what they want. */
static void choose_sampling(const bt_sampler_options *set, bt_decode *d)
{
    bt_sample_hints hints = { .options = bt_sample_defaults() };
    bt_error err = { 0 };
    if (bt_sample_hints_read(d->runtime.file, &hints, &err) != BT_OK) {
        bt_log(BT_LOG_WARN, "sampling_hints_refused", "reason=%s", err.text);
        hints = (bt_sample_hints){ .options = bt_sample_defaults() };
    }
    if (hints.unsupported[0]) {
        bt_log(BT_LOG_WARN, "sampling_hints_ignored", "keys=%s", hints.unsupported);
    }
    bt_sampler_options *s = &d->sampling;
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

bool bt_decode_open(const bt_decode_options *o, const bt_decode_how *how, bt_decode *ret_decode)
{
    bt_decode *d = ret_decode;
    if (!bt_runtime_open(&o->runtime.machine, true, &d->runtime)) {
        return false;
    }
    choose_sampling(&o->sampling.sampler, d);
    const bt_engine_options engine = {
        .n_parallel = o->n_parallel, .n_batch = o->context.n_batch,
        .n_ctx = bt_runtime_context(&d->runtime, o->context.n_ctx, &o->runtime.cache),
        .n_prefill_chunk = o->context.chunk, .queue_max = how->queue_max, .push = how->push,
    };
    return bt_runtime_start_engine(&d->runtime, &o->runtime, engine) && open_workers(o, how, d);
}

void bt_decode_close(bt_decode *d)
{
    bt_handoff_client_stop(d->prefill);
    bt_engine_destroy(d->runtime.engine);
    d->runtime.engine = NULL;
    bt_handoff_client_close(d->prefill);
    bt_runtime_close(&d->runtime);
}
