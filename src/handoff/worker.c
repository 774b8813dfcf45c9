/* handoff/worker.c - see worker.h; listener, drain, life cycle and status of the worker's side. */
#include "handoff/worker.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/identity.h"
#include "base/say.h"
#include "handoff/worker_private.h"
#include "link/sync.h"

/* ---- connections ---- */

static void guest_destroy(bt_handoff_guest *g)
{
    bt_link_destroy(g->link);
    (void)pthread_cond_destroy(&g->wake);
    (void)pthread_mutex_destroy(&g->lock);
    bt_free(g);
}

static void host_of(const char *peer, char to[128])
{
    const char *colon = strrchr(peer, ':');
    bt_say(to, 128, "%.*s", colon ? (int)(colon - peer) : 127, peer);
}

/* Takes the link. */
static void admit(bt_worker *w, bt_link *link)
{
    bt_handoff_guest *g = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *g);
    if (!g) {
        bt_link_destroy(link);
        return;
    }
    bt_link_stats stats;
    bt_link_stats_get(link, &stats);
    g->worker = w;
    g->link = link;
    g->begun_ms = bt_clock_ms();
    bt_say(g->name, sizeof g->name, "%s", stats.peer);
    host_of(stats.peer, g->host);
    (void)pthread_mutex_init(&g->lock, NULL);
    bt_link_cond_init(&g->wake);
    if (!bt_link_thread_start(&g->reader, bt_handoff_guest_main, g)) {
        bt_log(BT_LOG_WARN, "client_refused", "client=%s reason=%s", g->name,
               "cannot create a thread");
        guest_destroy(g);
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    g->next = w->guests;
    w->guests = g;
    (void)pthread_mutex_unlock(&w->lock);
}

static bool is_stranger(const bt_handoff_guest *g)
{
    return !atomic_load(&g->greeted) && !atomic_load(&g->visiting) && !atomic_load(&g->finished);
}

/* Lock held. Strangers from `host`, and the oldest of them. */
static uint32_t count_strangers(const bt_worker *w, const char *host, bt_handoff_guest **ret_oldest)
{
    uint32_t n = 0;
    for (bt_handoff_guest *g = w->guests; g; g = g->next) {
        if (is_stranger(g) && !g->evicted && strcmp(g->host, host) == 0) {
            n++;
            *ret_oldest = g;           /* new ones are put in front */
        }
    }
    return n;
}

/* All places of strangers are taken: whoever has the most of them gives up the oldest, so that no
 * one machine keeps others out, nor silent connections those that speak. false: the newcomer is of
 * that machine, and the oldest may still be about to speak. */
static bool make_room(bt_worker *w, const char *newcomer)
{
    bt_handoff_guest *victim = NULL, *oldest = NULL;
    uint32_t most = 0, n_guests = 0;
    char host[128];
    host_of(newcomer, host);
    (void)pthread_mutex_lock(&w->lock);
    for (bt_handoff_guest *g = w->guests; g; g = g->next) {
        const uint32_t n = is_stranger(g) && !g->evicted ? count_strangers(w, g->host, &oldest) : 0;
        if (n > most) {
            most = n;
            victim = oldest;
        }
        n_guests += !atomic_load(&g->greeted);
    }
    const bool same = victim && strcmp(victim->host, host) == 0;
    const bool young = victim && bt_clock_ms() - victim->begun_ms < BT_HANDOFF_STRANGER_MS;
    const bool room = victim && !(same && young) && n_guests < 2 * BT_HANDOFF_STRANGERS_MAX;
    if (room) {
        victim->evicted = true;
        bt_link_close(victim->link, "others wait to be heard");
    }
    (void)pthread_mutex_unlock(&w->lock);
    return room;
}

/* Frees connections that have ended; with `all` waits for every one of them. Returns the number of
 * strangers left. */
static uint32_t clear_away(bt_worker *w, bool all)
{
    uint32_t n_strangers = 0;
    bt_handoff_guest *gone = NULL;
    (void)pthread_mutex_lock(&w->lock);
    for (bt_handoff_guest **at = &w->guests; *at;) {
        bt_handoff_guest *g = *at;
        if (all || atomic_load(&g->finished)) {
            *at = g->next;
            g->next = gone;
            gone = g;
        } else {
            n_strangers += is_stranger(g) && !g->evicted;
            at = &g->next;
        }
    }
    (void)pthread_mutex_unlock(&w->lock);
    while (gone) {
        bt_handoff_guest *g = gone;
        gone = g->next;
        (void)pthread_join(g->reader, NULL);
        guest_destroy(g);
    }
    return n_strangers;
}

