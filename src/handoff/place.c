/* handoff/place.c - where a prompt goes: the callbacks of the engine's thread, and the ring of
 * decisions that people can look at. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/snapshots.h"
#include "handoff/prefill_private.h"
#include "base/say.h"

const char *bt_handoff_client_outcome_name(bt_prefill_outcome o)
{
    static const char *const names[] = {
#define X(name, text) text,
        BT_PREFILL_OUTCOME_LIST(X)
#undef X
    };
    return (size_t)o < BT_LEN(names) ? names[o] : "unknown";
}

/* ---- question and forecast ---- */

bt_route_question bt_handoff_question(const bt_prefill *p, const bt_prefill_job *job)
{
    const bool automatic = p->options.min_tokens == BT_PREFILL_MIN_AUTO;
    const bt_engine_options *e = bt_engine_options_of(p->engine);
    bt_route_question q = {
        .token_bytes = p->token_bytes, .state_bytes = bt_engine_state_bytes(p->engine),
        .min_tokens = automatic ? 0 : p->options.min_tokens,
        .automatic = automatic,
        .min_first = BT_PREFILL_MIN_FIRST,
        .last_remote = p->last_remote,
        .here = { .step = &p->local, .chunk = e->n_prefill_chunk, .gap_ms = e->decode_gap_ms },
    };
    if (job) {
        q.position_first = job->position_first;
        q.position_end = job->position_end;
        q.always = job->where == BT_WHERE_REMOTE;
        q.hedged = job->policy != BT_POLICY_FAIL;
        q.here.decode_ms = job->decode_ms;
        q.here.last_ms = job->last_ms;
        q.here.ahead = (bt_route_load){ (double)job->tokens_ahead, job->attended_ahead };
    }
    return q;
}

static void tell_forecast(const bt_prefill *p, const bt_route_question *q,
                          const bt_route_worker *view, bt_prefill_forecast *f)
{
    const double n = q->position_end;
    *f = (bt_prefill_forecast){
        .made = true,
        .position_first = q->position_first,
        .n_tokens = q->position_end - q->position_first,
        .local_ms = bt_route_local_ms(q),
        .local_tokens_per_second = 1000 * bt_cost_fit_rate(&p->local, n),
        .local_tokens_ahead = (uint64_t)q->here.ahead.n_tokens,
        .local_decode_ms = q->here.decode_ms,
    };
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_route_worker *w = &view[i];
        if (!w->ready) {
            continue;
        }
        const uint32_t at = f->n_workers++;
        if (at >= BT_FORECAST_WORKERS_MAX) {
            continue;
        }
        const double byte_ms = w->link ? w->link->cost[1] : 0;
        f->workers[at] = (bt_forecast_worker){
            .ms = bt_route_remote_ms(q, w),
            .tokens_per_second = 1000 * bt_cost_fit_rate(w->compute, n),
            .goodput_bytes_per_second = byte_ms > 0 ? 1000 / byte_ms : 0,
            .round_trip_ms = w->round_trip_ms,
            .tokens_ahead = (uint64_t)w->ahead.n_tokens,
            .n_known = w->n_known,
        };
        memcpy(f->workers[at].worker, p->peers[i].address, sizeof f->workers[at].worker);
    }
}

/* ---- decisions ---- */

static bt_handoff_decision *decide(bt_prefill *p, const bt_prefill_job *job,
                                   const bt_route_answer *a, const char *reason)
{
    bt_handoff_decision *d = &p->decisions[p->n_decisions++ % BT_PREFILL_DECISIONS_MAX];
    *d = (bt_handoff_decision){
        .ticket = job->ticket,
        .made_ms = bt_clock_ms(),
        .told = { .position_first = job->position_first,
                  .n_tokens = job->position_end - job->position_first,
                  .local_ms = a->local_ms, .remote_ms = a->remote_ms, .probe = a->probe,
                  .outcome = BT_PREFILL_OUTCOME_HERE },
    };
    bt_say(d->told.reason, sizeof d->told.reason, "%s", reason);
    if (a->worker >= 0) {
        d->told.outcome = BT_PREFILL_OUTCOME_UNDER_WAY;
        bt_say(d->told.worker, sizeof d->told.worker, "%s", p->peers[a->worker].address);
    }
    return d;
}

