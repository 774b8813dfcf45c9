/* tests/unit/worker/pair_losses.c - workers that come late, fail or vanish; cancelled prompts. */
#include "unit/worker/pair.h"

static void server_starts_without_worker_and_uses_it_later(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    char address[128];
    snprintf(address, sizeof address, "%s", bt_worker_address(w.worker));
    close_worker(&w);

    server_side s = open_server(address);
    uint32_t *tokens = prompt(100, 3);
    bt_prefill_report r;
    const double until = bt_clock_ms() + 5000;
    while (!worker_status(&s, 0).reason[0] && bt_clock_ms() < until) {
        bt_clock_sleep_ms(5);
    }
    assert_int_equal(give(&s, tokens, 100, BT_POLICY_FALLBACK, &r), -1);
    assert_true(r.fallback);
    assert_non_null(strstr(r.reason, "no worker is ready"));
    assert_non_null(strstr(r.reason, address));

    /* Policy `fail`: the ticket is taken and ended with an error. */
    const int64_t t = give(&s, tokens, 100, BT_POLICY_FAIL, &r);
    assert_true(t >= 0);
    assert_true(fake_wait(s.engine, t, 1000));
    assert_true(s.engine->tickets[t].abandoned);
    assert_int_equal(s.engine->tickets[t].status, BT_E_LOST);
    assert_int_equal(s.engine->tickets[t].complete, 0);

    w = open_worker(address, 16, 1);
    wait_state(&s, 0, BT_PREFILL_READY);
    (void)expect_remote(&s, 100, 0, 3);
    /* And again after a restart in between. */
    close_worker(&w);
    wait_state(&s, 0, BT_PREFILL_CONNECTING);
    w = open_worker(address, 16, 1);
    wait_state(&s, 0, BT_PREFILL_READY);
    (void)expect_remote(&s, 100, 0, 3);
    assert_int_equal(worker_status(&s, 0).n_connects, 2);
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

static void worker_gone_midway_keeps_complete_chunks(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->layer_us, 2000);
    uint32_t *tokens = prompt(1000, 5);
    bt_prefill_report r;
    const int64_t t = give(&s, tokens, 1000, BT_POLICY_FALLBACK, &r);
    assert_true(t >= 0);
    wait_in_flight(&s, 0, 999 - 64);
    close_worker(&w);
    assert_true(fake_wait(s.engine, t, 5000));
    const fake_ticket *k = &s.engine->tickets[t];
    assert_true(k->abandoned);
    assert_in_range(k->complete, 64, 998);
    assert_int_equal(k->complete % 16, 0);
    assert_true(fake_rows_right(s.engine, t, tokens, 0, k->complete));
    assert_true(k->report.fallback);
    assert_int_equal(k->report.place, BT_PREFILL_MIXED);
    assert_int_equal(k->report.n_remote, k->complete);
    assert_non_null(strstr(k->report.reason, "of 999 tokens"));
    assert_true(k->report.compute_ms > 0 && k->report.compute_ms <= k->report.total_ms);
    bt_prefill_status st;
    bt_handoff_client_status_get(s.prefill, &st);
    assert_int_equal(st.n_fallbacks, 1);
    free(tokens);
    close_server(&s);
}

/* A prompt that no worker can ever take is told apart from one that none can take now, and is a
 * fallback only where it is prefilled here. */
static void too_long_for_all_is_no_passing_failure(void **state)
{
    (void)state;
    worker_side w = { .engine = fake_engine_new(true, 16, 1) };
    const bt_worker_options wo = { .listen = "127.0.0.1:0", .numerics = "ref" };
    w.engine->options.n_ctx = 100;
    assert_int_equal(bt_worker_open(&wo, w.engine, &w.worker, NULL), BT_OK);
    char two[300];
    snprintf(two, sizeof two, "%s; 127.0.0.1:1", bt_worker_address(w.worker));
    uint32_t *tokens = prompt(300, 6);
    for (int i = 0; i < 2; i++) {                   /* the second of two never was there */
        server_side s = open_server(i == 0 ? bt_worker_address(w.worker) : two);
        bt_prefill_report r;
        bt_prefill_status st;
        wait_state(&s, 0, BT_PREFILL_READY);
        const int64_t t = give(&s, tokens, 300, BT_POLICY_FAIL, &r);
        assert_true(t >= 0 && fake_wait(s.engine, t, 5000));
        const fake_ticket *k = &s.engine->tickets[t];
        assert_true(k->abandoned && !k->report.fallback);
        assert_int_equal(k->status, i == 0 ? BT_E_CONTEXT : BT_E_LOST);
        assert_non_null(strstr(k->report.reason, "room for 299 tokens"));
        assert_non_null(strstr(k->report.reason, "has room for 100"));
        assert_int_equal(give(&s, tokens, 300, BT_POLICY_FALLBACK, &r), -1);
        assert_true(r.fallback);
        assert_non_null(strstr(r.reason, "room for 299 tokens"));
        bt_handoff_client_status_get(s.prefill, &st);
        assert_int_equal(st.n_failed, 1);
        assert_int_equal(st.n_fallbacks, 1);
        close_server(&s);
    }
    free(tokens);
    close_worker(&w);
}

