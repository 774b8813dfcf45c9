/* The chain of docs/sampling.md.
 *
 * Few logits are ever changed (biased or penalised ids), so the row is not copied: changed ids are
 * marked in a bit set, left out when the row is walked, and entered apart with their new value.
 * A list of all candidates exists only when neither greedy nor top-k has cut it before. */
#include "sample/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/memory.h"
#include "base/random.h"
#include "sample/options.h"
#include "sample/select.h"
#include "sample/window.h"

struct bt_sampler {
    float    temperature, top_p, min_p;
    uint32_t top_k;               /* 0: off */
    uint32_t min_keep;
    float    penalty_repeat, penalty_frequency, penalty_presence;
    uint32_t n_vocab, seed;
    bt_mt19937 generator;

    bt_logit_bias *bias;          /* [n_bias] one entry per id, ids ascending */
    size_t     n_bias;
    bt_window  window;            /* size 0 when no penalty acts */
    uint32_t  *changed;           /* bit set of ids that are biased or in the window; NULL: never */
    bt_candidate *changes;        /* [n_bias + window.size] their values, made anew by each pick */
    uint32_t   n_changes;

    bt_candidate *list;           /* [list_max] candidates */
    uint32_t   list_max;          /* 0 for greedy, top_k, or n_vocab */
    float      max;               /* largest logit of the list */
    bool       sorted;            /* list is in order, best first */
    bt_candidate top[BT_TOP_LOGPROBS_MAX];
};

/* ---- create ---- */

static int by_id(const void *a, const void *b)
{
    const uint32_t x = ((const bt_logit_bias *)a)->id, y = ((const bt_logit_bias *)b)->id;
    return x < y ? -1 : x > y;
}

/* Sorted by id; biases of the same id add up. */
static bt_status take_bias(bt_sampler *s, const bt_logit_bias *bias, size_t n)
{
    s->bias = bt_alloc_zero(BT_MEM_sample, n, sizeof *s->bias);
    if (!s->bias) {
        return BT_E_NOMEM;
    }
    if (n == 0) {
        return BT_OK;
    }
    memcpy(s->bias, bias, n * sizeof *bias);
    qsort(s->bias, n, sizeof *s->bias, by_id);
    for (size_t i = 0; i < n; i++) {
        if (s->n_bias > 0 && s->bias[s->n_bias - 1].id == s->bias[i].id) {
            s->bias[s->n_bias - 1].bias += s->bias[i].bias;
        } else {
            s->bias[s->n_bias++] = s->bias[i];
        }
    }
    return BT_OK;
}

static void mark_changed(bt_sampler *s, uint32_t id)
{
    s->changed[id / 32] |= 1u << (id % 32);
}

static void unmark_changed(bt_sampler *s, uint32_t id)
{
    s->changed[id / 32] &= ~(1u << (id % 32));
}

static uint32_t window_size(const bt_sampler_options *o, uint32_t n_context)
{
    const bool acts = o->penalty_repeat != 1 || o->penalty_frequency != 0 ||
                      o->penalty_presence != 0;
    if (!acts || o->penalty_last_n == 0) {
        return 0;
    }
    return o->penalty_last_n < 0 || (uint32_t)o->penalty_last_n > n_context
                   ? n_context : (uint32_t)o->penalty_last_n;
}

static uint32_t list_size(const bt_sampler *s)
{
    if (s->temperature <= 0) {
        return 0;
    }
    return s->top_k > 0 ? s->top_k : s->n_vocab;
}

static bt_status allocate(bt_sampler *s, const bt_sampler_options *o, uint32_t n_context)
{
    BT_TRY(take_bias(s, o->bias, o->n_bias));
    BT_TRY(bt_sample_window_init(&s->window, window_size(o, n_context), s->n_vocab));
    const size_t n_changes = s->n_bias + s->window.size;
    if (n_changes > 0) {
        s->changed = bt_alloc_zero(BT_MEM_sample, s->n_vocab / 32 + 1, sizeof *s->changed);
        s->changes = bt_alloc_zero(BT_MEM_sample, n_changes, sizeof *s->changes);
        if (!s->changed || !s->changes) {
            return BT_E_NOMEM;
        }
    }
    for (size_t i = 0; i < s->n_bias; i++) {
        mark_changed(s, s->bias[i].id);
    }
    s->list_max = list_size(s);
    if (s->list_max > 0) {
        s->list = bt_alloc_zero(BT_MEM_sample, s->list_max, sizeof *s->list);
        return s->list ? BT_OK : BT_E_NOMEM;
    }
    return BT_OK;
}

