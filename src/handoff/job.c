/* handoff/job.c - one prompt on one worker (docs/handoff.md, "A prompt, on the server").
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
#include "handoff/prefill_private.h"
#include "handoff/say.h"

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
    j->ticket = job->ticket;
    j->first = job->position_first;
    j->end = job->position_end;
    j->complete = job->position_first;
    bt_handoff_job_set_borders(j, job);
    j->policy_fail = job->policy == BT_POLICY_FAIL;
    j->tenant = job->cache_key;
    j->hedge_ms = hedge_ms;
    j->start_ms = bt_clock_ms();
    j->report = *report;
    return j;
}

void bt_handoff_job_destroy(bt_handoff_job *job)
{
    if (job) {
        bt_ledger_close(&job->ledger);
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
static void take_off(bt_handoff_peer *peer, bt_handoff_job *job)
{
    bt_handoff_job **at = &peer->jobs;
    while (*at != job) {
        BT_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = job->next;
    job->next = NULL;
}

/* ---- the timeline ---- */

/* Two per prompt: what happens to it, and the rows that come. Ticket numbers are not in order. */
static uint64_t lane_of(const bt_handoff_job *job)
{
    return 2 * job->ticket + 2;
}

static void trace_sent(const bt_handoff_peer *peer, const bt_handoff_job *job)
{
    bt_trace *t = peer->owner->trace;
    bt_trace_name_lane(t, lane_of(job), "prompt %llu", (unsigned long long)job->ticket);
    bt_trace_name_lane(t, lane_of(job) + 1, "prompt %llu: rows put in place",
                       (unsigned long long)job->ticket);
    bt_trace_moment(t, lane_of(job), "sent", peer->address);
}

/* By the worker's words and our clock, as the report has it. */
static void trace_committed(bt_trace *t, const bt_handoff_job *job, const bt_wire_commit *m,
                            double round_trip_ms)
{
    const uint64_t lane = lane_of(job);
    const double now = bt_clock_ms(), there = job->sent_ms + round_trip_ms / 2;
    const double begun = there + (double)m->queue_us / 1000;
    const double done = begun + (double)m->compute_us / 1000;
    bt_trace_span(t, lane, "prompt", job->start_ms, now, "\"tokens\":%u,\"bytes\":%llu",
                  job->end - job->first, (unsigned long long)job->report.bytes);
    bt_trace_span(t, lane, "waits here", job->start_ms, job->sent_ms, "%s", "");
    bt_trace_span(t, lane, "waits there", there, begun, "%s", "");
    bt_trace_span(t, lane, "computing there", begun, done < now ? done : now, "\"cached\":%u",
                  m->n_cached);
    bt_trace_span(t, lane, "exposed", done < now ? done : now, now, "%s", "");
}

