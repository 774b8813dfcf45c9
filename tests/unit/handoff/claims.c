/* tests/unit/handoff/claims.c - a server whose worker claims what cannot be: loads, times, reasons.
 *
 * What a worker says about itself decides nothing alone: it costs no time here, its clock is held
 * within ours, and a connection that it gives up is given up, whatever it calls the reason.
 */
#include "unit/handoff/hostile.h"

static int claims_open(void **state)
{
    *state = liar_new(0);
    return 0;
}

/* W-49: ERROR on stream 0 ends the connection, also with a status that means "nothing yet". */
static void an_error_of_the_connection_ends_it_whatever_its_status(void **state)
{
    liar *x = *state;
    static const uint32_t statuses[] = { BT_OK, BT_E_AGAIN, BT_E_FULL, BT_E_CANCELLED,
                                         BT_E_TIMEOUT, UINT32_MAX };
    for (size_t i = 0; i < BT_LEN(statuses); i++) {
        const int64_t t = take_prompt(x);
        send_all_rows(x, 0, 32);
        send_chunk(x, 32);
        SEND(x->link, ERROR, error, 0, .status = statuses[i],
             .sentence = bt_wire_text_of("enough"));
        assert_true(link_ends(x->link));
        assert_true(fake_wait(x->engine, t, 5000));
        const fake_ticket *k = &x->engine->tickets[t];
        assert_true(k->abandoned && k->complete == 32);
        assert_true(k->status != BT_OK && k->status != BT_E_AGAIN);
        assert_non_null(strstr(k->report.reason, "enough"));
        accept_server(x);
        wait_ready(x);
    }
    expect_alive(x);
}

/* The same on the stream ends the stream. */
static void an_error_of_a_stream_ends_it_whatever_its_status(void **state)
{
    liar *x = *state;
    static const uint32_t statuses[] = { BT_OK, BT_E_AGAIN, BT_E_CANCELLED, UINT32_MAX };
    for (size_t i = 0; i < BT_LEN(statuses); i++) {
        const int64_t t = take_prompt(x);
        SEND(x->link, ERROR, error, x->stream, .status = statuses[i]);
        assert_true(fake_wait(x->engine, t, 5000));
        assert_true(x->engine->tickets[t].abandoned);
        assert_true(x->engine->tickets[t].status != BT_OK);
    }
    assert_int_equal(status_of(x).n_connects, 1);
    expect_alive(x);
}

/* Prompts without number, for ever: what it says is shown, and placing a prompt takes no longer. */
static void a_load_beyond_measure_is_only_a_word(void **state)
{
    liar *x = *state;
    bt_frame f;
    bt_prefill_status all;
    bt_link_set_load(x->link, &(bt_link_load){ UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX });
    while (status_of(x).worker_tokens != UINT64_MAX) {  /* a heartbeat brings it */
        (void)(bt_link_receive(x->link, bt_clock_after_ms(20), &f, NULL) == BT_OK);
    }
    assert_int_equal(status_of(x).worker_prompts, 2 * (uint64_t)UINT32_MAX);
    expect_alive(x);
    expect_alive(x);
    bt_handoff_client_status_get(x->prefill, &all);
    assert_int_equal(all.n_prompts, 2);
}

/* Its clock says that it has computed for ages, or that it waited for them. */
static void times_are_held_within_ours(void **state)
{
    liar *x = *state;
    for (int i = 0; i < 3; i++) {
        const int64_t t = take_prompt(x);
        send_all_rows(x, 0, END);
        bt_wire_commit m = right_commit(x);
        m.compute_us = i != 1 ? UINT64_MAX : 0;
        m.queue_us = i != 0 ? UINT64_MAX : 0;
        m.n_cached = UINT32_MAX;
        send_commit(x, &m);
        assert_true(fake_wait(x->engine, t, 5000));
        const bt_prefill_report *r = &x->engine->tickets[t].report;
        assert_true(x->engine->tickets[t].committed);
        assert_true(r->compute_ms >= 0 && r->queue_ms >= 0);
        assert_true(r->compute_ms + r->queue_ms <= r->total_ms);
        assert_true(r->exposed_ms <= r->transfer_ms && r->transfer_ms <= r->total_ms);
    }
    expect_alive(x);
    assert_true(status_of(x).token_ms < 1e6);
}

/* Totals are sums over workers, so both say the same, of every prompt and of all. */
static void totals_are_sums(void **state)
{
    liar *x = *state;
    bt_prefill_status all;
    uint64_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        expect_alive(x);
    }
    for (int i = 0; i < FAKE_TICKETS; i++) {
        bytes += x->engine->tickets[i].used ? x->engine->tickets[i].report.bytes : 0;
    }
    bt_handoff_client_status_get(x->prefill, &all);
    const bt_prefill_worker_status one = status_of(x);
    assert_int_equal(all.n_bytes, bytes);
    assert_int_equal(one.n_bytes, bytes);
    assert_int_equal(all.n_prompts, one.n_prompts);
    assert_int_equal(all.n_tokens, one.n_tokens);
    /* And stay when the worker leaves the list. */
    assert_int_equal(bt_handoff_client_set_workers(x->prefill, "127.0.0.1:1", NULL), BT_OK);
    assert_true(link_ends(x->link));
    bt_handoff_client_stop(x->prefill);
    bt_handoff_client_status_get(x->prefill, &all);
    assert_int_equal(all.n_bytes, bytes);
    assert_int_equal(all.n_prompts, 3);
}

#define CLAIMS(test) cmocka_unit_test_setup_teardown(test, claims_open, liar_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIMS(an_error_of_the_connection_ends_it_whatever_its_status),
        CLAIMS(an_error_of_a_stream_ends_it_whatever_its_status),
        CLAIMS(a_load_beyond_measure_is_only_a_word),
        CLAIMS(times_are_held_within_ours),
        CLAIMS(totals_are_sums),
    };
    return cmocka_run_group_tests_name("handoff/claims", tests, quiet, NULL);
}
