/* handoff/client.c - see client.h: the offers of the engine's thread; open, stop, close. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/say.h"
#include "handoff/client_private.h"
#include "handoff/identity.h"
#include "link/key.h"

/* ---- forecast and decision ---- */

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
        memcpy(f->workers[at].worker, p->workers[i].address, sizeof f->workers[at].worker);
    }
}

static bt_client_decision *decide(bt_prefill *p, const bt_prefill_job *job,
                                  const bt_route_answer *a, const char *reason)
{
    bt_client_decision *d = &p->decisions[p->n_decisions++ % BT_PREFILL_DECISIONS_MAX];
    *d = (bt_client_decision){
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
        bt_say(d->told.worker, sizeof d->told.worker, "%s", p->workers[a->worker].address);
    }
    return d;
}

/* ---- what it costs here ---- */

/* Lock held. What has been gathered becomes one sample. */
static void put_local(bt_prefill *p)
{
    const bt_client_local *l = &p->gathered;
    if (l->end - l->first >= BT_HANDOFF_MEASURE_MIN) {
        bt_cost_fit_put(&p->local, l->n_steps, l->end - l->first,
                        bt_cost_attended(l->first, l->end), l->ms);
    }
    p->gathered = (bt_client_local){ 0 };
}

/* ---- start ---- */

enum {
    GATHER_MAX = 4096,                 /* tokens of a sample of what prefill costs here */
    HEDGE_LATE_MS = 20                 /* later than predicted by this and a quarter: hedge */
};

/* What start() was asked, and what it comes to. */
typedef struct {
    bt_prefill           *pool;
    const bt_prefill_job *job;
    bt_prefill_report    *report;
    bt_client_prompt     *refused;     /* its ticket is to be ended, with `status` */
    bt_status             status;
} placing;

/* Lock held. Why none of the workers can take a prompt that ends at `end`. BT_E_CONTEXT: it is too
 * long for each of them, so that asking again is of no use; BT_E_LOST: that may pass. */
static bt_status say_none_ready(const bt_prefill *p, uint32_t end, char *reason, size_t size)
{
    const bt_client_worker *w = bt_handoff_workers_typical(p);
    if (!w) {
        bt_say(reason, size, "no worker is ready: the list of workers is empty");
        return BT_E_LOST;
    }
    const bt_client_worker *largest = bt_handoff_workers_largest(p);
    const bt_prefill_worker_status *st = &w->status;
    if (largest && end > largest->n_ctx) {
        bt_say(reason, size, "no worker has room for %u tokens: the largest, %s, has room for %u",
               end, largest->address, largest->n_ctx);
        return BT_E_CONTEXT;
    }
    if (st->phase == BT_PREFILL_READY) {
        bt_say(reason, size, "no worker that is ready has room for %u tokens: %s has room for %u",
               end, w->address, w->n_ctx);
    } else {
        bt_say(reason, size, "no worker is ready: %s is %s%s%.280s", w->address,
               bt_handoff_client_state_name(st->phase), st->reason[0] ? ": " : "", st->reason);
    }
    return BT_E_LOST;
}

/* Lock held. It is prefilled here although it was meant for a worker. */
static bool fall_back(placing *x, bt_client_decision *d)
{
    x->pool->status.n_fallbacks++;
    x->report->fallback = true;
    d->told.outcome = BT_PREFILL_OUTCOME_FALLBACK;
    return false;
}

/* Lock held. A worker was wanted and none is there: prefilled here with a warning, or, where the
 * policy is to fail, taken and ended at once. */
static bool start_without_worker(placing *x, bt_client_decision *d)
{
    bt_prefill_report *report = x->report;
    x->status = say_none_ready(x->pool, x->job->position_end, report->reason,
                               sizeof report->reason);
    bt_say(d->told.reason, sizeof d->told.reason, "%s", report->reason);
    if (x->job->policy == BT_POLICY_FAIL) {
        x->refused = bt_handoff_prompt_create(x->pool, x->job, report, BT_TRANSFER_NEVER);
    }
    if (!x->refused) {
        return fall_back(x, d);
    }
    x->pool->status.n_failed++;
    return true;
}

