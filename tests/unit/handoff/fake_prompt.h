/* tests/unit/handoff/fake_prompt.h - prompts of a server with a fake engine: offered as
 * the engine would, awaited, and compared row by row. */
#ifndef FAKE_PROMPT_H
#define FAKE_PROMPT_H

#include "unit/handoff/fake_engine.h"

/* ---- driving a server's engine ---- */

/* Offers a prompt as the engine would. Returns the ticket, or -1 if it stays here. */
static inline int64_t fake_start(bt_engine *e, const uint32_t *tokens, uint32_t n_tokens,
                                 uint32_t first, bt_prefill_where where, bt_prefill_policy policy,
                                 bt_prefill_report *report)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t ticket = e->n_tickets++;
    if (ticket >= FAKE_TICKETS) {
        abort();
    }
    fake_ticket *t = &e->tickets[ticket];
    t->used = true;
    t->first = first;
    t->end = n_tokens - 1;
    for (uint32_t l = 0; l < FAKE_LAYERS; l++) {
        const uint64_t row = e->layers[l].k_row_bytes + e->layers[l].v_row_bytes;
        t->rows[l] = calloc(FAKE_CTX, (size_t)row + 1);
    }
    t->state = calloc(1, (size_t)e->state_bytes + 1);
    t->start_ms = bt_clock_ms();
    pthread_mutex_unlock(&e->lock);
    const bt_handoff_wish wish = { .where = where, .policy = policy, .has_workers = true };
    bt_error err;
    if (bt_handoff_request_create(&wish, &t->request, &err) != BT_OK) {
        *report = (bt_prefill_report){ .fallback = true };
        return -1;                         /* the request is not even submitted */
    }
    const bt_external_offer offer = { .ticket = ticket, .tag = t->request, .tokens = tokens,
                                      .n_tokens = n_tokens, .position_first = first,
                                      .position_end = n_tokens - 1, .checkpoints = e->borders,
                                      .n_checkpoints = e->n_borders };
    const bool taken = e->external.offer(e->external.context, &offer, &err) == BT_EXTERNAL_TAKEN;
    const bt_request_stats stats = { .n_prompt = n_tokens };
    bt_handoff_request_report(t->request, &stats, report);
    return taken ? (int64_t)ticket : -1;
}

static inline void fake_cancel(bt_engine *e, int64_t ticket, bt_external_reason reason)
{
    e->external.cancel(e->external.context, (uint64_t)ticket, e->tickets[ticket].request, reason);
}

static inline bool fake_wait(bt_engine *e, int64_t ticket, uint32_t timeout_ms)
{
    const double until = bt_clock_ms() + timeout_ms;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        const bool done = e->tickets[ticket].committed || e->tickets[ticket].abandoned;
        pthread_mutex_unlock(&e->lock);
        if (done || bt_clock_ms() > until) {
            return done;
        }
        bt_clock_sleep_ms(1);
    }
}

/* True if every row of [first, end) is there and is what it must be. */
static inline bool fake_rows_right(const bt_engine *e, int64_t ticket, const uint32_t *tokens,
                                   uint32_t first, uint32_t end)
{
    static _Thread_local uint8_t prefix[FAKE_CTX][8];
    uint8_t k[512], v[512];
    const fake_ticket *t = &e->tickets[ticket];
    fake_prefixes(tokens, end, prefix);
    for (uint32_t l = 0; l < FAKE_LAYERS; l++) {
        const size_t kb = (size_t)e->layers[l].k_row_bytes, vb = (size_t)e->layers[l].v_row_bytes;
        for (uint32_t i = first; i < end && kb > 0; i++) {
            const uint8_t *row = t->rows[l] + i * (kb + vb);
            fake_row(prefix[i], l, 0, k, kb);
            fake_row(prefix[i], l, 1, v, vb);
            if (!t->have[l][i] || memcmp(row, k, kb) != 0 || memcmp(row + kb, v, vb) != 0) {
                return false;
            }
        }
    }
    return true;
}

/* How many are being written, and how many are kept. */
static inline uint32_t fake_snapshots(bt_engine *e, bool open)
{
    uint32_t n = 0;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < FAKE_SNAPSHOTS; i++) {
        n += open ? e->snapshots[i].open : !e->snapshots[i].open && e->snapshots[i].at > 0;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

#endif
