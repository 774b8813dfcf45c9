/* Who may ask, clients that leave, the beginning and the end of a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <poll.h>

#include "fixture.h"

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

static void a_client_that_leaves_frees_its_place(void **state)
{
    (void)state;
    static const struct { uint32_t queue_ms, prompt_ms, gap_ms; } phases[] = {
        { HOUR_MS, 0, 0 }, { 0, HOUR_MS, 0 }, { 0, 0, HOUR_MS },
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
            wait_alive(1);
            close(fd);
            wait_alive(0);                     /* nothing but the client's end can do it */
        }
    }
}

static void tokenising_ends_when_the_client_leaves(void **state)
{
    (void)state;
    fake.encode_blocks = true;
    const int fd = http_connect(port);
    http_request(fd, "POST", "/completion", "", "{\"prompt\":\"p\"}", 14);
    while (fake.n_encoded == 0) {
        bt_clock_sleep_ms(1);
    }
    close(fd);
    while (fake.n_stopped == 0) {
        bt_clock_sleep_ms(1);
    }
    assert_int_equal(fake.n_submitted, 0);
}

static void a_slow_client_is_closed(void **state)
{
    (void)state;
    bt_server_options o = options();
    o.timeout_s = 1;
    restart(&o, true);
    const int fd = http_connect(port);
    /* One byte every 200 ms would keep an inactivity timer quiet for ever. */
    const char *head =
            "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaa";
    bool closed = false;
    for (size_t i = 0; head[i] && !closed; i++) {
        http_send(fd, head + i, 1);
        struct pollfd end = { .fd = fd, .events = POLLIN };
        closed = poll(&end, 1, 200) > 0;
    }
    close(fd);
    assert_true(closed);
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
    wait_alive(1);
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
    fake.gap_ms = HOUR_MS;
    pthread_create(&thread, NULL, stop_soon, &grace);
    http_answer a = http_post(port, "/v1/chat/completions", CHAT_BODY(",\"stream\":true"));
    pthread_join(thread, NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(keys_are_asked_for_except_in_public),
        T(foreign_pages_and_names_are_kept_out),
        T(a_client_that_leaves_frees_its_place),
        T(tokenising_ends_when_the_client_leaves),
        T(a_slow_client_is_closed),
        T(while_loading_everything_but_the_page_is_503),
        T(stopping_lets_answers_finish),
        T(stopping_cancels_what_takes_too_long),
        T(an_address_in_use_is_an_error_that_says_so),
    };
    return cmocka_run_group_tests_name("serve/clients", tests, NULL, NULL);
}
