/* tests/unit/worker/pair.h - servers and workers in one process, with fake engines. */
#ifndef PAIR_H
#define PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "handoff/client.h"
#include "worker/worker.h"
#include "unit/handoff/fake_prompt.h"
#include "unit/handoff/wait.h"

typedef struct {
    bt_engine *engine;
    bt_worker *worker;
} worker_side;

typedef struct {
    bt_engine  *engine;
    bt_prefill *prefill;
} server_side;

static inline worker_side open_worker(const char *listen, uint32_t chunk, uint8_t weights)
{
    worker_side w = { .engine = fake_engine_new(true, chunk, weights) };
    const bt_worker_options o = { .listen = listen, .numerics = "ref" };
    bt_error err = { 0 };
    /* The port of a worker that has just gone may need a moment. */
    for (int i = 0; i < 50; i++) {
        if (bt_worker_open(&o, w.engine, &w.worker, &err) == BT_OK) {
            return w;
        }
        bt_clock_sleep_ms(20);
    }
    fail_msg("worker: %s", err.text);
    return w;
}

static inline void close_worker(worker_side *w)
{
    bt_worker_close(w->worker);
    assert_int_equal(atomic_load(&w->engine->n_requests), 0);
    fake_engine_free(w->engine);
    *w = (worker_side){ 0 };
}

static inline server_side open_server_with(bt_prefill_options o, uint8_t weights)
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

static inline server_side open_server(const char *addresses)
{
    return open_server_with((bt_prefill_options){ .addresses = addresses, .min_tokens = 1 }, 1);
}

static inline void close_server(server_side *s)
{
    bt_handoff_client_close(s->prefill);
    fake_engine_free(s->engine);
    *s = (server_side){ 0 };
}

static inline bt_prefill_worker_status worker_status(const server_side *s, uint32_t i)
{
    bt_prefill_worker_status st;
    assert_true(bt_handoff_client_worker_status_get(s->prefill, i, &st));
    return st;
}

/* Until no more than so many tokens, of prompts in flight and waiting, are still to come. */
static inline void wait_in_flight(const server_side *s, uint32_t i, uint32_t n_max)
{
    WAIT_FOR(worker_status(s, i).tokens_in_flight <= n_max);
}

/* Until so many prompts are with a worker, and so many wait for one of its slots. */
static inline void wait_slots(const server_side *s, uint32_t i, uint32_t n_in_flight,
                              uint32_t n_waiting)
{
    WAIT_FOR(worker_status(s, i).n_in_flight == n_in_flight &&
             worker_status(s, i).n_waiting == n_waiting);
}

static inline void wait_state(const server_side *s, uint32_t i, bt_prefill_state state)
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

static inline uint32_t *prompt(uint32_t n, uint32_t seed)
{
    uint32_t *tokens = malloc(n * sizeof *tokens);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)bt_hash64(&i, 4, seed) % 1000;
    }
    return tokens;
}

/* A prompt as the engine gives it out; -1 if it stays here. */
static inline int64_t give(server_side *s, const uint32_t *tokens, uint32_t n,
                           bt_prefill_policy policy, bt_prefill_report *r)
{
    return fake_start(s->engine, tokens, n, 0, BT_WHERE_AUTO, policy, r);
}

/* Sends a prompt of n tokens to a ready worker and expects every row back. */
static inline bt_prefill_report expect_remote(server_side *s, uint32_t n, uint32_t first,
                                              uint32_t seed)
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

static inline int quiet(void **state)
{
    (void)state;
    bt_log_set_level(getenv("BATON_TEST_LOG") ? BT_LOG_DEBUG : BT_LOG_ERROR);
    return 0;
}

#endif
