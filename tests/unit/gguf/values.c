/* gguf/gguf.h: values by type. */
#include "unit/gguf/sample.h"

static bt_gguf *file;
static uint8_t *file_bytes;

static int open_sample(void **state)
{
    (void)state;
    size_t size;
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    sample_keys(&w);
    bt_gguf_writer_put_integer(&w, "c.small_i64", BT_GGUF_I64, 7);
    bt_gguf_writer_put_integer(&w, "c.small_u64", BT_GGUF_U64, UINT32_MAX);
    bt_gguf_writer_put_real(&w, "c.huge", BT_GGUF_F64, 1e300);
    bt_gguf_writer_put_real(&w, "c.nan", BT_GGUF_F32, 0.0 / 0.0);
    bt_gguf_writer_put_array(&w, "c.u64s", BT_GGUF_U64,
                             (uint64_t[]){ 1, UINT64_C(1) << 32, UINT64_MAX }, 3);
    bt_gguf_writer_put_array(&w, "c.i16s", BT_GGUF_I16, (int16_t[]){ 1, -1 }, 2);
    bt_gguf_writer_put_array(&w, "c.f64s", BT_GGUF_F64, (double[]){ 0.5, -8 }, 2);
    file_bytes = sample_bytes(&w, &size);
    return bt_gguf_open_memory(file_bytes, size, "s.gguf", &file, NULL);
}

static int close_sample(void **state)
{
    (void)state;
    bt_gguf_close(file);
    free(file_bytes);
    return 0;
}

static void integers_of_any_type_are_u32_if_they_fit(void **state)
{
    (void)state;
    static const struct { const char *key; uint32_t value; } good[] = {
        { "a.u8", 200 }, { "a.u16", 60000 }, { "a.u32", 4000000000u }, { "c.small_i64", 7 },
        { "c.small_u64", UINT32_MAX },
    };
    for (size_t i = 0; i < BT_LEN(good); i++) {
        uint32_t value = 1;
        assert_int_equal(bt_gguf_get_u32(file, good[i].key, &value, NULL), BT_OK);
        assert_int_equal(value, good[i].value);
        assert_int_equal(bt_gguf_opt_u32(file, good[i].key, 5, &value, NULL), BT_OK);
        assert_int_equal(value, good[i].value);
    }
}

static void other_values_are_refused_in_words(void **state)
{
    (void)state;
    static const struct { const char *key, *text; } bad[] = {
        { "a.none", "'s.gguf': key 'a.none' is missing" },
        { "a.i8", "'s.gguf': key 'a.i8' is -100, but an integer from 0 to 4294967295 is wanted" },
        { "a.i16",
          "'s.gguf': key 'a.i16' is -30000, but an integer from 0 to 4294967295 is wanted" },
        { "a.i32",
          "'s.gguf': key 'a.i32' is -2000000000, but an integer from 0 to 4294967295 is wanted" },
        { "a.u64", "'s.gguf': key 'a.u64' is 18446744073709551615, but an integer from 0 to "
                   "4294967295 is wanted" },
        { "a.i64", "'s.gguf': key 'a.i64' is -9223372036854775808, but an integer from 0 to "
                   "4294967295 is wanted" },
        { "a.f32", "'s.gguf': key 'a.f32' is of type f32, but an integer is wanted" },
        { "a.bool", "'s.gguf': key 'a.bool' is of type bool, but an integer is wanted" },
        { "a.empty", "'s.gguf': key 'a.empty' is of type string, but an integer is wanted" },
        { "b.u32", "'s.gguf': key 'b.u32' is an array of 3 u32, but an integer is wanted" },
    };
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        uint32_t value = 1;
        bt_error err;
        assert_int_equal(bt_gguf_get_u32(file, bad[i].key, &value, &err), BT_E_BADFILE);
        assert_string_equal(err.text, bad[i].text);
        assert_int_equal(err.status, BT_E_BADFILE);
        assert_int_equal(value, 1);                /* untouched */
        assert_int_equal(bt_gguf_get_u32(file, bad[i].key, &value, NULL), BT_E_BADFILE);
    }
}

