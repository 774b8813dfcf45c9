/* handoff/worker.c - see worker.h; listener, drain, life cycle and status of the worker's side. */
#include "handoff/worker.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/snapshots.h"
#include "handoff/identity.h"
#include "base/say.h"
#include "handoff/worker_private.h"

/* ---- connections ---- */

static void session_destroy(bt_worker_session *s)
{
    bt_link_destroy(s->link);
    (void)pthread_cond_destroy(&s->event);
    (void)pthread_mutex_destroy(&s->lock);
    bt_free(s);
}

static void host_of(const char *peer, char to[128])
{
    const char *colon = strrchr(peer, ':');
    bt_say(to, 128, "%.*s", colon ? (int)(colon - peer) : 127, peer);
}

/* Takes the link. */
static void start_session(bt_worker *w, bt_link *link)
{
    bt_worker_session *s = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *s);
    bt_error err;
    if (!s) {
        bt_link_destroy(link);
        return;
    }
    bt_link_stats stats;
    bt_link_stats_get(link, &stats);
    s->worker = w;
    s->link = link;
    s->begun_ms = bt_clock_ms();
    bt_say(s->name, sizeof s->name, "%s", stats.peer);
    host_of(stats.peer, s->host);
    (void)pthread_mutex_init(&s->lock, NULL);
    bt_cond_init(&s->event);
    (void)pthread_mutex_lock(&w->lock);
    s->next = w->sessions;
    w->sessions = s;
    (void)pthread_mutex_unlock(&w->lock);
    if (bt_thread_start(&s->reader, bt_handoff_session_main, s, "client reader", &err) != BT_OK) {
        bt_log(BT_LOG_WARN, "client_refused", "client=%s reason=%s", s->name, err.text);
        (void)pthread_mutex_lock(&w->lock);
        w->sessions = s->next;          /* only this thread puts new ones in front */
        (void)pthread_mutex_unlock(&w->lock);
        session_destroy(s);
    }
}

static bool is_pending(const bt_worker_session *s)
{
    return !atomic_load(&s->greeted) && !atomic_load(&s->probing) && !atomic_load(&s->finished);
}

/* Lock held. Pending connections from `host`, and the oldest of them. */
static uint32_t count_pending(const bt_worker *w, const char *host, bt_worker_session **ret_oldest)
{
    uint32_t n = 0;
    for (bt_worker_session *s = w->sessions; s; s = s->next) {
        if (is_pending(s) && !s->evicted && strcmp(s->host, host) == 0) {
            n++;
            *ret_oldest = s;           /* new ones are put in front */
        }
    }
    return n;
}

/* All places for pending connections are taken: the machine with the most of them gives up its
 * oldest, so that no machine keeps others out, nor silent connections those that speak. False: the
 * newcomer is of that machine, and the oldest may still be about to speak. */
static bool make_room(bt_worker *w, const char *newcomer)
{
    bt_worker_session *victim = NULL, *oldest = NULL;
    uint32_t most = 0, n_sessions = 0;
    char host[128];
    host_of(newcomer, host);
    (void)pthread_mutex_lock(&w->lock);
    for (bt_worker_session *s = w->sessions; s; s = s->next) {
        const uint32_t n = is_pending(s) && !s->evicted ? count_pending(w, s->host, &oldest) : 0;
        if (n > most) {
            most = n;
            victim = oldest;
        }
        n_sessions += !atomic_load(&s->greeted);
    }
    const bool same = victim && strcmp(victim->host, host) == 0;
    const bool young = victim && bt_clock_ms() - victim->begun_ms < BT_HANDOFF_PENDING_MS;
    const bool room = victim && !(same && young) && n_sessions < 2 * BT_HANDOFF_PENDING_MAX;
    if (room) {
        victim->evicted = true;
        bt_link_close(victim->link, "others wait to be heard");
    }
    (void)pthread_mutex_unlock(&w->lock);
    return room;
}

/* Frees connections that have ended; with `all` waits for every one of them. Returns the number of
 * pending connections left. */
static uint32_t clear_away(bt_worker *w, bool all)
{
    uint32_t n_pending = 0;
    bt_worker_session *gone = NULL;
    (void)pthread_mutex_lock(&w->lock);
    for (bt_worker_session **at = &w->sessions; *at;) {
        bt_worker_session *s = *at;
        if (all || atomic_load(&s->finished)) {
            *at = s->next;
            s->next = gone;
            gone = s;
        } else {
            n_pending += is_pending(s) && !s->evicted;
            at = &s->next;
        }
    }
    (void)pthread_mutex_unlock(&w->lock);
    while (gone) {
        bt_worker_session *s = gone;
        gone = s->next;
        (void)pthread_join(s->reader, NULL);
        session_destroy(s);
    }
    return n_pending;
}

