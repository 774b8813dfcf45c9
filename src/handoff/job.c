/* handoff/job.c - one prompt on one worker (docs/handoff.md, "A prompt, on the server"): its life,
 * and sending it.
 *
 *   waiting --slot free--> sent --COMMIT holds--> committed
 *      |                    |---cancel----------> cancelled
 *      '------failure-------'---anything else---> next worker, or abandoned
 */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/job_state.h"
#include "handoff/job_trace.h"
#include "base/say.h"

/* ---- life ---- */

bt_handoff_job *bt_handoff_job_create(const bt_prefill_job *job, const bt_prefill_report *report,
                                      double hedge_ms)
{
    bt_handoff_job *j = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *j);
    uint32_t *tokens = bt_alloc_zero(BT_MEM_handoff, job->position_end, sizeof *tokens);
    if (!j || !tokens) {
        bt_free(j);
        bt_free(tokens);
        return NULL;
    }
    memcpy(tokens, job->tokens, job->position_end * sizeof *tokens);
    j->tokens = tokens;
    j->request = job->request;
    bt_handoff_request_ref(j->request);
    j->ticket = job->ticket;
    j->first = job->position_first;
    j->end = job->position_end;
    j->complete = job->position_first;
    bt_handoff_job_set_borders(j, job);
    j->policy_fail = job->policy == BT_POLICY_FAIL;
    j->tenant = bt_handoff_job_tenant(job);
    j->hedge_ms = hedge_ms;
    j->start_ms = bt_clock_ms();
    j->report = *report;
    return j;
}

/* A prompt that shall not use the cache is a tenant of its own, whom the worker takes as such; also
 * for one that does not know the bit, as tickets are not used twice. */
uint64_t bt_handoff_job_tenant(const bt_prefill_job *job)
{
    return job->no_cache ? BT_WIRE_TENANT_ALONE | job->ticket
                         : job->cache_key & ~BT_WIRE_TENANT_ALONE;
}

void bt_handoff_job_destroy(bt_handoff_job *job)
{
    if (job) {
        bt_transfer_receipt_close(&job->ledger);
        bt_handoff_request_unref(job->request);
        bt_free(job->tokens);
        bt_free(job);
    }
}

bt_handoff_job *bt_handoff_job_find(bt_handoff_peer *peer, uint32_t stream)
{
    bt_handoff_job *j = peer->jobs;
    while (j && !(j->sent && j->stream == stream)) {
        j = j->next;
    }
    return j;
}

