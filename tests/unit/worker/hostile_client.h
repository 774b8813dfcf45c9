/* tests/unit/worker/hostile_client.h - a server by hand, for tests of workers. */
#ifndef HOSTILE_CLIENT_H
#define HOSTILE_CLIENT_H

#include "base/bytes.h"
#include "handoff/identity.h"
#include "worker/worker.h"
#include "kv/codec.h"
#include "unit/handoff/fake_engine.h"
#include "unit/handoff/frames.h"
#include "unit/handoff/wait.h"
#include "wire/order.h"

typedef struct {
    bt_engine *engine;         /* of the worker under test */
    bt_worker *worker;
    bt_link   *link;
    bt_wire_welcome welcome;
} caller;

static inline bt_link *call_with(caller *x, bool greet, uint32_t buffer_bytes)
{
    bt_error err = { 0 };
    const bt_link_options lo = { .buffer_bytes = buffer_bytes };
    bt_link *link = NULL;
    bt_frame f;
    assert_int_equal(bt_link_connect(bt_worker_address(x->worker), &lo, &link, &err),
                     BT_OK);
    if (greet) {
        const bt_wire_hello m = bt_handoff_hello(x->engine, 1, "ref");
        uint8_t body[512];
        size_t size;
        assert_int_equal(bt_wire_hello_encode(&m, body, sizeof body, &size, NULL), BT_OK);
        assert_int_equal(bt_link_send(link, BT_WIRE_HELLO, 0, body, size, NULL), BT_OK);
        assert_true(receive(link, BT_WIRE_WELCOME, &f));
        assert_int_equal(bt_wire_welcome_decode(f.body, f.size, &x->welcome, NULL), BT_OK);
    }
    return link;
}

static inline bt_link *call(caller *x, bool greet) { return call_with(x, greet, 0); }

static inline caller *caller_new(bt_worker_options o)
{
    caller *x = calloc(1, sizeof *x);
    bt_error err = { 0 };
    x->engine = fake_engine_new(true, 16, 1);
    o.listen = "127.0.0.1:0";
    o.numerics = "ref";
    assert_int_equal(bt_worker_open(&o, x->engine, &x->worker, &err), BT_OK);
    x->link = call(x, true);
    return x;
}

static inline int caller_close(void **state)
{
    caller *x = *state;
    bt_link_destroy(x->link);
    bt_worker_close(x->worker);
    assert_int_equal(atomic_load(&x->engine->n_requests), 0);
    fake_engine_free(x->engine);
    free(x);
    return 0;
}

static inline void send_prefill(caller *x, uint32_t stream, uint32_t n, uint64_t credit)
{
    SEND(x->link, PREFILL, prefill, stream, .nonce = 1 + stream, .epoch = x->welcome.epoch,
         .n_tokens = n, .position_end = n, .credit = credit);
}

static inline void send_ids(caller *x, uint32_t stream, uint32_t offset, uint32_t n, uint32_t id)
{
    static uint8_t ids[4 * FAKE_CTX];
    for (uint32_t i = 0; i < n; i++) {
        bt_put_le32(ids + 4 * i, id);
    }
    SEND(x->link, TOKENS, tokens, stream, .offset = offset, .ids = { ids, n });
}

static inline bt_status error_on(caller *x, uint32_t stream)
{
    bt_frame f;
    bt_wire_error m;
    assert_true(receive(x->link, BT_WIRE_ERROR, &f));
    assert_int_equal(f.stream, stream);
    assert_int_equal(bt_wire_error_decode(f.body, f.size, &m, NULL), BT_OK);
    assert_true(m.sentence.size > 0);
    return (bt_status)m.status;
}

#endif