static void trace_given_up(bt_trace *t, const bt_handoff_job *job)
{
    bt_trace_span(t, lane_of(job), "prompt", job->start_ms, bt_clock_ms(), "\"tokens\":%u,"
                  "\"complete\":%u", job->end - job->first, job->complete - job->first);
    bt_trace_moment(t, lane_of(job), "given up", job->report.reason);
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
    const double path = 2 * peer->bytes_per_ms * link.round_trip_ms_min;
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
    uint8_t body[256];
    size_t size;
    BT_TRY(bt_wire_prefill_encode(&asked, body, sizeof body, &size, err));
    BT_TRY(bt_ledger_open(&job->ledger, &peer->owner->form, peer->owner->state_bytes, stream,
                          &asked, err));
    bt_status s = bt_link_send(peer->link, BT_WIRE_PREFILL, stream, body, size, err);
    if (s != BT_OK) {
        bt_ledger_close(&job->ledger);
        return s;
    }
    peer->stream_next++;
    job->stream = stream;
    s = send_tokens(peer->link, job, err);
    if (s != BT_OK) {
        bt_ledger_close(&job->ledger);
        bt_handoff_job_send_cancel(peer, stream, s);
        return s;
    }
    job->asked = asked;
    job->asked.borders = (bt_wire_ids){ 0 };
    job->sent = true;
    job->credit_left = asked.credit;
    job->credit_owed = 0;
    job->rows_ms = 0;
    job->n_marks = 0;
    job->sent_ms = job->news_ms = bt_clock_ms();
    trace_sent(peer, job);
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
    const double rate = bt_fit_rate(&peer->compute, 512);
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

/* Whether there is a slot for it. The worker offers as many places more for prompts that are much
 * shorter than all it has, so that those never wait for a long one to end; who gave a number of
 * prompts gets that number. */
static bool may_send(const bt_handoff_peer *peer, const bt_handoff_job *job)
{
    uint32_t n_sent = 0, shortest = UINT32_MAX;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        n_sent += j->sent;
        shortest = j->sent && bt_handoff_job_left(j) < shortest ? bt_handoff_job_left(j) : shortest;
    }
    const bool express = peer->owner->options.n_prefill == 0 &&
                         bt_handoff_job_left(job) <= shortest / BT_HANDOFF_EXPRESS_PART;
    return n_sent < peer->status.n_slots || (express && n_sent < peer->n_streams &&
                                             n_sent < 2 * peer->status.n_slots);
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
    job->news_ms = peer->given_ms = bt_clock_ms();
    peer->n_passed = 0;
    bt_say(job->report.worker, sizeof job->report.worker, "%s", peer->address);
    bt_handoff_jobs_send(peer);
}

/* ---- the end ---- */

static void tell_wire_type(const bt_prefill *p, bt_handoff_job *job)
{
    if (job->report.bytes > 0) {
        (void)bt_rows_form_name(&p->form, job->report.wire_type, sizeof job->report.wire_type);
    }
}

/* Lock free; the job is off every list. Frees it. */
static void abandon(bt_prefill *p, bt_handoff_job *job, bt_status status)
{
    job->report.n_remote = job->complete - job->first;
    job->report.place = job->report.n_remote > 0 ? BT_PREFILL_MIXED : BT_PREFILL_LOCAL;
    job->report.total_ms = bt_clock_ms() - job->start_ms;
    job->report.transfer_ms = job->rows_ms > 0 ? bt_clock_ms() - job->rows_ms : 0;
    tell_wire_type(p, job);
    const bt_prefill_outcome outcome = job->outrun                ? BT_PREFILL_OUTCOME_OUTRUN
                                       : status == BT_E_CANCELLED ? BT_PREFILL_OUTCOME_CANCELLED
                                       : job->policy_fail         ? BT_PREFILL_OUTCOME_FAILED
                                                                  : BT_PREFILL_OUTCOME_FALLBACK;
    (void)pthread_mutex_lock(&p->lock);
    bt_handoff_decided(p, job->ticket, outcome, job->report.total_ms);
    (void)pthread_mutex_unlock(&p->lock);
    trace_given_up(p->trace, job);
    bt_engine_import_abandon(p->engine, job->ticket, job->complete, &job->report, status);
    bt_handoff_job_destroy(job);
}

/* Lock held. */
static void count_cancelled(bt_handoff_peer *peer, const bt_handoff_job *job)
{
    peer->status.n_cancelled++;
    peer->owner->status.n_cancelled += !job->outrun;
    peer->owner->status.n_outrun += job->outrun;
}

static void end_cancelled(bt_handoff_peer *peer, bt_handoff_job *job)
{
    bt_prefill *p = peer->owner;
    (void)pthread_mutex_lock(&p->lock);
    take_off(peer, job);
    count_cancelled(peer, job);
    bt_handoff_peer_learn_part(peer, job);
    if (job->sent) {
        bt_handoff_job_send_cancel(peer, job->stream, BT_E_CANCELLED);
    }
    bt_handoff_jobs_send(peer);
    (void)pthread_mutex_unlock(&p->lock);
    bt_say(job->report.reason, sizeof job->report.reason, "the request was cancelled");
    abandon(p, job, BT_E_CANCELLED);
}

