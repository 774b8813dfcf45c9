/* baton worker - prefills for one or many servers and pushes K and V to them.
 *
 * Prints "listening on HOST:PORT" on standard output when it is ready. SIGTERM or SIGINT: no new
 * prompts, those in flight are finished, exit 0; a second signal abandons them. While the model is
 * loaded the first is the end, exit 0. SIGUSR1: one line of JSON with its counters. */
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/events.h"
#include "cli/notify.h"
#include "cli/runtime.h"
#include "cli/verbs.h"
#include "worker/worker.h"

enum {
    CONTEXT_DEFAULT_MAX = 32768,       /* positions; a default must not fill the memory */
    QUEUE_MAX = 64
};

typedef struct {
    bt_runtime_options runtime;
    const char *listen;
    uint32_t    n_prefill, chunk, n_ctx, n_batch, n_peers, stall_ms, drain_ms;
    bool        share_cache, insecure;
} options;

#define AT(field) offsetof(options, field)

static const bt_option serving_table[] = {
    { "--listen", "HOST:PORT", "LISTEN", BT_OPT_TEXT, AT(listen), "127.0.0.1:7070",
      "where servers connect; port 0: any free one" },
    { "--insecure", NULL, NULL, BT_OPT_FLAG, AT(insecure), NULL,
      "listen beyond loopback without --key-file: whoever reaches the port is served" },
    { "--peers", "N", "PEERS", BT_OPT_U32, AT(n_peers), "16", "servers connected at once", 1,
      BT_WORKER_PEERS_MAX },
    { "--share-cache", NULL, "SHARE_CACHE", BT_OPT_FLAG, AT(share_cache), NULL,
      "servers use each other's cached prompts, and so can find out about them" },
    { "--stall-ms", "N", "STALL_MS", BT_OPT_U32, AT(stall_ms), "30000",
      "milliseconds after which a prompt that its server holds up ends, while others wait", 100,
      3600000 },
    { "--drain-ms", "N", "DRAIN_MS", BT_OPT_U32, AT(drain_ms), "30000",
      "after SIGTERM, milliseconds to finish prompts in flight" },
    { 0 }
};

static const bt_option prefill_table[] = {
    { "--n-prefill", "N", "N_PREFILL", BT_OPT_U32, AT(n_prefill), "4",
      "prompts in flight at once, a chunk of each in one step", 1, BT_PARALLEL_MAX },
    { "--n-prefill-chunk", "N", "N_PREFILL_CHUNK", BT_OPT_U32, AT(chunk), "512",
      "tokens of one prompt in a step, unless its server asks for another number", 1,
      BT_STEP_ROWS_MAX },
    { "-c, --ctx-size", "N", "CTX_SIZE", BT_OPT_U32, AT(n_ctx), "0",
      "KV positions in all; 0: 4 trained contexts, at most 32768", 0, BT_CONTEXT_MAX },
    { "-b, --batch-size", "N", "BATCH", BT_OPT_U32, AT(n_batch), "0",
      "tokens of all prompts in a step; 0: a chunk for each of --n-prefill", 0, BT_STEP_ROWS_MAX },
    { "--prefill-rate", "N", "PREFILL_RATE", BT_OPT_F32, AT(runtime.machine.rows_per_second), NULL,
      "compute at most N tokens a second, to try out links; without it, no limit", 0, 1e9 },
    { 0 }
};

/* ---- engine ---- */

static uint32_t context_of(const options *o, const bt_model_config *c)
{
    if (o->n_ctx > 0) {
        return o->n_ctx;
    }
    const uint64_t four = 4 * (uint64_t)c->n_ctx_train;
    return four > 0 && four < CONTEXT_DEFAULT_MAX ? (uint32_t)four : CONTEXT_DEFAULT_MAX;
}

static bt_engine_options engine_options(const options *o, const bt_runtime *r)
{
    const uint64_t all = (uint64_t)o->chunk * o->n_prefill;
    const uint32_t n_batch = o->n_batch > 0          ? o->n_batch
                             : all < BT_STEP_ROWS_MAX ? (uint32_t)all : BT_STEP_ROWS_MAX;
    /* As many places again for prompts much shorter than those in flight (docs/handoff.md). */
    const uint32_t places = 2 * o->n_prefill < BT_PARALLEL_MAX ? 2 * o->n_prefill : BT_PARALLEL_MAX;
    return (bt_engine_options){
        .n_parallel = places < n_batch || n_batch < o->n_prefill ? places : n_batch,
        .n_ctx = context_of(o, bt_model_config_of(r->model)),
        .n_batch = n_batch, .n_prefill_chunk = o->chunk, .queue_max = QUEUE_MAX, .push = true,
    };
}

/* ---- serving ---- */

static void print_status(const bt_worker *w, const bt_engine *e)
{
    bt_worker_status s;
    bt_engine_stats t;
    bt_worker_status_get(w, &s);
    bt_engine_stats_get(e, &t);
    bt_log_print("{\"peers\":%u,\"in_flight\":%u,\"tokens_in_flight\":%llu,\"connects\":%llu,"
           "\"rejects\":%llu,\"prompts\":%llu,\"tokens\":%llu,\"bytes\":%llu,\"cancelled\":%llu,"
           "\"errors\":%llu,\"corrupt\":%llu,\"running\":%u,\"waiting\":%u,\"kv_pages_used\":%u,"
           "\"kv_pages_cached\":%u,\"draining\":%s}",
           s.n_peers, s.n_in_flight, (unsigned long long)s.tokens_in_flight,
           (unsigned long long)s.n_connects, (unsigned long long)s.n_rejects,
           (unsigned long long)s.n_prompts, (unsigned long long)s.n_tokens,
           (unsigned long long)s.n_bytes, (unsigned long long)s.n_cancelled,
           (unsigned long long)s.n_errors, (unsigned long long)s.n_corrupt, t.n_running,
           t.n_waiting, t.kv_pages_used, t.kv_pages_cached, s.draining ? "true" : "false");
}

