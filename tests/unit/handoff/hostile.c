/* tests/unit/handoff/hostile.c - each side against a peer that lies, errs or stays silent.
 *
 * The peer is the test itself, speaking frames by hand. What has to hold: nothing that was not
 * covered by an equal digest becomes part of a prefix, the liar loses its connection or its stream
 * and nobody else loses anything, and all is freed.
 */
#include "handoff/worker.h"
#include "unit/handoff/hostile.h"

static int liar_open(void **state)
{
    *state = liar_new(0);
    return 0;
}

static void honest_worker_commits(void **state)
{
    expect_alive(*state);
    expect_alive(*state);
}

static void wrong_chunk_digest_keeps_what_was_agreed(void **state)
{
    liar *x = *state;
    bt_frame f;
    const int64_t t = take_prompt(x);
    send_all_rows(x, 0, 32);
    send_chunk(x, 32);
    send_all_rows(x, 32, 64);
    bt_wire_tally_put(x->tally, BT_WIRE_ROWS, 1, 1);    /* as if a frame had been lost */
    send_chunk(x, 64);
    expect_abandoned(x, t, 32, BT_E_PROTOCOL);
    assert_true(receive(x->link, BT_WIRE_CANCEL, &f));
    assert_int_equal(f.stream, x->stream);
    send_all_rows(x, 64, END);                          /* late: dropped and counted */
    expect_alive(x);
    assert_int_equal(status_of(x).n_late_frames, 3);
    assert_int_equal(status_of(x).n_corrupt, 1);
    assert_int_equal(status_of(x).n_connects, 1);
}

static void commit_of_another_prompt_is_never_used(void **state)
{
    liar *x = *state;
    for (int i = 0; i < 5; i++) {
        const int64_t t = take_prompt(x);
        send_all_rows(x, 0, END);
        bt_wire_commit m = right_commit(x);
        m.nonce += i == 0;                              /* a stale slot */
        m.epoch += i == 1;                              /* a worker of before a restart */
        m.position_end -= i == 2;
        m.n_bytes += i == 3;
        m.digest.bytes[9] ^= i == 4;
        send_commit(x, &m);
        expect_abandoned(x, t, 0, BT_E_PROTOCOL);
    }
    expect_alive(x);
}

static void early_commit_is_not_enough(void **state)
{
    liar *x = *state;
    const int64_t t = take_prompt(x);
    send_all_rows(x, 0, END - 1);
    const bt_wire_commit m = right_commit(x);
    send_commit(x, &m);
    expect_abandoned(x, t, 0, BT_E_PROTOCOL);
    expect_alive(x);
}

/* Each of these ends the connection; what had been agreed on is kept, and the server comes back. */
static void lies_that_end_the_connection(void **state)
{
    liar *x = *state;
    const bt_wire_bytes abcd = { (const uint8_t *)"abcd", 4 };
    for (int i = 0; i < 12; i++) {
        const int64_t t = take_prompt(x);
        send_all_rows(x, 0, 32);
        send_chunk(x, 32);
        const uint32_t stream = x->stream;
        switch (i) {
        case 0: send_rows(x, 0, 32, END - 31); break;   /* past the end */
        case 1: send_rows(x, 0, 33, 1); break;          /* a gap */
        case 2: send_rows(x, 0, 0, 1); break;           /* again */
        case 3: x->stream = stream + 1; send_rows(x, 0, 32, 1); break;    /* never opened */
        case 4: x->stream = 0; send_rows(x, 0, 32, 1); break;
        case 5: SEND(x->link, CANCELLED, cancelled, stream, 0); break;
        case 6: SEND(x->link, HELLO, hello, 0, 0); break;
        case 7: SEND(x->link, PREFILL, prefill, stream, 0); break;
        case 8: SEND(x->link, ERROR, error, 0, .status = BT_E_DEVICE); break;
        case 9: (void)!bt_link_send(x->link, BT_WIRE_ROWS, stream, "xx", 2, NULL); break;
        case 10: SEND(x->link, STATE, state, stream, .position = END, .total = 4, .data = abcd);
                 break;                                 /* of a model that keeps none */
        default: welcome(x); break;
        }
        const bt_status want = i == 8 ? BT_E_DEVICE : BT_E_PROTOCOL;
        expect_abandoned(x, t, 32, want);
        assert_true(link_ends(x->link));
        accept_server(x);
        wait_ready(x);
    }
    expect_alive(x);
}