/* Lock held. The worker that shall go on with the prompt, or NULL. */
static bt_handoff_peer *next_worker(bt_prefill *p, const bt_handoff_peer *from,
                                    const bt_handoff_job *job)
{
    bt_router_worker view[BT_WORKERS_MAX];
    char reason[8];
    if (p->stopping || job->cancelled || job->n_tries >= BT_HANDOFF_TRIES_MAX) {
        return NULL;
    }
    bt_router_question q = bt_handoff_question(p, NULL);
    q.position_first = job->complete;
    q.position_end = job->end;
    q.always = true;
    bt_handoff_peers_view(p, job->tenant, job->tokens, job->complete, job->end, view);
    const bt_router_answer a = bt_router_choose(&q, view, BT_WORKERS_MAX, (int)from->index, reason,
                                                sizeof reason);
    return a.worker >= 0 ? &p->peers[a.worker] : NULL;
}

/* Every job that leaves the workers for the worse passes here. */
static void tell_fallback(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *why)
{
    const uint32_t n = job->end - job->first, done = job->complete - job->first;
    job->report.fallback = true;
    bt_say(job->report.reason, sizeof job->report.reason,
           "worker %s gave %u of %u tokens, then: %.160s", peer->address, done, n, why->text);
    bt_log(BT_LOG_WARN, "prefill %s worker %s tokens %u done %u status %s reason \"%s\"",
           job->policy_fail ? "failed" : "fallback", peer->address, n, done,
           bt_status_name(why->status), why->text);
}

/* Lock held. Counts a job that leaves this peer without COMMIT. */
static void count_failed(bt_handoff_peer *peer, const bt_handoff_job *job, bool goes_on)
{
    bt_prefill_status *all = &peer->owner->status;
    if (job->cancelled) {
        count_cancelled(peer, job);
    } else {
        peer->status.n_fallbacks++;
        all->n_retries += goes_on;
        all->n_failed += !goes_on && job->policy_fail;
        all->n_fallbacks += !goes_on && !job->policy_fail;
    }
    if (job->sent) {
        peer->status.n_partial_tokens += job->complete - job->asked.position_first;
    }
}

void bt_handoff_job_fail(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *why, bool tell)
{
    bt_prefill *p = peer->owner;
    const uint32_t complete = job->complete, end = job->end;
    (void)pthread_mutex_lock(&p->lock);
    take_off(peer, job);
    bt_handoff_peer *next = next_worker(p, peer, job);
    const bool cancelled = job->cancelled;
    char next_address[sizeof next->address] = "";
    count_failed(peer, job, next != NULL);
    if (job->sent && tell) {
        bt_handoff_job_send_cancel(peer, job->stream, why->status);
    }
    bt_ledger_close(&job->ledger);
    if (next) {
        memcpy(next_address, next->address, sizeof next_address);
        job->report.retries++;
        bt_handoff_job_give(next, job);
    }
    bt_handoff_jobs_send(peer);
    (void)pthread_mutex_unlock(&p->lock);
    if (next) {
        bt_log(BT_LOG_WARN, "prefill retry from %s to %s done %u of %u status %s reason \"%s\"",
               peer->address, next_address, complete, end, bt_status_name(why->status), why->text);
        return;
    }
    if (!cancelled) {
        tell_fallback(peer, job, why);
    }
    abandon(p, job, why->status);
}

void bt_handoff_jobs_fail(bt_handoff_peer *peer, const bt_error *why)
{
    for (;;) {
        (void)pthread_mutex_lock(&peer->owner->lock);
        bt_handoff_job *job = peer->jobs;
        (void)pthread_mutex_unlock(&peer->owner->lock);
        if (!job) {
            return;
        }
        bt_handoff_job_fail(peer, job, why, false);
    }
}

/* ---- frames ---- */

/* Returns credit once a quarter of the window is owed: seldom enough to cost nothing, often enough
 * that the worker does not run dry. */
