/* handoff/job_end.c - how a prompt leaves a worker without COMMIT: cancelled, failed, too late; to
 * the next worker or back to the engine. And the clock that looks for such. */
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "handoff/job_state.h"
#include "handoff/job_trace.h"
#include "base/say.h"

/* What a request is answered under policy `fail`. Trouble that a worker has with its key, its files
 * or its device is neither the client's nor this server's: whatever it is, a worker was lost. */
static bt_status answered_status(bt_status s)
{
    switch (s) {
    case BT_E_CONTEXT: case BT_E_FULL: case BT_E_TIMEOUT: case BT_E_PROTOCOL: case BT_E_REFUSED:
    case BT_E_CLOSED: case BT_E_CANCELLED:
        return s;
    default:
        return BT_E_LOST;
    }
}

void bt_handoff_job_give_back(bt_prefill *p, bt_handoff_job *job, uint32_t position_complete,
                              bt_status status)
{
    const bt_external_end end = { .position_complete = position_complete,
                                  .end_request = job->policy_fail,
                                  .status = job->policy_fail ? answered_status(status) : status,
                                  .message = job->report.reason };
    bt_handoff_request_end(job->request, job->ticket, &job->report);
    bt_engine_external_abandon(p->engine, job->ticket, &end);
}

/* Lock free; the job is off every list. Frees it. */
static void abandon(bt_prefill *p, bt_handoff_job *job, bt_status status)
{
    job->report.n_remote = job->complete - job->first;
    job->report.place = job->report.n_remote > 0 ? BT_PREFILL_MIXED : BT_PREFILL_LOCAL;
    job->report.total_ms = bt_clock_ms() - job->start_ms;
    job->report.queue_ms = job->waited_ms + (job->sent ? 0 : bt_clock_ms() - job->given_ms);
    job->report.transfer_ms = job->rows_ms > 0 ? bt_clock_ms() - job->rows_ms : 0;
    bt_handoff_job_tell_wire_type(p, job);
    const bt_prefill_outcome outcome = job->outrun                ? BT_PREFILL_OUTCOME_OUTRUN
                                       : status == BT_E_CANCELLED ? BT_PREFILL_OUTCOME_CANCELLED
                                       : job->policy_fail         ? BT_PREFILL_OUTCOME_FAILED
                                                                  : BT_PREFILL_OUTCOME_FALLBACK;
    (void)pthread_mutex_lock(&p->lock);
    bt_handoff_decided(p, job->ticket, outcome, job->report.total_ms);
    (void)pthread_mutex_unlock(&p->lock);
    bt_handoff_trace_given_up(p->trace, job);
    bt_handoff_job_give_back(p, job, job->complete, status);
    bt_handoff_job_destroy(job);
}

/* Lock held. */
static void give_up_stream(bt_handoff_peer *peer, const bt_handoff_job *job, bt_status why)
{
    if (!job->sent || !peer->link) {
        return;
    }
    bt_handoff_job_send_cancel(peer, job->stream, why);
    if (!job->over) {
        bt_handoff_cancelling_add(&peer->dying, job->stream, bt_clock_ms());
    }
}

/* ---- cancelled ---- */

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
    bt_handoff_job_take_off(peer, job);
    count_cancelled(peer, job);
    bt_handoff_peer_learn_part(peer, job);
    give_up_stream(peer, job, BT_E_CANCELLED);
    bt_handoff_jobs_send(peer);
    (void)pthread_mutex_unlock(&p->lock);
    bt_say(job->report.reason, sizeof job->report.reason, "the request was cancelled");
    abandon(p, job, BT_E_CANCELLED);
}

/* ---- failed ---- */

/* Lock held. The worker that shall go on with the prompt, or NULL. */
static bt_handoff_peer *next_worker(bt_prefill *p, const bt_handoff_peer *from,
                                    const bt_handoff_job *job)
{
    bt_route_worker view[BT_WORKERS_MAX];
    char reason[8];
    if (p->stopping || job->cancelled || job->n_tries >= BT_HANDOFF_TRIES_MAX) {
        return NULL;
    }
    bt_route_question q = bt_handoff_question(p, NULL);
    q.position_first = job->complete;
    q.position_end = job->end;
    q.always = true;
    bt_handoff_peers_view(p, job->tenant, job->tokens, job->complete, job->end, view);
    const bt_route_answer a =
            bt_route_choose(&q, view, BT_WORKERS_MAX, (int)from->index, reason, sizeof reason);
    return a.worker >= 0 ? &p->peers[a.worker] : NULL;
}

/* What this worker did of the prompt, as far as it said so, before it goes to the next or back. */
static void count_computed(bt_handoff_job *job)
{
    job->report.compute_ms += job->sent ? job->told_compute_ms : 0;
    job->told_compute_ms = 0;
}

/* Lock held. For the answer, should another worker do the rest. */
static void note_lost(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *why)
{
    bt_say(job->lost, sizeof job->lost, "worker %s gave %u of %u tokens (%.120s)", peer->address,
           job->complete - job->first, job->end - job->first, why->text);
}

/* Every job that leaves the workers for the worse passes here. */
static void tell_fallback(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *why)
{
    const uint32_t n = job->end - job->first, done = job->complete - job->first;
    job->report.fallback = !job->policy_fail;
    bt_say(job->report.reason, sizeof job->report.reason,
           "%s%sworker %s gave %u of %u tokens, then: %.280s", job->lost, job->lost[0] ? "; " : "",
           peer->address, done, n, why->text);
    bt_log(BT_LOG_WARN, job->policy_fail ? "prefill_failed" : "prefill_fallback",
           "worker=%s tokens=%u done=%u status=%s reason=%s", peer->address, n, done,
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
    bt_handoff_job_take_off(peer, job);
    bt_handoff_peer *next = next_worker(p, peer, job);
    const bool cancelled = job->cancelled;
    char next_address[sizeof next->address] = "";
    count_failed(peer, job, next != NULL);
    if (tell) {
        give_up_stream(peer, job, why->status);
    }
    bt_transfer_receipt_close(&job->ledger);
    count_computed(job);
    if (next) {
        note_lost(peer, job, why);
        memcpy(next_address, next->address, sizeof next_address);
        job->report.retries++;
        bt_handoff_job_give(next, job);
    }
    bt_handoff_jobs_send(peer);
    (void)pthread_mutex_unlock(&p->lock);
    if (next) {
        bt_log(BT_LOG_WARN, "prefill_retry", "from=%s to=%s done=%u/%u status=%s reason=%s",
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
    const double attended = bt_cost_attended(job->complete, job->end);
    const double here = bt_cost_fit_at(&p->local, 1, n, attended),
                 there = bt_cost_fit_at(&peer->compute, 1, n, attended);
    if (here == 0 && there == 0) {
        return 60000;
    }
    const double token_ms = (double)load->token_ns / 1e6;
    return 10000 + 4 * (here > there ? here : there) + 4 * token_ms * (double)load->queued_tokens;
}

/* Lock free. Prompts that are later than they should be are prefilled here as well: the engine is
 * given their tickets, and says by cancel() that it was first. */
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
        bt_engine_external_hedge(p->engine, ticket);
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
            (void)bt_fail(why, BT_E_CLOSED, "the worker takes no more prompts: %.280s",
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
