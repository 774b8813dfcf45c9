/* docs/http.md names every member and every metric, in the words of their lists (base/metric.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "handoff/client.h"
#include "serve/metrics.h"

static char page[256 << 10];

static int read_page(void **state)
{
    (void)state;
    FILE *file = fopen(BATON_SOURCE_DIR "/docs/http.md", "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    fclose(file);
    return 0;
}

static void every_list_stands_in_the_page(void **state)
{
    (void)state;
    const bt_metric_list lists[] = {
        bt_handoff_client_metrics(),     bt_handoff_client_worker_metrics(),
        bt_serve_connections_metrics(),  bt_engine_stats_metrics(),
        bt_serve_metrics_counters(),     bt_serve_metrics_histograms(),
        bt_serve_metrics_known(),
    };
    unsigned n_missing = 0;
    for (size_t i = 0; i < BT_LEN(lists); i++) {
        bt_buf table;
        bt_buf_init(&table, BT_MEM_test, sizeof page);
        bt_metric_put_markdown(&table, &lists[i]);
        assert_int_equal(bt_buf_status(&table), BT_OK);
        if (!strstr(page, bt_buf_text(&table))) {
            fprintf(stderr, "docs/http.md lacks, or words otherwise, the table of %s:\n%s\n",
                    lists[i].prefix, bt_buf_text(&table));
            n_missing++;
        }
        bt_buf_done(&table);
    }
    assert_int_equal(n_missing, 0);
}

static void a_name_ends_in_its_unit(void **state)
{
    (void)state;
    const bt_metric_list lists[] = { bt_handoff_client_metrics(),
                                     bt_handoff_client_worker_metrics() };
    for (size_t i = 0; i < BT_LEN(lists); i++) {
        for (size_t k = 0; k < lists[i].n; k++) {
            const bt_metric *m = &lists[i].metrics[k];
            const size_t n = strlen(m->name);
            const bool ms = n > 3 && strcmp(m->name + n - 3, "_ms") == 0;
            assert_int_equal(ms, m->unit == BT_UNIT_MS);
            assert_true(m->unit != BT_UNIT_SECONDS || strstr(m->name, "seconds"));
            assert_true(m->unit != BT_UNIT_BYTES || strstr(m->name, "bytes"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_list_stands_in_the_page),
        cmocka_unit_test(a_name_ends_in_its_unit),
    };
    return cmocka_run_group_tests_name("serve/documented", tests, read_page, NULL);
}
