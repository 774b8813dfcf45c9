/* baton worker - prefills for one or many servers and pushes the K and V rows.
 *
 * Prints "listening on HOST:PORT" on standard output when it is ready. SIGTERM or SIGINT: no new
 * prompts, those in work are finished, exit 0; a second signal gives them up. While the model is
 * loaded the first is the end, exit 0. SIGUSR1: one line of JSON with its counters. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/news.h"
#include "cli/notify.h"
#include "cli/setup.h"
#include "cpu/kernels.h"
#include "handoff/worker.h"

enum {
    N_PREFILL_DEFAULT = 4,
    CHUNK_DEFAULT = 512,
    CONTEXT_DEFAULT_MAX = 32768,       /* positions; a default must not fill the memory */
    DRAIN_DEFAULT_MS = 30000,
    STALL_DEFAULT_MS = 30000,
    QUEUE_MAX = 64
};

typedef struct {
    bt_setup_options setup;            /* first: bt_setup_option_table */
    const char *listen, *key_file;
    uint32_t    n_prefill, chunk, n_ctx, n_batch, n_peers, stall_ms, drain_ms;
    uint32_t    snapshot_every;
    uint64_t    link_buffer, snapshot_bytes;
    const char *type_k, *type_v, *trace_file;
    bool        share_cache, insecure;
} options;

static const options defaults = {
    .listen = "127.0.0.1:7070", .n_prefill = N_PREFILL_DEFAULT, .chunk = CHUNK_DEFAULT,
    .snapshot_every = BT_SNAPSHOT_EVERY, .snapshot_bytes = BT_SNAPSHOT_BYTES,
    .n_peers = 16, .stall_ms = STALL_DEFAULT_MS, .drain_ms = DRAIN_DEFAULT_MS,
    .type_k = "f16", .type_v = "f16",
};

#define AT(field) offsetof(options, field)

