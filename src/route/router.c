/* route/router.c - see router.h; predicted times and the choice. */
#include "route/router.h"

#include <math.h>
#include <stdio.h>

#include "base/limits.h"

/* ---- predicted milliseconds until the first token ---- */

double bt_route_steps(double n, uint32_t chunk)
{
    const double steps = chunk > 0 ? ceil(n / chunk) : 1;
    return n > 0 ? steps : 0;
}

/* Of rows [first, end), alone. */
static double compute_ms(const bt_cost_fit *f, uint32_t chunk, double first, double end)
{
    return end > first ? bt_cost_fit_at(f, bt_route_steps(end - first, chunk), end - first,
                                        bt_cost_attended(first, end))
                       : 0;
}

static double ahead_ms(const bt_cost_fit *f, uint32_t chunk, const bt_route_load *l)
{
    return bt_cost_fit_at(f, chunk > 0 ? l->n_tokens / chunk : 0, l->n_tokens, l->attended);
}

/* Computing and sending go on at the same time, so the longer of the two counts:
 *
 *   ahead  |  round trip / 2 + computing + tail             |  last token
 *          |  lead + computing what we have + bytes / rate  |
 *
 * What the worker has in its cache need not be computed, and what we have need not be sent. */
double bt_route_remote_ms(const bt_route_question *q, const bt_route_worker *w)
{
    if (!bt_cost_fit_known(w->compute)) {
        return 0;
    }
    const double first = q->position_first, end = q->position_end;
    const double from = w->n_known < q->position_end ? w->n_known : end;
    const double computed_ms = w->round_trip_ms / 2 +
                               compute_ms(w->compute, w->chunk, from, end) + w->tail_ms;
    const double moved_ms =
            w->lead_ms + compute_ms(w->compute, w->chunk, from, first) +
            bt_cost_fit_at(w->link, 1,
                           (end - first) * (double)q->token_bytes + (double)q->state_bytes, 0);
    return ahead_ms(w->compute, w->chunk, &w->ahead) +
           (computed_ms > moved_ms ? computed_ms : moved_ms) + q->here.last_ms;
}

/* A step takes a chunk of the prompt at most; while others decode it must also end in time for
 * them, and each step decodes for them first. */
double bt_route_local_ms(const bt_route_question *q)
{
    const bt_route_here *h = &q->here;
    if (!bt_cost_fit_known(h->step)) {
        return 0;
    }
    const double first = q->position_first, end = q->position_end, n = end - first;
    double steps = bt_route_steps(n, h->chunk);
    const double rows_ms = bt_cost_fit_at(h->step, 0, n, bt_cost_attended(first, end)) +
                           ahead_ms(h->step, h->chunk, &h->ahead);
    if (h->decode_ms > 0 && h->gap_ms > h->decode_ms) {
        const double in_time = rows_ms / (h->gap_ms - h->decode_ms);
        steps = in_time > steps ? in_time : steps;
    }
    return rows_ms + bt_cost_fit_at(h->step, steps, 0, 0) + steps * h->decode_ms;
}

/* ---- among workers ---- */

static bool judged(const bt_cost_fit *f)
{
    return f && f->n_samples >= BT_ROUTE_SAMPLES_MIN;
}

/* The order among workers needs an estimate also for one that has not worked yet: the fastest of
 * the others stands in, so that a new worker gets its first prompt. */
static double order_ms(const bt_route_question *q, const bt_route_worker *w,
                       const bt_cost_fit *stand_in)
{
    bt_route_worker like = *w;
    if (!bt_cost_fit_known(like.compute)) {
        like.compute = stand_in;
    }
    if (bt_cost_fit_known(like.compute)) {
        return bt_route_remote_ms(q, &like);
    }
    return w->round_trip_ms + w->ahead.n_tokens + (q->position_end - q->position_first);
}

static const bt_cost_fit *fastest(const bt_route_question *q, const bt_route_worker *workers,
                             uint32_t n_workers)
{
    const bt_cost_fit *best = NULL;
    const double n = q->position_end;
    for (uint32_t i = 0; i < n_workers; i++) {
        const bt_cost_fit *f = workers[i].compute;
        if (bt_cost_fit_known(f) && (!best || bt_cost_fit_rate(f, n) > bt_cost_fit_rate(best, n))) {
            best = f;
        }
    }
    return best;
}