static void *listen_main(void *context)
{
    bt_worker *w = context;
    while (!atomic_load(&w->stopping)) {
        bt_link *link = NULL;
        bt_error err;
        const uint64_t until_ns = bt_clock_after_ms(BT_HANDOFF_LISTEN_MS);
        const bt_status s = bt_link_listener_accept(w->listener, until_ns, &link, &err);
        const uint32_t n_strangers = clear_away(w, false);
        bt_link_stats stats;
        if (s == BT_OK) {
            bt_link_stats_get(link, &stats);
        }
        if (s == BT_OK && n_strangers >= BT_HANDOFF_STRANGERS_MAX && !make_room(w, stats.peer)) {
            bt_link_destroy(link);      /* silence is cheap: no thread, no memory, no log line */
        } else if (s == BT_OK) {
            admit(w, link);
        } else if (s != BT_E_AGAIN && s != BT_E_CLOSED) {
            bt_log(BT_LOG_WARN, "accept_failed", "reason=%s", err.text);
            bt_clock_sleep_ms(BT_HANDOFF_LISTEN_MS);
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
    w->n_peers = o->n_peers > 0 ? o->n_peers : BT_HANDOFF_PEERS_DEFAULT;
    w->n_peers = w->n_peers < BT_WORKER_PEERS_MAX ? w->n_peers : BT_WORKER_PEERS_MAX;
    const uint64_t streams = (uint64_t)w->n_prefill + e->queue_max;
    w->n_streams = streams < BT_STREAMS_PER_PEER_MAX ? (uint32_t)streams : BT_STREAMS_PER_PEER_MAX;
    w->n_ctx = e->n_ctx;
    w->share_cache = o->share_cache;
    w->n_vocab = bt_model_config_of(e->model)->n_vocab;
    while (w->epoch == 0) {
        if (bt_random_u64(&w->epoch) != BT_OK) {
            return bt_fail(err, BT_E_IO, "the system gives no random numbers");
        }
    }
    w->numerics = bt_strdup(BT_MEM_handoff, o->numerics ? o->numerics : "");
    if (!w->numerics) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the worker");
    }
    w->own = bt_handoff_hello(w->engine, 0, w->numerics);
    return BT_OK;
}

bt_status bt_handoff_worker_open(const bt_worker_options *o, bt_engine *engine,
                                 bt_worker **ret_worker, bt_error *err)
{
    bt_worker *w = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *w);
    if (!w) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the worker");
    }
    w->engine = engine;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_mutex_init(&w->pace_lock, NULL);
    bt_link_options link = o->link;
    if (link.queue_bytes_max == 0) {
        link.queue_bytes_max = BT_HANDOFF_QUEUE_BYTES;
    }
    bt_status s = open_engine_side(w, o, err);
    if (s == BT_OK) {
        s = bt_link_listener_open(o->listen, &link, &w->listener, err);
    }
    if (s == BT_OK && o->trace_file) {
        char name[160];
        bt_say(name, sizeof name, "worker %s", bt_link_listener_address(w->listener));
        s = bt_timeline_open(o->trace_file, name, &w->trace, err);
    }
    if (s == BT_OK) {
        w->thread_runs = bt_link_thread_start(&w->thread, listen_main, w);
        s = w->thread_runs ? BT_OK : bt_fail(err, BT_E_NOMEM, "the system gives no thread");
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
    const double until = bt_clock_ms() + timeout_ms;
    if (!atomic_exchange(&w->draining, true)) {
        (void)pthread_mutex_lock(&w->lock);
        for (bt_handoff_guest *g = w->guests; g; g = g->next) {
            if (atomic_load(&g->greeted)) {
                bt_handoff_guest_drain(g);
            }
        }
        (void)pthread_mutex_unlock(&w->lock);
    }
    while (atomic_load(&w->n_in_flight) > 0) {
        if (bt_clock_ms() >= until) {
            return BT_E_TIMEOUT;
        }
        bt_clock_sleep_ms(BT_HANDOFF_POLL_MS);
    }
    return BT_OK;
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
    for (bt_handoff_guest *g = w->guests; g; g = g->next) {
        bt_link_close(g->link, "the worker is shutting down");
    }
    (void)pthread_mutex_unlock(&w->lock);
    (void)clear_away(w, true);
    bt_link_listener_close(w->listener);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_mutex_destroy(&w->pace_lock);
    bt_timeline_close(w->trace);
    bt_free(w->numerics);
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
