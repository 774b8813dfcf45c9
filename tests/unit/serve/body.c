/* serve/body.h: bodies become requests, or a 400 that names the field. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/api.h"

#define CHAT (&bt_serve_api_chat)
#define TEXT (&bt_serve_api_text)
#define NATIVE (&bt_serve_api_native)

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

static void a_small_chat_request(void **state)
{
    (void)state;
    assert_true(parse(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                     "\"temperature\":0,\"max_tokens\":5,\"stop\":\"x\"}"));
    assert_int_equal(body.n_messages, 1);
    assert_string_equal(body.messages[0].role, "user");
    assert_int_equal(body.messages[0].content_size, 2);
    assert_memory_equal(body.messages[0].content, "hi", 2);
    assert_true(body.sampling.temperature == 0.0f);
    assert_int_equal(body.sampling.top_k, 40);
    assert_int_equal(body.n_predict, 5);
    assert_int_equal(body.n_stops, 1);
    assert_false(body.stream);
    assert_true(body.add_generation_prompt);
}

static void null_is_absent_and_unknown_fields_are_ignored(void **state)
{
    (void)state;
    assert_true(parse(TEXT,
        "{\"prompt\":\"p\",\"temperature\":null,\"top_p\":null,\"max_tokens\":null,\"stop\":null,"
        "\"seed\":null,\"n\":null,\"stream\":null,\"stream_options\":null,\"logit_bias\":null,"
        "\"logprobs\":null,\"tools\":null,\"response_format\":null,\"user\":null,\"store\":true,"
        "\"metadata\":{\"a\":1},\"big\":99999999999999999999,\"samplers\":null,"
        "\"model\":null,\"prefill\":null,\"best_of\":null,\"suffix\":null,\"echo\":null}"));
    assert_true(body.sampling.temperature == 0.8f);
    assert_int_equal(body.n_predict, -1);
    assert_int_equal(body.n, 1);
    assert_false(body.want_logprobs);
}

static void the_length_has_three_names(void **state)
{
    (void)state;
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"n_predict\":1}"));
    assert_int_equal(body.n_predict, 1);
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"max_tokens\":2,\"n_predict\":1}"));
    assert_int_equal(body.n_predict, 2);
    assert_true(parse(TEXT,
                      "{\"prompt\":\"p\",\"max_completion_tokens\":3.0,\"max_tokens\":2}"));
    assert_int_equal(body.n_predict, 3);
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"max_tokens\":-1}"));
    assert_int_equal(body.n_predict, -1);
}

static void seeds_of_64_bits_fold(void **state)
{
    (void)state;
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"seed\":42}"));
    assert_true(body.seed_given);
    assert_int_equal(body.sampling.seed, 42);
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"seed\":-1}"));
    assert_false(body.seed_given);
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"seed\":9223372036854775807}"));
    assert_true(body.seed_given);
}

static void stops_and_biases_in_both_forms(void **state)
{
    (void)state;
    assert_true(parse(TEXT, "{\"prompt\":\"p\",\"stop\":[\"a\",\"\",\"b\\u0000c\"],"
                                     "\"logit_bias\":{\"17\":-100,\"word\":false}}"));
    assert_int_equal(body.n_stops, 2);
    assert_int_equal(body.stops[1].size, 3);
    assert_int_equal(body.n_bias, 2);
    assert_int_equal(body.bias[0].id, 17);
    assert_null(body.bias[0].text);
    assert_true(body.bias[0].bias == -100.0f);
    assert_string_equal(body.bias[1].text, "word");
    assert_true(isinf(body.bias[1].bias) && body.bias[1].bias < 0);
    assert_true(parse(TEXT,
                      "{\"prompt\":\"p\",\"logit_bias\":[[3,1.5],[\"x y\",false]]}"));
    assert_int_equal(body.n_bias, 2);
    assert_int_equal(body.bias[0].id, 3);
    assert_string_equal(body.bias[1].text, "x y");
}

static void prompts_are_one_or_many(void **state)
{
    (void)state;
    assert_true(parse(TEXT, "{\"prompt\":[1,2,3]}"));
    assert_int_equal(body.n_prompts, 1);
    assert_false(body.prompts_are_list);
    assert_true(parse(TEXT, "{\"prompt\":[1,\"two\",3]}"));
    assert_int_equal(body.n_prompts, 1);
    assert_true(parse(TEXT, "{\"prompt\":[\"a\",\"b\"]}"));
    assert_int_equal(body.n_prompts, 2);
    assert_true(body.prompts_are_list);
    assert_true(parse(TEXT, "{\"prompt\":[[1,2],[3]]}"));
    assert_int_equal(body.n_prompts, 2);
    assert_true(parse(NATIVE, "{\"prompt\":{\"prompt_string\":\"a\"}}"));
    assert_int_equal(body.n_prompts, 1);
}

static void content_may_be_text_parts_or_null(void **state)
{
    (void)state;
    assert_true(parse(CHAT,
        "{\"tools\":[],\"messages\":[{\"role\":\"system\",\"content\":null},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u0000\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"user\",\"content\":[]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"cd\"}]}]}"));
    assert_int_equal(body.n_messages, 4);
    assert_int_equal(body.messages[0].content_size, 0);
    assert_int_equal(body.messages[1].content_size, 3);
    assert_memory_equal(body.messages[1].content, "a\0b", 3);
    assert_int_equal(body.messages[2].content_size, 0);
    assert_memory_equal(body.messages[3].content, "cd", 2);
}

static void a_last_assistant_message_is_continued(void **state)
{
    (void)state;
#define TURN "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}"
    assert_true(parse(CHAT, "{\"messages\":[" TURN "]}"));
    assert_true(body.continue_final);
    assert_false(body.add_generation_prompt);
    assert_true(parse(CHAT, "{\"messages\":[" TURN "],\"add_generation_prompt\":true}"));
    assert_false(body.continue_final);
    assert_true(body.add_generation_prompt);
    assert_false(parse(CHAT, "{\"messages\":[" TURN "],\"add_generation_prompt\":true,"
                                      "\"continue_final_message\":true}"));
    assert_false(parse(CHAT, "{\"messages\":[" TURN
                                      ",{\"role\":\"assistant\",\"content\":\"b\"}]}"));
    assert_string_equal(problem.param, "messages");
}

static void where_and_policy_of_a_request(void **state)
{
    (void)state;
    assert_true(parse(TEXT,
                      "{\"prompt\":\"p\",\"prefill\":{\"where\":\"remote\",\"policy\":\"fail\"}}"));
    assert_int_equal(body.where, BT_WHERE_REMOTE);
    assert_int_equal(body.policy, BT_POLICY_FAIL);
    assert_false(parse(TEXT, "{\"prompt\":\"p\",\"prefill\":{\"where\":\"moon\"}}"));
    assert_string_equal(problem.param, "prefill.where");
}

static void caches_of_a_request(void **state)
{
    (void)state;
    static const struct { const char *fields; bool here, there; } asked[] = {
        { "", true, true },
        { ",\"cache_prompt\":false", false, false },
        { ",\"cache_prompt\":false,\"prefill\":{\"where\":\"remote\"}", false, false },
        { ",\"cache_prompt\":false,\"prefill\":{\"cache\":true}", false, true },
        { ",\"prefill\":{\"cache\":false}", true, false },
    };
    for (size_t i = 0; i < BT_LEN(asked); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"prompt\":\"p\"%s}", asked[i].fields);
        assert_true(parse(TEXT, text));
        assert_int_equal(!body.no_cache, asked[i].here);
        assert_int_equal(!body.no_worker_cache, asked[i].there);
        done(state);
    }
}

static const struct { const char *field, *value, *param;
} bad_fields[] = {
        {"temperature", "\"hot\"", "temperature"},
        {"temperature", "-1", "temperature"},
        {"temperature", "true", "temperature"},
        {"top_p", "1.5", "top_p"},
        {"top_p", "[]", "top_p"},
        {"min_p", "-0.1", "min_p"},
        {"top_k", "2.5", "top_k"},
        {"top_k", "-2", "top_k"},
        {"top_k", "4294967296", "top_k"},
        {"max_tokens", "-2", "max_tokens"},
        {"max_tokens", "\"5\"", "max_tokens"},
        {"max_completion_tokens", "1e300", "max_completion_tokens"},
        {"n_predict", "{}", "n_predict"},
        {"n", "0", "n"},
        {"n", "5", "n"},
        {"n", "-1", "n"},
        {"seed", "\"x\"", "seed"},
        {"seed", "1.5", "seed"},
        {"stop", "5", "stop"},
        {"stop", "[5]", "stop"},
        {"stop", "{}", "stop"},
        {"stream", "\"yes\"", "stream"},
        {"stream", "1", "stream"},
        {"stream_options", "[]", "stream_options"},
        {"stream_options", "{\"include_usage\":1}", "stream_options.include_usage"},
        {"repeat_penalty", "0", "repeat_penalty"},
        {"presence_penalty", "1000", "presence_penalty"},
        {"frequency_penalty", "null,\"frequency_penalty\":\"\"", "frequency_penalty"},
        {"repeat_last_n", "-2", "repeat_last_n"},
        {"logit_bias", "5", "logit_bias"},
        {"logit_bias", "[[1]]", "logit_bias"},
        {"logit_bias", "{\"1\":\"x\"}", "logit_bias"},
        {"logit_bias", "[[null,1]]", "logit_bias"},
        {"logit_bias", "[[-1,1]]", "logit_bias"},
        {"logprobs", "101", "logprobs"},
        {"n_probs", "-1", "n_probs"},
        {"ignore_eos", "0", "ignore_eos"},
        {"cache_prompt", "\"\"", "cache_prompt"},
        {"sse_ping_interval", "99999", "sse_ping_interval"},
        {"prefill", "\"local\"", "prefill"},
        {"prefill", "{\"policy\":1}", "prefill.policy"},
        {"model", "7", "model"},
        {"echo", "2", "echo"},
        {"tools", "[{\"type\":\"function\"}]", "tools"},
        {"functions", "[{}]", "functions"},
        {"grammar", "\"root ::= x\"", "grammar"},
        {"json_schema", "{\"type\":\"object\"}", "json_schema"},
        {"response_format", "{\"type\":\"json_object\"}", "response_format"},
        {"response_format", "{\"type\":7}", "response_format.type"},
        {"response_format", "\"json\"", "response_format"},
        {"suffix", "\"x\"", "suffix"},
        {"best_of", "3", "best_of"},
        {"lora", "[{\"id\":0}]", "lora"},
        {"prompt", "7", "prompt"},
        {"prompt", "[1,-1]", "prompt"},
        {"prompt", "[1,2.5]", "prompt"},
        {"prompt", "[1,null]", "prompt"},
        {"prompt", "[[1],{}]", "prompt"},
        {"prompt", "[1,99999999999]", "prompt"},
        {"prompt", "{\"prompt_string\":1}", "prompt"},
};

/* Whatever is wrong is a 400 that names the field. */
static void wrong_types_and_ranges_name_their_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_LEN(bad_fields); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"prompt\":\"p\",\"%s\":%s}", bad_fields[i].field,
                 bad_fields[i].value);
        if (parse(TEXT, text)) {
            fail_msg("accepted: %s", text);
        }
        assert_int_equal(problem.http, 400);
        assert_string_equal(problem.param, bad_fields[i].param);
        assert_string_equal(problem.type, "invalid_request_error");
    }
}

