/* base/metric.h: one list makes the struct, the JSON, the Prometheus text and the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/metric.h"

#define EXAMPLE_LIST(X)                                                    \
    X(char[16],     address,      TEXT,      NONE,   "HOST:PORT")          \
    X(const char *, reason,       TEXT,      NONE,   "Why")                \
    X(uint64_t,     n_prompts,    COUNTER,   NONE,   "Prompts committed")  \
    X(double,       transfer_ms,  COUNTER,   MS,     "Time under way")     \
    X(uint32_t,     pages_used,   GAUGE,     NONE,   "Pages")              \
    X(bool,         ready,        GAUGE,     NONE,   "1 when ready")       \
    X(bt_histogram, wait_seconds, HISTOGRAM, SECONDS, "Waiting")

typedef struct { BT_METRIC_MEMBERS(EXAMPLE_LIST) } example;

static BT_METRIC_DEFINE(example_metrics, example, "baton_example", EXAMPLE_LIST)

static bt_buf out;

static int begin(void **state)
{
    (void)state;
    bt_buf_init(&out, BT_MEM_serve, 1 << 16);
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_int_equal(bt_buf_status(&out), BT_OK);
    bt_buf_done(&out);
    return 0;
}

static void json_has_every_member_by_its_own_name(void **state)
{
    (void)state;
    example e = { .address = "a:1", .n_prompts = UINT64_MAX, .transfer_ms = 1.5, .ready = true };
    bt_histogram_add(&e.wait_seconds, 0.25);
    const bt_metric_list list = example_metrics();
    bt_json_writer w;
    bt_json_writer_init(&w, &out);
    bt_json_open(&w, NULL, '{');
    bt_metric_put_json(&w, &list, &e);
    bt_json_close(&w, '}');
    assert_string_equal(bt_buf_text(&out),
                        "{\"address\":\"a:1\",\"reason\":null,"
                        "\"n_prompts\":18446744073709551615,\"transfer_ms\":1.5,\"pages_used\":0,"
                        "\"ready\":true,\"wait_seconds\":{\"count\":1,\"sum\":0.25}}");
}

static void prometheus_has_one_family_with_a_sample_per_subject(void **state)
{
    (void)state;
    const example two[2] = { { .address = "a\":1", .n_prompts = 7, .transfer_ms = 1500 },
                             { .address = "b:1", .pages_used = 3, .ready = true } };
    const bt_metric_list list = example_metrics();
    bt_metric_put_prometheus(&out, &list, two, sizeof two[0], 2, "worker", "address");
    const char *text = bt_buf_text(&out);
    assert_non_null(strstr(text, "# HELP baton_example_prompts_total Prompts committed\n"
                                 "# TYPE baton_example_prompts_total counter\n"
                                 "baton_example_prompts_total{worker=\"a\\\":1\"} 7\n"
                                 "baton_example_prompts_total{worker=\"b:1\"} 0\n"));
    assert_non_null(strstr(text, "baton_example_transfer_seconds_total{worker=\"a\\\":1\"} 1.5\n"));
    assert_non_null(strstr(text, "# TYPE baton_example_ready gauge\n"));
    assert_non_null(strstr(text, "baton_example_ready{worker=\"b:1\"} 1\n"));
    assert_null(strstr(text, "reason"));
}

static void a_histogram_counts_upwards(void **state)
{
    (void)state;
    example e = { 0 };
    bt_histogram_add(&e.wait_seconds, 0.0005);
    bt_histogram_add(&e.wait_seconds, 1000);
    bt_histogram_add(&e.wait_seconds, -1);                 /* counts as 0 */
    const bt_metric_list list = example_metrics();
    bt_metric_put_prometheus(&out, &list, &e, sizeof e, 1, NULL, NULL);
    const char *text = bt_buf_text(&out);
    assert_non_null(strstr(text, "baton_example_wait_seconds_bucket{le=\"0.001\"} 2\n"));
    assert_non_null(strstr(text, "baton_example_wait_seconds_bucket{le=\"120\"} 2\n"));
    assert_non_null(strstr(text, "baton_example_wait_seconds_bucket{le=\"+Inf\"} 3\n"
                                 "baton_example_wait_seconds_sum 1000.0005\n"
                                 "baton_example_wait_seconds_count 3\n"));
}

static void the_table_names_both_spellings(void **state)
{
    (void)state;
    const bt_metric_list list = example_metrics();
    bt_metric_put_markdown(&out, &list);
    assert_non_null(strstr(bt_buf_text(&out),
                           "| `address` |  | text | HOST:PORT |\n"
                           "| `reason` |  | text | Why |\n"
                           "| `n_prompts` | `baton_example_prompts_total` | counter | "
                           "Prompts committed |\n"
                           "| `transfer_ms` | `baton_example_transfer_seconds_total` | "
                           "counter, ms | Time under way |\n"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(json_has_every_member_by_its_own_name),
        T(prometheus_has_one_family_with_a_sample_per_subject),
        T(a_histogram_counts_upwards),
        T(the_table_names_both_spellings),
    };
    return cmocka_run_group_tests_name("base/metric", tests, NULL, NULL);
}
