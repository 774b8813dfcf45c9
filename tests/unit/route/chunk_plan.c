/* tests/unit/route/chunk_plan.c - where prompts are cut: the model's sums, the plan against every
 * other last chunk, and what it must never do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "route/chunk_plan.h"

/* A small dense model on one core (rows of 23,040 bytes, 1.4 ms a token) with a link that is `r`
 * times too slow (below 1: fast enough). */
static bt_route_plan dense(uint32_t n, double r)
{
    return (bt_route_plan){ .end = n, .chunk = 512, .n_layers = 30, .token_bytes = 23040,
                       .token_ms = 1.4, .step_ms = 4, .bytes_per_ms = 23040 / (1.4 * r) };
}

static double tail(const bt_route_plan *t, const uint32_t *splits, uint32_t n)
{
    bt_route_plan instant = *t;
    instant.bytes_per_ms = 1e18;
    return bt_route_chunk_plan_ms(t, splits, n) - bt_route_chunk_plan_ms(&instant, splits, n);
}

static void sums_by_hand(void **state)
{
    (void)state;
    /* Two chunks of 10 tokens and 2 layers; a step takes 2 + 10 ms, a layer 100 bytes a token. */
    bt_route_plan t = { .first = 5, .end = 25, .chunk = 10, .n_layers = 2, .token_bytes = 200,
                   .token_ms = 1, .step_ms = 2, .bytes_per_ms = 1000 };
    /* Layers are ready at 6, 12, 18, 24 and take 1 ms each. */
    assert_float_equal(bt_route_chunk_plan_ms(&t, NULL, 0), 25, 1e-9);
    /* A link of 100 bytes a ms takes 10 ms for each: it begins at 6 and never rests. */
    t.bytes_per_ms = 100;
    assert_float_equal(bt_route_chunk_plan_ms(&t, NULL, 0), 46, 1e-9);
    /* As a whole: ready at 12 and 24, 20 ms each. */
    t.n_layers = 1;
    assert_float_equal(bt_route_chunk_plan_ms(&t, NULL, 0), 52, 1e-9);
    /* One cut more is one step more: 3 + 1 + 11 tokens in steps of 10, 1 and 9. */
    const uint32_t splits[] = { 15, 16 };
    t.bytes_per_ms = 1e9;
    assert_float_equal(bt_route_chunk_plan_ms(&t, splits, 2), 26, 1e-3);
    /* The state goes with the last chunk. */
    t.bytes_per_ms = 1000;
    t.state_bytes = 5000;
    assert_float_equal(bt_route_chunk_plan_ms(&t, NULL, 0), 24 + 2 + 5, 1e-9);
}

static void check_shape(const bt_route_plan *t, const uint32_t *splits, uint32_t n)
{
    assert_true(n <= BT_ROUTE_SPLITS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(splits[i] > (i > 0 ? splits[i - 1] : t->first));
        assert_true(splits[i] < t->end);
    }
}

static void never_later_and_always_in_shape(void **state)
{
    (void)state;
    const double rs[] = { 0.01, 0.1, 0.5, 0.9, 1, 2, 10 };
    const uint32_t sizes[] = { 1, 2, 31, 511, 512, 513, 700, 2047, 8191 };
    for (size_t i = 0; i < BT_LEN(rs); i++) {
        for (size_t k = 0; k < BT_LEN(sizes); k++) {
            for (uint32_t layers = 1; layers <= 30; layers += 29) {
                bt_route_plan t = dense(sizes[k], rs[i]);
                uint32_t splits[BT_ROUTE_SPLITS_MAX];
                t.n_layers = layers;
                t.first = sizes[k] / 3;
                const uint32_t n = bt_route_chunk_plan_make(&t, splits);
                check_shape(&t, splits, n);
                assert_true(bt_route_chunk_plan_ms(&t, splits, n) <=
                            bt_route_chunk_plan_ms(&t, NULL, 0));
            }
        }
    }
}

/* Chunks that leave as a whole: the classic taper. */
static void tail_falls_at_small_cost(void **state)
{
    (void)state;
    const double rs[] = { 0.1, 0.3, 0.5 };
    for (size_t i = 0; i < BT_LEN(rs); i++) {
        bt_route_plan t = dense(4096, rs[i]);
        uint32_t splits[BT_ROUTE_SPLITS_MAX];
        t.n_layers = 1;
        const uint32_t n = bt_route_chunk_plan_make(&t, splits);
        assert_true(n > 0);
        assert_true(tail(&t, NULL, 0) >= 5 * tail(&t, splits, n));
        assert_true(bt_route_chunk_plan_ms(&t, splits, n) < bt_route_chunk_plan_ms(&t, NULL, 0));
    }
}

/* With layers that leave one by one a single small chunk at the end is the best there is: no other
 * last chunk is better by more than the grid of candidates is coarse. */
