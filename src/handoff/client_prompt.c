/* handoff/client_prompt.c - a prompt on a worker: its life, sending it, and carrying out what the
 * machine of transfer/client.h decides (docs/handoff.md, "A prompt, on the server"). */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/say.h"
#include "handoff/client_private.h"

enum { TRIES_MAX = 2 };                /* workers that one prompt is given to */

/* ---- life ---- */

/* A prompt that shall not use the cache is a tenant of its own, whom the worker takes as such; also
 * for one that does not know the bit, as tickets are not used twice. */
uint64_t bt_handoff_prompt_tenant(const bt_prefill_job *job)
{
    return job->no_cache ? BT_WIRE_TENANT_ALONE | job->ticket
                         : job->cache_key & ~BT_WIRE_TENANT_ALONE;
}

/* The last checkpoints first: an edited message and the next turn part from a prompt near its end.
 * Without recurrent layers there are none. */
static void set_checkpoints(const bt_prefill *p, bt_client_prompt *prompt,
                            const bt_prefill_job *job)
{
    for (uint32_t i = p->state_bytes ? job->n_checkpoints : 0;
         i > 0 && prompt->n_checkpoints < BT_WIRE_BORDERS_MAX; i--) {
        prompt->checkpoints[prompt->n_checkpoints++] = job->checkpoints[i - 1];
    }
}

bt_client_prompt *bt_handoff_prompt_create(const bt_prefill *p, const bt_prefill_job *job,
                                           const bt_prefill_report *report, uint64_t hedge_ns)
{
    bt_client_prompt *prompt = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *prompt);
    uint32_t *tokens = bt_alloc_zero(BT_MEM_handoff, job->position_end, sizeof *tokens);
    if (!prompt || !tokens) {
        bt_free(prompt);
        bt_free(tokens);
        return NULL;
    }
    memcpy(tokens, job->tokens, job->position_end * sizeof *tokens);
    bt_handoff_request_ref(job->request);
    *prompt = (bt_client_prompt){
        .request = job->request,
        .ticket = job->ticket, .tokens = tokens, .first = job->position_first,
        .end = job->position_end, .complete = job->position_first,
        .policy_fail = job->policy == BT_POLICY_FAIL, .tenant = bt_handoff_prompt_tenant(job),
        .hedge_ns = hedge_ns, .start_ms = bt_clock_ms(), .report = *report,
    };
    set_checkpoints(p, prompt, job);
    return prompt;
}

void bt_handoff_prompt_destroy(bt_client_prompt *prompt)
{
    if (prompt) {
        bt_handoff_request_unref(prompt->request);
        bt_free(prompt->tokens);
        bt_free(prompt);
    }
}

bool bt_handoff_prompt_give(bt_client_worker *w, bt_client_prompt *prompt)
{
    bt_client_transfer *t = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *t);
    if (!t) {
        return false;
    }
    bt_transfer_client_init(&t->machine, prompt->n_checkpoints, prompt->hedge_ns);
    t->prompt = prompt;
    t->snapshot = UINT32_MAX;
    t->given_ms = w->given_ms = bt_clock_ms();
    t->next = w->inbox;
    w->inbox = t;
    w->n_passed = 0;
    prompt->n_tries++;
    bt_say(prompt->report.worker, sizeof prompt->report.worker, "%s", w->address);
    if (w->link) {
        bt_link_wake(w->link);
    }
    return true;
}

bt_client_transfer *bt_handoff_transfer_find(bt_client_worker *w, uint32_t stream)
{
    bt_client_transfer *t = w->transfers;
    while (t && t->stream != stream) {
        t = t->next;
    }
    return t;
}

/* ---- ends ---- */

/* Lock held. What others see of the transfer from here on: nothing, once it is done. */
static void publish(bt_client_worker *w, bt_client_transfer *t, uint32_t todo)
{
    if (t->machine.state == BT_TRANSFER_CLIENT_DONE && t->shown != t->machine.state) {
        bt_client_transfer **at = &w->transfers;
        while (*at != t) {
            at = &(*at)->next;
        }
        *at = t->next;
        t->next = w->done;
        w->done = t;
    }
    w->status.n_corrupt += (todo & BT_TRANSFER_CLIENT_DO_CORRUPT) != 0;
    w->status.n_late_frames += (todo & BT_TRANSFER_CLIENT_DO_LATE) != 0;
    t->shown = t->machine.state;
    if (todo & BT_TRANSFER_CLIENT_END_ANY) {
        w->left_ms = bt_clock_ms();
    }
}

