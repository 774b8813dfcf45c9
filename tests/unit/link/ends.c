/* tests/unit/link/ends.c - how a connection ends, and what is still delivered. */
#include "script.h"

#include <dirent.h>

static void *receive_one(void *link)
{
    static bt_status status;
    bt_frame f;
    status = bt_link_receive(link, UINT64_MAX, &f, NULL);
    return &status;
}

/* The writer is stuck in a full socket, the reader waits for ever. */
static void close_wakes_everybody(void **state)
{
    (void)state;
    const bt_link_options o = {.buffer_bytes = 64 << 10};
    pair p = pair_open(&o);
    script s;
    pthread_t receiving;
    void *received;

    script_init(&s, UINT32_MAX, BT_WIRE_BODY_BYTES_MAX);
    script_attach(&s, p.a);
    pthread_create(&receiving, NULL, receive_one, p.a);
    script_await_sealed(&s, 1);
    bt_link_close(p.a, "the test is over");
    bt_link_close(p.a, "again");
    pthread_join(receiving, &received);
    assert_int_equal(*(bt_status *)received, BT_E_CLOSED);
    assert_int_equal(bt_link_send(p.a, BT_WIRE_CANCEL, 1, "", 0, &pair_err), BT_E_CLOSED);
    assert_string_equal(pair_err.text, "the test is over");
    pair_close(&p);                             /* joins the writer */
}

static void what_was_sent_before_the_end_is_received(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    bt_link_stats s;
    bt_frame f;

    for (int i = 0; i < 50; i++) {
        assert_ok(bt_link_send(p.a, BT_WIRE_CREDIT, 1, "12345678", 8, &pair_err));
    }
    do {
        bt_link_stats_get(p.a, &s);
    } while (s.frames_sent < 50);
    /* Closing with unread heartbeats is a reset, and one that overtakes what is on its way between
     * cores destroys it; bt_link_finish() is for those who cannot wait. */
    bt_clock_sleep_ms(50);
    bt_link_destroy(p.a);
    p.a = NULL;
    for (int i = 0; i < 50; i++) {
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
        assert_int_equal(f.type, BT_WIRE_CREDIT);
    }
    assert_int_equal(bt_link_receive(p.b, within(20000), &f, &pair_err), BT_E_LOST);
    assert_says(pair_err.text, "connection");   /* closed, or reset: a had unread heartbeats */
    bt_link_stats_get(p.b, &s);
    assert_false(s.alive);
    pair_close(&p);
}

static void *finish_b(void *link)
{
    bt_link_finish(link, 3000, "refused");
    return NULL;
}

/* A REJECT arrives although the peer had sent much that nobody reads. */
static void finish_delivers_the_last_word(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        pair p = pair_open(NULL);
        pthread_t thread;
        bt_frame f;

        for (int i = 0; i < 100; i++) {
            assert_ok(bt_link_send(p.a, BT_WIRE_TOKENS, 1, &(uint8_t[1000]){0}, 1000, &pair_err));
        }
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
        assert_ok(bt_link_send(p.b, BT_WIRE_REJECT, 0, "no", 2, &pair_err));
        pthread_create(&thread, NULL, finish_b, p.b);
        assert_ok(bt_link_receive(p.a, within(20000), &f, &pair_err));
        assert_int_equal(f.type, BT_WIRE_REJECT);
        assert_int_equal(bt_link_receive(p.a, within(20000), &f, &pair_err), BT_E_LOST);
        assert_says(pair_err.text, "closed the connection");
        const double before = bt_clock_ms();
        pthread_join(thread, NULL);
        assert_true(bt_clock_ms() - before < 5000);
        assert_int_equal(bt_link_send(p.b, BT_WIRE_REJECT, 0, "", 0, &pair_err), BT_E_CLOSED);
        assert_string_equal(pair_err.text, "refused");
        pair_close(&p);
    }
}

static int count_entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    if (d == NULL) {
        return -1;                              /* not Linux */
    }
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static void a_thousand_connections_leave_nothing_behind(void **state)
{
    (void)state;
    bt_listener *listener;
    assert_ok(bt_link_listener_open("127.0.0.1:0", NULL, &listener, &pair_err));
    const int fds = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");

    for (int i = 0; i < 1000; i++) {
        bt_link *a, *b;
        bt_frame f;
        assert_ok(bt_link_connect(bt_link_listener_address(listener), NULL, &a, &pair_err));
        assert_ok(bt_link_listener_accept(listener, within(20000), &b, &pair_err));
        if (i % 4 == 0) {
            assert_ok(bt_link_send(a, BT_WIRE_HELLO, 0, "", 0, &pair_err));
            assert_ok(bt_link_receive(b, within(20000), &f, &pair_err));
        }
        bt_link_destroy(i % 2 ? a : b);
        bt_link_destroy(i % 2 ? b : a);
    }
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    assert_int_equal(count_entries("/proc/self/task"), threads);
    bt_link_listener_close(listener);
}

/* ---- memory that runs out ---- */

static bt_status use_a_link(void)
{
    bt_listener *listener = NULL;
    bt_link *a = NULL, *b = NULL;
    const bt_link_options o = {.heartbeat_ms = 5000};
    script s;
    bt_frame f;
    script_init(&s, 1, 200000);
    const bt_link_source source = {.context = &s, .next = script_next};

    bt_status status = bt_link_listener_open("127.0.0.1:0", &o, &listener, NULL);
    if (status == BT_OK) {
        status = bt_link_connect(bt_link_listener_address(listener), &o, &a, NULL);
    }
    if (status == BT_OK) {
        status = bt_link_listener_accept(listener, within(200000), &b, NULL);
    }
    if (status == BT_OK) {
        status = bt_link_send(a, BT_WIRE_HELLO, 0, "x", 1, NULL);
    }
    if (status == BT_OK) {
        status = bt_link_receive(b, within(20000), &f, NULL);
    }
    if (status == BT_OK) {
        status = bt_link_set_source(a, &source, NULL);
    }
    if (status == BT_OK) {
        status = bt_link_receive(b, within(20000), &f, NULL);
    }
    bt_link_destroy(a);
    bt_link_destroy(b);
    bt_link_listener_close(listener);
    return status;
}

/* A heartbeat that finds no memory is skipped, so some allocations may fail unnoticed; whatever is
 * noticed is E_NOMEM, or the loss of a peer that had none. */
static void no_memory_is_said_and_survived(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t n = 1; n < 40; n++) {
        bt_memory_fail_after(n);
        const bt_status status = use_a_link();
        bt_memory_fail_after(0);
        if (status != BT_OK) {
            assert_int_equal(status, BT_E_NOMEM);
            failed++;
        }
    }
    assert_true(failed >= 8);
    assert_ok(use_a_link());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_wakes_everybody),
        cmocka_unit_test(what_was_sent_before_the_end_is_received),
        cmocka_unit_test(finish_delivers_the_last_word),
        cmocka_unit_test(a_thousand_connections_leave_nothing_behind),
        cmocka_unit_test(no_memory_is_said_and_survived),
    };
    return cmocka_run_group_tests_name("link/ends", tests, NULL, NULL);
}