void bt_handoff_decided(bt_prefill *p, uint64_t ticket, bt_prefill_outcome outcome, double took_ms)
{
    for (uint32_t i = 0; i < BT_PREFILL_DECISIONS_MAX; i++) {
        bt_handoff_decision *d = &p->decisions[i];
        if (d->made_ms > 0 && d->ticket == ticket) {
            d->told.outcome = outcome;
            d->told.took_ms = took_ms;
        }
    }
}

uint32_t
bt_handoff_client_decisions_get(const bt_prefill *cp,
                                bt_prefill_decision ret_decisions[BT_PREFILL_DECISIONS_MAX])
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;    /* only the lock changes */
    const double now = bt_clock_ms();
    (void)pthread_mutex_lock(&p->lock);
    const uint32_t n = p->n_decisions < BT_PREFILL_DECISIONS_MAX ? (uint32_t)p->n_decisions
                                                                 : BT_PREFILL_DECISIONS_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t at = (p->n_decisions - 1 - i) % BT_PREFILL_DECISIONS_MAX;
        ret_decisions[i] = p->decisions[at].told;
        ret_decisions[i].age_seconds = (now - p->decisions[at].made_ms) / 1000;
    }
    (void)pthread_mutex_unlock(&p->lock);
    return n;
}

/* ---- what it costs here ---- */

/* Lock held. What has been gathered becomes one sample. */
static void put_local(bt_prefill *p)
{
    const bt_handoff_local *l = &p->gathered;
    if (l->end - l->first >= BT_HANDOFF_MEASURE_MIN) {
        bt_cost_fit_put(&p->local, l->n_steps, l->end - l->first, bt_cost_attended(l->first,
                                                                                   l->end),
                        l->ms);
    }
    p->gathered = (bt_handoff_local){ 0 };
}

/* ---- start ---- */

/* Lock held. Why none of the workers can take a prompt that ends at `end`. BT_E_CONTEXT: it is too
 * long for each of them, so that asking again is of no use; BT_E_LOST: that may pass. */
static bt_status say_none_ready(const bt_prefill *p, uint32_t end, char *reason, size_t size)
{
    const bt_handoff_peer *peer = bt_handoff_workers_typical(p);
    if (!peer) {
        bt_say(reason, size, "no worker is ready: the list of workers is empty");
        return BT_E_LOST;
    }
    const bt_handoff_peer *largest = bt_handoff_workers_largest(p);
    const bt_prefill_worker_status *st = &peer->status;
    if (largest && end > largest->n_ctx) {
        bt_say(reason, size, "no worker has room for %u tokens: the largest, %s, has room for %u",
               end, largest->address, largest->n_ctx);
        return BT_E_CONTEXT;
    }
    if (st->state == BT_PREFILL_READY) {
        bt_say(reason, size, "no worker that is ready has room for %u tokens: %s has room for %u",
               end, peer->address, peer->n_ctx);
    } else {
        bt_say(reason, size, "no worker is ready: %s is %s%s%.280s", peer->address,
               bt_handoff_client_state_name(st->state), st->reason[0] ? ": " : "", st->reason);
    }
    return BT_E_LOST;
}

/* Lock held. A worker was wanted and none is there: prefilled here with a warning, or, where the
 * policy is to fail, handed to the clerk, who ends the ticket. */
