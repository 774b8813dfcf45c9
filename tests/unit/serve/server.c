/* serve/server.h over loopback, with an engine that is a clock (fake.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "fake.h"
#include "client.h"

static bt_server *server;
static uint32_t   port;

#define CHAT_BODY(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more "}"
#define FULL_TEXT "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80 END"

static bt_server_options options(void)
{
    bt_server_options o = bt_serve_defaults();
    o.port = 0;
    return o;
}

static void start(const bt_server_options *o, bool ready)
{
    bt_error err;
    if (bt_serve_start(o, &server, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    port = bt_serve_port(server);
    if (ready) {
        const bt_serving serving = fake_serving();
        bt_serve_set_ready(server, &serving);
    }
}

static int begin(void **state)
{
    (void)state;
    const bt_server_options o = options();
    fake_reset();
    start(&o, true);
    return 0;
}

static int end(void **state)
{
    (void)state;
    bt_serve_destroy(server);
    server = NULL;
    assert_int_equal(fake.n_alive, 0);
    return 0;
}

static void restart(const bt_server_options *o, bool ready)
{
    bt_serve_destroy(server);
    start(o, ready);
}

static json_t *json_of(http_answer *a)
{
    json_error_t error;
    json_t *root = json_loadb(a->body, a->size, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (!root) {
        fail_msg("not JSON (%s): %.300s", error.text, a->body);
    }
    free(a->body);
    a->body = NULL;
    return root;
}

/* "a.0.b" from a tree. */
static const json_t *at(const json_t *root, const char *path)
{
    char part[64];
    while (*path && root) {
        const size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        root = json_is_array(root) ? json_array_get(root, strtoul(part, NULL, 10))
                                   : json_object_get(root, part);
        path += n + (path[n] == '.');
    }
    return root;
}

static const char *text_at(const json_t *root, const char *path)
{
    const char *text = json_string_value(at(root, path));
    return text ? text : "(none)";
}

static void expect_error(http_answer a, int code, const char *type, const char *says)
{
    assert_int_equal(a.code, code);
    json_t *root = json_of(&a);
    assert_int_equal(json_integer_value(at(root, "error.code")), code);
    assert_string_equal(text_at(root, "error.type"), type);
    if (!strstr(text_at(root, "error.message"), says)) {
        fail_msg("'%s' does not say '%s'", text_at(root, "error.message"), says);
    }
    json_decref(root);
}

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

typedef struct {
    char   text[8192];
    char   finish[32];
    int    n_events, n_done, n_usage, n_errors, n_pings, n_role;
    char   id[64];
    bool   ids_differ, after_done, last_has_timings;
} stream;

static const json_t *choice_of(const json_t *event)
{
    const json_t *choice = at(event, "choices.0");
    return choice ? choice : event;                     /* the native shape */
}

static void read_event(stream *s, const char *line)
{
    if (strcmp(line, "[DONE]") == 0) {
        s->n_done++;
        return;
    }
    json_t *event = json_loads(line, JSON_ALLOW_NUL, NULL);
    if (!event) {
        fail_msg("not JSON: %s", line);
    }
    s->after_done = s->after_done || s->n_done > 0;
    s->n_events++;
    if (json_object_get(event, "error")) {
        s->n_errors++;
    }
    s->n_usage += json_object_get(event, "usage") != NULL;
    const char *id = text_at(event, "id");
    s->ids_differ = s->ids_differ || (s->id[0] && strcmp(s->id, id) != 0);
    snprintf(s->id, sizeof s->id, "%s", id);
    const json_t *choice = choice_of(event);
    const json_t *texts[] = { at(choice, "delta.content"), json_object_get(choice, "text"),
                              json_object_get(choice, "content") };
    for (size_t i = 0; i < 3; i++) {
        if (json_is_string(texts[i])) {
            strcat(s->text, json_string_value(texts[i]));
        }
    }
    s->n_role += json_is_string(at(choice, "delta.role"));
    if (json_is_string(json_object_get(choice, "finish_reason"))) {
        strcpy(s->finish, json_string_value(json_object_get(choice, "finish_reason")));
    }
    s->last_has_timings = json_object_get(event, "timings") && json_object_get(event, "prefill");
    json_decref(event);
}

static stream read_stream(http_answer *a)
{
    stream s = { 0 };
    for (char *line = a->body; *line;) {
        char *stop = strstr(line, "\n\n");
        assert_non_null(stop);
        *stop = '\0';
        if (line[0] == ':') {
            s.n_pings++;
        } else {
            assert_int_equal(strncmp(line, "data: ", 6), 0);
            read_event(&s, line + 6);
        }
        line = stop + 2;
    }
    free(a->body);
    a->body = NULL;
    return s;
}

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
    assert_in_range(s.n_pings, 2, 4);
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

