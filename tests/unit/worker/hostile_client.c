/* tests/unit/worker/hostile_client.c - a worker whose client lies, errs or stays silent.
 *
 * The client is the test itself, speaking frames by hand. What has to hold: whoever lies loses its
 * connection or its prompt, nobody else loses anything, and all is freed.
 */
#include "unit/worker/hostile_client.h"

static int client_open(void **state)
{
    *state = caller_new((bt_worker_options){ .n_peers = 3 });
    return 0;
}

/* Each field of the identity, and the version, is refused by name over a real connection; where it
 * runs and what it is called is not looked at. */
static void each_identity_field_is_refused_by_name(void **state)
{
    caller *x = *state;
    static const char *const fields[] = { "version", "version", "kv_format", "geometry",
                                          "tokenizer", "weights", "draft", "type_k", "type_v",
                                          "n_layers", "token_bytes" };
    for (size_t i = 0; i <= BT_LEN(fields); i++) {
        bt_wire_hello m = bt_handoff_hello(x->engine, 1 + i, i == BT_LEN(fields) ? "neon" : "ref");
        m.version_major += i == 0;
        m.version_minor += i == 1;
        m.kv_format += i == 2;
        m.geometry.bytes[15] ^= i == 3;
        m.tokenizer.bytes[0] ^= i == 4;
        m.weights.bytes[7] ^= i == 5;
        m.draft.bytes[3] ^= i == 6;
        m.type_k += i == 7;
        m.type_v += i == 8;
        m.n_layers += i == 9;
        m.token_bytes += i == 10;
        m.model = bt_wire_text_of("another name");
        m.program = bt_wire_text_of("another program");
        bt_link *link = call(x, false);
        bt_frame f;
        uint8_t body[512];
        size_t size;
        assert_int_equal(bt_wire_hello_encode(&m, body, sizeof body, &size, NULL), BT_OK);
        assert_int_equal(bt_link_send(link, BT_WIRE_HELLO, 0, body, size, NULL), BT_OK);
        if (i < BT_LEN(fields)) {
            bt_wire_reject got;
            char field[40];
            assert_true(receive(link, BT_WIRE_REJECT, &f));
            assert_int_equal(bt_wire_reject_decode(f.body, f.size, &got, NULL), BT_OK);
            assert_int_equal(got.status, BT_E_REFUSED);
            assert_string_equal(bt_wire_text_copy(got.field, field, sizeof field), fields[i]);
            assert_true(got.sentence.size > 0);
        } else {
            assert_true(receive(link, BT_WIRE_WELCOME, &f));
        }
        bt_link_destroy(link);
    }
}

static void bad_prompts_are_answered_on_their_stream(void **state)
{
    caller *x = *state;
    bt_frame f;
    SEND(x->link, PREFILL, prefill, 1, .nonce = 1, .epoch = x->welcome.epoch + 1, .n_tokens = 5,
         .position_end = 5, .credit = 1000);
    assert_int_equal(error_on(x, 1), BT_E_PROTOCOL);
    SEND(x->link, PREFILL, prefill, 2, .nonce = 0, .epoch = x->welcome.epoch, .n_tokens = 5,
         .position_end = 5, .credit = 1000);
    assert_int_equal(error_on(x, 2), BT_E_PROTOCOL);
    SEND(x->link, PREFILL, prefill, 3, .nonce = 1, .epoch = x->welcome.epoch, .n_tokens = 5,
         .position_first = 5, .position_end = 5, .credit = 1000);
    assert_int_equal(error_on(x, 3), BT_E_PROTOCOL);
    SEND(x->link, PREFILL, prefill, 4, .nonce = 1, .epoch = x->welcome.epoch, .n_tokens = 5,
         .position_end = 6, .credit = 1000);
    assert_int_equal(error_on(x, 4), BT_E_PROTOCOL);
    send_prefill(x, 5, FAKE_CTX + 1, 1000);
    assert_int_equal(error_on(x, 5), BT_E_CONTEXT);
    send_prefill(x, 6, FAKE_CTX, 1000);             /* the engine's own refusal */
    send_ids(x, 6, 0, FAKE_CTX, 1);
    assert_int_equal(error_on(x, 6), BT_E_CONTEXT);
    send_prefill(x, 7, 10, 1000);
    send_ids(x, 7, 1, 9, 1);                        /* a gap */
    assert_int_equal(error_on(x, 7), BT_E_PROTOCOL);
    send_prefill(x, 8, 10, 1000);
    send_ids(x, 8, 0, 11, 1);                       /* too many */
    assert_int_equal(error_on(x, 8), BT_E_PROTOCOL);
    send_prefill(x, 9, 10, 1000);
    send_ids(x, 9, 0, 10, 1000);                    /* not in the vocabulary */
    assert_int_equal(error_on(x, 9), BT_E_BADINPUT);
    send_prefill(x, 10, 10, 1 << 20);
    send_ids(x, 10, 0, 10, 999);
    assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
    assert_int_equal(f.stream, 10);
}

