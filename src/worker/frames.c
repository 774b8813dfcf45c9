/* worker/frames.c - what a client sends, from PREFILL on. The reader's thread. */
#include "base/clock.h"
#include "worker/private.h"

#define ON(name) BT_TRANSFER_WORKER_ON_##name

/* ---- frames ---- */

static bt_worker_stream *find(const bt_worker_session *s, uint32_t stream)
{
    bt_worker_stream *u = s->streams;
    while (u && u->stream != stream) {
        u = u->next;
    }
    return u;
}

static bt_status check_prefill(const bt_worker_session *s, const bt_wire_prefill *m, bt_error *err)
{
    const bt_worker *w = s->worker;
    uint32_t n_streams = 0;
    for (const bt_worker_stream *u = s->streams; u; u = u->next) {
        n_streams++;
    }
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
    if (m->credit > BT_TRANSFER_CREDIT_MAX) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL gives credit for more than 2^63 bytes");
    }
    if (m->n_tokens > w->n_ctx) {
        return bt_fail(err, BT_E_CONTEXT, "the prompt has %u tokens, the worker's context %u",
                       m->n_tokens, w->n_ctx);
    }
    if (n_streams >= w->n_streams) {
        return bt_fail(err, BT_E_FULL, "%u prompts of this server are in flight, the most it may "
                       "have", w->n_streams);
    }
    return BT_OK;
}

/* Anything wrong with one prompt is answered on its stream; a stream number that does not rise is
 * the connection's end. */
static bt_status take_prefill(bt_worker_session *s, const bt_frame *frame, bt_error *err)
{
    bt_wire_prefill m;
    bt_worker_stream *u = NULL;
    bt_error why;
    BT_TRY(bt_wire_prefill_decode(frame->body, frame->size, &m, err));
    if (frame->stream <= s->stream_last) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL on stream %u after stream %u", frame->stream,
                       s->stream_last);
    }
    s->stream_last = frame->stream;
    bt_status status = check_prefill(s, &m, &why);
    if (status == BT_OK) {
        status = bt_worker_stream_create(s, frame->stream, &m, &u, &why);
    }
    if (status != BT_OK) {
        bt_worker_session_say_error(s, frame->stream, &why);
        return BT_OK;
    }
    bt_worker_count_open(s, 1);
    bt_worker_count_unstarted(s, 1);
    (void)pthread_mutex_lock(&s->lock);
    bt_worker_stream **at = &s->streams;
    while (*at) {
        at = &(*at)->next;
    }
    *at = u;
    (void)pthread_mutex_unlock(&s->lock);
    return BT_OK;
}

static bt_status check_tokens(const bt_worker_stream *u, const bt_wire_tokens *m, bt_error *why)
{
    const uint32_t n_vocab = u->session->worker->n_vocab;
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

/* Late ones, and those of a prompt that was refused, mean nothing. */
static bt_status take_tokens(bt_worker_session *s, const bt_frame *frame, bt_error *err)
{
    bt_wire_tokens m;
    BT_TRY(bt_wire_tokens_decode(frame->body, frame->size, &m, err));
    bt_worker_stream *u = find(s, frame->stream);
    if (!u || bt_worker_stream_state(u) != BT_TRANSFER_WORKER_TOKENS) {
        return BT_OK;
    }
    if (check_tokens(u, &m, &u->failure) != BT_OK) {
        bt_worker_stream_put(u, ON(UNFIT));
        return BT_OK;
    }
    bt_wire_tokens_copy(m.ids, u->tokens + u->n_got);
    u->n_got += m.ids.n;
    if (u->n_got == u->asked.n_tokens) {
        bt_worker_stream_put(u, ON(FULL));
        bt_worker_count_unstarted(s, 0);   /* others may hold up what it needs */
    }
    return BT_OK;
}

static bt_status take_cancel(bt_worker_session *s, const bt_frame *frame)
{
    bt_worker_stream *u = find(s, frame->stream);
    if (u) {
        bt_worker_stream_put(u, ON(CANCEL));
    }
    return BT_OK;
}

static bt_status take_credit(bt_worker_session *s, const bt_frame *frame, bt_error *err)
{
    bt_wire_credit m;
    BT_TRY(bt_wire_credit_decode(frame->body, frame->size, &m, err));
    bt_worker_stream *u = find(s, frame->stream);
    bool good = m.bytes > 0 && m.bytes <= BT_TRANSFER_CREDIT_MAX;
    if (u && good) {
        (void)pthread_mutex_lock(&s->lock);
        good = bt_transfer_worker_credit(&u->machine, m.bytes, bt_clock_ns());
        (void)pthread_mutex_unlock(&s->lock);
        bt_worker_session_pull(s);
    }
    return good ? BT_OK : bt_fail(err, BT_E_PROTOCOL, "CREDIT of %llu bytes on stream %u",
                                  (unsigned long long)m.bytes, frame->stream);
}

static bt_status take_error(bt_worker_session *s, const bt_frame *frame, bt_error *err)
{
    bt_wire_error m;
    char sentence[200];
    BT_TRY(bt_wire_error_decode(frame->body, frame->size, &m, err));
    if (frame->stream != 0) {
        return take_cancel(s, frame);
    }
    return bt_fail(err, BT_E_LOST, "the server gave up the connection: %s",
                   bt_wire_text_copy(m.sentence, sentence, sizeof sentence));
}

bt_status bt_worker_session_take_frame(bt_worker_session *s, const bt_frame *frame,
                                        bt_error *err)
{
    const bool of_stream = frame->type == BT_WIRE_TOKENS || frame->type == BT_WIRE_CANCEL ||
                           frame->type == BT_WIRE_CREDIT;
    if (of_stream && (frame->stream == 0 || frame->stream > s->stream_last)) {
        return bt_fail(err, BT_E_PROTOCOL, "%s on stream %u, which was never opened",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    switch (frame->type) {
    case BT_WIRE_PREFILL:
        return take_prefill(s, frame, err);
    case BT_WIRE_TOKENS:
        return take_tokens(s, frame, err);
    case BT_WIRE_CANCEL:
        return take_cancel(s, frame);
    case BT_WIRE_CREDIT:
        return take_credit(s, frame, err);
    case BT_WIRE_ERROR:
        return take_error(s, frame, err);
    case BT_WIRE_DRAIN:
        return BT_OK;                   /* a server that leaves sends no more prompts by itself */
    default:
        return bt_fail(err, BT_E_PROTOCOL, "unexpected %s from the server",
                       bt_wire_type_name(frame->type));
    }
}
