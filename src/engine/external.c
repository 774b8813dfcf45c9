/* Tickets: a sequence whose rows somebody else computes. Its pages are reserved before the ticket
 * exists and stay until it is closed and no writer is inside, so rows go straight into pages and no
 * lock is held while they are copied: a writer is counted in, copies, and is counted out.
 *
 * A ticket's place in the table is its sequence's place; its id also carries a serial number, so an
 * old id finds nothing. Which rows have come is kept bit by bit: a commit counts only when none is
 * missing, and an abandoned ticket keeps only what is really there.
 *
 * A recurrent state comes into a slot of its own: the sequence's stays as it was, and gives way by
 * commit only. It is written a second time on the way, as a snapshot for whoever asks the same
 * again: that costs the reader little, and the engine's thread would have to stop for it. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/load.h"
#include "engine/private.h"
#include "engine/state.h"

enum { PLACE_BITS = 8, WORD = 64 };

_Static_assert(BT_PARALLEL_MAX <= 1u << PLACE_BITS, "a place fits a ticket's id");

static bool keeps_rows(const bt_engine *e, uint32_t layer)
{
    const bt_kv_layer *y = &bt_kv_pool_layout(e->memory.pages)->layers[layer];
    return y->k_dim > 0 || y->v_dim > 0;
}

/* The lock is held. The open ticket with this id, or NULL. */
static bt_ticket *find_open(bt_engine *e, uint64_t id)
{
    const uint64_t place = id & ((1u << PLACE_BITS) - 1);
    if (place >= e->options.n_parallel) {
        return NULL;
    }
    bt_ticket *t = &e->tickets[place];
    return t->id == id && t->state == BT_TICKET_OPEN ? t : NULL;
}

/* ---- rows, from other threads ---- */

/* Bits [first, end) of a layer; gives how many were not set before. */
static uint64_t mark(uint64_t *words, uint32_t first, uint32_t end)
{
    uint64_t n_new = 0;
    for (uint32_t at = first; at < end;) {
        const uint32_t bit = at % WORD;
        const uint32_t n = end - at < WORD - bit ? end - at : WORD - bit;
        const uint64_t mask = (n == WORD ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) << bit;
        uint64_t *w = &words[at / WORD];
        n_new += (uint64_t)__builtin_popcountll(mask & ~*w);
        *w |= mask;
        at += n;
    }
    return n_new;
}

bt_status bt_engine_external_import_rows(bt_engine *e, uint64_t ticket, uint32_t layer,
                                         uint32_t position, uint32_t n, const void *k,
                                         const void *v)
{
    pthread_mutex_lock(&e->import_lock);
    bt_ticket *t = find_open(e, ticket);
    if (!t) {
        pthread_mutex_unlock(&e->import_lock);
        return BT_E_CANCELLED;
    }
    if (layer >= bt_kv_pool_layout(e->memory.pages)->n_layers || position < t->first ||
        position > t->end || n > t->end - position) {
        pthread_mutex_unlock(&e->import_lock);
        return BT_E_BADINPUT;
    }
    const uint32_t *pages = t->lease.pages;
    t->n_writers++;
    pthread_mutex_unlock(&e->import_lock);

    bt_kv_rows_import(e->memory.pages, pages, layer, position, n, k, v);

    pthread_mutex_lock(&e->import_lock);
    if (t->have && keeps_rows(e, layer)) {
        uint64_t *words = t->have + (size_t)layer * t->words;
        t->n_missing -= mark(words, position - t->first, position + n - t->first);
    }
    t->n_writers--;
    const bool open = t->state == BT_TICKET_OPEN && t->id == ticket;
    pthread_cond_broadcast(&e->writers_left);
    pthread_mutex_unlock(&e->import_lock);
    return open ? BT_OK : BT_E_CANCELLED;
}

/* The lock is held. Whether these bytes are the next of their layer, or its first once more:
 * another writer may go on with the prompt. */
static bool is_next_part(const bt_engine *e, const bt_ticket *t, uint32_t layer, uint64_t offset,
                         uint64_t size)
{
    if (!e->memory.states || layer >= bt_kv_state_pool_layout(e->memory.states)->n_layers) {
        return false;
    }
    const uint64_t total = bt_kv_state_layer_bytes(e->memory.states, layer);
    return size > 0 && (offset == t->state_have[layer] || offset == 0) && size <= total &&
           offset <= total - size;
}