static void wrong_messages_name_their_place(void **state)
{
    (void)state;
    static const struct { const char *messages, *says; } cases[] = {
        { "[]", "1 to" },
        { "{}", "an array" },
        { "[7]", "messages[0]" },
        { "[{\"content\":\"x\"}]", "messages[0].role" },
        { "[{\"role\":\"wizard\",\"content\":\"x\"}]", "wizard" },
        { "[{\"role\":7,\"content\":\"x\"}]", "messages[0].role" },
        { "[{\"role\":\"user\"}]", "messages[0].content" },
        { "[{\"role\":\"user\",\"content\":7}]", "messages[0].content" },
        { "[{\"role\":\"user\",\"content\":[7]}]", "messages[0].content[0]" },
        { "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "image_url" },
        { "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "content[0].text" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "tools" },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"messages\":%s}", cases[i].messages);
        assert_false(parse(CHAT, text));
        assert_int_equal(problem.http, 400);
        if (!strstr(problem.message, cases[i].says)) {
            fail_msg("%s: %s", text, problem.message);
        }
    }
    assert_false(parse(CHAT, "{}"));
    assert_false(parse(TEXT, "{}"));
    assert_false(parse(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                                      "\"top_logprobs\":2}"));
    assert_string_equal(problem.param, "top_logprobs");
}

static void what_is_not_an_object_is_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {"",
                                        " ",
                                        "{",
                                        "[]",
                                        "7",
                                        "null",
                                        "{\"a\":}",
                                        "{\"a\":1}}",
                                        "{\"prompt\":\"\xff\"}",
                                        "{\"prompt\":\"\\ud800\"}",
                                        "{\"prompt\":\"p\",\"seed\":99999999999999999999}",
                                        "{\"prompt\":\"p\",\"top_p\":NaN}",
                                        "{\"prompt\":\"p\",}"};
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        assert_false(parse(TEXT, cases[i]));
        assert_int_equal(problem.http, 400);
    }
}

