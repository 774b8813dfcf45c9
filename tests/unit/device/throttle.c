/* device/throttle.h: no result earlier than it is due, and the same bits. Bounds are lower ones
 * only, so that a slow machine changes nothing. */
#include <math.h>

#include "unit/device/bench.h"

#include "base/clock.h"
#include "device/throttle.h"

typedef struct { uint64_t at_ns[LAYERS]; } mark_times;

static void note_mark(void *context, uint32_t layer)
{
    ((mark_times *)context)->at_ns[layer] = bt_clock_ns();
}

static bench *open_throttled(double rows_per_second)
{
    bt_device *d = bench_cpu(bt_cpu_isa_detect(), 2);
    if (rows_per_second > 0) {
        assert_int_equal(bt_device_throttle_open(d, rows_per_second, &d, NULL), BT_OK);
    }
    return bench_open(d, BT_TYPE_Q4_0, BT_TYPE_F16, BT_TYPE_F16);
}

/* Runs n rows; gives the time at which they were ready. */
static uint64_t run_rows(bench *b, uint32_t position, uint32_t n, mark_times *marks)
{
    bench_step s;
    step_begin(b, &s);
    step_add(&s, 0, position, n, 1);
    s.step.on_mark = note_mark;
    s.step.mark_context = marks;
    assert_int_equal(bt_device_run(b->device, b->tape, &s.step, NULL), BT_OK);
    return bt_clock_ns();
}

static void rows_and_layers_are_not_early(void **state)
{
    const uint64_t row_ns = 1000000;
    mark_times marks;
    (void)state;
    bench *b = open_throttled(1e9 / (double)row_ns);
    const uint64_t begin = bt_clock_ns();
    const uint64_t first = run_rows(b, 0, 40, &marks);
    assert_true(first - begin >= 40 * row_ns);
    for (uint32_t i = 0; i < LAYERS; i++) {
        assert_true(marks.at_ns[i] - begin >= 40 * row_ns * (i + 1) / LAYERS);
    }
    assert_true(run_rows(b, 40, 20, &marks) - begin >= 60 * row_ns);
    bench_close(b);
}

/* Time in which nothing was asked for is not made up for. */
static void idle_time_is_not_made_up_for(void **state)
{
    const uint64_t row_ns = 1000000;
    mark_times marks;
    (void)state;
    bench *b = open_throttled(1e9 / (double)row_ns);
    run_rows(b, 0, 1, &marks);
    bt_clock_sleep_ms(30);
    const uint64_t begin = bt_clock_ns();
    assert_true(run_rows(b, 1, 10, &marks) - begin >= 10 * row_ns);
    bench_close(b);
}

/* The tape is run in pieces, which must not show. */
static void no_bit_changes(void **state)
{
    float logits[2][ROWS_MAX][VOCAB];
    mark_times marks;
    (void)state;
    for (int with = 0; with < 2; with++) {
        bench *b = open_throttled(with ? 1e6 : 0);
        uint64_t stride;
        run_rows(b, 0, 40, &marks);
        run_rows(b, 40, 3, &marks);
        const float *rows = bt_device_read_rows(b->device, bt_ops_tape_result(b->tape), &stride);
        for (uint32_t r = 0; r < 3; r++) {
            memcpy(logits[with][r], rows + r * stride, sizeof logits[with][r]);
        }
        bench_close(b);
    }
    assert_memory_equal(logits[0], logits[1], 3 * sizeof logits[0][0]);
}

static void a_rate_of_nothing_is_refused(void **state)
{
    static const double bad[] = { 0, -1, 1e-9, (double)NAN };
    (void)state;
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        bt_device *cpu = bench_cpu(bt_cpu_isa_detect(), 1), *d = NULL;
        bt_error err = { 0 };
        assert_int_equal(bt_device_throttle_open(cpu, bad[i], &d, &err), BT_E_BADINPUT);
        assert_non_null(strstr(err.text, "rows per second"));
        assert_null(d);
        bt_device_close(cpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_layers_are_not_early),
        cmocka_unit_test(idle_time_is_not_made_up_for),
        cmocka_unit_test(no_bit_changes),
        cmocka_unit_test(a_rate_of_nothing_is_refused),
    };
    return cmocka_run_group_tests_name("device/throttle", tests, NULL, NULL);
}
