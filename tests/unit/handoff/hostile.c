/* tests/unit/handoff/hostile.c - a server whose worker lies, errs or stays silent.
 *
 * The peer is the test itself, speaking frames by hand. What has to hold: nothing that was not
 * covered by an equal digest becomes part of a prefix, the liar loses its connection or its stream
 * and nobody else loses anything, and all is freed.
 */
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
     * after the last field are legal and make one. */
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
        WAIT_FOR(status_of(x).phase == BT_PREFILL_REFUSED);
    }
    WAIT_FOR(strstr(status_of(x).reason, "full house") != NULL);
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

#define WORKER_LIES(test) cmocka_unit_test_setup_teardown(test, liar_open, liar_close)

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
    };
    return cmocka_run_group_tests_name("handoff/hostile", tests, quiet, NULL);
}
