/* tests/unit/worker/pair.c - rows arrive as they were computed, whatever else is going on. */
#include "unit/worker/pair.h"

static void rows_arrive_as_they_were_computed(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    const bt_prefill_report r = expect_remote(&s, 100, 0, 1);
    assert_int_equal(r.place, BT_PREFILL_REMOTE);
    assert_string_equal(r.worker, bt_worker_address(w.worker));
    assert_int_equal(r.n_remote, 99);
    assert_int_equal(r.bytes, 99 * (24 + 16 + 32 + 20 + 48 + 28) * 2);
    assert_false(r.fallback);
    assert_true(r.reason[0] != 0);
    close_server(&s);
    close_worker(&w);
}

static void every_length_chunk_prefix_and_window(void **state)
{
    (void)state;
    static const uint32_t chunks[] = { 1, 7, 16, 64, 512 };
    static const uint32_t lengths[] = { 2, 3, 15, 16, 17, 55, 700, FAKE_CTX - 1 };
    static const uint64_t windows[] = { 0, 3000 };   /* one row of the widest layer and a little */
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    for (size_t k = 0; k < BT_LEN(windows); k++) {
        for (size_t c = 0; c < BT_LEN(chunks); c++) {
            server_side s = open_server_with(
                    (bt_prefill_options){.addresses = bt_worker_address(w.worker),
                                         .min_tokens = 1,
                                         .n_prefill_chunk = chunks[c],
                                         .window_bytes = windows[k]},
                    1);
            wait_state(&s, 0, BT_PREFILL_READY);
            for (size_t l = 0; l < BT_LEN(lengths); l++) {
                const uint32_t n = lengths[l];
                atomic_store(&w.engine->n_cached, 0);
                (void)expect_remote(&s, n, 0, (uint32_t)(n + c));
                /* The server has a part already; the worker has none, less, more, all of it. */
                const uint32_t cached[] = { 0, n / 4, n / 2, n - 1 };
                for (size_t i = 0; i < BT_LEN(cached); i++) {
                    atomic_store(&w.engine->n_cached, cached[i]);
                    (void)expect_remote(&s, n, n / 3, (uint32_t)(n + c));
                }
            }
            close_server(&s);
        }
    }
    close_worker(&w);
}

static void another_model_is_refused_by_field(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 9);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_REFUSED);
    const bt_prefill_worker_status st = worker_status(&s, 0);
    assert_non_null(strstr(st.reason, "'weights'"));
    assert_non_null(strstr(st.reason, "01010101"));
    assert_non_null(strstr(st.reason, "09090909"));
    close_server(&s);
    close_worker(&w);
}

static void two_servers_many_prompts_at_once(void **state)
{
    (void)state;
    enum { N = 12 };
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s[2];
    uint32_t *tokens[2][N];
    int64_t t[2][N];
    bt_prefill_report r;
    atomic_store(&w.engine->layer_us, 300);
    for (int k = 0; k < 2; k++) {
        s[k] = open_server(bt_worker_address(w.worker));
        wait_state(&s[k], 0, BT_PREFILL_READY);
    }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++) {
            const uint32_t n = 50 + 37 * (uint32_t)i;
            tokens[k][i] = prompt(n, (uint32_t)(i * 2 + k));
            t[k][i] = give(&s[k], tokens[k][i], n, BT_POLICY_FAIL, &r);
            assert_true(t[k][i] >= 0);
        }
    }
    assert_true(worker_status(&s[0], 0).n_in_flight <= 4);   /* n_parallel of the worker */
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++) {
            assert_true(fake_wait(s[k].engine, t[k][i], 20000));
            if (!s[k].engine->tickets[t[k][i]].committed) {
                fail_msg("%s", s[k].engine->tickets[t[k][i]].report.reason);
            }
            assert_true(fake_rows_right(s[k].engine, t[k][i], tokens[k][i], 0,
                                        49 + 37 * (uint32_t)i));
            free(tokens[k][i]);
        }
    }
    close_server(&s[0]);
    close_server(&s[1]);
    close_worker(&w);
}

static void decisions_are_remembered(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    bt_prefill_decision d[BT_PREFILL_DECISIONS_MAX];
    wait_state(&s, 0, BT_PREFILL_READY);
    assert_int_equal(bt_handoff_client_decisions_get(s.prefill, d), 0);
    for (uint32_t i = 0; i < BT_PREFILL_DECISIONS_MAX + 3; i++) {
        const bt_prefill_report r = expect_remote(&s, 40 + i, 0, 100 + i);
        assert_true(r.forecast.made);
        assert_int_equal(r.forecast.n_tokens, 39 + i);
        assert_int_equal(r.forecast.n_workers, 1);
        assert_string_equal(r.forecast.workers[0].worker, bt_worker_address(w.worker));
        assert_true(i == 0 || r.forecast.workers[0].ms > 0);
    }
    assert_int_equal(bt_handoff_client_decisions_get(s.prefill, d), BT_PREFILL_DECISIONS_MAX);
    assert_int_equal(d[0].n_tokens, 39 + BT_PREFILL_DECISIONS_MAX + 2);
    assert_int_equal(d[BT_PREFILL_DECISIONS_MAX - 1].n_tokens, 39 + 3);
    assert_int_equal(d[0].outcome, BT_PREFILL_OUTCOME_REMOTE);
    assert_string_equal(d[0].worker, bt_worker_address(w.worker));
    assert_true(d[0].took_ms > 0 && d[0].reason[0]);
    close_worker(&w);
    wait_state(&s, 0, BT_PREFILL_CONNECTING);
    uint32_t *tokens = prompt(80, 9);
    bt_prefill_report r;
    assert_int_equal(give(&s, tokens, 80, BT_POLICY_FALLBACK, &r), -1);
    (void)bt_handoff_client_decisions_get(s.prefill, d);
    assert_int_equal(d[0].outcome, BT_PREFILL_OUTCOME_FALLBACK);
    assert_string_equal(d[0].worker, "");
    free(tokens);
    close_server(&s);
}

