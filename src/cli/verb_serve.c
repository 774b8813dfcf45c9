/* baton serve - the HTTP server: decodes here, prefills here or on workers.
 *
 * Prints on standard output "listening on http://HOST:PORT" as soon as clients can connect (they
 * are told that the model is loading), then the values in force, then "ready". SIGTERM or SIGINT:
 * no new requests, those in work are finished or, after a while, cancelled; exit 0. A second signal
 * cancels them at once. While the model is loaded the first one is the end, exit 0. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/answering.h"
#include "cli/news.h"
#include "cli/notify.h"
#include "cli/workers_file.h"
#include "cpu/kernels.h"
#include "handoff/worker.h"
#include "link/address.h"
#include "serve/access.h"
#include "serve/server.h"

enum {
    PARALLEL_DEFAULT = 4,
    QUEUE_DEFAULT = 128,
    GRACE_DEFAULT_S = 10,
    LOOK_AT_FILE_MS = 1000
};

typedef struct {
    bt_answering_options common;       /* first: its tables */
    const char *host, *alias, *chat_template;
    uint32_t    port, n_connections, timeout_s, grace_s, queue_max, queue_wait_s;
    const char *api_keys, *api_key_file, *cors_origins, *allowed_hosts;
    int32_t     ping_interval_s;
    bool        no_ui;
    const char *workers_file, *prefill_listen;
    int32_t     n_predict;
} options;

#define AT(field) offsetof(options, field)

static const bt_option serving_table[] = {
    { "Serving", "--host", "HOST", "HOST", BT_OPT_TEXT, AT(host),
      "address to listen on (default: 127.0.0.1; 0.0.0.0 is everybody)", false },
    { "Serving", "--port", "N", "PORT", BT_OPT_U32, AT(port),
      "port; 0: any free one, which is printed (default: 8080)", false, 0, 65535 },
    { "Serving", "-a, --alias", "NAME", "ALIAS", BT_OPT_TEXT, AT(alias),
      "the model's name in answers (default: its file name)", false },
    { "Serving", "-np, --parallel", "N", "N_PARALLEL", BT_OPT_U32, AT(common.n_parallel),
      "requests answered at once (default: 4)", false, 1, BT_PARALLEL_MAX },
    { "Serving", "--queue", "N", "QUEUE", BT_OPT_U32, AT(queue_max),
      "requests that wait for a place; more are told 429 (default: 128)", false, 1, 65536 },
    { "Serving", "--queue-wait", "SECONDS", "QUEUE_WAIT", BT_OPT_U32, AT(queue_wait_s),
      "who would wait longer for a place is told 429; 0: no limit (default: 120)", false, 0,
      86400 },
    { "Serving", "--threads-http", "N", "THREADS_HTTP", BT_OPT_U32, AT(n_connections),
      "connections at once, a thread each (default: 256)", false, 1, 65536 },
    { "Serving", "-to, --timeout", "SECONDS", "TIMEOUT", BT_OPT_U32, AT(timeout_s),
      "for a client to send its request or take its answer (default: 60)", false, 1, 86400 },
    { "Serving", "--sse-ping-interval", "SECONDS", "SSE_PING_INTERVAL", BT_OPT_I32,
      AT(ping_interval_s), "comment lines in silent streams; -1: none (default: 30)", false },
    { "Serving", "--grace", "SECONDS", "GRACE", BT_OPT_U32, AT(grace_s),
      "after SIGTERM, for requests in work to finish (default: 10)", false, 0, 86400 },
    { "Serving", "--chat-template", "NAME", "CHAT_TEMPLATE", BT_OPT_TEXT, AT(chat_template),
      "chat format by name, such as chatml, or template text (default: the model's)", false },
    { "Serving", "-n, --predict, --n-predict", "N", "N_PREDICT", BT_OPT_I32, AT(n_predict),
      "tokens of an answer; this and the sampling below are for requests that do not say; "
      "-1: until the context is full (default: -1)", false, -1, INT32_MAX },
    { "Serving", "--no-ui", NULL, "NO_UI", BT_OPT_FLAG, AT(no_ui), "no page at /", false },
    { "Access", "--api-key", "KEY[,KEY...]", "API_KEY", BT_OPT_TEXT, AT(api_keys),
      "keys that clients must give (default: none is asked for)", false, 0, 0, "LLAMA_API_KEY" },
    { "Access", "--api-key-file", "FILE", "API_KEY_FILE", BT_OPT_TEXT, AT(api_key_file),
      "the same, one a line", false },
    { "Access", "--cors-origins", "ORIGIN[,...]", "CORS_ORIGINS", BT_OPT_TEXT, AT(cors_origins),
      "web pages that may use the server; *: any (default: its own and this machine's)", false },
    { "Access", "--allowed-hosts", "NAME[,...]", "ALLOWED_HOSTS", BT_OPT_TEXT, AT(allowed_hosts),
      "Host names that a server on a loopback address answers to as well, for a proxy; *: any",
      false },
    { 0 }
};