bt_status bt_engine_external_import_state(bt_engine *e, uint64_t ticket, uint32_t layer,
                                          uint64_t offset, uint64_t size, const void *data)
{
    pthread_mutex_lock(&e->import_lock);
    bt_ticket *t = find_open(e, ticket);
    if (!t || !is_next_part(e, t, layer, offset, size)) {
        pthread_mutex_unlock(&e->import_lock);
        return t ? BT_E_BADINPUT : BT_E_CANCELLED;
    }
    const uint32_t slot = t->lease.slot, snapshot = t->snapshot;
    t->n_writers++;
    pthread_mutex_unlock(&e->import_lock);

    bt_kv_state_import(e->memory.states, slot, layer, offset, size, data);
    if (snapshot != BT_NOTHING) {
        bt_kv_state_import(e->memory.states, snapshot, layer, offset, size, data);
    }

    pthread_mutex_lock(&e->import_lock);
    if (t->state_have) {
        t->n_missing += t->state_have[layer] == bt_kv_state_layer_bytes(e->memory.states, layer);
        t->state_have[layer] = offset + size;
        t->n_missing -= offset + size == bt_kv_state_layer_bytes(e->memory.states, layer);
    }
    t->n_writers--;
    const bool open = t->state == BT_TICKET_OPEN && t->id == ticket;
    pthread_cond_broadcast(&e->writers_left);
    pthread_mutex_unlock(&e->import_lock);
    return open ? BT_OK : BT_E_CANCELLED;
}

/* ---- ends, from other threads ---- */

bt_status bt_engine_external_commit(bt_engine *e, uint64_t ticket, bt_error *err)
{
    pthread_mutex_lock(&e->import_lock);
    bt_ticket *t = find_open(e, ticket);
    while (t && t->n_writers > 0) {
        pthread_cond_wait(&e->writers_left, &e->import_lock);
        t = find_open(e, ticket);
    }
    const uint64_t n_missing = t ? t->n_missing : 0;
    if (t && n_missing == 0) {
        t->state = BT_TICKET_COMMITTED;
    }
    pthread_mutex_unlock(&e->import_lock);
    if (!t) {
        return bt_fail(err, BT_E_CANCELLED, "the ticket is closed");
    }
    if (n_missing > 0) {
        return bt_fail(err, BT_E_PROTOCOL, "a prompt was committed of which %llu rows or states "
                       "had not come", (unsigned long long)n_missing);
    }
    bt_engine_wake(e);
    return BT_OK;
}

void bt_engine_external_abandon(bt_engine *e, uint64_t ticket, const bt_external_end *end)
{
    pthread_mutex_lock(&e->import_lock);
    bt_ticket *t = find_open(e, ticket);
    if (t) {
        t->state = BT_TICKET_ABANDONED;
        t->position_complete = end->position_complete;
        t->end_request = end->end_request;
        t->status = end->status;
        snprintf(t->message, sizeof t->message, "%s", end->message ? end->message : "");
    }
    pthread_mutex_unlock(&e->import_lock);
    if (t) {
        bt_engine_wake(e);
    }
}

void bt_engine_external_hedge(bt_engine *e, uint64_t ticket)
{
    pthread_mutex_lock(&e->import_lock);
    bt_ticket *t = find_open(e, ticket);
    if (t) {
        t->hedge = true;
    }
    pthread_mutex_unlock(&e->import_lock);
    if (t) {
        bt_engine_wake(e);
    }
}

/* ---- opening ---- */

static uint64_t count_missing(const bt_engine *e, uint32_t n_rows)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < bt_kv_pool_layout(e->memory.pages)->n_layers; i++) {
        n += keeps_rows(e, i) ? n_rows : 0;
        n += bt_engine_state_layer_bytes(e, i) > 0;
    }
    return n;
}

/* The pages of the request are lent; it keeps a share of those below n_done, and its slot. */
static bool lend(bt_engine *e, bt_request *r, bt_kv_lease *lent)
{
    bt_error err;
    if (bt_kv_lease_open(lent, &e->memory, r->n_tokens_max, &err) != BT_OK) {
        return false;
    }
    if (!bt_kv_lease_acquire(lent)) {
        bt_kv_lease_close(lent);
        return false;
    }
    bt_kv_lease_swap_pages(&r->lease, lent);
    bt_kv_lease_share_pages(&r->lease, lent, r->n_done);
    return true;
}

