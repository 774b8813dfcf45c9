#include "serve/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static BT_METRIC_DEFINE(bt_serve_histograms, bt_serve_histogram, "baton", BT_SERVE_HISTOGRAM_LIST)

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
    m->fallbacks += p->fallback;
    m->bytes_received += p->bytes;
    m->exposed_seconds += p->exposed_ms / 1e3;
    m->transfer_seconds += p->transfer_ms / 1e3;
    if (p->bytes > 0) {
        bt_histogram_add(&m->h.prefill_queue_seconds, p->queue_ms / 1e3);
        bt_histogram_add(&m->h.prefill_compute_seconds, p->compute_ms / 1e3);
        bt_histogram_add(&m->h.prefill_transfer_seconds, p->transfer_ms / 1e3);
        bt_histogram_add(&m->h.prefill_exposed_seconds, p->exposed_ms / 1e3);
        bt_histogram_add(&m->h.prefill_import_seconds, p->import_ms / 1e3);
    }
}

void bt_serve_metrics_answer(bt_serve_metrics *m, const bt_request_stats *s,
                             const bt_histogram *gaps, bt_finish finish, bool client_gone)
{
    const bool answered = s->n_predicted > 0 ||
                          (finish != BT_FINISH_CANCELLED && finish != BT_FINISH_ERROR);
    pthread_mutex_lock(&m->lock);
    bt_histogram_add(&m->h.queue_wait_seconds, s->queue_ms / 1e3);
    if (s->n_predicted > 0) {
        bt_histogram_add(&m->h.time_to_first_token_seconds, s->first_token_ms / 1e3);
    }
    bt_histogram_merge(&m->h.inter_token_seconds, gaps);
    add_prefill(m, &s->prefill, answered);
    m->clients_gone += client_gone;
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

static void head(bt_buf *to, const char *name, const char *kind, const char *help)
{
    bt_buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void whole(bt_buf *to, const char *name, const char *kind, const char *help, uint64_t value)
{
    head(to, name, kind, help);
    bt_buf_printf(to, "%s %" PRIu64 "\n", name, value);
}

static void real(bt_buf *to, const char *name, const char *kind, const char *help, double value)
{
    head(to, name, kind, help);
    bt_buf_printf(to, "%s %.9g\n", name, isfinite(value) ? value : 0.0);
}

static void write_engine(const bt_engine *engine, bt_buf *to)
{
    bt_engine_stats s;
    bt_engine_stats_get(engine, &s);
    whole(to, "llamacpp:prompt_tokens_total", "counter", "Prompt tokens processed, here or there.",
          s.n_prompt_tokens + s.n_remote_tokens);
    whole(to, "llamacpp:prompt_tokens_cached_total", "counter", "Prompt tokens found in the cache.",
          s.n_cached_tokens);
    real(to, "llamacpp:prompt_seconds_total", "counter", "Time spent on prompts.",
         s.prompt_seconds);
    whole(to, "llamacpp:tokens_predicted_total", "counter", "Tokens generated.",
          s.n_predicted_tokens);
    real(to, "llamacpp:tokens_predicted_seconds_total", "counter", "Time spent on generating.",
         s.predicted_seconds);
    whole(to, "llamacpp:n_decode_total", "counter", "Steps of the model.", s.n_steps);
    whole(to, "llamacpp:n_tokens_max", "counter", "Longest sequence seen, in tokens.",
          s.n_tokens_max);
    real(to, "llamacpp:n_busy_slots_per_decode", "gauge", "Tokens generated per step, on average.",
         s.n_steps ? (double)s.n_predicted_tokens / (double)s.n_steps : 0);
    real(to, "llamacpp:prompt_tokens_seconds", "gauge", "Fitted rate of prefill here, tokens/s.",
         s.prefill_tokens_per_second);
    real(to, "llamacpp:predicted_tokens_seconds", "gauge", "Fitted rate of decoding, tokens/s.",
         s.decode_tokens_per_second);
    whole(to, "llamacpp:requests_processing", "gauge", "Requests running.", s.n_running);
    whole(to, "llamacpp:requests_deferred", "gauge", "Requests waiting.", s.n_waiting);
    whole(to, "baton_requests_total", "counter", "Requests begun, or ended in line.",
          s.n_requests);
    whole(to, "baton_requests_cancelled_total", "counter", "Requests cancelled.", s.n_cancelled);
    whole(to, "baton_requests_failed_total", "counter", "Requests ended by an error.", s.n_errors);
    whole(to, "baton_parallel", "gauge", "Requests that run at once at most.", s.n_parallel);
    whole(to, "baton_kv_pages_used", "gauge", "KV pages in use, cached ones too.", s.kv_pages_used);
    whole(to, "baton_kv_pages_cached", "gauge", "KV pages held only by the prefix cache.",
          s.kv_pages_cached);
    whole(to, "baton_kv_pages", "gauge", "KV pages in all.", s.kv_pages_total);
    whole(to, "baton_snapshots", "gauge", "Recurrent states kept for later prompts.",
          s.n_snapshots);
    whole(to, "baton_snapshot_bytes", "gauge", "Memory that these take.", s.snapshot_bytes);
    whole(to, "baton_kv_page_bytes", "gauge", "Bytes of a KV page.",
          s.kv_token_bytes * BT_KV_PAGE_TOKENS);
}

typedef struct {
    const char *name, *kind, *help;
    double (*value)(const bt_prefill_worker_status *);
} worker_series;

static double worker_up(const bt_prefill_worker_status *w) { return w->state == BT_PREFILL_READY; }
static double worker_prompts(const bt_prefill_worker_status *w) { return (double)w->n_prompts; }
static double worker_tokens(const bt_prefill_worker_status *w) { return (double)w->n_tokens; }
static double worker_bytes(const bt_prefill_worker_status *w) { return (double)w->n_bytes; }
static double worker_fallbacks(const bt_prefill_worker_status *w) { return (double)w->n_fallbacks; }
static double worker_lost(const bt_prefill_worker_status *w) { return (double)w->n_lost; }
static double worker_corrupt(const bt_prefill_worker_status *w) { return (double)w->n_corrupt; }
static double worker_busy(const bt_prefill_worker_status *w) { return (double)w->n_in_flight; }
static double worker_goodput(const bt_prefill_worker_status *w)
{
    return w->goodput_bytes_per_second;
}
static double worker_rate(const bt_prefill_worker_status *w) { return w->tokens_per_second; }
static double worker_round_trip(const bt_prefill_worker_status *w)
{
    return w->round_trip_ms / 1e3;
}

static const worker_series series[] = {
        {"baton_worker_up", "gauge", "1 when the worker is ready.", worker_up},
        {"baton_worker_prompts_total", "counter", "Prompts committed.", worker_prompts},
        {"baton_worker_tokens_total", "counter", "Tokens committed.", worker_tokens},
        {"baton_worker_bytes_total", "counter", "Bytes of committed rows.", worker_bytes},
        {"baton_worker_fallbacks_total", "counter", "Prompts that ended elsewhere.",
         worker_fallbacks},
        {"baton_worker_lost_total", "counter", "Connections lost.", worker_lost},
        {"baton_worker_corrupt_total", "counter", "Frames or commits that did not hold.",
         worker_corrupt},
        {"baton_worker_prompts_in_flight", "gauge", "Prompts given to it now.", worker_busy},
        {"baton_worker_goodput_bytes_per_second", "gauge",
         "What the link carries; 0: not known, rows never waited for it.", worker_goodput},
        {"baton_worker_tokens_per_second", "gauge", "Prefill rate there.", worker_rate},
        {"baton_worker_round_trip_seconds", "gauge", "Least round trip seen: the link's own.",
         worker_round_trip},
};

static void write_workers(const bt_prefill *prefill, bt_buf *to)
{
    bt_prefill_status s;
    bt_handoff_client_status_get(prefill, &s);
    for (size_t i = 0; i < BT_LEN(series); i++) {
        head(to, series[i].name, series[i].kind, series[i].help);
        for (uint32_t worker = 0; worker < s.n_workers; worker++) {
            bt_prefill_worker_status w;
            if (!bt_handoff_client_worker_status_get(prefill, worker, &w)) {
                break;                       /* one has just left */
            }
            const double value = series[i].value(&w);
            bt_buf_printf(to, "%s{worker=\"", series[i].name);
            for (const char *c = w.address; *c; c++) {
                bt_buf_printf(to, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c < ' ' ? ' ' : *c);
            }
            bt_buf_printf(to, "\"} %.15g\n", isfinite(value) ? value : 0.0);
        }
    }
    whole(to, "baton_prefill_kept_local_total", "counter", "Prompts kept here by decision.",
          s.n_local);
    whole(to, "baton_prefill_hedges_total", "counter",
          "Prompts prefilled here as well because their worker was late.", s.n_hedged);
    whole(to, "baton_prefill_outrun_total", "counter", "Of these, complete here first.",
          s.n_outrun);
    whole(to, "baton_prefill_retries_total", "counter", "Prompts given to a second worker.",
          s.n_retries);
}

static void write_own(const bt_serve_metrics *m, const bt_prefill *prefill, bt_buf *to)
{
    bt_prefill_status handoff = { 0 };
    if (prefill) {                     /* it also knows of those whose client has left */
        bt_handoff_client_status_get(prefill, &handoff);
    }
    head(to, "baton_prefill_prompts_total", "counter",
         "Answered requests by place of their prefill.");
    for (size_t i = 0; i < BT_LEN(m->place); i++) {
        bt_buf_printf(to, "baton_prefill_prompts_total{place=\"%s\"} %" PRIu64 "\n",
                      bt_engine_prefill_place_name((bt_prefill_place)i), m->place[i]);
    }
    head(to, "baton_prefill_tokens_total", "counter",
         "Prompt tokens by where their rows came from.");
    bt_buf_printf(to, "baton_prefill_tokens_total{place=\"local\"} %" PRIu64 "\n"
                  "baton_prefill_tokens_total{place=\"remote\"} %" PRIu64 "\n"
                  "baton_prefill_tokens_total{place=\"cache\"} %" PRIu64 "\n",
                  m->tokens_local, m->tokens_remote, m->tokens_cached);
    whole(to, "baton_prefill_fallbacks_total", "counter",
          "Prompts meant for a worker that were prefilled here, wholly or in part, because none "
          "could take them or those that had them failed.",
          prefill ? handoff.n_fallbacks : m->fallbacks);
    whole(to, "baton_prefill_received_bytes_total", "counter", "KV bytes received.",
          m->bytes_received);
    real(to, "baton_prefill_transfer_seconds_total", "counter", "Time rows were under way.",
         m->transfer_seconds);
    real(to, "baton_prefill_exposed_seconds_total", "counter",
         "Part of it that computing did not hide.", m->exposed_seconds);
    whole(to, "baton_clients_gone_total", "counter", "Clients that left before their answer's end.",
          m->clients_gone);
    head(to, "baton_http_requests_total", "counter", "HTTP requests by status.");
    for (uint32_t i = 0; i < m->n_codes; i++) {
        bt_buf_printf(to, "baton_http_requests_total{code=\"%d\"} %" PRIu64 "\n", m->codes[i].code,
                      m->codes[i].count);
    }
    const bt_metric_list list = bt_serve_histograms();
    bt_metric_put_prometheus(to, &list, &m->h, sizeof m->h, 1, NULL, NULL);
}

void bt_serve_metrics_write(bt_serve_metrics *m, const bt_engine *engine, const bt_prefill *prefill,
                            bt_buf *to)
{
    head(to, "baton_build_info", "gauge", "Version of this program.");
    bt_buf_puts(to, "baton_build_info{version=\"" BATON_VERSION "\"} 1\n");
    whole(to, "baton_ready", "gauge", "1 when the model is loaded.", engine != NULL);
    if (engine) {
        write_engine(engine, to);
    }
    if (prefill) {
        write_workers(prefill, to);
    }
    pthread_mutex_lock(&m->lock);
    write_own(m, prefill, to);
    pthread_mutex_unlock(&m->lock);
}
