/* tests/unit/cost/fit.c - costs from samples. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "route/router.h"

static double truth(double pieces, double n, double attended)
{
    return 7 * pieces + 0.5 * n + 1e-4 * attended;
}

static void put(bt_cost_fit *f, double first, double n)
{
    const double attended = bt_cost_attended(first, first + n);
    bt_cost_fit_put(f, 1, n, attended, truth(1, n, attended));
}

static void three_costs_are_found(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    assert_false(bt_cost_fit_known(&f));
    assert_float_equal(bt_cost_fit_at(&f, 1, 10, 55), 0, 0);
    for (int i = 0; i < 30; i++) {
        put(&f, 500 * (i % 7), 50 * (1 + i % 5));
    }
    assert_float_equal(f.cost[0], 7, 0.35);
    assert_float_equal(f.cost[1], 0.5, 0.025);
    assert_float_equal(f.cost[2], 1e-4, 5e-6);
    /* Far outside of what was seen, by size and by depth. */
    const double attended = bt_cost_attended(8000, 12000), want = truth(1, 4000, attended);
    assert_float_equal(bt_cost_fit_at(&f, 1, 4000, attended), want, want * 0.03);
}

static void one_size_goes_through_the_origin(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    bt_cost_fit_put(&f, 1, 200, 0, 100);
    bt_cost_fit_put(&f, 1, 200, 0, 100);
    assert_float_equal(bt_cost_fit_at(&f, 1, 400, 0), 200, 0.5);
    assert_float_equal(bt_cost_fit_rate(&f, 400), 2, 0.01);
}

/* Five prompts of about one length that happened to take the same time: not free of length. */
static void about_one_size_is_per_unit(void **state)
{
    (void)state;
    static const double lengths[] = { 150, 158, 153, 149, 160 };
    static const double noises[][5] = {             /* flat, falling, rising, odd first */
        { 242, 242, 242, 242, 242 }, { 250, 230, 242, 252, 228 }, { 228, 252, 242, 225, 256 },
        { 330, 240, 241, 235, 243 },
    };
    for (size_t k = 0; k < 4; k++) {
        bt_cost_fit f = { 0 };
        for (int i = 0; i < 5; i++) {
            bt_cost_fit_put(&f, 1, lengths[i], bt_cost_attended(0, lengths[i]), noises[k][i]);
        }
        assert_in_range(bt_cost_fit_at(&f, 1, 8, 36), 8, 45);                  /* 12.6 */
        assert_in_range(bt_cost_fit_at(&f, 1, 154, bt_cost_attended(0, 154)), 225, 275);
        assert_in_range(bt_cost_fit_at(&f, 1, 422, bt_cost_attended(0, 422)), 580, 850); /* 664 */
        /* 1312 */
        assert_in_range(bt_cost_fit_at(&f, 2, 834, bt_cost_attended(0, 834)), 1100, 2000);
    }
}

/* Of two lengths the fixed part shows after two samples of each; a wrong belief goes quickly. */
static void two_sizes_overrule_it(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    for (int i = 0; i < 5; i++) {
        bt_cost_fit_put(&f, 1, 150 + i, bt_cost_attended(0, 150 + i), 100 + 0.5 * (150 + i));
    }
    for (int i = 0; i < 2; i++) {
        bt_cost_fit_put(&f, 1, 600 + i, bt_cost_attended(0, 600 + i), 100 + 0.5 * (600 + i));
    }
    assert_in_range(bt_cost_fit_at(&f, 1, 150, bt_cost_attended(0, 150)), 166, 184);      /* 175 */
    assert_in_range(bt_cost_fit_at(&f, 1, 600, bt_cost_attended(0, 600)), 370, 430);      /* 400 */
    assert_in_range(bt_cost_fit_at(&f, 1, 30, bt_cost_attended(0, 30)), 80, 118);         /* 115 */
    assert_in_range(bt_cost_fit_at(&f, 2, 1200, bt_cost_attended(0, 1200)), 700, 880);    /* 800 */
}

static void nonsense_never_gives_negative_costs(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    bt_cost_fit_put(&f, 1, 10, 55, 100);
    bt_cost_fit_put(&f, 1, 1000, 500500, 50);            /* falling */
    bt_cost_fit_put(&f, 1, 0, 0, 5);                     /* no sample at all, all of these */
    bt_cost_fit_put(&f, 1, 5, 15, 0);
    bt_cost_fit_put(&f, 1, -1, 15, 3);
    bt_cost_fit_put(&f, 1, 5, 15, 1.0 / 0.0);
    assert_int_equal(f.n_samples, 2);
    for (int i = 0; i < 3; i++) {
        assert_true(f.cost[i] >= 0);
    }
    assert_true(bt_cost_fit_at(&f, 1, 2000, 2001000) >= bt_cost_fit_at(&f, 1, 1000, 500500));
}

/* A hundred steps of one long prompt leave what short ones taught. */
static void a_long_prompt_does_not_wipe_out_short_ones(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    for (int i = 0; i < 8; i++) {
        put(&f, 0, 32 + 4 * i);
    }
    for (int i = 0; i < 100; i++) {
        put(&f, 512.0 * i, 512);
    }
    const double attended = bt_cost_attended(0, 32), want = truth(1, 32, attended);
    assert_float_equal(bt_cost_fit_at(&f, 1, 32, attended), want, want * 0.1);
}

/* Ten times slower, or faster, from one sample to the next: within four samples most of the way. */
static void a_change_is_followed_at_once(void **state)
{
    (void)state;
    static const double factors[] = { 10, 0.1 };
    for (int k = 0; k < 2; k++) {
        bt_cost_fit f = { 0 };
        for (int i = 0; i < 50; i++) {
            bt_cost_fit_put(&f, 1, 1000 + 10 * (i % 7), 0, 100 + (i % 7));
        }
        for (int i = 0; i < 4; i++) {
            bt_cost_fit_put(&f, 1, 1000, 0, 100 * factors[k]);
        }
        const double at = bt_cost_fit_at(&f, 1, 1000, 0);
        assert_true(k == 0 ? at > 700 : at < 30);
    }
}

static void one_odd_sample_moves_little(void **state)
{
    (void)state;
    bt_cost_fit f = { 0 };
    for (int i = 0; i < 50; i++) {
        bt_cost_fit_put(&f, 1, 1000 + 100 * (i % 7), 0, 100 + 10 * (i % 7));
    }
    bt_cost_fit_put(&f, 1, 1000, 0, 200);
    assert_in_range(bt_cost_fit_at(&f, 1, 1000, 0), 95, 112);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_costs_are_found),
        cmocka_unit_test(one_size_goes_through_the_origin),
        cmocka_unit_test(about_one_size_is_per_unit),
        cmocka_unit_test(two_sizes_overrule_it),
        cmocka_unit_test(nonsense_never_gives_negative_costs),
        cmocka_unit_test(a_long_prompt_does_not_wipe_out_short_ones),
        cmocka_unit_test(a_change_is_followed_at_once),
        cmocka_unit_test(one_odd_sample_moves_little),
    };
    return cmocka_run_group_tests_name("handoff/fit", tests, NULL, NULL);
}
