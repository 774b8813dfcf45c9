/* base/json.h: whatever is put in, the text is valid JSON and valid UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "serve/problem.h"

static bt_buf out;
static bt_json_writer w;

static int begin(void **state)
{
    (void)state;
    bt_buf_init(&out, BT_MEM_test, 1 << 20);
    bt_json_writer_init(&w, &out);
    return 0;
}

static int end(void **state)
{
    (void)state;
    bt_buf_done(&out);
    return 0;
}

static void commas_and_keys_stand_where_they_belong(void **state)
{
    (void)state;
    bt_json_open(&w, NULL, '{');
    bt_json_string(&w, "a", "x");
    bt_json_open(&w, "b", '[');
    bt_json_integer(&w, NULL, -1);
    bt_json_natural(&w, NULL, UINT64_MAX);
    bt_json_open(&w, NULL, '{');
    bt_json_close(&w, '}');
    bt_json_null(&w, NULL);
    bt_json_close(&w, ']');
    bt_json_key(&w, "c\n", 2);
    bt_json_bool(&w, NULL, true);
    bt_json_number(&w, "d", 0.5);
    bt_json_string(&w, "e", NULL);
    bt_json_close(&w, '}');
    assert_string_equal(bt_buf_text(&out), "{\"a\":\"x\",\"b\":[-1,18446744073709551615,{},null],"
                                           "\"c\\n\":true,\"d\":0.5,\"e\":null}");
}

static void numbers_that_json_lacks_become_finite(void **state)
{
    (void)state;
    bt_json_open(&w, NULL, '[');
    bt_json_number(&w, NULL, NAN);
    bt_json_number(&w, NULL, INFINITY);
    bt_json_number(&w, NULL, -INFINITY);
    bt_json_close(&w, ']');
    assert_string_equal(bt_buf_text(&out), "[0,3.40282347e+38,-3.40282347e+38]");
}

/* Table 3-8 of the Unicode standard: one U+FFFD per maximal subpart. */
static void bad_utf8_is_replaced_by_maximal_subparts(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        { "a\xF1\x80\x80\xE1\x80\xC2" "b\x80" "c\x80\xBF" "d",
          "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" "b\xEF\xBF\xBD" "c\xEF\xBF\xBD\xEF\xBF\xBD" "d" },
        { "\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80" },
        { "\xF0\x9F\x98", "\xEF\xBF\xBD" },
        { "\xFF", "\xEF\xBF\xBD" },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        bt_buf_clear(&out);
        bt_json_utf8_put(&out, cases[i].in, strlen(cases[i].in));
        assert_string_equal(bt_buf_text(&out), cases[i].out);
    }
}

/* Every string of up to three bytes drawn from the interesting ones, read back by another parser.
 */
static void any_bytes_make_a_string_that_a_parser_takes(void **state)
{
    (void)state;
    static const unsigned char bytes[] = { 0, 1, 9, 10, 13, 31, 32, '"', '\\', '/', 'a', 0x7F, 0x80,
                                           0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                           0xEF, 0xF0, 0xF4, 0xF5, 0xFF };
    const size_t n = sizeof bytes;
    for (size_t i = 0; i < n * n * n; i++) {
        const unsigned char text[3] = { bytes[i % n], bytes[i / n % n], bytes[i / n / n] };
        for (size_t size = 1; size <= 3; size++) {
            bt_buf_clear(&out);
            bt_json_writer_init(&w, &out);
            bt_json_text(&w, NULL, (const char *)text, size);
            json_t *value = json_loadb(out.data, out.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            assert_non_null(value);
            bt_buf expected;
            bt_buf_init(&expected, BT_MEM_test, 64);
            bt_json_utf8_put(&expected, (const char *)text, size);
            assert_int_equal(json_string_length(value), expected.size);
            assert_memory_equal(json_string_value(value), bt_buf_text(&expected), expected.size);
            assert_true(bt_json_utf8_valid(expected.data, expected.size));
            bt_buf_done(&expected);
            json_decref(value);
        }
    }
}

static void a_problem_names_code_type_and_field(void **state)
{
    (void)state;
    bt_problem p = { 0 };
    bt_serve_problem_set(&p, 400, "top_p", "Field '%s' is bad", "top_p");
    bt_serve_problem_set(&p, 500, NULL, "a later one is dropped");
    bt_serve_problem_write(&p, &w);
    assert_string_equal(bt_buf_text(&out),
                        "{\"error\":{\"code\":400,\"message\":\"Field 'top_p' is bad\","
                        "\"type\":\"invalid_request_error\",\"param\":\"top_p\"}}");
}

static void an_overflow_tells_both_numbers(void **state)
{
    (void)state;
    bt_problem p = { 0 };
    bt_serve_problem_set_context(&p, 5000, 4096, false);
    bt_serve_problem_write(&p, &w);
    json_t *root = json_loads(bt_buf_text(&out), 0, NULL);
    const json_t *error = json_object_get(root, "error");
    assert_int_equal(json_integer_value(json_object_get(error, "code")), 400);
    assert_int_equal(json_integer_value(json_object_get(error, "n_prompt_tokens")), 5000);
    assert_int_equal(json_integer_value(json_object_get(error, "n_ctx")), 4096);
    assert_string_equal(json_string_value(json_object_get(error, "type")),
                        "exceed_context_size_error");
    const char *message = json_string_value(json_object_get(error, "message"));
    assert_non_null(strstr(message, "context_length_exceeded"));
    assert_non_null(strstr(message, "exceeds the available context size"));
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commas_and_keys_stand_where_they_belong, begin, end),
        cmocka_unit_test_setup_teardown(numbers_that_json_lacks_become_finite, begin, end),
        cmocka_unit_test_setup_teardown(bad_utf8_is_replaced_by_maximal_subparts, begin, end),
        cmocka_unit_test_setup_teardown(any_bytes_make_a_string_that_a_parser_takes, begin, end),
        cmocka_unit_test_setup_teardown(a_problem_names_code_type_and_field, begin, end),
        cmocka_unit_test_setup_teardown(an_overflow_tells_both_numbers, begin, end),
    };
    return cmocka_run_group_tests_name("serve/json", tests, NULL, NULL);
}
