/* Answers in three shapes, whole and as streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "fixture.h"

/* ---- whole answers ---- */

static void a_chat_answer_has_the_shape_that_clients_know(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/chat/completions", CHAT_BODY(""));
    assert_int_equal(a.code, 200);
    json_t *root = json_of(&a);
    assert_int_equal(strncmp(text_at(root, "id"), "chatcmpl-", 9), 0);
    assert_string_equal(text_at(root, "object"), "chat.completion");
    assert_string_equal(text_at(root, "model"), "fake-model");
    assert_string_equal(text_at(root, "choices.0.message.role"), "assistant");
    assert_string_equal(text_at(root, "choices.0.message.content"), FULL_TEXT);
    assert_string_equal(text_at(root, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(at(root, "choices.0.logprobs")));
    /* <b>user:hi<e> */
    assert_int_equal(json_integer_value(at(root, "usage.prompt_tokens")), 9);
    assert_int_equal(json_integer_value(at(root, "usage.completion_tokens")), strlen(FULL_TEXT));
    assert_int_equal(json_integer_value(at(root, "usage.prompt_tokens_details.cached_tokens")), 1);
    assert_int_equal(json_integer_value(at(root, "timings.prompt_n")), 8);
    assert_int_equal(json_integer_value(at(root, "timings.cache_n")), 1);
    assert_string_equal(text_at(root, "prefill.place"), "remote");
    assert_string_equal(text_at(root, "prefill.worker"), "spark:7070");
    assert_int_equal(json_integer_value(at(root, "prefill.bytes")), 4096);
    json_decref(root);
}

static void lengths_stops_and_contexts_end_an_answer(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":10}");
    json_t *root = json_of(&a);
    assert_string_equal(text_at(root, "object"), "text_completion");
    /* The tenth byte ends the o with dots. */
    assert_string_equal(text_at(root, "choices.0.text"), "Hello, w\xC3\xB6");
    assert_string_equal(text_at(root, "choices.0.finish_reason"), "length");
    json_decref(root);

    a = http_post(port, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":9}");
    root = json_of(&a);
    assert_string_equal(text_at(root, "choices.0.text"), "Hello, w\xEF\xBF\xBD");
    json_decref(root);

    a = http_post(port, "/completion", "{\"prompt\":\"p\",\"stop\":[\"zzz\",\"world\",\"! \"]}");
    root = json_of(&a);
    assert_string_equal(text_at(root, "content"), "Hello, w\xC3\xB6rld");
    assert_string_equal(text_at(root, "stop_type"), "word");
    assert_string_equal(text_at(root, "stopping_word"), "! ");
    json_decref(root);

    fake.n_ctx = 7;
    a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
    root = json_of(&a);
    assert_string_equal(text_at(root, "content"), "Hello");
    assert_string_equal(text_at(root, "stop_type"), "limit");
    assert_true(json_is_true(at(root, "truncated")));
    json_decref(root);

    a = http_post(port, "/completion", "{\"prompt\":\"p\",\"n_predict\":0}");
    root = json_of(&a);
    assert_string_equal(text_at(root, "content"), "");
    assert_true(json_number_value(at(root, "timings.predicted_per_second")) == 0);
    json_decref(root);
}

static void several_choices_and_prompts_have_indices(void **state)
{
    (void)state;
    const unsigned before = fake.n_submitted;
    http_answer a = http_post(port, "/v1/completions",
                              "{\"prompt\":[\"a\",\"bc\"],\"n\":2,\"seed\":7,\"echo\":true,"
                              "\"max_tokens\":3}");
    json_t *root = json_of(&a);
    assert_int_equal(json_array_size(at(root, "choices")), 4);
    assert_string_equal(text_at(root, "choices.0.text"), "aHel");
    assert_string_equal(text_at(root, "choices.3.text"), "bcHel");
    assert_int_equal(json_integer_value(at(root, "choices.3.index")), 3);
    /* BOS and text, each prompt once. */
    assert_int_equal(json_integer_value(at(root, "usage.prompt_tokens")), 2 + 3);
    assert_int_equal(json_integer_value(at(root, "usage.completion_tokens")), 12);
    assert_int_equal(fake.n_submitted - before, 4);
    json_decref(root);
}

static void probabilities_in_three_forms(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/chat/completions",
                              CHAT_BODY(",\"logprobs\":true,\"top_logprobs\":2,\"max_tokens\":2"));
    json_t *root = json_of(&a);
    assert_int_equal(json_array_size(at(root, "choices.0.logprobs.content")), 2);
    assert_string_equal(text_at(root, "choices.0.logprobs.content.0.token"), "H");
    assert_int_equal(json_integer_value(at(root, "choices.0.logprobs.content.0.bytes.0")), 'H');
    assert_string_equal(text_at(root, "choices.0.logprobs.content.1.top_logprobs.1.token"), "<e>");
    const json_t *low = at(root, "choices.0.logprobs.content.1.top_logprobs.1.logprob");
    assert_true(json_is_number(low) && json_number_value(low) < -1e38);
    json_decref(root);

    a = http_post(port, "/v1/completions", "{\"prompt\":\"p\",\"logprobs\":1,\"max_tokens\":2}");
    root = json_of(&a);
    assert_string_equal(text_at(root, "choices.0.logprobs.tokens.1"), "e");
    assert_int_equal(json_integer_value(at(root, "choices.0.logprobs.text_offset.1")), 1);
    assert_true(json_number_value(at(root, "choices.0.logprobs.top_logprobs.0.H")) == -0.5);
    json_decref(root);

    a = http_post(port, "/completion", "{\"prompt\":\"p\",\"n_probs\":1,\"n_predict\":2}");
    root = json_of(&a);
    assert_int_equal(json_integer_value(at(root, "completion_probabilities.0.id")), 'H');
    json_decref(root);
}

