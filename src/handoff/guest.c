/* handoff/guest.c - one reader thread per connected server (docs/handoff.md, "A server, as the
 * worker sees it").
 *
 *   stranger --HELLO fits--> guest --PREFILL, TOKENS--> prompts --COMMIT, CANCEL, ERROR--> fewer
 *      |                       '--connection gone--> all its prompts cancelled, then freed
 *      '--REJECT--> gone
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "handoff/identity.h"
#include "handoff/worker_private.h"
#include "link/sync.h"

#define CREDIT_MAX (UINT64_C(1) << 63)   /* W-114 */

/* ---- handshake ---- */

void bt_handoff_guest_warn(bt_handoff_guest *g, const char *what, const char *reason)
{
    bt_worker *w = g->worker;
    const double now = bt_clock_ms();
    (void)pthread_mutex_lock(&w->lock);
    const bool say = w->warned_ms <= 0 || now - w->warned_ms >= BT_HANDOFF_WARN_MS;
    const uint64_t n_unsaid = w->n_unsaid;
    w->n_unsaid = say ? 0 : n_unsaid + 1;
    w->warned_ms = say ? now : w->warned_ms;
    (void)pthread_mutex_unlock(&w->lock);
    if (say && n_unsaid > 0) {
        bt_log(BT_LOG_WARN, "client_refused", "client=%s what=%s reason=%s suppressed=%llu",
               g->name, what, reason, (unsigned long long)n_unsaid);
    } else {
        bt_log(say ? BT_LOG_WARN : BT_LOG_DEBUG, "client_refused", "client=%s what=%s reason=%s",
               g->name, what, reason);
    }
}

void bt_handoff_guest_reject(bt_handoff_guest *g, const bt_wire_reject *m)
{
    uint8_t body[1024];
    size_t size;
    bt_error err;
    char sentence[200];
    atomic_fetch_add(&g->worker->n_rejects, 1);
    bt_handoff_guest_warn(g, "rejected", bt_wire_text_copy(m->sentence, sentence, sizeof sentence));
    if (bt_wire_reject_encode(m, body, sizeof body, &size, &err) == BT_OK &&
        bt_link_send(g->link, BT_WIRE_REJECT, 0, body, size, &err) == BT_OK) {
        bt_link_finish(g->link, BT_HANDOFF_FINISH_MS, "rejected");
    }
}

static bool refuse(bt_handoff_guest *g, bt_status status, const char *field, const char *sentence)
{
    const bt_wire_reject m = { .status = (uint32_t)status, .field = bt_wire_text_of(field),
                               .sentence = bt_wire_text_of(sentence) };
    bt_handoff_guest_reject(g, &m);
    return false;
}

static bool welcome(bt_handoff_guest *g, const bt_wire_hello *hello)
{
    const bt_worker *w = g->worker;
    const bt_wire_welcome m = {
        .version_major = BT_WIRE_VERSION_MAJOR,
        .version_minor = hello->version_minor,      /* not above ours, or it would not fit */
        .epoch = w->epoch,
        .n_ctx = w->n_ctx,
        .n_streams = w->n_streams,
        .n_prefill = w->n_prefill,
        .chunk_tokens = bt_engine_options_of(w->engine)->n_prefill_chunk,
        .numerics = bt_wire_text_of(w->numerics),
        .program = bt_wire_text_of(BT_WIRE_PROGRAM),
    };
    uint8_t body[512];
    size_t size;
    bt_error err;
    bt_handoff_guest_tell_load(g);
    return bt_wire_welcome_encode(&m, body, sizeof body, &size, &err) == BT_OK &&
           bt_link_send(g->link, BT_WIRE_WELCOME, 0, body, size, &err) == BT_OK;
}

