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
#include "handoff/client.h"
#include "serve/connections.h"

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

#define BT_SERVE_COUNTER_LIST(X)                                                                \
    X(uint64_t, n_clients_gone, COUNTER, NONE, "Clients that left before the end of an answer") \
    X(uint64_t, n_answers_truncated, COUNTER, NONE,                                             \
      "Answers that ended because the context was full")                                        \
    X(uint64_t, prefill_received_bytes, COUNTER, BYTES, "Bytes of rows and states received")

typedef struct { BT_METRIC_MEMBERS(BT_SERVE_COUNTER_LIST) } bt_serve_counter;

/* Counts of the engine under the names that dashboards of the llama.cpp world know. */
#define BT_SERVE_KNOWN_LIST(X)                                                                  \
    X(uint64_t, prompt_tokens, COUNTER, TOKENS, "Prompt tokens processed, here and on workers") \
    X(uint64_t, prompt_tokens_cached, COUNTER, TOKENS, "Prompt tokens found in the cache")      \
    X(double, prompt_seconds, COUNTER, SECONDS, "Time spent on prompts")                        \
    X(uint64_t, tokens_predicted, COUNTER, TOKENS, "Tokens generated")                          \
    X(double, tokens_predicted_seconds, COUNTER, SECONDS, "Time spent on generating")           \
    X(uint64_t, n_decode, COUNTER, NONE, "Steps of the model")                                  \
    X(uint64_t, n_tokens_max, GAUGE, TOKENS, "Longest sequence so far")                         \
    X(double, n_busy_slots_per_decode, GAUGE, NONE, "Tokens generated per step, on average")    \
    X(double, prompt_tokens_seconds, GAUGE, TOKENS_PER_SECOND, "Fitted rate of local prefill")  \
    X(double, predicted_tokens_seconds, GAUGE, TOKENS_PER_SECOND, "Fitted rate of decoding")    \
    X(uint64_t, requests_processing, GAUGE, NONE, "Requests running")                           \
    X(uint64_t, requests_deferred, GAUGE, NONE, "Requests queued")

typedef struct { BT_METRIC_MEMBERS(BT_SERVE_KNOWN_LIST) } bt_serve_known;

typedef struct {
    pthread_mutex_t lock;          /* guards everything below */
    bt_serve_histogram h;
    bt_serve_counter   c;
    uint64_t place[4];             /* answers by bt_prefill_place */
    uint64_t tokens_remote, tokens_local, tokens_cached;
    struct { int code; uint64_t count; } codes[BT_HTTP_CODES_MAX];
    uint32_t n_codes;
    double   answer_seconds;       /* sum over answers, for Retry-After */
    uint64_t n_answers;
} bt_serve_metrics;

bt_metric_list bt_serve_metrics_histograms(void);
bt_metric_list bt_serve_metrics_counters(void);
bt_metric_list bt_serve_metrics_known(void);
void bt_serve_metrics_init(bt_serve_metrics *m);
void bt_serve_metrics_done(bt_serve_metrics *m);
/* One engine request has ended. `gaps` holds the times between its tokens. Without a token it is
 * answered only if it finished as it should. */
void bt_serve_metrics_answer(bt_serve_metrics *m, const bt_request_stats *stats,
                             const bt_prefill_report *prefill,
                             const bt_histogram *gaps, bt_finish finish, bool client_gone);
void bt_serve_metrics_http(bt_serve_metrics *m, int code);
/* Seconds that one more request would wait for its turn, by how long answers took so far. */
double bt_serve_metrics_wait(bt_serve_metrics *m, const bt_engine *engine);
/* Seconds after which a client that got 429 may try again: 1 .. 60. */
uint32_t bt_serve_metrics_retry_after(bt_serve_metrics *m, const bt_engine *engine);
/* engine NULL: still loading. prefill NULL: no workers. */
void bt_serve_metrics_write(bt_serve_metrics *m, const bt_connections_count *connections,
                            const bt_engine *engine, const bt_prefill *prefill, bt_buf *to);

#endif
