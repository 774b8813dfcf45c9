/* tests/unit/handoff/hostile.h - a worker by hand, for tests of servers whose worker lies.
 *
 * The peer is the test itself, speaking frames: it takes a prompt, sends rows, chunks and COMMIT as
 * they must be, or not.
 */
#ifndef HOSTILE_H
#define HOSTILE_H

#include "handoff/client.h"
#include "handoff/identity.h"
#include "unit/handoff/fake_prompt.h"
#include "unit/handoff/frames.h"
#include "unit/handoff/wait.h"
#include "wire/tally.h"

/* ---- a worker by hand ---- */

typedef struct {
    bt_engine   *engine;       /* of the server under test */
    bt_engine   *mine;         /* for rows and identity */
    bt_prefill  *prefill;
    bt_listener *listener;
    bt_link     *link;
    uint64_t     epoch;
    bt_wire_prefill asked;
    uint32_t     stream;
    bt_wire_tally *tally;
    uint32_t     tokens[200];
    uint8_t      prefix[FAKE_CTX][8];
} liar;

enum { N = 101, END = N - 1 };

static inline void welcome(liar *x)
{
    SEND(x->link, WELCOME, welcome, 0, .version_major = BT_WIRE_VERSION_MAJOR,
         .version_minor = BT_WIRE_VERSION_MINOR, .epoch = x->epoch, .n_ctx = FAKE_CTX,
         .n_streams = 8, .n_prefill = 2, .chunk_tokens = 16);
}

static inline void accept_server(liar *x)
{
    bt_frame f;
    bt_link_destroy(x->link);
    x->link = NULL;
    for (int i = 0; i < 100 && !x->link; i++) {
        const uint64_t until = bt_clock_after_ms(100);
        (void)(bt_link_listener_accept(x->listener, until, &x->link, NULL) == BT_OK);
    }
    assert_non_null(x->link);
    assert_true(receive(x->link, BT_WIRE_HELLO, &f));
    welcome(x);
}

static inline bt_prefill_worker_status status_of(const liar *x)
{
    bt_prefill_worker_status st;
    assert_true(bt_handoff_client_worker_status_get(x->prefill, 0, &st));
    return st;
}

static inline void wait_ready(const liar *x)
{
    WAIT_FOR(status_of(x).phase == BT_PREFILL_READY);
}

/* state_bytes: what the model's recurrent layer keeps; 0: it has none. */
static inline liar *liar_new(uint64_t state_bytes)
{
    liar *x = calloc(1, sizeof *x);
    bt_error err = { 0 };
    const bt_link_options lo = { 0 };
    x->engine = fake_engine_new(false, 16, 1);
    x->engine->state_bytes = state_bytes;
    x->mine = fake_engine_new(true, 16, 1);
    x->epoch = 4711;
    assert_int_equal(bt_link_listener_open("127.0.0.1:0", &lo, &x->listener, &err), BT_OK);
    const bt_prefill_options o = {.addresses = bt_link_listener_address(x->listener),
                                  .min_tokens = 1,
                                  .stall_ms = 400,
                                  .window_bytes = 60000};
    assert_int_equal(bt_handoff_client_open(&o, x->engine, &x->prefill, &err), BT_OK);
    for (uint32_t i = 0; i < N; i++) {
        x->tokens[i] = i * 7 % 1000;
    }
    fake_prefixes(x->tokens, N, x->prefix);
    accept_server(x);
    wait_ready(x);
    return x;
}

static inline int liar_close(void **state)
{
    liar *x = *state;
    bt_handoff_client_stop(x->prefill);
    bt_handoff_client_close(x->prefill);
    bt_link_destroy(x->link);
    bt_link_listener_close(x->listener);
    bt_wire_tally_close(x->tally);
    fake_engine_free(x->engine);
    fake_engine_free(x->mine);
    free(x);
    return 0;
}

