/* ops/tape.h and the shape checks of all ops. */
#include "unit/device/bench.h"
#include "unit/device/naive.h"

typedef struct {
    naive_device *device;
    bt_tape      *tape;
    bt_weight     table, norm, matrix, short_norm, angles;
} fixture;

static const float zeros[64 * 64];

static bt_weight weight(fixture *f, uint32_t n_in, uint32_t n_out)
{
    const bt_weight_source s = { .name = "zeros", .type = BT_TYPE_F32, .n_in = n_in, .n_out = n_out,
                                 .rows = zeros, .size_bytes = n_in * n_out * sizeof(float) };
    bt_weight w;
    assert_int_equal(bt_device_weight_load(&f->device->base, &s, &w, NULL), BT_OK);
    return w;
}

static int begin(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->device = naive_open();
    f->table = weight(f, 16, 10);
    f->norm = weight(f, 16, 1);
    f->short_norm = weight(f, 8, 1);
    f->angles = weight(f, 4, 1);
    f->matrix = weight(f, 16, 24);
    if (bt_device_tape_create(&f->device->base, &f->tape, NULL) != BT_OK) {
        return -1;
    }
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    bt_ops_tape_destroy(f->tape);
    bt_device_close(&f->device->base);
    free(f);
    return 0;
}

static void expect(fixture *f, const char *words)
{
    bt_error err = { 0 };
    assert_int_equal(bt_ops_tape_finish(f->tape, &err), BT_E_BADINPUT);
    if (!strstr(err.text, words)) {
        fail_msg("'%s' does not say '%s'", err.text, words);
    }
}

static void small_tape_is_kept_as_put(void **state)
{
    fixture *f = *state;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16), y = bt_ops_tape_rows_picked(f->tape, 16);
    bt_ops_put(f->tape, embed, .table = f->table, .y = x, .scale = 2);
    bt_ops_tape_set_layer(f->tape, 3);
    bt_ops_put(f->tape, rmsnorm, .x = x, .w = f->norm, .y = x, .eps = 1e-6f);
    bt_ops_tape_set_layer(f->tape, BT_TAPE_NO_LAYER);
    bt_ops_put(f->tape, rows, .x = x, .y = y);
    bt_ops_tape_set_result(f->tape, y);
    assert_int_equal(bt_ops_tape_finish(f->tape, NULL), BT_OK);
    assert_int_equal(bt_ops_tape_count(f->tape), 3);
    assert_int_equal(bt_ops_tape_op(f->tape, 1)->kind, BT_OP_rmsnorm);
    assert_int_equal(bt_ops_tape_layer_of(f->tape, 1), 3);
    assert_int_equal(bt_ops_tape_layer_of(f->tape, 2), BT_TAPE_NO_LAYER);
    assert_int_equal(bt_ops_tape_slots(f->tape), 2);
    bool picked;
    assert_int_equal(bt_ops_tape_slot_cols(f->tape, 2, &picked), 16);
    assert_true(picked);
    assert_int_equal(bt_ops_tape_result(f->tape).slot, y.slot);
}

static void printed_tape_names_all(void **state)
{
    fixture *f = *state;
    bt_buf text;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16), y = bt_ops_tape_rows(f->tape, 40);
    bt_ops_put(f->tape, embed, .table = f->table, .y = x, .scale = 2);
    bt_ops_tape_set_layer(f->tape, 0);
    bt_ops_put(f->tape, linear, .x = x, .y = bt_ops_rows_slice(y, 0, 24), .w = { f->matrix });
    bt_ops_put(f->tape, add, .x = bt_ops_rows_slice(y, 8, 16), .y = x);
    assert_int_equal(bt_ops_tape_finish(f->tape, NULL), BT_OK);
    bt_buf_init(&text, BT_MEM_test, 1 << 16);
    bt_ops_tape_print(f->tape, &text);
    assert_string_equal(bt_buf_text(&text),
                        "s1: 16 columns\n"
                        "s2: 40 columns\n"
                        "0000    - embed     -> s1 (16x10 F32) scale 2\n"
                        "0001    0 linear    s1 -> s2[0+24] (16x24 F32)\n"
                        "0002    0 add       s2[8+16] +> s1\n");
    bt_buf_done(&text);
}