/* Writes into the report how rows came, if any did. */
static void tell_wire_type(const bt_prefill *p, bt_prefill_report *r)
{
    if (r->bytes > 0) {
        (void)bt_kv_codec_form_name(&p->form, r->wire_type, sizeof r->wire_type);
    }
}

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

static void give_back(bt_prefill *p, const bt_client_prompt *prompt, uint32_t complete,
                      bt_status status)
{
    const bt_external_end end = { .position_complete = complete,
                                  .end_request = prompt->policy_fail,
                                  .status = prompt->policy_fail ? answered_status(status) : status,
                                  .message = prompt->report.reason };
    bt_handoff_request_end(prompt->request, prompt->ticket, &prompt->report);
    bt_engine_external_abandon(p->engine, prompt->ticket, &end);
}

void bt_handoff_prompt_abandon(bt_prefill *p, bt_client_prompt *prompt, bt_status status,
                               bt_prefill_outcome outcome)
{
    bt_prefill_report *r = &prompt->report;
    r->n_remote = prompt->complete - prompt->first;
    r->place = r->n_remote > 0 ? BT_PREFILL_MIXED : BT_PREFILL_LOCAL;
    r->total_ms = bt_clock_ms() - prompt->start_ms;
    r->queue_ms = prompt->waited_ms;
    tell_wire_type(p, r);
    (void)pthread_mutex_lock(&p->lock);
    bt_handoff_stats_decided(p, prompt->ticket, outcome, r->total_ms);
    (void)pthread_mutex_unlock(&p->lock);
    bt_timeline_span(p->timeline, bt_handoff_prompt_lane(prompt), "prompt", prompt->start_ms,
                     bt_clock_ms(), "\"tokens\":%u,\"complete\":%u", prompt->end - prompt->first,
                     r->n_remote);
    bt_timeline_moment(p->timeline, bt_handoff_prompt_lane(prompt), "given up", r->reason);
    give_back(p, prompt, prompt->complete, status);
    bt_handoff_prompt_destroy(prompt);
}

/* What this worker spent on the prompt, as far as it said so and we can tell. */
static void add_times(const bt_client_transfer *t, bool was_sent)
{
    bt_client_prompt *p = t->prompt;
    const double now = bt_clock_ms();
    p->report.compute_ms += was_sent ? t->compute_ms : 0;
    p->waited_ms += was_sent ? 0 : now - t->given_ms;
    p->report.transfer_ms = t->arrivals.n_marks > 0 ? now - t->arrivals.first_ms : 0;
}

static void end_cancelled(bt_client_worker *w, bt_client_transfer *t, uint32_t todo)
{
    bt_prefill *p = w->owner;
    bt_client_prompt *prompt = t->prompt;
    const bool local_first = t->reason == BT_CLIENT_LOCAL_FIRST;
    add_times(t, t->sent_ms > 0);
    (void)pthread_mutex_lock(&p->lock);
    bt_handoff_stats_given_up(w, t);
    w->counts.n_cancelled += !local_first;
    w->counts.n_local_first += local_first;
    publish(w, t, todo);
    t->prompt = NULL;
    (void)pthread_mutex_unlock(&p->lock);
    bt_say(prompt->report.reason, sizeof prompt->report.reason, "the request was cancelled");
    bt_handoff_prompt_abandon(p, prompt, BT_E_CANCELLED,
                              local_first ? BT_PREFILL_OUTCOME_LOCAL_FIRST
                                          : BT_PREFILL_OUTCOME_CANCELLED);
}

/* Lock held. The worker that shall go on with the prompt, or NULL. */
static bt_client_worker *next_worker(bt_prefill *p, const bt_client_worker *from,
                                     const bt_client_prompt *prompt)
{
    bt_route_worker view[BT_WORKERS_MAX];
    char reason[8];
    if (p->stopping || prompt->n_tries >= TRIES_MAX) {
        return NULL;
    }
    bt_route_question q = bt_handoff_stats_question(p, NULL);
    q.position_first = prompt->complete;
    q.position_end = prompt->end;
    q.always = true;
    bt_handoff_stats_view(p, prompt->tenant, prompt->tokens, prompt->complete, prompt->end, view);
    const bt_route_answer a = bt_route_choose(&q, view, BT_WORKERS_MAX, (int)from->index, reason,
                                              sizeof reason);
    return a.worker >= 0 ? &p->workers[a.worker] : NULL;
}

