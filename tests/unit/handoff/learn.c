/* tests/unit/handoff/learn.c - what committed prompts teach of the link: samples that say nothing,
 * or only a bound, move an estimate no further than they can know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "handoff/prefill_private.h"

static bt_prefill owner;
static bt_handoff_peer peer;

static int fresh(void **state)
{
    (void)state;
    memset(&owner, 0, sizeof owner);
    memset(&peer, 0, sizeof peer);
    peer.owner = &owner;
    peer.chunk = 512;
    return 0;
}

/* A prompt of `early` bytes in `paced_ms`, at the pace of computing, and `late` ones in exposed_ms.
 * link_rate: bytes per ms that the connection has measured by its frames; 0: none. */
static void prompt(double early, double paced_ms, double late, double exposed_ms, double link_rate)
{
    static uint32_t tokens[600];
    const bt_wire_prefill asked = { .nonce = 1, .epoch = 1, .position_end = 600 };
    const double now = bt_clock_ms();
    bt_handoff_job job = {
        .tokens = tokens, .end = 600, .alone = true, .asked = asked, .sent = true,
        .sent_ms = now - paced_ms - exposed_ms, .rows_ms = now - paced_ms - exposed_ms,
        .report = { .exposed_ms = exposed_ms, .transfer_ms = paced_ms + exposed_ms },
        .n_marks = 2, .marks = { { now - exposed_ms, early }, { now, early + late } },
    };
    const bt_wire_commit m = { .compute_us = (uint64_t)(1000 * paced_ms) };
    const bt_link_stats link = { .goodput_bytes_per_ms = link_rate };
    assert_int_equal(bt_wire_tally_open(1, &asked, &job.ledger.tally, NULL), BT_OK);
    bt_wire_tally_put(job.ledger.tally, BT_WIRE_ROWS, (uint32_t)(early + late), 1);
    (void)pthread_mutex_lock(&owner.lock);
    bt_handoff_peer_learn(&peer, &job, &m, &link);
    (void)pthread_mutex_unlock(&owner.lock);
    bt_wire_tally_close(job.ledger.tally);
}

static double forecast_rate(void) /* bytes per ms that forecasts reckon with; 0: any */
{
    return peer.transfer.cost[1] > 0 ? 1 / peer.transfer.cost[1] : 0;
}

/* SmolLM2 over loopback, as it was seen. */
static void the_last_layer_over_a_fast_link_says_nothing(void **state)
{
    (void)state;
    static const double exposed_ms[] = { 0.47, 1.91, 0.37, 3.61, 0.33, 0.49, 0.41, 1.64 };
    for (size_t i = 0; i < BT_LEN(exposed_ms); i++) {
        prompt(9e6, 700, 230e3, exposed_ms[i], 0);
    }
    assert_float_equal(peer.bytes_per_ms, 0, 0);       /* not the pace of computing, 13 MB/s */
    assert_float_equal(forecast_rate(), 0, 0);
    assert_in_range((uint64_t)peer.least_bytes_per_ms, 12e3, 14e3);
    prompt(9e6, 700, 230e3, 0.4, 1.2e6);               /* the frames themselves tell */
    assert_float_equal(peer.bytes_per_ms, 1.2e6, 0);
}

static void a_slow_link_is_measured_by_what_waits_for_it(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        prompt(5e6, 100, 5e6, 100, 0);
    }
    assert_in_range((uint64_t)peer.bytes_per_ms, 45e3, 55e3);
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
    assert_in_range((uint64_t)peer.bytes_per_ms, 45e3, 55e3);
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
        assert_true(peer.bytes_per_ms <= 12e3 * 1.001);
        assert_true(forecast_rate() <= 12e3 * 1.01);
        assert_true(bytes[i] < 600e3 || peer.bytes_per_ms > 11e3);
    }
}

static void rows_at_the_pace_of_computing_raise_and_never_lower(void **state)
{
    (void)state;
    a_slow_link_is_measured_by_what_waits_for_it(state);
    prompt(5e6, 1000, 0, 0.1, 0);                      /* 5 kB/ms */
    assert_in_range((uint64_t)peer.bytes_per_ms, 45e3, 55e3);
    prompt(50e6, 100, 0, 0.1, 0);                      /* 500 kB/ms: it can do that */
    assert_true(peer.bytes_per_ms > 490e3 && peer.bytes_per_ms < 510e3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_last_layer_over_a_fast_link_says_nothing, fresh),
        cmocka_unit_test_setup(a_slow_link_is_measured_by_what_waits_for_it, fresh),
        cmocka_unit_test_setup(little_is_a_bound_and_no_measurement, fresh),
        cmocka_unit_test_setup(what_was_buffered_is_no_goodput, fresh),
        cmocka_unit_test_setup(rows_at_the_pace_of_computing_raise_and_never_lower, fresh),
    };
    return cmocka_run_group_tests_name("handoff/learn", tests, NULL, NULL);
}