static int best_worker(const bt_route_question *q, const bt_route_worker *workers,
                       uint32_t n_workers, int skip)
{
    const bt_cost_fit *stand_in = fastest(q, workers, n_workers);
    double best_ms = 0;
    int best = -1;
    for (uint32_t i = 0; i < n_workers; i++) {
        if (!workers[i].ready || (int)i == skip) {
            continue;
        }
        const double ms = order_ms(q, &workers[i], stand_in);
        if (best < 0 || ms < best_ms) {
            best = (int)i;
            best_ms = ms;
        }
    }
    return best;
}

static bool is_stale(const bt_route_worker *w)
{
    return w->idle_ms > BT_ROUTE_STALE_MS || w->n_passed >= BT_ROUTE_STALE_PROMPTS;
}

/* A worker that others have outrun for a while gets a prompt again, as if we had outrun it. */
static int stale_worker(const bt_route_question *q, const bt_route_worker *workers,
                        uint32_t n_workers, int skip, double best_ms, double local_ms)
{
    for (uint32_t i = 0; i < n_workers; i++) {
        const bt_route_worker *w = &workers[i];
        const double ms = bt_route_remote_ms(q, w);
        const double most_ms = q->hedged && local_ms > 0 && local_ms < ms ? local_ms : ms;
        if (w->ready && (int)i != skip && is_stale(w) &&
            most_ms <= best_ms * BT_ROUTE_PROBE_MAX) {
            return (int)i;
        }
    }
    return -1;
}

/* ---- here or there ---- */

static uint32_t tokens_of(const bt_route_question *q)
{
    return q->position_end - q->position_first;
}

/* By a number of tokens: the option's, or, until workers are measured, a guess. */
static void choose_by_tokens(const bt_route_question *q, bt_route_answer *a, char *reason,
                             size_t size)
{
    const uint32_t n = tokens_of(q);
    const uint32_t least = q->always ? 1 : q->automatic ? q->min_first : q->min_tokens;
    if (n < least) {
        snprintf(reason, size, "%u tokens to prefill, fewer than the %u that go to a worker", n,
               least);
        a->worker = -1;
        return;
    }
    a->wanted_remote = true;
    if (a->worker < 0) {
        snprintf(reason, size, "no worker is ready");
    } else if (q->always) {
        snprintf(reason, size, "the request asks for a worker");
    } else {
        snprintf(reason, size, "%u tokens to prefill, at least the %u that go to a worker", n,
                 least);
    }
}

/* The last sample was far better than what had been learned: one more like it changes the mind. */
static bool faster_than_thought(const bt_route_worker *w)
{
    return w->compute->surprise < 0 || (w->link && w->link->surprise < 0);
}

/* Why it is tried although it seems slower. */
static void say_probe(const bt_route_worker *w, char *reason, size_t size)
{
    if (w->idle_ms > BT_ROUTE_STALE_MS) {
        snprintf(reason, size, "the worker was last given a prompt %.0f s ago: is it still slower?",
               w->idle_ms / 1000);
    } else if (w->n_passed >= BT_ROUTE_STALE_PROMPTS) {
        snprintf(reason, size, "the worker was last given a prompt %u prompts ago: is it still "
               "slower?", w->n_passed);
    } else {
        snprintf(reason, size,
                 "the %s was far faster than expected with its last prompt: is it so?",
               w->compute->surprise < 0 ? "worker" : "link to the worker");
    }
}

/* By predicted times, which both are known. */
static void choose_by_time(const bt_route_question *q, const bt_route_worker *w,
                           bt_route_answer *a, char *reason, size_t size)
{
    const double margin = q->last_remote ? BT_ROUTE_MARGIN : 1 / BT_ROUTE_MARGIN;
    const bool stale = is_stale(w) || faster_than_thought(w);
    a->measured = true;
    if (a->remote_ms <= a->local_ms * margin) {
        snprintf(reason, size, "%u tokens take about %.0f ms on the worker and %.0f ms here",
               tokens_of(q), a->remote_ms, a->local_ms);
    } else if (stale && tokens_of(q) >= q->min_first &&
               (q->hedged || a->remote_ms <= a->local_ms * BT_ROUTE_PROBE_MAX)) {
        a->probe = true;
        say_probe(w, reason, size);
    } else {
        snprintf(reason, size, "%u tokens take about %.0f ms here and %.0f ms on a worker",
               tokens_of(q), a->local_ms, a->remote_ms);
        a->worker = -1;
    }
}

