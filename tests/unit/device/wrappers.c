/* device/device.h: trace and check. */
#include <stdio.h>
#include <unistd.h>

#include "device/check.h"
#include "device/trace.h"
#include "unit/device/bench.h"
#include "unit/device/naive.h"

static void check_names_the_first_op_that_differs(void **state)
{
    (void)state;
    for (uint32_t flaw = 0; flaw < 24; flaw += 5) {
        bt_device *checked;
        bt_error err = { 0 };
        bench_step s;
        char words[64];
        naive_device *naive = naive_open();
        naive->flaw = flaw;
        assert_int_equal(bt_device_check_open(bench_cpu(bt_cpu_isa_detect(), 2), &naive->base, 1e-4,
                                              &checked, NULL),
                         BT_OK);
        bench *b = bench_open(checked, BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
        step_begin(b, &s);
        step_add(&s, 0, 0, 9, 1);
        const bt_op *op = bt_ops_tape_op(b->tape, flaw);
        const bool writes = bt_ops_output(op).slot != 0;
        const bt_status status = bt_device_run(b->device, b->tape, &s.step, &err);
        snprintf(words, sizeof words, "op %u (%s), row 8", flaw, bt_ops_name(op->kind));
        if (writes && (status != BT_E_DEVICE || !strstr(err.text, words))) {
            fail_msg("'%s' does not say '%s'", err.text, words);
        }
        bench_close(b);
    }
}

/* Rows that came from elsewhere exist in the device's memory only. */
static void check_follows_imported_rows(void **state)
{
    bt_device *checked;
    bench_step s;
    bt_error err = { 0 };
    (void)state;
    assert_int_equal(bt_device_check_open(bench_cpu(bt_cpu_isa_detect(), 1), &naive_open()->base,
                                          1e-4, &checked, NULL),
                     BT_OK);
    bench *b = bench_open(checked, BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    for (size_t i = 0; i < POOL_PAGES * b->layout.page_bytes; i += sizeof(float)) {
        const float value = bench_value(b);
        bt_device_buffer_write(b->device, b->layout.buffer, i, &value, sizeof value);
    }
    step_begin(b, &s);
    step_add(&s, 0, 30, 3, 1);
    if (bt_device_run(b->device, b->tape, &s.step, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    bench_close(b);
}

static bt_status reads_from(const char *path, const char *words, int *ret_lines, int *ret_hits)
{
    char line[4096];
    FILE *file = fopen(path, "r");
    *ret_lines = *ret_hits = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        const size_t n = strlen(line);
        assert_true(n > 2 && line[0] == '{' && line[n - 2] == '}' && line[n - 1] == '\n');
        *ret_lines += 1;
        *ret_hits += strstr(line, words) != NULL;
    }
    fclose(file);
    return BT_OK;
}

static void trace_writes_a_line_per_op(void **state)
{
    char path[] = "/tmp/bt_trace_XXXXXX";
    bt_device *traced;
    bench_step s;
    int lines, hits;
    (void)state;
    close(mkstemp(path));
    const bt_device_trace_options o = { .path = path, .values = true };
    assert_int_equal(bt_device_trace_open(bench_cpu(bt_cpu_isa_detect(), 2), &o, &traced, NULL),
                     BT_OK);
    bench *b = bench_open(traced, BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    const int n_ops = (int)bt_ops_tape_count(b->tape);
    for (uint32_t i = 0; i < 3; i++) {
        step_begin(b, &s);
        step_add(&s, 0, i, 1, i == 2);
        assert_int_equal(bt_device_run(b->device, b->tape, &s.step, NULL), BT_OK);
    }
    bench_close(b);
    reads_from(path, "\"step\":3", &lines, &hits);
    assert_true(lines > 3 * n_ops);
    assert_int_equal(hits, n_ops);
    reads_from(path, "\"digest\":\"", &lines, &hits);
    assert_true(hits > 2 * n_ops);
    reads_from(path, "\"layer\":1", &lines, &hits);
    assert_true(hits > 9);
    reads_from(path, "{\"total\":\"linear\",\"steps\":3", &lines, &hits);
    assert_int_equal(hits, 1);
    remove(path);
}

static void trace_changes_no_bit(void **state)
{
    float logits[2][VOCAB];
    (void)state;
    for (int with = 0; with < 2; with++) {
        bt_device *d = bench_cpu(bt_cpu_isa_detect(), 2);
        bench_step s;
        uint64_t stride;
        if (with) {
            const bt_device_trace_options o = { 0 };
            assert_int_equal(bt_device_trace_open(d, &o, &d, NULL), BT_OK);
        }
        bench *b = bench_open(d, BT_TYPE_Q4_0, BT_TYPE_F16, BT_TYPE_F16);
        step_begin(b, &s);
        step_add(&s, 0, 0, 40, 1);
        assert_int_equal(bt_device_run(b->device, b->tape, &s.step, NULL), BT_OK);
        memcpy(logits[with],
               bt_device_read_rows(b->device, bt_ops_tape_result(b->tape), &stride) + 39 * stride,
               sizeof logits[0]);
        bench_close(b);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

static void trace_says_when_it_cannot_write(void **state)
{
    const bt_device_trace_options o = { .path = "/nowhere/trace" };
    bt_error err = { 0 };
    (void)state;
    bt_device *cpu = bench_cpu(bt_cpu_isa_detect(), 1), *traced = NULL;
    assert_int_equal(bt_device_trace_open(cpu, &o, &traced, &err), BT_E_IO);
    assert_non_null(strstr(err.text, "/nowhere/trace"));
    assert_null(traced);
    bt_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_names_the_first_op_that_differs),
        cmocka_unit_test(check_follows_imported_rows),
        cmocka_unit_test(trace_writes_a_line_per_op),
        cmocka_unit_test(trace_changes_no_bit),
        cmocka_unit_test(trace_says_when_it_cannot_write),
    };
    return cmocka_run_group_tests_name("device/wrappers", tests, NULL, NULL);
}