static void *listen_main(void *context)
{
    bt_worker *w = context;
    while (!atomic_load(&w->stopping)) {
        bt_link *link = NULL;
        bt_error err;
        const bt_status status = bt_link_listener_accept(w->listener, UINT64_MAX, &link, &err);
        const uint32_t n_pending = clear_away(w, false);
        bt_link_stats stats;
        if (status == BT_OK) {
            bt_link_stats_get(link, &stats);
        }
        if (status == BT_OK && n_pending >= BT_HANDOFF_PENDING_MAX && !make_room(w, stats.peer)) {
            bt_link_destroy(link);      /* silence is cheap: no thread, no memory, no log line */
        } else if (status == BT_OK) {
            start_session(w, link);
        } else if (status != BT_E_AGAIN && status != BT_E_CLOSED) {
            bt_log(BT_LOG_WARN, "accept_failed", "reason=%s", err.text);
        }
    }
    return NULL;
}

/* ---- load and shares ---- */

void bt_handoff_worker_tell_load(bt_worker *w)
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

void bt_handoff_worker_count_in_flight(bt_worker *w, int by)
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

void bt_handoff_worker_count_open(bt_worker_session *s, int by)
{
    bt_worker *w = s->worker;
    (void)pthread_mutex_lock(&w->lock);
    s->n_open += (uint32_t)by;
    if (s->n_open == 0) {               /* the shares of the others grow */
        wake_others_locked(s);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void bt_handoff_worker_count_unstarted(bt_worker_session *s, int by)
{
    bt_worker *w = s->worker;
    (void)pthread_mutex_lock(&w->lock);
    s->n_unstarted += (uint32_t)by;
    if (by >= 0) {
        wake_others_locked(s);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

bool bt_handoff_worker_admit(bt_worker_session *s, uint32_t n_tokens)
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

void bt_handoff_worker_give_back(bt_worker_session *s, uint32_t n_tokens)
{
    (void)pthread_mutex_lock(&s->worker->lock);
    s->n_admitted_tokens -= n_tokens;
    (void)pthread_mutex_unlock(&s->worker->lock);
}

bool bt_handoff_worker_others_wait(const bt_worker_session *s)
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

void bt_handoff_worker_warn(bt_worker_session *s, const char *what, const char *reason)
{
    bt_worker *w = s->worker;
    const double now = bt_clock_ms();
    (void)pthread_mutex_lock(&w->lock);
    const bool say = w->warned_ms <= 0 || now - w->warned_ms >= BT_HANDOFF_WARN_MS;
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

uint32_t bt_handoff_worker_plan_splits(bt_worker *w, const bt_wire_prefill *asked,
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

/* ---- life ---- */

static bt_status open_engine_side(bt_worker *w, const bt_worker_options *o, bt_error *err)
{
    const bt_engine_options *e = bt_engine_options_of(w->engine);
    BT_ASSERT(e->push);
    w->layout = bt_engine_kv_layout(w->engine);
    BT_TRY(bt_handoff_states_layer_bytes(w->engine, &w->state_bytes, err));
    const bt_kv_form stored = bt_kv_codec_stored(w->layout);
    const size_t row = bt_kv_codec_layer_bytes_max(&stored);
    if (row == 0 || bt_wire_rows_fit(row) == 0) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "a K and V row of this model takes %zu bytes: no frame can carry it", row);
    }
    w->n_prefill = o->n_prefill > 0 && o->n_prefill < e->n_parallel ? o->n_prefill : e->n_parallel;
    w->n_clients_max = o->n_peers > 0 ? o->n_peers : BT_HANDOFF_CLIENTS_DEFAULT;
    w->n_clients_max = w->n_clients_max < BT_WORKER_PEERS_MAX ? w->n_clients_max
                                                              : BT_WORKER_PEERS_MAX;
    w->stall_ms = o->stall_ms > 0 ? o->stall_ms : BT_HANDOFF_STALL_MS;
    const uint64_t streams = (uint64_t)w->n_prefill + e->queue_max;
    w->n_streams = streams < BT_STREAMS_PER_PEER_MAX ? (uint32_t)streams : BT_STREAMS_PER_PEER_MAX;
    w->n_ctx = e->n_ctx;
    w->share_cache = o->share_cache;
    w->n_vocab = bt_model_config_of(e->model)->n_vocab;
    while (w->epoch == 0) {
        if (bt_random_u64(&w->epoch) != BT_OK) {
            return bt_fail(err, BT_E_IO, "the system provides no random numbers");
        }
    }
    w->isa = bt_strdup(BT_MEM_handoff, o->numerics ? o->numerics : "");
    if (!w->isa) {
        return bt_fail_nomem(err, 1, "the worker");
    }
    w->own = bt_handoff_hello(w->engine, 0, w->isa);
    return BT_OK;
}

bt_status bt_handoff_worker_open(const bt_worker_options *o, bt_engine *engine,
                                 bt_worker **ret_worker, bt_error *err)
{
    bt_worker *w = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *w);
    if (!w) {
        return bt_fail_nomem(err, sizeof *w, "the worker");
    }
    w->engine = engine;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_mutex_init(&w->pace_lock, NULL);
    bt_cond_init(&w->drained);
    bt_status s = open_engine_side(w, o, err);
    if (s == BT_OK) {
        s = bt_link_listener_open(o->listen, &o->link, &w->listener, err);
    }
    if (s == BT_OK && o->trace_file) {
        char name[160];
        bt_say(name, sizeof name, "worker %s", bt_link_listener_address(w->listener));
        s = bt_timeline_open(o->trace_file, name, &w->timeline, err);
    }
    if (s == BT_OK) {
        s = bt_thread_start(&w->thread, listen_main, w, "worker listener", err);
        w->thread_runs = s == BT_OK;
    }
    if (s != BT_OK) {
        bt_handoff_worker_close(w);
        return s;
    }
    *ret_worker = w;
    return BT_OK;
}

const char *bt_handoff_worker_address(const bt_worker *w)
{
    return bt_link_listener_address(w->listener);
}

bt_status bt_handoff_worker_drain(bt_worker *w, uint32_t timeout_ms)
{
    const uint64_t until = bt_clock_after_ms(timeout_ms);
    if (!atomic_exchange(&w->draining, true)) {
        (void)pthread_mutex_lock(&w->lock);
        for (bt_worker_session *s = w->sessions; s; s = s->next) {
            if (atomic_load(&s->greeted)) {
                bt_handoff_session_drain(s);
            }
        }
        (void)pthread_mutex_unlock(&w->lock);
    }
    (void)pthread_mutex_lock(&w->lock);
    while (atomic_load(&w->n_in_flight) > 0 && bt_cond_wait_until(&w->drained, &w->lock, until)) {
    }
    const bool drained = atomic_load(&w->n_in_flight) == 0;
    (void)pthread_mutex_unlock(&w->lock);
    return drained ? BT_OK : BT_E_TIMEOUT;
}

void bt_handoff_worker_close(bt_worker *w)
{
    if (!w) {
        return;
    }
    atomic_store(&w->stopping, true);
    if (w->listener) {
        bt_link_listener_stop(w->listener);
    }
    if (w->thread_runs) {
        (void)pthread_join(w->thread, NULL);
    }
    (void)pthread_mutex_lock(&w->lock);
    for (bt_worker_session *s = w->sessions; s; s = s->next) {
        bt_link_close(s->link, "the worker is shutting down");
    }
    (void)pthread_mutex_unlock(&w->lock);
    (void)clear_away(w, true);
    bt_link_listener_close(w->listener);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_mutex_destroy(&w->pace_lock);
    (void)pthread_cond_destroy(&w->drained);
    bt_timeline_close(w->timeline);
    bt_free(w->isa);
    bt_free(w->state_bytes);
    bt_free(w);
}

void bt_handoff_worker_status_get(const bt_worker *w, bt_worker_status *ret_status)
{
    *ret_status = (bt_worker_status){
        .n_peers = atomic_load(&w->n_connected),
        .n_in_flight = atomic_load(&w->n_in_flight),
        .tokens_in_flight = atomic_load(&w->queued_tokens),
        .n_connects = atomic_load(&w->n_connects),
        .n_rejects = atomic_load(&w->n_rejects),
        .n_prompts = atomic_load(&w->n_prompts),
        .n_tokens = atomic_load(&w->n_tokens),
        .n_bytes = atomic_load(&w->n_bytes),
        .n_cancelled = atomic_load(&w->n_cancelled),
        .n_errors = atomic_load(&w->n_errors),
        .n_corrupt = atomic_load(&w->n_corrupt),
        .draining = atomic_load(&w->draining),
    };
}
