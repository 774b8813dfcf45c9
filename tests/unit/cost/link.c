/* tests/unit/cost/link.c - what arriving rows teach of a link: samples that say nothing, or only a
 * bound, move an estimate no further than they can know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "cost/link.h"

static bt_cost_link link;

static int fresh(void **state)
{
    (void)state;
    memset(&link, 0, sizeof link);
    return 0;
}

/* A prompt of `early` bytes in `paced_ms`, at the pace of computing, and `late` ones in exposed_ms.
 * frames: bytes per ms that the connection has measured by its frames; 0: none. */
static void prompt(double early, double paced_ms, double late, double exposed_ms, double frames)
{
    const double end = 1e6 + paced_ms + exposed_ms;
    bt_cost_arrivals a = { .first_ms = 1e6, .bytes = 1e-9 };     /* a first frame of nothing */
    bt_cost_arrivals_put(&a, end - exposed_ms, early);
    bt_cost_arrivals_put(&a, end, late);
    bt_cost_link_learn(&link, &(bt_cost_prompt){
        .arrivals = &a, .sent_ms = 1e6, .end_ms = end, .exposed_ms = exposed_ms, .alone = true,
        .frames_bytes_per_ms = frames,
    });
}

static double forecast_rate(void) /* bytes per ms that forecasts reckon with; 0: any */
{
    return link.transfer.cost[1] > 0 ? 1 / link.transfer.cost[1] : 0;
}

/* SmolLM2 over loopback, as it was seen. */
static void the_last_layer_over_a_fast_link_says_nothing(void **state)
{
    (void)state;
    static const double exposed_ms[] = { 0.47, 1.91, 0.37, 3.61, 0.33, 0.49, 0.41, 1.64 };
    for (size_t i = 0; i < BT_LEN(exposed_ms); i++) {
        prompt(9e6, 700, 230e3, exposed_ms[i], 0);
    }
    assert_float_equal(link.bytes_per_ms, 0, 0);       /* not the pace of computing, 13 MB/s */
    assert_float_equal(forecast_rate(), 0, 0);
    assert_in_range((uint64_t)link.least_bytes_per_ms, 12e3, 14e3);
    prompt(9e6, 700, 230e3, 0.4, 1.2e6);               /* the frames themselves tell */
    assert_float_equal(link.bytes_per_ms, 1.2e6, 0);
}

static void a_slow_link_is_measured_by_what_waits_for_it(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        prompt(5e6, 100, 5e6, 100, 0);
    }
    assert_in_range((uint64_t)link.bytes_per_ms, 45e3, 55e3);
    assert_in_range((uint64_t)forecast_rate(), 45e3, 55e3);
}

static void little_is_a_bound_and_no_measurement(void **state)
{
    (void)state;
    a_slow_link_is_measured_by_what_waits_for_it(state);
    const double before = forecast_rate();
    for (int i = 0; i < 10; i++) {                     /* slower than thought: or we were late */
        prompt(5e6, 1000, 70e3, 4.9, 0);
    }
    assert_float_equal(forecast_rate(), before, 0);
    assert_in_range((uint64_t)link.bytes_per_ms, 45e3, 55e3);
    for (int i = 0; i < 20; i++) {                     /* faster: at least 230 kB in 0.3 + 1 ms */
        prompt(5e6, 1000, 230e3, 0.3, 0);
        assert_true(forecast_rate() <= 230e3 / 1.3 * 1.01);
    }
    assert_true(forecast_rate() > 2 * before);
}

/* 100 Mbit/s, 12 kB a ms, behind something that lets 64 KiB pass at once after a pause. No length
 * of prompt shows more than the cable, and a few long ones show what it is. */
static void what_was_buffered_is_no_goodput(void **state)
{
    (void)state;
    static const double bytes[] = { 70e3, 130e3, 300e3, 600e3, 900e3, 1.5e6 };
    for (size_t i = 0; i < BT_LEN(bytes); i++) {
        (void)fresh(state);
        for (int k = 0; k < 4; k++) {
            prompt(0, 0, bytes[i], (bytes[i] - 65536) / 12e3, 0);
        }
        assert_true(link.bytes_per_ms <= 12e3 * 1.001);
        assert_true(forecast_rate() <= 12e3 * 1.01);
        assert_true(bytes[i] < 600e3 || link.bytes_per_ms > 11e3);
    }
}

static void rows_at_the_pace_of_computing_raise_and_never_lower(void **state)
{
    (void)state;
    a_slow_link_is_measured_by_what_waits_for_it(state);
    prompt(5e6, 1000, 0, 0.1, 0);                      /* 5 kB/ms */
    assert_in_range((uint64_t)link.bytes_per_ms, 45e3, 55e3);
    prompt(50e6, 100, 0, 0.1, 0);                      /* 500 kB/ms: it can do that */
    assert_true(link.bytes_per_ms > 490e3 && link.bytes_per_ms < 510e3);
}

/* Marks are thinned out, and still say when what had come. */
static void many_arrivals_are_a_curve(void **state)
{
    (void)state;
    bt_cost_arrivals a = { 0 };
    for (int i = 0; i < 1000; i++) {
        bt_cost_arrivals_put(&a, 100 + i, 10);
    }
    assert_true(a.n_marks <= BT_COST_MARKS);
    assert_float_equal(a.first_ms, 100, 0);
    assert_float_equal(bt_cost_arrivals_timed(&a), 9990, 0);
    for (double ms = 100; ms < 1099; ms += 37) {
        assert_float_equal(bt_cost_arrivals_at(&a, ms), 10 * (ms - 99), 20);
    }
    assert_float_equal(bt_cost_arrivals_at(&a, 50), 10, 0);
    assert_float_equal(bt_cost_arrivals_at(&a, 1e9), 10000, 0);
}

static void a_part_is_a_bound(void **state)
{
    (void)state;
    a_slow_link_is_measured_by_what_waits_for_it(state);
    const double before = forecast_rate();
    bt_cost_arrivals a = { .first_ms = 1000, .bytes = 1e-9 };
    bt_cost_arrivals_put(&a, 2000, 5e6);
    bt_cost_link_learn_part(&link, &a, 2000);          /* 5 kB/ms: slower, says nothing */
    assert_float_equal(forecast_rate(), before, 0);
    for (int i = 0; i < 4; i++) {
        bt_cost_link_learn_part(&link, &a, 1010);      /* 500 kB/ms */
    }
    assert_true(forecast_rate() > before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_last_layer_over_a_fast_link_says_nothing, fresh),
        cmocka_unit_test_setup(a_slow_link_is_measured_by_what_waits_for_it, fresh),
        cmocka_unit_test_setup(little_is_a_bound_and_no_measurement, fresh),
        cmocka_unit_test_setup(what_was_buffered_is_no_goodput, fresh),
        cmocka_unit_test_setup(rows_at_the_pace_of_computing_raise_and_never_lower, fresh),
        cmocka_unit_test_setup(many_arrivals_are_a_curve, fresh),
        cmocka_unit_test_setup(a_part_is_a_bound, fresh),
    };
    return cmocka_run_group_tests_name("cost/link", tests, NULL, NULL);
}