static void second_worker_goes_on_where_the_first_stopped(void **state)
{
    (void)state;
    worker_side w[2] = { open_worker("127.0.0.1:0", 16, 1), open_worker("127.0.0.1:0", 16, 1) };
    char both[300];
    snprintf(both, sizeof both, "%s; %s", bt_worker_address(w[0].worker),
             bt_worker_address(w[1].worker));
    server_side s = open_server(both);
    wait_state(&s, 0, BT_PREFILL_READY);
    wait_state(&s, 1, BT_PREFILL_READY);
    atomic_store(&w[0].engine->layer_us, 2000);
    atomic_store(&w[1].engine->layer_us, 2000);
    uint32_t *tokens = prompt(600, 6);
    bt_prefill_report r;
    const int64_t t = give(&s, tokens, 600, BT_POLICY_FAIL, &r);
    assert_true(t >= 0);
    const uint32_t a = worker_status(&s, 0).tokens_in_flight > 0 ? 0 : 1, b = 1 - a;
    wait_slots(&s, a, 1, 0);
    wait_in_flight(&s, a, 599 - 32);
    close_worker(&w[a]);
    assert_true(fake_wait(s.engine, t, 5000));
    const fake_ticket *k = &s.engine->tickets[t];
    assert_true(k->committed);
    assert_int_equal(k->report.retries, 1);
    assert_string_equal(k->report.worker, bt_worker_address(w[b].worker));
    assert_true(fake_rows_right(s.engine, t, tokens, 0, 599));
    /* The answer tells of both: who was lost, why, and what they spent together. */
    char want[200];
    snprintf(want, sizeof want, "worker %s gave ", worker_status(&s, a).address);
    assert_non_null(strstr(k->report.reason, want));
    assert_non_null(strstr(k->report.reason, " of 599 tokens ("));
    snprintf(want, sizeof want, "; worker %s did the rest", k->report.worker);
    assert_non_null(strstr(k->report.reason, want));
    assert_false(k->report.fallback);
    /* 600 tokens are 38 chunks of 16 in 4 layers of 2 ms; of the lost one what it had reported. */
    assert_true(k->report.compute_ms >= 36 * 4 * 2);
    assert_true(k->report.queue_ms + k->report.compute_ms <= k->report.total_ms);
    assert_true(worker_status(&s, a).n_partial_tokens >= 32);
    assert_true(worker_status(&s, b).n_tokens <= 599 - 32);
    free(tokens);
    close_server(&s);
    close_worker(&w[b]);
}

static void cancel_ends_both_sides_soon(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->layer_us, 2000);
    uint32_t *tokens = prompt(1500, 7);
    for (uint32_t i = 0; i < 20; i++) {
        bt_prefill_report r;
        const int64_t t = give(&s, tokens, 1500, BT_POLICY_FALLBACK, &r);
        assert_true(t >= 0);
        bt_clock_sleep_ms(i * 2);               /* queued, computing, transferring */
        const double began = bt_clock_ms();
        fake_cancel(s.engine, t, BT_EXTERNAL_GONE);
        assert_true(fake_wait(s.engine, t, 250));
        assert_true(s.engine->tickets[t].abandoned);
        assert_int_equal(s.engine->tickets[t].status, BT_E_CANCELLED);
        while (atomic_load(&w.engine->n_requests) > 0 && bt_clock_ms() - began < 250) {
            bt_clock_sleep_ms(1);
        }
        assert_int_equal(atomic_load(&w.engine->n_requests), 0);
    }
    bt_worker_status st;
    bt_worker_status_get(w.worker, &st);
    assert_int_equal(st.n_in_flight, 0);
    assert_int_equal(st.tokens_in_flight, 0);
    atomic_store(&w.engine->layer_us, 0);
    (void)expect_remote(&s, 300, 0, 8);
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

