/* tests/unit/link/source.c - bulk frames: pulled by the writer, when they can leave. */
#include "script.h"

#include <sched.h>
#include <stdatomic.h>

static void expect_rows(bt_link *l, uint32_t size, uint8_t value)
{
    bt_frame f;
    assert_ok(bt_link_receive(l, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_ROWS);
    assert_int_equal(f.stream, 5);
    assert_int_equal(f.size, size);
    if (size > 0) {
        assert_int_equal(f.body[0], value);
        assert_int_equal(f.body[size - 1], value);
    }
}

/* ---- asking ---- */

static void pulled_frames_arrive_in_order(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 1000, 300 << 10, BT_WIRE_BODY_BYTES_MAX};
    for (size_t i = 0; i < BT_LEN(sizes); i++) {
        pair p = pair_open(NULL);
        script s;
        script_init(&s, 5, sizes[i]);
        script_attach(&s, p.a);
        for (uint8_t k = 1; k <= 5; k++) {
            expect_rows(p.b, sizes[i], k);
        }
        pair_close(&p);
        assert_int_equal(s.n_given, 5);
        assert_int_equal(s.n_sealed, 5);
    }
}

static void sealed_says_the_hash_that_arrives(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    script s;
    bt_frame f;

    script_init(&s, 1, 5000);
    script_attach(&s, p.a);
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    script_await_sealed(&s, 1);
    pair_close(&p);
    assert_true(f.hash == s.hash);
}

/* The control frames between prove that the writer had its rounds meanwhile. */
static void a_source_is_asked_when_it_was_pulled_and_not_else(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    script s;
    bt_frame f;

    script_init(&s, 0, 10);
    script_attach(&s, p.a);
    script_await_asked(&s, 1);
    for (int i = 0; i < 20; i++) {
        assert_ok(bt_link_send(p.a, BT_WIRE_CREDIT, 1, "12345678", 8, &pair_err));
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    }
    assert_int_equal(script_get(&s, &s.n_asked), 1);
    script_more(&s, 1);
    bt_link_pull(p.a);
    expect_rows(p.b, 10, 1);
    pair_close(&p);
    assert_int_equal(s.n_asked, 3);             /* one frame, and no more */
}

static void a_pull_while_the_source_is_asked_is_not_lost(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    script s;

    script_init(&s, 0, 10);
    s.open = false;
    script_attach(&s, p.a);
    script_await_inside(&s);
    bt_link_pull(p.a);
    bt_link_pull(p.a);
    script_gate(&s, true);
    script_await_asked(&s, 2);
    pair_close(&p);
    assert_int_equal(s.n_asked, 2);             /* two pulls, one question */
}

static void a_source_is_asked_again_at_its_own_time(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    script s;

    script_init(&s, 0, 10);
    const uint64_t due = s.again_ns = bt_clock_after_ms(30);
    script_attach(&s, p.a);
    script_await_asked(&s, 1);
    script_await_asked(&s, 2);
    assert_true(bt_clock_ns() >= due);
    pair_close(&p);
}

/* ---- order ---- */

/* Each frame fills a batch by itself. While the first is being written, a control frame is given:
 * it leaves right after it. */
static void control_goes_before_what_is_not_yet_pulled(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    script s;
    bt_frame f;

    script_init(&s, 3, 300 << 10);
    s.open = false;
    script_attach(&s, p.a);
    script_await_inside(&s);
    assert_ok(bt_link_send(p.a, BT_WIRE_CANCELLED, 6, NULL, 0, &pair_err));
    script_gate(&s, true);
    expect_rows(p.b, 300 << 10, 1);
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_CANCELLED);
    assert_int_equal(f.stream, 6);
    expect_rows(p.b, 300 << 10, 2);
    expect_rows(p.b, 300 << 10, 3);
    pair_close(&p);
}

typedef struct {
    bt_link *link;
    int      n;
} last_word;

