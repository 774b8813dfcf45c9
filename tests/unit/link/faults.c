/* tests/unit/link/faults.c - peers that die, hang, trickle, lie or talk nonsense. */
#include "pair.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* A link that was accepted from a raw socket. */
typedef struct {
    bt_listener *listener;
    bt_link     *link;
    int          fd;
} raw_pair;

static raw_pair raw_open(const bt_link_options *o)
{
    raw_pair p = {0};
    assert_ok(bt_link_listener_open("127.0.0.1:0", o, &p.listener, &pair_err));
    p.fd = raw_connect(bt_link_listener_address(p.listener));
    assert_ok(bt_link_listener_accept(p.listener, within(20000), &p.link, &pair_err));
    return p;
}

static void raw_close(raw_pair *p)
{
    bt_link_destroy(p->link);
    bt_link_listener_close(p->listener);
    close(p->fd);
}

/* ---- dead ---- */

static void a_killed_peer_is_noticed_at_once(void **state)
{
    (void)state;
    char address[32];
    bt_link *link;
    bt_frame f;
    const int listening = raw_listen(4, address);
    const pid_t child = fork();

    if (child == 0) {                           /* accepts, and waits for its end */
        const int fd = accept(listening, NULL, NULL);
        pause();
        close(fd);
        _exit(0);
    }
    close(listening);
    assert_ok(bt_link_connect(address, NULL, &link, &pair_err));
    assert_int_equal(bt_link_receive(link, within(100), &f, &pair_err), BT_E_AGAIN);
    const double before = bt_clock_ms();
    kill(child, SIGKILL);
    assert_int_equal(bt_link_receive(link, within(20000), &f, &pair_err), BT_E_LOST);
    assert_true(bt_clock_ms() - before < 5000);
    assert_says(pair_err.text, "connection");
    waitpid(child, NULL, 0);
    bt_link_destroy(link);
}

/* SIGPIPE has its default action here: this test ends if a write raises it. */
static void writing_to_the_dead_is_only_a_status(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    bt_status status = BT_OK;

    bt_link_destroy(p.b);
    p.b = NULL;
    for (int i = 0; i < 2000 && status == BT_OK; i++) {
        status = bt_link_send(p.a, BT_WIRE_CREDIT, 1, "12345678", 8, &pair_err);
        bt_clock_sleep_ms(1);
    }
    assert_int_equal(status, BT_E_LOST);
    pair_close(&p);
}

/* ---- silent, slow ---- */

static void a_silent_peer_is_lost_after_four_heartbeats(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 100};
    char address[32];
    bt_link *link;
    bt_frame f;
    const int listening = raw_listen(4, address);   /* the kernel accepts, nobody answers */

    const double before = bt_clock_ms();
    assert_ok(bt_link_connect(address, &o, &link, &pair_err));
    assert_int_equal(bt_link_receive(link, within(20000), &f, &pair_err), BT_E_LOST);
    const double ms = bt_clock_ms() - before;
    assert_says(pair_err.text, "silent for");
    assert_true(ms >= 400 && ms < 5000);        /* four, and what a busy machine needs */
    assert_int_equal(bt_link_receive(link, within(20000), &f, &pair_err), BT_E_LOST);
    bt_link_destroy(link);
    close(listening);
}

/* Says nothing but that it is there, one byte at a time. */
static void a_slow_peer_is_not_lost(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 200};
    raw_pair p = raw_open(&o);
    const bt_wire_ping m = {.time = 1};
    uint8_t frame[BT_WIRE_HEADER_BYTES + 64];
    size_t size;
    bt_frame f;

    raw_frame(p.fd, BT_WIRE_HELLO, 0, 0, "", 0);
    assert_ok(bt_link_receive(p.link, within(20000), &f, &pair_err));
    assert_ok(bt_wire_ping_encode(&m, frame + BT_WIRE_HEADER_BYTES, 64, &size, &pair_err));
    bt_frame ping = {.type = BT_WIRE_PING, .sequence = 1, .size = (uint32_t)size,
                     .body = frame + BT_WIRE_HEADER_BYTES};
    bt_wire_header_encode(&ping, frame);
    for (size_t i = 0; i < BT_WIRE_HEADER_BYTES + size; i++) {
        assert_int_equal(send(p.fd, frame + i, 1, MSG_NOSIGNAL), 1);
        assert_int_equal(bt_link_receive(p.link, within(20), &f, &pair_err), BT_E_AGAIN);
    }
    raw_close(&p);
}