static void serve(const options *o, bt_worker *w, const bt_engine *e)
{
    bt_cli_event event = BT_CLI_EVENT_NONE;
    while (event != BT_CLI_EVENT_STOP) {
        event = bt_cli_events_wait(-1);
        if (event == BT_CLI_EVENT_COUNTERS) {
            print_status(w, e);
        }
    }
    bt_cli_notify("STOPPING=1\nSTATUS=finishing prompts in flight");
    bt_log(BT_LOG_INFO, "draining", "hint=%s", "a second signal ends prompts in flight");
    const double until = bt_clock_ms() + o->drain_ms;
    bt_status s = BT_E_TIMEOUT;
    do {
        s = bt_worker_drain(w, 0);
        event = s == BT_OK ? BT_CLI_EVENT_NONE : bt_cli_events_wait(20);
        if (event == BT_CLI_EVENT_COUNTERS) {
            print_status(w, e);
        }
    } while (s != BT_OK && event != BT_CLI_EVENT_STOP && bt_clock_ms() < until);
    bt_log(BT_LOG_INFO, "worker_stopped", "prompts=%s", s == BT_OK ? "finished" : "abandoned");
}

/* ---- loading ---- */

typedef struct {
    const options *o;
    bt_runtime     runtime;
    bt_worker     *worker;
} state;

static bool load(void *context)
{
    state *s = context;
    const options *o = s->o;
    bt_worker_options worker = {
        .listen = o->listen, .n_prefill = o->n_prefill, .n_peers = o->n_peers,
        .share_cache = o->share_cache, .stall_ms = o->stall_ms,
        .trace_file = o->runtime.link.trace_file,
        .numerics = bt_runtime_isa(&o->runtime.machine), .link = bt_runtime_link(&o->runtime.link),
    };
    bt_error err;
    worker.link.allow_insecure = o->insecure;
    if (!bt_runtime_open(&o->runtime.machine, false, &s->runtime) ||
        !bt_runtime_start_engine(&s->runtime, &o->runtime, engine_options(o, &s->runtime))) {
        return false;
    }
    if (bt_worker_open(&worker, s->runtime.engine, &s->worker, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

static void say_ready(const state *s)
{
    const bt_model_config *c = bt_model_config_of(s->runtime.model);
    const bt_engine_options *e = bt_engine_options_of(s->runtime.engine);
    bt_log_print("model: %s (%s)", c->name[0] ? c->name : "unnamed", c->architecture);
    bt_log_print("prefill: ctx_size=%u n_prefill=%u chunk=%u isa=%s cache_k=%s cache_v=%s tls=%s",
                 e->n_ctx, s->o->n_prefill, e->n_prefill_chunk,
                 bt_runtime_isa(&s->o->runtime.machine), s->o->runtime.cache.type_k,
                 s->o->runtime.cache.type_v, s->o->runtime.link.key_file ? "on" : "off");
    bt_log_print("listening on %s", bt_worker_address(s->worker));
    bt_cli_notify("READY=1\nSTATUS=listening on %s", bt_worker_address(s->worker));
}

static int work(state *s)
{
    bt_cli_notify("STATUS=loading the model");
    const bt_cli_event event = bt_cli_events_load(load, s);
    if (event == BT_CLI_EVENT_STOP) {
        bt_cli_notify("STOPPING=1\nSTATUS=stopped while loading the model");
        bt_log(BT_LOG_INFO, "worker_stopped", "while=%s", "loading the model");
        (void)bt_log_flush(BT_LOG_EXIT_MS);
        _exit(0);
    }
    if (event == BT_CLI_EVENT_DONE) {
        say_ready(s);
        serve(s->o, s->worker, s->runtime.engine);
    }
    bt_worker_close(s->worker);
    bt_runtime_close(&s->runtime);
    return event == BT_CLI_EVENT_DONE ? 0 : 1;
}

static int run(const void *given, int n_rest, char **rest)
{
    static state s;                    /* a loader may still write to it when main() returns */
    s = (state){ .o = given };
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s': baton worker takes options only", rest[0]);
    }
    return bt_runtime_preflight(&s.o->runtime) && bt_cli_events_open(true) ? work(&s) : 1;
}

static const bt_option_group groups[] = {
    { "Serving", serving_table, 0 },
    { "Prefill", prefill_table, 0 },
    { "Prefill", bt_cache_table, AT(runtime.cache) },
    { "Prefill", bt_snapshot_table, AT(runtime.snapshot) },
    { "Link", bt_link_table, AT(runtime.link) },
    { "Model", bt_model_table, AT(runtime.machine) },
    { "Machine", bt_machine_table, AT(runtime.machine) },
    { "Diagnosis", bt_diagnosis_table, AT(runtime.machine) },
    { 0 }
};

const bt_verb bt_verb_worker = {
    .name = "worker",
    .summary = "prefill for servers, and push K and V to them",
    .usage = "baton worker [-m FILE] [--listen HOST:PORT] [options]",
    .example = "baton worker -m model.gguf --listen 0.0.0.0:7070 --key-file key",
    .options_size = sizeof(options),
    .groups = groups,
    .run = run,
};
