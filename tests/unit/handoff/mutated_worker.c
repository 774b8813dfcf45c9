/* tests/unit/handoff/mutated_worker.c - a server whose worker sends nonsense, with right checksums.
 *
 * A worker by hand sends what an honest one does, ROWS, CHUNK, ROWS, COMMIT, with up to three
 * mutations in it. What the server's engine is given as committed, or as complete, must be the
 * right rows all the same; every prompt ends, and an honest one is committed in the end. 100
 * prompts, as a broken connection comes back after 0.1 s; BATON_TEST_MUTATIONS: up to 450.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "handoff/identity.h"
#include "handoff/client.h"
#include "link/link.h"
#include "unit/handoff/fake_prompt.h"
#include "unit/handoff/mutations.h"
#include "wire/codec.h"
#include "wire/tally.h"

enum { N = 101, END = N - 1, HALF = 50, FRAMES_MAX = 8, N_DEFAULT = 100,
       N_MAX = 450 };

static bt_engine *engine, *mine;
static bt_prefill *prefill;
static bt_listener *listener;
static bt_link *to_server;
static uint32_t tokens[N];
static uint8_t prefix[FAKE_CTX][8];
static said script[FRAMES_MAX];
static uint32_t n_script;

/* ---- the connection ---- */

static bool hear(uint16_t type, bt_frame *ret)
{
    for (int i = 0; i < 30; i++) {
        const bt_status s = bt_link_receive(to_server, bt_clock_after_ms(100), ret, NULL);
        if (s == BT_OK && ret->type == type) {
            return true;
        }
        if (s != BT_OK && s != BT_E_AGAIN) {
            return false;
        }
    }
    return false;
}

static void say(uint16_t type, uint32_t stream, const void *body, size_t size)
{
    (void)(bt_link_send(to_server, type, stream, body, size, NULL) == BT_OK);
}

/* Accepts the server, which comes again after each thing that it could not bear. */
static void be_connected(void)
{
    bt_frame f;
    for (int i = 0; i < 200; i++) {
        bt_prefill_worker_status st;
        bt_link_stats link = {.alive = false};
        bt_handoff_client_worker_status_get(prefill, 0, &st);
        if (to_server) {
            (void)(bt_link_receive(to_server, 0, &f, NULL) == BT_OK);
            bt_link_stats_get(to_server, &link);
        }
        if (link.alive && st.phase == BT_PREFILL_READY) {
            return;
        }
        if (!link.alive) {
            bt_link_destroy(to_server);
            to_server = NULL;
            const uint64_t until = bt_clock_after_ms(500);
            if (bt_link_listener_accept(listener, until, &to_server, NULL) == BT_OK &&
                hear(BT_WIRE_HELLO, &f)) {
                const bt_wire_welcome m = {
                    .version_major = BT_WIRE_VERSION_MAJOR, .version_minor = BT_WIRE_VERSION_MINOR,
                    .epoch = 4711, .n_ctx = FAKE_CTX, .n_streams = 8, .n_prefill = 2,
                    .chunk_tokens = 16 };
                uint8_t body[128];
                size_t size;
                assert_int_equal(bt_wire_welcome_encode(&m, body, sizeof body, &size, NULL), BT_OK);
                say(BT_WIRE_WELCOME, 0, body, size);
            }
        }
        bt_clock_sleep_ms(10);
    }
    fail_msg("the server does not come back");
}

/* ---- what an honest worker says ---- */

static said *next_said(uint16_t type, uint32_t stream)
{
    said *f = &script[n_script++];
    f->type = type;
    f->stream = stream;
    return f;
}

static void write_rows(uint32_t stream, bt_wire_tally *tally, uint32_t first, uint32_t end)
{
    static const uint32_t keeping[] = { 0, 1, 3 };
    for (size_t i = 0; i < BT_LEN(keeping); i++) {
        const bt_kv_layer *y = &mine->layers[keeping[i]];
        const uint32_t kb = (uint32_t)y->k_row_bytes, vb = (uint32_t)y->v_row_bytes;
        const uint32_t n = end - first;
        said *f = next_said(BT_WIRE_ROWS, stream);
        uint8_t *k, *v;
        f->size = bt_wire_rows_place_size(n * kb, n * vb);
        assert_true(f->size <= SAID_MAX);
        bt_wire_rows_place(f->body, keeping[i], first, n, n * kb, n * vb, &k, &v);
        for (uint32_t j = 0; j < n; j++) {
            fake_row(prefix[first + j], keeping[i], 0, k + j * kb, kb);
            fake_row(prefix[first + j], keeping[i], 1, v + j * vb, vb);
        }
        bt_wire_tally_put(tally, BT_WIRE_ROWS, (uint32_t)f->size, bt_hash64(f->body, f->size, 0));
    }
}