static const bt_option table[] = {
    { "Serving", "--listen", "HOST:PORT", "LISTEN", BT_OPT_TEXT, AT(listen),
      "where servers connect; port 0: any free one (default: 127.0.0.1:7070)", false },
    { "Serving", "--key-file", "FILE", "KEY_FILE", BT_OPT_TEXT, AT(key_file),
      "shared key; needed for any address but loopback, turns on TLS 1.3", false },
    { "Serving", "--insecure", NULL, NULL, BT_OPT_FLAG, AT(insecure),
      "listen beyond loopback without a key: whoever reaches the port is served", false },
    { "Serving", "--peers", "N", "PEERS", BT_OPT_U32, AT(n_peers),
      "servers connected at once (default: 16)", false, 1, BT_WORKER_PEERS_MAX },
    { "Serving", "--share-cache", NULL, "SHARE_CACHE", BT_OPT_FLAG, AT(share_cache),
      "servers find each other's prompts in the cache, and so can learn of them (default: each has "
      "its own)", false },
    { "Serving", "--stall-ms", "N", "STALL_MS", BT_OPT_U32, AT(stall_ms),
      "a prompt that its server holds up ends after so many milliseconds while others wait "
      "(default: 30000)", false, 100, 3600000 },
    { "Serving", "--drain-ms", "N", "DRAIN_MS", BT_OPT_U32, AT(drain_ms),
      "after SIGTERM, milliseconds to finish prompts in work (default: 30000)", false },
    { "Prefill", "--n-prefill", "N", "N_PREFILL", BT_OPT_U32, AT(n_prefill),
      "prompts in work at once, a chunk of each in one step (default: 4)", false, 1,
      BT_PARALLEL_MAX },
    { "Prefill", "--n-prefill-chunk", "N", "N_PREFILL_CHUNK", BT_OPT_U32, AT(chunk),
      "tokens of one prompt in a step, when its server does not say (default: 512)", false, 1,
      BT_STEP_ROWS_MAX },
    { "Prefill", "-c, --ctx-size", "N", "CTX_SIZE", BT_OPT_U32, AT(n_ctx),
      "KV positions in all; 0: 4 trained contexts, at most 32768 (default: 0)", false, 0,
      BT_CONTEXT_MAX },
    { "Prefill", "-b, --batch-size", "N", "BATCH", BT_OPT_U32, AT(n_batch),
      "tokens of all prompts in a step; 0: a chunk for each of --n-prefill (default: 0)", false, 0,
      BT_STEP_ROWS_MAX },
    { "Prefill", "-ctk, --cache-type-k", "TYPE", "CACHE_TYPE_K", BT_OPT_TEXT, AT(type_k),
      "type of keys; must be the server's (default: f16)", false },
    { "Prefill", "-ctv, --cache-type-v", "TYPE", "CACHE_TYPE_V", BT_OPT_TEXT, AT(type_v),
      "type of values; must be the server's (default: f16)", false },
    { "Prefill", "--snapshot-every", "N", "SNAPSHOT_EVERY", BT_OPT_U32, AT(snapshot_every),
      "models with recurrent layers: keep the state each so many tokens (default: 1024)", false, 1,
      BT_CONTEXT_MAX },
    { "Prefill", "--snapshot-bytes", "BYTES", "SNAPSHOT_BYTES", BT_OPT_SIZE, AT(snapshot_bytes),
      "memory for kept states at most; 0: keep none (default: 2G)", false },
    { "Prefill", "--trace-handoff", "FILE", "TRACE_HANDOFF", BT_OPT_TEXT, AT(trace_file),
      "a timeline of every prompt, for chrome://tracing or ui.perfetto.dev; the file begins anew",
      false },
    { "Prefill", "--prefill-rate", "N", "PREFILL_RATE", BT_OPT_F32, AT(setup.rows_per_second),
      "compute at most N tokens a second: to try out links (default: no limit)", false, 0, 1e9 },
    { "Prefill", "--link-buffer", "BYTES", "LINK_BUFFER", BT_OPT_SIZE, AT(link_buffer),
      "socket buffers (default: the kernel's tuning)", false, 0,
      BT_LINK_BUFFER_MAX },
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

static bt_engine_options engine_options(const options *o, const bt_setup *s, bt_type type_k,
                                        bt_type type_v)
{
    const uint64_t all = (uint64_t)o->chunk * o->n_prefill;
    const uint32_t n_batch = o->n_batch > 0          ? o->n_batch
                             : all < BT_STEP_ROWS_MAX ? (uint32_t)all : BT_STEP_ROWS_MAX;
    /* As many places again for prompts much shorter than those in work (docs/handoff.md). */
    const uint32_t places = 2 * o->n_prefill < BT_PARALLEL_MAX ? 2 * o->n_prefill : BT_PARALLEL_MAX;
    return (bt_engine_options){
        .file = s->file, .model = s->model, .device = s->device,
        .n_parallel = places < n_batch || n_batch < o->n_prefill ? places : n_batch,
        .snapshot_every = o->snapshot_every, .snapshot_bytes = o->snapshot_bytes,
        .n_ctx = context_of(o, bt_model_config_of(s->model)),
        .n_batch = n_batch,
        .n_prefill_chunk = o->chunk,
        .type_k = type_k, .type_v = type_v, .queue_max = QUEUE_MAX, .push = true,
    };
}

/* ---- serving ---- */

static void print_status(const bt_worker *w, const bt_engine *e)
{
    bt_worker_status s;
    bt_engine_stats t;
    bt_handoff_worker_status_get(w, &s);
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
    bt_news news = BT_NEWS_NONE;
    while (news != BT_NEWS_STOP) {
        news = bt_news_next(-1);
        if (news == BT_NEWS_COUNTERS) {
            print_status(w, e);
        }
    }
    bt_cli_notify("STOPPING=1\nSTATUS=finishing prompts in work");
    bt_log(BT_LOG_INFO, "draining", "hint=%s", "a second signal ends prompts in flight");
    const double until = bt_clock_ms() + o->drain_ms;
    bt_status s = BT_E_TIMEOUT;
    do {
        s = bt_handoff_worker_drain(w, 0);
        news = s == BT_OK ? BT_NEWS_NONE : bt_news_next(20);
        if (news == BT_NEWS_COUNTERS) {
            print_status(w, e);
        }
    } while (s != BT_OK && news != BT_NEWS_STOP && bt_clock_ms() < until);
    bt_log(BT_LOG_INFO, "worker_stopped", "prompts=%s", s == BT_OK ? "finished" : "abandoned");
}

/* ---- loading ---- */

typedef struct {
    const options    *o;
    bt_type           type_k, type_v;
    bt_setup          setup;
    bt_engine_options eo;
    bt_engine        *engine;
    bt_worker        *worker;
} state;

static bool open_all(state *s)
{
    const options *o = s->o;
    const bt_worker_options wo = {
        .listen = o->listen, .n_prefill = o->n_prefill, .n_peers = o->n_peers,
        .share_cache = o->share_cache, .stall_ms = o->stall_ms,
        .trace_file = o->trace_file,
        .numerics = o->setup.isa ? o->setup.isa : bt_cpu_isa_name(bt_cpu_isa_detect()),
        .link = { .key_file = o->key_file, .allow_insecure = o->insecure,
                  .buffer_bytes = (uint32_t)o->link_buffer },
    };
    bt_error err = { 0 };
    if (!bt_setup_open(&o->setup, false, &s->setup)) {
        return false;
    }
    s->eo = engine_options(o, &s->setup, s->type_k, s->type_v);
    if (bt_engine_create(&s->eo, &s->engine, &err) != BT_OK ||
        bt_handoff_worker_open(&wo, s->engine, &s->worker, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

/* On its own thread, so that signals are heard meanwhile. */
static void *load(void *context)
{
    bt_news_tell(open_all(context) ? BT_NEWS_DONE : BT_NEWS_FAILED);
    return NULL;
}

static void say_ready(const state *s)
{
    const bt_model_config *c = bt_model_config_of(s->setup.model);
    bt_log_print("baton worker: %s (%s), %u positions, %u prompts at once, chunk %u, K %s, V %s",
           c->name[0] ? c->name : "unnamed model", c->architecture, s->eo.n_ctx, s->o->n_prefill,
           s->eo.n_prefill_chunk, s->o->type_k, s->o->type_v);
    bt_log_print("listening on %s", bt_handoff_worker_address(s->worker));
    bt_cli_notify("READY=1\nSTATUS=listening on %s", bt_handoff_worker_address(s->worker));
}

static int work(state *s)
{
    pthread_t loader;
    bt_news news;
    bt_cli_notify("STATUS=loading the model");
    if (pthread_create(&loader, NULL, load, s) != 0) {
        return bt_cli_say_error("no thread to load the model");
    }
    do {
        news = bt_news_next(-1);
    } while (news == BT_NEWS_COUNTERS);         /* all of them are 0 */
    if (news == BT_NEWS_STOP) {
        /* Loading cannot be interrupted; nothing of it outlives the process. */
        pthread_detach(loader);
        bt_cli_notify("STOPPING=1\nSTATUS=stopped while loading the model");
        bt_log(BT_LOG_INFO, "worker_stopped", "while=%s", "loading the model");
        (void)bt_log_flush(BT_LOG_EXIT_MS);
        _exit(0);
    }
    pthread_join(loader, NULL);
    if (news == BT_NEWS_DONE) {
        say_ready(s);
        serve(s->o, s->worker, s->engine);
    }
    bt_handoff_worker_close(s->worker);
    bt_engine_destroy(s->engine);
    bt_setup_close(&s->setup);
    return news == BT_NEWS_DONE ? 0 : 1;
}

static int run(const void *given, int n_rest, char **rest)
{
    const options *o = given;
    state s = { .o = o };
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s': baton worker takes options only", rest[0]);
    }
    if (!bt_setup_cache_type(o->type_k, "-ctk", &s.type_k) ||
        !bt_setup_cache_type(o->type_v, "-ctv", &s.type_v)) {
        return 2;
    }
    bt_error err;
    if (bt_log_start(&err) != BT_OK) {
        return bt_cli_say_error("%s", err.text);
    }
    return bt_news_open(true) ? work(&s) : 1;
}

const bt_verb bt_verb_worker = {
    .name = "worker",
    .summary = "prefill for servers and push the K and V rows",
    .usage = "baton worker [-m FILE] [--listen HOST:PORT] [options]",
    .example = "baton worker -m model.gguf --listen 0.0.0.0:7070 --key-file key",
    .options_size = sizeof(options),
    .defaults = &defaults,
    .tables = { table, bt_setup_model_table, bt_setup_option_table },
    .run = run,
};