/* When the prompt shall be prefilled here as well. Later than predicted by a quarter is late; where
 * nothing can be predicted there is nothing to wait for, and what is only tried is not waited for
 * either. */
static uint64_t hedge_time(const bt_prefill_job *job, const bt_route_answer *a)
{
    const bool probe = a->probe && job->policy != BT_POLICY_FAIL;
    const double late_ms = probe || !(a->remote_ms > 0) ? 0 : 1.25 * a->remote_ms + HEDGE_LATE_MS;
    if (!probe && job->policy != BT_POLICY_HEDGE) {
        return BT_TRANSFER_NEVER;
    }
    return late_ms < 1e12 ? bt_clock_ns() + (uint64_t)(late_ms * BT_NS_PER_MS) : BT_TRANSFER_NEVER;
}

/* Lock held. */
static bool start_on(placing *x, const bt_route_answer *a, bt_client_decision *d)
{
    bt_client_prompt *prompt = bt_handoff_prompt_create(x->pool, x->job, x->report,
                                                        hedge_time(x->job, a));
    if (prompt && bt_handoff_prompt_give(&x->pool->workers[a->worker], prompt)) {
        return true;
    }
    bt_handoff_prompt_destroy(prompt);
    bt_say(x->report->reason, sizeof x->report->reason,
           "out of memory: %u tokens to hand to a worker", x->job->position_end);
    return fall_back(x, d);
}

/* Lock held. By the router's answer. */
static bool start_by_choice(placing *x)
{
    bt_prefill *p = x->pool;
    const bt_prefill_job *job = x->job;
    bt_route_worker view[BT_WORKERS_MAX];
    const bt_route_question q = bt_handoff_stats_question(p, job);
    bt_handoff_stats_view(p, bt_handoff_prompt_tenant(job), job->tokens, job->position_first,
                          job->position_end, view);
    const bt_route_answer a = bt_route_choose(&q, view, BT_WORKERS_MAX, -1, x->report->reason,
                                              sizeof x->report->reason);
    tell_forecast(p, &q, view, &x->report->forecast);
    bt_client_decision *d = decide(p, job, &a, x->report->reason);
    if (a.measured && !a.probe) {
        p->last_remote = a.worker >= 0;
    }
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        p->workers[i].n_passed += view[i].ready && q.automatic && !q.always;
    }
    if (a.worker >= 0) {
        return start_on(x, &a, d);
    }
    if (a.wanted_remote) {
        return start_without_worker(x, d);
    }
    p->status.n_local++;
    return false;
}

/* Lock held. */
static bool place(placing *x)
{
    const uint32_t n = x->job->position_end - x->job->position_first;
    bt_prefill_report *report = x->report;
    if (x->pool->stopping) {
        bt_say(report->reason, sizeof report->reason, "the server is shutting down");
        return false;
    }
    if (x->job->where == BT_WHERE_LOCAL || n == 0) {
        bt_say(report->reason, sizeof report->reason,
               n == 0 ? "nothing is left to prefill" : "the request asks for this machine");
        x->pool->status.n_local++;
        return false;
    }
    return start_by_choice(x);
}

