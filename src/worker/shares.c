/* worker/shares.c - what the sessions of a worker have to do with each other: load, shares,
 * and what this worker has learned of its own pace. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/snapshots.h"
#include "worker/private.h"

/* ---- load and shares ---- */

void bt_worker_tell_load(bt_worker *w)
{
    bt_engine_stats stats;
    const uint32_t n = atomic_load(&w->n_in_flight);
    bt_engine_stats_get(w->engine, &stats);
    const double rate = stats.prefill_tokens_per_second;
    const bt_link_load load = {
        .running = n < w->n_prefill ? n : w->n_prefill,
        .waiting = n < w->n_prefill ? 0 : n - w->n_prefill,
        .queued_tokens = atomic_load(&w->queued_tokens),
        .token_ns = rate > 0 ? (uint64_t)(1e9 / rate) : 0,
    };
    (void)pthread_mutex_lock(&w->lock);
    for (bt_worker_session *s = w->sessions; s; s = s->next) {
        bt_link_set_load(s->link, &load);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void bt_worker_count_in_flight(bt_worker *w, int by)
{
    if (atomic_fetch_add(&w->n_in_flight, (unsigned)by) + (unsigned)by == 0) {
        (void)pthread_mutex_lock(&w->lock);
        (void)pthread_cond_broadcast(&w->drained);
        (void)pthread_mutex_unlock(&w->lock);
    }
}

/* Lock held. The other sessions look anew: at their deadlines, and at prompts beyond their share.
 */
static void wake_others_locked(bt_worker_session *s)
{
    for (bt_worker_session *o = s->worker->sessions; o; o = o->next) {
        if (o != s && o->n_open > 0) {
            bt_link_wake(o->link);
        }
    }
}

void bt_worker_count_open(bt_worker_session *s, int by)
{
    bt_worker *w = s->worker;
    (void)pthread_mutex_lock(&w->lock);
    s->n_open += (uint32_t)by;
    if (s->n_open == 0) {               /* the shares of the others grow */
        wake_others_locked(s);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void bt_worker_count_unstarted(bt_worker_session *s, int by)
{
    bt_worker *w = s->worker;
    (void)pthread_mutex_lock(&w->lock);
    s->n_unstarted += (uint32_t)by;
    if (by >= 0) {
        wake_others_locked(s);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

bool bt_worker_admit(bt_worker_session *s, uint32_t n_tokens)
{
    bt_worker *w = s->worker;
    uint32_t n_clients = 0;
    (void)pthread_mutex_lock(&w->lock);
    for (const bt_worker_session *o = w->sessions; o; o = o->next) {
        n_clients += o->n_open > 0;
    }
    const uint64_t share = n_clients > 1 ? w->n_ctx / n_clients : UINT64_MAX;
    const bool within = s->n_admitted_tokens == 0 || s->n_admitted_tokens + n_tokens <= share;
    s->n_admitted_tokens += within ? n_tokens : 0;
    (void)pthread_mutex_unlock(&w->lock);
    return within;
}

void bt_worker_give_back(bt_worker_session *s, uint32_t n_tokens)
{
    (void)pthread_mutex_lock(&s->worker->lock);
    s->n_admitted_tokens -= n_tokens;
    (void)pthread_mutex_unlock(&s->worker->lock);
}

bool bt_worker_others_wait(const bt_worker_session *s)
{
    bt_worker *w = s->worker;
    bool wait = false;
    (void)pthread_mutex_lock(&w->lock);
    for (const bt_worker_session *o = w->sessions; o; o = o->next) {
        wait |= o != s && o->n_unstarted > 0;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return wait;
}

void bt_worker_warn(bt_worker_session *s, const char *what, const char *reason)
{
    bt_worker *w = s->worker;
    const double now = bt_clock_ms();
    (void)pthread_mutex_lock(&w->lock);
    const bool say = w->warned_ms <= 0 || now - w->warned_ms >= BT_WORKER_WARN_MS;
    const uint64_t n_suppressed = w->n_suppressed;
    w->n_suppressed = say ? 0 : n_suppressed + 1;
    w->warned_ms = say ? now : w->warned_ms;
    (void)pthread_mutex_unlock(&w->lock);
    if (say && n_suppressed > 0) {
        bt_log(BT_LOG_WARN, "client_refused", "client=%s what=%s reason=%s suppressed=%llu",
               s->name, what, reason, (unsigned long long)n_suppressed);
    } else {
        bt_log(say ? BT_LOG_WARN : BT_LOG_DEBUG, "client_refused", "client=%s what=%s reason=%s",
               s->name, what, reason);
    }
}

/* Tokens that a step of `ms` has, n_max at most. */
static uint32_t tokens_in(double ms, double step_ms, double token_ms, uint32_t n_max)
{
    const double n = token_ms > 0 ? (ms - step_ms) / token_ms : n_max;
    return n < 1 ? 1 : n < n_max ? (uint32_t)n : n_max;
}

static uint32_t row_layers(const bt_worker *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->layout->n_layers; i++) {
        n += w->layout->layers[i].k_dim > 0 || w->layout->layers[i].v_dim > 0;
    }
    return n;
}

uint32_t bt_worker_plan_splits(bt_worker *w, const bt_wire_prefill *asked,
                                       const bt_kv_form *form,
                                       uint32_t ret_splits[BT_ROUTE_SPLITS_MAX])
{
    const bt_engine_options *e = bt_engine_options_of(w->engine);
    const uint32_t chunk = asked->chunk_tokens > 0 ? asked->chunk_tokens : e->n_prefill_chunk;
    const bool by_layers = asked->order == BT_WIRE_ORDER_PUSH;
    if (!by_layers && asked->order != BT_WIRE_ORDER_TAPER) {
        return 0;
    }
    (void)pthread_mutex_lock(&w->pace_lock);
    const double step_ms = bt_cost_fit_at(&w->step_cost, 1, 0, 0);
    const double token_ms = bt_cost_fit_at(&w->step_cost, 0, 1, asked->position_end);
    (void)pthread_mutex_unlock(&w->pace_lock);
    const bt_route_plan t = {
        .first = asked->position_first, .end = asked->position_end,
        .chunk = tokens_in(BT_STEP_MAX_MS, step_ms, token_ms,
                           chunk < e->n_batch ? chunk : e->n_batch),
        .n_layers = by_layers ? w->layout->n_layers : 1,
        .n_row_layers = by_layers ? row_layers(w) : 0,
        .token_bytes = bt_kv_codec_token_bytes(form),
        .state_bytes = bt_engine_state_bytes(w->engine),
        .last_max = tokens_in(BT_STEP_LAST_MAX_MS, step_ms, token_ms, e->n_batch),
        .token_ms = token_ms, .step_ms = step_ms,
        .bytes_per_ms = (double)asked->link_rate / 1000,
    };
    return bt_route_chunk_plan_make(&t, ret_splits);
}
