/* device/device.h: weights that are some rows of a tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/cpu/cpu.h"

#define ROWS_OF(x) .rows = (x), .size_bytes = sizeof(x)

static bt_weight load(bt_device *d, bt_weight_source s)
{
    bt_weight w;
    bt_error err = { 0 };
    s.name = "numbers";
    s.type = BT_TYPE_F32;
    if (bt_device_weight_load(d, &s, &w, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return w;
}

enum { SOME = 12, IN = 32 };

/* y = W x for a unit x gives back a column: which rows were taken. */
static void expect_rows(bt_weight_source s, bool repack, const uint32_t *wanted, uint32_t n)
{
    static float rows[SOME][IN], one[1][IN];
    for (uint32_t i = 0; i < SOME; i++) {
        rows[i][3] = (float)(i + 1);
    }
    one[0][3] = 1;
    const bt_device_cpu_options o = { .isa = bt_cpu_isa_detect(), .n_threads = 1,
                                      .no_repack = !repack };
    bt_device *d;
    bt_tape *tape;
    uint64_t stride;
    bt_error err = { 0 };
    assert_int_equal(bt_device_cpu_open(&o, &d, NULL), BT_OK);
    assert_int_equal(bt_device_tape_create(d, &tape, NULL), BT_OK);
    const bt_rows x = bt_ops_tape_rows(tape, IN), y = bt_ops_tape_rows(tape, n);
    s.rows = rows;
    s.size_bytes = sizeof rows;
    s.n_in = IN;
    s.n_out = n;
    s.as_matrix = true;
    bt_ops_put(tape, embed,
               .table = load(d, (bt_weight_source){ ROWS_OF(one), .n_in = IN, .n_out = 1,
                                                           .as_table = true }), .y = x, .scale = 1);
    bt_ops_put(tape, linear, .x = x, .y = y, .w = { load(d, s) });
    if (bt_ops_tape_finish(tape, &err) != BT_OK ||
        bt_device_prepare(d, tape, 1, 0, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    const uint32_t zero = 0;
    const bt_step_sequence q = { .n_rows = 1 };
    const bt_step step = { .n_rows = 1, .tokens = &zero, .positions = &zero,
                           .row_sequence = &zero, .n_sequences = 1, .sequences = &q };
    assert_int_equal(bt_device_run(d, tape, &step, NULL), BT_OK);
    const float *got = bt_device_read_rows(d, y, &stride);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal((int)got[i], wanted[i] + 1);
    }
    bt_ops_tape_destroy(tape);
    bt_device_close(d);
}

static void some_rows_of_a_tensor(void **state)
{
    (void)state;
    for (int repack = 0; repack < 2; repack++) {
        expect_rows((bt_weight_source){ .row_first = 2, .row_run = 2, .row_step = 4 }, repack,
                    (const uint32_t[]){ 2, 3, 6, 7, 10, 11 }, 6);
        expect_rows((bt_weight_source){ .row_first = 5, .row_run = 4, .row_step = 4 }, repack,
                    (const uint32_t[]){ 5, 6, 7, 8 }, 4);
        expect_rows((bt_weight_source){ .row_first = 11, .row_run = 1, .row_step = 1 }, repack,
                    (const uint32_t[]){ 11 }, 1);
    }
}

static void rows_beyond_a_tensor_are_refused(void **state)
{
    static const float rows[SOME][IN];
    const bt_device_cpu_options o = { .isa = bt_cpu_isa_detect(), .n_threads = 1 };
    const bt_weight_source good = { .name = "some", .type = BT_TYPE_F32, ROWS_OF(rows), .n_in = IN,
                                    .n_out = 6, .row_first = 2, .row_run = 2, .row_step = 4 };
    bt_device *d;
    bt_weight w;
    bt_error err = { 0 };
    (void)state;
    assert_int_equal(bt_device_cpu_open(&o, &d, NULL), BT_OK);
    assert_int_equal(bt_device_weight_load(d, &good, &w, NULL), BT_OK);
#define WRONG(status, ...)                                                          \
    do {                                                                            \
        bt_weight_source s = good;                                                  \
        __VA_ARGS__;                                                                \
        assert_int_equal(bt_device_weight_load(d, &s, &w, &err), status);           \
        assert_non_null(strstr(err.text, "'some'"));                                \
    } while (0)
    WRONG(BT_E_BADFILE, s.row_first = 3);
    WRONG(BT_E_BADFILE, s.row_first = UINT32_MAX);
    WRONG(BT_E_BADFILE, s.n_slices = 2);
    WRONG(BT_E_BADFILE, s.row_step = UINT32_MAX);
    WRONG(BT_E_BADINPUT, s.row_step = 1);
    WRONG(BT_E_BADINPUT, s.row_run = 4);
    WRONG(BT_E_BADINPUT, s.n_slices = UINT32_MAX);
    WRONG(BT_E_BADFILE, s.n_out = 0);
#undef WRONG
    bt_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(some_rows_of_a_tensor),
        cmocka_unit_test(rows_beyond_a_tensor_are_refused),
    };
    return cmocka_run_group_tests_name("device/weights", tests, NULL, NULL);
}
