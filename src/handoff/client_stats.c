/* handoff/client_stats.c - what is known of workers: what the router is told, what prompts teach,
 * and what people can look at.
 *
 * Only a prompt that was alone on its worker says what work costs there: of one that shared it,
 * nobody here can tell which part of the time was its own. Where prompts never are alone, one in a
 * minute is taken as it is. What a worker announces is taken as no more than a word: its times are
 * held within those measured here, and its loads cost no more than what they say.
 */
#include <string.h>

#include "base/clock.h"
#include "base/say.h"
#include "handoff/client_private.h"

#define LEARN_SHARED_MS 60000.0

/* ---- load ---- */

uint32_t bt_handoff_stats_left(const bt_client_prompt *prompt)
{
    return prompt ? prompt->end - prompt->complete : 0;
}

static bool is_sent(const bt_client_transfer *t)
{
    return t->prompt && t->shown == BT_TRANSFER_CLIENT_SENT;
}

/* The worker's word includes our own prompts as they were a heartbeat ago; we know those better, so
 * only the rest is kept, taken apart when the word comes. */
void bt_handoff_stats_load(bt_client_worker *w, const bt_link_stats *link)
{
    const double load_ms = bt_clock_ms() - link->peer_load_age_ms;
    /* One that has left us since may still be in that word. */
    const bool stale = load_ms < w->left_ms + link->round_trip_ms;
    if (link->peer_load_age_ms < 0 || load_ms <= w->load_ms + 1 || stale) {
        return;
    }
    uint64_t ours = 0;
    uint32_t n_ours = 0;
    for (const bt_client_transfer *t = w->transfers; t; t = t->next) {
        ours += is_sent(t) ? bt_handoff_stats_left(t->prompt) : 0;
        n_ours += is_sent(t);
    }
    const uint64_t all = link->peer_load.queued_tokens;
    const uint64_t n_all = (uint64_t)link->peer_load.running + link->peer_load.waiting;
    w->others_prompts = n_all <= n_ours                ? 0
                        : n_all - n_ours > UINT32_MAX ? UINT32_MAX
                                                      : (uint32_t)(n_all - n_ours);
    w->others_tokens = all > ours && w->others_prompts > 0 ? all - ours : 0;
    w->load_ms = load_ms;
}

static void add(bt_route_load *l, double first, double n, double times)
{
    l->n_tokens += times * n;
    l->attended += times * bt_cost_attended(first, first + n);
}

/* The one of ours that ends first, where all slots are taken: it has to end before another begins.
 * Else NULL. */
static const bt_client_transfer *first_to_end(const bt_client_worker *w)
{
    const bt_client_transfer *first = NULL;
    uint32_t n_sent = 0;
    for (const bt_client_transfer *t = w->transfers; t; t = t->next) {
        n_sent += is_sent(t);
        if (is_sent(t) && (!first || bt_handoff_stats_left(t->prompt) <
                                             bt_handoff_stats_left(first->prompt))) {
            first = t;
        }
    }
    return n_sent >= w->status.n_slots ? first : NULL;
}

/* What the worker computes before or beside a prompt of n tokens. It takes turns and prefers the
 * one that is nearest its end, so a longer one costs us as much as we are ourselves. Where prompts
 * of other servers stand is not known; they are taken to have just begun. */
static bt_route_load load_ahead(const bt_client_worker *w, uint32_t n)
{
    bt_route_load sum = { 0 };
    const bt_client_transfer *first = first_to_end(w);
    const bt_client_transfer *const lists[] = { w->transfers, w->inbox };
    for (size_t i = 0; i < BT_LEN(lists); i++) {
        for (const bt_client_transfer *t = lists[i]; t; t = t->next) {
            const uint32_t left = bt_handoff_stats_left(t->prompt);
            if (left > 0 && t->shown <= BT_TRANSFER_CLIENT_SENT) {
                add(&sum, t->prompt->complete, left < n || t == first ? left : n, 1);
            }
        }
    }
    if (w->others_prompts > 0) {
        const double each = (double)w->others_tokens / w->others_prompts;
        add(&sum, 0, each < n ? each : n, w->others_prompts);
    }
    return sum;
}