/* The owner of `a` looks away for longer than the silence allowed; the peer's heartbeats wait in
 * the kernel meanwhile. `b`, whose owner reads, hears the heartbeats of a's writer. */
static void an_owner_that_looks_away_loses_nobody(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 500};
    pair p = pair_open(&o);
    bt_frame f;

    for (int i = 0; i < 50; i++) {
        assert_int_equal(bt_link_receive(p.b, within(50), &f, &pair_err), BT_E_AGAIN);
    }
    assert_ok(bt_link_send(p.b, BT_WIRE_CREDIT, 1, "12345678", 8, &pair_err));
    assert_ok(bt_link_receive(p.a, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_CREDIT);
    pair_close(&p);
}

/* Stops the whole process for longer than the silence allowed, five times; in a child. */
static void stop_again_and_again(void)
{
    for (int i = 0; i < 5; i++) {
        bt_clock_sleep_ms(230 + 37 * (uint64_t)i);
        (void)kill(getppid(), SIGSTOP);
        bt_clock_sleep_ms(600);
        (void)kill(getppid(), SIGCONT);
    }
}

static void *listen_until_it_is_told(void *link)
{
    bt_frame f;
    return (void *)(intptr_t)bt_link_receive(link, within(20000), &f, NULL);
}

/* A virtual machine that is stopped for a while, a laptop that sleeps, with both ends in it or with
 * one that reads again before the other beats. */
static void a_pause_is_nobodys_silence(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 100};
    pair p = pair_open(&o);
    pthread_t reader;
    bt_frame f;
    void *told;
    int status;
    assert_int_equal(pthread_create(&reader, NULL, listen_until_it_is_told, p.b), 0);
    const pid_t child = fork();
    if (child == 0) {
        stop_again_and_again();
        _exit(0);
    }
    assert_true(child > 0);
    while (waitpid(child, &status, WNOHANG) == 0) {
        assert_int_equal(bt_link_receive(p.a, within(10), &f, &pair_err), BT_E_AGAIN);
    }
    assert_ok(bt_link_send(p.a, BT_WIRE_CREDIT, 1, "12345678", 8, &pair_err));
    assert_int_equal(pthread_join(reader, &told), 0);
    assert_int_equal((intptr_t)told, BT_OK);
    pair_close(&p);
}

/* ---- strangers ---- */

static void a_trickling_stranger_is_shown_the_door(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 100, .handshake_timeout_ms = 300};
    raw_pair p = raw_open(&o);
    uint8_t header[BT_WIRE_HEADER_BYTES];
    bt_frame hello = {.type = BT_WIRE_HELLO, .body = (const uint8_t *)""};
    bt_status status = BT_E_AGAIN;
    bt_frame f;

    bt_wire_header_encode(&hello, header);
    const double before = bt_clock_ms();
    for (size_t i = 0; i < sizeof header && status == BT_E_AGAIN; i++) {
        assert_int_equal(send(p.fd, header + i, 1, MSG_NOSIGNAL), 1);
        status = bt_link_receive(p.link, within(20), &f, &pair_err);
    }
    assert_int_equal(status, BT_E_TIMEOUT);
    assert_says(pair_err.text, "no complete frame within 300 ms");
    assert_true(bt_clock_ms() - before < 5000);
    raw_close(&p);
}

