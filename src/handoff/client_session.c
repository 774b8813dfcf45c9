/* handoff/client_session.c - a connection to a worker, from WELCOME to its end: what the worker
 * sends, and what is due. Its thread waits for the next of these and for nothing else: who has a
 * prompt or a reason to give one up wakes the link. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/say.h"
#include "handoff/client_private.h"

enum { PENDING_MAX = 16 };             /* prompts of a worker that wait for checkpoints */

/* ---- state ---- */

/* Equal but for numbers: "silent for 2002 ms" says no more than "silent for 2007 ms" did. */
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

/* A hung worker that is found silent again after connecting anew has not changed either. */
void bt_handoff_session_set_state(bt_client_worker *w, bt_prefill_state state, const char *reason)
{
    bt_prefill *p = w->owner;
    bt_prefill_worker_status *st = &w->status;
    (void)pthread_mutex_lock(&p->lock);
    const bool ready = state == BT_PREFILL_READY;
    const bool other = w->said_ready || !same_but_numbers(w->said, reason);
    const bool say = ready ? !w->said_ready : reason[0] && other;
    /* One that is off the list takes no prompts, even if it has just become ready. */
    st->phase = w->leaving && ready ? BT_PREFILL_DRAINING : state;
    bt_say(st->reason, sizeof st->reason, "%s", reason);
    if (say) {
        w->said_ready = ready;
        bt_say(w->said, sizeof w->said, "%s", reason);
    }
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    if (say && ready) {
        bt_log(BT_LOG_INFO, "worker_ready", "worker=%s version=%s isa=%s slots=%u",
               w->address, st->version, st->isa[0] ? st->isa : "unknown", st->n_slots);
    } else if (say) {
        bt_log(BT_LOG_WARN, "worker_state", "worker=%s state=%s reason=%s", w->address,
               bt_handoff_client_state_name(state), reason);
    }
}

/* ---- one input of a transfer ---- */

static void put(bt_client_worker *w, bt_client_transfer *t, bt_transfer_client_input input,
                const bt_error *why)
{
    bt_handoff_transfer_do(w, t, bt_transfer_client_put(&t->machine, input, bt_clock_ns()), why,
                           NULL);
}

/* ---- rows and states ---- */

/* Into the reserved pages, turned into the stored type where they come in another. */
static bt_status import_rows(bt_client_worker *w, const bt_client_transfer *t,
                             const bt_wire_rows *m)
{
    const bt_prefill *p = w->owner;
    const uint64_t ticket = t->prompt->ticket;
    if (p->form.codec == BT_KV_CODEC_STORED) {
        return bt_engine_external_import_rows(p->engine, ticket, m->layer, m->position, m->n,
                                              m->k.data,
                                     m->v.data);
    }
    const size_t k = bt_kv_codec_k_bytes(&p->form, m->layer),
                 v = bt_kv_codec_v_bytes(&p->form, m->layer);
    bt_status s = BT_OK;
    for (uint32_t at = 0; s == BT_OK && at < m->n; at += BT_KV_ROWS_AT_ONCE) {
        const uint32_t n = m->n - at < BT_KV_ROWS_AT_ONCE ? m->n - at : BT_KV_ROWS_AT_ONCE;
        bt_kv_codec_decode(&p->form, &w->scratch, m->layer, n, m->k.data + at * k,
                           m->v.data + at * v);
        s = bt_engine_external_import_rows(p->engine, ticket, m->layer, m->position + at, n,
                                           w->scratch.k,
                                  w->scratch.v);
    }
    return s;
}

/* What came of storing a part; true: it is stored. */
static bool is_stored(bt_client_worker *w, bt_client_transfer *t, bt_status s, const char *what,
                      uint32_t layer)
{
    bt_error why;
    if (s == BT_OK) {
        put(w, t, BT_TRANSFER_CLIENT_ON_STORED, NULL);
    } else if (s == BT_E_CANCELLED) {
        put(w, t, BT_TRANSFER_CLIENT_ON_GONE, NULL);
    } else {
        (void)bt_fail(&why, s, "%s of layer %u could not be stored: %s", what, layer,
                      bt_status_text(s));
        put(w, t, BT_TRANSFER_CLIENT_ON_UNSTORED, &why);
    }
    return s == BT_OK;
}

