/* baton serve - the HTTP server: decodes here, prefills here or on workers.
 *
 * Prints on standard output "listening on http://HOST:PORT" as soon as clients can connect (they
 * are told that the model is loading), then the values in force, then "ready". SIGTERM or SIGINT:
 * no new requests, those in flight are finished or, after a while, cancelled; exit 0. A second
 * signal cancels them at once. While the model is loaded the first one ends the process, exit 0. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sync.h"
#include "cli/decode.h"
#include "cli/events.h"
#include "cli/notify.h"
#include "cli/verbs.h"
#include "cli/workers_file.h"
#include "worker/worker.h"
#include "link/address.h"
#include "serve/access.h"
#include "serve/server.h"

enum { LOOK_AT_FILE_MS = 1000 };

typedef struct {
    bt_decode_options decode;
    const char *host, *alias;
    uint32_t    port, n_connections, timeout_s, grace_s, queue_max, queue_wait_s;
    const char *api_keys, *api_key_file, *cors_origins, *allowed_hosts;
    int32_t     ping_interval_s;
    bool        no_ui;
    const char *workers_file, *prefill_listen;
} options;

#define AT(field) offsetof(options, field)

static const bt_option serving_table[] = {
    { "--host", "HOST", "HOST", BT_OPT_TEXT, AT(host), "127.0.0.1",
      "address to listen on; 0.0.0.0: all networks" },
    { "--port", "N", "PORT", BT_OPT_U32, AT(port), "8080",
      "port; 0: any free one, which is printed", 0, 65535 },
    { "-a, --alias", "NAME", "ALIAS", BT_OPT_TEXT, AT(alias), NULL,
      "the model's name in answers; without it, its file name" },
    { "-np, --parallel", "N", "N_PARALLEL", BT_OPT_U32, AT(decode.n_parallel), "4",
      "requests answered at once", 1, BT_PARALLEL_MAX },
    { "--queue", "N", "QUEUE", BT_OPT_U32, AT(queue_max), "128",
      "requests that may wait; more are rejected with 429", 1, 65536 },
    { "--queue-wait", "SECONDS", "QUEUE_WAIT", BT_OPT_U32, AT(queue_wait_s), "120",
      "a request is rejected with 429 when its estimated wait is longer; 0: no limit", 0, 86400 },
    { "--threads-http", "N", "THREADS_HTTP", BT_OPT_U32, AT(n_connections), "256",
      "connections at once, a thread each", 1, 65536 },
    { "-to, --timeout", "SECONDS", "TIMEOUT", BT_OPT_U32, AT(timeout_s), "60",
      "for a client to send its request or take its answer", 1, 86400 },
    { "--sse-ping-interval", "SECONDS", "SSE_PING_INTERVAL", BT_OPT_I32, AT(ping_interval_s), "30",
      "comment lines in silent streams; -1: none" },
    { "--grace", "SECONDS", "GRACE", BT_OPT_U32, AT(grace_s), "10",
      "after SIGTERM, for requests in flight to finish", 0, 86400 },
    { "--no-ui", NULL, "NO_UI", BT_OPT_FLAG, AT(no_ui), NULL, "no page at /" },
    { 0 }
};

static const bt_option access_table[] = {
    { "--api-key", "KEY[,KEY...]", "API_KEY", BT_OPT_TEXT, AT(api_keys), NULL,
      "keys, one of which a client must send; without it, anyone may use the server",
      .secret_env = "LLAMA_API_KEY" },
    { "--api-key-file", "FILE", "API_KEY_FILE", BT_OPT_TEXT, AT(api_key_file), NULL,
      "the same from a file, one a line" },
    { "--cors-origins", "ORIGIN[,...]", "CORS_ORIGINS", BT_OPT_TEXT, AT(cors_origins), NULL,
      "web pages that may use the server; *: any; without it, its own and this machine's" },
    { "--allowed-hosts", "NAME[,...]", "ALLOWED_HOSTS", BT_OPT_TEXT, AT(allowed_hosts), NULL,
      "Host names that a server on a loopback address answers to as well, for a proxy; *: any" },
    { 0 }
};

static const bt_option workers_table[] = {
    { "--prefill-device-file", "FILE", "PREFILL_DEVICE_FILE", BT_OPT_TEXT, AT(workers_file), NULL,
      "workers, one a line, in place of --prefill-device; read again when it changes" },
    { "--prefill-listen", "HOST:PORT", "PREFILL_LISTEN", BT_OPT_TEXT, AT(prefill_listen), NULL,
      "prefill for other servers too, with half of --parallel" },
    { 0 }
};

/* ---- what is loaded ---- */