/* ---- for the router ---- */

bt_route_question bt_handoff_stats_question(const bt_prefill *p, const bt_prefill_job *job)
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

void bt_handoff_stats_view(bt_prefill *p, uint64_t tenant, const uint32_t *tokens, uint32_t first,
                           uint32_t end, bt_route_worker ret_workers[BT_WORKERS_MAX])
{
    const double now = bt_clock_ms();
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_client_worker *w = &p->workers[i];
        bt_route_worker *v = &ret_workers[i];
        *v = (bt_route_worker){ .ready = w->used && w->link &&
                                         w->status.phase == BT_PREFILL_READY && end <= w->n_ctx };
        if (!w->used) {
            continue;
        }
        v->compute = &w->compute;
        v->link = &w->carries.transfer;
        v->lead_ms = w->carries.lead_ms;
        v->tail_ms = w->carries.tail_ms;
        v->chunk = w->chunk;
        if (!v->ready) {
            continue;
        }
        bt_link_stats link;
        bt_link_stats_get(w->link, &link);
        bt_handoff_stats_load(w, &link);
        v->round_trip_ms = link.round_trip_ms_min;
        v->ahead = load_ahead(w, end - first);
        v->n_known = tokens ? bt_route_cache_hint_find(&w->known, tenant, tokens, end) : 0;
        v->idle_ms = w->given_ms > 0 ? now - w->given_ms : 0;
        v->n_passed = w->n_passed;
    }
}

void bt_handoff_stats_patience(const bt_client_worker *w, bt_client_transfer *t,
                               const bt_link_load *load)
{
    const bt_prefill *p = w->owner;
    const uint32_t first = t->prompt->complete, n = t->prompt->end - first;
    const double attended = bt_cost_attended(first, t->prompt->end);
    const bt_transfer_forecast f = {
        .here_ms = bt_cost_fit_at(&p->local, 1, n, attended),
        .there_ms = bt_cost_fit_at(&w->compute, 1, n, attended),
        .queue_ms = (double)load->token_ns / 1e6 * (double)load->queued_tokens,
    };
    bt_transfer_client_set_patience(&t->machine, &f);
    if (p->options.stall_ms > 0) {
        bt_transfer_client_set_pause(&t->machine, (uint64_t)p->options.stall_ms * BT_NS_PER_MS);
    }
}

/* ---- what a prompt took ---- */

/* By the worker's words and our clock, as the report has it. */
static void draw_committed(bt_timeline *line, const bt_client_transfer *t, double there,
                           double queue_ms, double compute_ms, uint32_t n_cached)
{
    const bt_client_prompt *p = t->prompt;
    const uint64_t lane = bt_handoff_prompt_lane(p);
    const double now = bt_clock_ms(), begun = there + queue_ms, done = begun + compute_ms;
    bt_timeline_span(line, lane, "prompt", p->start_ms, now, "\"tokens\":%u,\"bytes\":%llu",
                     p->end - p->first, (unsigned long long)p->report.bytes);
    bt_timeline_span(line, lane, "waits here", p->start_ms, t->sent_ms, "%s", "");
    bt_timeline_span(line, lane, "waits there", there, begun, "%s", "");
    bt_timeline_span(line, lane, "computing there", begun, done < now ? done : now,
                     "\"cached\":%u", n_cached);
    if (t->arrivals.n_marks > 0) {
        const double from = done > t->arrivals.first_ms ? done : t->arrivals.first_ms;
        bt_timeline_span(line, lane, "exposed", from < now ? from : now, now, "%s", "");
    }
}

/* What sending the bytes takes by itself, less what was left of it when computing was done. The way
 * of the last byte is not part of sending. */
static double hidden_share(const bt_client_transfer *t, const bt_link_stats *link, double late_ms)
{
    const double transfer_ms = t->prompt->report.transfer_ms;
    /* The link carries at least what it has just carried. */
    const double rate = link->goodput_bytes_per_ms;
    const double reported_ms = rate > 0 ? t->arrivals.bytes / rate : transfer_ms;
    const double alone_ms = reported_ms < transfer_ms ? reported_ms : transfer_ms;
    const double left_ms = late_ms - link->round_trip_ms_min / 2;
    return alone_ms <= 0 || left_ms >= alone_ms ? 0 : left_ms <= 0 ? 1 : 1 - left_ms / alone_ms;
}

