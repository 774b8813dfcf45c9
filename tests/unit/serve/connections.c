/* serve/connections.h and serve/head.h: connections that are silent, idle, or not quite HTTP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "fixture.h"

enum { N_MAX = 8 };

static void restart_small(uint32_t timeout_s)
{
    bt_server_options o = options();
    o.n_connections = N_MAX;
    o.timeout_s = timeout_s;
    restart(&o, true);
}

/* Sends the bytes as they are and reads the answer up to the end of the connection. */
static http_answer http_raw(const char *bytes)
{
    const int fd = http_connect(port);
    http_send(fd, bytes, strlen(bytes));
    return http_read(fd);
}

/* One answer on a connection that stays open; its code. */
static int http_read_one(int fd)
{
    char got[8192];
    size_t size = 0;
    while (size < sizeof got - 1) {
        const ssize_t n = recv(fd, got + size, 1, 0);
        if (n <= 0) {
            return 0;
        }
        size++;
        got[size] = '\0';
        const char *length = strcasestr(got, "Content-Length: ");
        const char *body = strstr(got, "\r\n\r\n");
        if (body && length && size == (size_t)(body + 4 - got) + strtoul(length + 16, NULL, 10)) {
            int code = 0;
            sscanf(got, "HTTP/1.1 %d", &code);
            return code;
        }
    }
    return 0;
}

static double metric(const char *name)
{
    http_answer a = http_get(port, "/metrics");
    assert_int_equal(a.code, 200);
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *found = strstr(a.body, line);
    if (!found) {
        fail_msg("no metric '%s'", name);
    }
    const double value = strtod(found + strlen(line), NULL);
    free(a.body);
    return value;
}

static bool is_closed(int fd)
{
    char byte;
    return recv(fd, &byte, 1, 0) <= 0;         /* waits as long as the client's patience */
}

/* ---- silent and idle connections ---- */

static void silent_sockets_that_announce_much_end_at_the_timeout(void **state)
{
    (void)state;
    restart_small(1);
    const int fd = http_connect(port);
    const char *head = "POST /completion HTTP/1.1\r\nHost: localhost\r\n"
                       "Content-Length: 67108864\r\n\r\n";
    http_send(fd, head, strlen(head));
    assert_true(is_closed(fd));                /* 64 MiB at 16 KiB/s would be 4,096 s */
    close(fd);
    assert_true(metric("baton_connections_timed_out_total") >= 1);
}

static void silent_sockets_do_not_keep_the_last_places(void **state)
{
    (void)state;
    restart_small(60);
    int silent[N_MAX];
    const char *head = "POST /completion HTTP/1.1\r\nHost: localhost\r\n"
                       "Content-Length: 67108864\r\n\r\n";
    for (size_t i = 0; i < N_MAX; i++) {
        silent[i] = http_connect(port);
        http_send(silent[i], head, strlen(head));
    }
    /* While nobody may be turned away yet, health and metrics are answered. */
    http_answer a = http_get(port, "/health");
    assert_int_equal(a.code, 200);
    free(a.body);
    assert_true(metric("baton_connections_displaced_total") <= N_MAX);
    /* And others are served as soon as one has been silent for long enough. */
    int code = 503;
    while (code == 503) {
        a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
        code = a.code;
        free(a.body);
    }
    assert_int_equal(code, 200);
    for (size_t i = 0; i < N_MAX; i++) {
        close(silent[i]);
    }
}

static void idle_connections_give_way(void **state)
{
    (void)state;
    restart_small(60);
    int idle[N_MAX];
    const char *head = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (size_t i = 0; i < N_MAX; i++) {
        idle[i] = http_connect(port);
        http_send(idle[i], head, strlen(head));
        assert_int_equal(http_read_one(idle[i]), 200);
    }
    http_answer a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
    assert_int_equal(a.code, 200);
    free(a.body);
    assert_true(is_closed(idle[0]));           /* the one that was idle for longest */
    http_send(idle[N_MAX - 1], head, strlen(head));
    assert_int_equal(http_read_one(idle[N_MAX - 1]), 200);
    for (size_t i = 0; i < N_MAX; i++) {
        close(idle[i]);
    }
    assert_true(metric("baton_connections_displaced_total") >= 1);
}

static void beyond_the_last_place_there_is_503_and_health(void **state)
{
    (void)state;
    restart_small(60);
    fake.prompt_ms = HOUR_MS;
    fake.n_parallel = N_MAX;
    int busy[N_MAX];
    for (size_t i = 0; i < N_MAX; i++) {
        busy[i] = http_connect(port);
        http_request(busy[i], "POST", "/completion", "", "{\"prompt\":\"p\"}", 14);
    }
    wait_alive(N_MAX);
    http_answer a = http_post(port, "/completion", "{\"prompt\":\"p\"}");
    assert_non_null(strcasestr(a.head, "Retry-After: "));
    assert_non_null(strcasestr(a.head, "Connection: close"));
    expect_error(a, 503, "unavailable_error", "--threads-http");
    a = http_get(port, "/health");
    assert_int_equal(a.code, 200);
    free(a.body);
    assert_true(metric("baton_connections_refused_total") == 1);
    for (size_t i = 0; i < N_MAX; i++) {
        close(busy[i]);
    }
}

