/* worker/worker.c - see worker.h; listener, drain, life cycle and status of the worker's side. */
#include "worker/worker.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/snapshots.h"
#include "handoff/identity.h"
#include "base/say.h"
#include "worker/private.h"

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
    if (bt_thread_start(&s->reader, bt_worker_session_main, s, "client reader", &err) != BT_OK) {
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
    const bool young = victim && bt_clock_ms() - victim->begun_ms < BT_WORKER_PENDING_MS;
    const bool room = victim && !(same && young) && n_sessions < 2 * BT_WORKER_PENDING_MAX;
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
        if (status == BT_OK && n_pending >= BT_WORKER_PENDING_MAX && !make_room(w, stats.peer)) {
            bt_link_destroy(link);      /* silence is cheap: no thread, no memory, no log line */
        } else if (status == BT_OK) {
            start_session(w, link);
        } else if (status != BT_E_AGAIN && status != BT_E_CLOSED) {
            bt_log(BT_LOG_WARN, "accept_failed", "reason=%s", err.text);
        }
    }
    return NULL;
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
    w->n_clients_max = o->n_peers > 0 ? o->n_peers : BT_WORKER_CLIENTS_DEFAULT;
    w->n_clients_max = w->n_clients_max < BT_WORKER_PEERS_MAX ? w->n_clients_max
                                                              : BT_WORKER_PEERS_MAX;
    w->stall_ms = o->stall_ms > 0 ? o->stall_ms : BT_WORKER_STALL_MS;
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

bt_status bt_worker_open(const bt_worker_options *o, bt_engine *engine,
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
        bt_worker_close(w);
        return s;
    }
    *ret_worker = w;
    return BT_OK;
}

const char *bt_worker_address(const bt_worker *w)
{
    return bt_link_listener_address(w->listener);
}

bt_status bt_worker_drain(bt_worker *w, uint32_t timeout_ms)
{
    const uint64_t until = bt_clock_after_ms(timeout_ms);
    if (!atomic_exchange(&w->draining, true)) {
        (void)pthread_mutex_lock(&w->lock);
        for (bt_worker_session *s = w->sessions; s; s = s->next) {
            if (atomic_load(&s->greeted)) {
                bt_worker_session_drain(s);
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

void bt_worker_close(bt_worker *w)
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
        if (atomic_load(&s->greeted)) {
            bt_link_wake(s->link);      /* it ends by itself, once its last frames have left */
        } else {
            bt_link_close(s->link, "the worker is shutting down");
        }
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

void bt_worker_status_get(const bt_worker *w, bt_worker_status *ret_status)
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
