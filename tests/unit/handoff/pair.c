/* tests/unit/handoff/pair.c - servers and workers in one process over loopback, fake engines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "handoff/client.h"
#include "handoff/worker.h"
#include "unit/handoff/fake_engine.h"

/* ---- helpers ---- */

typedef struct {
    bt_engine *engine;
    bt_worker *worker;
} worker_side;

typedef struct {
    bt_engine  *engine;
    bt_prefill *prefill;
} server_side;

static worker_side open_worker(const char *listen, uint32_t chunk, uint8_t weights)
{
    worker_side w = { .engine = fake_engine_new(true, chunk, weights) };
    const bt_worker_options o = { .listen = listen, .numerics = "ref" };
    bt_error err = { 0 };
    /* The port of a worker that has just gone may need a moment. */
    for (int i = 0; i < 50; i++) {
        if (bt_handoff_worker_open(&o, w.engine, &w.worker, &err) == BT_OK) {
            return w;
        }
        bt_clock_sleep_ms(20);
    }
    fail_msg("worker: %s", err.text);
    return w;
}

static void close_worker(worker_side *w)
{
    bt_handoff_worker_close(w->worker);
    assert_int_equal(atomic_load(&w->engine->n_requests), 0);
    fake_engine_free(w->engine);
    *w = (worker_side){ 0 };
}

static server_side open_server_with(bt_prefill_options o, uint8_t weights)
{
    server_side s = { .engine = fake_engine_new(false, 64, weights) };
    bt_error err = { 0 };
    o.numerics = "ref";
    if (bt_handoff_client_open(&o, s.engine, &s.prefill, &err) != BT_OK) {
        fail_msg("server: %s", err.text);
    }
    assert_non_null(s.engine->external.offer);
    return s;
}

static server_side open_server(const char *addresses)
{
    return open_server_with((bt_prefill_options){ .addresses = addresses, .min_tokens = 1 }, 1);
}

static void close_server(server_side *s)
{
    bt_handoff_client_close(s->prefill);
    fake_engine_free(s->engine);
    *s = (server_side){ 0 };
}

static bt_prefill_worker_status worker_status(const server_side *s, uint32_t i)
{
    bt_prefill_worker_status st;
    assert_true(bt_handoff_client_worker_status_get(s->prefill, i, &st));
    return st;
}

/* Until no more than so many tokens, of prompts in work and waiting, are still to come. */
static void wait_in_flight(const server_side *s, uint32_t i, uint32_t n_max)
{
    const double until = bt_clock_ms() + 10000;
    while (worker_status(s, i).tokens_in_flight > n_max) {
        assert_true(bt_clock_ms() < until);
        bt_clock_sleep_ms(1);
    }
}

/* Until so many prompts are with a worker, and so many wait for one of its slots. */
static void wait_slots(const server_side *s, uint32_t i, uint32_t n_in_flight, uint32_t n_waiting)
{
    const double until = bt_clock_ms() + 10000;
    bt_prefill_worker_status st = worker_status(s, i);
    while ((st.n_in_flight != n_in_flight || st.n_waiting != n_waiting) && bt_clock_ms() < until) {
        bt_clock_sleep_ms(1);
        st = worker_status(s, i);
    }
    assert_int_equal(st.n_in_flight, n_in_flight);
    assert_int_equal(st.n_waiting, n_waiting);
}

static void wait_state(const server_side *s, uint32_t i, bt_prefill_state state)
{
    const double until = bt_clock_ms() + 10000;
    bt_prefill_worker_status st = worker_status(s, i);
    while (st.phase != state && bt_clock_ms() < until) {
        bt_clock_sleep_ms(5);
        st = worker_status(s, i);
    }
    if (st.phase != state) {
        fail_msg("worker %u is %s (%s), not %s", i, bt_handoff_client_state_name(st.phase),
                 st.reason, bt_handoff_client_state_name(state));
    }
}

static uint32_t *prompt(uint32_t n, uint32_t seed)
{
    uint32_t *tokens = malloc(n * sizeof *tokens);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)bt_hash64(&i, 4, seed) % 1000;
    }
    return tokens;
}

/* A prompt as the engine gives it out; -1 if it stays here. */
static int64_t give(server_side *s, const uint32_t *tokens, uint32_t n, bt_prefill_policy policy,
                    bt_prefill_report *r)
{
    return fake_start(s->engine, tokens, n, 0, BT_WHERE_AUTO, policy, r);
}

