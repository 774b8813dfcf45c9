/* worker/session.c - one client of the worker: the reader's thread (docs/handoff.md, "A
 * client, as the worker sees it").
 *
 *   pending --HELLO fits--> session --PREFILL, TOKENS--> prompts --last word--> fewer
 *      |                       '--connection gone--> all its prompts abandoned, then freed
 *      '--REJECT--> gone
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/say.h"
#include "handoff/identity.h"
#include "worker/private.h"

#define ON(name) BT_TRANSFER_WORKER_ON_##name

/* ---- handshake ---- */

static bool refuse(bt_worker_session *s, bt_status status, const char *sentence)
{
    const bt_wire_reject m = { .status = (uint32_t)status, .field = bt_wire_text_of(""),
                               .sentence = bt_wire_text_of(sentence) };
    bt_worker_session_reject(s, &m);
    return false;
}

static bool welcome(bt_worker_session *s, const bt_wire_hello *hello)
{
    const bt_worker *w = s->worker;
    const bt_wire_welcome m = {
        .version_major = BT_WIRE_VERSION_MAJOR,
        .version_minor = hello->version_minor,      /* not above ours, or it would not fit */
        .epoch = w->epoch,
        .n_ctx = w->n_ctx,
        .n_streams = w->n_streams,
        .n_prefill = w->n_prefill,
        .chunk_tokens = bt_engine_options_of(w->engine)->n_prefill_chunk,
        .numerics = bt_wire_text_of(w->isa),
        .program = bt_wire_text_of(BT_WIRE_PROGRAM),
    };
    uint8_t body[512];
    size_t size;
    bt_error err;
    bt_worker_tell_load(s->worker);
    return bt_wire_welcome_encode(&m, body, sizeof body, &size, &err) == BT_OK &&
           bt_link_send(s->link, BT_WIRE_WELCOME, 0, body, size, &err) == BT_OK;
}

/* Gone before HELLO. Without a byte it was only a look whether somebody listens. */
static void note_gone(bt_worker_session *s, const bt_error *err)
{
    bt_worker *w = s->worker;
    bt_link_stats link;
    atomic_fetch_add(&w->n_corrupt, err->status == BT_E_PROTOCOL);
    if (atomic_load(&w->stopping)) {
        return;
    }
    bt_link_stats_get(s->link, &link);
    if (link.bytes_received > 0 || err->status == BT_E_TIMEOUT) {
        bt_worker_warn(s, "gone before HELLO", err->text);
    } else {
        bt_log(BT_LOG_DEBUG, "client_gone", "client=%s before=hello reason=%s", s->name,
               err->text);
    }
}

static bool take_place(bt_worker_session *s)
{
    bt_worker *w = s->worker;
    if (atomic_load(&w->draining)) {
        return refuse(s, BT_E_CLOSED, "the worker is shutting down");
    }
    if (atomic_fetch_add(&w->n_connected, 1) >= w->n_clients_max) {
        atomic_fetch_sub(&w->n_connected, 1);
        return refuse(s, BT_E_FULL, "as many servers as it takes are connected to this worker");
    }
    return true;
}

/* False when the connection is of no use. */
static bool greet(bt_worker_session *s)
{
    bt_worker *w = s->worker;
    bt_frame frame;
    bt_error err;
    bt_wire_hello hello;
    bt_wire_misfit misfit;
    bt_status status;
    do {
        status = bt_link_receive(s->link, UINT64_MAX, &frame, &err);
    } while (status == BT_E_AGAIN);
    if (status == BT_OK && frame.type == BT_WIRE_VISIT) {
        bt_worker_probe_serve(s, &frame);
        return false;
    }
    if (status == BT_OK && frame.type != BT_WIRE_HELLO) {
        status = bt_fail(&err, BT_E_PROTOCOL, "%s before HELLO", bt_wire_type_name(frame.type));
    }
    if (status == BT_OK) {
        status = bt_wire_hello_decode(frame.body, frame.size, &hello, &err);
    }
    if (status != BT_OK) {
        note_gone(s, &err);
        return false;
    }
    if (!bt_handoff_identity_fits(&hello, &w->own, &misfit)) {
        const bt_wire_reject m = bt_wire_misfit_reject(&misfit);
        bt_worker_session_reject(s, &m);
        return false;
    }
    if (!take_place(s)) {
        return false;
    }
    s->id = hello.session;
    char program[64];
    (void)bt_wire_text_copy(hello.program, program, sizeof program);
    if (!welcome(s, &hello)) {
        atomic_fetch_sub(&w->n_connected, 1);
        return false;
    }
    atomic_store(&s->greeted, true);
    atomic_fetch_add(&w->n_connects, 1);
    bt_log(BT_LOG_INFO, "client_connected", "client=%s program=%s", s->name, program);
    return true;
}

/* ---- what does not move ---- */

static uint64_t patience_ns(const bt_worker_session *s, bool others_wait)
{
    const uint32_t ms = others_wait || s->worker->stall_ms > BT_WORKER_STALL_MAX_MS
                            ? s->worker->stall_ms : BT_WORKER_STALL_MAX_MS;
    return (uint64_t)ms * BT_NS_PER_MS;
}

/* Tokens that do not come hold nothing that others wait for, but memory; they are not waited for
 * longer than the rest. */
static uint64_t stalls_at_locked(const bt_worker_stream *u, bool others_wait)
{
    const bool tokens = u->machine.state == BT_TRANSFER_WORKER_TOKENS;
    return bt_transfer_worker_deadline(&u->machine, patience_ns(u->session, others_wait || tokens));
}

