/* tests/unit/worker/pair_workers.c - the list of workers, and workers that drain. */
#include "unit/worker/pair.h"

static void drained_worker_finishes_and_gets_no_more(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s =
            open_server_with((bt_prefill_options){.addresses = bt_worker_address(w.worker),
                                                  .min_tokens = 1,
                                                  .n_prefill = 1},
                             1);
    wait_state(&s, 0, BT_PREFILL_READY);
    atomic_store(&w.engine->layer_us, 1000);
    uint32_t *tokens = prompt(500, 10);
    bt_prefill_report r;
    const int64_t t = give(&s, tokens, 500, BT_POLICY_FALLBACK, &r);
    const int64_t waits = give(&s, tokens, 500, BT_POLICY_FALLBACK, &r);
    assert_true(t >= 0 && waits >= 0);
    wait_slots(&s, 0, 1, 1);
    wait_in_flight(&s, 0, 2 * 499 - 16);
    assert_int_equal(bt_worker_drain(w.worker, 1), BT_E_TIMEOUT);
    wait_state(&s, 0, BT_PREFILL_DRAINING);
    assert_int_equal(give(&s, tokens, 500, BT_POLICY_FALLBACK, &r), -1);
    assert_non_null(strstr(r.reason, "shutting down"));
    assert_int_equal(bt_worker_drain(w.worker, 20000), BT_OK);
    assert_true(fake_wait(s.engine, t, 1000));
    assert_true(s.engine->tickets[t].committed);
    assert_true(fake_wait(s.engine, waits, 1000));
    assert_true(s.engine->tickets[waits].abandoned);
    free(tokens);
    close_worker(&w);
    close_server(&s);
}

static void bad_addresses_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = { "", " ; ", "nohost", ":7070", "a:", "a:0", "a:65536", "a:1x",
                                       "good:7070;bad" };
    bt_engine *e = fake_engine_new(false, 64, 1);
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        const bt_prefill_options o = { .addresses = bad[i] };
        bt_prefill *p = NULL;
        bt_error err = { 0 };
        assert_int_equal(bt_handoff_client_open(&o, e, &p, &err), BT_E_BADINPUT);
        assert_true(err.text[0] != 0);
        assert_null(p);
    }
    fake_engine_free(e);
}

static void set_workers(const server_side *s, const char *addresses, bt_status want)
{
    bt_error err = { 0 };
    assert_int_equal(bt_handoff_client_set_workers(s->prefill, addresses, &err), want);
    assert_true(want == BT_OK || err.text[0] != 0);
}

static uint32_t n_workers(const server_side *s)
{
    bt_prefill_status st;
    bt_handoff_client_status_get(s->prefill, &st);
    return st.n_workers;
}

static void wait_workers(const server_side *s, uint32_t n)
{
    WAIT_FOR(n_workers(s) == n);
}

/* Workers come and go while the server runs; one that goes finishes what it has. */
static void the_list_of_workers_changes(void **state)
{
    (void)state;
    worker_side w[2] = { open_worker("127.0.0.1:0", 16, 1), open_worker("127.0.0.1:0", 16, 1) };
    const char *a = bt_worker_address(w[0].worker),
               *b = bt_worker_address(w[1].worker);
    char both[300];
    snprintf(both, sizeof both, "%s;%s", a, b);
    server_side s = open_server_with((bt_prefill_options){ .addresses = "", .min_tokens = 1,
                                                           .addresses_change = true }, 1);
    uint32_t *tokens = prompt(600, 21);
    bt_prefill_report r;
    assert_int_equal(give(&s, tokens, 600, BT_POLICY_FALLBACK, &r), -1);
    assert_non_null(strstr(r.reason, "list of workers is empty"));

    set_workers(&s, a, BT_OK);
    wait_state(&s, 0, BT_PREFILL_READY);
    (void)expect_remote(&s, 100, 0, 22);
    set_workers(&s, "nonsense", BT_E_BADINPUT);
    set_workers(&s, "127.0.0.1:1;nonsense", BT_E_BADINPUT);
    assert_int_equal(n_workers(&s), 1);             /* nothing has changed */
    set_workers(&s, both, BT_OK);
    wait_state(&s, 1, BT_PREFILL_READY);
    assert_int_equal(worker_status(&s, 0).n_connects, 1);   /* who stays is not touched */

    atomic_store(&w[0].engine->layer_us, 1000);
    atomic_store(&w[1].engine->layer_us, 1000);
    const int64_t t = give(&s, tokens, 600, BT_POLICY_FAIL, &r);
    assert_true(t >= 0);
    const bool on_a = worker_status(&s, 0).tokens_in_flight > 0;
    set_workers(&s, on_a ? b : a, BT_OK);           /* the busy one goes */
    assert_int_equal(worker_status(&s, on_a ? 0 : 1).phase, BT_PREFILL_DRAINING);
    const int64_t t2 = give(&s, tokens, 600, BT_POLICY_FAIL, &r);
    assert_true(fake_wait(s.engine, t, 20000) && fake_wait(s.engine, t2, 20000));
    assert_true(s.engine->tickets[t].committed && s.engine->tickets[t2].committed);
    assert_string_equal(s.engine->tickets[t2].report.worker, on_a ? b : a);
    wait_workers(&s, 1);

    set_workers(&s, both, BT_OK);                   /* and back, */
    wait_state(&s, 0, BT_PREFILL_READY);
    wait_state(&s, 1, BT_PREFILL_READY);
    set_workers(&s, "", BT_OK);                     /* all gone, and back before they are */
    set_workers(&s, both, BT_OK);
    assert_int_equal(n_workers(&s), 2);
    wait_state(&s, 0, BT_PREFILL_READY);
    set_workers(&s, "", BT_OK);
    wait_workers(&s, 0);
    for (uint32_t i = 0; i < 3; i++) {              /* places in the table are given back */
        char many[BT_WORKERS_MAX * 24] = "";
        for (uint32_t k = 0; k < BT_WORKERS_MAX; k++) {
            snprintf(many + strlen(many), sizeof many - strlen(many), "127.0.0.1:%u;",
                     10 + i * BT_WORKERS_MAX + k);
        }
        set_workers(&s, many, BT_OK);
        assert_int_equal(n_workers(&s), BT_WORKERS_MAX);
        set_workers(&s, "", BT_OK);
        wait_workers(&s, 0);
    }
    free(tokens);
    close_server(&s);
    close_worker(&w[0]);
    close_worker(&w[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drained_worker_finishes_and_gets_no_more),
        cmocka_unit_test(bad_addresses_are_named),
        cmocka_unit_test(the_list_of_workers_changes),
    };
    return cmocka_run_group_tests_name("handoff/pair_workers", tests, quiet, NULL);
}
