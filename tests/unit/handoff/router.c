/* tests/unit/handoff/router.c - fits, estimates, choices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "handoff/router.h"

static bt_fit line(double fixed, double slope)
{
    bt_fit f = { 0 };
    for (int i = 0; i < 20; i++) {
        bt_fit_put(&f, 100 * (1 + i % 5), fixed + slope * 100 * (1 + i % 5));
    }
    return f;
}

static void fit_finds_fixed_part_and_slope(void **state)
{
    (void)state;
    const bt_fit f = line(7, 0.5);
    assert_float_equal(bt_fit_at(&f, 1000), 507, 0.01);
    assert_float_equal(bt_fit_at(&f, 0), 7, 0.01);
    assert_float_equal(bt_fit_rate(&f), 2, 0.0001);
}

static void fit_of_one_size_goes_through_the_origin(void **state)
{
    (void)state;
    bt_fit f = { 0 };
    assert_false(bt_fit_known(&f));
    assert_float_equal(bt_fit_at(&f, 10), 0, 0);
    bt_fit_put(&f, 200, 100);
    bt_fit_put(&f, 200, 100);
    assert_float_equal(bt_fit_at(&f, 400), 200, 1e-9);
}

static void fit_never_falls_and_forgets(void **state)
{
    (void)state;
    bt_fit f = { 0 };
    bt_fit_put(&f, 10, 100);
    bt_fit_put(&f, 1000, 50);                       /* falling: nonsense for a time */
    assert_true(bt_fit_at(&f, 2000) >= bt_fit_at(&f, 1000));
    assert_true(bt_fit_at(&f, 0) >= 0);
    f = line(0, 1);
    for (int i = 0; i < 200; i++) {
        bt_fit_put(&f, 100 + i % 7, 4 * (100 + i % 7));
    }
    assert_float_equal(bt_fit_at(&f, 100), 400, 1);
    bt_fit_put(&f, -1, 5);                          /* ignored */
    bt_fit_put(&f, 5, -1);
    assert_float_equal(bt_fit_at(&f, 100), 400, 1);
}

static void too_short_stays_and_long_goes(void **state)
{
    (void)state;
    char reason[256];
    const bt_router_worker w = { .ready = true };
    bt_router_question q = { .n_tokens = 63, .automatic = true, .min_first = 64, .token_bytes = 1 };
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
    assert_non_null(strstr(reason, "64"));
    q.n_tokens = 64;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, 0);
    q.automatic = false;
    q.min_tokens = 100;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
    q.always = true;
    q.n_tokens = 1;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, 0);
}

static void nobody_ready_is_said(void **state)
{
    (void)state;
    char reason[256];
    const bt_router_worker w = { .ready = false };
    const bt_router_question q = { .n_tokens = 500, .min_tokens = 1 };
    const bt_router_answer a = bt_router_choose(&q, &w, 1, -1, reason, sizeof reason);
    assert_int_equal(a.worker, -1);
    assert_true(a.wanted_remote);
    assert_string_equal(reason, "no worker is ready");
}

static void least_finish_time_by_tokens(void **state)
{
    (void)state;
    char reason[256];
    const bt_fit rate = line(0, 1);
    /* Fewer prompts but more tokens ahead loses. */
    bt_router_worker w[3] = {
        { .ready = true, .compute_ms = rate, .tokens_ahead = 5000 },
        { .ready = true, .compute_ms = rate, .tokens_ahead = 900 },
        { .ready = false, .compute_ms = rate },
    };
    const bt_router_question q = { .n_tokens = 500, .min_tokens = 1, .token_bytes = 1 };
    assert_int_equal(bt_router_choose(&q, w, 3, -1, reason, sizeof reason).worker, 1);
    assert_int_equal(bt_router_choose(&q, w, 3, 1, reason, sizeof reason).worker, 0);
    w[0].tokens_ahead = 0;                          /* twice as fast a link does not make up for */
    w[0].bytes_per_ms = 1e-6;
    assert_int_equal(bt_router_choose(&q, w, 3, -1, reason, sizeof reason).worker, 1);
}

