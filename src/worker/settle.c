/* worker/settle.c - what the machines of a session's prompts want done, and the engine's
 * events that they wait for. The reader's thread. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/private.h"

#define ON(name) BT_TRANSFER_WORKER_ON_##name
#define DO(name) BT_TRANSFER_WORKER_DO_##name

/* ---- answers ---- */

void bt_worker_session_reject(bt_worker_session *s, const bt_wire_reject *m)
{
    uint8_t body[1024];
    size_t size;
    bt_error err;
    char sentence[200];
    atomic_fetch_add(&s->worker->n_rejects, 1);
    bt_worker_warn(s, "rejected",
                           bt_wire_text_copy(m->sentence, sentence, sizeof sentence));
    if (bt_wire_reject_encode(m, body, sizeof body, &size, &err) == BT_OK &&
        bt_link_send(s->link, BT_WIRE_REJECT, 0, body, size, &err) == BT_OK) {
        bt_link_finish(s->link, BT_WORKER_FINISH_MS, "rejected");
    }
}

void bt_worker_session_say_error(bt_worker_session *s, uint32_t stream, const bt_error *why)
{
    const bt_wire_error m = {
        .status = (uint32_t)why->status,
        .retry_ms = why->status == BT_E_FULL ? 1000 : 0,
        .sentence = bt_wire_text_of(why->text),
    };
    uint8_t body[64 + BT_ERROR_TEXT_MAX];
    size_t size;
    bt_error err;
    atomic_fetch_add(&s->worker->n_errors, 1);
    if (bt_wire_error_encode(&m, body, sizeof body, &size, &err) != BT_OK ||
        bt_link_send(s->link, BT_WIRE_ERROR, stream, body, size, &err) != BT_OK) {
        /* The client would wait for rows; the end of the connection tells it as well. */
        bt_link_close(s->link, err.text);
    }
}

static void say_cancelled(bt_worker_session *s, uint32_t stream, uint32_t position_end)
{
    const bt_wire_cancelled m = { .position_end = position_end };
    uint8_t body[16];
    size_t size;
    bt_error err;
    if (bt_wire_cancelled_encode(&m, body, sizeof body, &size, &err) != BT_OK ||
        bt_link_send(s->link, BT_WIRE_CANCELLED, stream, body, size, &err) != BT_OK) {
        bt_log(BT_LOG_DEBUG, "cancel_not_sent", "client=%s reason=%s", s->name, err.text);
    }
}

/* ---- carrying out ---- */

void bt_worker_stream_put(bt_worker_stream *u, bt_transfer_worker_input i)
{
    (void)pthread_mutex_lock(&u->session->lock);
    u->todo |= bt_transfer_worker_put(&u->machine, i, bt_clock_ns());
    (void)pthread_mutex_unlock(&u->session->lock);
}