/* Lock held. Gives it to another worker, if one is ready; else counts what became of it. */
static bool go_on(bt_client_worker *w, bt_client_prompt *prompt, const bt_error *why,
                  char ret_next[128])
{
    bt_prefill *p = w->owner;
    bt_client_worker *next = next_worker(p, w, prompt);
    w->status.n_fallbacks++;
    if (!next || !bt_handoff_prompt_give(next, prompt)) {
        p->status.n_failed += prompt->policy_fail;
        p->status.n_fallbacks += !prompt->policy_fail;
        return false;
    }
    bt_say(prompt->lost, sizeof prompt->lost, "worker %s gave %u of %u tokens (%.120s)",
           w->address, prompt->complete - prompt->first, prompt->end - prompt->first, why->text);
    memcpy(ret_next, next->address, sizeof next->address);
    prompt->report.retries++;
    p->status.n_retries++;
    return true;
}

/* Every prompt that leaves the workers for the worse passes here. */
static void tell_fallback(const bt_client_worker *w, bt_client_prompt *prompt, const bt_error *why)
{
    const uint32_t n = prompt->end - prompt->first, done = prompt->complete - prompt->first;
    prompt->report.fallback = !prompt->policy_fail;
    bt_say(prompt->report.reason, sizeof prompt->report.reason,
           "%s%sworker %s gave %u of %u tokens, then: %.280s", prompt->lost,
           prompt->lost[0] ? "; " : "", w->address, done, n, why->text);
    bt_log(BT_LOG_WARN, prompt->policy_fail ? "prefill_failed" : "prefill_fallback",
           "worker=%s tokens=%u complete=%u status=%s reason=%s", w->address, n, done,
           bt_status_name(why->status), why->text);
}

static void end_failed(bt_client_worker *w, bt_client_transfer *t, uint32_t todo,
                       const bt_error *why)
{
    bt_prefill *p = w->owner;
    bt_client_prompt *prompt = t->prompt;
    const uint32_t complete = prompt->complete, end = prompt->end;
    const bool was_sent = t->sent_ms > 0;
    char next[128] = "";
    prompt->hedge_ns = t->machine.hedge_ns;    /* once over all workers */
    add_times(t, was_sent);
    (void)pthread_mutex_lock(&p->lock);
    w->status.n_partial_tokens += was_sent ? complete - t->asked.position_first : 0;
    publish(w, t, todo);
    t->prompt = NULL;
    const bool goes_on = go_on(w, prompt, why, next);
    (void)pthread_mutex_unlock(&p->lock);
    if (goes_on) {                     /* another session may be at it already */
        bt_log(BT_LOG_WARN, "prefill_retry", "worker=%s next=%s complete=%u tokens=%u "
               "status=%s reason=%s", w->address, next, complete, end,
               bt_status_name(why->status), why->text);
        return;
    }
    tell_fallback(w, prompt, why);
    bt_handoff_prompt_abandon(p, prompt, why->status,
                              prompt->policy_fail ? BT_PREFILL_OUTCOME_FAILED
                                                  : BT_PREFILL_OUTCOME_FALLBACK);
}

/* ---- commit ---- */

/* Should rows or states be missing that the receipt has seen, it is given up after all. */
static void commit(const bt_client_worker *w, bt_client_prompt *prompt)
{
    bt_error err;
    bt_handoff_request_end(prompt->request, prompt->ticket, &prompt->report);
    if (bt_engine_external_commit(w->owner->engine, prompt->ticket, &err) == BT_E_PROTOCOL) {
        bt_log(BT_LOG_WARN, "commit_refused", "worker=%s reason=%s", w->address, err.text);
        prompt->report.fallback = !prompt->policy_fail;
        bt_say(prompt->report.reason, sizeof prompt->report.reason, "worker %s: %s", w->address,
               err.text);
        give_back(w->owner, prompt, prompt->first, BT_E_PROTOCOL);
    }
}

static void end_committed(bt_client_worker *w, bt_client_transfer *t, uint32_t todo,
                          const bt_wire_commit *m)
{
    bt_prefill *p = w->owner;
    bt_client_prompt *prompt = t->prompt;
    const bt_prefill_report *r = &prompt->report;
    bt_link_stats link;
    bt_link_stats_get(w->link, &link);
    bt_handoff_stats_measure(p, t, m, &link);
    tell_wire_type(p, &prompt->report);
    (void)pthread_mutex_lock(&p->lock);
    prompt->complete = prompt->end;
    bt_handoff_stats_load(w, &link);
    bt_handoff_stats_committed(w, t, m, &link);
    bt_handoff_stats_decided(p, prompt->ticket, BT_PREFILL_OUTCOME_REMOTE, r->total_ms);
    publish(w, t, todo);
    (void)pthread_mutex_unlock(&p->lock);
    bt_log(BT_LOG_DEBUG, "prefill_committed", "worker=%s tokens=%u bytes=%llu compute_ms=%.1f "
           "transfer_ms=%.1f exposed_ms=%.2f", w->address, r->n_remote,
           (unsigned long long)r->bytes, r->compute_ms, r->transfer_ms, r->exposed_ms);
    commit(w, prompt);
}