static void depth_and_number_of_values_are_bounded(void **state)
{
    (void)state;
    char *text = bt_alloc(BT_MEM_test, 8u << 20);
    size_t n = (size_t)sprintf(text, "{\"prompt\":\"p\",\"x\":");
    memset(text + n, '[', 60000);
    memset(text + n + 60000, ']', 60000);
    strcpy(text + n + 120000, "}");
    assert_false(parse(TEXT, text));
    assert_int_equal(problem.http, 400);
    assert_non_null(strstr(problem.message, "deeper"));

    n = (size_t)sprintf(text, "{\"prompt\":[0");
    for (size_t i = 0; i < BT_JSON_VALUES_MAX; i++) {
        text[n++] = ',';
        text[n++] = '0';
    }
    strcpy(text + n, "]}");
    assert_false(parse(TEXT, text));
    assert_int_equal(problem.http, 413);
    /* Brackets inside a string nest nothing. */
    n = (size_t)sprintf(text, "{\"prompt\":\"\\\"");
    memset(text + n, '[', 1000);
    strcpy(text + n + 1000, "\"}");
    assert_true(parse(TEXT, text));
    bt_free(text);
}

static void every_failed_allocation_is_a_503_or_harmless(void **state)
{
    (void)state;
    const char *text = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                       "\"hello\"}]}],\"logit_bias\":{\"5\":1},\"stop\":[\"a\",\"b\"]}";
    unsigned n_failed = 0;
    for (uint64_t n = 1; n < 200; n++) {
        bt_memory_fail_after(n);
        const bool ok = parse(CHAT, text);
        bt_memory_fail_after(0);
        if (!ok) {
            n_failed++;
            assert_int_equal(problem.http, 503);
        }
    }
    assert_true(n_failed > 10);
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
        cmocka_unit_test_teardown(a_small_chat_request, done),
        cmocka_unit_test_teardown(null_is_absent_and_unknown_fields_are_ignored, done),
        cmocka_unit_test_teardown(the_length_has_three_names, done),
        cmocka_unit_test_teardown(seeds_of_64_bits_fold, done),
        cmocka_unit_test_teardown(stops_and_biases_in_both_forms, done),
        cmocka_unit_test_teardown(prompts_are_one_or_many, done),
        cmocka_unit_test_teardown(content_may_be_text_parts_or_null, done),
        cmocka_unit_test_teardown(a_last_assistant_message_is_continued, done),
        cmocka_unit_test_teardown(where_and_policy_of_a_request, done),
        cmocka_unit_test_teardown(caches_of_a_request, done),
        cmocka_unit_test_teardown(wrong_types_and_ranges_name_their_field, done),
        cmocka_unit_test_teardown(wrong_messages_name_their_place, done),
        cmocka_unit_test_teardown(what_is_not_an_object_is_refused, done),
        cmocka_unit_test_teardown(depth_and_number_of_values_are_bounded, done),
        cmocka_unit_test_teardown(every_failed_allocation_is_a_503_or_harmless, done),
    };
    return cmocka_run_group_tests_name("serve/body", tests, setup, NULL);
}