static void write_script(uint32_t stream, const bt_wire_prefill *asked)
{
    bt_wire_tally *tally;
    n_script = 0;
    assert_int_equal(bt_wire_tally_open(stream, asked, &tally, NULL), BT_OK);
    write_rows(stream, tally, 0, HALF);
    const bt_wire_chunk chunk = { .position_end = HALF, .n_frames = bt_wire_tally_frames(tally),
                                  .digest = bt_wire_tally_value(tally) };
    said *f = next_said(BT_WIRE_CHUNK, stream);
    assert_int_equal(bt_wire_chunk_encode(&chunk, f->body, SAID_MAX, &f->size, NULL), BT_OK);
    write_rows(stream, tally, HALF, END);
    const bt_wire_commit commit = { .nonce = asked->nonce, .epoch = 4711, .position_end = END,
                                    .n_frames = bt_wire_tally_frames(tally),
                                    .n_bytes = bt_wire_tally_bytes(tally),
                                    .digest = bt_wire_tally_value(tally) };
    f = next_said(BT_WIRE_COMMIT, stream);
    assert_int_equal(bt_wire_commit_encode(&commit, f->body, SAID_MAX, &f->size, NULL), BT_OK);
    bt_wire_tally_close(tally);
}

/* One of the frames changes, or its place in the order. */
static void mutate_script(void)
{
    said *f = &script[dice() % n_script], *other = &script[dice() % n_script];
    if (dice() % 8 == 0) {
        const said was = *f;
        *f = *other;
        *other = was;
    } else {
        mutate(f, HALF);
    }
}

/* False where the server has given none, because the connection has just ended. */
static bool one_prompt(uint64_t k, bool honest)
{
    bt_prefill_report report;
    bt_wire_prefill asked;
    bt_frame f;
    be_connected();
    const int64_t ticket = fake_start(engine, tokens, N, 0, BT_WHERE_REMOTE, BT_POLICY_FALLBACK,
                                      &report);
    if (ticket < 0) {
        return false;
    }
    if (hear(BT_WIRE_PREFILL, &f)) {
        assert_int_equal(bt_wire_prefill_decode(f.body, f.size, &asked, NULL), BT_OK);
        write_script(f.stream, &asked);
        dice_state = k;
        for (uint64_t n = honest ? 0 : 1 + dice() % 3; n > 0; n--) {
            mutate_script();
        }
        for (uint32_t i = 0; i < n_script; i++) {
            say(script[i].type, script[i].stream, script[i].body, script[i].size);
        }
    }
    for (int i = 0; i < 100 && !fake_wait(engine, ticket, 10); i++) {
        /* Keeps the heart beating. */
        (void)(bt_link_receive(to_server, bt_clock_after_ms(10), &f, NULL) == BT_OK);
    }
    const fake_ticket *t = &engine->tickets[ticket];
    assert_true(t->committed || t->abandoned);
    assert_true(!honest || t->committed);
    assert_true(fake_rows_right(engine, ticket, tokens, 0, t->committed ? END : t->complete));
    return true;
}

static void give_prompt(uint64_t k, bool honest)
{
    for (int i = 0; i < 10; i++) {
        if (one_prompt(k, honest)) {
            return;
        }
    }
    fail_msg("prompt %llu is not given to the worker", (unsigned long long)k);
}

static void nonsense_is_never_a_prefix(void **state)
{
    (void)state;
    const uint64_t wanted = mutations_wanted(N_DEFAULT), n = wanted < N_MAX ? wanted : N_MAX;
    give_prompt(0, true);
    for (uint64_t k = 0; k < n; k++) {
        give_prompt(k, false);
    }
    give_prompt(0, true);
    bt_prefill_worker_status st;
    bt_handoff_client_worker_status_get(prefill, 0, &st);
    assert_true(st.n_corrupt > n / 4);
}

int main(void)
{
    bt_error err = { 0 };
    bt_log_set_level(getenv("BATON_TEST_LOG") ? BT_LOG_DEBUG : BT_LOG_ERROR);
    engine = fake_engine_new(false, 16, 1);
    mine = fake_engine_new(true, 16, 1);
    for (uint32_t i = 0; i < N; i++) {
        tokens[i] = i * 7 % 1000;
    }
    fake_prefixes(tokens, N, prefix);
    if (bt_link_listener_open("127.0.0.1:0", &(bt_link_options){ 0 }, &listener, &err) != BT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const bt_prefill_options o = { .addresses = bt_link_listener_address(listener), .min_tokens = 1,
                                   .stall_ms = 300, .window_bytes = 60000 };
    if (bt_handoff_client_open(&o, engine, &prefill, &err) != BT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(nonsense_is_never_a_prefix) };
    const int code = cmocka_run_group_tests_name("handoff/mutated_worker", tests, NULL, NULL);
    bt_handoff_client_stop(prefill);
    bt_handoff_client_close(prefill);
    bt_link_destroy(to_server);
    bt_link_listener_close(listener);
    fake_engine_free(engine);
    fake_engine_free(mine);
    return code;
}
