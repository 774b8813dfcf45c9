/* A server over loopback with an engine that is a clock (fake.h), and how its answers are read. */
#define MAYBE_UNUSED __attribute__((unused))

#include "base/log.h"
#include "fake.h"
#include "client.h"

static bt_server *server;
static uint32_t   port;

#define CHAT_BODY(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more "}"
enum { HOUR_MS = 3600000 };            /* never, in a test */

#define FULL_TEXT "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80 END"

static bt_server_options options(void)
{
    bt_server_options o = bt_serve_defaults();
    o.port = 0;
    return o;
}

MAYBE_UNUSED static void start(const bt_server_options *o, bool ready)
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
    bt_log_set_level(BT_LOG_ERROR);
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

MAYBE_UNUSED static void restart(const bt_server_options *o, bool ready)
{
    bt_serve_destroy(server);
    start(o, ready);
}

MAYBE_UNUSED static void wait_alive(unsigned n)
{
    while (fake.n_alive != n) {
        bt_clock_sleep_ms(1);
    }
}

MAYBE_UNUSED static json_t *json_of(http_answer *a)
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

MAYBE_UNUSED static void expect_error(http_answer a, int code, const char *type,
                                      const char *says)
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

MAYBE_UNUSED static stream read_stream(http_answer *a)
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

#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