static void reading_what_nobody_wrote_is_a_mistake(void **state)
{
    fixture *f = *state;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16), y = bt_ops_tape_rows(f->tape, 16);
    bt_ops_put(f->tape, rmsnorm, .x = x, .w = f->norm, .y = y, .eps = 0);
    expect(f, "read before anything wrote it");
}

static void pieces_written_apart_are_known(void **state)
{
    fixture *f = *state;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16), y = bt_ops_tape_rows(f->tape, 72);
    bt_ops_put(f->tape, embed, .table = f->table, .y = x, .scale = 1);
    bt_ops_put(f->tape, linear, .x = x, .y = bt_ops_rows_slice(y, 48, 24), .w = { f->matrix });
    bt_ops_put(f->tape, linear, .x = x, .y = bt_ops_rows_slice(y, 0, 24), .w = { f->matrix });
    bt_ops_put(f->tape, scale, .x = bt_ops_rows_slice(y, 50, 10), .by = 2);
    bt_ops_put(f->tape, linear, .x = x, .y = bt_ops_rows_slice(y, 24, 24), .w = { f->matrix });
    bt_ops_put(f->tape, scale, .x = y, .by = 2);
    assert_int_equal(bt_ops_tape_finish(f->tape, NULL), BT_OK);
}

static void a_gap_between_pieces_is_seen(void **state)
{
    fixture *f = *state;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16), y = bt_ops_tape_rows(f->tape, 72);
    bt_ops_put(f->tape, embed, .table = f->table, .y = x, .scale = 1);
    bt_ops_put(f->tape, linear, .x = x, .y = bt_ops_rows_slice(y, 0, 24), .w = { f->matrix });
    bt_ops_put(f->tape, linear, .x = x, .y = bt_ops_rows_slice(y, 48, 24), .w = { f->matrix });
    bt_ops_put(f->tape, scale, .x = y, .by = 2);
    expect(f, "read before anything wrote it");
}

static void first_mistake_sticks(void **state)
{
    fixture *f = *state;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16), narrow = bt_ops_tape_rows(f->tape, 8);
    bt_ops_put(f->tape, embed, .table = f->table, .y = narrow, .scale = 1);
    bt_ops_put(f->tape, embed, .table = f->table, .y = x, .scale = 1);
    bt_ops_put(f->tape, scale, .x = x, .by = INFINITY);
    expect(f, "op 0: table is 16 x 10, but 8 x 10 is wanted");
    assert_int_equal(bt_ops_tape_count(f->tape), 0);
}

/* Every op once with every kind of wrong shape; each case has a tape of its own. */
static void put_wrong_heads(fixture *f, int number, bt_rows x, bt_rows y, const char **ret_words)
{
    bt_tape *t = f->tape;
    switch (number) {
    case 11:
        *ret_words = "cannot be rotated";
        bt_ops_put(t, rope, .x = y, .frequencies = f->angles, .n_heads = 5, .n_rot = 8,
                   .magnitude = 1);
        break;
    case 12:
        *ret_words = "cannot be rotated";
        bt_ops_put(t, rope, .x = y, .frequencies = f->angles, .n_heads = 3, .n_rot = 10,
                   .magnitude = 1);
        break;
    case 13:
        *ret_words = "frequencies is 4 x 1, but 3 x 1";
        bt_ops_put(t, rope, .x = y, .frequencies = f->angles, .n_heads = 3, .n_rot = 6,
                   .magnitude = 1);
        break;
    case 14:
        *ret_words = "has no K and V yet";
        bt_ops_put(t, attention, .q = x, .y = x, .n_heads = 2, .n_kv_heads = 1, .scale = 1);
        break;
    case 15:
        *ret_words = "was put before";
        bt_ops_put(t, kv_put, .k = x, .v = x);
        bt_ops_put(t, kv_put, .k = x, .v = x);
        break;
    case 16:
        *ret_words = "keeps 16 and 16 values";
        bt_ops_put(t, kv_put, .k = x, .v = x);
        bt_ops_put(t, attention, .q = y, .y = x, .n_heads = 2, .n_kv_heads = 1, .scale = 1);
        break;
    case 17:
        *ret_words = "is marked before";
        bt_ops_put(t, mark, .layer = 2);
        break;
    case 18:
        *ret_words = "are not 5 equal heads";
        bt_ops_put(t, head_norm, .x = x, .w = f->short_norm, .n_heads = 5, .eps = 0);
        break;
    default:
        *ret_words = NULL;
        break;
    }
}