static bool one_then_the_last_word(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    last_word *w = context;
    (void)capacity;
    if (w->n++ == 0) {
        memset(body, 1, 10);
        *ret = (bt_link_out){.type = BT_WIRE_ROWS, .stream = 5, .size = 10};
        return true;
    }
    if (w->n == 2) {
        assert_ok(bt_link_send(w->link, BT_WIRE_ERROR, 5, NULL, 0, &pair_err));
    }
    return false;
}

static void what_the_source_sends_itself_follows_what_it_gave(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    last_word w = {.link = p.a};
    const bt_link_source source = {.context = &w, .next = one_then_the_last_word};
    bt_frame f;

    assert_ok(bt_link_set_source(p.a, &source, &pair_err));
    expect_rows(p.b, 10, 1);
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_ERROR);
    pair_close(&p);
}

/* ---- backpressure ---- */

/* Endless frames. More than a batch and what the kernels hold is never prepared: 1.25 MiB, two
 * times twice the 64 KiB that were asked for, and a frame each where the limits are passed. */
static void no_more_is_pulled_than_can_leave(void **state)
{
    (void)state;
    const bt_link_options o = {.buffer_bytes = 64 << 10};
    pair p = pair_open(&o);
    script s;
    script_init(&s, UINT32_MAX, 100000);
    script_attach(&s, p.a);
    for (uint32_t i = 1; i <= 300; i++) {
        expect_rows(p.b, 100000, (uint8_t)i);
        assert_true(script_get(&s, &s.n_given) <= i + 20);
    }
    pair_close(&p);
}

/* ---- the end ---- */

static atomic_bool stopped;

/* At the gate's first opening it looks for 50 ms whether stop() returned all the same. */
static bool linger(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    const bool some = script_next(context, body, capacity, ret);
    const uint64_t until = bt_clock_after_ms(50);
    while (bt_clock_ns() < until) {
        assert_false(atomic_load(&stopped));
        sched_yield();
    }
    return some;
}

static void *stop_link(void *link)
{
    bt_link_stop(link, "the test is over");
    atomic_store(&stopped, true);
    return NULL;
}

static void after_stop_the_source_is_not_called(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    pthread_t thread;
    bt_link_stats stats;
    script s;

    atomic_store(&stopped, false);
    script_init(&s, UINT32_MAX, 10);
    s.open = false;
    const bt_link_source source = {.context = &s, .next = linger};
    assert_ok(bt_link_set_source(p.a, &source, &pair_err));
    script_await_inside(&s);
    pthread_create(&thread, NULL, stop_link, p.a);
    do {
        bt_link_stats_get(p.a, &stats);
    } while (stats.alive);
    script_gate(&s, true);
    pthread_join(thread, NULL);
    assert_int_equal(s.n_asked, 1);
    bt_link_pull(p.a);
    bt_link_stop(p.a, "again");
    assert_int_equal(bt_link_send(p.a, BT_WIRE_CANCEL, 1, "", 0, &pair_err), BT_E_CLOSED);
    assert_string_equal(pair_err.text, "the test is over");
    pair_close(&p);
    assert_int_equal(s.n_asked, 1);
}

static void *finish_a(void *link)
{
    bt_link_finish(link, 20000, "done");
    return NULL;
}

static void finish_sends_what_the_source_has(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    pthread_t thread;
    script s;
    bt_frame f;

    script_init(&s, 5, 300 << 10);
    s.open = false;
    script_attach(&s, p.a);
    script_await_inside(&s);
    pthread_create(&thread, NULL, finish_a, p.a);
    script_gate(&s, true);
    for (uint8_t i = 1; i <= 5; i++) {
        expect_rows(p.b, 300 << 10, i);
    }
    assert_int_equal(bt_link_receive(p.b, within(20000), &f, &pair_err), BT_E_LOST);
    assert_says(pair_err.text, "closed the connection");
    pthread_join(thread, NULL);
    pair_close(&p);
}

static void close_frees_a_writer_that_nobody_reads(void **state)
{
    (void)state;
    const bt_link_options o = {.buffer_bytes = 64 << 10};
    pair p = pair_open(&o);
    script s;

    script_init(&s, UINT32_MAX, BT_WIRE_BODY_BYTES_MAX);
    script_attach(&s, p.a);
    script_await_sealed(&s, 1);
    bt_link_stop(p.a, "over");                  /* returns although the kernel is full */
    pair_close(&p);
}