void bt_handoff_job_give_credit(bt_handoff_peer *peer, bt_handoff_job *job)
{
    if (job->credit_owed == 0 || job->credit_owed < job->asked.credit / 4) {
        return;
    }
    const bt_wire_credit m = { .bytes = job->credit_owed };
    uint8_t body[16];
    size_t n;
    bt_error err;
    if (bt_wire_credit_encode(&m, body, sizeof body, &n, &err) == BT_OK &&
        bt_link_send(peer->link, BT_WIRE_CREDIT, job->stream, body, n, &err) == BT_OK) {
        job->credit_left += job->credit_owed;
        job->credit_owed = 0;
    }
}

bt_status bt_handoff_job_spend(bt_handoff_job *job, uint32_t size, bt_error *err)
{
    if (size > job->credit_left) {
        return bt_fail(err, BT_E_PROTOCOL, "%u bytes of rows or states with credit for %llu", size,
                       (unsigned long long)job->credit_left);
    }
    job->credit_left -= size;
    return BT_OK;
}

/* What a worker sent did not hold: counted, and the stream ends. */
void bt_handoff_job_fail_corrupt(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *err)
{
    (void)pthread_mutex_lock(&peer->owner->lock);
    peer->status.n_corrupt++;
    (void)pthread_mutex_unlock(&peer->owner->lock);
    bt_handoff_job_fail(peer, job, err, true);
}

/* Into the reserved pages, turned into the stored type where they come in another. */
static bt_status import_rows(bt_handoff_peer *peer, const bt_handoff_job *job,
                             const bt_wire_rows *m)
{
    bt_prefill *p = peer->owner;
    if (p->form.codec == BT_ROWS_STORED) {
        return bt_engine_import_rows(p->engine, job->ticket, m->layer, m->position, m->n, m->k.data,
                                     m->v.data);
    }
    const size_t k = bt_rows_k_bytes(&p->form, m->layer), v = bt_rows_v_bytes(&p->form, m->layer);
    bt_status s = BT_OK;
    for (uint32_t at = 0; s == BT_OK && at < m->n; at += BT_ROWS_AT_ONCE) {
        const uint32_t n = m->n - at < BT_ROWS_AT_ONCE ? m->n - at : BT_ROWS_AT_ONCE;
        bt_rows_decode(&p->form, &peer->room, m->layer, n, m->k.data + at * k, m->v.data + at * v);
        s = bt_engine_import_rows(p->engine, job->ticket, m->layer, m->position + at, n,
                                  peer->room.k, peer->room.v);
    }
    return s;
}

bool bt_handoff_job_imported(bt_handoff_peer *peer, bt_handoff_job *job, bt_status status,
                             const char *what, uint32_t layer)
{
    if (status == BT_E_CANCELLED) {
        (void)pthread_mutex_lock(&peer->owner->lock);
        job->cancelled = true;          /* the tick that follows ends it */
        (void)pthread_mutex_unlock(&peer->owner->lock);
    } else if (status != BT_OK) {
        bt_error why;
        (void)bt_fail(&why, status, "%s of layer %u could not be stored: %s", what, layer,
                      bt_status_text(status));
        bt_handoff_job_fail(peer, job, &why, true);
    }
    return status == BT_OK;
}

void bt_handoff_job_received(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                             uint64_t n_bytes)
{
    if (job->rows_ms == 0) {
        job->rows_ms = job->news_ms;
    }
    bt_handoff_job_mark(job);
    job->report.bytes += n_bytes;
    job->credit_owed += frame->size;
    bt_handoff_job_give_credit(peer, job);
}

bt_status bt_handoff_job_rows(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                              bt_error *err)
{
    bt_wire_rows m;
    BT_TRY(bt_wire_rows_decode(frame->body, frame->size, &m, err));
    BT_TRY(bt_ledger_check(&job->ledger, &m, err));
    BT_TRY(bt_handoff_job_spend(job, frame->size, err));
    const double begin_ms = bt_clock_ms();
    const bt_status s = import_rows(peer, job, &m);
    const double end_ms = bt_clock_ms();
    job->report.import_ms += end_ms - begin_ms;
    bt_trace_span(peer->owner->trace, lane_of(job) + 1, "rows", begin_ms, end_ms, "\"layer\":%u,"
                  "\"position\":%u,\"n\":%u,\"bytes\":%u", m.layer, m.position, m.n,
                  m.k.size + m.v.size);
    if (bt_handoff_job_imported(peer, job, s, "rows", m.layer)) {
        bt_ledger_enter(&job->ledger, &m, frame);
        bt_handoff_job_received(peer, job, frame, (uint64_t)m.k.size + m.v.size);
    }
    return BT_OK;
}