/* ---- streams ---- */

static void a_chat_stream_keeps_the_grammar(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/chat/completions", CHAT_BODY(",\"stream\":true"));
    assert_int_equal(a.code, 200);
    assert_non_null(strcasestr(a.head, "Content-Type: text/event-stream"));
    assert_non_null(strcasestr(a.head, "Cache-Control: no-cache"));
    assert_non_null(strcasestr(a.head, "X-Accel-Buffering: no"));
    assert_int_equal(strncmp(a.body, "data: ", 6), 0);
    assert_non_null(strstr(a.body, "\"delta\":{\"role\":\"assistant\",\"content\":null}"));
    const stream s = read_stream(&a);
    assert_string_equal(s.text, FULL_TEXT);
    assert_string_equal(s.finish, "stop");
    assert_int_equal(s.n_role, 1);
    assert_int_equal(s.n_done, 1);
    assert_int_equal(s.n_usage, 0);
    assert_false(s.ids_differ);
    assert_false(s.after_done);
    assert_true(s.last_has_timings);
}

static void usage_comes_only_when_asked_for(void **state)
{
    (void)state;
    http_answer a =
            http_post(port, "/v1/chat/completions",
                      CHAT_BODY(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    assert_non_null(strstr(a.body, "\"choices\":[],\"usage\":{\"prompt_tokens\":9"));
    const stream s = read_stream(&a);
    assert_int_equal(s.n_usage, 1);
    assert_int_equal(s.n_done, 1);
    assert_true(s.last_has_timings);
}

static void only_openai_streams_end_with_done(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/completion", "{\"prompt\":\"p\",\"stream\":true}");
    stream s = read_stream(&a);
    assert_int_equal(s.n_done, 0);
    assert_string_equal(s.text, FULL_TEXT);
    a = http_post(port, "/v1/completions", "{\"prompt\":\"p\",\"stream\":true,\"echo\":true}");
    s = read_stream(&a);
    assert_int_equal(s.n_done, 1);
    assert_string_equal(s.text, "p" FULL_TEXT);
}

static void a_stream_says_what_the_whole_answer_says(void **state)
{
    (void)state;
    static const char *const more[] = { "", ",\"stop\":\"!\"", ",\"stop\":\"w\xC3\xB6\"" };
    for (size_t i = 0; i < BT_LEN(more); i++) {
        for (int n = 0; n <= 25; n++) {
            char body[256];
            snprintf(body, sizeof body, "{\"prompt\":\"p\",\"max_tokens\":%d%s}", n, more[i]);
            http_answer whole = http_post(port, "/v1/completions", body);
            json_t *root = json_of(&whole);
            snprintf(body, sizeof body, "{\"prompt\":\"p\",\"max_tokens\":%d%s,\"stream\":true}", n,
                     more[i]);
            http_answer parts = http_post(port, "/v1/completions", body);
            const stream s = read_stream(&parts);
            assert_string_equal(s.text, text_at(root, "choices.0.text"));
            assert_string_equal(s.finish, text_at(root, "choices.0.finish_reason"));
            json_decref(root);
        }
    }
}

static void choices_of_a_stream_are_told_apart(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/chat/completions",
                              CHAT_BODY(",\"stream\":true,\"n\":3,\"max_tokens\":4"));
    for (int i = 0; i < 3; i++) {
        char role[64];
        snprintf(role, sizeof role, "\"index\":%d,\"delta\":{\"role\"", i);
        assert_non_null(strstr(a.body, role));
    }
    const stream s = read_stream(&a);
    assert_int_equal(strlen(s.text), 3 * 4);
    assert_int_equal(s.n_role, 3);
    assert_int_equal(s.n_done, 1);
}

static void a_silent_stream_is_pinged(void **state)
{
    (void)state;
    fake.prompt_ms = 4500;
    http_answer a = http_post(port, "/v1/chat/completions",
                              CHAT_BODY(",\"stream\":true,\"sse_ping_interval\":1"));
    const stream s = read_stream(&a);
    /* Headers after 2 s with a sign of life, then one each second. */
    assert_true(s.n_pings >= 2);
    assert_string_equal(s.text, FULL_TEXT);
}

static void progress_is_told_when_asked_for(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/chat/completions",
                              CHAT_BODY(",\"stream\":true,\"return_progress\":true"));
    assert_non_null(
            strstr(a.body, "\"prompt_progress\":{\"total\":9,\"cache\":1,\"processed\":1,"));
    free(a.body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_chat_answer_has_the_shape_that_clients_know),
        T(lengths_stops_and_contexts_end_an_answer),
        T(several_choices_and_prompts_have_indices),
        T(probabilities_in_three_forms),
        T(a_chat_stream_keeps_the_grammar),
        T(usage_comes_only_when_asked_for),
        T(only_openai_streams_end_with_done),
        T(a_stream_says_what_the_whole_answer_says),
        T(choices_of_a_stream_are_told_apart),
        T(a_silent_stream_is_pinged),
        T(progress_is_told_when_asked_for),
    };
    return cmocka_run_group_tests_name("serve/answers", tests, NULL, NULL);
}
