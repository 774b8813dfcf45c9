/* tests/unit/handoff/sweep.c - the router against simulated machines.
 *
 * Machines, link and load have true costs that the router does not see: it learns from noisy
 * samples, of prompts up to half as long as the longest it is asked about, through the same doors
 * as in the program, and then has to choose in every cell of length,
 * link rate, depth of the worker's queue and cached part. What a choice costs is not computed with
 * the router's formulas but by walking through the chunks of both sides, one by one.
 *
 * The chosen side must be the faster one in at least 95 % of the cells and never more than 10 %
 * slower than the best.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/status.h"
#include "route/router.h"

enum { CHUNK = 512, LAYERS = 32 };

/* ---- machines ---- */

typedef struct { double step_ms, token_ms, key_ms; } machine;

typedef struct {
    machine  here, there;
    double   bytes_per_ms, round_trip_ms;
    uint64_t token_bytes;
    double   last_ms;                  /* evaluating the last token here */
} world;

static uint64_t dice = 1;

/* 1 - spread .. 1 + spread */
static double noise(double spread)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return 1 + spread * (2 * ((double)(dice >> 11) / 9007199254740992.0) - 1);
}

static double step_ms(const machine *m, double first, double n)
{
    return m->step_ms + m->token_ms * n + m->key_ms * bt_cost_attended(first, first + n);
}

static double prefill_ms(const machine *m, double first, double end)
{
    double ms = 0;
    for (double at = first; at < end; at += CHUNK) {
        ms += step_ms(m, at, end - at < CHUNK ? end - at : CHUNK);
    }
    return ms;
}

/* Layer by layer through each chunk; rows leave when they are computed and the link is free. */
typedef struct { double rows_ms, computed_ms, link_ms, done_ms; } pushed;

static pushed push(const world *w, double first, double from, double end)
{
    const double layer_bytes = (double)w->token_bytes / LAYERS;
    double clock = w->round_trip_ms / 2, link = 0, rows_ms = 0;
    /* What was in the worker's cache leaves first. */
    if (from > first) {
        rows_ms = clock;
        link = clock + (from - first) * (double)w->token_bytes / w->bytes_per_ms;
    }
    for (double at = from; at < end; at += CHUNK) {
        const double n = end - at < CHUNK ? end - at : CHUNK, ms = step_ms(&w->there, at, n);
        const double wanted = at + n - (at > first ? at : first);
        for (int layer = 0; layer < LAYERS; layer++) {
            clock += ms / LAYERS;
            if (wanted > 0) {
                rows_ms = rows_ms > 0 ? rows_ms : clock;
                link = (link > clock ? link : clock) + wanted * layer_bytes / w->bytes_per_ms;
            }
        }
    }
    return (pushed){ rows_ms, clock, link, (link > clock ? link : clock) + w->round_trip_ms / 2 };
}

static double remote_ms(const world *w, double first, double from, double end, double ahead)
{
    const pushed p = push(w, first, from < end ? from : end, end);
    return p.done_ms + prefill_ms(&w->there, 0, ahead) + w->last_ms;
}

/* ---- what the program would have learned ---- */

typedef struct { bt_cost_fit local, compute, link; double lead_ms, tail_ms; } learned;

static void smooth(double *v, double x) { *v += (x - *v) * (*v > 0 ? 0.25 : 1); }

static void learn_remote(const world *w, learned *l, double n)
{
    const pushed p = push(w, 0, 0, n);
    const double f = noise(0.05), transfer = (p.done_ms - p.rows_ms) * f;
    const double exposed = (p.done_ms - p.computed_ms) * f, bytes = n * (double)w->token_bytes;
    const double waited = p.link_ms - p.computed_ms, late = waited * w->bytes_per_ms;
    bt_cost_fit_put(&l->compute, bt_route_steps(n, CHUNK), n, bt_cost_attended(0, n),
                    (p.computed_ms - w->round_trip_ms / 2) * f);
    if (late >= 65536 && waited >= 1) {
        bt_cost_fit_put(&l->link, 1, late, 0, exposed);
    } else if (bt_cost_fit_at(&l->link, 1, bytes, 0) > transfer) {
        bt_cost_fit_put(&l->link, 1, bytes, 0, transfer);
    }
    if (late < 0.2 * bytes) {
        smooth(&l->tail_ms, exposed);
    }
    smooth(&l->lead_ms, p.rows_ms * f);
}

