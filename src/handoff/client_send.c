/* handoff/client_send.c - what a server sends of prompts: PREFILL and TOKENS once there is a slot,
 * and CREDIT. */
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/client_private.h"

/* Rows under way per prompt, at least and at most. */
#define WINDOW_MIN (16u << 20)
#define WINDOW_MAX (64u << 20)

enum {
    RETRY_MS = 50,                     /* while the queue of control frames is full */
    EXPRESS_PART = 4,                  /* a prompt so much shorter than all others needs no slot */
    PLACES_PART = 4                    /* of a slot: prompts there, cancelling ones among them */
};

/* ---- credit ---- */

void bt_handoff_send_credit(bt_client_worker *w, bt_client_transfer *t)
{
    const bt_wire_credit m = { .bytes = bt_transfer_client_credit_due(&t->machine) };
    uint8_t body[16];
    size_t n;
    bt_error err;
    if (m.bytes == 0) {
        return;
    }
    if (bt_wire_credit_encode(&m, body, sizeof body, &n, &err) == BT_OK &&
        bt_link_send(w->link, BT_WIRE_CREDIT, t->stream, body, n, &err) == BT_OK) {
        bt_transfer_client_credit_given(&t->machine, m.bytes);
    } else {
        w->retry_ns = bt_clock_ns() + (uint64_t)RETRY_MS * BT_NS_PER_MS;
    }
}

void bt_handoff_send_stored(bt_client_worker *w, bt_client_transfer *t, uint32_t frame_size,
                                uint64_t n_bytes)
{
    bt_cost_arrivals_put(&t->arrivals, (double)t->machine.frame_ns / BT_NS_PER_MS, frame_size);
    t->bytes += n_bytes;
    t->prompt->report.bytes += n_bytes;
    bt_handoff_send_credit(w, t);
}

/* ---- sending ---- */

static bt_status send_tokens(bt_link *link, const bt_client_prompt *p, uint32_t stream,
                             bt_error *err)
{
    const uint32_t n_max = BT_WIRE_TOKENS_PER_FRAME_MAX;
    const uint32_t n_most = p->end < n_max ? p->end : n_max;
    uint8_t *ids = bt_alloc(BT_MEM_handoff, (size_t)n_most * 4);
    const size_t capacity = (size_t)n_most * 4 + 64;
    uint8_t *body = bt_alloc(BT_MEM_handoff, capacity);
    bt_status s = ids && body ? BT_OK : bt_fail_nomem(err, capacity, "a prompt to send");

    for (uint32_t at = 0; s == BT_OK && at < p->end; at += n_max) {
        const uint32_t n = p->end - at < n_max ? p->end - at : n_max;
        for (uint32_t i = 0; i < n; i++) {
            bt_put_le32(ids + (size_t)i * 4, p->tokens[at + i]);
        }
        const bt_wire_tokens m = { .offset = at, .ids = { .data = ids, .n = n } };
        size_t size;
        s = bt_wire_tokens_encode(&m, body, capacity, &size, err);
        if (s == BT_OK) {
            s = bt_link_send(link, BT_WIRE_TOKENS, stream, body, size, err);
        }
    }
    bt_free(ids);
    bt_free(body);
    return s;
}

static uint64_t window_of(const bt_client_worker *w, const bt_link_stats *link)
{
    const double wish = bt_cost_link_window(&w->carries, link->round_trip_ms_min);
    return w->owner->options.window_bytes > 0 ? w->owner->options.window_bytes
           : wish > WINDOW_MAX                ? WINDOW_MAX
           : wish > WINDOW_MIN                ? (uint64_t)wish
                                              : WINDOW_MIN;
}

/* PREFILL of t->asked on its stream, and the receipt for what it asks. */
static bt_status send_prefill(const bt_client_worker *w, bt_client_transfer *t, bt_error *err)
{
    const bt_client_prompt *p = t->prompt;
    uint8_t checkpoints[4 * BT_WIRE_BORDERS_MAX], body[128 + sizeof checkpoints];
    size_t size;
    bt_wire_prefill asked = t->asked;
    for (uint32_t i = 0; i < p->n_checkpoints; i++) {
        bt_put_le32(checkpoints + 4 * i, p->checkpoints[i]);
    }
    asked.borders = (bt_wire_ids){ .data = checkpoints, .n = p->n_checkpoints };
    BT_TRY(bt_wire_prefill_encode(&asked, body, sizeof body, &size, err));
    BT_TRY(bt_transfer_receipt_open(&t->receipt, &w->owner->form, w->owner->state_bytes, t->stream,
                                   &asked, err));
    return bt_link_send(w->link, BT_WIRE_PREFILL, t->stream, body, size, err);
}

/* All of it is queued, or the worker has nothing of it. */
static bt_status queue_prompt(bt_client_worker *w, bt_client_transfer *t, bt_error *err)
{
    const bt_prefill_options *o = &w->owner->options;
    bt_link_stats link;
    uint64_t nonce = 0;
    if (bt_random_u64(&nonce) != BT_OK || nonce == 0) {
        return bt_fail(err, BT_E_IO, "the system gives no random numbers");
    }
    bt_link_stats_get(w->link, &link);
    t->asked = (bt_wire_prefill){
        .nonce = nonce, .epoch = w->epoch, .n_tokens = t->prompt->end,
        .position_first = t->prompt->complete, .position_end = t->prompt->end,
        .chunk_tokens = o->n_prefill_chunk, .credit = window_of(w, &link), .codec = o->codec,
        .order = o->order, .link_rate = (uint64_t)(1000 * link.goodput_bytes_per_ms),
        .tenant = t->prompt->tenant,
    };
    t->stream = w->stream_next;
    bt_status s = send_prefill(w, t, err);
    if (s == BT_OK) {
        w->stream_next++;
        s = send_tokens(w->link, t->prompt, t->stream, err);
        if (s != BT_OK) {
            bt_handoff_transfer_send_cancel(w, t->stream, s);
        }
    }
    if (s != BT_OK) {
        bt_transfer_receipt_close(&t->receipt);
        t->stream = 0;
    }
    return s;
}

