/* engine/pace.c: what the fit makes of steps whose cost is known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/private.h"

/* 3 ms + 0.5 ms per decode row; 0.2 ms per prefill row + 0.001 ms per key it looks at. */
static double cost(double n_decode, double n_prefill, double n_keys)
{
    const double decode = n_decode > 0 ? 3 + 0.5 * n_decode : 0;
    return decode + 0.2 * n_prefill + 0.001 * n_keys;
}

static double keys_of(double position, double n)
{
    return n * (position + (n + 1) / 2);
}

static void nothing_is_known_at_first(void **state)
{
    (void)state;
    const bt_pace p = { 0 };
    assert_true(bt_engine_pace_decode_ms(&p, 3) == 0);
    assert_true(bt_engine_pace_prefill_ms(&p, false, 100) == 0);
    assert_true(bt_engine_pace_prefill_rate(&p) == 0);
    assert_true(bt_engine_pace_decode_rate(&p) == 0);
}

static void known_costs_are_found(void **state)
{
    (void)state;
    bt_pace p = { 0 };
    for (int i = 0; i < 40; i++) {
        const uint32_t n = 1 + (uint32_t)i % 4;
        bt_engine_pace_note(&p, n, 0, 0, cost(n, 0, 0));
    }
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t decode = i % 3, rows = 16 + i * 7 % 100;
        const double keys = keys_of(i * 50.0, rows);
        const double dearer = decode > 0 ? 0.1 * rows : 0;     /* small runs cost more */
        bt_engine_pace_note(&p, decode, rows, keys, cost(decode, rows, keys) + dearer);
    }
    for (uint32_t n = 1; n <= 8; n++) {
        assert_float_equal(bt_engine_pace_decode_ms(&p, n), 3 + 0.5 * n, 1e-6);
    }
    assert_float_equal(bt_engine_pace_prefill_ms(&p, false, 0), 0.2, 1e-6);
    assert_float_equal(bt_engine_pace_prefill_ms(&p, false, 4000), 0.2 + 4, 1e-6);
    assert_float_equal(bt_engine_pace_prefill_ms(&p, true, 0), 0.3, 1e-6);
    assert_float_equal(bt_engine_pace_prefill_ms(&p, true, 4000), 0.3 + 4, 1e-6);
}

static void one_kind_of_step_is_enough(void **state)
{
    (void)state;
    bt_pace p = { 0 };
    for (int i = 0; i < 20; i++) {
        bt_engine_pace_note(&p, 2, 0, 0, 4);
        bt_engine_pace_note(&p, 0, 64, keys_of(0, 64), 64 * 0.25);
    }
    assert_float_equal(bt_engine_pace_decode_ms(&p, 2), 4, 1e-9);
    assert_float_equal(bt_engine_pace_decode_rate(&p), 0.5, 1e-9);
    assert_float_equal(bt_engine_pace_prefill_ms(&p, false, 0), 0.25, 1e-6);
    assert_float_equal(bt_engine_pace_prefill_ms(&p, true, 0), 0.25,
                       1e-6); /* until it is measured */
    assert_float_equal(bt_engine_pace_prefill_rate(&p), 4, 1e-6);
}

/* Steps faster than decoding alone, and times that make no sense, never give a negative cost. */
static void noise_never_gives_negative_costs(void **state)
{
    (void)state;
    bt_pace p = { 0 };
    for (uint32_t i = 0; i < 500; i++) {
        const double ms = i % 7 == 0 ? 0 : i * 37 % 100;
        bt_engine_pace_note(&p, i % 4, i % 3 * 20, keys_of(i * 13 % 1000, i % 3 * 20), ms);
        assert_true(bt_engine_pace_prefill_rate(&p) < 1e3);
        for (uint32_t n = 0; n < 6; n++) {
            assert_true(bt_engine_pace_decode_ms(&p, n) >= 0 &&
                        isfinite(bt_engine_pace_decode_ms(&p, n)));
            const double one = bt_engine_pace_prefill_ms(&p, false, n * 1000.0);
            assert_true(one >= 0 && isfinite(one));
        }
    }
}

/* Large steps of the past do not outweigh the small ones of the present. */
static void old_samples_fade(void **state)
{
    (void)state;
    bt_pace p = { 0 };
    for (int i = 0; i < 50; i++) {
        bt_engine_pace_note(&p, 0, 512, keys_of(0, 512), 512);
    }
    for (int i = 0; i < 30; i++) {
        bt_engine_pace_note(&p, 0, 16, keys_of(256, 16), 1.6);
    }
    /* 0.9 ^ 30 of the old cost of 1 ms is left: 0.04. */
    assert_true(bt_engine_pace_prefill_ms(&p, false, 264) < 0.1 + 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(known_costs_are_found),
        cmocka_unit_test(one_kind_of_step_is_enough),
        cmocka_unit_test(noise_never_gives_negative_costs),
        cmocka_unit_test(old_samples_fade),
    };
    return cmocka_run_group_tests_name("engine/pace", tests, NULL, NULL);
}
