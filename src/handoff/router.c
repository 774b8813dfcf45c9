/* handoff/router.c - see router.h. */
#include "handoff/router.h"

#include "base/limits.h"
#include "handoff/say.h"

/* ---- fit ---- */

/* A sample counts half after 16 newer ones: a change of the link or of the load shows within a few
 * prompts, while one odd prompt moves little. 2^(-1/16). */
#define FADE 0.9576032806985737

void bt_fit_put(bt_fit *f, double x, double y)
{
    if (!(x > 0) || !(y >= 0)) {
        return;
    }
    f->w = f->w * FADE + 1;
    f->x = f->x * FADE + x;
    f->y = f->y * FADE + y;
    f->xx = f->xx * FADE + x * x;
    f->xy = f->xy * FADE + x * y;
}

bool bt_fit_known(const bt_fit *f)
{
    return f->w > 0;
}

/* Least squares, held to fixed >= 0 and slope > 0. Samples of one size tell nothing about the
 * fixed part; then the line goes through the origin, which is right for that size. */
static void line_of(const bt_fit *f, double *ret_fixed, double *ret_slope)
{
    const double mean_slope = f->x > 0 ? f->y / f->x : 0;
    const double spread = f->w * f->xx - f->x * f->x;
    *ret_fixed = 0;
    *ret_slope = mean_slope;
    if (spread <= 1e-3 * f->w * f->xx) {
        return;
    }
    const double slope = (f->w * f->xy - f->x * f->y) / spread;
    const double fixed = (f->y - slope * f->x) / f->w;
    if (slope > 0 && fixed >= 0) {
        *ret_fixed = fixed;
        *ret_slope = slope;
    } else if (slope > 0) {
        *ret_slope = f->xy / f->xx;      /* through the origin, long prompts heavier */
    }
}

double bt_fit_at(const bt_fit *f, double x)
{
    double fixed, slope;
    if (!bt_fit_known(f)) {
        return 0;
    }
    line_of(f, &fixed, &slope);
    return fixed + slope * x;
}

double bt_fit_rate(const bt_fit *f)
{
    double fixed, slope;
    if (!bt_fit_known(f)) {
        return 0;
    }
    line_of(f, &fixed, &slope);
    return slope > 0 ? 1 / slope : 0;
}

/* ---- choice ---- */

double bt_router_remote_ms(const bt_router_worker *w, uint32_t n_tokens, uint64_t token_bytes)
{
    if (!bt_fit_known(&w->compute_ms)) {
        return 0;
    }
    const double rate = bt_fit_rate(&w->compute_ms);
    const double ahead_ms = rate > 0 ? (double)w->tokens_ahead / rate : 0;
    const double compute_ms = bt_fit_at(&w->compute_ms, n_tokens);
    const double link_ms = w->bytes_per_ms > 0
            ? (double)n_tokens * (double)token_bytes / w->bytes_per_ms : 0;
    return w->round_trip_ms + ahead_ms + (compute_ms > link_ms ? compute_ms : link_ms) +
           w->tail_ms;
}

/* The order among workers needs an estimate also for one that has not worked yet: the best rate
 * seen anywhere stands in, so that a new worker gets its first prompt. */
static double order_ms(const bt_router_worker *w, const bt_router_question *q, double rate_best)
{
    const double known = bt_router_remote_ms(w, q->n_tokens, q->token_bytes);
    const double rate = rate_best > 0 ? rate_best : 1;
    return known > 0 ? known
            : w->round_trip_ms + ((double)w->tokens_ahead + (double)q->n_tokens) / rate;
}

static int best_worker(const bt_router_question *q, const bt_router_worker *workers, uint32_t n,
                       int skip)
{
    double rate_best = 0, best_ms = 0;
    int best = -1;
    for (uint32_t i = 0; i < n; i++) {
        const double rate = bt_fit_rate(&workers[i].compute_ms);
        rate_best = rate > rate_best ? rate : rate_best;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!workers[i].ready || (int)i == skip) {
            continue;
        }
        const double ms = order_ms(&workers[i], q, rate_best);
        if (best < 0 || ms < best_ms) {
            best = (int)i;
            best_ms = ms;
        }
    }
    return best;
}

/* Decides by time: `a` has the best worker; both times are known. */
static bool worth_sending(const bt_router_question *q, const bt_router_answer *a)
{
    const double bias = q->last_remote ? BT_ROUTER_BIAS : 1.0;
    return a->remote_ms <= a->local_ms * bias;
}

bt_router_answer bt_router_choose(const bt_router_question *q, const bt_router_worker *workers,
                                  uint32_t n_workers, int skip, char *reason, size_t reason_size)
{
    bt_router_answer a = { .worker = best_worker(q, workers, n_workers, skip) };
    const uint32_t least = q->always ? 1 : q->automatic ? q->min_first : q->min_tokens;

    a.local_ms = q->local_ms ? bt_fit_at(q->local_ms, q->n_tokens) : 0;
    if (a.worker >= 0) {
        a.remote_ms = bt_router_remote_ms(&workers[a.worker], q->n_tokens, q->token_bytes);
    }
    a.measured = a.local_ms > 0 && a.remote_ms > 0;

    if (q->automatic && !q->always && a.measured) {
        const bool stale = workers[a.worker].measured_age_ms > BT_ROUTER_STALE_MS &&
                           q->n_tokens >= q->min_first;
        if (stale && a.remote_ms <= a.local_ms * BT_ROUTER_PROBE_MAX) {
            bt_say(reason, reason_size, "the worker has not been measured for %.0f s",
                   workers[a.worker].measured_age_ms / 1000);
            return a;
        }
        if (!worth_sending(q, &a)) {
            bt_say(reason, reason_size, "%u tokens take about %.0f ms here and %.0f ms on a worker",
                q->n_tokens, a.local_ms, a.remote_ms);
            a.worker = -1;
            return a;
        }
        bt_say(reason, reason_size, "%u tokens take about %.0f ms on the worker and %.0f ms here",
            q->n_tokens, a.remote_ms, a.local_ms);
        return a;
    }
    if (q->n_tokens < least) {
        bt_say(reason, reason_size, "%u tokens to prefill, fewer than the %u that go to a worker",
            q->n_tokens, least);
        a.worker = -1;
        return a;
    }
    a.wanted_remote = true;
    if (a.worker < 0) {
        bt_say(reason, reason_size, "no worker is ready");
    } else if (q->always) {
        bt_say(reason, reason_size, "the request asks for a worker");
    } else {
        bt_say(reason, reason_size, "%u tokens to prefill, at least the %u that go to a worker",
            q->n_tokens, least);
    }
    return a;
}

uint32_t bt_router_break_even(const bt_router_question *q, const bt_router_worker *w)
{
    if (!q->automatic) {
        return q->min_tokens;
    }
    if (!q->local_ms || !bt_fit_known(q->local_ms) || !bt_fit_known(&w->compute_ms)) {
        return q->min_first;
    }
    bt_router_worker idle = *w;
    idle.tokens_ahead = 0;
    /* Both times are convex in n and their difference changes sign once at most on the way up
     * (fixed costs against slopes), so halving finds the place. */
    uint32_t low = 1, high = BT_CONTEXT_MAX;
    const double bias = q->last_remote ? BT_ROUTER_BIAS : 1.0;
    if (bt_router_remote_ms(&idle, high, q->token_bytes) > bt_fit_at(q->local_ms, high) * bias) {
        return UINT32_MAX;
    }
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (bt_router_remote_ms(&idle, middle, q->token_bytes) <=
            bt_fit_at(q->local_ms, middle) * bias) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}