void bt_handoff_job_chunk(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame)
{
    bt_wire_chunk m;
    bt_error err;
    if (bt_wire_chunk_decode(frame->body, frame->size, &m, &err) != BT_OK ||
        bt_ledger_chunk(&job->ledger, &m, &err) != BT_OK) {
        bt_handoff_job_fail_corrupt(peer, job, &err);
        return;
    }
    (void)pthread_mutex_lock(&peer->owner->lock);
    job->complete = job->ledger.complete;       /* others add up what is left of all jobs */
    (void)pthread_mutex_unlock(&peer->owner->lock);
}

/* What sending the bytes takes by itself, less what was left of it when computing was done. The way
 * of the last byte is not part of sending. */
static double hidden_share(const bt_prefill_report *r, const bt_link_stats *link)
{
    const double rate = link->goodput_bytes_per_ms;
    const double alone_ms = rate > 0 ? (double)r->bytes / rate : r->transfer_ms;
    const double left_ms = r->exposed_ms - link->round_trip_ms_min / 2;
    return alone_ms <= 0 || left_ms >= alone_ms ? 0 : left_ms <= 0 ? 1 : 1 - left_ms / alone_ms;
}

/* The worker says how long it waited and computed; its clock started when PREFILL arrived, half a
 * round trip after we sent it. Whatever passed after that end is transfer that nothing hid. */
static void measure(bt_handoff_job *job, const bt_wire_commit *m, const bt_link_stats *link)
{
    const double round_trip_ms = link->round_trip_ms_min;
    bt_prefill_report *r = &job->report;
    const double now = bt_clock_ms();
    r->queue_ms = (double)m->queue_us / 1000 + (job->sent_ms - job->start_ms);
    r->compute_ms = (double)m->compute_us / 1000;
    r->transfer_ms = job->rows_ms > 0 ? now - job->rows_ms : 0;
    const double done = job->sent_ms + round_trip_ms / 2 +
                        (double)(m->queue_us + m->compute_us) / 1000;
    r->exposed_ms = now > done ? now - done : 0;
    r->total_ms = now - job->start_ms;
    r->hidden = hidden_share(r, link);
    r->n_remote = job->end - job->first;
    r->place = BT_PREFILL_REMOTE;
}

void bt_handoff_job_commit(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame)
{
    bt_prefill *p = peer->owner;
    bt_wire_commit m;
    bt_error err;
    bt_link_stats link;
    if (bt_wire_commit_decode(frame->body, frame->size, &m, &err) != BT_OK ||
        bt_ledger_commit(&job->ledger, &m, &err) != BT_OK) {
        bt_handoff_job_fail_corrupt(peer, job, &err);
        return;
    }
    bt_link_stats_get(peer->link, &link);
    measure(job, &m, &link);
    trace_committed(p->trace, job, &m, link.round_trip_ms_min);
    tell_wire_type(p, job);
    (void)pthread_mutex_lock(&p->lock);
    take_off(peer, job);
    job->complete = job->end;
    bt_handoff_peer_learn(peer, job, &m, &link);
    bt_handoff_decided(p, job->ticket, BT_PREFILL_OUTCOME_REMOTE, job->report.total_ms);
    bt_handoff_jobs_send(peer);
    (void)pthread_mutex_unlock(&p->lock);
    bt_log(BT_LOG_DEBUG, "prefill committed worker %s tokens %u bytes %llu compute_ms %.1f "
           "transfer_ms %.1f exposed_ms %.2f", peer->address, job->report.n_remote,
           (unsigned long long)job->report.bytes, job->report.compute_ms, job->report.transfer_ms,
           job->report.exposed_ms);
    bt_engine_import_commit(p->engine, job->ticket, &job->report);
    if (!bt_handoff_keeper_take(peer, job)) {
        bt_handoff_job_destroy(job);
    }
}