/* Before the table of bt_prefill_option_table, under the same heading. */
static const bt_option own_prefill_table[] = {
    { "Prefill elsewhere", "--prefill-device-file", "FILE", "PREFILL_DEVICE_FILE", BT_OPT_TEXT,
      AT(workers_file), "workers, one a line, in place of --prefill-device; read again when it "
      "changes", false },
    { "Prefill elsewhere", "--prefill-listen", "HOST:PORT", "PREFILL_LISTEN", BT_OPT_TEXT,
      AT(prefill_listen), "prefill for other servers too, with half of --parallel", false },
    { 0 }
};

/* ---- what is loaded ---- */

typedef struct {
    const options *o;
    bt_server     *server;
    bt_answering   with;
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
    const uint32_t n_ctx = bt_engine_options_of(s->with.engine)->n_ctx;
    const uint32_t trained = bt_model_config_of(s->with.setup.model)->n_ctx_train;
    if (s->o->common.n_ctx > 0) {
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
    const bt_worker_options worker = {
            .listen = o->prefill_listen,
            .n_prefill = o->common.n_parallel > 1 ? o->common.n_parallel / 2 : 1,
            .numerics = o->common.setup.isa ? o->common.setup.isa
                                            : bt_cpu_isa_name(bt_cpu_isa_detect()),
            .trace_file = s->with.prefill ? NULL : o->common.trace_file, /* one writes it */
            .link = {.key_file = o->common.key_file,
                     .buffer_bytes = (uint32_t)o->common.link_buffer},
    };
    return bt_handoff_worker_open(&worker, s->with.engine, &s->worker, err);
}

/* What can be known to be wrong before anybody is told that this listens. */
static bool look(state *s)
{
    const options *o = s->o;
    uint32_t n;
    bt_error err;
    if (!bt_answering_look(&o->common)) {
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
    const bt_answering_how how = { .queue_max = o->queue_max, .push = o->prefill_listen != NULL,
                                   .workers = o->workers_file ? s->listed : NULL };
    if (!bt_answering_open(&o->common, &how, &s->with)) {
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
        bt_handoff_client_set_workers(s->with.prefill, listed, &err) != BT_OK) {
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
    const char *slash = strrchr(s->with.setup.path, '/');
    snprintf(s->alias, sizeof s->alias, "%.255s", slash ? slash + 1 : s->with.setup.path);
    char *dot = strrchr(s->alias, '.');
    if (dot && strcmp(dot, ".gguf") == 0) {
        *dot = '\0';
    }
}

static void print_values(const state *s)
{
    const options *o = s->o;
    const bt_engine_options *e = bt_engine_options_of(s->with.engine);
    const double kv = (double)bt_model_kv_token_bytes(bt_model_config_of(s->with.setup.model),
                                                      s->with.type_k, s->with.type_v) * e->n_ctx;
    bt_log_print("model %s (%s), named %s", s->with.setup.path,
           bt_model_config_of(s->with.setup.model)->architecture, s->alias);
    bt_log_print("context %u tokens (%s), KV %s/%s up to %.1f MiB", e->n_ctx, s->context_reason,
           o->common.type_k, o->common.type_v, kv / 1048576);
    bt_log_print("parallel %u, queue %u, batch %u, chunk %u, keys %s, chat format %s",
                 e->n_parallel,
           o->queue_max, e->n_batch, e->n_prefill_chunk,
           o->api_keys || o->api_key_file ? "asked for" : "none",
           s->chat ? bt_text_chat_format_name(s->chat) : "none");
    bt_log_print("sampling by default: predict %d, temperature %g, top-k %d, top-p %g, min-p %g",
           o->n_predict, (double)s->with.sampling.temperature, s->with.sampling.top_k,
           (double)s->with.sampling.top_p, (double)s->with.sampling.min_p);
    if (s->worker) {
        bt_log_print("prefills for other servers on %s", bt_handoff_worker_address(s->worker));
    }
    if (s->with.prefill) {
        bt_log_print("prefill on %s, from %s tokens on, policy %s, key %s, rows %s, handoff %s",
               o->common.workers ? o->common.workers : o->workers_file, o->common.min_tokens,
               o->common.policy,
               o->common.key_file ? "yes" : "none", o->common.wire_type, o->common.handoff);
    }
    if (!s->chat) {
        bt_log_print("chat is refused: %s", s->chat_error.text);
    }
}

/* On its own thread, so that signals are heard meanwhile. */
static void *load(void *context)
{
    state *s = context;
    if (!open_all(s)) {
        bt_news_tell(BT_NEWS_FAILED);
        return NULL;
    }
    /* A model that cannot chat can still complete; the sentence is told to whoever chats. */
    if (bt_text_chat_format_create(s->with.setup.file, s->with.setup.tokenizer, s->o->chat_template,
                                   &s->chat, &s->chat_error) != BT_OK) {
        s->chat = NULL;
    }
    choose_alias(s);
    const bt_serving serving = {
        .engine = s->with.engine, .prefill = s->with.prefill, .tokenizer = s->with.setup.tokenizer,
        .chat = s->chat, .chat_reason = s->chat_error.text,
        .config = bt_model_config_of(s->with.setup.model), .alias = s->alias,
        .model_path = s->with.setup.path, .file_type = file_type_name(s->with.setup.file),
        .sampling = &s->with.sampling,
    };
    bt_serve_set_ready(s->server, &serving);
    bt_news_tell(BT_NEWS_DONE);
    return NULL;
}

static void unload(state *s)
{
    bt_handoff_worker_close(s->worker);
    bt_text_chat_format_destroy(s->chat);
    bt_answering_close(&s->with);
}

/* ---- serving ---- */

static void *stop_server(void *context)
{
    const state *s = context;
    const double until = bt_clock_ms() + s->o->grace_s * 1e3;
    bt_serve_stop(s->server, s->o->grace_s * 1000);
    while (s->worker && bt_handoff_worker_drain(s->worker, 0) != BT_OK && bt_clock_ms() < until) {
        bt_clock_sleep_ms(10);
    }
    bt_news_tell(BT_NEWS_DONE);
    return NULL;
}

/* Lets requests finish; a second signal does not wait for them. */
static void stop(state *s)
{
    pthread_t thread;
    bt_cli_notify("STOPPING=1\nSTATUS=finishing requests in flight");
    if (s->worker && bt_handoff_worker_drain(s->worker, 0) != BT_OK) {
        bt_log_event(BT_LOG_INFO, "remote_prompts_in_flight");
    }
    bt_log_print("stopping: requests in flight have %u s", s->o->grace_s);
    if (pthread_create(&thread, NULL, stop_server, s) != 0) {
        bt_serve_stop(s->server, 0);
        return;
    }
    if (bt_news_next(-1) == BT_NEWS_STOP) {
        bt_serve_hurry(s->server);
    }
    pthread_join(thread, NULL);
}

/* Until the first signal. */
static void attend(state *s)
{
    bt_news news;
    do {
        news = bt_news_next(s->file.path ? LOOK_AT_FILE_MS : -1);
        if (news == BT_NEWS_NONE) {
            look_at_workers(s);
        }
    } while (news == BT_NEWS_NONE);
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
    pthread_t loader;
    const double begun = bt_clock_ms();
    bt_error err = { 0 };
    const options *o = s->o;
    const bt_server_options server = {
        .host = o->host, .port = o->port, .api_keys = o->api_keys,
        .api_key_file = o->api_key_file, .cors_origins = o->cors_origins,
        .allowed_hosts = o->allowed_hosts,
        .n_connections = o->n_connections, .timeout_s = o->timeout_s,
        .ping_interval_s = o->ping_interval_s, .no_ui = o->no_ui, .sampling = o->common.sampling,
        .n_predict = o->n_predict, .policy = s->with.policy, .queue_wait_s = o->queue_wait_s,
    };
    if (!bt_news_open(false) || !look(s)) {
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
    if (pthread_create(&loader, NULL, load, s) != 0) {
        bt_serve_destroy(s->server);
        return bt_cli_say_error("no thread to load the model");
    }
    const bt_news news = bt_news_next(-1);
    if (news == BT_NEWS_STOP) {
        pthread_detach(loader);
        stop_while_loading(s);
    }
    pthread_join(loader, NULL);
    if (news == BT_NEWS_DONE) {
        say_ready(s, begun);
        attend(s);
        stop(s);
    } else {
        bt_serve_stop(s->server, 0);
    }
    unload(s);
    bt_serve_destroy(s->server);
    return news == BT_NEWS_DONE ? 0 : 1;
}

/* ---- options ---- */

static int run(const void *given, int n_rest, char **rest)
{
    static state s;                    /* with a list in it, too large for a stack to be sure of */
    options o = *(const options *)given;
    s = (state){ .o = &o };
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s': baton serve takes options only", rest[0]);
    }
    if (o.common.workers && o.workers_file) {
        return bt_cli_usage_error("%s and %s exclude each other: both name the workers",
                                  bt_cli_set_by("--prefill-device"),
                                  bt_cli_set_by("--prefill-device-file"));
    }
    bt_link_address prefill_listen;
    bt_error err;
    if (o.prefill_listen &&
        bt_link_address_parse(o.prefill_listen, &prefill_listen, &err) != BT_OK) {
        return bt_cli_usage_error("%s: %s", bt_cli_set_by("--prefill-listen"), err.text);
    }
    if (!bt_setup_chat_template(o.chat_template) || !bt_answering_check(&o.common, &s.with)) {
        return 2;
    }
    const int idle = bt_answering_refuse_idle(o.common.workers || o.workers_file,
                                              o.prefill_listen != NULL);
    if (idle != 0) {
        return idle;
    }
    return bt_log_start(&err) == BT_OK ? serve(&s) : bt_cli_say_error("%s", err.text);
}

static const options defaults = {
    .common = { .n_parallel = PARALLEL_DEFAULT, BT_ANSWERING_DEFAULTS }, .host = "127.0.0.1",
    .port = 8080, .n_connections = 256, .timeout_s = 60, .grace_s = GRACE_DEFAULT_S,
    .queue_max = QUEUE_DEFAULT, .queue_wait_s = 120, .ping_interval_s = 30, .n_predict = -1,
};

const bt_verb bt_verb_serve = {
        .name = "serve",
        .summary = "HTTP server with a page; prefills here or on workers",
        .usage = "baton serve [-m FILE] [--host HOST] [--port N] [--prefill-device HOST:PORT] "
                 "[options]",
        .example = "baton serve -m model.gguf --prefill-device spark:7070 --key-file key",
        .options_size = sizeof(options),
        .defaults = &defaults,
        .tables = {serving_table, bt_context_option_table, own_prefill_table,
                   bt_prefill_option_table, bt_sampling_option_table, bt_setup_model_table,
                   bt_setup_option_table},
        .run = run,
};
