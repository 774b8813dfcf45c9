#include "serve/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

BT_METRIC_DEFINE(bt_serve_metrics_histograms, bt_serve_histogram, "baton", BT_SERVE_HISTOGRAM_LIST)
BT_METRIC_DEFINE(bt_serve_metrics_known, bt_serve_known, "llamacpp:", BT_SERVE_KNOWN_LIST)
BT_METRIC_DEFINE(bt_serve_metrics_counters, bt_serve_counter, "baton", BT_SERVE_COUNTER_LIST)

void bt_serve_metrics_init(bt_serve_metrics *m)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
}

void bt_serve_metrics_done(bt_serve_metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

/* With the lock held. What a prompt cost counts whatever came of it, its place if it was answered.
 */
static void add_prefill(bt_serve_metrics *m, const bt_prefill_report *p, bool answered)
{
    if (answered && (unsigned)p->place < BT_LEN(m->place)) {
        m->place[p->place]++;
    }
    m->tokens_remote += p->n_remote;
    m->tokens_local += p->n_local;
    m->tokens_cached += p->n_cached;
    m->c.prefill_received_bytes += p->bytes;
    if (p->bytes > 0) {
        bt_histogram_add(&m->h.prefill_queue_seconds, p->queue_ms / 1e3);
        bt_histogram_add(&m->h.prefill_compute_seconds, p->compute_ms / 1e3);
        bt_histogram_add(&m->h.prefill_transfer_seconds, p->transfer_ms / 1e3);
        bt_histogram_add(&m->h.prefill_exposed_seconds, p->exposed_ms / 1e3);
        bt_histogram_add(&m->h.prefill_import_seconds, p->import_ms / 1e3);
    }
}

void bt_serve_metrics_answer(bt_serve_metrics *m, const bt_request_stats *s,
                             const bt_prefill_report *prefill, const bt_histogram *gaps,
                             bt_finish finish, bool client_gone)
{
    const bool answered = s->n_predicted > 0 ||
                          (finish != BT_FINISH_CANCELLED && finish != BT_FINISH_ERROR);
    pthread_mutex_lock(&m->lock);
    bt_histogram_add(&m->h.queue_wait_seconds, s->queue_ms / 1e3);
    if (s->n_predicted > 0) {
        bt_histogram_add(&m->h.time_to_first_token_seconds, s->first_token_ms / 1e3);
    }
    bt_histogram_merge(&m->h.inter_token_seconds, gaps);
    add_prefill(m, prefill, answered);
    m->c.n_clients_gone += client_gone;
    m->c.n_answers_truncated += finish == BT_FINISH_CONTEXT;
    m->answer_seconds += (s->prompt_ms + s->predicted_ms) / 1e3;
    m->n_answers++;
    pthread_mutex_unlock(&m->lock);
}

void bt_serve_metrics_http(bt_serve_metrics *m, int code)
{
    pthread_mutex_lock(&m->lock);
    uint32_t i = 0;
    while (i < m->n_codes && m->codes[i].code != code) {
        i++;
    }
    if (i == m->n_codes && i < BT_HTTP_CODES_MAX) {
        m->codes[m->n_codes++].code = code;
    }
    if (i < BT_HTTP_CODES_MAX) {
        m->codes[i].count++;
    }
    pthread_mutex_unlock(&m->lock);
}

double bt_serve_metrics_wait(bt_serve_metrics *m, const bt_engine *engine)
{
    bt_engine_stats stats;
    bt_engine_stats_get(engine, &stats);
    /* Those that will find a place as soon as the engine looks do not wait. */
    const uint32_t n_free = stats.n_parallel - stats.n_running;
    if (stats.n_waiting == 0 && stats.n_queued < n_free) {
        return 0;
    }
    pthread_mutex_lock(&m->lock);
    const double each = m->n_answers ? m->answer_seconds / (double)m->n_answers : 1;
    pthread_mutex_unlock(&m->lock);
    /* Where pages are short fewer run than there are places. */
    return each * (stats.n_queued + 1) / (stats.n_running ? stats.n_running : 1);
}

uint32_t bt_serve_metrics_retry_after(bt_serve_metrics *m, const bt_engine *engine)
{
    const double wait = bt_serve_metrics_wait(m, engine);
    return wait < 1 ? 1 : wait > 60 ? 60 : (uint32_t)ceil(wait);
}

/* ---- text ---- */

static void one(bt_buf *to, const char *name, bt_metric_kind kind, const char *help, double value)
{
    bt_metric_put_head(to, name, kind, help);
    bt_metric_put_sample(to, name, NULL, NULL, value);
}

static void write_known(const bt_engine_stats *s, bt_buf *to)
{
    const bt_serve_known known = {
        .prompt_tokens = s->n_prompt_tokens + s->n_external_tokens,
        .prompt_tokens_cached = s->n_cached_tokens,
        .prompt_seconds = s->prompt_seconds,
        .tokens_predicted = s->n_predicted_tokens,
        .tokens_predicted_seconds = s->predicted_seconds,
        .n_decode = s->n_steps,
        .n_tokens_max = s->n_tokens_max,
        .n_busy_slots_per_decode =
                s->n_steps ? (double)s->n_predicted_tokens / (double)s->n_steps : 0,
        .prompt_tokens_seconds = s->prefill_tokens_per_second,
        .predicted_tokens_seconds = s->decode_tokens_per_second,
        .requests_processing = s->n_running,
        .requests_deferred = s->n_waiting,
    };
    const bt_metric_list list = bt_serve_metrics_known();
    bt_metric_put_prometheus(to, &list, &known, sizeof known, 1, NULL, NULL);
}

static void write_engine(const bt_engine *engine, bt_buf *to)
{
    bt_engine_stats s;
    bt_engine_stats_get(engine, &s);
    write_known(&s, to);
    const bt_metric_list list = bt_engine_stats_metrics();
    bt_metric_put_prometheus(to, &list, &s, sizeof s, 1, NULL, NULL);
}

/* `prefill` NULL: no workers, and all sums are 0. */
static void write_workers(const bt_prefill *prefill, bt_buf *to)
{
    const bt_metric_list sums = bt_handoff_client_metrics();
    const bt_metric_list list = bt_handoff_client_worker_metrics();
    bt_prefill_worker_status workers[BT_WORKERS_MAX];
    bt_prefill_status s = { 0 };
    uint32_t n = 0;
    if (prefill) {
        bt_handoff_client_status_get(prefill, &s);
    }
    while (prefill && n < BT_WORKERS_MAX &&
           bt_handoff_client_worker_status_get(prefill, n, &workers[n])) {
        n++;
    }
    bt_metric_put_prometheus(to, &sums, &s, sizeof s, 1, NULL, NULL);
    bt_metric_put_prometheus(to, &list, workers, sizeof *workers, n, "worker", "address");
}

static void write_labelled(const bt_serve_metrics *m, bt_buf *to)
{
    static const char prompts[] = "baton_prompts_total", tokens[] = "baton_prompt_tokens_total",
                      codes[] = "baton_http_requests_total";
    bt_metric_put_head(to, prompts, BT_METRIC_COUNTER, "Prompts answered, by place of prefill");
    for (size_t i = 0; i < BT_LEN(m->place); i++) {
        bt_metric_put_sample(to, prompts, "place",
                             bt_handoff_place_name((bt_prefill_place)i),
                             (double)m->place[i]);
    }
    bt_metric_put_head(to, tokens, BT_METRIC_COUNTER, "Prompt tokens, by source of their rows");
    bt_metric_put_sample(to, tokens, "source", "local", (double)m->tokens_local);
    bt_metric_put_sample(to, tokens, "source", "remote", (double)m->tokens_remote);
    bt_metric_put_sample(to, tokens, "source", "cache", (double)m->tokens_cached);
    bt_metric_put_head(to, codes, BT_METRIC_COUNTER, "HTTP requests, by status");
    for (uint32_t i = 0; i < m->n_codes; i++) {
        char code[16];
        snprintf(code, sizeof code, "%d", m->codes[i].code);
        bt_metric_put_sample(to, codes, "code", code, (double)m->codes[i].count);
    }
}

static void write_own(const bt_serve_metrics *m, bt_buf *to)
{
    const bt_metric_list histograms = bt_serve_metrics_histograms();
    const bt_metric_list counters = bt_serve_metrics_counters();
    bt_metric_put_prometheus(to, &counters, &m->c, sizeof m->c, 1, NULL, NULL);
    bt_metric_put_prometheus(to, &histograms, &m->h, sizeof m->h, 1, NULL, NULL);
    write_labelled(m, to);
}

void bt_serve_metrics_write(bt_serve_metrics *m, const bt_connections_count *connections,
                            const bt_engine *engine, const bt_prefill *prefill, bt_buf *to)
{
    const bt_metric_list list = bt_serve_connections_metrics();
    bt_metric_put_head(to, "baton_build_info", BT_METRIC_GAUGE, "Version of this program");
    bt_metric_put_sample(to, "baton_build_info", "version", BATON_VERSION, 1);
    one(to, "baton_ready", BT_METRIC_GAUGE, "1 when the model is loaded", engine != NULL);
    bt_metric_put_prometheus(to, &list, connections, sizeof *connections, 1, NULL, NULL);
    if (engine) {
        write_engine(engine, to);
    }
    write_workers(prefill, to);
    pthread_mutex_lock(&m->lock);
    write_own(m, to);
    pthread_mutex_unlock(&m->lock);
}