/* W-52: a form or an order that is not known, or that this model's rows cannot have. */
static void rows_in_unknown_forms_are_refused_on_their_stream(void **state)
{
    caller *x = *state;
    bt_frame f;
    const struct { uint32_t codec, order; } asked[] = {
        { BT_KV_CODEC_COUNT, 0 }, { UINT32_MAX, 0 }, { 0, BT_WIRE_ORDER_COUNT },
        { 0, UINT32_MAX }, { BT_KV_CODEC_Q8_0, 0 },     /* rows of the fake have too few values */
    };
    for (uint32_t i = 0; i < BT_LEN(asked); i++) {
        SEND(x->link, PREFILL, prefill, i + 1, .nonce = 1, .epoch = x->welcome.epoch,
             .n_tokens = 9, .position_end = 9, .credit = 1 << 20, .codec = asked[i].codec,
             .order = asked[i].order);
        assert_int_equal(error_on(x, i + 1), BT_E_UNSUPPORTED);
    }
    /* Whatever the server says about the link, the rows are the same. */
    for (uint32_t order = 0; order < BT_WIRE_ORDER_COUNT; order++) {
        const uint32_t stream = 10 + order;
        SEND(x->link, PREFILL, prefill, stream, .nonce = 1, .epoch = x->welcome.epoch,
             .n_tokens = 10, .position_end = 10, .credit = 1 << 20, .order = order,
             .link_rate = order % 2 ? UINT64_MAX : 1);
        send_ids(x, stream, 0, 10, 900 + order);
        assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
        assert_int_equal(f.stream, stream);
    }
}

static void too_many_streams_is_full(void **state)
{
    caller *x = *state;
    uint32_t stream = 1;
    for (; stream <= x->welcome.n_streams; stream++) {
        send_prefill(x, stream, 10, 1000);          /* tokens never come */
    }
    send_prefill(x, stream, 10, 1000);
    assert_int_equal(error_on(x, stream), BT_E_FULL);
    SEND(x->link, CANCEL, cancel, 1, 0);
    bt_frame f;
    assert_true(receive(x->link, BT_WIRE_CANCELLED, &f));
    assert_int_equal(f.stream, 1);
    send_prefill(x, stream + 1, 10, 1 << 20);
    send_ids(x, stream + 1, 0, 10, 1);
    assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
}

static void credit_is_never_overdrawn(void **state)
{
    caller *x = *state;
    bt_frame f;
    uint64_t got = 0, given = 500;
    send_prefill(x, 1, 200, given);
    send_ids(x, 1, 0, 200, 1);
    const double until = bt_clock_ms() + 10000;
    int dry = 0;
    while (bt_clock_ms() < until) {
        const bt_status s = bt_link_receive(x->link, bt_clock_after_ms(30), &f, NULL);
        if (s == BT_OK && f.type == BT_WIRE_ROWS) {
            got += f.size;
            assert_true(got <= given);
        } else if (s == BT_OK && f.type == BT_WIRE_COMMIT) {
            break;
        } else if (s == BT_E_AGAIN) {
            dry++;
            given += 20000;
            SEND(x->link, CREDIT, credit, 1, .bytes = 20000);
        }
    }
    assert_true(dry >= 2);
    assert_int_equal(f.type, BT_WIRE_COMMIT);
    assert_true(got > 200 * (24 + 16 + 32 + 20 + 48 + 28) * 2);
}