static bt_status choose_seed(uint32_t wish, uint32_t *ret_seed, bt_error *err)
{
    uint32_t seed = wish;
    while (seed == BT_SEED_RANDOM) {
        const bt_status status = bt_random_bytes(&seed, sizeof seed);
        if (status != BT_OK) {
            return bt_fail(err, status, "the system gives no random numbers for a seed");
        }
    }
    *ret_seed = seed;
    return BT_OK;
}

bt_status bt_sample_create(const bt_sampler_options *o, uint32_t n_vocab, uint32_t n_context,
                           bt_sampler **ret_sampler, bt_error *err)
{
    BT_ASSERT(n_vocab >= 1);
    BT_ASSERT(n_context >= 1);
    BT_TRY(bt_sample_options_check(o, n_vocab, err));
    uint32_t seed = 0;
    BT_TRY(choose_seed(o->seed, &seed, err));

    bt_sampler *s = bt_alloc_zero(BT_MEM_sample, 1, sizeof *s);
    if (!s) {
        return bt_fail_nomem(err, sizeof *s, "a sampler");
    }
    s->temperature = o->temperature;
    s->top_k = o->top_k <= 0 || (uint32_t)o->top_k >= n_vocab ? 0 : (uint32_t)o->top_k;
    s->top_p = o->top_p;
    s->min_p = o->min_p;
    s->min_keep = o->min_keep;
    s->penalty_repeat = o->penalty_repeat;
    s->penalty_frequency = o->penalty_frequency;
    s->penalty_presence = o->penalty_presence;
    s->n_vocab = n_vocab;
    s->seed = seed;
    bt_mt19937_init(&s->generator, seed);
    if (allocate(s, o, n_context) != BT_OK) {
        bt_sample_destroy(s);
        return bt_fail(err, BT_E_NOMEM, "out of memory for a sampler over %u tokens", n_vocab);
    }
    *ret_sampler = s;
    return BT_OK;
}

void bt_sample_destroy(bt_sampler *s)
{
    if (s) {
        bt_free(s->bias);
        bt_sample_window_done(&s->window);
        bt_free(s->changed);
        bt_free(s->changes);
        bt_free(s->list);
        bt_free(s);
    }
}

uint32_t bt_sample_seed(const bt_sampler *s)
{
    return s->seed;
}

/* ---- failures ---- */

static bt_status fail_row(const bt_sampler *s, const float *logits, bt_error *err)
{
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (!(logits[i] <= FLT_MAX)) {
            return bt_fail(err, BT_E_DEVICE, "logit %u of %u is %g: the device or the model's "
                           "weights are damaged", i, s->n_vocab, (double)logits[i]);
        }
    }
    return bt_fail(err, BT_E_DEVICE, "none of %u logits is finite: the device or the model's "
                   "weights are damaged", s->n_vocab);
}

/* No candidate is left: by the row's own fault, or because all was banned. */
static bt_status fail_empty(const bt_sampler *s, const float *logits, bt_error *err)
{
    bt_candidate best;
    if (!bt_sample_select_best(logits, s->n_vocab, NULL, &best) || best.id == UINT32_MAX) {
        return fail_row(s, logits, err);
    }
    return bt_fail(err, BT_E_BADINPUT, "logit_bias bans every token that the model could choose");
}

/* ---- history, bias and penalties ---- */

static bool is_biased(const bt_sampler *s, uint32_t id)
{
    const bt_logit_bias key = { .id = id };
    return s->n_bias > 0 && bsearch(&key, s->bias, s->n_bias, sizeof key, by_id) != NULL;
}

void bt_sample_accept(bt_sampler *s, uint32_t token)
{
    BT_ASSERT(token < s->n_vocab);
    if (s->window.size == 0) {
        return;
    }
    uint32_t left;
    if (bt_sample_window_put(&s->window, token, &left)) {
        mark_changed(s, token);
    }
    if (left != UINT32_MAX && left != token && !is_biased(s, left)) {
        unmark_changed(s, left);
    }
}