static void learn_local(const world *w, learned *l, double n)
{
    for (double at = 0; at < n; at += 4096) {
        const double end = n < at + 4096 ? n : at + 4096;
        bt_cost_fit_put(&l->local, bt_route_steps(end - at, CHUNK), end - at,
                        bt_cost_attended(at, end), prefill_ms(&w->here, at, end) * noise(0.05));
    }
}

static void learn(const world *w, learned *l)
{
    static const double lengths[] = { 100, 900, 300, 2500, 180, 16000, 70, 1200 };
    *l = (learned){ 0 };
    for (int i = 0; i < 24; i++) {
        const double n = lengths[i % 8] * noise(0.3);
        learn_remote(w, l, n);
        learn_local(w, l, n);
    }
}

/* ---- the sweep ---- */

typedef struct { uint32_t n, n_wrong; double worst; } score;

static void cell(const world *w, const learned *l, uint32_t first, uint32_t known, uint32_t end,
                 uint32_t ahead, score *s)
{
    const bt_route_worker worker = {
        .ready = true, .compute = &l->compute, .link = &l->link, .lead_ms = l->lead_ms,
        .tail_ms = l->tail_ms, .round_trip_ms = w->round_trip_ms, .chunk = CHUNK,
        .ahead = { ahead, bt_cost_attended(0, ahead) },
        .n_known = known, .idle_ms = 1,
    };
    const bt_route_question q = {
        .position_first = first, .position_end = end, .token_bytes = w->token_bytes,
        .automatic = true, .min_first = 64, .last_remote = s->n % 2,
        .here = { .step = &l->local, .chunk = CHUNK, .last_ms = w->last_ms },
    };
    char reason[256];
    const bt_route_answer a = bt_route_choose(&q, &worker, 1, -1, reason, sizeof reason);
    const double here = prefill_ms(&w->here, first, end);
    const double there = remote_ms(w, first, known, end, ahead);
    const double chosen = a.worker >= 0 ? there : here, best = here < there ? here : there;
    s->n++;
    s->n_wrong += chosen > best;
    s->worst = chosen / best > s->worst ? chosen / best : s->worst;
    if (getenv("BATON_TEST_LOG") && chosen > best) {
        printf("first %u known %u end %u ahead %u: here %.1f (said %.1f) there %.1f (said %.1f)\n",
               first, known, end, ahead, here, a.local_ms, there, a.remote_ms);
    }
}

static void sweep(const world *w, score *s)
{
    static const uint32_t lengths[] = { 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768 };
    static const uint32_t queues[] = { 0, 500, 4000, 30000 };
    learned l;
    learn(w, &l);
    for (size_t i = 0; i < BT_LEN(lengths); i++) {
        for (size_t k = 0; k < BT_LEN(queues); k++) {
            cell(w, &l, 0, 0, lengths[i], queues[k], s);
            /* A second turn: much is cached here; the worker has it too, or has lost it. */
            cell(w, &l, 4096, 4096, 4096 + lengths[i], queues[k], s);
            cell(w, &l, 4096, 0, 4096 + lengths[i], queues[k], s);
        }
    }
}

static void sweep_worlds(score *all)
{
    static const machine here = { 12, 0.9, 2e-5 };
    static const double speedups[] = { 0.7, 1.5, 4, 12 };
    static const double rates[] = { 12500, 125000, 312500, 1250000 };   /* 0.1 .. 10 Gbit/s */
    static const double round_trips[] = { 0.2, 20 };
    for (size_t i = 0; i < BT_LEN(speedups); i++) {
        for (size_t j = 0; j < BT_LEN(rates); j++) {
            for (size_t k = 0; k < BT_LEN(round_trips); k++) {
                const world w = {
                    .here = here,
                    .there = { 25, here.token_ms / speedups[i], here.key_ms / speedups[i] },
                    .bytes_per_ms = rates[j], .round_trip_ms = round_trips[k],
                    .token_bytes = 131072, .last_ms = 15,
                };
                sweep(&w, all);
            }
        }
    }
}

static void the_faster_side_is_chosen(void **state)
{
    (void)state;
    score all = { 0 };
    dice = 1;
    for (int i = 0; i < 4; i++) {           /* other noise each time */
        sweep_worlds(&all);
    }
    print_message("%u cells, wrong side in %u (%.1f %%), at worst %.1f %% slower than the best\n",
                  all.n, all.n_wrong, 100.0 * all.n_wrong / all.n, 100 * (all.worst - 1));
    assert_true(all.n_wrong * 20 <= all.n);
    assert_true(all.worst <= 1.10);
}

