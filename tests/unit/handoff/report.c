/* Where a prompt was prefilled, as its request says afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "handoff/report.h"

static bt_handoff_request *create(bt_prefill_where where, bt_prefill_policy policy, bool workers)
{
    bt_handoff_request *r = NULL;
    bt_error err;
    const bt_handoff_wish wish = { .where = where, .policy = policy, .has_workers = workers };
    assert_int_equal(bt_handoff_request_create(&wish, &r, &err), BT_OK);
    return r;
}

static bt_prefill_report report_of(const bt_handoff_request *r, uint32_t cached, uint32_t external,
                                   uint32_t local)
{
    const bt_request_stats stats = { .n_prompt = cached + external + local, .n_cached = cached,
                                     .n_external = external, .n_local = local, .queue_ms = 3,
                                     .prompt_ms = 50 };
    bt_prefill_report p;
    bt_handoff_request_report(r, &stats, &p);
    return p;
}

static void the_place_is_where_rows_came_from(void **state)
{
    (void)state;
    bt_handoff_request *r = create(BT_WHERE_AUTO, BT_POLICY_FALLBACK, true);
    const struct { uint32_t cached, external, local; bt_prefill_place place; } cases[] = {
        { 0, 0, 100, BT_PREFILL_LOCAL },   { 0, 99, 1, BT_PREFILL_REMOTE },
        { 0, 60, 40, BT_PREFILL_MIXED },   { 99, 0, 1, BT_PREFILL_CACHE },
        { 50, 49, 1, BT_PREFILL_REMOTE },  { 50, 0, 50, BT_PREFILL_LOCAL },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const bt_prefill_report p = report_of(r, cases[i].cached, cases[i].external,
                                              cases[i].local);
        assert_int_equal(p.place, cases[i].place);
        assert_int_equal(p.n_cached, cases[i].cached);
        assert_int_equal(p.n_remote, cases[i].external);
        assert_int_equal(p.n_local, cases[i].local);
        assert_float_equal(p.queue_ms, 3, 0);
    }
    assert_string_equal(bt_handoff_place_name(BT_PREFILL_MIXED), "mixed");
    assert_string_equal(bt_handoff_place_name((bt_prefill_place)99), "unknown");
    bt_handoff_request_unref(r);
}

static void without_workers_the_reason_says_so(void **state)
{
    (void)state;
    const struct { bt_prefill_where where; const char *says; bool fallback; } cases[] = {
        { BT_WHERE_AUTO, "no prefill workers", false }, { BT_WHERE_REMOTE, "has none", true },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        bt_handoff_request *r = create(cases[i].where, BT_POLICY_FALLBACK, false);
        const bt_prefill_report p = report_of(r, 0, 0, 100);
        assert_non_null(strstr(p.reason, cases[i].says));
        assert_int_equal(p.fallback, cases[i].fallback);
        assert_non_null(strstr(report_of(r, 99, 0, 1).reason, "cache"));
        bt_handoff_request_unref(r);
    }
}

/* What came of a ticket stands against what was known at the offer, however late that is written;
 * and what the engine says of a ticket against both. */
static void the_last_word_stands(void **state)
{
    (void)state;
    const bt_prefill_report known = { .reason = "faster there" },
                            came = { .reason = "committed", .bytes = 7, .total_ms = 20 };
    bt_handoff_request *r = create(BT_WHERE_AUTO, BT_POLICY_HEDGE, true);
    bt_handoff_request_begin(r, 5);
    bt_handoff_request_note(r, 5, &known);
    assert_string_equal(report_of(r, 0, 0, 9).reason, "faster there");
    bt_handoff_request_end(r, 5, &came);
    bt_handoff_request_note(r, 5, &known);
    assert_string_equal(report_of(r, 0, 8, 1).reason, "committed");
    assert_float_equal(report_of(r, 0, 8, 1).total_ms, 20, 0);
    assert_float_equal(report_of(r, 0, 4, 5).total_ms, 50, 0);   /* the rest was computed here */

    bt_handoff_request_cancel(r, 4, BT_EXTERNAL_LOCAL_FIRST);    /* an old ticket */
    assert_string_equal(report_of(r, 0, 8, 1).reason, "committed");
    bt_handoff_request_cancel(r, 5, BT_EXTERNAL_LOCAL_FIRST);
    bt_handoff_request_end(r, 5, &came);
    assert_non_null(strstr(report_of(r, 0, 0, 9).reason, "here it was complete first"));

    bt_handoff_request_begin(r, 6);                              /* offered again */
    bt_handoff_request_end(r, 5, &came);
    assert_string_equal(report_of(r, 0, 0, 9).reason, "");
    bt_handoff_request_end(r, 6, &came);
    assert_string_equal(report_of(r, 0, 8, 1).reason, "committed");
    bt_handoff_request_unref(r);
}

static void a_request_may_have_none(void **state)
{
    (void)state;
    const bt_prefill_report p = { 0 };
    assert_int_equal(bt_handoff_request_wish(NULL).where, BT_WHERE_AUTO);
    bt_handoff_request_ref(NULL);
    bt_handoff_request_begin(NULL, 1);
    bt_handoff_request_note(NULL, 1, &p);
    bt_handoff_request_end(NULL, 1, &p);
    bt_handoff_request_cancel(NULL, 1, BT_EXTERNAL_GONE);
    bt_handoff_request_unref(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_place_is_where_rows_came_from),
        cmocka_unit_test(without_workers_the_reason_says_so),
        cmocka_unit_test(the_last_word_stands),
        cmocka_unit_test(a_request_may_have_none),
    };
    return cmocka_run_group_tests_name("handoff/report", tests, NULL, NULL);
}