static float penalise(const bt_sampler *s, float logit, uint32_t count)
{
    if (count == 0) {
        return logit;
    }
    logit = logit <= 0 ? logit * s->penalty_repeat : logit / s->penalty_repeat;
    return logit - ((float)count * s->penalty_frequency + s->penalty_presence);
}

/* Fills s->changes with the ids whose logits differ from the row's. */
static bt_status change(bt_sampler *s, const float *logits, bt_error *err)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_bias; i++) {
        const uint32_t id = s->bias[i].id;
        const uint32_t count = bt_sample_window_count(&s->window, id);
        s->changes[n++] = (bt_candidate){ id, penalise(s, logits[id] + s->bias[i].bias, count) };
    }
    for (uint32_t i = 0; i < s->window.n_entries; i++) {
        const bt_window_entry e = s->window.entries[i];
        if (s->n_bias == 0 || !is_biased(s, e.id)) {
            s->changes[n++] = (bt_candidate){ e.id, penalise(s, logits[e.id], e.count) };
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!(logits[s->changes[i].id] <= FLT_MAX)) {
            return fail_row(s, logits, err);
        }
        if (!(s->changes[i].logit <= FLT_MAX)) {
            return bt_fail(err, BT_E_BADINPUT, "bias and penalties of token %u leave no finite "
                           "logit (%g); use smaller numbers", s->changes[i].id,
                           (double)s->changes[i].logit);
        }
    }
    s->n_changes = n;
    return BT_OK;
}

/* ---- the chain ---- */

static bt_status pick_greedy(bt_sampler *s, const float *logits, uint32_t *ret_token, bt_error *err)
{
    bt_candidate best;
    if (!bt_sample_select_best(logits, s->n_vocab, s->changed, &best)) {
        return fail_row(s, logits, err);
    }
    for (uint32_t i = 0; i < s->n_changes; i++) {
        if (s->changes[i].logit > -INFINITY && bt_sample_candidate_before(s->changes[i], best)) {
            best = s->changes[i];
        }
    }
    if (best.id == UINT32_MAX) {
        return fail_empty(s, logits, err);
    }
    *ret_token = best.id;
    return BT_OK;
}

/* The candidates after top-k, in *ret_count; sorted with top-k, else in order of ids. */
static bt_status gather(bt_sampler *s, const float *logits, uint32_t *ret_count, bt_error *err)
{
    uint32_t count = 0;
    if (s->top_k > 0) {
        if (!bt_sample_select_top(logits, s->n_vocab, s->changed, s->top_k, s->list, &count)) {
            return fail_row(s, logits, err);
        }
        for (uint32_t i = 0; i < s->n_changes; i++) {
            bt_sample_select_offer(s->list, &count, s->top_k, s->changes[i]);
        }
        bt_sample_select_order(s->list, count);
        s->max = s->list[0].logit;
    } else {
        bool bad = false;
        for (; count < s->n_vocab; count++) {
            s->list[count] = (bt_candidate){ count, logits[count] };
            bad |= !(logits[count] <= FLT_MAX);
        }
        if (bad) {
            return fail_row(s, logits, err);
        }
        for (uint32_t i = 0; i < s->n_changes; i++) {
            s->list[s->changes[i].id].logit = s->changes[i].logit;
        }
        s->max = -INFINITY;
        for (uint32_t i = 0; i < count; i++) {
            s->max = s->list[i].logit > s->max ? s->list[i].logit : s->max;
        }
    }
    s->sorted = s->top_k > 0;
    if (!(s->max > -INFINITY)) {
        return fail_empty(s, logits, err);
    }
    *ret_count = count;
    return BT_OK;
}

/* The m best stand at the end of the list, best last; brings them to its front, best first. */
static void bring_to_front(bt_candidate *list, uint32_t count, uint32_t m)
{
    const uint32_t n_swaps = m < count / 2 ? m : count / 2;      /* beyond: the list is turned */
    for (uint32_t i = 0; i < n_swaps; i++) {
        const bt_candidate c = list[i];
        list[i] = list[count - 1 - i];
        list[count - 1 - i] = c;
    }
}

