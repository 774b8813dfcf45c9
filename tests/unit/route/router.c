/* tests/unit/route/router.c - predicted times, choices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "route/router.h"

static bt_cost_fit line(double fixed, double slope)
{
    bt_cost_fit f = { 0 };
    for (int i = 0; i < 20; i++) {
        const double n = 100 * (1 + i % 5);
        bt_cost_fit_put(&f, 1, n, 0, fixed + slope * n);
    }
    return f;
}

static char reason[256];

static bt_route_answer choose(const bt_route_question *q, const bt_route_worker *w, uint32_t n)
{
    return bt_route_choose(q, w, n, -1, reason, sizeof reason);
}

static void too_short_stays_and_long_goes(void **state)
{
    (void)state;
    const bt_route_worker w = { .ready = true };
    bt_route_question q = { .position_end = 63, .automatic = true, .min_first = 64 };
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    assert_non_null(strstr(reason, "64"));
    q.position_end = 64;
    assert_int_equal(choose(&q, &w, 1).worker, 0);
    q.automatic = false;
    q.min_tokens = 100;
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    q.always = true;
    q.position_end = 1;
    assert_int_equal(choose(&q, &w, 1).worker, 0);
}

static void nobody_ready_is_said(void **state)
{
    (void)state;
    const bt_route_worker w = { .ready = false };
    const bt_route_question q = { .position_end = 500, .min_tokens = 1 };
    const bt_route_answer a = choose(&q, &w, 1);
    assert_int_equal(a.worker, -1);
    assert_true(a.wanted_remote);
    assert_string_equal(reason, "no worker is ready");
    assert_int_equal(choose(&q, &w, 0).worker, -1);
}

/* Of those that are away it is still known what they cost: where that is more than here, nothing
 * was meant for them. */
static void who_is_away_and_slow_is_not_missed(void **state)
{
    (void)state;
    const bt_cost_fit local = line(0, 1), slow = line(0, 2), fast = line(0, 0.5);
    bt_route_worker w[2] = { { .compute = &slow }, { .ready = false } };
    bt_route_question q = { .position_end = 500, .automatic = true, .min_first = 64,
                             .here = { .step = &local } };
    assert_false(choose(&q, w, 2).wanted_remote);
    assert_non_null(strstr(reason, "about 500 ms here and 1000 ms"));
    w[1].compute = &fast;
    assert_true(choose(&q, w, 2).wanted_remote);
    w[1].compute = &slow;
    q.always = true;                                /* as the request wishes */
    assert_true(choose(&q, w, 2).wanted_remote);
    q.always = q.automatic = false;                 /* as the option says */
    q.min_tokens = 100;
    assert_true(choose(&q, w, 2).wanted_remote);
}

static void least_finish_time_by_tokens(void **state)
{
    (void)state;
    const bt_cost_fit rate = line(0, 1), slow = line(0, 1);
    /* Fewer prompts but more tokens ahead loses. */
    bt_route_worker w[3] = {
        { .ready = true, .compute = &rate, .ahead = { 5000, 0 } },
        { .ready = true, .compute = &rate, .ahead = { 900, 0 } },
        { .ready = false, .compute = &rate },
    };
    const bt_route_question q = { .position_end = 500, .min_tokens = 1, .token_bytes = 1000 };
    assert_int_equal(choose(&q, w, 3).worker, 1);
    assert_int_equal(bt_route_choose(&q, w, 3, 1, reason, sizeof reason).worker, 0);
    w[0].ahead.n_tokens = 0;                          /* idle, but behind a slow link */
    w[0].link = &slow;
    assert_int_equal(choose(&q, w, 3).worker, 1);
}

/* 600 and 200 tokens a second, each measured by three prompts of about one length that took the
 * same time: what waits still costs by its tokens, so of twelve at once the slow one gets some. */
static void little_measured_is_enough_to_share(void **state)
{
    (void)state;
    static const double lengths[] = { 150, 160, 155 };
    bt_cost_fit fits[2] = { 0 };
    for (int i = 0; i < 3; i++) {
        const double n = lengths[i];
        bt_cost_fit_put(&fits[0], 1, n, bt_cost_attended(0, n), 155 / 0.6);
        bt_cost_fit_put(&fits[1], 1, n, bt_cost_attended(0, n), 155 / 0.2);
    }
    bt_route_worker w[2] = {
        { .ready = true, .compute = &fits[0], .chunk = 512, .idle_ms = 1 },
        { .ready = true, .compute = &fits[1], .chunk = 512, .idle_ms = 1 },
    };
    const bt_route_question q = { .position_end = 155, .min_tokens = 1, .token_bytes = 1000 };
    int n_given[2] = { 0 };
    for (int i = 0; i < 12; i++) {
        const int to = choose(&q, w, 2).worker;
        assert_in_range(to, 0, 1);
        const double ahead = w[to].ahead.n_tokens, rate = to ? 0.2 : 0.6;
        assert_float_equal(bt_route_remote_ms(&q, &w[to]), (155 + ahead) / rate,
                           0.15 * (155 + ahead) / rate);
        w[to].ahead.n_tokens += 155;
        w[to].ahead.attended += bt_cost_attended(0, 155);
        n_given[to]++;
    }
    assert_in_range(n_given[1], 2, 4);
}