static void heartbeats_alone_are_no_handshake(void **state)
{
    (void)state;
    const bt_link_options o = {.heartbeat_ms = 100, .handshake_timeout_ms = 200};
    raw_pair p = raw_open(&o);
    bt_status status = BT_E_AGAIN;
    uint8_t body[64];
    size_t size;
    bt_frame f;

    for (uint64_t i = 0; i < 100 && status == BT_E_AGAIN; i++) {
        const bt_wire_ping m = {.time = i};
        assert_ok(bt_wire_ping_encode(&m, body, sizeof body, &size, &pair_err));
        raw_frame(p.fd, BT_WIRE_PING, 0, i, body, (uint32_t)size);
        status = bt_link_receive(p.link, within(10), &f, &pair_err);
    }
    assert_int_equal(status, BT_E_TIMEOUT);
    raw_close(&p);
}

static void a_stranger_may_not_send_much(void **state)
{
    (void)state;
    raw_pair p = raw_open(NULL);
    uint8_t header[BT_WIRE_HEADER_BYTES];
    uint8_t *body = calloc(1, 40000);
    bt_frame f, big = {.type = BT_WIRE_HELLO, .size = 40000, .body = body};

    bt_wire_header_encode(&big, header);
    assert_int_equal(send(p.fd, header, sizeof header, 0), sizeof header);
    assert_int_equal(bt_link_receive(p.link, within(20000), &f, &pair_err), BT_E_PROTOCOL);
    assert_says(pair_err.text, "40000 bytes, at most 32768");
    free(body);
    raw_close(&p);
}

/* ---- liars ---- */

static void expect_protocol(const char *sent, size_t size, const char *says)
{
    raw_pair p = raw_open(NULL);
    bt_frame f;
    assert_int_equal(send(p.fd, sent, size, 0), size);
    assert_int_equal(bt_link_receive(p.link, within(20000), &f, &pair_err), BT_E_PROTOCOL);
    assert_says(pair_err.text, says);
    assert_int_equal(bt_link_send(p.link, BT_WIRE_CREDIT, 1, "", 0, &pair_err), BT_E_PROTOCOL);
    raw_close(&p);
}

static void nonsense_is_named(void **state)
{
    (void)state;
    char zeros[64] = {0};
    expect_protocol("GET / HTTP/1.1\r\n\r\n", 18, "not a Baton frame");
    expect_protocol(zeros, sizeof zeros, "not a Baton frame");
    memcpy(zeros, "BATN", 4);
    expect_protocol(zeros, sizeof zeros, "damaged");
}

static void a_repeated_or_missing_frame_is_noticed(void **state)
{
    (void)state;
    static const uint64_t second[] = {0, 2, 1ull << 40};
    for (size_t i = 0; i < BT_LEN(second); i++) {
        raw_pair p = raw_open(NULL);
        bt_frame f;
        raw_frame(p.fd, BT_WIRE_HELLO, 0, 0, "", 0);
        raw_frame(p.fd, BT_WIRE_CREDIT, 1, second[i], "12345678", 8);
        assert_ok(bt_link_receive(p.link, within(20000), &f, &pair_err));
        assert_int_equal(bt_link_receive(p.link, within(20000), &f, &pair_err), BT_E_PROTOCOL);
        assert_says(pair_err.text, "lost or repeated");
        raw_close(&p);
    }
}