/* Lock held. */
void bt_handoff_job_take_off(bt_handoff_peer *peer, bt_handoff_job *job)
{
    bt_handoff_job **at = &peer->jobs;
    while (*at != job) {
        BT_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = job->next;
    job->next = NULL;
    peer->left_ms = bt_clock_ms();
}

/* ---- sending ---- */

/* Twice what the path holds, so that the worker never waits for CREDIT that is on its way. */
static uint64_t window_of(const bt_handoff_peer *peer)
{
    const bt_prefill *p = peer->owner;
    if (p->options.window_bytes > 0) {
        return p->options.window_bytes;
    }
    bt_link_stats link;
    bt_link_stats_get(peer->link, &link);
    const double rate = peer->bytes_per_ms > 0 ? peer->bytes_per_ms : peer->least_bytes_per_ms;
    const double path = 2 * rate * link.round_trip_ms_min;
    return path > BT_HANDOFF_WINDOW_MAX   ? BT_HANDOFF_WINDOW_MAX
           : path > BT_HANDOFF_WINDOW_MIN ? (uint64_t)path
                                          : BT_HANDOFF_WINDOW_MIN;
}

static bt_status send_tokens(bt_link *link, const bt_handoff_job *job, bt_error *err)
{
    const uint32_t n_max = BT_WIRE_TOKENS_PER_FRAME_MAX;
    const uint32_t n_most = job->end < n_max ? job->end : n_max;
    uint8_t *ids = bt_alloc(BT_MEM_handoff, (size_t)n_most * 4);
    const size_t room = (size_t)n_most * 4 + 64;
    uint8_t *body = bt_alloc(BT_MEM_handoff, room);
    bt_status s = ids && body ? BT_OK : bt_fail(err, BT_E_NOMEM, "no memory to send a prompt");

    for (uint32_t at = 0; s == BT_OK && at < job->end; at += n_max) {
        const uint32_t n = job->end - at < n_max ? job->end - at : n_max;
        for (uint32_t i = 0; i < n; i++) {
            bt_put_le32(ids + (size_t)i * 4, job->tokens[at + i]);
        }
        const bt_wire_tokens m = { .offset = at, .ids = { .data = ids, .n = n } };
        size_t size;
        s = bt_wire_tokens_encode(&m, body, room, &size, err);
        if (s == BT_OK) {
            s = bt_link_send(link, BT_WIRE_TOKENS, job->stream, body, size, err);
        }
    }
    bt_free(ids);
    bt_free(body);
    return s;
}

void bt_handoff_job_send_cancel(bt_handoff_peer *peer, uint32_t stream, bt_status why)
{
    const bt_wire_cancel m = { .status = (uint32_t)why };
    uint8_t body[16];
    size_t size;
    bt_error err;
    if (bt_wire_cancel_encode(&m, body, sizeof body, &size, &err) == BT_OK && peer->link) {
        /* Should even this find no room, the connection is of no use any more. */
        if (bt_link_send(peer->link, BT_WIRE_CANCEL, stream, body, size, &err) == BT_E_FULL) {
            bt_link_close(peer->link, "the worker takes no more control frames");
        }
    }
}

/* Lock held. The job becomes `sent`, or stays as it was and *err says why. */
static bt_status send_job(bt_handoff_peer *peer, bt_handoff_job *job, bt_error *err)
{
    uint64_t nonce = 0;
    if (bt_random_u64(&nonce) != BT_OK || nonce == 0) {
        return bt_fail(err, BT_E_IO, "the system gives no random numbers");
    }
    const uint32_t stream = peer->stream_next;
    uint8_t borders[4 * BT_WIRE_BORDERS_MAX];
    for (uint32_t i = 0; i < job->n_borders; i++) {
        bt_put_le32(borders + 4 * i, job->borders[i]);
    }
    bt_link_stats link;
    bt_link_stats_get(peer->link, &link);
    const bt_wire_prefill asked = {
        .nonce = nonce,
        .epoch = peer->epoch,
        .n_tokens = job->end,
        .position_first = job->complete,
        .position_end = job->end,
        .chunk_tokens = peer->owner->options.n_prefill_chunk,
        .credit = window_of(peer),
        .codec = peer->owner->options.codec,
        .order = peer->owner->options.order,
        .link_rate = (uint64_t)(1000 * link.goodput_bytes_per_ms),
        .borders = { .data = borders, .n = job->n_borders },
        .tenant = job->tenant,
    };
    uint8_t body[128 + sizeof borders];
    size_t size;
    BT_TRY(bt_wire_prefill_encode(&asked, body, sizeof body, &size, err));
    BT_TRY(bt_transfer_receipt_open(&job->ledger, &peer->owner->form, peer->owner->state_bytes,
                                   stream, &asked, err));
    bt_status s = bt_link_send(peer->link, BT_WIRE_PREFILL, stream, body, size, err);
    if (s != BT_OK) {
        bt_transfer_receipt_close(&job->ledger);
        return s;
    }
    peer->stream_next++;
    job->stream = stream;
    s = send_tokens(peer->link, job, err);
    if (s != BT_OK) {
        bt_transfer_receipt_close(&job->ledger);
        bt_handoff_job_send_cancel(peer, stream, s);
        return s;
    }
    job->asked = asked;
    job->asked.borders = (bt_wire_ids){ 0 };
    job->sent = true;
    job->credit_left = asked.credit;
    job->credit_owed = 0;
    job->rows_ms = job->first_bytes = 0;
    job->n_marks = 0;
    job->told_compute_ms = 0;
    job->over = false;
    job->sent_ms = job->news_ms = bt_clock_ms();
    job->waited_ms += job->sent_ms - job->given_ms;
    bt_handoff_trace_sent(peer, job);
    return BT_OK;
}

/* Lock held. The prompt has just been sent. Of prompts that share a worker nobody knows what each
 * of them costs. */
static void note_company(bt_handoff_peer *peer, bt_handoff_job *job)
{
    job->alone = peer->others_prompts == 0;
    for (bt_handoff_job *j = peer->jobs; j; j = j->next) {
        if (j != job && j->sent) {
            j->alone = job->alone = false;
        }
    }
}

/* Which of those that wait goes first: as in the engine, the one with the fewest tokens left, less
 * what could have been computed while it waited. So a short prompt overtakes a long one, and a long
 * one waits at most for as much work as it is itself. */
static double urgency(const bt_handoff_peer *peer, const bt_handoff_job *job, double now_ms)
{
    const double rate = bt_cost_fit_rate(&peer->compute, 512);
    return (now_ms - job->start_ms) * (rate > 0 ? rate : 1) - bt_handoff_job_left(job);
}

static bt_handoff_job *next_to_send(const bt_handoff_peer *peer)
{
    const double now = bt_clock_ms();
    bt_handoff_job *best = NULL;
    for (bt_handoff_job *j = peer->jobs; j; j = j->next) {
        if (!j->sent && !j->cancelled && j->send_status == BT_OK &&
            (!best || urgency(peer, j, now) > urgency(peer, best, now))) {
            best = j;
        }
    }
    return best;
}

enum { PLACES_PART = 4 };              /* of a slot: prompts there, those given up among them */

/* Whether there is a slot for it. The worker offers as many places more for prompts that are much
 * shorter than all it has, so that those never wait for a long one to end; who gave a number of
 * prompts gets that number. Those that were given up take a place there, too, but not at the cost
 * of the next one: on a slow link the worker's last word of them comes late. */
static bool may_send(bt_handoff_peer *peer, const bt_handoff_job *job)
{
    const uint32_t n_slots = peer->status.n_slots;
    uint32_t n_sent = 0, shortest = UINT32_MAX;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        n_sent += j->sent;
        shortest = j->sent && bt_handoff_job_left(j) < shortest ? bt_handoff_job_left(j) : shortest;
    }
    const bool express = peer->owner->options.n_prefill == 0 &&
                         bt_handoff_job_left(job) <= shortest / BT_HANDOFF_EXPRESS_PART;
    const uint32_t n_max = express ? 2 * n_slots : n_slots;
    const uint32_t n_there = n_sent + bt_handoff_cancelling_count(&peer->dying, bt_clock_ms());
    return n_sent < n_max && n_there < PLACES_PART * n_slots &&
           n_there < peer->n_streams;
}

void bt_handoff_jobs_send(bt_handoff_peer *peer)
{
    while (peer->link && peer->status.state == BT_PREFILL_READY) {
        bt_handoff_job *job = next_to_send(peer);
        bt_error err;
        if (!job || !may_send(peer, job)) {
            return;
        }
        const bt_status s = send_job(peer, job, &err);
        if (s == BT_E_FULL) {
            return;                     /* tried again at the next tick */
        }
        job->send_status = s;           /* a failure is dealt with at the next tick */
        if (s == BT_OK) {
            note_company(peer, job);
        }
    }
}

void bt_handoff_job_give(bt_handoff_peer *peer, bt_handoff_job *job)
{
    bt_handoff_job **at = &peer->jobs;
    while (*at) {
        at = &(*at)->next;
    }
    *at = job;
    job->n_tries++;
    job->sent = false;
    job->send_status = BT_OK;
    job->news_ms = job->given_ms = peer->given_ms = bt_clock_ms();
    peer->n_passed = 0;
    bt_say(job->report.worker, sizeof job->report.worker, "%s", peer->address);
    bt_handoff_jobs_send(peer);
}
