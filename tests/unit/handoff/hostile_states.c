/* tests/unit/handoff/hostile_states.c - a server whose worker lies about recurrent states, or keeps
 * them back.
 *
 * What has to hold: a prompt whose state did not come whole and in order is abandoned (the engine
 * then prefills it here), what comes after COMMIT can take nothing back that was committed, a
 * reserved snapshot is closed by whoever opened it, and what a worker does not send makes nothing
 * grow.
 */
#include "unit/handoff/hostile.h"

enum { STATE_BYTES = 3000, HALF = STATE_BYTES / 2, LATE = 80, EARLY = 40, PENDING_MAX = 16 };

static int states_open(void **state)
{
    liar *x = liar_new(STATE_BYTES);
    x->engine->borders[0] = EARLY;
    x->engine->borders[1] = LATE;
    x->engine->n_borders = 2;
    *state = x;
    return 0;
}

/* Nothing may be left open once the connection is gone. */
static int states_close(void **state)
{
    liar *x = *state;
    bt_handoff_client_stop(x->prefill);
    assert_int_equal(fake_snapshots(x->engine, true), 0);
    return liar_close(state);
}

/* ---- a liar's states ---- */

/* Byte i of the state after `position` tokens. */
static uint8_t state_byte(uint32_t position, uint32_t i)
{
    return (uint8_t)(position * 31 + i * 7);
}

static void send_message(liar *x, const bt_wire_state *m)
{
    uint8_t body[2 * STATE_BYTES];
    size_t size;
    assert_int_equal(bt_wire_state_encode(m, body, sizeof body, &size, NULL), BT_OK);
    (void)(bt_link_send(x->link, BT_WIRE_STATE, x->stream, body, size, NULL) == BT_OK);
    bt_wire_tally_put(x->tally, BT_WIRE_STATE, (uint32_t)size, bt_hash64(body, size, 0));
}

static bt_wire_state part(uint32_t position, uint32_t offset, uint32_t n)
{
    static uint8_t data[STATE_BYTES + 1];
    for (uint32_t i = 0; i < n; i++) {
        data[i] = state_byte(position, offset + i);
    }
    return (bt_wire_state){ .layer = FAKE_STATE_LAYER, .position = position, .offset = offset,
                            .total = STATE_BYTES, .data = { data, n } };
}

static void send_part(liar *x, uint32_t position, uint32_t offset, uint32_t n)
{
    const bt_wire_state m = part(position, offset, n);
    send_message(x, &m);
}

static bool state_right(const uint8_t *data, uint32_t position)
{
    for (uint32_t i = 0; i < STATE_BYTES; i++) {
        if (data[i] != state_byte(position, i)) {
            return false;
        }
    }
    return true;
}

/* A whole prompt but for its snapshots; gives the ticket. */
static int64_t commit_prompt(liar *x)
{
    const int64_t t = take_prompt(x);
    assert_int_equal(x->asked.borders.n, 2);
    send_all_rows(x, 0, END);
    send_part(x, END, 0, HALF);
    send_part(x, END, HALF, HALF);
    const bt_wire_commit m = right_commit(x);
    send_commit(x, &m);
    assert_true(fake_wait(x->engine, t, 5000));
    assert_true(x->engine->tickets[t].committed);
    assert_true(fake_rows_right(x->engine, t, x->tokens, 0, END));
    assert_true(state_right(x->engine->tickets[t].state, END));
    return t;
}

static void wait_counts(liar *x, uint32_t open, uint32_t kept)
{
    WAIT_FOR(fake_snapshots(x->engine, true) == open && fake_snapshots(x->engine, false) == kept);
}

static void expect_cancel(liar *x, uint32_t stream)
{
    bt_frame f;
    assert_true(receive(x->link, BT_WIRE_CANCEL, &f));
    assert_int_equal(f.stream, stream);
}

/* The stream is over and nothing of its snapshot is kept; the connection and the prompt live on. */
static void expect_stream_over(liar *x, uint32_t n_corrupt, uint32_t kept)
{
    expect_cancel(x, x->stream);
    SEND(x->link, CANCELLED, cancelled, x->stream, 0);
    wait_counts(x, 0, kept);
    assert_int_equal(status_of(x).n_corrupt, n_corrupt);
    assert_int_equal(status_of(x).n_connects, 1);
}

/* ---- up to COMMIT ---- */

static void honest_states_come_whole(void **state)
{
    liar *x = *state;
    (void)commit_prompt(x);
    send_part(x, LATE, 0, STATE_BYTES);
    send_chunk(x, LATE);
    send_part(x, EARLY, 0, 1);
    send_part(x, EARLY, 1, STATE_BYTES - 1);
    send_chunk(x, EARLY);
    wait_counts(x, 0, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const fake_snapshot *s = &x->engine->snapshots[i];
        assert_int_equal(s->at, i == 0 ? LATE : EARLY);
        assert_true(state_right(s->data, s->at));
    }
}