static bool start(bt_prefill *p, const bt_prefill_job *job, bt_prefill_report *report)
{
    placing x = { .pool = p, .job = job, .report = report };
    BT_ASSERT(job->position_first <= job->position_end && job->position_end <= job->n_tokens);
    (void)pthread_mutex_lock(&p->lock);
    const bool taken = place(&x);
    (void)pthread_mutex_unlock(&p->lock);
    if (report->fallback || x.refused) {
        bt_log(BT_LOG_WARN, report->fallback ? "prefill_fallback" : "prefill_failed",
               "tokens=%u reason=%s", job->position_end - job->position_first, report->reason);
    }
    if (x.refused) {
        bt_handoff_prompt_abandon(p, x.refused, x.status, BT_PREFILL_OUTCOME_FAILED);
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
        .checkpoints = o->checkpoints,
        .n_checkpoints = wish.no_worker_cache ? 0 : o->n_checkpoints,   /* it keeps none */
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

/* ---- cancel ---- */

/* Lock held. */
static bool mark(bt_client_transfer *list, uint64_t ticket, bt_client_cancel why)
{
    for (bt_client_transfer *t = list; t; t = t->next) {
        if (t->prompt && t->prompt->ticket == ticket && t->cancel == BT_CLIENT_KEPT) {
            t->cancel = why;
            return true;
        }
    }
    return false;
}

/* Its session does the rest, at once. */
static void drop(bt_prefill *p, uint64_t ticket, bt_client_cancel why)
{
    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_client_worker *w = &p->workers[i];
        if (!mark(w->transfers, ticket, why) && !mark(w->inbox, ticket, why)) {
            continue;
        }
        if (why == BT_CLIENT_LOCAL_FIRST) {     /* not that fast after all */
            w->compute.surprise = w->carries.transfer.surprise = 0;
        }
        if (w->link) {
            bt_link_wake(w->link);
        }
        break;
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static void cancel(void *context, uint64_t ticket, void *tag, bt_external_reason reason)
{
    bt_handoff_request_cancel(tag, ticket, reason);
    drop(context, ticket, reason == BT_EXTERNAL_GONE ? BT_CLIENT_GONE : BT_CLIENT_LOCAL_FIRST);
}

/* Steps that follow one another in a prompt are one sample: a prompt's last steps all stand deep,
 * and by themselves would not show what depth costs. */
static void measured(void *context, uint32_t position, uint32_t n_tokens, double ms)
{
    bt_prefill *p = context;
    (void)pthread_mutex_lock(&p->lock);
    bt_client_local *l = &p->gathered;
    if (l->n_steps > 0 && (position != l->end || l->end - l->first >= GATHER_MAX)) {
        put_local(p);
    }
    l->first = l->n_steps > 0 ? l->first : position;
    l->end = position + n_tokens;
    l->n_steps++;
    l->ms += ms;
    (void)pthread_mutex_unlock(&p->lock);
}

static bt_external external_of(bt_prefill *p)
{
    return (bt_external){ .context = p, .offer = offer, .cancel = cancel, .measured = measured };
}

/* ---- life ---- */

/* How rows travel. */
static bt_status set_form(bt_prefill *p, bt_error *err)
{
    BT_TRY(bt_kv_codec_form_init(&p->form, bt_engine_kv_layout(p->engine), p->options.codec,
                                      err));
    const size_t row = bt_kv_codec_layer_bytes_max(&p->form);
    if (row == 0 || bt_wire_rows_fit(row) == 0) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "a K and V row of this model takes %zu bytes: no frame can carry it", row);
    }
    p->token_bytes = bt_kv_codec_token_bytes(&p->form);
    return BT_OK;
}

static bt_status copy_options(bt_prefill *p, const bt_prefill_options *o, bt_error *err)
{
    p->options = *o;
    p->options.link.cancel = NULL;
    p->numerics = bt_strdup(BT_MEM_handoff, o->numerics ? o->numerics : "");
    p->key_file = o->link.key_file ? bt_strdup(BT_MEM_handoff, o->link.key_file) : NULL;
    p->workers = bt_alloc_zero(BT_MEM_handoff, BT_WORKERS_MAX, sizeof *p->workers);
    p->options.addresses = NULL;       /* it may change */
    if (!p->numerics || !p->workers || (o->link.key_file && !p->key_file)) {
        return bt_fail_nomem(err, BT_WORKERS_MAX * sizeof *p->workers, "the list of workers");
    }
    p->options.link.key_file = p->key_file;
    BT_TRY(bt_waker_open(&p->stop_waker, err));
    p->options.link.cancel = &p->stop_waker;
    return BT_OK;
}

static bt_status start_workers(bt_prefill *p, const bt_prefill_options *o, bt_error *err)
{
    BT_TRY(bt_handoff_client_set_workers(p, o->addresses, err));
    (void)pthread_mutex_lock(&p->lock);
    const bool none = bt_handoff_workers_count(p) == 0;
    (void)pthread_mutex_unlock(&p->lock);
    return none && !o->addresses_change
            ? bt_fail(err, BT_E_BADINPUT, "no worker in '%s'", o->addresses) : BT_OK;
}

/* It is read again at each connection; what is wrong with it now is better said now. */
static bt_status check_key(const bt_prefill_options *o, bt_error *err)
{
    bt_link_key key;
    if (!o->link.key_file) {
        return BT_OK;
    }
    BT_TRY(bt_link_key_load(o->link.key_file, &key, err));
    bt_link_key_forget(&key);
    return BT_OK;
}

bt_status bt_handoff_client_open(const bt_prefill_options *o, bt_engine *engine,
                                 bt_prefill **ret_prefill, bt_error *err)
{
    BT_ASSERT(o->addresses != NULL);
    bt_prefill *p = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *p);
    uint64_t session = 0;
    if (!p) {
        return bt_fail_nomem(err, sizeof *p, "the list of workers");
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    bt_cond_init(&p->wake);
    p->stop_waker = (bt_waker){ -1, -1 };
    p->engine = engine;
    p->last_remote = true;

    bt_status s = copy_options(p, o, err);
    s = s == BT_OK ? check_key(o, err) : s;
    s = s == BT_OK ? set_form(p, err) : s;
    if (s == BT_OK && o->trace_file) {
        s = bt_timeline_open(o->trace_file, "server", &p->timeline, err);
    }
    s = s == BT_OK ? bt_handoff_states_layer_bytes(engine, &p->state_bytes, err) : s;
    if (s == BT_OK && bt_random_u64(&session) != BT_OK) {
        s = bt_fail(err, BT_E_IO, "the system gives no random numbers");
    }
    if (s == BT_OK) {
        p->hello = bt_handoff_hello(engine, session, p->numerics);
        s = start_workers(p, o, err);
    }
    if (s != BT_OK) {
        bt_handoff_client_close(p);
        return s;
    }
    const bt_external external = external_of(p);
    bt_engine_set_external(engine, &external);
    *ret_prefill = p;
    return BT_OK;
}

void bt_handoff_client_stop(bt_prefill *p)
{
    if (!p) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->stopping = true;
    (void)pthread_mutex_unlock(&p->lock);
    if (p->options.link.cancel) {      /* it got so far that there may be workers */
        bt_waker_wake(&p->stop_waker);
        bt_handoff_workers_stop(p);
    }
}

void bt_handoff_client_close(bt_prefill *p)
{
    if (!p) {
        return;
    }
    bt_handoff_client_stop(p);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    bt_waker_close(&p->stop_waker);
    bt_timeline_close(p->timeline);
    bt_free(p->state_bytes);
    bt_free(p->workers);
    bt_free(p->numerics);
    bt_free(p->key_file);
    bt_free(p);
}

/* ---- waiting ---- */

/* Lock held. */
static bool all_tried(const bt_prefill *p)
{
    bool all = true;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_client_worker *w = &p->workers[i];
        if (w->used && !w->ended && w->status.phase == BT_PREFILL_READY) {
            return true;
        }
        all &= !w->used || w->ended || w->status.reason[0] != '\0';
    }
    return all;
}

void bt_handoff_client_wait_tried(bt_prefill *p, uint32_t timeout_ms)
{
    const uint64_t until = bt_clock_after_ms(timeout_ms);
    (void)pthread_mutex_lock(&p->lock);
    while (!all_tried(p) && bt_cond_wait_until(&p->wake, &p->lock, until)) {
    }
    (void)pthread_mutex_unlock(&p->lock);
}