typedef struct {
    const options *o;
    bt_server     *server;
    bt_decode      decode;
    bt_worker     *worker;             /* NULL: does not prefill for others */
    bt_workers_file file;
    bt_chat_format *chat;
    bt_error       chat_error;
    char           alias[256], context_reason[160];
    char           listed[BT_WORKERS_FILE_BYTES_MAX + 1];  /* by the file, at the start */
} state;

static const char *file_type_name(const bt_gguf *file)
{
    static const struct { uint32_t id; const char *name; } names[] = {
        { 0, "F32" },     { 1, "F16" },     { 2, "Q4_0" },    { 3, "Q4_1" },    { 7, "Q8_0" },
        { 8, "Q5_0" },    { 9, "Q5_1" },    { 10, "Q2_K" },   { 11, "Q3_K_S" }, { 12, "Q3_K_M" },
        { 13, "Q3_K_L" }, { 14, "Q4_K_S" }, { 15, "Q4_K_M" }, { 16, "Q5_K_S" }, { 17, "Q5_K_M" },
        { 18, "Q6_K" },   { 25, "IQ4_NL" }, { 30, "IQ4_XS" }, { 32, "BF16" },   { 38, "MXFP4" },
    };
    uint32_t id = UINT32_MAX;
    if (bt_gguf_opt_u32(file, "general.file_type", UINT32_MAX, &id, NULL) != BT_OK) {
        return "";
    }
    for (size_t i = 0; i < BT_LEN(names); i++) {
        if (names[i].id == id) {
            return names[i].name;
        }
    }
    return "";
}

/* What the engine's n_ctx is, in words. */
static void say_context(state *s)
{
    const uint32_t n_ctx = bt_engine_options_of(s->decode.runtime.engine)->n_ctx;
    const uint32_t trained = bt_model_config_of(s->decode.runtime.model)->n_ctx_train;
    if (s->o->decode.context.n_ctx > 0) {
        snprintf(s->context_reason, sizeof s->context_reason, "given");
    } else if (n_ctx >= trained) {
        snprintf(s->context_reason, sizeof s->context_reason, "what the model was trained for");
    } else {
        snprintf(s->context_reason, sizeof s->context_reason, "half of the memory that the weights "
                 "leave; the model was trained for %u", trained);
    }
}

/* The other role: this engine prefills for servers elsewhere as well. */
static bt_status open_worker(state *s, bt_error *err)
{
    const options *o = s->o;
    if (!o->prefill_listen) {
        return BT_OK;
    }
    const bt_runtime_options *r = &o->decode.runtime;
    const bt_worker_options worker = {
        .listen = o->prefill_listen,
        .n_prefill = o->decode.n_parallel > 1 ? o->decode.n_parallel / 2 : 1,
        .numerics = bt_runtime_isa(&r->machine), .link = bt_runtime_link(&r->link),
        .trace_file = s->decode.prefill ? NULL : r->link.trace_file,     /* one writes it */
    };
    return bt_worker_open(&worker, s->decode.runtime.engine, &s->worker, err);
}