static void rows_without_credit_end_the_connection(void **state)
{
    liar *x = *state;
    const int64_t t = take_prompt(x);
    assert_int_equal(x->asked.credit, 60000);
    /* Credit comes back as rows are taken in, so only a frame larger than all of it overruns; bytes
     * behind the last field are legal and make one. */
    static uint8_t body[70000];
    uint8_t *k, *v;
    bt_wire_rows_place(body, 3, 0, 100, 9600, 5600, &k, &v);
    (void)!bt_link_send(x->link, BT_WIRE_ROWS, x->stream, body, sizeof body, NULL);
    expect_abandoned(x, t, 0, BT_E_PROTOCOL);
    assert_non_null(strstr(x->engine->tickets[t].report.reason, "credit"));
    assert_true(link_ends(x->link));
}

static void error_and_silence_end_the_stream_only(void **state)
{
    liar *x = *state;
    bt_frame f;
    int64_t t = take_prompt(x);
    send_all_rows(x, 0, 16);
    send_chunk(x, 16);
    SEND(x->link, ERROR, error, x->stream, .status = BT_E_FULL,
         .sentence = bt_wire_text_of("no room"));
    expect_abandoned(x, t, 16, BT_E_FULL);
    assert_non_null(strstr(x->engine->tickets[t].report.reason, "no room"));

    /* Alive, but without news for longer than 400 ms: cancelled, not disconnected. */
    t = take_prompt(x);
    send_all_rows(x, 0, 16);
    send_chunk(x, 16);
    const double began = bt_clock_ms();
    expect_abandoned(x, t, 16, BT_E_TIMEOUT);
    assert_in_range((int)(bt_clock_ms() - began), 300, 2000);
    assert_true(receive(x->link, BT_WIRE_CANCEL, &f));
    SEND(x->link, CANCELLED, cancelled, x->stream, 0);
    expect_alive(x);
    assert_int_equal(status_of(x).n_connects, 1);
}

static void bad_welcome_is_refused(void **state)
{
    liar *x = *state;
    bt_frame f;
    bt_link_destroy(x->link);
    x->link = NULL;
    for (int i = 0; i < 4; i++) {
        bt_link *link = NULL;
        for (int k = 0; k < 200 && !link; k++) {
            const uint64_t until = bt_clock_after_ms(100);
            (void)(bt_link_listener_accept(x->listener, until, &link, NULL) == BT_OK);
        }
        assert_non_null(link);
        assert_true(receive(link, BT_WIRE_HELLO, &f));
        if (i == 3) {
            SEND(link, REJECT, reject, 0, .status = BT_E_FULL,
                 .sentence = bt_wire_text_of("full house"));
        } else {
            SEND(link, WELCOME, welcome, 0, .version_major = BT_WIRE_VERSION_MAJOR + (i == 0),
                 .epoch = i == 1 ? 0 : 3, .n_ctx = 100, .n_streams = i == 2 ? 0 : 4,
                 .n_prefill = 2);
        }
        assert_true(link_ends(link));
        bt_link_destroy(link);
        for (int k = 0; k < 200 && status_of(x).phase != BT_PREFILL_REFUSED; k++) {
            bt_clock_sleep_ms(5);
        }
        assert_int_equal(status_of(x).phase, BT_PREFILL_REFUSED);
    }
    for (int k = 0; k < 200 && !strstr(status_of(x).reason, "full house"); k++) {
        bt_clock_sleep_ms(5);
    }
    assert_non_null(strstr(status_of(x).reason, "full house"));
}

static void late_rows_of_a_cancelled_prompt_are_dropped(void **state)
{
    liar *x = *state;
    bt_frame f;
    const int64_t t = take_prompt(x);
    send_all_rows(x, 0, 16);
    fake_cancel(x->engine, t, BT_EXTERNAL_GONE);
    assert_true(receive(x->link, BT_WIRE_CANCEL, &f));
    assert_true(fake_wait(x->engine, t, 250));
    assert_int_equal(x->engine->tickets[t].status, BT_E_CANCELLED);
    send_all_rows(x, 16, END);
    const bt_wire_commit m = right_commit(x);
    send_commit(x, &m);
    SEND(x->link, CANCELLED, cancelled, x->stream, 0);
    expect_alive(x);
    assert_int_equal(x->engine->tickets[t].have[0][20], 0);
}

/* ---- a server by hand ---- */

typedef struct {
    bt_engine *engine;         /* of the worker under test */
    bt_worker *worker;
    bt_link   *link;
    bt_wire_welcome welcome;
} caller;