/* The writer was called, or was given a frame, and does not ask for the next one: the client reads
 * nothing. */
static uint64_t stuck_at_locked(const bt_worker_session *s, bool others_wait)
{
    return s->idle || s->pulled_ns == 0 ? UINT64_MAX : s->pulled_ns + patience_ns(s, others_wait);
}

/* What the engine computes meanwhile may begin to wait too, without a word to this thread: so with
 * prompts the longest wait is the patience there is for them. */
static uint64_t next_deadline(bt_worker_session *s)
{
    const bool others_wait = bt_worker_others_wait(s);
    (void)pthread_mutex_lock(&s->lock);
    uint64_t first = UINT64_MAX;
    if (s->streams) {
        const uint64_t stuck = stuck_at_locked(s, others_wait);
        const uint64_t look = bt_clock_ns() + patience_ns(s, others_wait);
        first = stuck < look ? stuck : look;
    }
    for (bt_worker_stream *u = s->streams; u; u = u->next) {
        const uint64_t at = stalls_at_locked(u, others_wait);
        first = at < first ? at : first;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return first;
}

static bt_status end_stalled(bt_worker_session *s, bt_error *err)
{
    const bool others_wait = bt_worker_others_wait(s);
    const uint64_t now = bt_clock_ns();
    (void)pthread_mutex_lock(&s->lock);
    const bool stuck = s->streams && stuck_at_locked(s, others_wait) <= now;
    for (bt_worker_stream *u = s->streams; u; u = u->next) {
        if (stalls_at_locked(u, others_wait) <= now) {
            (void)bt_fail(&u->failure, BT_E_TIMEOUT,
                          u->machine.state == BT_TRANSFER_WORKER_TOKENS
                              ? "its tokens did not come for %.1f s"
                              : "no credit for its rows for %.1f s, while others wait",
                          (double)(now - u->machine.moved_ns) / 1e9);
            u->todo |= bt_transfer_worker_put(&u->machine, ON(STALLED), now);
        }
    }
    const double stuck_s = (double)(now - s->pulled_ns) / 1e9;
    (void)pthread_mutex_unlock(&s->lock);
    return stuck ? bt_fail(err, BT_E_LOST, "it has read nothing for %.1f s", stuck_s) : BT_OK;
}

/* ---- the thread ---- */

void bt_worker_session_drain(bt_worker_session *s)
{
    const bt_wire_drain m = { .sentence = bt_wire_text_of("the worker is shutting down") };
    uint8_t body[128];
    size_t size;
    bt_error err;
    if (bt_wire_drain_encode(&m, body, sizeof body, &size, &err) != BT_OK ||
        bt_link_send(s->link, BT_WIRE_DRAIN, 0, body, size, &err) != BT_OK) {
        bt_log(BT_LOG_DEBUG, "drain_not_sent", "client=%s reason=%s", s->name, err.text);
    }
}

static bt_status serve(bt_worker_session *s, bt_error *err)
{
    const bt_link_source source = { .context = s, .next = bt_worker_stream_next,
                                    .sealed = bt_worker_stream_sealed };
    BT_TRY(bt_link_set_source(s->link, &source, err));
    while (!atomic_load(&s->worker->stopping)) {
        bt_frame frame;
        const bt_status status = bt_link_receive(s->link, next_deadline(s), &frame, err);
        if (status == BT_OK) {
            BT_TRY(bt_worker_session_take_frame(s, &frame, err));
        } else if (status == BT_E_AGAIN) {
            BT_TRY(end_stalled(s, err));
        } else {
            return status;
        }
        bt_worker_session_take_events(s);
        bt_worker_session_settle(s);
    }
    return bt_fail(err, BT_E_CLOSED, "the worker is shutting down");
}

/* The connection is over: whatever computes is stopped, and waited for. */
static void leave(bt_worker_session *s, const bt_error *why)
{
    atomic_fetch_add(&s->worker->n_corrupt, why->status == BT_E_PROTOCOL);
    if (why->status == BT_E_CLOSED) {   /* a COMMIT that is written has not left yet */
        bt_link_finish(s->link, BT_WORKER_FINISH_MS, why->text);
    }
    bt_link_stop(s->link, why->text);
    for (bt_worker_stream *u = s->streams; u; u = u->next) {
        (void)pthread_mutex_lock(&s->lock);
        u->filling = false;             /* the writer has ended */
        u->todo |= bt_transfer_worker_put(&u->machine, ON(LOST), bt_clock_ns());
        (void)pthread_mutex_unlock(&s->lock);
    }
    bt_worker_session_settle(s);
    while (s->streams) {
        (void)pthread_mutex_lock(&s->lock);
        while (!s->has_event) {
            (void)bt_cond_wait_until(&s->event, &s->lock, BT_NEVER_NS);
        }
        (void)pthread_mutex_unlock(&s->lock);
        bt_worker_session_take_events(s);
        bt_worker_session_settle(s);
    }
    if (!atomic_load(&s->worker->stopping)) {
        bt_log(BT_LOG_INFO, "client_gone", "client=%s reason=%s", s->name, why->text);
    }
}

void *bt_worker_session_main(void *context)
{
    bt_worker_session *s = context;
    bt_worker *w = s->worker;
    if (greet(s)) {
        bt_error err;
        (void)serve(s, &err);
        leave(s, &err);
        atomic_fetch_sub(&w->n_connected, 1);
    }
    bt_link_close(s->link, "done");
    atomic_store(&s->finished, true);
    bt_link_listener_wake(w->listener);
    return NULL;
}
