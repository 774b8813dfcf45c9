/* What goes wrong is answered with a status, a type and the field. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "fixture.h"

/* ---- failures ---- */

static void an_early_failure_is_an_http_error_even_in_a_stream(void **state)
{
    (void)state;
    fake.fail_status = BT_E_LOST;
    fake.prompt_ms = 100;
    expect_error(http_post(port, "/v1/chat/completions", CHAT_BODY(",\"stream\":true")), 502,
                 "server_error", "the fake engine failed");
    expect_error(http_post(port, "/v1/chat/completions", CHAT_BODY("")), 502, "server_error",
                 "the fake engine failed");
    fake.fail_status = BT_E_CONTEXT;            /* would come again each time */
    expect_error(http_post(port, "/v1/chat/completions", CHAT_BODY("")), 400,
                 "prefill_too_long_error", "prefill_too_long: the fake engine failed");
}

static void a_late_failure_is_an_event(void **state)
{
    (void)state;
    fake.fail_status = BT_E_DEVICE;
    fake.fail_after = 3;
    http_answer a = http_post(port, "/v1/chat/completions", CHAT_BODY(",\"stream\":true"));
    assert_int_equal(a.code, 200);
    const stream s = read_stream(&a);
    assert_string_equal(s.text, "Hel");
    assert_int_equal(s.n_errors, 1);
    assert_int_equal(s.n_done, 0);
    expect_error(http_post(port, "/v1/chat/completions", CHAT_BODY("")), 500, "server_error",
                 "the fake engine failed");
}

static void a_prompt_too_long_is_told_with_both_numbers(void **state)
{
    (void)state;
    char body[1024] = "{\"stream\":true,\"prompt\":\"";
    memset(body + strlen(body), 'x', 300);
    strcat(body, "\"}");
    http_answer a = http_post(port, "/v1/completions", body);
    assert_int_equal(a.code, 400);
    json_t *root = json_of(&a);
    assert_string_equal(text_at(root, "error.type"), "exceed_context_size_error");
    assert_int_equal(json_integer_value(at(root, "error.n_prompt_tokens")), 301);
    assert_int_equal(json_integer_value(at(root, "error.n_ctx")), 256);
    json_decref(root);
}

static void a_prompt_that_cannot_fit_is_not_tokenised(void **state)
{
    (void)state;
    const size_t size = 1u << 20;
    char *body = malloc(size + 64);
    const int begun = sprintf(body, "{\"prompt\":\"");
    memset(body + begun, 'x', size);
    strcpy(body + begun + size, "\"}");
    expect_error(http_post(port, "/completion", body), 400, "exceed_context_size_error",
                 "at least 349525 tokens");
    assert_int_equal(fake.n_encoded, 0);
    free(body);
}

static void a_full_queue_is_429_with_retry_after(void **state)
{
    (void)state;
    fake.n_parallel = 1;
    fake.queue_max = 0;
    fake.prompt_ms = HOUR_MS;
    const int fd = http_connect(port);
    http_request(fd, "POST", "/completion", "", "{\"prompt\":\"p\"}", 14);
    wait_alive(1);
    http_answer a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
    assert_non_null(strcasestr(a.head, "Retry-After: "));
    expect_error(a, 429, "rate_limit_error", "full");
    close(fd);
}

static void errors_have_status_type_and_field(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *body;
        int code;
        const char *type, *says;
    } t[] = {
            {"GET", "/nothing", "", 404, "not_found_error", "/nothing"},
            {"POST", "/v1/embeddings", "{}", 404, "not_found_error", "/v1/embeddings"},
            {"GET", "/v1/chat/completions", "", 405, "invalid_request_error", "POST"},
            {"DELETE", "/v1/models", "", 405, "invalid_request_error", "GET"},
            {"PUT", "/health", "", 405, "invalid_request_error", "GET"},
            {"POST", "/v1/chat/completions", "", 400, "invalid_request_error", "empty"},
            {"POST", "/v1/chat/completions", "{", 400, "invalid_request_error", "JSON"},
            {"POST", "/v1/chat/completions", "{}", 400, "invalid_request_error", "messages"},
            {"POST", "/v1/chat/completions",
             "{\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}", 400, "invalid_request_error",
             "no tools"},
            {"POST", "/completion", "{\"prompt\":[300]}", 400, "invalid_request_error", "300"},
            {"POST", "/completion", "{\"prompt\":\"p\",\"logit_bias\":[[258,1]]}", 400,
             "invalid_request_error", "258"},
            {"POST", "/completion", "{\"prompt\":[]}", 400, "invalid_request_error", "empty"},
            {"POST", "/tokenize", "{}", 400, "invalid_request_error", "content"},
            {"POST", "/detokenize", "{\"tokens\":[1,-1]}", 400, "invalid_request_error",
             "tokens[1]"},
            {"GET", "/v1/models/other", "", 404, "not_found_error", "other"},
    };
    for (size_t i = 0; i < BT_LEN(t); i++) {
        http_answer a = http_do(port, t[i].method, t[i].path, "", t[i].body);
        if (t[i].code == 405) {
            assert_non_null(strcasestr(a.head, "Allow: "));
        }
        expect_error(a, t[i].code, t[i].type, t[i].says);
    }
}

static void a_body_over_the_limit_is_413(void **state)
{
    (void)state;
    const size_t size = BT_HTTP_BODY_BYTES_MAX + 5;
    char *body = malloc(size);
    memset(body, ' ', size);
    int fd = http_connect(port);
    http_request(fd, "POST", "/completion", "", body, size);
    expect_error(http_read(fd), 413, "invalid_request_error", "bytes");
    /* A client that asks first is told before it sends. */
    fd = http_connect(port);
    const char *head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       "Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n";
    http_send(fd, head, strlen(head));
    expect_error(http_read(fd), 413, "invalid_request_error", "bytes");
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(an_early_failure_is_an_http_error_even_in_a_stream),
        T(a_late_failure_is_an_event),
        T(a_prompt_too_long_is_told_with_both_numbers),
        T(a_prompt_that_cannot_fit_is_not_tokenised),
        T(a_full_queue_is_429_with_retry_after),
        T(errors_have_status_type_and_field),
        T(a_body_over_the_limit_is_413),
    };
    return cmocka_run_group_tests_name("serve/failures", tests, NULL, NULL);
}