/* Actions that can be carried out now: what the writer reads is not released. */
static uint32_t take_todo(bt_worker_stream *u, bt_request **ret_request)
{
    bt_worker_session *s = u->session;
    (void)pthread_mutex_lock(&s->lock);
    uint32_t todo = u->todo;
    if (u->filling) {
        todo &= ~(uint32_t)DO(RELEASE);
    }
    u->todo &= ~todo;
    *ret_request = u->request;
    if (todo & DO(RELEASE)) {
        u->request = NULL;
    }
    if (todo & (DO(SAY_CANCELLED) | DO(SAY_ERROR))) {
        u->committed = false;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return todo;
}

static void note_end(bt_worker_stream *u, uint32_t todo)
{
    bt_worker_session *s = u->session;
    bt_worker *w = s->worker;
    const bool failed = todo & DO(SAY_ERROR), cancelled = todo & DO(SAY_CANCELLED);
    bt_timeline_span(w->timeline, u->lane, "prompt", u->submit_ms, bt_clock_ms(),
                     "\"tokens\":%u,\"cached\":%u,\"committed\":%d", u->asked.position_end,
                     u->machine.n_cached, !failed && !cancelled);
    bt_log(BT_LOG_DEBUG, "prompt_end", "outcome=%s client=%s stream=%u tokens=%u cached=%u ms=%.1f",
           failed ? "failed" : cancelled ? "cancelled" : "pushed", s->name, u->stream,
           u->asked.position_end, u->machine.n_cached, bt_clock_ms() - u->submit_ms);
}

/* False: there was nothing. */
static bool carry_out(bt_worker_stream *u)
{
    bt_worker_session *s = u->session;
    bt_request *request;
    const uint32_t todo = take_todo(u, &request);
    if (todo & DO(SUBMIT)) {
        if (bt_worker_stream_submit(u, &u->failure) != BT_OK) {
            bt_worker_stream_put(u, ON(REFUSED));
        }
        bt_worker_tell_load(s->worker);
    }
    if (todo & DO(STOP_COMPUTING)) {
        bt_engine_request_cancel(request);
    }
    if (todo & DO(RELEASE)) {
        bt_worker_stream_release(u, request);
        bt_worker_tell_load(s->worker);
    }
    if (todo & DO(SAY_CANCELLED)) {
        say_cancelled(s, u->stream, u->machine.complete);
    }
    if (todo & DO(SAY_ERROR)) {
        bt_worker_session_say_error(s, u->stream, &u->failure);
    }
    if (todo & (DO(SAY_CANCELLED) | DO(SAY_ERROR))) {
        note_end(u, todo);
    }
    return todo != 0;
}

/* Counts a prompt that is done, and frees it. */
static void end_stream(bt_worker_stream *u)
{
    bt_worker_session *s = u->session;
    bt_worker *w = s->worker;
    if (u->committed) {
        note_end(u, 0);
        atomic_fetch_add(&w->n_prompts, 1);
        atomic_fetch_add(&w->n_tokens, u->asked.position_end - u->asked.position_first);
    } else if (u->failure.status == BT_OK) {
        atomic_fetch_add(&w->n_cancelled, 1);
    }
    if (!u->machine.started) {
        bt_worker_count_unstarted(s, -1);
    }
    if (u->admitted) {
        bt_worker_give_back(s, u->asked.position_end);
    }
    bt_worker_count_open(s, -1);
    bt_worker_stream_destroy(u);
}

/* Lock held on entry and exit. Takes one prompt off the list that is done and of which nothing is
 * left to do. */
static bt_worker_stream *take_done_locked(bt_worker_session *s)
{
    for (bt_worker_stream **at = &s->streams; *at; at = &(*at)->next) {
        bt_worker_stream *u = *at;
        if (u->machine.state == BT_TRANSFER_WORKER_DONE && u->todo == 0 && !u->filling) {
            *at = u->next;
            return u;
        }
    }
    return NULL;
}

bt_transfer_worker_state bt_worker_stream_state(bt_worker_stream *u)
{
    (void)pthread_mutex_lock(&u->session->lock);
    const bt_transfer_worker_state state = u->machine.state;
    (void)pthread_mutex_unlock(&u->session->lock);
    return state;
}

static void admit_waiting(bt_worker_session *s)
{
    for (bt_worker_stream *u = s->streams; u; u = u->next) {
        if (bt_worker_stream_state(u) == BT_TRANSFER_WORKER_WAITING &&
            bt_worker_admit(s, u->asked.position_end)) {
            u->admitted = true;
            bt_worker_stream_put(u, ON(ADMITTED));
        }
    }
}

/* All that the machines want done. The reader alone changes the list, so walking it is safe. */
void bt_worker_session_settle(bt_worker_session *s)
{
    admit_waiting(s);
    for (bt_worker_stream *u = s->streams; u; u = u->next) {
        while (carry_out(u)) {
        }
    }
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        bt_worker_stream *u = take_done_locked(s);
        (void)pthread_mutex_unlock(&s->lock);
        if (!u) {
            return;
        }
        end_stream(u);
    }
}

/* ---- the engine's events ---- */

static void take_end(bt_worker_stream *u, const bt_event *event)
{
    if (event->finish != BT_FINISH_ERROR && event->finish != BT_FINISH_CANCELLED) {
        bt_worker_stream_put(u, ON(ENDED));
        bt_worker_session_pull(u->session);
        return;
    }
    const bool given_up = bt_worker_stream_state(u) >= BT_TRANSFER_WORKER_CANCELLING;
    if (given_up) {
        /* What became of it is decided already. */
    } else if (event->finish == BT_FINISH_CANCELLED) {
        (void)bt_fail(&u->failure, BT_E_CLOSED, "the worker is shutting down");
    } else {
        (void)bt_fail(&u->failure, event->status == BT_OK ? BT_E_DEVICE : event->status, "%s",
                      event->message && event->message[0] ? event->message
                                                          : bt_status_text(event->status));
    }
    bt_worker_stream_put(u, ON(FAILED));
}

/* All events, since a full ring would pause the prompt. */
static void take_events_of(bt_worker_stream *u)
{
    bt_worker_session *s = u->session;
    bt_event event;
    while (u->request && bt_engine_request_wait(u->request, 0, &event) == BT_OK) {
        if (event.kind == BT_EVENT_BEGIN) {
            bt_request_stats stats;
            bt_engine_request_stats_get(u->request, &stats);
            (void)pthread_mutex_lock(&s->lock);
            u->queue_ms = stats.queue_ms;
            (void)pthread_mutex_unlock(&s->lock);
        } else if (event.kind == BT_EVENT_END) {
            take_end(u, &event);
            u->ended = true;
            return;
        }
    }
}

void bt_worker_session_take_events(bt_worker_session *s)
{
    (void)pthread_mutex_lock(&s->lock);
    const bool any = s->has_event;
    s->has_event = false;
    (void)pthread_mutex_unlock(&s->lock);
    for (bt_worker_stream *u = any ? s->streams : NULL; u; u = u->next) {
        if (!u->ended) {
            take_events_of(u);
        }
    }
}