static bool start_without_worker(bt_prefill *p, const bt_prefill_job *job,
                                 bt_prefill_report *report, bt_handoff_decision *d)
{
    const bool fail = job->policy == BT_POLICY_FAIL;
    const bt_status why = say_none_ready(p, job->position_end, report->reason,
                                         sizeof report->reason);
    bt_say(d->told.reason, sizeof d->told.reason, "%s", report->reason);
    bt_handoff_job *refused = fail ? bt_handoff_job_create(job, report, 0) : NULL;
    d->told.outcome = refused ? BT_PREFILL_OUTCOME_FAILED : BT_PREFILL_OUTCOME_FALLBACK;
    if (!refused) {
        p->status.n_fallbacks++;
        report->fallback = true;
        return false;
    }
    refused->send_status = why;
    p->status.n_failed++;
    refused->next = p->refused;
    p->refused = refused;
    (void)pthread_cond_broadcast(&p->wake);
    return true;
}

/* When the prompt shall be prefilled here as well. Later than predicted by a quarter is late; where
 * nothing can be predicted there is nothing to wait for, and what is only tried is not waited for
 * either. 0: never. */
static double hedge_time(const bt_prefill_job *job, const bt_route_answer *a)
{
    const bool probe = a->probe && job->policy != BT_POLICY_FAIL;
    const double late_ms = probe || a->remote_ms <= 0
            ? 0 : 1.25 * a->remote_ms + BT_HANDOFF_HEDGE_LATE_MS;
    return probe || job->policy == BT_POLICY_HEDGE ? bt_clock_ms() + late_ms : 0;
}

/* Lock held. */
static bool start_on(bt_prefill *p, const bt_route_answer *a, const bt_prefill_job *job,
                     bt_prefill_report *report, bt_handoff_decision *d)
{
    bt_handoff_job *j = bt_handoff_job_create(job, report, hedge_time(job, a));
    if (!j) {
        bt_say(report->reason, sizeof report->reason, "no memory to hand %u tokens to a worker",
               job->position_end);
        p->status.n_fallbacks++;
        report->fallback = true;
        d->told.outcome = BT_PREFILL_OUTCOME_FALLBACK;
        return false;
    }
    bt_handoff_job_give(&p->peers[a->worker], j);
    return true;
}

/* Lock held. By the router's answer. *ret_given: to a worker, not to the clerk. */
static bool start_by_choice(bt_prefill *p, const bt_prefill_job *job, bt_prefill_report *report,
                            bool *ret_given)
{
    bt_route_worker view[BT_WORKERS_MAX];
    put_local(p);
    const bt_route_question q = bt_handoff_question(p, job);
    bt_handoff_peers_view(p, bt_handoff_job_tenant(job), job->tokens, job->position_first,
                          job->position_end, view);
    const bt_route_answer a =
            bt_route_choose(&q, view, BT_WORKERS_MAX, -1, report->reason, sizeof report->reason);
    tell_forecast(p, &q, view, &report->forecast);
    bt_handoff_decision *d = decide(p, job, &a, report->reason);
    if (a.measured && !a.probe) {
        p->last_remote = a.worker >= 0;
    }
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        p->peers[i].n_passed += view[i].ready && q.automatic && !q.always;
    }
    if (a.worker >= 0) {
        return *ret_given = start_on(p, &a, job, report, d);
    }
    if (a.wanted_remote) {
        return start_without_worker(p, job, report, d);
    }
    p->status.n_local++;
    return false;
}