static void numbers_are_f32_if_finite(void **state)
{
    (void)state;
    static const struct { const char *key; float value; } good[] = {
        { "a.f32", 1.5f }, { "a.f64", -0.25f }, { "a.i8", -100 },
        { "a.u64", 18446744073709551616.f }, { "a.i64", -9223372036854775808.f },
    };
    float value = 9;
    for (size_t i = 0; i < BT_LEN(good); i++) {
        assert_int_equal(bt_gguf_get_f32(file, good[i].key, &value, NULL), BT_OK);
        assert_true(value == good[i].value);
    }
    static const struct { const char *key, *text; } bad[] = {
        { "a.none", "'s.gguf': key 'a.none' is missing" },
        { "a.bool", "'s.gguf': key 'a.bool' is of type bool, but a number is wanted" },
        { "b.f32", "'s.gguf': key 'b.f32' is an array of 3 f32, but a number is wanted" },
        { "c.huge", "'s.gguf': key 'c.huge' is 1e+300, but a finite f32 is wanted" },
    };
    value = 9;
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        bt_error err;
        assert_int_equal(bt_gguf_get_f32(file, bad[i].key, &value, &err), BT_E_BADFILE);
        assert_string_equal(err.text, bad[i].text);
        assert_true(value == 9);
    }
    bt_error err;
    assert_int_equal(bt_gguf_get_f32(file, "c.nan", &value, &err), BT_E_BADFILE);
    assert_non_null(strstr(err.text, "a finite f32 is wanted"));
}

static void booleans_and_strings_have_one_type(void **state)
{
    (void)state;
    bool flag = false;
    bt_error err;
    assert_int_equal(bt_gguf_get_bool(file, "a.bool", &flag, NULL), BT_OK);
    assert_true(flag);
    assert_int_equal(bt_gguf_get_bool(file, "a.u8", &flag, &err), BT_E_BADFILE);
    assert_string_equal(err.text, "'s.gguf': key 'a.u8' is of type u8, but a boolean is wanted");
    assert_int_equal(bt_gguf_get_bool(file, "a.none", &flag, &err), BT_E_BADFILE);
    assert_string_equal(err.text, "'s.gguf': key 'a.none' is missing");

    bt_gguf_string text;
    assert_int_equal(bt_gguf_get_string(file, "general.architecture", &text, NULL), BT_OK);
    assert_int_equal(text.size, 5);
    assert_memory_equal(text.data, "llama", 5);
    assert_int_equal(bt_gguf_get_string(file, "a.empty", &text, NULL), BT_OK);
    assert_int_equal(text.size, 0);
    assert_int_equal(bt_gguf_get_string(file, "b.strings", &text, &err), BT_E_BADFILE);
    assert_string_equal(err.text,
                        "'s.gguf': key 'b.strings' is an array of 3 string, but a string is "
                        "wanted");
    assert_int_equal(bt_gguf_get_string(file, "a.none", &text, &err), BT_E_BADFILE);
}

static void a_missing_option_falls_back_and_a_wrong_one_does_not(void **state)
{
    (void)state;
    uint32_t u32 = 0;
    float f32 = 0;
    bool flag = false;
    assert_int_equal(bt_gguf_opt_u32(file, "a.none", 42, &u32, NULL), BT_OK);
    assert_int_equal(bt_gguf_opt_f32(file, "a.none", 4.5f, &f32, NULL), BT_OK);
    assert_int_equal(bt_gguf_opt_bool(file, "a.none", true, &flag, NULL), BT_OK);
    assert_true(u32 == 42 && f32 == 4.5f && flag);
    assert_int_equal(bt_gguf_opt_u32(file, "a.empty", 1, &u32, NULL), BT_E_BADFILE);
    assert_int_equal(bt_gguf_opt_f32(file, "a.empty", 1, &f32, NULL), BT_E_BADFILE);
    assert_int_equal(bt_gguf_opt_bool(file, "a.empty", false, &flag, NULL), BT_E_BADFILE);
    assert_true(u32 == 42 && f32 == 4.5f && flag);
}

