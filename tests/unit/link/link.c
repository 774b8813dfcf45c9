/* tests/unit/link/link.c - what a link promises while nothing goes wrong. */
#include "pair.h"

static void a_frame_arrives(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    bt_frame f;

    assert_ok(bt_link_send(p.a, BT_WIRE_CANCEL, 7, "\2\0\0\0", 4, &pair_err));
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_CANCEL);
    assert_int_equal(f.stream, 7);
    assert_int_equal(f.size, 4);
    assert_memory_equal(f.body, "\2\0\0\0", 4);
    assert_int_equal(bt_link_receive(p.b, 0, &f, &pair_err), BT_E_AGAIN);
    assert_int_equal(bt_link_receive(p.b, within(20), &f, &pair_err), BT_E_AGAIN);
    pair_close(&p);
}

static void full_control_queue_says_so(void **state)
{
    (void)state;
    const bt_link_options o = {.buffer_bytes = 64 << 10};
    pair p = pair_open(&o);
    uint8_t *body = calloc(1, BT_WIRE_BODY_BYTES_MAX);
    bt_status status = BT_OK;
    int n = 0;

    while (n < 64 && status == BT_OK) {
        status = bt_link_send(p.a, BT_WIRE_TOKENS, 1, body, BT_WIRE_BODY_BYTES_MAX, &pair_err);
        n += status == BT_OK;
    }
    assert_int_equal(status, BT_E_FULL);
    assert_says(pair_err.text, "control frames wait");
    assert_in_range(n, 7, 20);
    free(body);
    pair_close(&p);
}

/* ---- numbers ---- */

static void load_and_round_trip_are_known(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 500};
    pair p = pair_open(&o);
    const bt_link_load load = {
        .running = 2, .waiting = 3, .queued_tokens = 1ull << 40, .token_ns = 7};
    bt_link_stats s;
    bt_frame f;

    bt_link_stats_get(p.a, &s);
    assert_true(s.peer_load_age_ms < 0);
    bt_link_set_load(p.b, &load);
    for (int i = 0; i < 500 && (s.peer_load.running == 0 || s.round_trip_ms <= 0); i++) {
        assert_int_equal(bt_link_receive(p.a, within(10), &f, &pair_err), BT_E_AGAIN);
        assert_int_equal(bt_link_receive(p.b, within(10), &f, &pair_err), BT_E_AGAIN);
        bt_link_stats_get(p.a, &s);
    }
    assert_int_equal(s.peer_load.running, 2);
    assert_int_equal(s.peer_load.waiting, 3);
    assert_true(s.peer_load.queued_tokens == 1ull << 40);
    assert_int_equal(s.peer_load.token_ns, 7);
    assert_true(s.peer_load_age_ms >= 0 && s.peer_load_age_ms < 5000);
    assert_true(s.round_trip_ms > 0 && s.round_trip_ms < 5000);
    assert_true(s.round_trip_ms_min > 0 && s.round_trip_ms_min <= s.round_trip_ms + 1e-9);
    assert_true(s.alive && !s.encrypted);
    assert_says(s.peer, "127.0.0.1:");
    pair_close(&p);
}

enum { PACED_BYTES = 512 << 10, PACED_PIECE = 16 << 10, PACED_MS = 4 };

typedef struct {
    int    fd;
    double bytes_per_ms;                /* really reached, from the second piece on */
} pace;

/* One large frame, a piece every few milliseconds, behind a pause that is no part of it. */
static void *send_paced(void *context)
{
    pace *p = context;
    uint8_t *data = calloc(1, BT_WIRE_HEADER_BYTES + PACED_BYTES);
    bt_frame f = {.type = BT_WIRE_ROWS, .stream = 1, .sequence = 1, .size = PACED_BYTES,
                  .body = data + BT_WIRE_HEADER_BYTES};
    bt_wire_header_encode(&f, data);
    bt_clock_sleep_ms(300);
    double begin = 0;
    const size_t all = BT_WIRE_HEADER_BYTES + PACED_BYTES;
    for (size_t at = 0; at < all; at += PACED_PIECE) {
        const size_t n = all - at < PACED_PIECE ? all - at : PACED_PIECE;
        assert_int_equal(send(p->fd, data + at, n, MSG_NOSIGNAL), n);
        begin = at == 0 ? bt_clock_ms() : begin;
        bt_clock_sleep_ms(at + n < all ? PACED_MS : 0);
    }
    p->bytes_per_ms = (PACED_BYTES - PACED_PIECE) / (bt_clock_ms() - begin);
    free(data);
    return NULL;
}