/* The stranger's HELLO; false when the connection is of no use. */
static bool greet(bt_handoff_guest *g)
{
    bt_worker *w = g->worker;
    bt_frame frame;
    bt_error err;
    bt_wire_hello hello;
    bt_wire_misfit misfit;
    bt_status s = bt_link_receive(g->link, UINT64_MAX, &frame, &err);
    if (s == BT_OK && frame.type == BT_WIRE_VISIT) {
        bt_handoff_visitor_serve(g, &frame);
        return false;
    }
    if (s == BT_OK && frame.type != BT_WIRE_HELLO) {
        s = bt_fail(&err, BT_E_PROTOCOL, "%s before HELLO", bt_wire_type_name(frame.type));
    }
    if (s == BT_OK) {
        s = bt_wire_hello_decode(frame.body, frame.size, &hello, &err);
    }
    if (s != BT_OK) {
        atomic_fetch_add(&w->n_corrupt, s == BT_E_PROTOCOL);
        if (!atomic_load(&w->stopping)) {
            /* Without a byte it was only a look whether somebody listens. */
            bt_link_stats link;
            bt_link_stats_get(g->link, &link);
            if (link.bytes_received > 0 || s == BT_E_TIMEOUT) {
                bt_handoff_guest_warn(g, "gone before HELLO", err.text);
            } else {
                bt_log(BT_LOG_DEBUG, "client_gone", "client=%s before=hello reason=%s", g->name,
                       err.text);
            }
        }
        return false;
    }
    if (!bt_handoff_identity_fits(&hello, &w->own, &misfit)) {
        const bt_wire_reject m = bt_wire_misfit_reject(&misfit);
        bt_handoff_guest_reject(g, &m);
        return false;
    }
    if (atomic_load(&w->draining)) {
        return refuse(g, BT_E_CLOSED, "", "the worker is shutting down");
    }
    if (atomic_fetch_add(&w->n_connected, 1) >= w->n_peers) {
        atomic_fetch_sub(&w->n_connected, 1);
        return refuse(g, BT_E_FULL, "", "as many servers as it takes are connected to this worker");
    }
    g->session = hello.session;
    char program[64];
    (void)bt_wire_text_copy(hello.program, program, sizeof program);
    if (!welcome(g, &hello)) {
        atomic_fetch_sub(&w->n_connected, 1);
        return false;
    }
    atomic_store(&g->greeted, true);
    atomic_fetch_add(&w->n_connects, 1);
    bt_log(BT_LOG_INFO, "client_connected", "client=%s program=%s", g->name, program);
    return true;
}

/* ---- streams ---- */

/* Lock held. */
static bt_handoff_push *find(bt_handoff_guest *g, uint32_t stream)
{
    bt_handoff_push *u = g->pushes;
    while (u && u->stream != stream) {
        u = u->next;
    }
    return u;
}

static bt_status check_prefill(const bt_handoff_guest *g, const bt_wire_prefill *m, bt_error *err)
{
    const bt_worker *w = g->worker;
    if (atomic_load(&w->draining)) {
        return bt_fail(err, BT_E_CLOSED, "the worker is shutting down");
    }
    if (m->epoch != w->epoch) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL names an epoch that is not this worker's");
    }
    if (m->nonce == 0 || m->position_first >= m->position_end || m->position_end > m->n_tokens) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL wants rows %u..%u of %u tokens",
                       m->position_first, m->position_end, m->n_tokens);
    }
    if (m->credit > CREDIT_MAX) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL gives credit for more than 2^63 bytes");
    }
    if (m->n_tokens > w->n_ctx) {
        return bt_fail(err, BT_E_CONTEXT, "the prompt has %u tokens, the worker's context %u",
                       m->n_tokens, w->n_ctx);
    }
    if (g->n_pushes >= w->n_streams) {
        return bt_fail(err, BT_E_FULL,
                       "%u prompts of this server are in work, the most it may have", w->n_streams);
    }
    return BT_OK;
}

/* Anything wrong with one prompt is answered on its stream; a stream number that does not rise is
 * the connection's end. */
static bt_status take_prefill(bt_handoff_guest *g, const bt_frame *frame, bt_error *err)
{
    bt_wire_prefill m;
    bt_handoff_push *u = NULL;
    BT_TRY(bt_wire_prefill_decode(frame->body, frame->size, &m, err));
    if (frame->stream <= g->stream_last) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL on stream %u after stream %u", frame->stream,
                       g->stream_last);
    }
    g->stream_last = frame->stream;
    bt_error why;
    (void)pthread_mutex_lock(&g->lock);
    bt_status s = check_prefill(g, &m, &why);
    (void)pthread_mutex_unlock(&g->lock);
    if (s == BT_OK) {
        s = bt_handoff_push_create(g, frame->stream, &m, &u, &why);
    }
    if (s != BT_OK) {
        bt_handoff_guest_error(g, frame->stream, &why);
        return BT_OK;
    }
    (void)pthread_mutex_lock(&g->lock);
    bt_handoff_push **at = &g->pushes;
    while (*at) {
        at = &(*at)->next;
    }
    *at = u;
    g->n_pushes++;
    (void)pthread_mutex_unlock(&g->lock);
    return BT_OK;
}