static void an_error_in_the_head_is_answered_without_the_body(void **state)
{
    (void)state;
    bt_server_options o = options();
    o.api_keys = "k";
    restart(&o, true);
    static const struct { const char *head; int code; } t[] = {
        { "POST /completion HTTP/1.1\r\nHost: localhost\r\n", 401 },
        { "POST /completion HTTP/1.1\r\nHost: evil.example\r\n", 403 },
        { "POST /nothing HTTP/1.1\r\nHost: localhost\r\n", 404 },
        { "PUT /completion HTTP/1.1\r\nHost: localhost\r\n", 405 },
    };
    for (size_t i = 0; i < BT_LEN(t); i++) {
        char bytes[512];
        snprintf(bytes, sizeof bytes, "%sContent-Length: 60000000\r\n\r\n{", t[i].head);
        http_answer a = http_raw(bytes);       /* ends although the body never comes */
        assert_int_equal(a.code, t[i].code);
        assert_non_null(strcasestr(a.head, "Connection: close"));
        free(a.body);
        snprintf(bytes, sizeof bytes, "%sTransfer-Encoding: chunked\r\n\r\n", t[i].head);
        a = http_raw(bytes);
        assert_int_equal(a.code, t[i].code);
        free(a.body);
    }
    http_answer a = http_raw("POST /completion HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: k\r\n"
                             "Content-Length: 67108865\r\n\r\n");
    assert_int_equal(a.code, 413);
    free(a.body);
}

/* ---- heads that two programs could read in two ways ---- */

#define OK_BODY "Content-Length: 14\r\n\r\n{\"prompt\":\"p\"}"
#define POST_HEAD "POST /completion HTTP/1.1\r\nHost: localhost\r\n"

static void ambiguous_heads_are_400_and_closed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        POST_HEAD "Transfer-Encoding: chunked\r\n" OK_BODY,
        POST_HEAD "Content-Length: 14\r\n" OK_BODY,
        POST_HEAD "Content-Length: 3\r\n" OK_BODY,
        POST_HEAD "Content-Length : 14\r\n\r\n{\"prompt\":\"p\"}",
        POST_HEAD "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        POST_HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST_HEAD "X-Folded: a\r\n b\r\n" OK_BODY,
        POST_HEAD "Host: localhost\r\n" OK_BODY,
        ("POST /completion HTTP/1.1\r\n" OK_BODY),
        "GET /health HTTP/1.1\r\n\r\n",
    };
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        /* A second request must not be read out of what follows. */
        char bytes[1024];
        snprintf(bytes, sizeof bytes, "%sGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", bad[i]);
        http_answer a = http_raw(bytes);
        if (a.code != 400 || strstr(a.body, "HTTP/1.1 200")) {
            fail_msg("%d for '%s'", a.code, bad[i]);
        }
        free(a.body);
    }
}

static void whole_heads_are_taken(void **state)
{
    (void)state;
    static const char *const good[] = {
        POST_HEAD "Connection: close\r\n" OK_BODY,
        POST_HEAD "Connection: close\r\nX-Blank:   \r\nX-Tail: a \t\r\nX-None:\r\n" OK_BODY,
        "POST /completion HTTP/1.1\nHost: localhost\nConnection: close\nContent-Length: 14\n\n"
        "{\"prompt\":\"p\"}",
        POST_HEAD "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        "e\r\n{\"prompt\":\"p\"}\r\n0\r\n\r\n",
        "POST /completion HTTP/1.0\r\n" OK_BODY,
        "POST http://localhost:80/completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        OK_BODY,
        "GET http://127.0.0.1 HTTP/1.1\r\nHost: x.example\r\nConnection: close\r\n\r\n",
    };
    for (size_t i = 0; i < BT_LEN(good); i++) {
        http_answer a = http_raw(good[i]);
        if (a.code != 200) {
            fail_msg("%d for '%s': %s", a.code, good[i], a.body);
        }
        free(a.body);
    }
    http_answer a = http_raw("GET http://evil.example/props HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(a.code, 403);             /* what the target names counts */
    free(a.body);
}

static void a_refused_host_is_told_the_option_and_an_allowed_one_is_served(void **state)
{
    (void)state;
    expect_error(http_do(port, "GET", "/props", "Host: api.example\r\n", ""), 403,
                 "permission_error", "--allowed-hosts");
    bt_server_options o = options();
    o.allowed_hosts = "api.example";
    restart(&o, true);
    http_answer a = http_do(port, "GET", "/props", "Host: api.example\r\n", "");
    assert_int_equal(a.code, 200);
    free(a.body);
    expect_error(http_do(port, "GET", "/props", "Host: [::1].evil\r\n", ""), 403,
                 "permission_error", "[::1].evil");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(silent_sockets_that_announce_much_end_at_the_timeout),
        T(silent_sockets_do_not_keep_the_last_places),
        T(idle_connections_give_way),
        T(beyond_the_last_place_there_is_503_and_health),
        T(an_error_in_the_head_is_answered_without_the_body),
        T(ambiguous_heads_are_400_and_closed),
        T(whole_heads_are_taken),
        T(a_refused_host_is_told_the_option_and_an_allowed_one_is_served),
    };
    return cmocka_run_group_tests_name("serve/connections", tests, NULL, NULL);
}