static void a_full_queue_is_429_with_retry_after(void **state)
{
    (void)state;
    fake.n_parallel = 1;
    fake.queue_max = 0;
    fake.prompt_ms = 600;
    const int fd = http_connect(port);
    http_request(fd, "POST", "/completion", "", "{\"prompt\":\"p\"}", 14);
    bt_clock_sleep_ms(200);
    http_answer a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
    assert_non_null(strcasestr(a.head, "Retry-After: "));
    expect_error(a, 429, "rate_limit_error", "full");
    a = http_read(fd);
    assert_int_equal(a.code, 200);
    free(a.body);
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

/* ---- who may ask ---- */

static void keys_are_asked_for_except_in_public(void **state)
{
    (void)state;
    bt_server_options o = options();
    o.api_keys = "s3cret,other";
    restart(&o, true);
    expect_error(http_get(port, "/v1/models"), 401, "authentication_error", "key");
    expect_error(http_do(port, "POST", "/completion", "Authorization: Bearer nope\r\n", "{}"), 401,
                 "authentication_error", "key");
    http_answer a = http_do(port, "GET", "/v1/models", "Authorization: Bearer s3cret\r\n", "");
    assert_int_equal(a.code, 200);
    free(a.body);
    a = http_do(port, "GET", "/v1/models", "X-Api-Key: other\r\n", "");
    assert_int_equal(a.code, 200);
    free(a.body);
    a = http_get(port, "/health");
    assert_int_equal(a.code, 200);
    free(a.body);
    a = http_get(port, "/");
    assert_int_equal(a.code, 200);
    free(a.body);
    a = http_do(port, "OPTIONS", "/v1/models", "Origin: http://localhost:1\r\n", "");
    assert_int_equal(a.code, 204);
    free(a.body);
}

static void foreign_pages_and_names_are_kept_out(void **state)
{
    (void)state;
    expect_error(http_do(port, "GET", "/v1/models", "Host: evil.example\r\n", ""), 403,
                 "permission_error", "evil.example");
    expect_error(http_do(port, "POST", "/completion", "Origin: http://evil.example\r\n", "{}"), 403,
                 "permission_error", "evil.example");
    http_answer a = http_do(port, "GET", "/v1/models", "Origin: http://evil.example\r\n", "");
    assert_null(strcasestr(a.head, "Access-Control-Allow-Origin"));
    free(a.body);
    a = http_do(port, "GET", "/v1/models", "Origin: http://localhost:3000\r\n", "");
    assert_non_null(strcasestr(a.head, "Access-Control-Allow-Origin: http://localhost:3000"));
    free(a.body);
    a = http_do(port, "OPTIONS", "/v1/chat/completions", "Origin: http://evil.example\r\n", "");
    assert_int_equal(a.code, 204);
    assert_null(strcasestr(a.head, "Access-Control-Allow"));
    free(a.body);
    /* Behind a proxy the names differ, but the browser says that it is one site. */
    a = http_do(port, "POST", "/tokenize", "Origin: https://chat.example\r\n"
                "Sec-Fetch-Site: same-origin\r\n", "{\"content\":\"x\"}");
    assert_int_equal(a.code, 200);
    free(a.body);
}

/* ---- clients that leave ---- */

static void wait_until_idle(uint32_t ms)
{
    const double until = bt_clock_ms() + ms;
    while (fake.n_alive > 0 && bt_clock_ms() < until) {
        bt_clock_sleep_ms(2);
    }
    assert_int_equal(fake.n_alive, 0);
}

static void a_client_that_leaves_frees_its_place(void **state)
{
    (void)state;
    static const struct { uint32_t queue_ms, prompt_ms, gap_ms; } phases[] = {
        { 60000, 0, 0 }, { 0, 60000, 0 }, { 0, 0, 2000 },
    };
    static const char *const streams[] = { "false", "true" };
    for (size_t i = 0; i < BT_LEN(phases); i++) {
        for (size_t k = 0; k < 2; k++) {
            char body[64];
            fake.queue_ms = phases[i].queue_ms;
            fake.prompt_ms = phases[i].prompt_ms;
            fake.gap_ms = phases[i].gap_ms;
            snprintf(body, sizeof body, "{\"prompt\":\"p\",\"stream\":%s}", streams[k]);
            const int fd = http_connect(port);
            http_request(fd, "POST", "/v1/completions", "", body, strlen(body));
            bt_clock_sleep_ms(300);
            assert_int_equal(fake.n_alive, 1);
            close(fd);
            wait_until_idle(250);
        }
    }
}

static void a_slow_client_is_shown_the_door(void **state)
{
    (void)state;
    bt_server_options o = options();
    o.timeout_s = 1;
    restart(&o, true);
    const int fd = http_connect(port);
    const double begun = bt_clock_ms();
    /* One byte every 200 ms would keep an inactivity timer quiet for ever. */
    const char *head =
            "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaa";
    bool closed = false;
    for (size_t i = 0; head[i] && !closed; i++) {
        http_send(fd, head + i, 1);
        bt_clock_sleep_ms(200);
        char byte;
        closed = recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
    }
    close(fd);
    assert_true(closed);
    assert_true(bt_clock_ms() - begun < 3000);
}

/* ---- beginning and end ---- */

static void while_loading_everything_but_the_page_is_503(void **state)
{
    (void)state;
    const bt_server_options o = options();
    restart(&o, false);
    expect_error(http_get(port, "/health"), 503, "unavailable_error", "Loading model");
    expect_error(http_get(port, "/v1/models"), 503, "unavailable_error", "Loading model");
    expect_error(http_post(port, "/v1/chat/completions", CHAT_BODY("")), 503, "unavailable_error",
                 "Loading model");
    http_answer a = http_get(port, "/");
    assert_int_equal(a.code, 200);
    free(a.body);
    const bt_serving serving = fake_serving();
    bt_serve_set_ready(server, &serving);
    a = http_get(port, "/health");
    assert_int_equal(a.code, 200);
    assert_string_equal(a.body, "{\"status\":\"ok\"}");
    free(a.body);
}

static void *stop_soon(void *grace)
{
    bt_clock_sleep_ms(200);
    bt_serve_stop(server, *(uint32_t *)grace);
    return NULL;
}

static void stopping_lets_answers_finish(void **state)
{
    (void)state;
    uint32_t grace = 5000;
    pthread_t thread;
    fake.gap_ms = 20;
    pthread_create(&thread, NULL, stop_soon, &grace);
    http_answer a = http_post(port, "/v1/chat/completions", CHAT_BODY(",\"stream\":true"));
    const stream s = read_stream(&a);
    pthread_join(thread, NULL);
    assert_string_equal(s.text, FULL_TEXT);
    assert_int_equal(s.n_done, 1);
    assert_true(http_connect(port) < 0);
}

static void stopping_cancels_what_takes_too_long(void **state)
{
    (void)state;
    uint32_t grace = 100;
    pthread_t thread;
    fake.gap_ms = 60000;
    pthread_create(&thread, NULL, stop_soon, &grace);
    const double begun = bt_clock_ms();
    http_answer a = http_post(port, "/v1/chat/completions", CHAT_BODY(",\"stream\":true"));
    pthread_join(thread, NULL);
    assert_true(bt_clock_ms() - begun < 3000);
    assert_non_null(strstr(a.body, "shutting down"));
    free(a.body);
}

static void an_address_in_use_is_an_error_that_says_so(void **state)
{
    (void)state;
    bt_server_options o = options();
    bt_server *second;
    bt_error err;
    o.port = port;
    assert_int_equal(bt_serve_start(&o, &second, &err), BT_E_IO);
    assert_non_null(strstr(err.text, "--port 0"));
    o.port = 0;
    o.host = "no.such.host.invalid";
    assert_int_equal(bt_serve_start(&o, &second, &err), BT_E_BADINPUT);
}

/* ---- looking in ---- */

static void tokens_and_text_go_both_ways(void **state)
{
    (void)state;
    http_answer a =
            http_post(port, "/tokenize", "{\"content\":\"a<e>\\u0000b\",\"add_special\":true}");
    assert_string_equal(a.body, "{\"tokens\":[256,97,257,0,98]}");
    free(a.body);
    a = http_post(port, "/tokenize", "{\"content\":[\"\xC3\xA4\",66],\"with_pieces\":true}");
    assert_string_equal(a.body,
                        "{\"tokens\":[{\"id\":195,\"piece\":[195]},{\"id\":164,\"piece\":[164]},"
                        "{\"id\":66,\"piece\":\"B\"}]}");
    free(a.body);
    a = http_post(port, "/detokenize", "{\"tokens\":[97,195,257]}");
    assert_string_equal(a.body, "{\"content\":\"a\xEF\xBF\xBD<e>\"}");
    free(a.body);
    a = http_post(port, "/apply-template", CHAT_BODY(""));
    assert_string_equal(a.body, "{\"prompt\":\"user:hi<e>\"}");
    free(a.body);
}

static void texts_typed_by_a_user_are_never_control_tokens(void **state)
{
    (void)state;
    http_answer a = http_post(port, "/v1/chat/completions",
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"<e>\"}]}");
    json_t *root = json_of(&a);
    assert_int_equal(json_integer_value(at(root, "usage.prompt_tokens")), 1 + 5 + 3 + 1);
    json_decref(root);
}

static void the_server_tells_about_itself(void **state)
{
    (void)state;
    static const char *const models[] = { "/models", "/v1/models" };
    for (size_t i = 0; i < 2; i++) {
        http_answer a = http_get(port, models[i]);
        json_t *root = json_of(&a);
        assert_string_equal(text_at(root, "data.0.id"), "fake-model");
        json_decref(root);
    }
    http_answer a = http_get(port, "/v1/models/fake-model");
    assert_int_equal(a.code, 200);
    free(a.body);
    a = http_get(port, "/props?x=1");
    json_t *root = json_of(&a);
    assert_int_equal(json_integer_value(at(root, "default_generation_settings.n_ctx")), 256);
    assert_string_equal(text_at(root, "bos_token"), "<b>");
    json_decref(root);
    a = http_get(port, "/v1/prefill");
    root = json_of(&a);
    assert_string_equal(text_at(root, "workers.0.state"), "ready");
    assert_string_equal(text_at(root, "decisions.0.worker"), "spark:7070");
    assert_float_equal(json_number_value(at(root, "decisions.0.local_ms")), 900, 0);
    assert_true(json_is_null(at(root, "decisions.1.worker")));
    json_decref(root);
    a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
    root = json_of(&a);
    assert_float_equal(json_number_value(at(root, "prefill.forecast.local_ms")), 900, 0);
    assert_string_equal(text_at(root, "prefill.forecast.workers.0.worker"), "spark:7070");
    json_decref(root);
}

static void metrics_are_lines_that_prometheus_reads(void **state)
{
    (void)state;
    http_answer a =
            http_post(port, "/completion", "{\"prompt\":\"p\",\"prefill\":{\"where\":\"remote\"}}");
    free(a.body);
    a = http_get(port, "/metrics");
    assert_non_null(strcasestr(a.head, "Content-Type: text/plain; version=0.0.4"));
    assert_non_null(strstr(a.body, "\nllamacpp:prompt_seconds_total 1.5\n"));
    assert_non_null(strstr(a.body, "\nbaton_prefill_prompts_total{place=\"remote\"} 1\n"));
    assert_non_null(strstr(a.body, "\nbaton_prefill_fallbacks_total 3\n"));
    assert_non_null(strstr(a.body, "\nbaton_prefill_received_bytes_total 4096\n"));
    assert_non_null(strstr(a.body, "\nbaton_time_to_first_token_seconds_count 1\n"));
    assert_non_null(strstr(a.body, "\nbaton_worker_up{worker=\"spark\\\":7070\"} 1\n"));
    for (char *line = strtok(a.body, "\n"); line; line = strtok(NULL, "\n")) {
        char name[128];
        double value;
        char after;
        if (line[0] != '#') {
            char *space = strrchr(line, ' ');
            assert_non_null(space);
            snprintf(name, sizeof name, "%.*s", (int)(space - line), line);
            assert_int_equal(sscanf(space + 1, "%lf%c", &value, &after), 1);
            assert_true(value == value && strspn(name, "abcdefghijklmnopqrstuvwxyz_:") > 5);
        }
    }
    free(a.body);
}

static void the_page_is_revalidated(void **state)
{
    (void)state;
    http_answer a = http_get(port, "/");
    assert_int_equal(a.code, 200);
    assert_non_null(strcasestr(a.head, "Cache-Control: no-cache"));
    char *tag = strcasestr(a.head, "ETag: ");
    assert_non_null(tag);
    char header[128];
    snprintf(header, sizeof header, "If-None-Match: W/%.*s\r\n", (int)strcspn(tag + 6, "\r"),
             tag + 6);
    free(a.body);
    a = http_do(port, "GET", "/index.html", header, "");
    assert_int_equal(a.code, 304);
    assert_int_equal(a.size, 0);
    free(a.body);
    a = http_do(port, "HEAD", "/", "", "");
    assert_int_equal(a.code, 200);
    assert_int_equal(a.size, 0);
    free(a.body);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)

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
        T(an_early_failure_is_an_http_error_even_in_a_stream),
        T(a_late_failure_is_an_event),
        T(a_prompt_too_long_is_told_with_both_numbers),
        T(a_full_queue_is_429_with_retry_after),
        T(errors_have_status_type_and_field),
        T(a_body_over_the_limit_is_413),
        T(keys_are_asked_for_except_in_public),
        T(foreign_pages_and_names_are_kept_out),
        T(a_client_that_leaves_frees_its_place),
        T(a_slow_client_is_shown_the_door),
        T(while_loading_everything_but_the_page_is_503),
        T(stopping_lets_answers_finish),
        T(stopping_cancels_what_takes_too_long),
        T(an_address_in_use_is_an_error_that_says_so),
        T(tokens_and_text_go_both_ways),
        T(texts_typed_by_a_user_are_never_control_tokens),
        T(the_server_tells_about_itself),
        T(metrics_are_lines_that_prometheus_reads),
        T(the_page_is_revalidated),
    };
    return cmocka_run_group_tests_name("serve/server", tests, NULL, NULL);
}