/* ---- much ---- */

enum { BLOCK = 1 << 20, BLOCKS = 100 };

typedef struct {
    const uint8_t *data;
    bt_wire_tally *tally;
    uint32_t       n;
} blocks;

static bool next_block(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    blocks *b = context;

    *ret = (bt_link_out){.type = BT_WIRE_ROWS, .stream = 3, .size = BLOCK};
    if (b->n < BLOCKS) {
        memcpy(body, b->data, BLOCK);
        body[0] = (uint8_t)b->n;
    } else if (b->n == BLOCKS) {
        const bt_wire_commit m = {.nonce = 11,
                                  .epoch = 22,
                                  .position_end = 5,
                                  .n_frames = bt_wire_tally_frames(b->tally),
                                  .n_bytes = bt_wire_tally_bytes(b->tally),
                                  .digest = bt_wire_tally_value(b->tally)};
        size_t size;
        assert_ok(bt_wire_commit_encode(&m, body, capacity, &size, &pair_err));
        ret->type = BT_WIRE_COMMIT;
        ret->size = (uint32_t)size;
    }
    return b->n++ <= BLOCKS;
}

static void seal_block(void *context, uint32_t stream, uint64_t hash)
{
    blocks *b = context;
    (void)stream;
    if (b->n <= BLOCKS) {
        bt_wire_tally_put(b->tally, BT_WIRE_ROWS, BLOCK, hash);
    }
}

static void a_hundred_megabytes_arrive_and_the_digests_agree(void **state)
{
    (void)state;
    const bt_wire_prefill prefill = {.nonce = 11, .epoch = 22, .position_end = 5};
    pair p = pair_open(NULL);
    uint8_t *data = malloc(BLOCK);
    blocks b = {.data = data};
    const bt_link_source source = {.context = &b, .next = next_block, .sealed = seal_block};
    bt_wire_tally *here;
    bt_wire_commit commit;
    bt_frame f;

    assert_ok(bt_random_bytes(data, BLOCK));
    assert_ok(bt_wire_tally_open(3, &prefill, &b.tally, &pair_err));
    assert_ok(bt_wire_tally_open(3, &prefill, &here, &pair_err));
    assert_ok(bt_link_set_source(p.a, &source, &pair_err));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
        assert_int_equal(f.type, BT_WIRE_ROWS);
        assert_int_equal(f.body[0], i);
        assert_memory_equal(f.body + 1, data + 1, BLOCK - 1);
        bt_wire_tally_put(here, f.type, f.size, f.hash);
    }
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_COMMIT);
    assert_ok(bt_wire_commit_decode(f.body, f.size, &commit, &pair_err));
    assert_ok(bt_wire_tally_check_commit(here, &commit, &pair_err));
    bt_link_stop(p.a, "done");
    bt_wire_tally_close(here);
    bt_wire_tally_close(b.tally);
    free(data);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pulled_frames_arrive_in_order),
        cmocka_unit_test(sealed_says_the_hash_that_arrives),
        cmocka_unit_test(a_source_is_asked_when_it_was_pulled_and_not_else),
        cmocka_unit_test(a_pull_while_the_source_is_asked_is_not_lost),
        cmocka_unit_test(a_source_is_asked_again_at_its_own_time),
        cmocka_unit_test(control_goes_before_what_is_not_yet_pulled),
        cmocka_unit_test(what_the_source_sends_itself_follows_what_it_gave),
        cmocka_unit_test(no_more_is_pulled_than_can_leave),
        cmocka_unit_test(after_stop_the_source_is_not_called),
        cmocka_unit_test(finish_sends_what_the_source_has),
        cmocka_unit_test(close_frees_a_writer_that_nobody_reads),
        cmocka_unit_test(a_hundred_megabytes_arrive_and_the_digests_agree),
    };
    return cmocka_run_group_tests_name("link/source", tests, NULL, NULL);
}