static bool start(bt_prefill *p, const bt_prefill_job *job, bt_prefill_report *report)
{
    const uint32_t n = job->position_end - job->position_first;
    bool taken = false, given = false;

    BT_ASSERT(job->position_first <= job->position_end && job->position_end <= job->n_tokens);
    (void)pthread_mutex_lock(&p->lock);
    if (p->stopping) {
        bt_say(report->reason, sizeof report->reason, "the server is shutting down");
    } else if (job->where == BT_WHERE_LOCAL || n == 0) {
        bt_say(report->reason, sizeof report->reason,
               n == 0 ? "nothing is left to prefill" : "the request asks for this machine");
        p->status.n_local++;
    } else {
        taken = start_by_choice(p, job, report, &given);
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (report->fallback || (taken && !given)) {
        bt_log(BT_LOG_WARN, report->fallback ? "prefill_fallback" : "prefill_failed",
               "tokens=%u reason=%s", n, report->reason);
    }
    return taken;
}

static bt_prefill_job job_of(const bt_external_offer *o)
{
    bt_handoff_request *request = o->tag;
    const bt_handoff_wish wish = bt_handoff_request_wish(request);
    return (bt_prefill_job){
        .request = request, .ticket = o->ticket, .tokens = o->tokens, .n_tokens = o->n_tokens,
        .position_first = o->position_first, .position_end = o->position_end,
        .borders = o->checkpoints,
        .n_borders = wish.no_worker_cache ? 0 : o->n_checkpoints,   /* the worker keeps none */
        .cache_key = o->cache_key, .no_cache = wish.no_worker_cache,
        .where = wish.where, .policy = wish.policy,
        .tokens_ahead = o->tokens_ahead, .attended_ahead = o->attended_ahead,
        .decode_ms = o->decode_ms, .last_ms = o->last_ms,
    };
}

static bt_external_answer offer(void *context, const bt_external_offer *o, bt_error *err)
{
    bt_prefill *p = context;
    const bt_prefill_job job = job_of(o);
    const bool remote = job.where == BT_WHERE_REMOTE, fail = job.policy == BT_POLICY_FAIL;
    bt_prefill_report report = { .place = BT_PREFILL_LOCAL };
    bool taken = false;
    bt_handoff_request_begin(job.request, o->ticket);
    if (o->ticket == 0) {
        report.fallback = remote && !fail;
        bt_say(report.reason, sizeof report.reason,
               "no memory to receive rows from a prefill worker");
    } else {
        taken = start(p, &job, &report);
    }
    bt_handoff_request_note(job.request, o->ticket, &report);
    if (!taken && remote && fail) {
        (void)bt_fail(err, BT_E_LOST, "%s", report.reason);
        return BT_EXTERNAL_REFUSED;
    }
    return taken ? BT_EXTERNAL_TAKEN : BT_EXTERNAL_LOCAL;
}

/* From here on late frames are dropped; the next tick ends the ticket and tells the worker. */
static void drop(bt_prefill *p, uint64_t ticket, bool outrun)
{
    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        for (bt_handoff_job *j = p->peers[i].jobs; j; j = j->next) {
            if (j->ticket == ticket) {
                j->cancelled = true;
                j->outrun = outrun;
                if (outrun) {           /* not that fast after all */
                    p->peers[i].compute.surprise = p->peers[i].transfer.surprise = 0;
                }
            }
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static void cancel(void *context, uint64_t ticket, void *tag, bt_external_reason reason)
{
    bt_handoff_request_cancel(tag, ticket, reason);
    drop(context, ticket, reason != BT_EXTERNAL_GONE);
}

/* Steps that follow one another in a prompt are one sample: a prompt's last steps all stand deep,
 * and by themselves would tell nothing of what depth costs. */
static void measured(void *context, uint32_t position, uint32_t n_tokens, double ms)
{
    bt_prefill *p = context;
    (void)pthread_mutex_lock(&p->lock);
    bt_handoff_local *l = &p->gathered;
    if (l->n_steps > 0 && (position != l->end || l->end - l->first >= BT_HANDOFF_GATHER_MAX)) {
        put_local(p);
    }
    l->first = l->n_steps > 0 ? l->first : position;
    l->end = position + n_tokens;
    l->n_steps++;
    l->ms += ms;
    (void)pthread_mutex_unlock(&p->lock);
}

bt_external bt_handoff_external(bt_prefill *p)
{
    return (bt_external){ .context = p, .offer = offer, .cancel = cancel, .measured = measured };
}