static bt_link *call(caller *x, bool greet)
{
    bt_error err = { 0 };
    const bt_link_options lo = { 0 };
    bt_link *link = NULL;
    bt_frame f;
    assert_int_equal(bt_link_connect(bt_handoff_worker_address(x->worker), &lo, &link, &err),
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

static int caller_open(void **state)
{
    caller *x = calloc(1, sizeof *x);
    bt_error err = { 0 };
    x->engine = fake_engine_new(true, 16, 1);
    const bt_worker_options o = { .listen = "127.0.0.1:0", .numerics = "ref", .n_peers = 3 };
    assert_int_equal(bt_handoff_worker_open(&o, x->engine, &x->worker, &err), BT_OK);
    x->link = call(x, true);
    *state = x;
    return 0;
}

static int caller_close(void **state)
{
    caller *x = *state;
    bt_link_destroy(x->link);
    bt_handoff_worker_close(x->worker);
    assert_int_equal(atomic_load(&x->engine->n_requests), 0);
    fake_engine_free(x->engine);
    free(x);
    return 0;
}

static void send_prefill(caller *x, uint32_t stream, uint32_t n, uint64_t credit)
{
    SEND(x->link, PREFILL, prefill, stream, .nonce = 1 + stream, .epoch = x->welcome.epoch,
         .n_tokens = n, .position_end = n, .credit = credit);
}

static void send_ids(caller *x, uint32_t stream, uint32_t offset, uint32_t n, uint32_t id)
{
    static uint8_t ids[4 * FAKE_CTX];
    for (uint32_t i = 0; i < n; i++) {
        bt_put_le32(ids + 4 * i, id);
    }
    SEND(x->link, TOKENS, tokens, stream, .offset = offset, .ids = { ids, n });
}

static bt_status error_on(caller *x, uint32_t stream)
{
    bt_frame f;
    bt_wire_error m;
    assert_true(receive(x->link, BT_WIRE_ERROR, &f));
    assert_int_equal(f.stream, stream);
    assert_int_equal(bt_wire_error_decode(f.body, f.size, &m, NULL), BT_OK);
    assert_true(m.sentence.size > 0);
    return (bt_status)m.status;
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
        for (int k = 0; k < 200 && atomic_load(&x->engine->n_requests) > 0; k++) {
            bt_clock_sleep_ms(5);
        }
        assert_int_equal(atomic_load(&x->engine->n_requests), 0);
        x->link = call(x, true);
    }
    bt_worker_status st;
    bt_handoff_worker_status_get(x->worker, &st);
    assert_int_equal(st.n_in_flight, 0);
    assert_int_equal(st.tokens_in_flight, 0);
    assert_int_equal(st.n_cancelled, 10);
}

static void strangers_cost_little_and_are_let_go(void **state)
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

    /* Many that never say HELLO: later ones are closed at once, a guest is served all the while. */
    for (int i = 0; i < 40; i++) {
        silent[i] = call(x, false);
    }
    send_prefill(x, 1, 10, 1 << 20);
    send_ids(x, 1, 0, 10, 1);
    assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
    int n_closed = 0;
    const double until = bt_clock_ms() + 3000;
    while (n_closed < 24 && bt_clock_ms() < until) {
        n_closed = 0;
        for (int i = 0; i < 40; i++) {
            const bt_status s = bt_link_receive(silent[i], 0, &f, NULL);
            n_closed += s != BT_OK && s != BT_E_AGAIN;
        }
        bt_clock_sleep_ms(10);
    }
    assert_in_range(n_closed, 24, 39);              /* all but 16, give or take those just let go */
    for (int i = 0; i < 40; i++) {
        bt_link_destroy(silent[i]);
    }
}

#define WORKER_LIES(test) cmocka_unit_test_setup_teardown(test, liar_open, liar_close)
#define SERVER_LIES(test) cmocka_unit_test_setup_teardown(test, caller_open, caller_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WORKER_LIES(honest_worker_commits),
        WORKER_LIES(wrong_chunk_digest_keeps_what_was_agreed),
        WORKER_LIES(commit_of_another_prompt_is_never_used),
        WORKER_LIES(early_commit_is_not_enough),
        WORKER_LIES(lies_that_end_the_connection),
        WORKER_LIES(rows_without_credit_end_the_connection),
        WORKER_LIES(error_and_silence_end_the_stream_only),
        WORKER_LIES(bad_welcome_is_refused),
        WORKER_LIES(late_rows_of_a_cancelled_prompt_are_dropped),
        SERVER_LIES(each_identity_field_is_refused_by_name),
        SERVER_LIES(bad_prompts_are_answered_on_their_stream),
        SERVER_LIES(rows_in_unknown_forms_are_refused_on_their_stream),
        SERVER_LIES(too_many_streams_is_full),
        SERVER_LIES(credit_is_never_overdrawn),
        SERVER_LIES(lies_that_end_the_connection_there),
        SERVER_LIES(strangers_cost_little_and_are_let_go),
    };
    return cmocka_run_group_tests_name("handoff/hostile", tests, quiet, NULL);
}