static bool open_ticket(bt_engine *e, bt_request *r, uint32_t place)
{
    const uint32_t n_layers = bt_kv_pool_layout(e->memory.pages)->n_layers;
    const uint32_t n = r->n_prompt - 1 - r->n_done;
    const uint32_t words = (n + WORD - 1) / WORD;
    uint64_t *have = bt_alloc_zero(BT_MEM_engine, (size_t)n_layers * (words + 1), sizeof *have);
    uint32_t snapshot = BT_NOTHING;
    bt_kv_lease lent;
    if (!have || !lend(e, r, &lent)) {
        bt_free(have);
        return false;
    }
    if (!e->memory.states || r->no_cache ||
        !bt_kv_snapshot_reserve(e->memory.states, &snapshot)) {
        snapshot = BT_NOTHING;
    }
    pthread_mutex_lock(&e->import_lock);
    bt_ticket *t = &e->tickets[place];
    BT_ASSERT(t->state == BT_TICKET_FREE);
    *t = (bt_ticket){ .id = ++e->ticket_serial << PLACE_BITS | place, .state = BT_TICKET_OPEN,
                      .lease = lent, .first = r->n_done, .end = r->n_prompt - 1, .have = have,
                      .words = words, .snapshot = snapshot,
                      .state_have = have + (size_t)n_layers * words,
                      .n_missing = count_missing(e, n) };
    r->ticket = t->id;
    pthread_mutex_unlock(&e->import_lock);
    return true;
}

/* Nobody writes and nobody finds it after this. */
static bt_ticket close_ticket(bt_engine *e, bt_request *r)
{
    bt_ticket *t = &e->tickets[r->ticket & ((1u << PLACE_BITS) - 1)];
    pthread_mutex_lock(&e->import_lock);
    BT_ASSERT(t->id == r->ticket && t->state != BT_TICKET_FREE);
    if (t->state == BT_TICKET_OPEN) {
        t->state = BT_TICKET_ABANDONED;
    }
    while (t->n_writers > 0) {               /* they are copying a frame: microseconds */
        pthread_cond_wait(&e->writers_left, &e->import_lock);
    }
    const bt_ticket was = *t;
    *t = (bt_ticket){ .state = BT_TICKET_FREE };
    pthread_mutex_unlock(&e->import_lock);
    r->ticket = 0;
    return was;
}

/* Of a closed ticket: the sequence goes on with what it lent, `pages` alone or its state too, and
 * the other half of each is given back. */
typedef enum { NOTHING, PAGES, PAGES_AND_STATE } used_part;

static void free_ticket(bt_engine *e, bt_request *r, bt_ticket *t, used_part used)
{
    const bool whole = used == PAGES_AND_STATE;
    if (t->snapshot != BT_NOTHING) {
        bt_kv_snapshot_publish(e->memory.states, t->snapshot, r->cache_key, r->tokens,
                               whole ? t->end : 0);
    }
    if (used != NOTHING) {
        bt_kv_lease_swap_pages(&r->lease, &t->lease);
    }
    if (whole && e->memory.states) {
        bt_kv_lease_swap_slots(&r->lease, &t->lease);
        r->snapshot_at = t->snapshot != BT_NOTHING ? t->end : r->snapshot_at;
    }
    bt_kv_lease_close(&t->lease);
    bt_free(t->have);
}

bt_external_answer bt_engine_external_offer(bt_engine *e, bt_request *r, uint32_t place,
                                            bt_error *err)
{
    if (!e->external.offer) {
        return BT_EXTERNAL_LOCAL;
    }
    const bool opened = open_ticket(e, r, place);
    uint32_t checkpoints[BT_EXTERNAL_CHECKPOINTS_MAX];
    bt_external_offer offer = {
        .ticket = r->ticket, .tag = r->tag.data, .tokens = r->tokens, .n_tokens = r->n_prompt,
        .position_first = r->n_done, .position_end = r->n_prompt - 1, .checkpoints = checkpoints,
        .n_checkpoints = bt_engine_state_planned(e, r, r->n_prompt - 1, BT_LEN(checkpoints),
                                                 checkpoints),
        .cache_key = r->cache_key,
    };
    bt_engine_load_describe(e, r, &offer);
    r->phase = BT_PHASE_EXTERNAL;
    r->offered_ms = bt_clock_ms();
    const bt_external_answer answer = e->external.offer(e->external.context, &offer, err);
    if (answer == BT_EXTERNAL_TAKEN) {
        BT_ASSERT(opened);
        return answer;
    }
    r->phase = BT_PHASE_PREFILL;
    if (opened) {
        bt_ticket was = close_ticket(e, r);
        free_ticket(e, r, &was, PAGES);
    }
    return answer;
}