/* Each costs the connection, and the prompt what had not been agreed on. */
static void wrong_parts_end_the_connection(void **state)
{
    liar *x = *state;
    for (int i = 0; i < 13; i++) {
        const int64_t t = take_prompt(x);
        send_all_rows(x, 0, 32);
        send_chunk(x, 32);
        send_all_rows(x, 32, END);
        bt_wire_state m = part(END, 0, HALF);
        switch (i) {
        case 0: m.layer = 1; break;                     /* keeps rows, and no state */
        case 1: m.layer = FAKE_LAYERS; break;
        case 2: m.layer = UINT32_MAX; break;
        case 3: m.offset = STATE_BYTES; break;          /* beyond the layer */
        case 4: m.offset = UINT32_MAX; break;
        case 5: m = part(END, 0, STATE_BYTES + 1); break;
        case 6: send_message(x, &m); break;             /* twice */
        case 7: send_message(x, &m); m = part(END, HALF, HALF + 1); break;
        case 8: m = part(END, 1, HALF); break;          /* a gap */
        case 9: m.total = STATE_BYTES + 1; break;
        case 10: m.kind = 1; break;
        case 11: m.position = LATE; break;              /* before COMMIT only that of the end */
        default: m = part(END, 0, STATE_BYTES);
                 send_message(x, &m);
                 m = part(END, 0, 1);                   /* it was whole */
                 break;
        }
        send_message(x, &m);
        expect_abandoned(x, t, 32, BT_E_PROTOCOL);
        assert_true(strlen(x->engine->tickets[t].report.reason) > 20);
        assert_true(link_ends(x->link));
        accept_server(x);
        wait_ready(x);
        assert_int_equal(status_of(x).n_corrupt, i + 1);
    }
    (void)commit_prompt(x);
}

static void commit_before_the_state_is_whole_is_not_enough(void **state)
{
    liar *x = *state;
    for (uint32_t i = 0; i < 3; i++) {
        const int64_t t = take_prompt(x);
        send_all_rows(x, 0, END);
        if (i > 0) {
            send_part(x, END, 0, i == 1 ? 1 : STATE_BYTES - 1);
        }
        const bt_wire_commit m = right_commit(x);
        send_commit(x, &m);
        expect_abandoned(x, t, 0, BT_E_PROTOCOL);
        assert_non_null(strstr(x->engine->tickets[t].report.reason, "states"));
        expect_stream_over(x, i + 1, 0);
        send_part(x, END, HALF, HALF);                  /* late */
    }
    (void)commit_prompt(x);
    assert_int_equal(status_of(x).n_late_frames, 3);
}

/* Sent, entered by the server, and not what the worker counted. */
static void a_state_that_differs_from_its_digest_is_never_used(void **state)
{
    liar *x = *state;
    const int64_t t = take_prompt(x);
    send_all_rows(x, 0, END);
    send_part(x, END, 0, STATE_BYTES);
    bt_wire_commit m = right_commit(x);
    m.digest.bytes[0] ^= 1;
    send_commit(x, &m);
    expect_abandoned(x, t, 0, BT_E_PROTOCOL);
    expect_stream_over(x, 1, 0);
    (void)commit_prompt(x);
}

/* ---- after COMMIT ---- */

/* Each ends the stream and what was open of its snapshot; the answer went on long before. */
static void wrong_snapshots_end_the_stream_only(void **state)
{
    liar *x = *state;
    bt_wire_chunk c;
    for (uint32_t i = 0; i < 9; i++) {
        (void)commit_prompt(x);
        switch (i) {
        case 0:                                         /* before all its parts came */
            send_part(x, LATE, 0, STATE_BYTES - 1);
            send_chunk(x, LATE);
            break;
        case 1: send_part(x, LATE - 1, 0, HALF); break; /* nobody asked for it */
        case 2: send_part(x, EARLY, 0, HALF); break;    /* not yet */
        case 3: send_chunk(x, LATE + 1); break;
        case 4: send_chunk(x, EARLY); break;
        case 5:
            send_part(x, LATE, 0, HALF);
            send_part(x, LATE, HALF + 1, HALF - 1);     /* a gap */
            break;
        case 6:
            send_part(x, LATE, 0, HALF);
            send_part(x, LATE, HALF, HALF + 1);         /* beyond */
            break;
        case 7:
            send_part(x, LATE, 0, STATE_BYTES);
            c = right_chunk(x, LATE);
            c.digest.bytes[3] ^= 1;
            SEND(x->link, CHUNK, chunk, x->stream, .position_end = c.position_end,
                 .n_frames = c.n_frames, .digest = c.digest);
            break;
        default: send_rows(x, 0, 0, 1); break;          /* no rows there */
        }
        expect_stream_over(x, i + 1, 0);
    }
    (void)commit_prompt(x);
}