static void store_rows(bt_client_worker *w, bt_client_transfer *t, const bt_wire_rows *m,
                       const bt_frame *frame)
{
    bt_prefill *p = w->owner;
    const double begin_ms = bt_clock_ms();
    const bt_status s = import_rows(w, t, m);
    const double end_ms = bt_clock_ms();
    t->prompt->report.import_ms += end_ms - begin_ms;
    bt_timeline_span(p->timeline, bt_handoff_prompt_lane(t->prompt) + 1, "rows", begin_ms, end_ms,
                     "\"layer\":%u,\"position\":%u,\"n\":%u,\"bytes\":%u", m->layer,
                     m->position, m->n, m->k.size + m->v.size);
    if (is_stored(w, t, s, "rows", m->layer)) {
        bt_transfer_receipt_enter(&t->receipt, m, frame);
        bt_handoff_send_stored(w, t, frame->size, (uint64_t)m->k.size + m->v.size);
    }
}

static void store_state(bt_client_worker *w, bt_client_transfer *t, const bt_wire_state *m,
                        const bt_frame *frame)
{
    const double begin_ms = bt_clock_ms();
    const bt_status s = bt_engine_external_import_state(w->owner->engine, t->prompt->ticket,
                                                        m->layer,
                                               m->offset, m->data.size, m->data.data);
    t->prompt->report.import_ms += bt_clock_ms() - begin_ms;
    if (is_stored(w, t, s, "the state", m->layer)) {
        bt_transfer_receipt_enter_state(&t->receipt, m, frame);
        bt_handoff_send_stored(w, t, frame->size, m->data.size);
    }
}

/* Where there is no room for the checkpoint the bytes go nowhere. */
static void store_checkpoint(bt_client_worker *w, bt_client_transfer *t, const bt_wire_state *m,
                             const bt_frame *frame)
{
    bt_engine *engine = w->owner->engine;
    if (bt_transfer_receipt_states_none(&t->receipt) &&
        !bt_engine_snapshot_open(engine, &t->snapshot)) {
        t->snapshot = UINT32_MAX;
    }
    if (t->snapshot != UINT32_MAX) {
        bt_engine_snapshot_write(engine, t->snapshot, m->layer, m->offset, m->data.size,
                                 m->data.data);
    }
    put(w, t, BT_TRANSFER_CLIENT_ON_STORED, NULL);
    bt_transfer_receipt_enter_state(&t->receipt, m, frame);
    bt_handoff_send_credit(w, t);
}

/* ---- frames of a stream ---- */

/* Rows below the position of a CHUNK count. */
static void advance(bt_client_worker *w, bt_client_transfer *t, const bt_wire_chunk *m)
{
    const double told = (double)m->compute_us / 1000, most = bt_clock_ms() - t->sent_ms;
    bt_link_stats link;
    bt_link_stats_get(w->link, &link);
    t->compute_ms = told < most ? told : most;
    (void)pthread_mutex_lock(&w->owner->lock);
    t->prompt->complete = t->receipt.complete;
    bt_handoff_stats_load(w, &link);
    (void)pthread_mutex_unlock(&w->owner->lock);
}

/* Of the prompts that wait for checkpoints the oldest gives way: an honest worker may be busy with
 * later prompts for as long as there are any, and this one has had the longest time. */
static void limit_pending(bt_client_worker *w)
{
    static const bt_error why = { .status = BT_E_FULL, .text = "too many wait for checkpoints" };
    bt_client_transfer *oldest = NULL;
    uint32_t n = 0;
    for (bt_client_transfer *t = w->transfers; t; t = t->next) {
        if (t->machine.state == BT_TRANSFER_CLIENT_PENDING) {
            oldest = !oldest || t->stream < oldest->stream ? t : oldest;
            n++;
        }
    }
    if (n > PENDING_MAX) {
        bt_log(BT_LOG_DEBUG, "checkpoints_given_up", "worker=%s stream=%u received=%u of=%u",
               w->address, oldest->stream, oldest->machine.checkpoint,
               oldest->machine.n_checkpoints);
        put(w, oldest, BT_TRANSFER_CLIENT_ON_CROWDED, &why);
    }
}