static void a_new_worker_gets_its_first_prompt(void **state)
{
    (void)state;
    const bt_cost_fit rate = line(0, 1);
    const bt_route_worker w[2] = {
        { .ready = true, .compute = &rate, .ahead = { 300, 0 } },
        { .ready = true },
    };
    const bt_route_question q = { .position_end = 500, .min_tokens = 1 };
    assert_int_equal(choose(&q, w, 2).worker, 1);
}

static void the_mind_is_changed_past_a_margin(void **state)
{
    (void)state;
    const bt_cost_fit local = line(0, 1);
    bt_cost_fit remote = line(0, 1.02);
    const bt_route_worker w = { .ready = true, .compute = &remote, .idle_ms = 1 };
    bt_route_question q = { .position_end = 500, .automatic = true, .min_first = 64,
                             .here = { .step = &local }, .last_remote = true };
    bt_route_answer a = choose(&q, &w, 1);
    assert_true(a.measured);
    assert_int_equal(a.worker, 0);                  /* 2 % slower: stays */
    remote = line(0, 0.98);
    q.last_remote = false;
    assert_int_equal(choose(&q, &w, 1).worker, -1); /* 2 % faster: stays too */
    remote = line(0, 1.1);
    q.last_remote = true;
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    assert_non_null(strstr(reason, "500 ms here"));
    remote = line(0, 0.9);
    q.last_remote = false;
    assert_int_equal(choose(&q, &w, 1).worker, 0);
}

static void a_worker_passed_over_is_tried_again(void **state)
{
    (void)state;
    const bt_cost_fit local = line(0, 1);
    bt_cost_fit remote = line(0, 3);
    bt_route_worker w = { .ready = true, .compute = &remote };
    bt_route_question q = { .position_end = 500, .automatic = true, .min_first = 64,
                             .here = { .step = &local } };
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    w.idle_ms = BT_ROUTE_STALE_MS + 1;             /* for a minute, */
    w.n_passed = 3;
    assert_true(choose(&q, &w, 1).probe);
    assert_non_null(strstr(reason, "60 s ago"));
    w.idle_ms = 1000;
    w.n_passed = BT_ROUTE_STALE_PROMPTS;           /* or for so many prompts */
    const bt_route_answer a = choose(&q, &w, 1);
    assert_true(a.probe);
    assert_non_null(strstr(reason, "16 prompts ago"));
    assert_int_equal(a.worker, 0);
    w.n_passed = 2;
    remote.surprise = -1;                           /* or it was better than thought */
    assert_true(choose(&q, &w, 1).probe);
    assert_non_null(strstr(reason, "the worker was far faster than expected"));
    remote.surprise = 0;
    bt_cost_fit link = line(0, 1e-6);
    link.surprise = -1;
    w.link = &link;
    assert_true(choose(&q, &w, 1).probe);
    assert_non_null(strstr(reason, "the link to the worker was far faster"));
    link.surprise = 0;
    assert_false(choose(&q, &w, 1).probe);
    w.n_passed = BT_ROUTE_STALE_PROMPTS;
    remote = line(0, 5);                            /* hopeless, */
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    q.hedged = true;                                /* but where it costs nothing */
    assert_true(choose(&q, &w, 1).probe);
}

static void a_worker_that_others_outran_is_tried_again(void **state)
{
    (void)state;
    const bt_cost_fit fast = line(0, 0.1), slow = line(0, 0.3), local = line(0, 1);
    bt_route_worker w[2] = {
        { .ready = true, .compute = &fast, .idle_ms = 1 },
        { .ready = true, .compute = &slow, .idle_ms = 1 },
    };
    bt_route_question q = { .position_end = 500, .automatic = true, .min_first = 64,
                             .here = { .step = &local } };
    assert_int_equal(choose(&q, w, 2).worker, 0);
    w[1].idle_ms = BT_ROUTE_STALE_MS + 1;
    assert_int_equal(choose(&q, w, 2).worker, 1);
    assert_non_null(strstr(reason, "60 s ago"));
    w[1].ahead.n_tokens = 5000;
    assert_int_equal(choose(&q, w, 2).worker, 0);
}

/* Workers took every prompt: two go here to learn what that costs, but no long ones. */
static void this_machine_is_measured_too(void **state)
{
    (void)state;
    const bt_cost_fit remote = line(0, 0.5);
    bt_cost_fit none = { 0 };
    const bt_route_worker w = { .ready = true, .compute = &remote, .idle_ms = 1 };
    bt_route_question q = { .position_end = 5000, .automatic = true, .min_first = 64,
                             .here = { .step = &none } };
    assert_int_equal(choose(&q, &w, 1).worker, 0);
    q.position_end = 500;
    const bt_route_answer a = choose(&q, &w, 1);
    assert_int_equal(a.worker, -1);
    assert_true(a.probe);
    assert_false(a.wanted_remote);
    assert_string_equal(reason, "this machine has not been measured yet");
    bt_cost_fit_put(&none, 1, 500, 0, 600);              /* the first one may tell of cold memory */
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    assert_non_null(strstr(reason, "by one prompt only"));
    bt_cost_fit_put(&none, 1, 500, 0, 600);
    assert_int_equal(choose(&q, &w, 1).worker, 0);
    assert_null(strstr(reason, "measured"));
}

