/* handoff/sender.c - one thread per connected server: what goes out, and how prompts end.
 *
 * The engine's thread must never wait for the network, so it only moves numbers (push.c); this
 * thread turns them into bulk frames and is the one that waits when the link is full. Prompts take
 * turns frame by frame. It alone looks at the engine's events and frees prompts.
 */
#include "base/clock.h"
#include "base/log.h"
#include "handoff/worker_private.h"
#include "link/sync.h"

/* ---- control frames ---- */

void bt_handoff_guest_error(bt_handoff_guest *g, uint32_t stream, const bt_error *why)
{
    const bt_wire_error m = {
        .status = (uint32_t)why->status,
        .retry_ms = why->status == BT_E_FULL ? 1000 : 0,
        .sentence = bt_wire_text_of(why->text),
    };
    uint8_t body[64 + BT_ERROR_TEXT_MAX];
    size_t size;
    bt_error err;
    atomic_fetch_add(&g->worker->n_errors, 1);
    if (bt_wire_error_encode(&m, body, sizeof body, &size, &err) != BT_OK ||
        bt_link_send(g->link, BT_WIRE_ERROR, stream, body, size, &err) != BT_OK) {
        /* The server would wait for rows; the end of the connection tells it as well. */
        bt_link_close(g->link, err.text);
    }
}

static void send_cancelled(bt_handoff_guest *g, uint32_t stream, uint32_t position_end)
{
    const bt_wire_cancelled m = { .position_end = position_end };
    uint8_t body[16];
    size_t size;
    bt_error err;
    if (bt_wire_cancelled_encode(&m, body, sizeof body, &size, &err) != BT_OK ||
        bt_link_send(g->link, BT_WIRE_CANCELLED, stream, body, size, &err) != BT_OK) {
        bt_log(BT_LOG_DEBUG, "cancel_not_sent", "client=%s reason=%s", g->name, err.text);
    }
}

void bt_handoff_guest_tell_load(bt_handoff_guest *g)
{
    bt_worker *w = g->worker;
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
    bt_link_set_load(g->link, &load);
}

/* ---- the engine's events ---- */

/* Lock held. */
static void note_end(bt_handoff_push *u, const bt_event *event)
{
    u->ended = true;
    if (event->finish == BT_FINISH_ERROR) {
        (void)bt_fail(&u->failure, event->status == BT_OK ? BT_E_DEVICE : event->status, "%s",
                      event->message && event->message[0] ? event->message
                                                          : bt_status_text(event->status));
    } else if (event->finish == BT_FINISH_CANCELLED) {
        if (!u->cancelled) {
            (void)bt_fail(&u->failure, BT_E_CLOSED, "the worker is shutting down");
        }
    } else {
        /* Also where nothing had to be computed and no layer was told. */
        u->n_cached = u->started ? u->n_cached : u->asked.position_end;
        bt_handoff_push_complete(u, u->asked.position_end);
    }
}

/* Lock free. Reads all events, since a full ring would pause the prompt. */
static void poll_events(bt_handoff_push *u)
{
    bt_handoff_guest *g = u->guest;
    bt_event event;
    while (bt_engine_request_wait(u->request, 0, &event) == BT_OK) {
        if (event.kind == BT_EVENT_BEGIN) {
            bt_request_stats stats;
            bt_engine_request_stats_get(u->request, &stats);
            u->queue_ms = stats.queue_ms;
        } else if (event.kind == BT_EVENT_END) {
            (void)pthread_mutex_lock(&g->lock);
            note_end(u, &event);
            (void)pthread_mutex_unlock(&g->lock);
            return;
        }
    }
}

/* ---- ends ---- */

/* Lock held. Nothing more will be computed for it, and nobody looks at it. */
static bool at_rest(const bt_handoff_push *u)
{
    return u->pins == 0 && (u->ended || !u->request);
}

/* Lock held. Nothing more will be sent for it either. */
static bool over(const bt_handoff_push *u)
{
    const bool given_up = u->cancelled || u->failure.status != BT_OK;
    return at_rest(u) && (given_up || (u->committed && !bt_handoff_push_owes_snapshots(u)));
}

/* Lock free. What computing it took is given back. */
static void let_go(bt_handoff_push *u, bt_request *request)
{
    bt_worker *w = u->guest->worker;
    bt_engine_request_release(request);
    if (request) {
        atomic_fetch_sub(&w->n_in_flight, 1);
        atomic_fetch_sub(&w->queued_tokens, u->asked.position_end - u->counted);
    }
}