static void put_wrong(fixture *f, int number, const char **ret_words)
{
    bt_tape *t = f->tape;
    const bt_rows x = bt_ops_tape_rows(t, 16), y = bt_ops_tape_rows(t, 24),
                  p = bt_ops_tape_rows_picked(t, 16);
    const bt_weight none = { 99 };
    bt_ops_put(t, embed, .table = f->table, .y = x, .scale = 1);
    bt_ops_put(t, linear, .x = x, .y = y, .w = { f->matrix });
    switch (number) {
    case 0:
        *ret_words = "which the device does not have";
        bt_ops_put(t, rmsnorm, .x = x, .w = none, .y = x, .eps = 0);
        break;
    case 1:
        *ret_words = "y has 16";
        bt_ops_put(t, linear, .x = x, .y = x, .w = { f->matrix });
        break;
    case 2:
        *ret_words = "do not exist";
        bt_ops_put(t, scale, .x = bt_ops_rows_slice(y, 20, 8), .by = 1);
        break;
    case 3:
        *ret_words = "bias is 16 x 1";
        bt_ops_put(t, linear, .x = x, .y = y, .w = { f->matrix }, .bias = { f->norm });
        break;
    case 4:
        *ret_words = "y cannot be picked";
        bt_ops_put(t, embed, .table = f->table, .y = p, .scale = 1);
        break;
    case 5:
        *ret_words = "against 24";
        bt_ops_put(t, add, .x = x, .y = y);
        break;
    case 6:
        *ret_words = "not into 24";
        bt_ops_put(t, rows, .x = x, .y = y);
        break;
    case 7:
        *ret_words = "the cap is 0";
        bt_ops_put(t, softcap, .x = x, .cap = 0);
        break;
    case 8:
        *ret_words = "against 16";
        bt_ops_put(t, glu, .gate = y, .up = x, .y = y);
        break;
    case 9:
        *ret_words = "overlap";
        bt_ops_put(t, rmsnorm, .x = x, .w = f->norm, .y = x, .eps = 0, .add = true);
        break;
    case 10:
        *ret_words = "has no weight";
        bt_ops_put(t, linear, .x = x, .y = y, .w = { { 0 }, f->matrix });
        break;
    default:
        put_wrong_heads(f, number, x, y, ret_words);
        break;
    }
}

static void wrong_shapes_are_named(void **state)
{
    (void)state;
    for (int i = 0;; i++) {
        fixture *f = NULL;
        const char *words;
        assert_int_equal(begin((void **)&f), 0);
        put_wrong(f, i, &words);
        if (words) {
            expect(f, words);
        }
        end((void **)&f);
        if (!words) {
            assert_int_equal(i, 19);
            return;
        }
    }
}

static void no_memory_is_said(void **state)
{
    fixture *f = *state;
    const bt_rows x = bt_ops_tape_rows(f->tape, 16);
    bt_memory_fail_after(1);
    bt_ops_put(f->tape, embed, .table = f->table, .y = x, .scale = 1);
    bt_memory_fail_after(0);
    assert_int_equal(bt_ops_tape_finish(f->tape, NULL), BT_E_NOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(small_tape_is_kept_as_put, begin, end),
        cmocka_unit_test_setup_teardown(printed_tape_names_all, begin, end),
        cmocka_unit_test_setup_teardown(reading_what_nobody_wrote_is_a_mistake, begin, end),
        cmocka_unit_test_setup_teardown(pieces_written_apart_are_known, begin, end),
        cmocka_unit_test_setup_teardown(a_gap_between_pieces_is_seen, begin, end),
        cmocka_unit_test_setup_teardown(first_mistake_sticks, begin, end),
        cmocka_unit_test(wrong_shapes_are_named),
        cmocka_unit_test_setup_teardown(no_memory_is_said, begin, end),
    };
    return cmocka_run_group_tests_name("device/tape", tests, NULL, NULL);
}