static void close_to_the_best_last_chunk(void **state)
{
    (void)state;
    for (double r = 0.1; r < 1; r += 0.2) {
        const bt_route_plan t = dense(2047, r);
        uint32_t splits[BT_ROUTE_SPLITS_MAX];
        const uint32_t n = bt_route_chunk_plan_make(&t, splits);
        const double got = bt_route_chunk_plan_ms(&t, splits, n);
        for (uint32_t last = 1; last < 512; last++) {
            const uint32_t one = t.end - last;
            assert_true(got <= bt_route_chunk_plan_ms(&t, &one, 1) + 1);
        }
    }
}

static void last_chunk_covers_the_state(void **state)
{
    (void)state;
    /* 4 MiB: 127 ms on this link, which the rows leave half free. */
    bt_route_plan t = dense(2047, 0.5);
    t.state_bytes = 4 << 20;
    uint32_t splits[BT_ROUTE_SPLITS_MAX];
    const uint32_t n = bt_route_chunk_plan_make(&t, splits);
    const uint32_t last = t.end - (n > 0 ? splits[n - 1] : 3 * t.chunk);
    /* Computing the last chunk takes as long as sending it and the state. */
    const double compute = t.step_ms + last * t.token_ms;
    const double send = (last * (double)t.token_bytes + (double)t.state_bytes) / t.bytes_per_ms;
    assert_true(compute >= send * 0.98);
    assert_true(tail(&t, splits, n) <= 1.02 * send / t.n_layers + 1);
}

/* Every fourth layer has rows, the others the state: no last chunk of another size is ready earlier
 * by more than the grid of candidates is coarse. */
static void rows_and_states_in_different_layers(void **state)
{
    (void)state;
    bt_route_plan t = { .end = 4095, .chunk = 512, .last_max = 2048, .n_layers = 16,
                       .n_row_layers = 4,
                   .token_bytes = 4096, .state_bytes = 3 << 20, .token_ms = 1, .step_ms = 3,
                   .bytes_per_ms = 8192 };
    uint32_t splits[BT_ROUTE_SPLITS_MAX];
    bt_route_plan small = t;
    small.end = 16;
    small.state_bytes = 12 * 8192;
    small.step_ms = 0;
    /* Layers take 1 ms to compute, states 1 ms to send, rows of 16 tokens 2 ms. */
    assert_float_equal(bt_route_chunk_plan_ms(&small, NULL, 0), 1 + 12 + 4 * 2, 1e-9);
    const uint32_t n = bt_route_chunk_plan_make(&t, splits);
    const double got = bt_route_chunk_plan_ms(&t, splits, n);
    check_shape(&t, splits, n);
    for (uint32_t last = 16; last < 2048; last += 16) {
        const uint32_t one = t.end - last;
        assert_true(got <= bt_route_chunk_plan_ms(&t, &one, 1) * 1.005);
    }
}

/* Chunks of one token, as many as a context may have: the plan is made at once, and is not late. */
static void long_prompts_of_small_chunks(void **state)
{
    (void)state;
    bt_route_plan t = dense(131072, 0.5);
    uint32_t splits[BT_ROUTE_SPLITS_MAX];
    check_shape(&t, splits, bt_route_chunk_plan_make(&t, splits));
    const uint32_t n = bt_route_chunk_plan_make(&t, splits);
    assert_true(n > 0 && splits[n - 1] >= t.end - t.chunk);
    assert_true(bt_route_chunk_plan_ms(&t, splits, n) <= bt_route_chunk_plan_ms(&t, NULL, 0));
    t.chunk = 1;
    for (int i = 0; i < 200; i++) {
        check_shape(&t, splits, bt_route_chunk_plan_make(&t, splits));
    }
}

static void nothing_known_nothing_cut(void **state)
{
    (void)state;
    uint32_t splits[BT_ROUTE_SPLITS_MAX];
    bt_route_plan t = dense(2047, 0.5);
    t.bytes_per_ms = 0;
    assert_int_equal(bt_route_chunk_plan_make(&t, splits), 0);
    t = dense(2047, 0.5);
    t.token_ms = 0;
    assert_int_equal(bt_route_chunk_plan_make(&t, splits), 0);
    t = dense(2047, 0.5);
    t.first = t.end;
    assert_int_equal(bt_route_chunk_plan_make(&t, splits), 0);
    /* A link so fast that a step more costs more than the tail. */
    t = dense(2047, 0.001);
    assert_int_equal(bt_route_chunk_plan_make(&t, splits), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_by_hand),
        cmocka_unit_test(never_later_and_always_in_shape),
        cmocka_unit_test(tail_falls_at_small_cost),
        cmocka_unit_test(close_to_the_best_last_chunk),
        cmocka_unit_test(last_chunk_covers_the_state),
        cmocka_unit_test(rows_and_states_in_different_layers),
        cmocka_unit_test(long_prompts_of_small_chunks),
        cmocka_unit_test(nothing_known_nothing_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