/* No worker can take it. Whether that is a pity: not where all that are known to be slower than
 * this machine; then it is kept here by choice, and would have been with all of them ready. */
static bool kept_anyway(const bt_route_question *q, const bt_route_worker *workers,
                        uint32_t n_workers, bt_route_answer *a, char *reason, size_t size)
{
    double best_ms = 0;
    for (uint32_t i = 0; i < n_workers; i++) {
        const bt_route_worker *w = &workers[i];
        const double ms = judged(w->compute) ? bt_route_remote_ms(q, w) : 0;
        best_ms = ms > 0 && (best_ms <= 0 || ms < best_ms) ? ms : best_ms;
    }
    if (best_ms <= 0 || !judged(q->here.step) || best_ms <= a->local_ms) {
        return false;
    }
    snprintf(reason, size,
             "%u tokens take about %.0f ms here and %.0f ms on a worker, were it ready",
           tokens_of(q), a->local_ms, best_ms);
    return true;
}

bt_route_answer bt_route_choose(const bt_route_question *q, const bt_route_worker *workers,
                                 uint32_t n_workers, int skip, char *reason, size_t reason_size)
{
    bt_route_answer a = { .worker = best_worker(q, workers, n_workers, skip),
                           .local_ms = bt_route_local_ms(q) };
    const bt_route_worker *w = a.worker >= 0 ? &workers[a.worker] : NULL;
    a.remote_ms = w ? bt_route_remote_ms(q, w) : 0;
    const bool by_time = q->automatic && !q->always && w && judged(w->compute);
    if (by_time && judged(q->here.step)) {
        choose_by_time(q, w, &a, reason, reason_size);
    } else if (by_time && tokens_of(q) <= BT_ROUTE_LOCAL_PROBE_TOKENS) {
        snprintf(reason, reason_size,
               bt_cost_fit_known(q->here.step)
                       ? "this machine has been measured by one prompt only: this is its second"
                       : "this machine has not been measured yet");
        a.probe = true;
        a.worker = -1;
    } else if (!w && q->automatic && !q->always &&
               kept_anyway(q, workers, n_workers, &a, reason, reason_size)) {
        a.worker = -1;
    } else {
        choose_by_tokens(q, &a, reason, reason_size);
    }
    const int stale = a.worker < 0 || a.probe
            ? -1 : stale_worker(q, workers, n_workers, skip, a.remote_ms, a.local_ms);
    if (stale >= 0 && stale != a.worker) {
        a.worker = stale;
        a.remote_ms = bt_route_remote_ms(q, &workers[stale]);
        a.probe = true;
        say_probe(&workers[stale], reason, reason_size);
    }
    return a;
}

uint32_t bt_route_break_even(const bt_route_question *q, const bt_route_worker *w)
{
    if (!q->automatic) {
        return q->min_tokens;
    }
    if (!judged(w->compute) || !judged(q->here.step)) {
        return q->min_first;
    }
    bt_route_question idle = *q;
    bt_route_worker free = *w;
    idle.position_first = 0;
    idle.here.ahead = (bt_route_load){ 0 };
    idle.here.decode_ms = 0;
    free.ahead = (bt_route_load){ 0 };
    free.n_known = 0;
    /* The fixed part of a worker is larger and its slope smaller, or there is no break-even: the
     * difference changes sign once on the way up, and halving finds the place. */
    uint32_t low = 1, high = BT_CONTEXT_MAX;
    idle.position_end = high;
    if (bt_route_remote_ms(&idle, &free) > bt_route_local_ms(&idle)) {
        return UINT32_MAX;
    }
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        idle.position_end = middle;
        if (bt_route_remote_ms(&idle, &free) <= bt_route_local_ms(&idle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}
