/* serve/metrics.h - what happened, counted, and as Prometheus text.
 *
 * Counters that dashboards of the field know are named llamacpp:..., ours baton_....
 * Threads: internally locked. Histograms are filled per request and added once, at its end.
 */
#ifndef BT_SERVE_METRICS_H
#define BT_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "base/metric.h"
#include "engine/engine.h"
#include "handoff/prefill.h"

enum { BT_HTTP_CODES_MAX = 24 };

/* Per answer; the last five per prompt that rows came for. */
#define BT_SERVE_HISTOGRAM_LIST(X)                                                             \
    X(bt_histogram, time_to_first_token_seconds, HISTOGRAM, SECONDS, "Request to first token") \
    X(bt_histogram, inter_token_seconds, HISTOGRAM, SECONDS, "Between two tokens of an answer") \
    X(bt_histogram, queue_wait_seconds, HISTOGRAM, SECONDS, "Waiting in the queue")            \
    X(bt_histogram, prefill_queue_seconds, HISTOGRAM, SECONDS,                                 \
      "Waiting for a worker, on both machines")                                                \
    X(bt_histogram, prefill_compute_seconds, HISTOGRAM, SECONDS,                               \
      "Computing on the worker, by its clock")                                                 \
    X(bt_histogram, prefill_transfer_seconds, HISTOGRAM, SECONDS, "First rows to commit")      \
    X(bt_histogram, prefill_exposed_seconds, HISTOGRAM, SECONDS,                               \
      "Part of the transfer that computing did not hide")                                      \
    X(bt_histogram, prefill_import_seconds, HISTOGRAM, SECONDS, "Putting rows into KV pages")

typedef struct { BT_METRIC_MEMBERS(BT_SERVE_HISTOGRAM_LIST) } bt_serve_histogram;

typedef struct {
    pthread_mutex_t lock;          /* guards everything below */
    bt_serve_histogram h;
    uint64_t place[4];             /* answers by bt_prefill_place */
    uint64_t tokens_remote, tokens_local, tokens_cached;
    uint64_t fallbacks, bytes_received, clients_gone;
    double   exposed_seconds, transfer_seconds;
    struct { int code; uint64_t count; } codes[BT_HTTP_CODES_MAX];
    uint32_t n_codes;
    double   answer_seconds;       /* sum over answers, for Retry-After */
    uint64_t n_answers;
} bt_serve_metrics;

void bt_serve_metrics_init(bt_serve_metrics *m);
void bt_serve_metrics_done(bt_serve_metrics *m);
/* One engine request has ended. `gaps` holds the times between its tokens. Without a token it is
 * answered only if it finished as it should. */
void bt_serve_metrics_answer(bt_serve_metrics *m, const bt_request_stats *stats,
                             const bt_histogram *gaps, bt_finish finish, bool client_gone);
void bt_serve_metrics_http(bt_serve_metrics *m, int code);
/* Seconds that one more request would wait for its turn, by how long answers took so far. */
double bt_serve_metrics_wait(bt_serve_metrics *m, const bt_engine *engine);
/* Seconds after which a client that was told "full" may try again: 1 .. 60. */
uint32_t bt_serve_metrics_retry_after(bt_serve_metrics *m, const bt_engine *engine);
/* engine NULL: still loading. prefill NULL: no workers. */
void bt_serve_metrics_write(bt_serve_metrics *m, const bt_engine *engine, const bt_prefill *prefill,
                            bt_buf *to);

#endif