/* Says of a frame that does not hold, or ends the stream, what there is to say. */
static void explain(const bt_client_transfer *t, const bt_frame *frame, bt_error *err)
{
    const bt_transfer_frame kind = bt_transfer_incoming_kind(frame);
    if (kind == BT_TRANSFER_FRAME_ERROR) {
        (void)bt_transfer_incoming_error(frame, "", err);
    } else if (kind >= BT_TRANSFER_FRAME_CANCELLED) {
        (void)bt_fail(err, BT_E_PROTOCOL, "unexpected %s%s", bt_wire_type_name(frame->type),
                      t->machine.state == BT_TRANSFER_CLIENT_PENDING ? " behind COMMIT"
                                                                     : " on a stream");
    }
}

/* The position whose state comes now. */
static uint32_t state_position(const bt_client_transfer *t)
{
    return t->machine.state == BT_TRANSFER_CLIENT_PENDING
            ? t->prompt->checkpoints[t->machine.checkpoint] : t->prompt->end;
}

static bt_status take_stream_frame(bt_client_worker *w, bt_client_transfer *t,
                                   const bt_frame *frame, bt_error *err)
{
    const bt_transfer_client_state was = t->machine.state;
    bt_transfer_message m = { 0 };
    bool holds = false;
    *err = (bt_error){ .status = BT_OK };
    if (was == BT_TRANSFER_CLIENT_SENT || was == BT_TRANSFER_CLIENT_PENDING) {
        holds = bt_transfer_incoming_read(&t->machine, &t->receipt, state_position(t), frame, &m,
                                          err) == BT_OK;
        explain(t, frame, err);
    }
    const uint32_t todo = bt_transfer_client_frame(
            &t->machine, bt_transfer_incoming_kind(frame), holds, frame->size, bt_clock_ns());
    if (was == BT_TRANSFER_CLIENT_PENDING && err->status != BT_OK) {
        bt_log(BT_LOG_WARN, "checkpoint_dropped", "worker=%s status=%s reason=%s", w->address,
               bt_status_name(err->status), err->text);
    }
    if (todo & BT_TRANSFER_CLIENT_DO_STORE) {
        if (frame->type == BT_WIRE_ROWS) {
            store_rows(w, t, &m.rows, frame);
        } else {
            store_state(w, t, &m.state, frame);
        }
    } else if (todo & BT_TRANSFER_CLIENT_DO_STORE_CHECKPOINT) {
        store_checkpoint(w, t, &m.state, frame);
    } else if (todo & BT_TRANSFER_CLIENT_DO_ADVANCE) {
        advance(w, t, &m.chunk);
    } else {
        bt_handoff_transfer_do(w, t, todo, err, &m.commit);
    }
    return todo & BT_TRANSFER_CLIENT_DO_DISCONNECT ? err->status : BT_OK;
}

/* ---- frames ---- */

static bt_status take_drain(bt_client_worker *w, const bt_frame *frame)
{
    bt_wire_drain m;
    bt_error err;
    char sentence[160] = "the worker is shutting down";
    if (bt_wire_drain_decode(frame->body, frame->size, &m, &err) == BT_OK && m.sentence.size > 0) {
        (void)bt_wire_text_copy(m.sentence, sentence, sizeof sentence);
    }
    bt_handoff_session_set_state(w, BT_PREFILL_DRAINING, sentence);
    w->retry_ns = 0;                   /* those that wait go elsewhere, now */
    return BT_OK;
}

/* Of a stream that has ended. */
static void count_late(bt_client_worker *w)
{
    (void)pthread_mutex_lock(&w->owner->lock);
    w->status.n_late_frames++;
    (void)pthread_mutex_unlock(&w->owner->lock);
}

