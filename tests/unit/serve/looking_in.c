/* Routes that show what is served. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "fixture.h"

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
    assert_non_null(strstr(a.body, "\nbaton_prompts_total{place=\"remote\"} 1\n"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(tokens_and_text_go_both_ways),
        T(texts_typed_by_a_user_are_never_control_tokens),
        T(the_server_tells_about_itself),
        T(metrics_are_lines_that_prometheus_reads),
        T(the_page_is_revalidated),
    };
    return cmocka_run_group_tests_name("serve/looking_in", tests, NULL, NULL);
}