/* ---- carrying out ---- */

void bt_handoff_transfer_send_cancel(const bt_client_worker *w, uint32_t stream, bt_status why)
{
    const bt_wire_cancel m = { .status = (uint32_t)why };
    uint8_t body[16];
    size_t size;
    bt_error err;
    /* Should even this find the queue full, the connection is of no use any more. */
    if (bt_wire_cancel_encode(&m, body, sizeof body, &size, &err) == BT_OK &&
        bt_link_send(w->link, BT_WIRE_CANCEL, stream, body, size, &err) == BT_E_FULL) {
        bt_link_close(w->link, "the worker takes no more control frames");
    }
}

/* A checkpoint becomes one for later prompts, or is given up. */
static void close_checkpoint(const bt_client_worker *w, bt_client_transfer *t, bool keep)
{
    const bt_client_prompt *p = t->prompt;
    const bool whole = keep && bt_transfer_receipt_states_whole(&t->receipt);
    if (t->snapshot != UINT32_MAX) {
        bt_engine_snapshot_close(w->owner->engine, t->snapshot, p->tenant, p->tokens,
                                 whole ? p->checkpoints[t->machine.checkpoint - 1] : 0);
        t->snapshot = UINT32_MAX;
    }
    bt_transfer_receipt_next_states(&t->receipt);
}

static void hedge(bt_client_worker *w, const bt_client_transfer *t)
{
    (void)pthread_mutex_lock(&w->owner->lock);
    w->counts.n_hedged++;
    (void)pthread_mutex_unlock(&w->owner->lock);
    bt_engine_external_hedge(w->owner->engine, t->prompt->ticket);
}

void bt_handoff_transfer_do(bt_client_worker *w, bt_client_transfer *t, uint32_t todo,
                            const bt_error *why, const bt_wire_commit *commit)
{
    static const bt_error none = { .status = BT_E_CANCELLED, .text = "cancelled" };
    why = why ? why : &none;
    if (todo & (BT_TRANSFER_CLIENT_DO_KEEP_CHECKPOINT | BT_TRANSFER_CLIENT_DO_DROP_CHECKPOINT)) {
        close_checkpoint(w, t, todo & BT_TRANSFER_CLIENT_DO_KEEP_CHECKPOINT);
    }
    if (todo & BT_TRANSFER_CLIENT_DO_END_COMMIT) {
        end_committed(w, t, todo, commit);
    } else if (todo & BT_TRANSFER_CLIENT_DO_END_CANCEL) {
        end_cancelled(w, t, todo);
    } else if (todo & BT_TRANSFER_CLIENT_DO_END_FAIL) {
        end_failed(w, t, todo, why);
    } else if (t->shown != t->machine.state ||
               (todo & (BT_TRANSFER_CLIENT_DO_CORRUPT | BT_TRANSFER_CLIENT_DO_LATE))) {
        (void)pthread_mutex_lock(&w->owner->lock);
        publish(w, t, todo);
        (void)pthread_mutex_unlock(&w->owner->lock);
    }
    if (todo & BT_TRANSFER_CLIENT_DO_SEND_CANCEL) {
        bt_handoff_transfer_send_cancel(w, t->stream, why->status);
    }
    if (todo & BT_TRANSFER_CLIENT_DO_PREFILL_HERE) {
        hedge(w, t);
    }
    if (t->machine.state == BT_TRANSFER_CLIENT_PENDING &&
        (todo & BT_TRANSFER_CLIENT_DO_END_COMMIT)) {
        bt_transfer_receipt_next_states(&t->receipt);
    } else if (t->machine.state >= BT_TRANSFER_CLIENT_CANCELLING) {
        bt_transfer_receipt_close(&t->receipt);
    }
}

void bt_handoff_transfers_reap(bt_client_worker *w)
{
    bt_client_transfer *t;
    while ((t = w->done)) {
        w->done = t->next;
        bt_transfer_receipt_close(&t->receipt);
        bt_handoff_prompt_destroy(t->prompt);      /* committed, and so still here */
        bt_free(t);
    }
}