static void an_unknown_type_is_skipped(void **state)
{
    (void)state;
    raw_pair p = raw_open(NULL);
    bt_link_stats s;
    bt_frame f;

    raw_frame(p.fd, 999, 0, 0, "abc", 3);
    raw_frame(p.fd, 0xFFFF, 5, 1, "", 0);
    raw_frame(p.fd, BT_WIRE_HELLO, 0, 2, "x", 1);
    assert_ok(bt_link_receive(p.link, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_HELLO);
    bt_link_stats_get(p.link, &s);
    assert_int_equal(s.frames_skipped, 2);
    assert_int_equal(s.frames_received, 3);
    raw_close(&p);
}

static void a_short_heartbeat_breaks_the_protocol(void **state)
{
    (void)state;
    raw_pair p = raw_open(NULL);
    bt_frame f;
    raw_frame(p.fd, BT_WIRE_PING, 0, 0, "abc", 3);
    assert_int_equal(bt_link_receive(p.link, within(20000), &f, &pair_err), BT_E_PROTOCOL);
    assert_says(pair_err.text, "PING");
    raw_close(&p);
}

/* A PONG that nobody asked for is not an error, and no round trip. */
static void an_invented_pong_is_ignored(void **state)
{
    (void)state;
    raw_pair p = raw_open(NULL);
    const bt_wire_pong m = {.time = 12345, .running = 4};
    uint8_t body[64];
    size_t size;
    bt_link_stats s;
    bt_frame f;

    raw_frame(p.fd, BT_WIRE_HELLO, 0, 0, "", 0);
    assert_ok(bt_wire_pong_encode(&m, body, sizeof body, &size, &pair_err));
    raw_frame(p.fd, BT_WIRE_PONG, 0, 1, body, (uint32_t)size);
    assert_ok(bt_link_receive(p.link, within(20000), &f, &pair_err));
    assert_int_equal(bt_link_receive(p.link, within(20), &f, &pair_err), BT_E_AGAIN);
    bt_link_stats_get(p.link, &s);
    assert_int_equal(s.peer_load.running, 4);
    assert_true(s.round_trip_ms == 0 && s.round_trip_ms_min == 0);
    raw_close(&p);
}

/* A flood of PINGs neither grows a queue nor holds the reader beyond its timeout. */
static atomic_bool flood_over;

static void *flood(void *context)
{
    const int fd = *(int *)context;
    uint8_t body[64];
    size_t size;
    for (uint64_t i = 1; !atomic_load(&flood_over); i++) {
        const bt_wire_ping m = {.time = i};
        if (bt_wire_ping_encode(&m, body, sizeof body, &size, NULL) == BT_OK) {
            uint8_t frame[BT_WIRE_HEADER_BYTES + 64];
            bt_frame f = {.type = BT_WIRE_PING, .sequence = i, .size = (uint32_t)size,
                          .body = body};
            bt_wire_header_encode(&f, frame);
            memcpy(frame + BT_WIRE_HEADER_BYTES, body, size);
            send(fd, frame, BT_WIRE_HEADER_BYTES + size, MSG_NOSIGNAL);
        }
    }
    return NULL;
}

static void a_flood_of_heartbeats_holds_nobody(void **state)
{
    (void)state;
    raw_pair p = raw_open(NULL);
    pthread_t thread;
    bt_frame f;

    raw_frame(p.fd, BT_WIRE_HELLO, 0, 0, "", 0);
    assert_ok(bt_link_receive(p.link, within(20000), &f, &pair_err));
    atomic_store(&flood_over, false);
    pthread_create(&thread, NULL, flood, &p.fd);
    bt_clock_sleep_ms(20);
    for (int i = 0; i < 5; i++) {
        const double before = bt_clock_ms();
        assert_int_equal(bt_link_receive(p.link, within(50), &f, &pair_err), BT_E_AGAIN);
        assert_true(bt_clock_ms() - before < 5000);
    }
    atomic_store(&flood_over, true);
    bt_link_close(p.link, "enough");
    pthread_join(thread, NULL);
    raw_close(&p);
}

/* ---- a frame damaged on the way ---- */

static void every_flipped_byte_is_noticed(void **state)
{
    (void)state;
    uint8_t frame[BT_WIRE_HEADER_BYTES + 12];
    memcpy(frame + BT_WIRE_HEADER_BYTES, "twelve bytes", 12);

    for (size_t i = 0; i < sizeof frame; i++) {
        raw_pair p = raw_open(NULL);
        bt_frame got, f = {.type = BT_WIRE_HELLO, .size = 12, .body = frame + BT_WIRE_HEADER_BYTES};
        bt_wire_header_encode(&f, frame);
        frame[i] ^= (uint8_t)(1u << (i % 8));
        assert_int_equal(send(p.fd, frame, sizeof frame, 0), sizeof frame);
        frame[i] ^= (uint8_t)(1u << (i % 8));
        assert_int_equal(bt_link_receive(p.link, within(20000), &got, &pair_err), BT_E_PROTOCOL);
        raw_close(&p);
    }
}

static void a_frame_cut_anywhere_is_a_lost_peer(void **state)
{
    (void)state;
    uint8_t frame[BT_WIRE_HEADER_BYTES + 12];
    memcpy(frame + BT_WIRE_HEADER_BYTES, "twelve bytes", 12);
    bt_frame got, f = {.type = BT_WIRE_HELLO, .size = 12, .body = frame + BT_WIRE_HEADER_BYTES};
    bt_wire_header_encode(&f, frame);

    for (size_t n = 0; n < sizeof frame; n++) {
        raw_pair p = raw_open(NULL);
        assert_int_equal(send(p.fd, frame, n, 0), n);
        shutdown(p.fd, SHUT_WR);
        assert_int_equal(bt_link_receive(p.link, within(20000), &got, &pair_err), BT_E_LOST);
        assert_says(pair_err.text, n > 0 ? "in the middle of a frame" : "closed the connection");
        raw_close(&p);
    }
}

/* Two frames, cut in two pieces at every byte, arrive as two frames. */
static void every_split_gives_the_same_frames(void **state)
{
    (void)state;
    enum { ONE = BT_WIRE_HEADER_BYTES + 5, BOTH = 2 * ONE };
    uint8_t bytes[BOTH];

    for (uint64_t i = 0; i < 2; i++) {
        uint8_t *at = bytes + i * ONE;
        memcpy(at + BT_WIRE_HEADER_BYTES, "12345", 5);
        bt_frame f = {.type = BT_WIRE_HELLO, .sequence = i, .size = 5,
                      .body = at + BT_WIRE_HEADER_BYTES};
        bt_wire_header_encode(&f, at);
    }
    for (size_t cut = 0; cut <= BOTH; cut++) {
        const size_t pieces[3] = {0, cut, BOTH};
        raw_pair p = raw_open(NULL);
        bt_frame f;
        int seen = 0;
        for (int piece = 0; piece < 2; piece++) {
            const size_t n = pieces[piece + 1] - pieces[piece];
            assert_int_equal(send(p.fd, bytes + pieces[piece], n, 0), n);
            const int due = (int)(pieces[piece + 1] / ONE) - seen;
            for (int i = 0; i < due; i++) {
                assert_ok(bt_link_receive(p.link, within(20000), &f, &pair_err));
                assert_int_equal(f.size, 5);
                assert_memory_equal(f.body, "12345", 5);
                seen++;
            }
            assert_int_equal(bt_link_receive(p.link, within(1), &f, &pair_err), BT_E_AGAIN);
        }
        assert_int_equal(seen, 2);
        raw_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_peer_is_noticed_at_once),
        cmocka_unit_test(writing_to_the_dead_is_only_a_status),
        cmocka_unit_test(a_silent_peer_is_lost_after_four_heartbeats),
        cmocka_unit_test(a_pause_is_nobodys_silence),
        cmocka_unit_test(a_slow_peer_is_not_lost),
        cmocka_unit_test(an_owner_that_looks_away_loses_nobody),
        cmocka_unit_test(a_trickling_stranger_is_shown_the_door),
        cmocka_unit_test(heartbeats_alone_are_no_handshake),
        cmocka_unit_test(a_stranger_may_not_send_much),
        cmocka_unit_test(nonsense_is_named),
        cmocka_unit_test(a_repeated_or_missing_frame_is_noticed),
        cmocka_unit_test(an_unknown_type_is_skipped),
        cmocka_unit_test(a_short_heartbeat_breaks_the_protocol),
        cmocka_unit_test(an_invented_pong_is_ignored),
        cmocka_unit_test(a_flood_of_heartbeats_holds_nobody),
        cmocka_unit_test(every_flipped_byte_is_noticed),
        cmocka_unit_test(a_frame_cut_anywhere_is_a_lost_peer),
        cmocka_unit_test(every_split_gives_the_same_frames),
    };
    return cmocka_run_group_tests_name("link/faults", tests, NULL, NULL);
}