static void layers_share_a_scalar_or_have_one_each(void **state)
{
    (void)state;
    uint32_t values[3] = { 0 };
    assert_int_equal(bt_gguf_get_u32_per_layer(file, "b.u32", 3, values, NULL), BT_OK);
    assert_true(values[0] == 16 && values[1] == 32 && values[2] == 64);
    assert_int_equal(bt_gguf_get_u32_per_layer(file, "b.bool", 3, values, NULL), BT_OK);
    assert_true(values[0] == 1 && values[1] == 0 && values[2] == 1);
    assert_int_equal(bt_gguf_get_u32_per_layer(file, "a.u8", 3, values, NULL), BT_OK);
    assert_true(values[0] == 200 && values[1] == 200 && values[2] == 200);

    static const struct { const char *key, *text; } bad[] = {
        { "a.none", "'s.gguf': key 'a.none' is missing" },
        { "b.i32", "'s.gguf': key 'b.i32' is an array of 4 values, but one for each of 3 layers is "
                   "wanted" },
        { "b.f32", "'s.gguf': key 'b.f32' is an array of 3 f32, but an integer or an array of "
                   "integers is wanted" },
        { "b.strings", "'s.gguf': key 'b.strings' is an array of 3 string, but an integer or an "
                       "array of integers is wanted" },
        { "a.f32", "'s.gguf': key 'a.f32' is of type f32, but an integer or an array of integers "
                   "is wanted" },
        { "c.u64s", "'s.gguf': key 'c.u64s' is 4294967296, but an integer from 0 to 4294967295 is "
                    "wanted" },
    };
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        bt_error err;
        assert_int_equal(bt_gguf_get_u32_per_layer(file, bad[i].key, 3, values, &err),
                         BT_E_BADFILE);
        assert_string_equal(err.text, bad[i].text);
        assert_true(values[0] == 200 && values[2] == 200);
    }
}

static void arrays_give_their_elements(void **state)
{
    (void)state;
    const bt_gguf_pair *pair = bt_gguf_find(file, "b.i32");
    assert_int_equal(bt_gguf_array_u32(pair, 0), 1);
    assert_int_equal(bt_gguf_array_u32(pair, 1), UINT32_MAX);        /* -3 does not fit */
    assert_int_equal(bt_gguf_array_u32(pair, 3), 2147483647);
    assert_true(bt_gguf_array_f32(pair, 1) == -3.0f);
    pair = bt_gguf_find(file, "c.u64s");
    assert_int_equal(bt_gguf_array_u32(pair, 0), 1);
    assert_int_equal(bt_gguf_array_u32(pair, 2), UINT32_MAX);
    pair = bt_gguf_find(file, "c.i16s");
    assert_true(bt_gguf_array_f32(pair, 1) == -1.0f);
    pair = bt_gguf_find(file, "b.f32");
    assert_true(bt_gguf_array_f32(pair, 1) == -1.5f && bt_gguf_array_f32(pair, 2) == 3.0e38f);
    pair = bt_gguf_find(file, "c.f64s");
    assert_true(bt_gguf_array_f32(pair, 0) == 0.5f && bt_gguf_array_f32(pair, 1) == -8.0f);
    pair = bt_gguf_find(file, "a.bool");                             /* a scalar */
    assert_int_equal(bt_gguf_array_u32(pair, 0), 1);
}

static void strings_are_walked_in_order(void **state)
{
    (void)state;
    bt_gguf_strings it = bt_gguf_strings_begin(bt_gguf_find(file, "b.strings"));
    bt_gguf_string text;
    assert_true(bt_gguf_strings_next(&it, &text));
    assert_int_equal(text.size, 3);
    assert_memory_equal(text.data, "<s>", 3);
    assert_true(bt_gguf_strings_next(&it, &text));
    assert_int_equal(text.size, 0);
    assert_true(bt_gguf_strings_next(&it, &text));
    assert_int_equal(text.size, 3);
    assert_memory_equal(text.data, "\xff\0z", 3);
    assert_false(bt_gguf_strings_next(&it, &text));
    assert_false(bt_gguf_strings_next(&it, &text));
}

static void every_type_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(bt_gguf_value_type_name(BT_GGUF_U8), "u8");
    assert_string_equal(bt_gguf_value_type_name(BT_GGUF_F64), "f64");
    assert_string_equal(bt_gguf_value_type_name((bt_gguf_value_type)99), "unknown");
    for (int i = 0; i < BT_GGUF_VALUE_COUNT; i++) {
        assert_string_not_equal(bt_gguf_value_type_name((bt_gguf_value_type)i), "unknown");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_of_any_type_are_u32_if_they_fit),
        cmocka_unit_test(other_values_are_refused_in_words),
        cmocka_unit_test(numbers_are_f32_if_finite),
        cmocka_unit_test(booleans_and_strings_have_one_type),
        cmocka_unit_test(a_missing_option_falls_back_and_a_wrong_one_does_not),
        cmocka_unit_test(layers_share_a_scalar_or_have_one_each),
        cmocka_unit_test(arrays_give_their_elements),
        cmocka_unit_test(strings_are_walked_in_order),
        cmocka_unit_test(every_type_has_a_name),
    };
    return cmocka_run_group_tests_name("gguf/values", tests, open_sample, close_sample);
}
