/* A request becomes a sequence when there is a place for it and pages for its whole prompt; it then
 * holds one of n_parallel places until it ends. Answers take their pages as they grow, so pages may
 * run out under them: first the cache gives way, then the youngest sequence does. It goes back to
 * the queue, and what it has, prompt and answer so far, is prefilled again later; the client sees a
 * pause. The oldest keeps its pages, so that somebody always gets on. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/private.h"
#include "engine/state.h"

/* A prompt waits for another that computes the same beginning if that saves this many tokens. */
enum { FOLLOW_MIN = 2 * BT_KV_PAGE_TOKENS };

/* ---- pages ---- */

/* The tokens that are there, and the next one. */
static uint32_t positions_to_begin(const bt_request *r)
{
    return r->n_prefill < r->n_tokens_max ? r->n_prefill + 1 : r->n_prefill;
}

/* Where it can: other threads make room for checkpoints. */
static void begin_at(bt_engine *e, bt_request *r, uint32_t n)
{
    const bt_kv_name name = bt_engine_name_of(r);
    r->n_done = bt_kv_lease_restore(&r->lease, &name, n);
    r->snapshot_at = e->memory.states ? r->n_done : 0;
}

/* The match may end inside a page that others hold: where no page is left for a copy of it, the
 * sequence begins before it. */
static bool extend(bt_engine *e, bt_request *r)
{
    const uint32_t end = positions_to_begin(r);
    begin_at(e, r, r->n_done);
    while (!bt_kv_lease_extend(&r->lease, r->n_done, end)) {
        if (r->n_done % BT_KV_PAGE_TOKENS == 0) {
            return false;
        }
        begin_at(e, r, r->n_done - r->n_done % BT_KV_PAGE_TOKENS);
    }
    return true;
}

/* Shares what the cache has and takes the rest; false, with nothing held, when pages are short. */
static bool reserve(bt_engine *e, bt_request *r)
{
    if (!bt_kv_lease_acquire(&r->lease)) {
        return false;
    }
    bt_engine_cache_share(e, r);
    const uint32_t n_full = r->n_done / BT_KV_PAGE_TOKENS;
    const bool fits = bt_engine_cache_fits(e, bt_kv_pages_of(positions_to_begin(r)) - n_full) &&
                      extend(e, r);
    if (!fits) {
        bt_kv_lease_release(&r->lease);
        r->n_done = r->n_entered = 0;
    }
    return fits;
}

/* ---- admission ---- */

static uint32_t common_beginning(const bt_request *a, const bt_request *b)
{
    const uint32_t n = a->n_prompt < b->n_prompt ? a->n_prompt : b->n_prompt;
    uint32_t i = 0;
    while (i < n && a->tokens[i] == b->tokens[i]) {
        i++;
    }
    return i;
}

/* Whether another sequence is computing a beginning that this prompt could soon share. */
static bool follows_another(bt_engine *e, const bt_request *r)
{
    if (r->no_cache) {
        return false;
    }
    uint32_t known = BT_NOTHING;
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        bt_request *s = e->active[i];
        if (!s || s->no_cache || s->cache_key != r->cache_key ||
            (s->phase != BT_PHASE_PREFILL && s->phase != BT_PHASE_EXTERNAL)) {
            continue;
        }
        const uint32_t common = common_beginning(r, s) / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS;
        if (common <= s->n_done || common < FOLLOW_MIN) {
            continue;
        }
        known = known == BT_NOTHING ? bt_engine_cache_match(e, r) : known;
        if (common >= known + FOLLOW_MIN &&
            bt_engine_state_shared_up_to(e, s, common) >= known + FOLLOW_MIN) {
            return true;
        }
    }
    return false;
}

static uint32_t free_place(const bt_engine *e)
{
    uint32_t i = 0;
    while (e->active[i]) {
        i++;
    }
    BT_ASSERT(i < e->options.n_parallel);
    return i;
}

static void put_begin(bt_request *r)
{
    char *text;
    bt_token_logprob *top;
    bt_event *event = bt_engine_ring_slot(&r->ring, &text, &top);
    event->kind = BT_EVENT_BEGIN;
    bt_engine_ring_put(&r->ring);
}