static void depth_makes_a_prompt_dearer(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    for (int i = 0; i < 40; i++) {
        const double first = 100 * (i % 8), n = 50 * (1 + i % 5);
        const double attended = bt_cost_attended(first, first + n);
        bt_cost_fit_put(&f, 1, n, attended, n + 0.001 * attended);
    }
    bt_route_question q = { .position_first = 0, .position_end = 1000, .here = { .step = &f } };
    const bt_route_worker w = { .ready = true, .compute = &f };
    const double at_0 = bt_route_local_ms(&q), there_0 = bt_route_remote_ms(&q, &w);
    q.position_first = 9000;
    q.position_end = 10000;
    /* 1000 + 0.5 * 1000 against 1000 + 9.5 * 1000 */
    assert_float_equal(bt_route_local_ms(&q) / at_0, 7, 0.2);
    /* A worker that has nothing in its cache must compute all that lies before as well. */
    assert_float_equal(bt_route_remote_ms(&q, &w) / there_0, 40, 1.5);
    const bt_route_worker has_it = { .ready = true, .compute = &f, .n_known = 9000 };
    assert_float_equal(bt_route_remote_ms(&q, &has_it) / there_0, 7, 0.2);
}

static void what_is_sent_is_what_we_lack(void **state)
{
    (void)state;
    bt_cost_fit compute = line(0, 0.001), link = { 0 };
    for (int i = 1; i <= 20; i++) {
        bt_cost_fit_put(&link, 1, 1e6 * i, 0, 10 * i);   /* 100 MB/s */
    }
    const bt_route_worker w = { .ready = true, .compute = &compute, .link = &link };
    bt_route_question q = { .position_end = 1000, .token_bytes = 100000 };
    assert_float_equal(bt_route_remote_ms(&q, &w), 1000, 20);
    q.position_first = 900;
    assert_float_equal(bt_route_remote_ms(&q, &w), 100, 2);
}

static void decoding_slows_a_prefill_here(void **state)
{
    (void)state;
    const bt_cost_fit step = line(0, 1);
    bt_route_question q = { .position_end = 1000, .here = { .step = &step, .gap_ms = 50,
                                                             .chunk = 512 } };
    assert_float_equal(bt_route_local_ms(&q), 1000, 10);
    q.here.decode_ms = 25;                          /* half of each step */
    assert_float_equal(bt_route_local_ms(&q), 2000, 20);
    q.here.decode_ms = 0;
    q.here.ahead.n_tokens = 500;
    assert_float_equal(bt_route_local_ms(&q), 1500, 15);
}

static void break_even_is_where_the_choice_changes(void **state)
{
    (void)state;
    const bt_cost_fit local = line(0, 1), remote = line(30, 0.25), hopeless = line(0, 9);
    const bt_route_worker w = { .ready = true, .compute = &remote, .round_trip_ms = 100,
                                 .idle_ms = 1 };
    bt_route_question q = { .automatic = true, .min_first = 64, .here = { .step = &local } };
    const uint32_t n = bt_route_break_even(&q, &w);
    assert_in_range(n, 103, 110);                   /* 80 / 0.75 */
    q.position_end = n + n / 10;
    assert_int_equal(choose(&q, &w, 1).worker, 0);
    q.position_end = n - n / 10;
    assert_int_equal(choose(&q, &w, 1).worker, -1);
    const bt_route_worker slow = { .ready = true, .compute = &hopeless };
    assert_int_equal(bt_route_break_even(&q, &slow), UINT32_MAX);
    q.automatic = false;
    q.min_tokens = 5;
    assert_int_equal(bt_route_break_even(&q, &w), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_short_stays_and_long_goes),
        cmocka_unit_test(nobody_ready_is_said),
        cmocka_unit_test(who_is_away_and_slow_is_not_missed),
        cmocka_unit_test(least_finish_time_by_tokens),
        cmocka_unit_test(little_measured_is_enough_to_share),
        cmocka_unit_test(a_new_worker_gets_its_first_prompt),
        cmocka_unit_test(the_mind_is_changed_past_a_margin),
        cmocka_unit_test(a_worker_passed_over_is_tried_again),
        cmocka_unit_test(a_worker_that_others_outran_is_tried_again),
        cmocka_unit_test(this_machine_is_measured_too),
        cmocka_unit_test(depth_makes_a_prompt_dearer),
        cmocka_unit_test(what_is_sent_is_what_we_lack),
        cmocka_unit_test(decoding_slows_a_prefill_here),
        cmocka_unit_test(break_even_is_where_the_choice_changes),
    };
    return cmocka_run_group_tests_name("handoff/router", tests, NULL, NULL);
}
