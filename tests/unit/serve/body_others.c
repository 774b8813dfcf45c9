/* Fields that are not supported, numbers that are too large, and the memory of all values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api.h"

#define TEXT (&bt_serve_api_text)

static bt_body body;
static bt_problem problem;

static bool parse(const bt_api *api, const char *text)
{
    const bt_body_defaults defaults = {
        .sampling = { .seed = BT_SEED_RANDOM, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f,
                      .min_p = 0.05f, .penalty_last_n = 64, .penalty_repeat = 1 },
        .n_predict = -1, .ping_interval_s = 30, .n_parallel = 4,
    };
    bt_serve_body_done(&body);
    bt_serve_body_init(&body);
    memset(&problem, 0, sizeof problem);
    return bt_serve_body_parse(&body, api, text, strlen(text), &defaults, &problem);
}

static int done(void **state)
{
    (void)state;
    bt_serve_body_done(&body);
    return 0;
}

static void a_field_that_changes_the_answer_is_never_dropped(void **state)
{
    (void)state;
    static const struct { const char *field, *neutral, *acts; } t[] = {
        { "t_max_predict_ms", "-1", "500" },     { "response_fields", "[]", "[\"content\"]" },
        { "dry_multiplier", "0", "0.8" },        { "xtc_probability", "0.0", "0.5" },
        { "mirostat", "0", "2" },                { "typical_p", "1", "0.9" },
        { "dynatemp_range", "0", "0.5" },        { "top_n_sigma", "-1", "1.5" },
        { "min_tokens", "0", "5" },              { "stop_token_ids", "[]", "[2]" },
        { "chat_template_kwargs", "{}", "{\"enable_thinking\":false}" },
        { "samplers", "[\"penalties\",\"dry\",\"top_k\",\"top_p\",\"min_p\",\"temperature\"]",
          "[\"temperature\",\"top_k\"]" },
        { "samplers", "\"edskypmxt\"", "\"tk\"" },
        { "samplers", "[\"top_k\"]", "[\"top_k\",\"infill\"]" },
        { "samplers", "[]", "[7]" },
    };
    for (size_t i = 0; i < BT_LEN(t); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"prompt\":\"p\",\"%s\":%s}", t[i].field, t[i].neutral);
        if (!parse(TEXT, text)) {
            fail_msg("%s: %s", text, problem.message);
        }
        snprintf(text, sizeof text, "{\"prompt\":\"p\",\"%s\":%s}", t[i].field, t[i].acts);
        assert_false(parse(TEXT, text));
        assert_int_equal(problem.http, 400);
        assert_string_equal(problem.param, t[i].field);
    }
}

static void samplers_that_a_list_leaves_out_do_nothing(void **state)
{
    (void)state;
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"repeat_penalty\":1.5,\"temperature\":0.3,"
                            "\"samplers\":[\"top_k\",\"temperature\"]}"));
    assert_int_equal(body.sampling.top_k, 40);
    assert_true(body.sampling.top_p == 1 && body.sampling.min_p == 0);
    assert_true(body.sampling.penalty_repeat == 1 && body.sampling.temperature == 0.3f);
}

static void a_byte_order_mark_and_huge_numbers_are_read(void **state)
{
    (void)state;
    assert_true(parse(TEXT, "\xEF\xBB\xBF{\"prompt\":\"p\"}"));
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"other\":[9223372036854775808],\"top_k\":3}"));
    assert_int_equal(body.sampling.top_k, 3);
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"seed\":9223372036854775807}"));
    assert_false(parse(TEXT, "{\"prompt\":\"p\",\"max_tokens\":9223372036854775808}"));
    assert_string_equal(problem.param, "max_tokens");
    assert_false(parse(TEXT, "{\"prompt\":\"p\",\"seed\":99999999999999999999}"));
    assert_string_equal(problem.param, "seed");
    assert_false(parse(TEXT, "\xEF\xBB\xBF"));
}

static void the_values_of_all_requests_have_one_limit(void **state)
{
    (void)state;
    enum { N = 1000000 };
    char *text = malloc(2 * N + 64);
    size_t size = (size_t)sprintf(text, "{\"prompt\":\"p\",\"x\":[1");
    for (size_t i = 0; i < N; i++) {
        memcpy(text + size, ",1", 2);
        size += 2;
    }
    memcpy(text + size, "]}", 3);
    json_t *held[64];
    size_t n = 0;
    const uint64_t before = bt_serve_json_bytes();
    memset(&problem, 0, sizeof problem);
    do {
        held[n] = bt_serve_json_parse_object(text, size + 2, &problem);
    } while (held[n] && ++n < BT_LEN(held));
    assert_true(n >= 1 && n < BT_LEN(held));
    assert_int_equal(problem.http, 429);
    assert_true(problem.retry_after_s > 0);
    assert_true(bt_serve_json_bytes() <= BT_JSON_BYTES_MAX);
    for (size_t i = 0; i < n; i++) {
        bt_serve_json_release(held[i]);
    }
    assert_int_equal(bt_serve_json_bytes(), before);
    memset(&problem, 0, sizeof problem);
    held[0] = bt_serve_json_parse_object(text, size + 2, &problem);
    assert_non_null(held[0]);
    bt_serve_json_release(held[0]);
    free(text);
}

static int setup(void **state)
{
    (void)state;
    bt_serve_json_setup();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_field_that_changes_the_answer_is_never_dropped, done),
        cmocka_unit_test_teardown(samplers_that_a_list_leaves_out_do_nothing, done),
        cmocka_unit_test_teardown(a_byte_order_mark_and_huge_numbers_are_read, done),
        cmocka_unit_test_teardown(the_values_of_all_requests_have_one_limit, done),
    };
    return cmocka_run_group_tests_name("serve/body_others", tests, setup, NULL);
}