static void begin(bt_engine *e, bt_request *r)
{
    const uint32_t place = free_place(e);
    e->active[place] = r;
    e->n_active++;
    r->phase = BT_PHASE_PREFILL;
    const bool answering = r->n_tokens > r->n_prompt;
    if (!answering) {
        r->n_cached = r->n_done;
        r->n_external = 0;
    }
    if (!r->begun) {
        r->begun = true;
        r->admitted_ms = bt_clock_ms();
        bt_engine_stats_begin(e, r);
        put_begin(r);
    }
    if (r->has_push && r->n_done > 0) {
        r->push.chunk_done(r->push.context, r->n_done);
    }
    if (r->n_done == r->n_prefill) {
        bt_engine_sequence_end(e, r, BT_FINISH_LENGTH, BT_OK, "");
    } else if (!answering && !r->prefill_only && r->n_done + 1 < r->n_prompt) {
        bt_error err = { .status = BT_E_LOST };
        if (bt_engine_external_offer(e, r, place, &err) == BT_EXTERNAL_REFUSED) {
            bt_engine_sequence_end(e, r, BT_FINISH_ERROR, err.status, err.text);
        }
    }
}

void bt_engine_sequences_admit(bt_engine *e)
{
    bt_request **at = &e->waiting;
    while (*at && e->n_active < e->options.n_parallel) {
        bt_request *r = *at;
        if (follows_another(e, r)) {
            at = &r->next;
            continue;
        }
        if (!reserve(e, r)) {
            return;                    /* later ones wait too, else it might wait for ever */
        }
        *at = r->next;
        r->next = NULL;
        begin(e, r);
    }
}

/* ---- when pages are short ---- */

static void leave_place(bt_engine *e, const bt_request *r)
{
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        if (e->active[i] == r) {
            e->active[i] = NULL;
            e->n_active--;
        }
    }
}

/* A prompt that is prefilled here as well as elsewhere holds pages twice: one half can go. */
static bool end_a_hedge(bt_engine *e)
{
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        if (e->active[i] && bt_engine_external_hedges(e->active[i])) {
            bt_engine_external_cancel(e, e->active[i], BT_EXTERNAL_LOCAL_ONLY);
            return true;
        }
    }
    return false;
}

/* What is given up stays in the cache for as long as there is room. */
static void keep_rows(bt_engine *e, bt_request *r)
{
    if (r->phase != BT_PHASE_EXTERNAL) {
        bt_engine_cache_enter_last(r);
        bt_engine_state_keep(e, r);
    }
}

/* Back to the queue, by age. */
static void preempt(bt_engine *e, bt_request *r)
{
    if (r->ticket != 0) {
        bt_engine_external_cancel(e, r, BT_EXTERNAL_GONE);
    }
    bt_log(BT_LOG_DEBUG, "request_preempted", "request=%llu n_prompt=%u n_predicted=%u n_done=%u",
           (unsigned long long)r->id, r->n_prompt, r->n_tokens - r->n_prompt, r->n_done);
    keep_rows(e, r);
    bt_kv_lease_release(&r->lease);
    leave_place(e, r);
    bt_engine_stats_preempted(e, r);
    r->phase = BT_PHASE_WAITING;
    r->n_prefill = r->n_tokens;
    r->n_done = r->n_entered = r->shared_at = 0;
    r->hedged = false;
    r->cursor = (bt_kv_prefix_cursor){ 0 };
    bt_request **at = &e->waiting;
    while (*at && (*at)->id < r->id) {
        at = &(*at)->next;
    }
    r->next = *at;
    *at = r;
}

/* Whose pages others get: of those whose reader is behind, else of all, the youngest by arrival.
 * By arrival and not by admission: else one that was preempted would be the youngest for ever. */
static bt_request *choose_victim(const bt_engine *e)
{
    bt_request *best = NULL;
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        bt_request *r = e->active[i];
        if (r && !r->has_push && (!best || r->waits_for_room > best->waits_for_room ||
                                  (r->waits_for_room == best->waits_for_room &&
                                   r->id > best->id))) {
            best = r;
        }
    }
    return best;
}

bool bt_engine_sequence_has_page(bt_engine *e, bt_request *r)
{
    BT_ASSERT(r->phase == BT_PHASE_DECODE);
    while (!bt_kv_lease_extend(&r->lease, r->n_done, r->n_done + 1)) {
        if (end_a_hedge(e)) {
            continue;
        }
        bt_request *victim = choose_victim(e);
        preempt(e, victim);
        if (victim == r) {
            return false;
        }
    }
    return true;
}