static void lies_that_end_the_connection_there(void **state)
{
    caller *x = *state;
    for (int i = 0; i < 10; i++) {
        send_prefill(x, 2, 400, 1 << 20);
        atomic_store(&x->engine->layer_us, 3000);
        send_ids(x, 2, 0, 400, 1);
        switch (i) {
        case 0: send_prefill(x, 2, 10, 1000); break;            /* does not rise */
        case 1: send_prefill(x, 0, 10, 1000); break;
        case 2: send_ids(x, 3, 0, 1, 1); break;                 /* never opened */
        case 3: SEND(x->link, CREDIT, credit, 2, .bytes = 0); break;
        case 4: SEND(x->link, CREDIT, credit, 2, .bytes = UINT64_C(1) << 63); break;
        case 5: SEND(x->link, CANCEL, cancel, 9, 0); break;
        case 6: SEND(x->link, HELLO, hello, 0, 0); break;
        case 7: SEND(x->link, COMMIT, commit, 2, 0); break;
        case 8: (void)!bt_link_send(x->link, BT_WIRE_PREFILL, 3, "x", 1, NULL); break;
        default: SEND(x->link, ERROR, error, 0, .status = BT_E_NOMEM); break;
        }
        assert_true(link_ends(x->link));
        bt_link_destroy(x->link);
        /* Its prompt is cancelled and freed; others are served. */
        WAIT_FOR(atomic_load(&x->engine->n_requests) == 0);
        x->link = call(x, true);
    }
    bt_worker_status st;
    bt_worker_status_get(x->worker, &st);
    assert_int_equal(st.n_in_flight, 0);
    assert_int_equal(st.tokens_in_flight, 0);
    assert_int_equal(st.n_cancelled, 10);
}

static int count_closed(bt_link *const *links, int n)
{
    int n_closed = 0;
    for (int i = 0; i < n; i++) {
        bt_frame f;
        const bt_status s = bt_link_receive(links[i], 0, &f, NULL);
        n_closed += s != BT_OK && s != BT_E_AGAIN;
    }
    return n_closed;
}

static void silent_connections_cost_little_and_are_let_go(void **state)
{
    caller *x = *state;
    bt_link *more[2], *silent[40];
    bt_frame f;
    bt_wire_reject m;
    more[0] = call(x, true);
    more[1] = call(x, true);
    bt_link *fourth = call(x, false);
    const bt_wire_hello hello = bt_handoff_hello(x->engine, 1, "ref");
    uint8_t body[512];
    size_t size;
    assert_int_equal(bt_wire_hello_encode(&hello, body, sizeof body, &size, NULL), BT_OK);
    assert_int_equal(bt_link_send(fourth, BT_WIRE_HELLO, 0, body, size, NULL), BT_OK);
    assert_true(receive(fourth, BT_WIRE_REJECT, &f));
    assert_int_equal(bt_wire_reject_decode(f.body, f.size, &m, NULL), BT_OK);
    assert_int_equal(m.status, BT_E_FULL);
    bt_link_destroy(fourth);
    bt_link_destroy(more[0]);
    bt_link_destroy(more[1]);

    /* Many that never say HELLO: later ones are closed at once, a client is served meanwhile. */
    for (int i = 0; i < 40; i++) {
        silent[i] = call(x, false);
    }
    send_prefill(x, 1, 10, 1 << 20);
    send_ids(x, 1, 0, 10, 1);
    assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
    int n_closed = 0;
    WAIT_FOR((n_closed = count_closed(silent, 40)) >= 24);
    assert_in_range(n_closed, 24, 39);              /* all but 16, give or take those just let go */
    for (int i = 0; i < 40; i++) {
        bt_link_destroy(silent[i]);
    }
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, client_open, caller_close)
    const struct CMUnitTest tests[] = {
        T(each_identity_field_is_refused_by_name),
        T(bad_prompts_are_answered_on_their_stream),
        T(rows_in_unknown_forms_are_refused_on_their_stream),
        T(too_many_streams_is_full),
        T(credit_is_never_overdrawn),
        T(lies_that_end_the_connection_there),
        T(silent_connections_cost_little_and_are_let_go),
    };
    return cmocka_run_group_tests_name("handoff/hostile_client", tests, quiet, NULL);
}