static void failing_engine_is_an_error_of_the_prompt(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->fail_at, 32);
    uint32_t *tokens = prompt(200, 9);
    bt_prefill_report r;
    const int64_t t = give(&s, tokens, 200, BT_POLICY_FAIL, &r);
    assert_true(t >= 0);
    assert_true(fake_wait(s.engine, t, 5000));
    assert_true(s.engine->tickets[t].abandoned);
    assert_int_equal(s.engine->tickets[t].status, BT_E_LOST);   /* for a client it is only that */
    assert_non_null(strstr(s.engine->tickets[t].report.reason, "on fire"));
    atomic_store(&w.engine->fail_at, 0);
    (void)expect_remote(&s, 200, 0, 9);         /* the connection is as good as before */
    assert_int_equal(worker_status(&s, 0).n_connects, 1);
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

static void stop_ends_every_ticket(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->layer_us, 5000);
    uint32_t *tokens = prompt(500, 11);
    bt_prefill_report r;
    int64_t t[6];
    for (int i = 0; i < 6; i++) {
        t[i] = give(&s, tokens, 500, BT_POLICY_FALLBACK, &r);
        assert_true(t[i] >= 0);
    }
    bt_handoff_client_stop(s.prefill);
    for (int i = 0; i < 6; i++) {
        assert_true(s.engine->tickets[t[i]].abandoned);
    }
    assert_int_equal(give(&s, tokens, 500, BT_POLICY_FAIL, &r), -1);
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

/* Every allocation of opening and of a prompt fails once: an error or a local prefill, no crash, no
 * leak (the sanitizers see to that), and the next prompt goes through. */
static void any_failed_allocation_is_survived(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 40; n++) {
        bt_engine *e = fake_engine_new(true, 16, 1);
        const bt_worker_options o = { .listen = "127.0.0.1:0" };
        bt_worker *w = NULL;
        bt_memory_fail_after(n);
        const bt_status s = bt_worker_open(&o, e, &w, NULL);
        bt_memory_fail_after(0);
        assert_true(s == BT_OK || s == BT_E_NOMEM);
        bt_worker_close(w);
        fake_engine_free(e);
    }
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    for (uint64_t n = 1; n <= 40; n++) {
        bt_engine *e = fake_engine_new(false, 16, 1);
        const bt_prefill_options o = {.addresses = bt_worker_address(w.worker),
                                      .min_tokens = 1};
        bt_prefill *p = NULL;
        bt_memory_fail_after(n);
        const bt_status s = bt_handoff_client_open(&o, e, &p, NULL);
        bt_clock_sleep_ms(5);                       /* the threads' allocations, too */
        bt_memory_fail_after(0);
        assert_true(s == BT_OK || s == BT_E_NOMEM);
        bt_handoff_client_close(p);
        fake_engine_free(e);
    }
    server_side s = open_server(bt_worker_address(w.worker));
    uint32_t *tokens = prompt(300, 12);
    for (uint64_t n = 1; n <= 40; n++) {
        bt_prefill_report r;
        wait_state(&s, 0, BT_PREFILL_READY);
        bt_memory_fail_after(n);
        const int64_t t = give(&s, tokens, 300, BT_POLICY_FALLBACK, &r);
        if (t >= 0) {
            assert_true(fake_wait(s.engine, t, 10000));
            const fake_ticket *k = &s.engine->tickets[t];
            assert_true(k->committed || k->report.fallback);
            assert_true(fake_rows_right(s.engine, t, tokens, 0, k->complete));
        }
        bt_memory_fail_after(0);
    }
    wait_state(&s, 0, BT_PREFILL_READY);
    (void)expect_remote(&s, 300, 0, 12);
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_starts_without_worker_and_uses_it_later),
        cmocka_unit_test(worker_gone_midway_keeps_complete_chunks),
        cmocka_unit_test(too_long_for_all_is_no_passing_failure),
        cmocka_unit_test(second_worker_goes_on_where_the_first_stopped),
        cmocka_unit_test(cancel_ends_both_sides_soon),
        cmocka_unit_test(failing_engine_is_an_error_of_the_prompt),
        cmocka_unit_test(stop_ends_every_ticket),
        cmocka_unit_test(any_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests_name("handoff/pair_losses", tests, quiet, NULL);
}