/* Best first, until the sum of probabilities reaches p; an unsorted list is sorted only so far. */
static uint32_t keep_top_p(bt_sampler *s, uint32_t count)
{
    if (s->top_p >= 1) {
        return count;
    }
    float sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += expf(s->list[i].logit - s->max);
    }
    if (!s->sorted) {
        bt_sample_select_heap_best(s->list, count);
    }
    float reached = 0;
    uint32_t kept = 0, left = count;
    while (kept < count) {
        const bt_candidate c =
                s->sorted ? s->list[kept] : bt_sample_select_take_best(s->list, &left);
        reached += expf(c.logit - s->max) / sum;
        kept++;
        if (reached >= s->top_p && kept >= s->min_keep) {
            break;
        }
    }
    if (!s->sorted) {
        bring_to_front(s->list, count, kept);
        s->sorted = true;
    }
    return kept;
}

static uint32_t keep_min_p(bt_sampler *s, uint32_t count)
{
    if (s->min_p <= 0) {
        return count;
    }
    const float least = s->max + logf(s->min_p);
    uint32_t passing = 0;
    for (uint32_t i = 0; i < count; i++) {
        passing += s->list[i].logit >= least;
    }
    const uint32_t least_kept = s->min_keep < count ? s->min_keep : count;
    if (s->sorted) {
        return passing > least_kept ? passing : least_kept;
    }
    if (passing < least_kept) {
        uint32_t left = count;
        bt_sample_select_heap_best(s->list, count);
        while (left > count - least_kept) {
            (void)bt_sample_select_take_best(s->list, &left);
        }
        bring_to_front(s->list, count, least_kept);
        s->sorted = true;
        return least_kept;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (s->list[i].logit >= least) {
            s->list[kept++] = s->list[i];
        }
    }
    return kept;
}

/* One draw of the generator per token, also when only one candidate is left. */
static uint32_t draw(bt_sampler *s, uint32_t count)
{
    const double unit = bt_mt19937_unit(&s->generator);
    const float max = s->max / s->temperature;
    if (!isfinite(max)) {                        /* so cold that the best is all there is */
        uint32_t best = 0;
        while (s->list[best].logit < s->max) {
            best++;
        }
        return s->list[best].id;
    }
    double total = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->list[i].logit = expf(s->list[i].logit / s->temperature - max);
        total += (double)s->list[i].logit;
    }
    const double goal = unit * total;
    double sum = 0;
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (s->list[i].logit > 0) {              /* a banned token is never drawn */
            chosen = s->list[i].id;
            sum += (double)s->list[i].logit;
            if (sum >= goal) {
                break;
            }
        }
    }
    return chosen;
}

bt_status bt_sample_pick(bt_sampler *s, const float *logits, uint32_t *ret_token, bt_error *err)
{
    uint32_t token = 0, count = 0;
    BT_TRY(change(s, logits, err));
    if (s->temperature <= 0) {
        BT_TRY(pick_greedy(s, logits, &token, err));
    } else {
        BT_TRY(gather(s, logits, &count, err));
        count = keep_top_p(s, count);
        count = keep_min_p(s, count);
        token = draw(s, count);
    }
    bt_sample_accept(s, token);
    *ret_token = token;
    return BT_OK;
}

/* ---- log probabilities ---- */

static float logprob_of(float logit, float max, double log_sum)
{
    const double l = (double)logit - (double)max - log_sum;
    return l > -(double)FLT_MAX ? (float)l : -FLT_MAX;
}

void bt_sample_logprobs(bt_sampler *s, const float *logits, uint32_t token, uint32_t n,
                        bt_token_logprob *to, float *ret_logprob)
{
    BT_ASSERT(token < s->n_vocab);
    BT_ASSERT(n <= BT_TOP_LOGPROBS_MAX);
    uint32_t count = 0;
    const uint32_t k = n < 1 ? 1 : n > s->n_vocab ? s->n_vocab : n;
    const bool fine = bt_sample_select_top(logits, s->n_vocab, NULL, k, s->top, &count);
    BT_ASSERT(fine && count == k);               /* pick() was given the same row */
    bt_sample_select_order(s->top, count);
    const float max = s->top[0].logit;
    double sum = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        sum += (double)expf(logits[i] - max);
    }
    const double log_sum = log(sum);
    for (uint32_t i = 0; i < n; i++) {
        to[i].id = i < count ? s->top[i].id : UINT32_MAX;
        to[i].logprob = i < count ? logprob_of(s->top[i].logit, max, log_sum) : -FLT_MAX;
    }
    *ret_logprob = logprob_of(logits[token], max, log_sum);
}