/* ---- time ---- */

/* How long a prompt may be without news. A heartbeat has said all the while that the worker lives,
 * so this is only about being useful: far past what the same work takes here or usually takes
 * there, with everything else that the worker has to do in front of it. */
static double patience_ms(const bt_handoff_peer *peer, const bt_handoff_job *job,
                          const bt_link_load *load)
{
    const bt_prefill *p = peer->owner;
    if (p->options.stall_ms > 0) {
        return p->options.stall_ms;
    }
    const uint32_t n = job->end - job->complete;
    const double keys = bt_router_keys(job->complete, job->end);
    const double here = bt_fit_at(&p->local, 1, n, keys), there = bt_fit_at(&peer->compute, 1, n,
                                                                            keys);
    if (here == 0 && there == 0) {
        return 60000;
    }
    const double token_ms = (double)load->token_ns / 1e6;
    return 10000 + 4 * (here > there ? here : there) + 4 * token_ms * (double)load->queued_tokens;
}

/* Lock free. Prompts that are later than they should be are prefilled here as well: the engine is
 * told their tickets, and says by outrun() that it was first. */
static void hedge_late(bt_handoff_peer *peer)
{
    bt_prefill *p = peer->owner;
    const double now = bt_clock_ms();
    for (;;) {
        (void)pthread_mutex_lock(&p->lock);
        bt_handoff_job *j = peer->jobs;
        while (j && !(j->hedge_ms > 0 && now >= j->hedge_ms && !j->hedged && !j->cancelled)) {
            j = j->next;
        }
        const uint64_t ticket = j ? j->ticket : 0;
        if (j) {
            j->hedged = true;
            p->status.n_hedged++;
        }
        (void)pthread_mutex_unlock(&p->lock);
        if (!j) {
            return;
        }
        bt_engine_import_hedge(p->engine, ticket);
    }
}

/* Lock held. The first job that cannot stay, with the reason (BT_OK: cancelled). */
static bt_handoff_job *find_overdue(bt_handoff_peer *peer, const bt_link_load *load, bt_error *why)
{
    const double now = bt_clock_ms();
    for (bt_handoff_job *j = peer->jobs; j; j = j->next) {
        if (j->cancelled) {
            *why = (bt_error){ .status = BT_OK };
            return j;
        }
        if (!j->sent && peer->status.state == BT_PREFILL_DRAINING) {
            (void)bt_fail(why, BT_E_CLOSED, "the worker takes no more prompts: %.160s",
                          peer->status.reason);
            return j;
        }
        if (j->send_status != BT_OK) {
            (void)bt_fail(why, j->send_status, "the prompt could not be sent: %s",
                          bt_status_text(j->send_status));
            return j;
        }
        if (j->sent && now - j->news_ms > patience_ms(peer, j, load)) {
            (void)bt_fail(why, BT_E_TIMEOUT, "no rows for %.1f s", (now - j->news_ms) / 1000);
            return j;
        }
    }
    return NULL;
}

void bt_handoff_jobs_tick(bt_handoff_peer *peer)
{
    bt_link_stats link;
    bt_link_stats_get(peer->link, &link);
    hedge_late(peer);
    for (;;) {
        bt_error why;
        (void)pthread_mutex_lock(&peer->owner->lock);
        bt_handoff_peer_learn_load(peer, &link);
        bt_handoff_job *job = find_overdue(peer, &link.peer_load, &why);
        if (!job) {
            bt_handoff_jobs_send(peer);
            for (bt_handoff_job *j = peer->jobs; j; j = j->next) {
                bt_handoff_job_give_credit(peer, j);   /* should it have failed before */
            }
        }
        (void)pthread_mutex_unlock(&peer->owner->lock);
        if (!job) {
            return;
        }
        if (why.status == BT_OK) {
            end_cancelled(peer, job);
        } else {
            bt_handoff_job_fail(peer, job, &why, true);
        }
    }
}