static void goodput_is_that_of_large_frames_without_pauses(void **state)
{
    (void)state;
    bt_listener *listener;
    bt_link *l;
    bt_frame f;
    bt_link_stats s;
    pthread_t thread;
    assert_ok(bt_link_listener_open("127.0.0.1:0", NULL, &listener, &pair_err));
    pace p = {.fd = raw_connect(bt_link_listener_address(listener))};
    assert_ok(bt_link_listener_accept(listener, within(20000), &l, &pair_err));
    raw_frame(p.fd, BT_WIRE_HELLO, 0, 0, "", 0);
    assert_ok(bt_link_receive(l, within(20000), &f, &pair_err));
    bt_link_stats_get(l, &s);
    assert_float_equal(s.goodput_bytes_per_ms, 0, 0);
    pthread_create(&thread, NULL, send_paced, &p);
    assert_ok(bt_link_receive(l, within(20000), &f, &pair_err));
    pthread_join(thread, NULL);
    bt_link_stats_get(l, &s);
    /* A third: this thread may be late for the first piece, and for the last. */
    assert_true(s.goodput_bytes_per_ms > p.bytes_per_ms / 1.33);
    assert_true(s.goodput_bytes_per_ms < p.bytes_per_ms * 1.33);
    close(p.fd);
    bt_link_destroy(l);
    bt_link_listener_close(listener);
}

/* ---- waking ---- */

static void *receive_for_ever(void *link)
{
    bt_frame f;
    return (void *)(intptr_t)bt_link_receive(link, UINT64_MAX, &f, NULL);
}

static void a_wake_ends_a_receive_that_waits(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    pthread_t thread;
    void *status;

    pthread_create(&thread, NULL, receive_for_ever, p.b);
    bt_link_wake(p.b);                          /* remembered, should the thread be late */
    pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, BT_E_AGAIN);
    pair_close(&p);
}

static void wakes_that_nobody_waited_for_count_once(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    bt_frame f;

    for (int i = 0; i < 3; i++) {
        bt_link_wake(p.b);
    }
    assert_int_equal(bt_link_receive(p.b, UINT64_MAX, &f, &pair_err), BT_E_AGAIN);
    assert_ok(bt_link_send(p.a, BT_WIRE_CREDIT, 1, "12345678", 8, &pair_err));
    assert_ok(bt_link_receive(p.b, UINT64_MAX, &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_CREDIT);
    pair_close(&p);
}

/* Two frames in one packet, so that the second has come when the first is received. */
static void wakes_and_frames_take_turns(void **state)
{
    (void)state;
    enum { ONE = BT_WIRE_HEADER_BYTES };
    bt_listener *listener;
    uint8_t bytes[2 * ONE];
    bt_link *l;
    bt_frame f;

    assert_ok(bt_link_listener_open("127.0.0.1:0", NULL, &listener, &pair_err));
    const int fd = raw_connect(bt_link_listener_address(listener));
    assert_ok(bt_link_listener_accept(listener, within(20000), &l, &pair_err));
    for (uint64_t i = 0; i < 2; i++) {
        bt_frame hello = {.type = BT_WIRE_HELLO, .sequence = i, .body = bytes};
        bt_wire_header_encode(&hello, bytes + i * ONE);
    }
    assert_int_equal(send(fd, bytes, sizeof bytes, 0), sizeof bytes);
    assert_ok(bt_link_receive(l, within(20000), &f, &pair_err));
    bt_link_wake(l);
    assert_int_equal(bt_link_receive(l, UINT64_MAX, &f, &pair_err), BT_E_AGAIN);
    bt_link_wake(l);
    assert_ok(bt_link_receive(l, UINT64_MAX, &f, &pair_err));
    assert_true(f.sequence == 1);
    assert_int_equal(bt_link_receive(l, UINT64_MAX, &f, &pair_err), BT_E_AGAIN);
    close(fd);
    bt_link_destroy(l);
    bt_link_listener_close(listener);
}

static void *accept_for_ever(void *listener)
{
    bt_link *link;
    return (void *)(intptr_t)bt_link_listener_accept(listener, UINT64_MAX, &link, NULL);
}

static bt_status accept_while(void (*does)(bt_listener *), bt_listener *listener)
{
    pthread_t thread;
    void *status;
    pthread_create(&thread, NULL, accept_for_ever, listener);
    does(listener);
    pthread_join(thread, &status);
    return (bt_status)(intptr_t)status;
}

static void waking_and_stopping_end_accept(void **state)
{
    (void)state;
    bt_listener *listener;
    bt_link *link;

    assert_ok(bt_link_listener_open("127.0.0.1:0", NULL, &listener, &pair_err));
    assert_int_equal(bt_link_listener_accept(listener, within(10), &link, &pair_err), BT_E_AGAIN);
    assert_int_equal(accept_while(bt_link_listener_wake, listener), BT_E_AGAIN);
    assert_int_equal(accept_while(bt_link_listener_stop, listener), BT_E_CLOSED);
    bt_link_listener_wake(listener);
    assert_int_equal(bt_link_listener_accept(listener, 0, &link, &pair_err), BT_E_CLOSED);
    bt_link_listener_close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_arrives),
        cmocka_unit_test(full_control_queue_says_so),
        cmocka_unit_test(load_and_round_trip_are_known),
        cmocka_unit_test(goodput_is_that_of_large_frames_without_pauses),
        cmocka_unit_test(a_wake_ends_a_receive_that_waits),
        cmocka_unit_test(wakes_that_nobody_waited_for_count_once),
        cmocka_unit_test(wakes_and_frames_take_turns),
        cmocka_unit_test(waking_and_stopping_end_accept),
    };
    return cmocka_run_group_tests_name("link/link", tests, NULL, NULL);
}