/* ---- adaptation ---- */

typedef struct {
    world    w;
    learned  l;
    bool     last_remote;
    uint32_t n_passed;
} life;

/* One prompt of n tokens: chosen, done, learned from. True if it went to the worker. */
static bool live(life *x, double n)
{
    const bt_route_worker worker = {
        .ready = true, .compute = &x->l.compute, .link = &x->l.link, .lead_ms = x->l.lead_ms,
        .tail_ms = x->l.tail_ms, .round_trip_ms = x->w.round_trip_ms, .idle_ms = 1, .chunk = CHUNK,
        .n_passed = x->n_passed,
    };
    const bt_route_question q = {
        .position_end = (uint32_t)n, .token_bytes = x->w.token_bytes, .automatic = true,
        .min_first = 64, .last_remote = x->last_remote, .hedged = true,
        .here = { .step = &x->l.local, .chunk = CHUNK, .last_ms = x->w.last_ms },
    };
    char reason[256];
    const bt_route_answer a = bt_route_choose(&q, &worker, 1, -1, reason, sizeof reason);
    if (a.measured && !a.probe) {
        x->last_remote = a.worker >= 0;
    }
    x->n_passed = a.worker >= 0 ? 0 : x->n_passed + 1;
    /* A probe is prefilled here as well; of one that comes second nothing is learned. */
    const bool lost = a.probe && remote_ms(&x->w, 0, 0, n, 0) > prefill_ms(&x->w.here, 0, n);
    if (a.worker >= 0 && !lost) {
        learn_remote(&x->w, &x->l, n);
    } else {
        if (a.worker >= 0) {
            x->l.compute.surprise = x->l.link.surprise = 0;
        }
        learn_local(&x->w, &x->l, n);
    }
    return a.worker >= 0;
}

static const world usual = {
    .here = { 12, 0.9, 2e-5 }, .there = { 25, 0.2, 4e-6 }, .bytes_per_ms = 1250000,
    .round_trip_ms = 0.2, .token_bytes = 131072, .last_ms = 15,
};

/* The cable falls back from 10 Gbit/s to 100 Mbit/s, and later comes back. */
static void a_change_of_the_link_is_followed(void **state)
{
    (void)state;
    life x = { .w = usual };
    learn(&x.w, &x.l);
    for (int i = 0; i < 20; i++) {
        assert_true(live(&x, 2000 * noise(0.3)));
    }
    x.w.bytes_per_ms = 12500;
    int n = 0;
    while (live(&x, 2000 * noise(0.3))) {
        n++;
        assert_true(n <= 4);
    }
    print_message("flipped to local after %d prompts, ", n);
    /* A probe now and then, and nothing else, while it stays slow. */
    int n_remote = 0;
    for (int i = 0; i < 100; i++) {
        n_remote += live(&x, 2000 * noise(0.3));
    }
    assert_true(n_remote <= 100 / (int)BT_ROUTE_STALE_PROMPTS + 1);
    x.w.bytes_per_ms = 1250000;
    n = 0;
    int row = 0;
    while (row < 5) {                       /* for good, not only as a probe */
        row = live(&x, 2000 * noise(0.3)) ? row + 1 : 0;
        n++;
        assert_true(n <= 4 * (int)BT_ROUTE_STALE_PROMPTS);
    }
    print_message("back to the worker after %d\n", n - 5);
}

/* Both sides cost the same: the choice must not go to and fro. */
static void nothing_flaps_at_the_boundary(void **state)
{
    (void)state;
    life x = { .w = usual };
    x.w.there = (machine){ 12, 0.9, 2e-5 };
    x.w.round_trip_ms = 0.1;
    x.w.last_ms = 0;
    learn(&x.w, &x.l);
    int n_flips = 0;
    bool before = live(&x, 2000);
    for (int i = 0; i < 400; i++) {
        live(&x, 2000 * noise(0.1));
        n_flips += x.last_remote != before;
        before = x.last_remote;
    }
    print_message("%d flips in 400 prompts at the boundary\n", n_flips);
    assert_true(n_flips <= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_faster_side_is_chosen),
        cmocka_unit_test(a_change_of_the_link_is_followed),
        cmocka_unit_test(nothing_flaps_at_the_boundary),
    };
    return cmocka_run_group_tests_name("handoff/sweep", tests, NULL, NULL);
}