static void a_new_worker_gets_its_first_prompt(void **state)
{
    (void)state;
    char reason[256];
    const bt_router_worker w[2] = {
        { .ready = true, .compute_ms = line(0, 1), .tokens_ahead = 300 },
        { .ready = true },
    };
    const bt_router_question q = { .n_tokens = 500, .min_tokens = 1, .token_bytes = 1 };
    assert_int_equal(bt_router_choose(&q, w, 2, -1, reason, sizeof reason).worker, 1);
}

static void slow_worker_is_passed_over_with_hysteresis(void **state)
{
    (void)state;
    char reason[256];
    const bt_fit local = line(0, 1);
    bt_router_worker w = { .ready = true, .compute_ms = line(0, 1.1) };
    bt_router_question q = { .n_tokens = 500, .automatic = true, .min_first = 64, .token_bytes = 1,
                             .local_ms = &local, .last_remote = true };
    bt_router_answer a = bt_router_choose(&q, &w, 1, -1, reason, sizeof reason);
    assert_true(a.measured);
    assert_int_equal(a.worker, 0);                  /* 10 % slower: it leaves us free to decode */
    q.last_remote = false;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
    w.compute_ms = line(0, 1.3);
    q.last_remote = true;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
    assert_non_null(strstr(reason, "500 ms here"));
    w.compute_ms = line(0, 0.2);
    q.last_remote = false;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, 0);
}

static void a_worker_passed_over_is_tried_again(void **state)
{
    (void)state;
    char reason[256];
    const bt_fit local = line(0, 1);
    bt_router_worker w = { .ready = true, .compute_ms = line(0, 3) };
    bt_router_question q = { .n_tokens = 500, .automatic = true, .min_first = 64, .token_bytes = 1,
                             .local_ms = &local };
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
    w.measured_age_ms = BT_ROUTER_STALE_MS + 1;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, 0);
    w.compute_ms = line(0, 5);                      /* hopeless */
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
}

static void break_even_is_where_the_choice_changes(void **state)
{
    (void)state;
    char reason[256];
    const bt_fit local = line(0, 1);
    const bt_router_worker w = { .ready = true, .compute_ms = line(30, 0.25), .round_trip_ms = 50 };
    bt_router_question q = { .automatic = true, .min_first = 64, .token_bytes = 1,
                             .local_ms = &local };
    const uint32_t n = bt_router_break_even(&q, &w);
    assert_in_range(n, 105, 108);                   /* 80 / 0.75 */
    q.n_tokens = n;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, 0);
    q.n_tokens = n - 1;
    assert_int_equal(bt_router_choose(&q, &w, 1, -1, reason, sizeof reason).worker, -1);
    const bt_router_worker slow = { .ready = true, .compute_ms = line(0, 9) };
    assert_int_equal(bt_router_break_even(&q, &slow), UINT32_MAX);
    q.automatic = false;
    q.min_tokens = 5;
    assert_int_equal(bt_router_break_even(&q, &w), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_finds_fixed_part_and_slope),
        cmocka_unit_test(fit_of_one_size_goes_through_the_origin),
        cmocka_unit_test(fit_never_falls_and_forgets),
        cmocka_unit_test(too_short_stays_and_long_goes),
        cmocka_unit_test(nobody_ready_is_said),
        cmocka_unit_test(least_finish_time_by_tokens),
        cmocka_unit_test(a_new_worker_gets_its_first_prompt),
        cmocka_unit_test(slow_worker_is_passed_over_with_hysteresis),
        cmocka_unit_test(a_worker_passed_over_is_tried_again),
        cmocka_unit_test(break_even_is_where_the_choice_changes),
    };
    return cmocka_run_group_tests_name("handoff/router", tests, NULL, NULL);
}