/* What can be found to be wrong before this listens. */
static bool preflight(state *s)
{
    const options *o = s->o;
    uint32_t n;
    bt_error err;
    if (!bt_runtime_preflight(&o->decode.runtime)) {
        return false;
    }
    s->file.path = o->workers_file;
    if (o->workers_file && (bt_workers_file_read(&s->file, s->listed, &err) != BT_OK ||
                            bt_handoff_client_check_workers(s->listed, &n, &err) != BT_OK)) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

/* Everything that stands in the options. */
static bool open_all(state *s)
{
    const options *o = s->o;
    bt_error err = { 0 };
    const bt_decode_how how = { .queue_max = o->queue_max, .push = o->prefill_listen != NULL,
                                .workers = o->workers_file ? s->listed : NULL };
    if (!bt_decode_open(&o->decode, &how, &s->decode)) {
        return false;
    }
    if (open_worker(s, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    say_context(s);
    return true;
}

/* The list of workers as the file now says; a file that is wrong changes nothing. */
static void reread_workers(state *s)
{
    char listed[BT_WORKERS_FILE_BYTES_MAX + 1];
    bt_error err = { 0 };
    if (bt_workers_file_read(&s->file, listed, &err) != BT_OK ||
        bt_handoff_client_set_workers(s->decode.prefill, listed, &err) != BT_OK) {
        bt_log(BT_LOG_WARN, "workers_unchanged", "reason=%s", err.text);
    } else {
        bt_log(BT_LOG_INFO, "workers_reloaded", "file=%s", s->file.path);
    }
}

static void look_at_workers(state *s)
{
    bt_error err = { 0 };
    switch (bt_workers_file_look(&s->file, &err)) {
    case BT_WORKERS_FILE_GONE:
        bt_log(BT_LOG_WARN, "workers_unchanged", "reason=%s", err.text);
        break;
    case BT_WORKERS_FILE_CHANGED:
    case BT_WORKERS_FILE_BACK:
        reread_workers(s);
        break;
    case BT_WORKERS_FILE_SAME:
        break;
    }
}

/* The file's name without folder and ending. */
static void choose_alias(state *s)
{
    if (s->o->alias) {
        snprintf(s->alias, sizeof s->alias, "%s", s->o->alias);
        return;
    }
    const char *slash = strrchr(s->decode.runtime.path, '/');
    snprintf(s->alias, sizeof s->alias, "%.255s", slash ? slash + 1 : s->decode.runtime.path);
    char *dot = strrchr(s->alias, '.');
    if (dot && strcmp(dot, ".gguf") == 0) {
        *dot = '\0';
    }
}

static void print_sampling(const state *s)
{
    const bt_sampler_options *sampler = &s->decode.sampling;
    bt_log_print("sampling: predict=%d temperature=%g top_k=%d top_p=%g min_p=%g",
                 s->o->decode.answer.n_predict, (double)sampler->temperature, sampler->top_k,
                 (double)sampler->top_p, (double)sampler->min_p);
}

static void print_values(const state *s)
{
    const options *o = s->o;
    const bt_cache_options *cache = &o->decode.runtime.cache;
    const bt_remote_options *remote = &o->decode.remote;
    const bt_engine_options *e = bt_engine_options_of(s->decode.runtime.engine);
    const bt_model_config *c = bt_model_config_of(s->decode.runtime.model);
    const double kv = (double)bt_model_kv_token_bytes(c, e->type_k, e->type_v) * e->n_ctx;
    bt_log_print("model: %s (%s), served as %s", s->decode.runtime.path, c->architecture, s->alias);
    bt_log_print("context: %u tokens (%s), K as %s and V as %s: up to %.1f MiB", e->n_ctx,
                 s->context_reason, cache->type_k, cache->type_v, kv / 1048576);
    bt_log_print("serving: parallel=%u queue=%u batch=%u chunk=%u api_key=%s chat_format=%s",
                 e->n_parallel, o->queue_max, e->n_batch, e->n_prefill_chunk,
                 o->api_keys || o->api_key_file ? "on" : "off",
                 s->chat ? bt_text_chat_format_name(s->chat) : "none");
    print_sampling(s);
    if (s->worker) {
        bt_log_print("prefill for other servers: listen=%s",
                     bt_worker_address(s->worker));
    }
    if (s->decode.prefill) {
        char least[16] = "auto";
        if (remote->min_tokens != BT_OPTION_AUTO) {
            snprintf(least, sizeof least, "%u", remote->min_tokens);
        }
        bt_log_print("remote prefill: workers=%s min_tokens=%s policy=%s tls=%s kv_wire=%s "
                     "handoff=%s", remote->workers ? remote->workers : o->workers_file, least,
                     remote->policy, o->decode.runtime.link.key_file ? "on" : "off",
                     remote->wire_type, remote->handoff);
    }
    if (!s->chat) {
        bt_log_print("chat: refused, because %s", s->chat_error.text);
    }
}

static bool load(void *context)
{
    state *s = context;
    if (!open_all(s)) {
        return false;
    }
    /* A model that cannot chat can still complete; clients that chat get the sentence. */
    const bt_runtime *r = &s->decode.runtime;
    if (bt_text_chat_format_create(r->file, r->tokenizer, s->o->decode.answer.chat_template,
                                   &s->chat, &s->chat_error) != BT_OK) {
        s->chat = NULL;
    }
    choose_alias(s);
    const bt_serving serving = {
        .engine = r->engine, .prefill = s->decode.prefill, .tokenizer = r->tokenizer,
        .chat = s->chat, .chat_reason = s->chat_error.text,
        .config = bt_model_config_of(r->model), .alias = s->alias,
        .model_path = r->path, .file_type = file_type_name(r->file),
        .sampling = &s->decode.sampling,
    };
    bt_serve_set_ready(s->server, &serving);
    return true;
}

static void unload(state *s)
{
    bt_worker_close(s->worker);
    bt_text_chat_format_destroy(s->chat);
    bt_decode_close(&s->decode);
}

/* ---- serving ---- */

static void *stop_server(void *context)
{
    const state *s = context;
    const uint64_t until = bt_clock_after_ms(s->o->grace_s * 1000);
    bt_serve_stop(s->server, s->o->grace_s * 1000);
    const uint64_t now = bt_clock_ns(), left = until > now ? (until - now) / BT_NS_PER_MS : 0;
    if (s->worker && bt_worker_drain(s->worker, (uint32_t)left) != BT_OK) {
        bt_log_event(BT_LOG_WARN, "remote_prompts_cut_off");
    }
    bt_cli_events_post(BT_CLI_EVENT_DONE);
    return NULL;
}

/* Lets requests finish; a second signal does not wait for them. */
static void stop(state *s)
{
    pthread_t thread;
    bt_error err;
    bt_cli_notify("STOPPING=1\nSTATUS=finishing requests in flight");
    if (s->worker && bt_worker_drain(s->worker, 0) != BT_OK) {
        bt_log_event(BT_LOG_INFO, "remote_prompts_in_flight");
    }
    bt_log_print("stopping: requests in flight have %u s", s->o->grace_s);
    if (bt_thread_start(&thread, stop_server, s, "stop", &err) != BT_OK) {
        bt_serve_stop(s->server, 0);
        return;
    }
    if (bt_cli_events_wait(-1) == BT_CLI_EVENT_STOP) {
        bt_serve_hurry(s->server);
    }
    pthread_join(thread, NULL);
}

/* Until the first signal. */
static void attend(state *s)
{
    bt_cli_event event;
    do {
        event = bt_cli_events_wait(s->file.path ? LOOK_AT_FILE_MS : -1);
        if (event == BT_CLI_EVENT_NONE) {
            look_at_workers(s);
        }
    } while (event == BT_CLI_EVENT_NONE);
}

/* Loading cannot be interrupted; nothing of it outlives the process. */
static void stop_while_loading(state *s)
{
    bt_cli_notify("STOPPING=1\nSTATUS=stopped while loading the model");
    bt_log_print("stopping: the model was still being loaded");
    bt_serve_stop(s->server, 0);
    (void)bt_log_flush(BT_LOG_EXIT_MS);
    _exit(0);
}

/* Here and not by the loader, so that nobody is told READY after STOPPING. */
static void say_ready(const state *s, double begun_ms)
{
    print_values(s);
    bt_cli_notify("READY=1\nSTATUS=ready on http://%s", bt_serve_address(s->server));
    bt_log_print("ready on http://%s after %.1f s", bt_serve_address(s->server),
           (bt_clock_ms() - begun_ms) / 1e3);
}

static int serve(state *s)
{
    const double begun = bt_clock_ms();
    bt_error err = { 0 };
    const options *o = s->o;
    const bt_server_options server = {
        .host = o->host, .port = o->port, .api_keys = o->api_keys,
        .api_key_file = o->api_key_file, .cors_origins = o->cors_origins,
        .allowed_hosts = o->allowed_hosts,
        .n_connections = o->n_connections, .timeout_s = o->timeout_s,
        .ping_interval_s = o->ping_interval_s, .no_ui = o->no_ui,
        .sampling = o->decode.sampling.sampler, .n_predict = o->decode.answer.n_predict,
        .policy = bt_decode_policy(&o->decode), .queue_wait_s = o->queue_wait_s,
    };
    if (!bt_cli_events_open(false) || !preflight(s)) {
        return 1;
    }
    if (bt_serve_start(&server, &s->server, &err) != BT_OK) {
        return bt_cli_say_error("%s", err.text);
    }
    bt_log_print("listening on http://%s", bt_serve_address(s->server));
    if (!o->api_keys && !o->api_key_file &&
        !bt_serve_access_is_local(bt_serve_address(s->server))) {
        bt_log(BT_LOG_WARN, "no_api_key", "address=%s effect=%s fix=%s",
               bt_serve_address(s->server),
               "anyone who reaches this address may use the server",
               "--api-key, --api-key-file or --host 127.0.0.1");
    }
    bt_cli_notify("STATUS=loading the model");
    const bt_cli_event event = bt_cli_events_load(load, s);
    if (event == BT_CLI_EVENT_STOP) {
        stop_while_loading(s);
    }
    if (event == BT_CLI_EVENT_DONE) {
        say_ready(s, begun);
        attend(s);
        stop(s);
    } else {
        bt_serve_stop(s->server, 0);
    }
    unload(s);
    bt_serve_destroy(s->server);
    return event == BT_CLI_EVENT_DONE ? 0 : 1;
}

/* ---- options ---- */

static int run(const void *given, int n_rest, char **rest)
{
    static state s;                    /* with a list in it, too large for a stack to be sure of */
    static options o;
    bt_link_address prefill_listen;
    bt_error err;
    o = *(const options *)given;
    s = (state){ .o = &o };
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s': baton serve takes options only", rest[0]);
    }
    if (o.decode.remote.workers && o.workers_file) {
        return bt_cli_usage_error("%s and %s exclude each other: both name the workers",
                                  bt_cli_set_by("--prefill-device"),
                                  bt_cli_set_by("--prefill-device-file"));
    }
    if (o.prefill_listen &&
        bt_link_address_parse(o.prefill_listen, &prefill_listen, &err) != BT_OK) {
        return bt_cli_usage_error("%s: %s", bt_cli_set_by("--prefill-listen"), err.text);
    }
    const int code = bt_decode_check(&o.decode, o.workers_file != NULL, o.prefill_listen != NULL);
    return code != 0 ? code : serve(&s);
}

static const bt_option_group groups[] = {
    { "Serving", serving_table, 0 },
    { "Access", access_table, 0 },
    { "Context", bt_context_table, AT(decode.context) },
    { "Context", bt_cache_table, AT(decode.runtime.cache) },
    { "Context", bt_snapshot_table, AT(decode.runtime.snapshot) },
    { "Remote prefill", workers_table, 0 },
    { "Remote prefill", bt_remote_table, AT(decode.remote) },
    { "Remote prefill", bt_link_table, AT(decode.runtime.link) },
    { "Answers, unless a request says otherwise", bt_answer_table, AT(decode.answer) },
    { "Answers, unless a request says otherwise", bt_sampling_table, AT(decode.sampling) },
    { "Model", bt_model_table, AT(decode.runtime.machine) },
    { "Machine", bt_machine_table, AT(decode.runtime.machine) },
    { "Diagnosis", bt_diagnosis_table, AT(decode.runtime.machine) },
    { 0 }
};

const bt_verb bt_verb_serve = {
    .name = "serve",
    .summary = "HTTP server with a web page; prefills here or on workers",
    .usage = "baton serve [-m FILE] [--host HOST] [--port N] [--prefill-device HOST:PORT] "
             "[options]",
    .example = "baton serve -m model.gguf --prefill-device spark:7070 --key-file key",
    .options_size = sizeof(options),
    .groups = groups,
    .run = run,
};