/* The worker says how long it waited and computed; its clock started when PREFILL arrived, half a
 * round trip after we sent it, and what it says cannot be longer than the time since then. What of
 * the transfer passed after that end was hidden by nothing; where COMMIT is later than the transfer
 * is long, the rest went by before the first rows came, and shows in total_ms only. */
void bt_handoff_stats_measure(const bt_prefill *pool, bt_client_transfer *t,
                              const bt_wire_commit *m, const bt_link_stats *link)
{
    bt_client_prompt *p = t->prompt;
    bt_prefill_report *r = &p->report;
    const double now = bt_clock_ms(), there = t->sent_ms + link->round_trip_ms_min / 2;
    const double most = now - t->sent_ms, told = (double)m->compute_us / 1000;
    const double compute_ms = told < most ? told : most;
    const double waited = (double)m->queue_us / 1000;
    const double queue_ms = waited < most - compute_ms ? waited : most - compute_ms;
    const double done = there + queue_ms + compute_ms, late_ms = now > done ? now - done : 0;
    r->queue_ms = queue_ms + p->waited_ms;
    r->compute_ms += compute_ms;       /* to that of those who were lost */
    r->transfer_ms = t->arrivals.n_marks > 0 ? now - t->arrivals.first_ms : 0;
    r->exposed_ms = late_ms < r->transfer_ms ? late_ms : r->transfer_ms;
    r->total_ms = now - p->start_ms;
    r->hidden = hidden_share(t, link, late_ms);
    r->n_remote = p->end - p->first;
    r->place = BT_PREFILL_REMOTE;
    if (p->lost[0]) {
        bt_say(r->reason, sizeof r->reason, "%s; worker %s did the rest", p->lost, r->worker);
    }
    draw_committed(pool->timeline, t, there, queue_ms, compute_ms, m->n_cached);
}

/* ---- what prompts teach ---- */

static void learn_compute(bt_client_worker *w, const bt_client_transfer *t, uint32_t n_cached,
                          double compute_ms)
{
    const double now = bt_clock_ms();
    const bool alone = t->alone && w->others_prompts == 0;
    const uint32_t end = t->prompt->end, from = n_cached < end ? n_cached : end;
    if (end - from < BT_HANDOFF_MEASURE_MIN ||
        (!alone && w->learned_ms > 0 && now - w->learned_ms < LEARN_SHARED_MS)) {
        return;
    }
    bt_cost_fit_put(&w->compute, bt_route_steps(end - from, w->chunk), end - from,
                    bt_cost_attended(from, end), compute_ms);
    w->learned_ms = now;
}

/* The prompt's blocks are in the worker's cache now. Where less was than we thought, it has thrown
 * things out, and who knows what else. */
static void learn_cache(bt_client_worker *w, const bt_client_prompt *p, uint32_t n_cached)
{
    const uint32_t hint = bt_route_cache_hint_find(&w->known, p->tenant, p->tokens, p->end);
    if ((uint64_t)n_cached + BT_CACHE_HINT_BLOCK < hint) {
        bt_route_cache_hint_clear(&w->known);
    }
    if ((p->tenant & BT_WIRE_TENANT_ALONE) == 0) {
        bt_route_cache_hint_put(&w->known, p->tenant, p->tokens, p->end);
    }
}