/* A failure is one of the connection; a stream's own failures end the stream only. */
static bt_status take_frame(bt_client_worker *w, const bt_frame *frame, bool *ret_changed,
                            bt_error *err)
{
    if (frame->stream == 0) {
        return frame->type == BT_WIRE_DRAIN   ? take_drain(w, frame)
               : frame->type == BT_WIRE_ERROR ? bt_transfer_incoming_error(
                                                frame, "the worker gave up the connection: ", err)
                                              : bt_fail(err, BT_E_PROTOCOL, "unexpected %s from "
                                                        "the worker",
                                                        bt_wire_type_name(frame->type));
    }
    bt_client_transfer *t = bt_handoff_transfer_find(w, frame->stream);
    if (t) {
        const bt_transfer_client_state was = t->machine.state;
        const bt_status s = take_stream_frame(w, t, frame, err);
        *ret_changed = t->machine.state != was;
        return s;
    }
    if (frame->stream >= w->stream_next) {
        return bt_fail(err, BT_E_PROTOCOL, "%s on stream %u, which was never opened",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    if (frame->type != BT_WIRE_CANCELLED) {
        count_late(w);
    }
    return BT_OK;
}

/* ---- what is due ---- */

/* Takes what others have left: new prompts, reasons to give some up, and whether the worker is to
 * get any (else *why). How patient we are depends on what they and its last word say. */
static void take_mail(bt_client_worker *w, bt_error *why)
{
    bt_link_stats link;
    bt_link_stats_get(w->link, &link);
    (void)pthread_mutex_lock(&w->owner->lock);
    bt_client_transfer **end = &w->transfers, *reversed = NULL, *t;
    while ((t = w->inbox)) {
        w->inbox = t->next;
        t->next = reversed;
        reversed = t;
    }
    while (*end) {
        end = &(*end)->next;
    }
    *end = reversed;
    bt_handoff_stats_load(w, &link);
    w->sends = w->status.phase == BT_PREFILL_READY;
    w->drains = w->status.phase == BT_PREFILL_DRAINING;
    (void)bt_fail(why, BT_E_CLOSED, "the worker takes no more prompts: %.280s", w->status.reason);
    for (t = w->transfers; t; t = t->next) {
        t->reason = t->cancel;
        if (t->prompt && t->machine.state == BT_TRANSFER_CLIENT_SENT) {
            bt_handoff_stats_patience(w, t, &link.peer_load);
        }
    }
    (void)pthread_mutex_unlock(&w->owner->lock);
}

static void tick(bt_client_worker *w, bt_client_transfer *t)
{
    const uint64_t now = bt_clock_ns();
    bt_error why;
    (void)bt_fail(&why, BT_E_TIMEOUT, "no rows for %.1f s",
                  (double)(now - t->machine.frame_ns) / 1e9);
    while (bt_transfer_client_deadline(&t->machine) <= now) {
        bt_handoff_transfer_do(w, t, bt_transfer_client_tick(&t->machine, now), &why, NULL);
    }
}

/* A transfer has come to another state: there may be a slot. */
static void settle(bt_client_worker *w)
{
    limit_pending(w);
    bt_handoff_send_waiting(w);
    bt_handoff_transfers_reap(w);
}

/* One transfer, between two frames. */
static void see_to(bt_client_worker *w, bt_client_transfer *t, const bt_error *drains)
{
    if (t->reason != BT_CLIENT_KEPT) {
        put(w, t, BT_TRANSFER_CLIENT_ON_CANCEL, NULL);
    }
    if (drains) {
        put(w, t, BT_TRANSFER_CLIENT_ON_DRAINING, drains);
    }
    tick(w, t);
    bt_handoff_send_credit(w, t);
}

/* Somebody has woken the link, or something is due. */
static void see_to_all(bt_client_worker *w)
{
    bt_error why;
    take_mail(w, &why);
    w->retry_ns = BT_NEVER_NS;
    for (bt_client_transfer *t = w->transfers, *next; t; t = next) {
        next = t->next;
        see_to(w, t, w->drains ? &why : NULL);
    }
    settle(w);
}

static uint64_t next_deadline(const bt_client_worker *w)
{
    uint64_t next = w->retry_ns;
    for (const bt_client_transfer *t = w->transfers; t; t = t->next) {
        const uint64_t at = bt_transfer_client_deadline(&t->machine);
        next = at < next ? at : next;
    }
    return next;
}

/* Off the list, and the last prompt is done. */
static bool may_leave(bt_client_worker *w)
{
    (void)pthread_mutex_lock(&w->owner->lock);
    bool leave = w->leaving && !w->inbox;
    for (const bt_client_transfer *t = w->transfers; t; t = t->next) {
        leave &= t->shown > BT_TRANSFER_CLIENT_SENT;
    }
    (void)pthread_mutex_unlock(&w->owner->lock);
    return leave;
}

/* Until the connection ends; *err says how. */
static void serve(bt_client_worker *w, bt_link *link, bt_error *err)
{
    see_to_all(w);
    while (!may_leave(w)) {
        bool changed = false;
        do {                           /* as long as there are frames and nothing else to do */
            bt_frame frame;
            const bt_status s = bt_link_receive(link, next_deadline(w), &frame, err);
            if (s == BT_OK && take_frame(w, &frame, &changed, err) != BT_OK) {
                return;
            }
            if (s != BT_OK && s != BT_E_AGAIN) {
                return;
            }
            if (changed) {
                settle(w);
            }
            if (s == BT_E_AGAIN || bt_clock_ns() >= next_deadline(w)) {
                see_to_all(w);
                changed = true;
            }
        } while (!changed);
    }
    (void)bt_fail(err, BT_E_CLOSED, "removed from the list of workers");
}

/* ---- the end of a connection ---- */

/* Lock held. A worker that has said that it shuts down closes the connection when its prompts are
 * done, or have had their time. */
static void explain_drain(const bt_client_worker *w, bt_error *why)
{
    if (why->status == BT_E_LOST) {
        const bt_error end = *why;
        (void)bt_fail(why, BT_E_LOST, "%.120s%s: %.200s", w->status.reason,
                      w->transfers ? " (prompts have as long as its --drain-ms says)" : "",
                      end.text);
    }
}

/* Those that the engine has given up are no failures of the worker. */
static void end_all(bt_client_worker *w, const bt_error *why)
{
    bt_error drains;
    take_mail(w, &drains);
    for (bt_client_transfer *t = w->transfers, *next; t; t = next) {
        next = t->next;
        if (t->reason != BT_CLIENT_KEPT) {
            put(w, t, BT_TRANSFER_CLIENT_ON_CANCEL, NULL);
        }
        put(w, t, BT_TRANSFER_CLIENT_ON_LOST, why);
    }
    bt_handoff_transfers_reap(w);
}

void bt_handoff_session_run(bt_client_worker *w, bt_link *link, bt_error *err)
{
    bt_prefill *p = w->owner;
    w->retry_ns = BT_NEVER_NS;
    serve(w, link, err);
    bt_error why = *err;
    (void)pthread_mutex_lock(&p->lock);
    const bool drained = w->status.phase == BT_PREFILL_DRAINING, quiet = w->leaving || p->stopping;
    if (drained && !quiet) {
        explain_drain(w, &why);
    }
    if (p->stopping) {
        (void)bt_fail(&why, BT_E_CLOSED, "the server is shutting down");
    }
    w->status.phase = BT_PREFILL_LOST; /* from here on nobody gives it a prompt */
    w->status.n_lost += !drained && !p->stopping;
    w->status.n_corrupt += why.status == BT_E_PROTOCOL;
    (void)pthread_mutex_unlock(&p->lock);
    if (!quiet) {
        bt_handoff_session_set_state(w, BT_PREFILL_LOST, why.text);
    }
    end_all(w, &why);
    bt_link_close(link, why.text);
    *err = why;
}