/* Lock free; off the list. Says the last word and frees everything. */
static void bury(bt_handoff_push *u)
{
    bt_handoff_guest *g = u->guest;
    bt_worker *w = g->worker;
    bt_link_drop_stream(g->link, u->stream);     /* no callback of it runs from here on */
    let_go(u, u->request);
    if (u->cancelled) {
        atomic_fetch_add(&w->n_cancelled, 1);
        if (u->tell_cancelled) {
            send_cancelled(g, u->stream, u->complete);
        }
    } else if (u->failure.status != BT_OK) {
        bt_handoff_guest_error(g, u->stream, &u->failure);
    } else {
        atomic_fetch_add(&w->n_prompts, 1);
        atomic_fetch_add(&w->n_tokens, u->asked.position_end - u->asked.position_first);
    }
    bt_timeline_span(w->trace, u->lane, "prompt", u->submit_ms, bt_clock_ms(),
                     "\"tokens\":%u,"
                     "\"cached\":%u,\"committed\":%d",
                     u->asked.position_end, u->n_cached, u->committed && !u->cancelled);
    bt_log(BT_LOG_DEBUG, "prompt_end", "outcome=%s client=%s stream=%u tokens=%u cached=%u ms=%.1f",
           u->cancelled ? "cancelled" : u->failure.status != BT_OK ? "failed" : "pushed", g->name,
           u->stream, u->asked.position_end, u->n_cached, bt_clock_ms() - u->submit_ms);
    bt_handoff_push_destroy(u);
}

/* Lock held on entry and exit. A committed prompt that still owes snapshots needs neither its pages
 * nor its place any more: they come from the engine's store. */
static void let_go_early(bt_handoff_guest *g)
{
    for (bt_handoff_push *u = g->pushes; u; u = u->next) {
        if (u->request && bt_handoff_push_owes_snapshots(u) && at_rest(u) && u->n_queued == 0) {
            bt_request *request = u->request;
            u->request = NULL;
            (void)pthread_mutex_unlock(&g->lock);
            let_go(u, request);
            bt_handoff_guest_tell_load(g);
            (void)pthread_mutex_lock(&g->lock);
        }
    }
}

/* Lock held on entry and exit. True if one was buried. A committed prompt waits here until its last
 * frame has left; the others need not, bury() drops their frames. */
static bool bury_one(bt_handoff_guest *g)
{
    for (bt_handoff_push **at = &g->pushes; *at; at = &(*at)->next) {
        bt_handoff_push *u = *at;
        if (over(u) && (u->n_queued == 0 || !u->committed || u->cancelled)) {
            *at = u->next;
            g->n_pushes--;
            (void)pthread_mutex_unlock(&g->lock);
            bury(u);
            bt_handoff_guest_tell_load(g);
            (void)pthread_mutex_lock(&g->lock);
            return true;
        }
    }
    return false;
}

/* ---- sending ---- */

/* Lock held on entry and exit; free while the link may make us wait. */
static void send_piece(bt_handoff_guest *g, bt_handoff_push *u, const bt_bulk *bulk)
{
    bt_error err;
    u->pins++;
    (void)pthread_mutex_unlock(&g->lock);
    const bt_status s = bt_link_send_bulk(g->link, bulk, &err);
    (void)pthread_mutex_lock(&g->lock);
    u->pins--;
    if (s == BT_OK) {
        return;
    }
    u->n_queued--;
    u->cancelled = true;
    if (s != BT_E_CANCELLED) {
        /* Not a dropped stream: the end of the connection, and if it is not yet, it is now. */
        g->closing = true;
        (void)pthread_mutex_unlock(&g->lock);
        bt_link_close(g->link, err.text);
        (void)pthread_mutex_lock(&g->lock);
    }
}

/* Lock held on entry and exit. One frame of each prompt that has one; false if none had. With
 * `behind`, of prompts that are committed; the others go first. */
static bool send_round(bt_handoff_guest *g, bool behind)
{
    bool any = false;
    for (bt_handoff_push *u = g->pushes; u && !g->closing; u = u->next) {
        bt_bulk bulk;
        if (u->committed == behind && bt_handoff_push_next(u, &bulk) != BT_PIECE_NONE) {
            send_piece(g, u, &bulk);
            any = true;
        }
    }
    return any;
}

/* Lock held on entry and exit. Nobody but this thread takes pushes off, so the walk is safe. True
 * if one waits for nothing but the engine's END, which nobody signals. */
static bool poll_all(bt_handoff_guest *g)
{
    bool ending = false;
    for (bt_handoff_push *u = g->pushes; u; u = u->next) {
        if (!u->request || u->ended) {
            continue;
        }
        (void)pthread_mutex_unlock(&g->lock);
        poll_events(u);
        (void)pthread_mutex_lock(&g->lock);
        ending |= !u->ended && (u->committed || u->cancelled);
    }
    return ending;
}

void *bt_handoff_sender_main(void *context)
{
    bt_handoff_guest *g = context;
    double load_ms = 0;
    (void)pthread_mutex_lock(&g->lock);
    while (!g->closing || g->pushes) {
        const bool ending = poll_all(g);
        bool busy = send_round(g, false) || send_round(g, true);
        let_go_early(g);
        while (bury_one(g)) {
            busy = true;
        }
        if (!busy) {
            const uint32_t ms = ending      ? BT_HANDOFF_END_MS
                                : g->pushes ? BT_HANDOFF_POLL_MS
                                            : BT_HANDOFF_REST_MS;
            bt_link_cond_wait_ns(&g->wake, &g->lock, bt_link_ms_to_ns(ms));
        }
        if (bt_clock_ms() - load_ms >= BT_HANDOFF_REST_MS) {
            (void)pthread_mutex_unlock(&g->lock);
            bt_handoff_guest_tell_load(g);
            load_ms = bt_clock_ms();
            (void)pthread_mutex_lock(&g->lock);
        }
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}