/* Sends a prompt of n tokens to a ready worker and expects every row back. */
static bt_prefill_report expect_remote(server_side *s, uint32_t n, uint32_t first, uint32_t seed)
{
    uint32_t *tokens = prompt(n, seed);
    bt_prefill_report r;
    const int64_t t = fake_start(s->engine, tokens, n, first, BT_WHERE_REMOTE,
                                 BT_POLICY_FALLBACK, &r);
    if (t < 0) {
        fail_msg("stayed here: %s", r.reason);
    }
    assert_true(fake_wait(s->engine, t, 20000));
    r = s->engine->tickets[t].report;
    if (!s->engine->tickets[t].committed) {
        fail_msg("not committed: %s", r.reason);
    }
    assert_true(r.exposed_ms >= 0 && r.exposed_ms <= r.transfer_ms);    /* a part of it */
    assert_true(r.queue_ms + r.transfer_ms <= r.total_ms);
    assert_true(fake_rows_right(s->engine, t, tokens, first, n - 1));
    free(tokens);
    return r;
}

/* ---- tests ---- */

static void rows_arrive_as_they_were_computed(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_handoff_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_READY);
    const bt_prefill_report r = expect_remote(&s, 100, 0, 1);
    assert_int_equal(r.place, BT_PREFILL_REMOTE);
    assert_string_equal(r.worker, bt_handoff_worker_address(w.worker));
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
                    (bt_prefill_options){.addresses = bt_handoff_worker_address(w.worker),
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

static void server_starts_without_worker_and_uses_it_later(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    char address[128];
    snprintf(address, sizeof address, "%s", bt_handoff_worker_address(w.worker));
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

static void another_model_is_refused_by_field(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 9);
    server_side s = open_server(bt_handoff_worker_address(w.worker));
    wait_state(&s, 0, BT_PREFILL_REFUSED);
    const bt_prefill_worker_status st = worker_status(&s, 0);
    assert_non_null(strstr(st.reason, "'weights'"));
    assert_non_null(strstr(st.reason, "01010101"));
    assert_non_null(strstr(st.reason, "09090909"));
    close_server(&s);
    close_worker(&w);
}

static void worker_gone_midway_keeps_complete_chunks(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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
    assert_int_equal(bt_handoff_worker_open(&wo, w.engine, &w.worker, NULL), BT_OK);
    char two[300];
    snprintf(two, sizeof two, "%s; 127.0.0.1:1", bt_handoff_worker_address(w.worker));
    uint32_t *tokens = prompt(300, 6);
    for (int i = 0; i < 2; i++) {                   /* the second of two never was there */
        server_side s = open_server(i == 0 ? bt_handoff_worker_address(w.worker) : two);
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
    snprintf(both, sizeof both, "%s; %s", bt_handoff_worker_address(w[0].worker),
             bt_handoff_worker_address(w[1].worker));
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
    assert_string_equal(k->report.worker, bt_handoff_worker_address(w[b].worker));
    assert_true(fake_rows_right(s.engine, t, tokens, 0, 599));
    /* The answer tells of both: who was lost, why, and what they spent together. */
    char want[200];
    snprintf(want, sizeof want, "worker %s gave ", worker_status(&s, a).address);
    assert_non_null(strstr(k->report.reason, want));
    assert_non_null(strstr(k->report.reason, " of 599 tokens ("));
    snprintf(want, sizeof want, "; worker %s did the rest", k->report.worker);
    assert_non_null(strstr(k->report.reason, want));
    assert_false(k->report.fallback);
    /* 600 tokens are 38 chunks of 16 in 4 layers of 2 ms; of the lost one what it had told. */
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
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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
    bt_handoff_worker_status_get(w.worker, &st);
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
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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
        s[k] = open_server(bt_handoff_worker_address(w.worker));
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

static void drained_worker_finishes_and_gets_no_more(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s =
            open_server_with((bt_prefill_options){.addresses = bt_handoff_worker_address(w.worker),
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
    assert_int_equal(bt_handoff_worker_drain(w.worker, 1), BT_E_TIMEOUT);
    wait_state(&s, 0, BT_PREFILL_DRAINING);
    assert_int_equal(give(&s, tokens, 500, BT_POLICY_FALLBACK, &r), -1);
    assert_non_null(strstr(r.reason, "shutting down"));
    assert_int_equal(bt_handoff_worker_drain(w.worker, 20000), BT_OK);
    assert_true(fake_wait(s.engine, t, 1000));
    assert_true(s.engine->tickets[t].committed);
    assert_true(fake_wait(s.engine, waits, 1000));
    assert_true(s.engine->tickets[waits].abandoned);
    free(tokens);
    close_worker(&w);
    close_server(&s);
}

static void stop_ends_every_ticket(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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
    const double until = bt_clock_ms() + 10000;
    while (n_workers(s) != n && bt_clock_ms() < until) {
        bt_clock_sleep_ms(5);
    }
    assert_int_equal(n_workers(s), n);
}

/* Workers come and go while the server runs; one that goes finishes what it has. */
static void the_list_of_workers_changes(void **state)
{
    (void)state;
    worker_side w[2] = { open_worker("127.0.0.1:0", 16, 1), open_worker("127.0.0.1:0", 16, 1) };
    const char *a = bt_handoff_worker_address(w[0].worker),
               *b = bt_handoff_worker_address(w[1].worker);
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

static void decisions_are_remembered(void **state)
{
    (void)state;
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    server_side s = open_server(bt_handoff_worker_address(w.worker));
    bt_prefill_decision d[BT_PREFILL_DECISIONS_MAX];
    wait_state(&s, 0, BT_PREFILL_READY);
    assert_int_equal(bt_handoff_client_decisions_get(s.prefill, d), 0);
    for (uint32_t i = 0; i < BT_PREFILL_DECISIONS_MAX + 3; i++) {
        const bt_prefill_report r = expect_remote(&s, 40 + i, 0, 100 + i);
        assert_true(r.forecast.made);
        assert_int_equal(r.forecast.n_tokens, 39 + i);
        assert_int_equal(r.forecast.n_workers, 1);
        assert_string_equal(r.forecast.workers[0].worker, bt_handoff_worker_address(w.worker));
        assert_true(i == 0 || r.forecast.workers[0].ms > 0);
    }
    assert_int_equal(bt_handoff_client_decisions_get(s.prefill, d), BT_PREFILL_DECISIONS_MAX);
    assert_int_equal(d[0].n_tokens, 39 + BT_PREFILL_DECISIONS_MAX + 2);
    assert_int_equal(d[BT_PREFILL_DECISIONS_MAX - 1].n_tokens, 39 + 3);
    assert_int_equal(d[0].outcome, BT_PREFILL_OUTCOME_REMOTE);
    assert_string_equal(d[0].worker, bt_handoff_worker_address(w.worker));
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
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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
    bool in_time = false;                           /* once at least, on whatever machine */
    for (uint32_t i = 0; i < 30 && !in_time; i++) {
        t = give(&s, tokens, 400, BT_POLICY_HEDGE, &r);
        assert_true(fake_wait(s.engine, t, 10000));
        assert_true(s.engine->tickets[t].committed);
        in_time = !s.engine->tickets[t].hedged;
    }
    assert_true(in_time);
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
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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
        const bt_status s = bt_handoff_worker_open(&o, e, &w, NULL);
        bt_memory_fail_after(0);
        assert_true(s == BT_OK || s == BT_E_NOMEM);
        bt_handoff_worker_close(w);
        fake_engine_free(e);
    }
    worker_side w = open_worker("127.0.0.1:0", 16, 1);
    for (uint64_t n = 1; n <= 40; n++) {
        bt_engine *e = fake_engine_new(false, 16, 1);
        const bt_prefill_options o = {.addresses = bt_handoff_worker_address(w.worker),
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
    server_side s = open_server(bt_handoff_worker_address(w.worker));
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

static int quiet(void **state)
{
    (void)state;
    bt_log_set_level(getenv("BATON_TEST_LOG") ? BT_LOG_DEBUG : BT_LOG_ERROR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_arrive_as_they_were_computed),
        cmocka_unit_test(every_length_chunk_prefix_and_window),
        cmocka_unit_test(server_starts_without_worker_and_uses_it_later),
        cmocka_unit_test(another_model_is_refused_by_field),
        cmocka_unit_test(worker_gone_midway_keeps_complete_chunks),
        cmocka_unit_test(too_long_for_all_is_no_passing_failure),
        cmocka_unit_test(second_worker_goes_on_where_the_first_stopped),
        cmocka_unit_test(cancel_ends_both_sides_soon),
        cmocka_unit_test(failing_engine_is_an_error_of_the_prompt),
        cmocka_unit_test(two_servers_many_prompts_at_once),
        cmocka_unit_test(drained_worker_finishes_and_gets_no_more),
        cmocka_unit_test(stop_ends_every_ticket),
        cmocka_unit_test(bad_addresses_are_named),
        cmocka_unit_test(the_list_of_workers_changes),
        cmocka_unit_test(decisions_are_remembered),
        cmocka_unit_test(late_prompts_are_hedged),
        cmocka_unit_test(a_short_prompt_needs_no_slot),
        cmocka_unit_test(any_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests_name("handoff/pair", tests, quiet, NULL);
}