static void more_snapshots_than_asked_are_dropped(void **state)
{
    liar *x = *state;
    (void)commit_prompt(x);
    for (int i = 0; i < 2; i++) {
        const uint32_t at = i == 0 ? LATE : EARLY;
        send_part(x, at, 0, STATE_BYTES);
        send_chunk(x, at);
    }
    for (uint32_t i = 0; i < 50; i++) {                 /* the stream has ended */
        send_part(x, EARLY - 1 - i % 8, 0, STATE_BYTES);
    }
    send_chunk(x, EARLY - 1);
    (void)commit_prompt(x);
    wait_counts(x, 0, 2);
    assert_int_equal(status_of(x).n_late_frames, 51);
    assert_int_equal(status_of(x).n_corrupt, 0);
}

/* A worker that has not kept one says so by a CHUNK alone; a server without room lets them pass. */
static void snapshots_may_be_missing_on_either_side(void **state)
{
    liar *x = *state;
    (void)commit_prompt(x);
    send_chunk(x, LATE);
    send_part(x, EARLY, 0, STATE_BYTES);
    send_chunk(x, EARLY);
    wait_counts(x, 0, 1);
    atomic_store(&x->engine->no_room, true);
    (void)commit_prompt(x);
    send_part(x, LATE, 0, STATE_BYTES);
    send_chunk(x, LATE);
    send_chunk(x, EARLY);
    (void)commit_prompt(x);
    wait_counts(x, 0, 1);
    assert_int_equal(status_of(x).n_late_frames + status_of(x).n_corrupt, 0);
}

/* Promised with every prompt and never sent, half of one each time: the server waits for those of
 * the last prompts only, and gives back what it had reserved for the others. */
static void snapshots_that_never_come_hold_nothing(void **state)
{
    liar *x = *state;
    uint32_t streams[40];
    for (uint32_t i = 0; i < BT_LEN(streams); i++) {
        (void)commit_prompt(x);
        streams[i] = x->stream;
        send_part(x, LATE, 0, HALF);
        wait_counts(x, i < PENDING_MAX ? i + 1 : PENDING_MAX, 0);
    }
    const uint32_t last = x->stream, n_ended = BT_LEN(streams) - PENDING_MAX;
    send_part(x, LATE, HALF, HALF);                     /* the last one does come after all */
    send_chunk(x, LATE);
    wait_counts(x, PENDING_MAX - 1, 1);
    x->stream = streams[n_ended - 1];                   /* one that was given up: dropped */
    send_part(x, LATE, HALF, HALF);
    x->stream = last;
    (void)commit_prompt(x);                             /* which ends one more */
    wait_counts(x, PENDING_MAX - 2, 1);
    assert_int_equal(status_of(x).n_late_frames, 1);
    assert_int_equal(status_of(x).n_corrupt, 0);
    assert_int_equal(status_of(x).n_prompts, BT_LEN(streams) + 1);
    bt_link_close(x->link, "gone");
    wait_counts(x, 0, 1);
}

/* Those that are ended for others get CANCEL, the oldest first. */
static void the_oldest_stream_is_cancelled(void **state)
{
    liar *x = *state;
    uint32_t first = 0;
    for (uint32_t i = 0; i < PENDING_MAX + 1; i++) {
        (void)commit_prompt(x);
        first = i == 0 ? x->stream : first;
    }
    expect_cancel(x, first);
    SEND(x->link, CANCELLED, cancelled, first, 0);
    (void)commit_prompt(x);
    expect_cancel(x, first + 1);
    assert_int_equal(status_of(x).n_connects, 1);
}

#define STATES_LIE(test) cmocka_unit_test_setup_teardown(test, states_open, states_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STATES_LIE(honest_states_come_whole),
        STATES_LIE(wrong_parts_end_the_connection),
        STATES_LIE(commit_before_the_state_is_whole_is_not_enough),
        STATES_LIE(a_state_that_differs_from_its_digest_is_never_used),
        STATES_LIE(wrong_snapshots_end_the_stream_only),
        STATES_LIE(more_snapshots_than_asked_are_dropped),
        STATES_LIE(snapshots_may_be_missing_on_either_side),
        STATES_LIE(snapshots_that_never_come_hold_nothing),
        STATES_LIE(the_oldest_stream_is_cancelled),
    };
    return cmocka_run_group_tests_name("handoff/hostile_states", tests, quiet, NULL);
}