void bt_handoff_stats_committed(bt_client_worker *w, const bt_client_transfer *t,
                                const bt_wire_commit *m, const bt_link_stats *link)
{
    const bt_prefill_report *r = &t->prompt->report;
    const double end_ms = bt_clock_ms(), elapsed = end_ms - t->sent_ms;
    const double compute_ms = (double)m->compute_us / 1000, queue_ms = (double)m->queue_us / 1000;

    w->counts.n_prompts++;
    w->counts.n_tokens += t->prompt->end - t->asked.position_first;
    w->counts.n_bytes += t->bytes;
    w->counts.exposed_ms += r->exposed_ms;
    w->counts.transfer_ms += r->transfer_ms;
    learn_compute(w, t, m->n_cached, compute_ms < elapsed ? compute_ms : elapsed);
    bt_cost_link_learn(&w->carries, &(bt_cost_prompt){
        .arrivals = &t->arrivals, .sent_ms = t->sent_ms, .end_ms = end_ms,
        .queue_ms = queue_ms < elapsed ? queue_ms : elapsed, .exposed_ms = r->exposed_ms,
        .alone = t->alone && w->others_prompts == 0,
        .frames_bytes_per_ms = link->goodput_bytes_per_ms,
    });
    learn_cache(w, t->prompt, m->n_cached);
}

void bt_handoff_stats_given_up(bt_client_worker *w, const bt_client_transfer *t)
{
    const uint32_t first = t->asked.position_first, n = t->prompt->complete - first;
    if (t->shown == BT_TRANSFER_CLIENT_WAITING || !t->alone || w->others_prompts > 0 ||
        n < BT_HANDOFF_MEASURE_MIN) {
        return;
    }
    const double now = bt_clock_ms(), attended = bt_cost_attended(first, t->prompt->complete);
    const double steps = bt_route_steps(n, w->chunk), compute_ms = now - t->sent_ms;
    if (compute_ms < bt_cost_fit_at(&w->compute, steps, n, attended)) {
        bt_cost_fit_put(&w->compute, steps, n, attended, compute_ms);
    }
    bt_cost_link_learn_part(&w->carries, &t->arrivals, now);
}

void bt_handoff_stats_retire(bt_prefill *p, const bt_client_worker *w)
{
    const bt_client_counts *from = &w->counts;
    p->retired.n_prompts += from->n_prompts;
    p->retired.n_tokens += from->n_tokens;
    p->retired.n_bytes += from->n_bytes;
    p->retired.n_cancelled += from->n_cancelled;
    p->retired.n_hedged += from->n_hedged;
    p->retired.n_local_first += from->n_local_first;
    p->retired.exposed_ms += from->exposed_ms;
    p->retired.transfer_ms += from->transfer_ms;
}

/* ---- status ---- */

BT_METRIC_DEFINE(bt_handoff_client_metrics, bt_prefill_status, "baton_prefill",
                 BT_PREFILL_STATUS_LIST)
BT_METRIC_DEFINE(bt_handoff_client_worker_metrics, bt_prefill_worker_status, "baton_worker",
                 BT_PREFILL_WORKER_STATUS_LIST)

/* Prompts of this many tokens give the rates that are shown. */
#define RATE_TOKENS 512.0

const char *bt_handoff_client_state_name(bt_prefill_state s)
{
    static const char *const names[] = {
#define X(name, text) text,
        BT_PREFILL_STATE_LIST(X)
#undef X
    };
    return (size_t)s < BT_LEN(names) ? names[s] : "unknown";
}

/* The threshold that `auto` amounts to with the best of the workers. */
static uint32_t min_tokens_now(bt_prefill *p)
{
    bt_route_worker view[BT_WORKERS_MAX];
    const bt_route_question q = bt_handoff_stats_question(p, NULL);
    uint32_t least = UINT32_MAX;
    bool any = false;
    bt_handoff_stats_view(p, 0, NULL, 0, 0, view);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (view[i].ready) {
            const uint32_t n = bt_route_break_even(&q, &view[i]);
            least = n < least ? n : least;
            any = true;
        }
    }
    return any ? least : q.automatic ? q.min_first : q.min_tokens;
}

static void add_counts(bt_prefill_status *to, const bt_client_counts *c)
{
    to->n_prompts += c->n_prompts;
    to->n_tokens += c->n_tokens;
    to->n_bytes += c->n_bytes;
    to->n_cancelled += c->n_cancelled;
    to->n_hedged += c->n_hedged;
    to->n_hedges_won_locally += c->n_local_first;
    to->exposed_seconds += c->exposed_ms / 1000;
    to->transfer_seconds += c->transfer_ms / 1000;
}