static bool is_hedged(bt_engine *e, int64_t t)
{
    pthread_mutex_lock(&e->lock);
    const bool hedged = e->tickets[t].hedged;
    pthread_mutex_unlock(&e->lock);
    return hedged;
}

static bool wait_hedged(bt_engine *e, int64_t t, uint32_t ms)
{
    const double until = bt_clock_ms() + ms;
    while (!is_hedged(e, t) && bt_clock_ms() < until) {
        bt_clock_sleep_ms(1);
    }
    return is_hedged(e, t);
}

/* Policy `hedge`: at once while nothing is known, later only when the worker is late; and the
 * engine's word that it was first ends the prompt there. */
static void late_prompts_are_hedged(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    bt_prefill_status st;
    bt_prefill_decision d[BT_PREFILL_DECISIONS_MAX];
    bt_prefill_report r;
    uint32_t *tokens = prompt(400, 41);
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->layer_us, 2000);
    int64_t t = give(&s, tokens, 400, BT_POLICY_HEDGE, &r);
    assert_true(t >= 0 && wait_hedged(s.engine, t, 200));
    fake_cancel(s.engine, t, BT_EXTERNAL_LOCAL_FIRST);
    assert_true(fake_wait(s.engine, t, 250));
    assert_true(s.engine->tickets[t].abandoned);
    bt_handoff_client_status_get(s.prefill, &st);
    assert_int_equal(st.n_hedged, 1);
    assert_int_equal(st.n_hedges_won_locally, 1);
    assert_int_equal(st.n_cancelled, 0);
    assert_int_equal(st.n_fallbacks, 0);
    (void)bt_handoff_client_decisions_get(s.prefill, d);
    assert_int_equal(d[0].outcome, BT_PREFILL_OUTCOME_LOCAL_FIRST);

    for (uint32_t i = 0; i < 4; i++) {              /* it is known what takes how long: */
        (void)expect_remote(&s, 400, 0, 42 + i);
    }
    /* In time it is left alone; what is in time is a matter of unit/transfer/client. */
    t = give(&s, tokens, 400, BT_POLICY_HEDGE, &r);
    assert_true(fake_wait(s.engine, t, 10000));
    assert_true(s.engine->tickets[t].committed);
    atomic_store(&w.engine->layer_us, 20000);       /* late, */
    t = give(&s, tokens, 400, BT_POLICY_HEDGE, &r);
    assert_true(wait_hedged(s.engine, t, 5000));
    assert_false(s.engine->tickets[t].committed);
    const int64_t u = give(&s, tokens, 400, BT_POLICY_FALLBACK, &r);    /* and not asked for */
    assert_true(fake_wait(s.engine, t, 20000) && fake_wait(s.engine, u, 20000));
    assert_true(s.engine->tickets[t].committed && s.engine->tickets[u].committed);
    assert_false(s.engine->tickets[u].hedged);
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

/* With all slots taken by long prompts, one that is much shorter goes at once. */
static void a_short_prompt_needs_no_slot(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 64, 1);
    server_side s = open_server(bt_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->layer_us, 10000);
    uint32_t *tokens = prompt(1500, 31);
    bt_prefill_report r;
    int64_t t[6];
    for (int i = 0; i < 6; i++) {                   /* the worker offers 4 slots */
        t[i] = give(&s, tokens, 1500, BT_POLICY_FAIL, &r);
    }
    wait_slots(&s, 0, 4, 2);
    const int64_t middle = give(&s, tokens, 900, BT_POLICY_FAIL, &r);
    const int64_t brief = give(&s, tokens, 65, BT_POLICY_FAIL, &r);
    wait_slots(&s, 0, 5, 3);
    assert_true(fake_wait(s.engine, brief, 500));
    assert_true(s.engine->tickets[brief].committed);
    assert_false(s.engine->tickets[t[0]].committed);
    atomic_store(&w.engine->layer_us, 0);
    for (int i = 0; i < 6; i++) {
        assert_true(fake_wait(s.engine, t[i], 20000));
    }
    assert_true(fake_wait(s.engine, middle, 20000));
    free(tokens);
    close_server(&s);
    close_worker(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_arrive_as_they_were_computed),
        cmocka_unit_test(every_length_chunk_prefix_and_window),
        cmocka_unit_test(another_model_is_refused_by_field),
        cmocka_unit_test(two_servers_many_prompts_at_once),
        cmocka_unit_test(decisions_are_remembered),
        cmocka_unit_test(late_prompts_are_hedged),
        cmocka_unit_test(a_short_prompt_needs_no_slot),
    };
    return cmocka_run_group_tests_name("handoff/pair", tests, quiet, NULL);
}