static bt_status check_tokens(const bt_handoff_push *u, const bt_wire_tokens *m, bt_error *why)
{
    const uint32_t n_vocab = u->guest->worker->n_vocab;
    if (m->offset != u->n_got || m->ids.n == 0 || m->ids.n > u->asked.n_tokens - u->n_got) {
        return bt_fail(why, BT_E_PROTOCOL, "tokens %u..%llu, but %u is next and %u the end",
                       m->offset, (unsigned long long)m->offset + m->ids.n, u->n_got,
                       u->asked.n_tokens);
    }
    for (uint32_t i = 0; i < m->ids.n; i++) {
        const uint32_t id = bt_wire_token(m->ids, i);
        if (id >= n_vocab) {
            return bt_fail(why, BT_E_BADINPUT, "token %u at %u, but the vocabulary has %u", id,
                           m->offset + i, n_vocab);
        }
    }
    return BT_OK;
}

static bt_status take_tokens(bt_handoff_guest *g, const bt_frame *frame, bt_error *err)
{
    bt_wire_tokens m;
    bt_error why;
    BT_TRY(bt_wire_tokens_decode(frame->body, frame->size, &m, err));
    (void)pthread_mutex_lock(&g->lock);
    bt_handoff_push *u = find(g, frame->stream);
    if (u && (u->request || u->cancelled || u->failure.status != BT_OK)) {
        u = NULL;
    }
    if (u) {
        u->pins++;
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (!u) {
        return BT_OK;                   /* late, or of a prompt that was refused */
    }
    bt_status s = check_tokens(u, &m, &why);
    if (s == BT_OK) {
        bt_wire_tokens_copy(m.ids, u->tokens + u->n_got);
        u->n_got += m.ids.n;
        s = u->n_got == u->asked.n_tokens ? bt_handoff_push_submit(u, &why) : BT_OK;
    }
    (void)pthread_mutex_lock(&g->lock);
    if (s != BT_OK) {
        u->failure = why;               /* the sender tells the server and frees it */
    }
    u->pins--;
    (void)pthread_cond_signal(&g->wake);
    (void)pthread_mutex_unlock(&g->lock);
    return BT_OK;
}

/* Lock held on entry and exit. Computing stops within a step, queued frames are forgotten. */
static void cancel_push(bt_handoff_guest *g, bt_handoff_push *u, bool tell)
{
    if (u->cancelled) {
        return;
    }
    u->cancelled = true;
    u->tell_cancelled = tell;
    u->pins++;
    (void)pthread_mutex_unlock(&g->lock);
    if (u->request) {
        bt_engine_request_cancel(u->request);
    }
    bt_link_drop_stream(g->link, u->stream);
    (void)pthread_mutex_lock(&g->lock);
    u->pins--;
    (void)pthread_cond_signal(&g->wake);
}

static bt_status take_cancel(bt_handoff_guest *g, const bt_frame *frame)
{
    (void)pthread_mutex_lock(&g->lock);
    bt_handoff_push *u = find(g, frame->stream);
    if (u) {
        cancel_push(g, u, true);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return BT_OK;
}

static bt_status take_credit(bt_handoff_guest *g, const bt_frame *frame, bt_error *err)
{
    bt_wire_credit m;
    BT_TRY(bt_wire_credit_decode(frame->body, frame->size, &m, err));
    bool good = m.bytes > 0 && m.bytes <= CREDIT_MAX;
    (void)pthread_mutex_lock(&g->lock);
    bt_handoff_push *u = find(g, frame->stream);
    if (u && good) {
        u->credit += m.bytes;           /* below 2^64: each was at most 2^63 */
        good = u->credit <= CREDIT_MAX;
        (void)pthread_cond_signal(&g->wake);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return good ? BT_OK : bt_fail(err, BT_E_PROTOCOL, "CREDIT of %llu bytes on stream %u",
                                  (unsigned long long)m.bytes, frame->stream);
}

static bt_status take_error(bt_handoff_guest *g, const bt_frame *frame, bt_error *err)
{
    bt_wire_error m;
    char sentence[200];
    BT_TRY(bt_wire_error_decode(frame->body, frame->size, &m, err));
    if (frame->stream != 0) {
        return take_cancel(g, frame);
    }
    return bt_fail(err, BT_E_LOST, "the server gave up the connection: %s",
                   bt_wire_text_copy(m.sentence, sentence, sizeof sentence));
}

static bt_status take_frame(bt_handoff_guest *g, const bt_frame *frame, bt_error *err)
{
    const bool of_stream = frame->type == BT_WIRE_TOKENS || frame->type == BT_WIRE_CANCEL ||
                           frame->type == BT_WIRE_CREDIT;
    if (of_stream && (frame->stream == 0 || frame->stream > g->stream_last)) {
        return bt_fail(err, BT_E_PROTOCOL, "%s on stream %u, which was never opened",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    switch (frame->type) {
    case BT_WIRE_PREFILL:
        return take_prefill(g, frame, err);
    case BT_WIRE_TOKENS:
        return take_tokens(g, frame, err);
    case BT_WIRE_CANCEL:
        return take_cancel(g, frame);
    case BT_WIRE_CREDIT:
        return take_credit(g, frame, err);
    case BT_WIRE_ERROR:
        return take_error(g, frame, err);
    case BT_WIRE_DRAIN:
        return BT_OK;                   /* a server that leaves sends no more prompts by itself */
    default:
        return bt_fail(err, BT_E_PROTOCOL, "unexpected %s from the server",
                       bt_wire_type_name(frame->type));
    }
}

/* ---- the thread ---- */

void bt_handoff_guest_drain(bt_handoff_guest *g)
{
    const bt_wire_drain m = { .sentence = bt_wire_text_of("the worker is shutting down") };
    uint8_t body[128];
    size_t size;
    bt_error err;
    if (bt_wire_drain_encode(&m, body, sizeof body, &size, &err) != BT_OK ||
        bt_link_send(g->link, BT_WIRE_DRAIN, 0, body, size, &err) != BT_OK) {
        bt_log(BT_LOG_DEBUG, "drain_not_sent", "client=%s reason=%s", g->name, err.text);
    }
}

/* Lets the sender end all prompts, then waits for it. */
static void leave(bt_handoff_guest *g, const bt_error *why)
{
    bt_link_close(g->link, why->text);
    atomic_fetch_add(&g->worker->n_corrupt, why->status == BT_E_PROTOCOL);
    (void)pthread_mutex_lock(&g->lock);
    g->closing = true;
    for (bt_handoff_push *u = g->pushes; u; u = u->next) {
        u->pins++;                      /* the list must hold still while the lock is free */
    }
    for (bt_handoff_push *u = g->pushes; u; u = u->next) {
        cancel_push(g, u, false);
    }
    for (bt_handoff_push *u = g->pushes; u; u = u->next) {
        u->pins--;
    }
    (void)pthread_cond_signal(&g->wake);
    (void)pthread_mutex_unlock(&g->lock);
    if (g->sender_runs) {
        (void)pthread_join(g->sender, NULL);
    }
    if (!atomic_load(&g->worker->stopping)) {
        bt_log(BT_LOG_INFO, "client_gone", "client=%s reason=%s", g->name, why->text);
    }
}

void *bt_handoff_guest_main(void *context)
{
    bt_handoff_guest *g = context;
    if (greet(g)) {
        bt_error err = { BT_E_NOMEM, "the system gives no thread" };
        bt_frame frame;
        g->sender_runs = bt_link_thread_start(&g->sender, bt_handoff_sender_main, g);
        bt_status s = g->sender_runs ? BT_OK : BT_E_NOMEM;
        while (s == BT_OK) {
            s = bt_link_receive(g->link, UINT64_MAX, &frame, &err);
            if (s == BT_OK) {
                s = take_frame(g, &frame, &err);
            }
        }
        leave(g, &err);
    }
    if (atomic_load(&g->greeted)) {
        atomic_fetch_sub(&g->worker->n_connected, 1);
    }
    bt_link_close(g->link, "done");
    atomic_store(&g->finished, true);
    return NULL;
}
