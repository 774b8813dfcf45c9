/* handoff/peer.c - one thread per worker (docs/handoff.md, "A worker, as the server sees it").
 *
 *   connecting --WELCOME--> ready --DRAIN--> draining
 *     |    ^                  |                 |
 *   REJECT |  after back-off  '---connection----'
 *     v    |                        gone
 *   refused                          |
 *     '--------- back-off ------- lost
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/job_state.h"
#include "base/say.h"
#include "link/sync.h"

/* ---- state ---- */

/* Equal but for numbers: "silent for 2002 ms" is no news after "silent for 2007 ms". */
static bool same_but_numbers(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b) {
            return false;
        }
        if (*a == '\0') {
            return true;
        }
    }
}

/* Says a state once: a worker that stays away is one line, not one per attempt. A hung worker
 * that is found silent again after connecting anew has not changed either. */
static void set_state(bt_handoff_peer *peer, bt_prefill_state state, const char *reason)
{
    bt_prefill *p = peer->owner;
    bt_prefill_worker_status *st = &peer->status;
    (void)pthread_mutex_lock(&p->lock);
    const bool ready = state == BT_PREFILL_READY;
    const bool other = peer->said_ready || !same_but_numbers(peer->said, reason);
    const bool news = ready ? !peer->said_ready : reason[0] && other;
    /* Who was taken off the list takes no prompts, even if it has just become ready. */
    st->state = peer->leaving && ready ? BT_PREFILL_DRAINING : state;
    bt_say(st->reason, sizeof st->reason, "%s", reason);
    if (news) {
        peer->said_ready = ready;
        bt_say(peer->said, sizeof peer->said, "%s", reason);
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (news && ready) {
        bt_log(BT_LOG_INFO, "worker_ready", "worker=%s version=%s isa=%s slots=%u", peer->address,
               st->version, st->numerics[0] ? st->numerics : "unknown", st->n_slots);
    } else if (news) {
        bt_log(BT_LOG_WARN, "worker_state", "worker=%s state=%s reason=%s", peer->address,
               bt_handoff_client_state_name(state), reason);
    }
}

static bool stopping(const bt_handoff_peer *peer) { return atomic_load(&peer->owner->stopping); }

/* Lock held. Taken off the list, and the last prompt is done. */
static bool may_leave(const bt_handoff_peer *peer) { return peer->leaving && !peer->jobs; }

/* ---- handshake ---- */

static bt_status send_hello(bt_handoff_peer *peer, bt_link *link, bt_error *err)
{
    const bt_wire_hello *m = &peer->owner->hello;
    const size_t room = bt_wire_hello_size(m);
    uint8_t *body = bt_alloc(BT_MEM_handoff, room);
    size_t size;
    if (!body) {
        return bt_fail(err, BT_E_NOMEM, "no memory for HELLO");
    }
    bt_status s = bt_wire_hello_encode(m, body, room, &size, err);
    if (s == BT_OK) {
        s = bt_link_send(link, BT_WIRE_HELLO, 0, body, size, err);
    }
    bt_free(body);
    return s;
}

static bt_status take_reject(const bt_frame *frame, bt_error *err)
{
    bt_wire_reject m;
    char field[40], ours[64], theirs[64], sentence[224];
    BT_TRY(bt_wire_reject_decode(frame->body, frame->size, &m, err));
    (void)bt_wire_text_copy(m.field, field, sizeof field);
    (void)bt_wire_text_copy(m.server_value, ours, sizeof ours);
    (void)bt_wire_text_copy(m.worker_value, theirs, sizeof theirs);
    (void)bt_wire_text_copy(m.sentence, sentence, sizeof sentence);
    const bt_status status = bt_status_from_wire(m.status);
    if (status == BT_E_FULL || status == BT_E_CLOSED) {
        return bt_fail(err, status, "the worker refused: %s", sentence);
    }
    /* What a person needs comes first: reports have room for less than all of it. */
    return bt_fail(err, BT_E_REFUSED, "%s ('%s' is %s here and %s there)", sentence, field, ours,
                   theirs);
}

static bt_status check_welcome(const bt_wire_welcome *m, bt_error *err)
{
    if (m->version_major != BT_WIRE_VERSION_MAJOR || m->version_minor != BT_WIRE_VERSION_MINOR) {
        return bt_fail(err, BT_E_PROTOCOL, "WELCOME speaks version %u.%u of the protocol, this "
                       "server asked for %d.%d", m->version_major, m->version_minor,
                       BT_WIRE_VERSION_MAJOR, BT_WIRE_VERSION_MINOR);
    }
    if (m->epoch == 0 || m->n_streams == 0 || m->n_prefill == 0) {
        return bt_fail(err, BT_E_PROTOCOL, "WELCOME with epoch %llu, %u streams, %u prompts",
                       (unsigned long long)m->epoch, m->n_streams, m->n_prefill);
    }
    return BT_OK;
}

/* Lock held. */
static void take_welcome(bt_handoff_peer *peer, bt_link *link, const bt_wire_welcome *m)
{
    const bt_prefill_options *o = &peer->owner->options;
    bt_prefill_worker_status *st = &peer->status;
    uint32_t slots = o->n_prefill > 0 ? o->n_prefill : m->n_prefill;
    st->n_slots = slots < m->n_streams ? slots : m->n_streams;
    st->n_connects++;
    (void)bt_wire_text_copy(m->program, st->version, sizeof st->version);
    (void)bt_wire_text_copy(m->numerics, st->numerics, sizeof st->numerics);
    if (peer->epoch != m->epoch) {      /* another process: its cache is empty */
        bt_route_cache_hint_clear(&peer->known);
    }
    peer->epoch = m->epoch;
    peer->n_ctx = m->n_ctx;
    peer->n_streams = m->n_streams;
    peer->chunk = o->n_prefill_chunk > 0 ? o->n_prefill_chunk : m->chunk_tokens;
    peer->stream_next = 1;
    peer->others_tokens = 0;
    peer->others_prompts = 0;
    peer->load_told_ms = 0;
    peer->link = link;
}

static bt_status wait_welcome(bt_handoff_peer *peer, bt_link *link, bt_error *err)
{
    const double until = bt_clock_ms() + BT_HANDOFF_GREETING_MS;
    bt_frame frame;
    bt_status s = BT_E_AGAIN;
    while (s == BT_E_AGAIN && bt_clock_ms() < until && !stopping(peer)) {
        s = bt_link_receive(link, bt_clock_after_ms(BT_HANDOFF_IDLE_MS), &frame, err);
    }
    if (s == BT_E_AGAIN) {
        return bt_fail(err, BT_E_TIMEOUT, "connected, but no WELCOME after %d ms",
                       (int)BT_HANDOFF_GREETING_MS);
    }
    BT_TRY(s);
    if (frame.type == BT_WIRE_REJECT) {
        return take_reject(&frame, err);
    }
    if (frame.type != BT_WIRE_WELCOME) {
        return bt_fail(err, BT_E_PROTOCOL, "the worker answers HELLO with %s",
                       bt_wire_type_name(frame.type));
    }
    bt_wire_welcome m;
    BT_TRY(bt_wire_welcome_decode(frame.body, frame.size, &m, err));
    BT_TRY(check_welcome(&m, err));
    (void)pthread_mutex_lock(&peer->owner->lock);
    take_welcome(peer, link, &m);
    (void)pthread_mutex_unlock(&peer->owner->lock);
    return BT_OK;
}

static void compare_numerics(const bt_handoff_peer *peer)
{
    const char *ours = peer->owner->numerics, *theirs = peer->status.numerics;
    if (ours[0] && theirs[0] && strcmp(ours, theirs) != 0) {
        bt_log(BT_LOG_WARN, "isa_differs", "worker=%s isa=%s here=%s effect=%s", peer->address,
               theirs, ours, "remote and local prefill agree closely, but not bit for bit");
    }
}

/* ---- frames ---- */

static void take_drain(bt_handoff_peer *peer, const bt_frame *frame)
{
    bt_wire_drain m;
    bt_error err;
    char sentence[160] = "the worker is shutting down";
    if (bt_wire_drain_decode(frame->body, frame->size, &m, &err) == BT_OK && m.sentence.size > 0) {
        (void)bt_wire_text_copy(m.sentence, sentence, sizeof sentence);
    }
    set_state(peer, BT_PREFILL_DRAINING, sentence);
}

/* Of one stream, or (no job) of the connection. */
static bt_status take_error(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                            bt_error *err)
{
    bt_wire_error m;
    char sentence[200];
    BT_TRY(bt_wire_error_decode(frame->body, frame->size, &m, err));
    (void)bt_wire_text_copy(m.sentence, sentence, sizeof sentence);
    bt_status status = bt_status_from_wire(m.status);
    status = status == BT_OK ? BT_E_PROTOCOL : status;
    if (!job) {
        return bt_fail(err, status, "the worker gave up the connection: %s", sentence);
    }
    bt_error why;
    (void)bt_fail(&why, status, "%s", sentence);
    bt_handoff_job_fail(peer, job, &why, false);
    return BT_OK;
}

/* Frames that belong to a stream, for a job that wants them. */
static bt_status take_stream_frame(bt_handoff_peer *peer, bt_handoff_job *job,
                                   const bt_frame *frame, bt_error *err)
{
    switch (frame->type) {
    case BT_WIRE_ROWS:
        return bt_handoff_job_rows(peer, job, frame, err);
    case BT_WIRE_CHUNK:
        bt_handoff_job_chunk(peer, job, frame);
        return BT_OK;
    case BT_WIRE_COMMIT:
        bt_handoff_job_commit(peer, job, frame);
        return BT_OK;
    case BT_WIRE_STATE:
        return bt_handoff_job_state(peer, job, frame, err);
    case BT_WIRE_ERROR:
        return take_error(peer, job, frame, err);
    case BT_WIRE_CANCELLED:
        return bt_fail(err, BT_E_PROTOCOL, "CANCELLED for a stream that nobody cancelled");
    default:
        return bt_fail(err, BT_E_PROTOCOL, "unexpected %s on a stream",
                       bt_wire_type_name(frame->type));
    }
}

/* A failure is one of the connection; a stream's own failures end the stream only. */
static bt_status take_frame(bt_handoff_peer *peer, const bt_frame *frame, bt_error *err)
{
    if (frame->stream == 0) {
        if (frame->type == BT_WIRE_DRAIN) {
            take_drain(peer, frame);
            return BT_OK;
        }
        return frame->type == BT_WIRE_ERROR
                ? take_error(peer, NULL, frame, err)
                : bt_fail(err, BT_E_PROTOCOL, "unexpected %s from the worker",
                          bt_wire_type_name(frame->type));
    }
    (void)pthread_mutex_lock(&peer->owner->lock);
    const bool opened = frame->stream < peer->stream_next;
    bt_handoff_job *job = bt_handoff_job_find(peer, frame->stream);
    if (job) {
        job->news_ms = bt_clock_ms();
    }
    /* Unknown: it has ended. Cancelled: nothing more is written for it, the next tick ends it. */
    const bool late = !job || job->cancelled;
    if (frame->type == BT_WIRE_COMMIT || frame->type == BT_WIRE_CANCELLED ||
        frame->type == BT_WIRE_ERROR) {
        if (job) {
            job->over = true;
        } else if (bt_handoff_cancelling_over(&peer->dying, frame->stream)) {
            bt_handoff_jobs_send(peer);
        }
    }
    (void)pthread_mutex_unlock(&peer->owner->lock);
    if (!job && bt_handoff_keeper_frame(peer, frame)) {
        return BT_OK;
    }
    (void)pthread_mutex_lock(&peer->owner->lock);
    peer->status.n_late_frames += late && frame->type != BT_WIRE_CANCELLED;
    (void)pthread_mutex_unlock(&peer->owner->lock);
    if (!opened) {
        return bt_fail(err, BT_E_PROTOCOL, "%s on stream %u, which was never opened",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    return late ? BT_OK : take_stream_frame(peer, job, frame, err);
}

/* Until the connection ends; *err says how. */
static void serve(bt_handoff_peer *peer, bt_link *link, bt_error *err)
{
    double tick_ms = bt_clock_ms();
    for (;;) {
        bt_frame frame;
        (void)pthread_mutex_lock(&peer->owner->lock);
        const bool busy = peer->jobs != NULL, leave = may_leave(peer);
        (void)pthread_mutex_unlock(&peer->owner->lock);
        if (leave) {
            (void)bt_fail(err, BT_E_CLOSED, "taken off the list of workers");
            return;
        }
        const uint32_t ms = busy ? BT_HANDOFF_TICK_MS : BT_HANDOFF_IDLE_MS;
        bt_status s = bt_link_receive(link, bt_clock_after_ms(ms), &frame, err);
        if (s == BT_OK) {
            s = take_frame(peer, &frame, err);
        }
        if (stopping(peer)) {
            /* stop() closes links that it can see; this one may have become ready behind it. */
            s = bt_fail(err, BT_E_CLOSED, "the server is shutting down");
        }
        if (s != BT_OK && s != BT_E_AGAIN) {
            return;
        }
        if (s == BT_E_AGAIN || bt_clock_ms() - tick_ms >= BT_HANDOFF_TICK_MS) {
            bt_handoff_jobs_tick(peer);
            tick_ms = bt_clock_ms();
        }
    }
}

/* ---- the thread ---- */

/* Lock held. A worker that has said that it shuts down closes the connection when its prompts are
 * done, or have had their time. */
static void explain_drain(const bt_handoff_peer *peer, bt_error *why)
{
    if (why->status == BT_E_LOST) {
        const bt_error end = *why;
        (void)bt_fail(why, BT_E_LOST, "%.120s%s: %.200s", peer->status.reason,
                      peer->jobs ? " (prompts have as long as its --drain-ms says)" : "",
                      end.text);
    }
}

static void leave(bt_handoff_peer *peer, bt_link *link, const bt_error *how)
{
    bt_prefill *p = peer->owner;
    const bool stop = stopping(peer);
    bt_error why = *how;
    (void)pthread_mutex_lock(&p->lock);
    const bool drained = peer->status.state == BT_PREFILL_DRAINING, left = peer->leaving;
    if (drained && !left) {
        explain_drain(peer, &why);
    }
    peer->link = NULL;                  /* from here on nobody gives it a job */
    peer->dying.n = 0;
    peer->status.n_lost += !drained && !stop;
    peer->status.n_corrupt += why.status == BT_E_PROTOCOL;
    (void)pthread_mutex_unlock(&p->lock);
    if (!stop && !left) {
        set_state(peer, BT_PREFILL_LOST, why.text);
    }
    bt_handoff_keepers_drop(peer);
    bt_handoff_jobs_fail(peer, &why);
    bt_link_close(link, why.text);
}

/* Ends early when stop() says so. A quarter of jitter keeps servers that lost the same worker from
 * coming back in step. */
static void back_off(bt_handoff_peer *peer, uint32_t ms)
{
    uint64_t random;
    const double jitter = bt_random_u64(&random) == BT_OK ? (double)(random % 512) / 512 : 0.5;
    const double until = bt_clock_ms() + ms * (0.75 + 0.5 * jitter);
    (void)pthread_mutex_lock(&peer->owner->lock);
    for (double left = until - bt_clock_ms();
         left > 0 && !peer->owner->stopping && !peer->leaving; left = until - bt_clock_ms()) {
        bt_link_cond_wait_ns(&peer->owner->wake, &peer->owner->lock,
                             bt_link_ms_to_ns((uint32_t)left + 1));
    }
    (void)pthread_mutex_unlock(&peer->owner->lock);
}

/* One connection from begin to end. True if it was ready for a while. */
static bool session(bt_handoff_peer *peer, bt_error *err)
{
    bt_link *link = NULL;
    bt_status s = bt_link_connect(peer->address, &peer->owner->options.link, &link, err);
    if (s != BT_OK) {
        return false;
    }
    s = send_hello(peer, link, err);
    if (s == BT_OK) {
        s = wait_welcome(peer, link, err);
    }
    if (s != BT_OK) {
        bt_link_destroy(link);
        return false;
    }
    set_state(peer, BT_PREFILL_READY, "");
    compare_numerics(peer);
    serve(peer, link, err);
    leave(peer, link, err);
    bt_link_destroy(link);
    return true;
}

/* Whether the thread is to return; then nobody puts the worker back on the list. */
static bool over(bt_handoff_peer *peer)
{
    bt_prefill *p = peer->owner;
    (void)pthread_mutex_lock(&p->lock);
    peer->ended = may_leave(peer) || p->stopping;
    const bool ended = peer->ended;
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    return ended;
}

void *bt_handoff_peer_main(void *context)
{
    bt_handoff_peer *peer = context;
    uint32_t pause_ms = BT_HANDOFF_BACKOFF_FIRST_MS;
    while (!over(peer)) {
        bt_error err = { 0 };
        if (session(peer, &err)) {
            pause_ms = BT_HANDOFF_BACKOFF_FIRST_MS;
        } else if (!stopping(peer)) {
            /* A refusal needs a person; anything else may heal by itself at any moment. */
            const bool person = err.status == BT_E_REFUSED || err.status == BT_E_AUTH ||
                                err.status == BT_E_PROTOCOL || err.status == BT_E_BADINPUT;
            (void)pthread_mutex_lock(&peer->owner->lock);
            peer->status.n_corrupt += err.status == BT_E_PROTOCOL;
            (void)pthread_mutex_unlock(&peer->owner->lock);
            const bool refused = person || err.status == BT_E_FULL || err.status == BT_E_CLOSED;
            set_state(peer, refused ? BT_PREFILL_REFUSED : BT_PREFILL_CONNECTING, err.text);
            const uint32_t most = person ? BT_HANDOFF_BACKOFF_REFUSED_MS
                                         : BT_HANDOFF_BACKOFF_LOST_MS;
            pause_ms = pause_ms * 2 < most ? pause_ms * 2 : most;
        }
        back_off(peer, pause_ms);
    }
    return NULL;
}