void bt_handoff_client_status_get(const bt_prefill *cp, bt_prefill_status *ret_status)
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;    /* only the lock and what is known change */
    (void)pthread_mutex_lock(&p->lock);
    *ret_status = p->status;
    add_counts(ret_status, &p->retired);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_client_worker *w = &p->workers[i];
        if (w->used) {
            ret_status->n_workers += !w->ended;
            ret_status->n_ready += w->status.phase == BT_PREFILL_READY && !w->ended;
            add_counts(ret_status, &w->counts);
        }
    }
    ret_status->min_tokens_auto = p->options.min_tokens == BT_PREFILL_MIN_AUTO;
    ret_status->min_tokens = min_tokens_now(p);
    ret_status->local_tokens_per_second = 1000 * bt_cost_fit_rate(&p->local, RATE_TOKENS);
    ret_status->local_step_ms = p->local.cost[0];
    ret_status->local_token_ms = p->local.cost[1];
    ret_status->local_attention_ms = p->local.cost[2];
    (void)pthread_mutex_unlock(&p->lock);
}

static void count_transfers(const bt_client_transfer *list, bt_prefill_worker_status *st)
{
    for (const bt_client_transfer *t = list; t; t = t->next) {
        if (t->prompt && t->shown <= BT_TRANSFER_CLIENT_SENT) {
            st->n_in_flight += t->shown == BT_TRANSFER_CLIENT_SENT;
            st->n_waiting += t->shown == BT_TRANSFER_CLIENT_WAITING;
            st->tokens_in_flight += bt_handoff_stats_left(t->prompt);
        }
    }
}

static bt_prefill_worker_status status_of(const bt_client_worker *w)
{
    bt_prefill_worker_status st = w->status;
    count_transfers(w->transfers, &st);
    count_transfers(w->inbox, &st);
    st.state = bt_handoff_client_state_name(st.phase);
    st.up = st.phase == BT_PREFILL_READY;
    st.n_prompts = w->counts.n_prompts;
    st.n_tokens = w->counts.n_tokens;
    st.n_bytes = w->counts.n_bytes;
    st.n_cancelled = w->counts.n_cancelled + w->counts.n_local_first;
    st.goodput_bytes_per_second = w->carries.bytes_per_ms * 1000;
    st.tokens_per_second = 1000 * bt_cost_fit_rate(&w->compute, RATE_TOKENS);
    st.step_ms = w->compute.cost[0];
    st.token_ms = w->compute.cost[1];
    st.attention_ms = w->compute.cost[2];
    st.lead_ms = w->carries.lead_ms;
    st.tail_ms = w->carries.tail_ms;
    st.idle_seconds = w->given_ms > 0 ? (bt_clock_ms() - w->given_ms) / 1000 : -1;
    if (w->link) {
        bt_link_stats link;
        bt_link_stats_get(w->link, &link);
        st.round_trip_ms = link.round_trip_ms_min;
        st.worker_prompts = (uint64_t)link.peer_load.running + link.peer_load.waiting;
        st.worker_tokens = link.peer_load.queued_tokens;
    }
    return st;
}

bool bt_handoff_client_worker_status_get(const bt_prefill *cp, uint32_t index,
                                         bt_prefill_worker_status *ret_status)
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;
    bool found = false;
    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < BT_WORKERS_MAX && !found; i++) {
        if (p->workers[i].used && !p->workers[i].ended && index-- == 0) {
            *ret_status = status_of(&p->workers[i]);
            found = true;
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    return found;
}

/* ---- decisions ---- */

const char *bt_handoff_client_outcome_name(bt_prefill_outcome o)
{
    static const char *const names[] = {
#define X(name, text) text,
        BT_PREFILL_OUTCOME_LIST(X)
#undef X
    };
    return (size_t)o < BT_LEN(names) ? names[o] : "unknown";
}

void bt_handoff_stats_decided(bt_prefill *p, uint64_t ticket, bt_prefill_outcome outcome,
                              double took_ms)
{
    for (uint32_t i = 0; i < BT_PREFILL_DECISIONS_MAX; i++) {
        bt_client_decision *d = &p->decisions[i];
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