static void draw_sent(const bt_client_worker *w, const bt_client_prompt *prompt)
{
    bt_timeline *line = w->owner->timeline;
    const uint64_t lane = bt_handoff_prompt_lane(prompt);
    const unsigned long long ticket = prompt->ticket;
    bt_timeline_name_lane(line, lane, "prompt %llu", ticket);
    bt_timeline_name_lane(line, lane + 1, "prompt %llu: rows put in place", ticket);
    bt_timeline_moment(line, lane, "sent", w->address);
}

/* The prompt has just been sent. Of prompts that share a worker nobody knows what each costs. */
static void posted(bt_client_worker *w, bt_client_transfer *t, double sent_ms)
{
    bt_link_stats link;
    bt_link_stats_get(w->link, &link);
    t->sent_ms = sent_ms;
    t->prompt->waited_ms += t->sent_ms - t->given_ms;
    (void)bt_transfer_client_posted(&t->machine, t->asked.credit, bt_clock_ns());
    (void)pthread_mutex_lock(&w->owner->lock);
    t->alone = w->others_prompts == 0;
    for (bt_client_transfer *u = w->transfers; u; u = u->next) {
        if (u != t && u->machine.state == BT_TRANSFER_CLIENT_SENT) {
            u->alone = t->alone = false;
        }
    }
    bt_handoff_stats_patience(w, t, &link.peer_load);
    t->shown = t->machine.state;
    (void)pthread_mutex_unlock(&w->owner->lock);
    draw_sent(w, t->prompt);
}

/* Sends one that waits, or ends it here. BT_E_FULL: not now. */
static bt_status send_one(bt_client_worker *w, bt_client_transfer *t)
{
    bt_error err, why;
    const double sent_ms = bt_clock_ms();      /* the worker may begin before all is queued */
    const bt_status s = queue_prompt(w, t, &err);
    if (s == BT_OK) {
        posted(w, t, sent_ms);
    } else if (s == BT_E_FULL) {
        w->retry_ns = bt_clock_ns() + (uint64_t)RETRY_MS * BT_NS_PER_MS;
    } else {
        const bt_transfer_client_input input = BT_TRANSFER_CLIENT_ON_UNSENDABLE;
        (void)bt_fail(&why, s, "the prompt could not be sent: %.280s", err.text);
        bt_handoff_transfer_do(w, t, bt_transfer_client_put(&t->machine, input, bt_clock_ns()),
                               &why, NULL);
    }
    return s;
}

/* ---- slots ---- */

/* Which of those that wait goes first: as in the engine, the one with the fewest tokens left, less
 * what could have been computed while it waited. So a short prompt overtakes a long one, and a long
 * one waits at most for as much work as it is itself. */
static double urgency(const bt_client_worker *w, const bt_client_transfer *t, double now_ms)
{
    const double rate = bt_cost_fit_rate(&w->compute, 512);
    return (now_ms - t->prompt->start_ms) * (rate > 0 ? rate : 1) -
           bt_handoff_stats_left(t->prompt);
}

static bt_client_transfer *next_to_send(const bt_client_worker *w)
{
    const double now = bt_clock_ms();
    bt_client_transfer *best = NULL;
    for (bt_client_transfer *t = w->transfers; t; t = t->next) {
        if (t->machine.state == BT_TRANSFER_CLIENT_WAITING &&
            (!best || urgency(w, t, now) > urgency(w, best, now))) {
            best = t;
        }
    }
    return best;
}

/* Whether there is a slot for it. The worker offers as many places more for prompts that are much
 * shorter than all it has, so that those never wait for a long one to end; who gave a number of
 * prompts gets that number. Cancelling ones take a place there, too, but not at the cost of the
 * next one: on a slow link the worker's last word of them comes late. */
static bool may_send(const bt_client_worker *w, const bt_client_transfer *next)
{
    const uint64_t n_slots = w->status.n_slots;
    uint64_t n_sent = 0, n_there = 0;
    uint32_t shortest = UINT32_MAX;
    for (const bt_client_transfer *t = w->transfers; t; t = t->next) {
        const uint32_t left = bt_handoff_stats_left(t->prompt);
        const bool sent = t->machine.state == BT_TRANSFER_CLIENT_SENT;
        n_sent += sent;
        n_there += sent || t->machine.state == BT_TRANSFER_CLIENT_CANCELLING;
        shortest = sent && left < shortest ? left : shortest;
    }
    const bool express = w->owner->options.n_prefill == 0 &&
                         bt_handoff_stats_left(next->prompt) <= shortest / EXPRESS_PART;
    return n_sent < (express ? 2 * n_slots : n_slots) && n_there < PLACES_PART * n_slots &&
           n_there < w->n_streams;
}

void bt_handoff_send_waiting(bt_client_worker *w)
{
    bt_client_transfer *t;
    while (w->sends && (t = next_to_send(w)) && may_send(w, t)) {
        if (send_one(w, t) == BT_E_FULL) {
            return;
        }
    }
}