/* The server gives a prompt; we read PREFILL and TOKENS. */
static inline int64_t take_prompt(liar *x)
{
    bt_prefill_report r;
    bt_frame f;
    bt_wire_tokens t;
    const int64_t ticket = fake_start(x->engine, x->tokens, N, 0, BT_WHERE_REMOTE,
                                      BT_POLICY_FALLBACK, &r);
    assert_true(ticket >= 0);
    assert_true(receive(x->link, BT_WIRE_PREFILL, &f));
    assert_int_equal(bt_wire_prefill_decode(f.body, f.size, &x->asked, NULL), BT_OK);
    x->stream = f.stream;
    assert_int_equal(x->asked.position_end, END);
    assert_int_equal(x->asked.epoch, x->epoch);
    assert_true(x->asked.nonce != 0);
    assert_true(receive(x->link, BT_WIRE_TOKENS, &f));
    assert_int_equal(bt_wire_tokens_decode(f.body, f.size, &t, NULL), BT_OK);
    assert_int_equal(t.ids.n, END);
    bt_wire_tally_close(x->tally);
    assert_int_equal(bt_wire_tally_open(x->stream, &x->asked, &x->tally, NULL), BT_OK);
    return ticket;
}

static inline void send_rows(liar *x, uint32_t layer, uint32_t position, uint32_t n)
{
    static uint8_t body[1 << 16];
    const bt_kv_layer *y = &x->mine->layers[layer];
    const uint32_t kb = (uint32_t)y->k_row_bytes, vb = (uint32_t)y->v_row_bytes;
    const size_t size = bt_wire_rows_place_size(n * kb, n * vb);
    uint8_t *k, *v;
    assert_true(size <= sizeof body);
    bt_wire_rows_place(body, layer, position, n, n * kb, n * vb, &k, &v);
    for (uint32_t i = 0; i < n; i++) {
        fake_row(x->prefix[(position + i) % FAKE_CTX], layer, 0, k + i * kb, kb);
        fake_row(x->prefix[(position + i) % FAKE_CTX], layer, 1, v + i * vb, vb);
    }
    (void)(bt_link_send(x->link, BT_WIRE_ROWS, x->stream, body, size, NULL) == BT_OK);
    bt_wire_tally_put(x->tally, BT_WIRE_ROWS, (uint32_t)size, bt_hash64(body, size, 0));
}

static inline void send_all_rows(liar *x, uint32_t first, uint32_t end)
{
    static const uint32_t keeping[] = { 0, 1, 3 };
    for (size_t i = 0; i < BT_LEN(keeping); i++) {
        send_rows(x, keeping[i], first, end - first);
    }
}

static inline bt_wire_chunk right_chunk(const liar *x, uint32_t end)
{
    return (bt_wire_chunk){ .position_end = end, .n_frames = bt_wire_tally_frames(x->tally),
                            .digest = bt_wire_tally_value(x->tally) };
}

static inline bt_wire_commit right_commit(const liar *x)
{
    return (bt_wire_commit){ .nonce = x->asked.nonce, .epoch = x->epoch, .position_end = END,
                             .n_frames = bt_wire_tally_frames(x->tally),
                             .n_bytes = bt_wire_tally_bytes(x->tally),
                             .digest = bt_wire_tally_value(x->tally) };
}

static inline void send_chunk(liar *x, uint32_t end)
{
    const bt_wire_chunk m = right_chunk(x, end);
    uint8_t body[128];
    size_t size;
    assert_int_equal(bt_wire_chunk_encode(&m, body, sizeof body, &size, NULL), BT_OK);
    (void)(bt_link_send(x->link, BT_WIRE_CHUNK, x->stream, body, size, NULL) == BT_OK);
}

static inline void send_commit(liar *x, const bt_wire_commit *m)
{
    uint8_t body[128];
    size_t size;
    assert_int_equal(bt_wire_commit_encode(m, body, sizeof body, &size, NULL), BT_OK);
    (void)(bt_link_send(x->link, BT_WIRE_COMMIT, x->stream, body, size, NULL) == BT_OK);
}

static inline void expect_abandoned(liar *x, int64_t ticket, uint32_t complete, bt_status status)
{
    assert_true(fake_wait(x->engine, ticket, 5000));
    const fake_ticket *t = &x->engine->tickets[ticket];
    assert_true(t->abandoned);
    assert_int_equal(t->complete, complete);
    assert_int_equal(t->status, status);
    assert_true(t->report.fallback);
    assert_true(fake_rows_right(x->engine, ticket, x->tokens, 0, complete));
}

/* Still as good as new: a whole prompt goes through. */
static inline void expect_alive(liar *x)
{
    const int64_t t = take_prompt(x);
    send_all_rows(x, 0, END);
    const bt_wire_commit m = right_commit(x);
    send_commit(x, &m);
    assert_true(fake_wait(x->engine, t, 5000));
    assert_true(x->engine->tickets[t].committed);
    assert_true(fake_rows_right(x->engine, t, x->tokens, 0, END));
}

#endif
