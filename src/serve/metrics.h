/* serve/metrics.h - what happened, counted, and as Prometheus text.
 *
 * Counters that dashboards of the field know are named llamacpp:..., ours baton_....
 * Threads: internally locked. Histograms are filled per request and added once, at its end.
 */
#ifndef BT_SERVE_METRICS_H
#define BT_SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "base/buffer.h"
#include "engine/engine.h"
#include "handoff/prefill.h"

enum { BT_HISTOGRAM_BOUNDS = 16, BT_HTTP_CODES_MAX = 24 };

typedef struct {
    uint64_t counts[BT_HISTOGRAM_BOUNDS + 1];     /* the last one: above every bound */
    double   sum;                                 /* seconds */
} bt_histogram;

void bt_serve_histogram_add(bt_histogram *h, double seconds);

typedef struct {
    pthread_mutex_t lock;          /* guards everything below */
    bt_histogram first_token, gap, queue;
    /* Of prompts that rows came for: waiting and computing there, rows under way, what of it
     * nothing hid, putting rows in place. */
    bt_histogram remote_queue, remote_compute, transfer, exposed, import;
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