/* How long it was elsewhere, and whose rows were used. */
static void note_closed(bt_request *r, bool local_first)
{
    pthread_mutex_lock(&r->ring.lock);
    r->stats.external_ms = bt_clock_ms() - r->offered_ms;
    r->stats.hedged = r->hedged;
    r->stats.local_first = local_first;
    pthread_mutex_unlock(&r->ring.lock);
}

void bt_engine_external_cancel(bt_engine *e, bt_request *r, bt_external_reason reason)
{
    const uint64_t id = r->ticket;
    bt_ticket was = close_ticket(e, r);
    free_ticket(e, r, &was, NOTHING);
    note_closed(r, reason != BT_EXTERNAL_GONE);
    e->external.cancel(e->external.context, id, r->tag.data, reason);
}

/* ---- settling ---- */

/* Rows below `limit` that have come for every layer, counted from the first. */
static uint32_t frontier(const bt_engine *e, const bt_ticket *t, uint32_t limit)
{
    uint32_t n = limit < t->first ? 0 : (limit < t->end ? limit : t->end) - t->first;
    for (uint32_t layer = 0; layer < bt_kv_pool_layout(e->memory.pages)->n_layers; layer++) {
        const uint64_t *words = t->have + (size_t)layer * t->words;
        if (!keeps_rows(e, layer)) {
            continue;
        }
        for (uint32_t w = 0; w * WORD < n; w++) {
            const uint64_t gaps = ~words[w];
            if (gaps != 0) {
                const uint32_t at = w * WORD + (uint32_t)__builtin_ctzll(gaps);
                n = at < n ? at : n;
                break;
            }
        }
    }
    return n;
}

/* What is kept was verified by whoever committed or abandoned, and is really there. */
static void settle(bt_engine *e, bt_request *r, bt_ticket *t)
{
    const bool complete = t->state == BT_TICKET_COMMITTED;
    BT_ASSERT(!complete || t->n_missing == 0);
    uint32_t n = complete     ? t->end - t->first
                 : !e->memory.states ? frontier(e, t, t->position_complete)
                              : 0;
    /* Where it is prefilled here as well: further than we are, complete or not, or given back. */
    const bool elsewhere = !r->hedged || t->first + n > r->n_done;
    n = elsewhere ? n : 0;
    free_ticket(e, r, t, !elsewhere ? NOTHING : complete ? PAGES_AND_STATE : PAGES);
    note_closed(r, !elsewhere);
    r->phase = BT_PHASE_PREFILL;
    r->n_external = n;
    r->n_done = n > 0 ? t->first + n : r->n_done;
    bt_engine_cache_enter(r);
    if (n > 0) {
        bt_engine_ring_put_progress(&r->ring, r->n_done);
    }
}

/* The prompt is prefilled here as well, in pages of its own; when there are none now, in a later
 * round. Until one side is complete nothing of it enters the prefix tree, and no answer rests on
 * rows of both. */
static void begin_hedge(bt_engine *e, bt_request *r, const bt_kv_lease *lent)
{
    const uint32_t n_full = r->n_done / BT_KV_PAGE_TOKENS;
    if (bt_engine_cache_fits(e, lent->n_pages - n_full) &&
        bt_kv_lease_extend(&r->lease, r->n_done, lent->n_pages * BT_KV_PAGE_TOKENS)) {
        r->hedged = true;
        r->phase = BT_PHASE_PREFILL;
    }
}

bool bt_engine_external_settle(bt_engine *e, bt_request *r, uint32_t place, bt_error *err)
{
    pthread_mutex_lock(&e->import_lock);
    const bool over = e->tickets[place].state != BT_TICKET_OPEN, hedge = e->tickets[place].hedge;
    pthread_mutex_unlock(&e->import_lock);
    if (!over) {
        if (hedge && !r->hedged) {
            begin_hedge(e, r, &e->tickets[place].lease);
        }
        return true;
    }
    bt_ticket was = close_ticket(e, r);
    settle(e, r, &was);
    if (was.state == BT_TICKET_ABANDONED && was.end_request) {
        (void)bt_fail(err, was.status, "%s", was.message);
        return false;
    }
    return true;
}