/* ---- the end ---- */

static void put_end(bt_request *r, bt_finish finish, int stop_index, bt_status status,
                    const char *message)
{
    char *text;
    bt_token_logprob *top;
    bt_event *event = bt_engine_ring_slot(&r->ring, &text, &top);
    event->kind = BT_EVENT_END;
    event->finish = finish;
    event->stop_index = stop_index;
    event->status = status;
    snprintf(r->message, sizeof r->message, "%s", message);
    event->message = r->message;
    const bool complete = finish == BT_FINISH_EOG || finish == BT_FINISH_LENGTH ||
                          finish == BT_FINISH_CONTEXT;
    if (r->stream && complete) {
        event->text_size = bt_text_stream_end(r->stream, text);
        event->text = text;
    }
    bt_engine_ring_put(&r->ring);
}

static void end(bt_engine *e, bt_request *r, bt_finish finish, int stop_index, bt_status status,
                const char *message)
{
    BT_ASSERT(r->phase != BT_PHASE_ENDED);
    if (r->ticket != 0) {
        bt_engine_external_cancel(e, r, BT_EXTERNAL_GONE);
    }
    if (finish != BT_FINISH_ERROR) {
        keep_rows(e, r);
    }
    leave_place(e, r);
    r->phase = BT_PHASE_ENDED;
    bt_engine_stats_finish(e, r, finish);
    /* Pages of a pushing request are exported until its release. */
    const bool keep = r->has_push && !atomic_load_explicit(&r->released, memory_order_acquire);
    if (!keep) {
        bt_kv_lease_release(&r->lease);
    }
    bt_engine_stats_publish(e);               /* who sees END also sees that it is gone */
    put_end(r, finish, stop_index, status, message);
    if (keep) {
        r->next = e->ended_pushes;
        e->ended_pushes = r;
    } else {
        bt_engine_request_unref(r);
    }
}

void bt_engine_sequence_end(bt_engine *e, bt_request *r, bt_finish finish, bt_status status,
                            const char *message)
{
    end(e, r, finish, -1, status, message);
}

void bt_engine_sequence_end_stop(bt_engine *e, bt_request *r, int stop_index)
{
    end(e, r, BT_FINISH_STOP, stop_index, BT_OK, "");
}

void bt_engine_sequences_settle(bt_engine *e)
{
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        bt_request *r = e->active[i];
        bt_error err = { 0 };
        if (r && r->ticket != 0 && !bt_engine_external_settle(e, r, i, &err)) {
            bt_engine_sequence_end(e, r, BT_FINISH_ERROR, err.status, err.text);
        }
    }
}

static bool is_cancelled(const bt_request *r)
{
    return atomic_load_explicit(&r->cancelled, memory_order_relaxed);
}

/* Ended pushes whose handles are gone; with `all`, every one. */
static void clear_ended(bt_engine *e, bool all)
{
    bt_request **at = &e->ended_pushes;
    while (*at) {
        bt_request *r = *at;
        if (all || atomic_load_explicit(&r->released, memory_order_acquire)) {
            *at = r->next;
            bt_kv_lease_release(&r->lease);
            bt_engine_request_unref(r);
        } else {
            at = &r->next;
        }
    }
}

void bt_engine_sequences_reap(bt_engine *e)
{
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        if (e->active[i] && is_cancelled(e->active[i])) {
            bt_engine_sequence_end(e, e->active[i], BT_FINISH_CANCELLED, BT_E_CANCELLED, "");
        }
    }
    bt_request **at = &e->waiting;
    while (*at) {
        bt_request *r = *at;
        if (is_cancelled(r)) {
            *at = r->next;
            bt_engine_sequence_end(e, r, BT_FINISH_CANCELLED, BT_E_CANCELLED, "");
        } else {
            at = &r->next;
        }
    }
    clear_ended(e, false);
}

void bt_engine_sequences_close(bt_engine *e)
{
    static const char why[] = "the server is shutting down";
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        if (e->active[i]) {
            bt_engine_sequence_end(e, e->active[i], BT_FINISH_ERROR, BT_E_CLOSED, why);
        }
    }
    while (e->waiting) {
        bt_request *r = e->waiting;
        e->waiting = r->next;
        bt_engine_sequence_end(e, r, BT_FINISH_ERROR, BT_E_CLOSED, why);
    }
    clear_ended(e, true);
}
