/* tests/unit/link/queue.c - bulk frames of the old kind, which wait in a queue. */
#include "pair.h"

#include <stdatomic.h>

/* ---- bulk sources ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            open;               /* fill may go on */
    int             inside;             /* fills that wait at the gate */
    int             filled, dropped, sealed;
} gate;

static void gate_init(gate *g, bool open)
{
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->open = open;
}

static void gate_open(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gate_await_inside(gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->inside == 0) {
        pthread_cond_wait(&g->changed, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

static int gate_get(gate *g, const int *what)
{
    pthread_mutex_lock(&g->lock);
    const int n = *what;
    pthread_mutex_unlock(&g->lock);
    return n;
}

typedef struct {
    gate   *g;
    uint8_t value;
} gated;

static void gated_fill(void *context, uint8_t *to, size_t size)
{
    const gated *c = context;
    pthread_mutex_lock(&c->g->lock);
    c->g->inside++;
    pthread_cond_broadcast(&c->g->changed);
    while (!c->g->open) {
        pthread_cond_wait(&c->g->changed, &c->g->lock);
    }
    c->g->inside--;
    c->g->filled++;
    pthread_mutex_unlock(&c->g->lock);
    memset(to, c->value, size);
}

static void gated_seal(void *context, uint64_t hash)
{
    const gated *c = context;
    (void)hash;
    pthread_mutex_lock(&c->g->lock);
    c->g->sealed++;
    pthread_mutex_unlock(&c->g->lock);
}

static void gated_drop(void *context)
{
    const gated *c = context;
    pthread_mutex_lock(&c->g->lock);
    c->g->dropped++;
    pthread_mutex_unlock(&c->g->lock);
}

static bt_bulk gated_bulk(gate *g, uint32_t stream, uint8_t value, uint32_t size)
{
    bt_bulk b = {.type = BT_WIRE_ROWS,
                 .stream = stream,
                 .size = size,
                 .fill = gated_fill,
                 .seal = gated_seal,
                 .drop = gated_drop};
    const gated c = {.g = g, .value = value};
    memcpy(b.context, &c, sizeof c);
    return b;
}

/* ---- order ---- */

/* Each bulk frame fills a batch by itself. While the first is being filled, two more and a control
 * frame are given: the control frame must come right behind the first. */
static void control_goes_before_bulk(void **state)
{
    (void)state;
    static const int expected[] = {1, -1, 2, 3};
    pair p = pair_open(NULL);
    gate g;
    gate_init(&g, false);

    for (uint8_t i = 1; i <= 3; i++) {
        const bt_bulk b = gated_bulk(&g, 5, i, 300 << 10);
        assert_ok(bt_link_send_bulk(p.a, &b, &pair_err));
        if (i == 1) {
            gate_await_inside(&g);
        }
    }
    assert_ok(bt_link_send(p.a, BT_WIRE_CANCELLED, 6, NULL, 0, &pair_err));
    gate_open(&g);
    for (size_t i = 0; i < BT_LEN(expected); i++) {
        bt_frame f;
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
        if (expected[i] < 0) {
            assert_int_equal(f.type, BT_WIRE_CANCELLED);
            assert_int_equal(f.stream, 6);
            assert_int_equal(f.size, 0);
        } else {
            assert_int_equal(f.type, BT_WIRE_ROWS);
            assert_int_equal(f.size, 300 << 10);
            assert_int_equal(f.body[0], expected[i]);
            assert_int_equal(f.body[f.size - 1], expected[i]);
        }
    }
    assert_int_equal(g.sealed, 3);
    pair_close(&p);
    assert_int_equal(g.filled, 3);
    assert_int_equal(g.dropped, 0);
}

/* ---- backpressure ---- */

typedef struct {
    bt_link  *link;
    bt_bulk   bulk;
    uint32_t  n;
    bt_status status;
    uint32_t  sent;
} sender;

static void *send_many(void *context)
{
    sender *s = context;
    for (uint32_t i = 0; i < s->n && s->status == BT_OK; i++) {
        s->status = bt_link_send_bulk(s->link, &s->bulk, NULL);
        s->sent += s->status == BT_OK;
    }
    return NULL;
}

static void a_peer_that_does_not_read_slows_the_sender(void **state)
{
    (void)state;
    const bt_link_options o = {.queue_bytes_max = 1 << 20, .buffer_bytes = 64 << 10};
    pair p = pair_open(&o);
    gate g;
    gate_init(&g, true);
    const bt_bulk b = gated_bulk(&g, 1, 9, 100000);
    bt_link_stats s;
    uint32_t n = 0;
    bt_status status;

    /* Accepts what the queue, a batch and the kernel hold, then no more. */
    const uint64_t end = bt_clock_ns() + 5000000000u;
    uint64_t full_since = 0;
    do {
        status = bt_link_send_bulk_try(p.a, &b, &pair_err);
        n += status == BT_OK;
        full_since = status == BT_OK ? 0 : full_since ? full_since : bt_clock_ns();
    } while (bt_clock_ns() < end && !(full_since && bt_clock_ns() - full_since > 300000000u));
    assert_int_equal(status, BT_E_FULL);
    bt_link_stats_get(p.a, &s);
    assert_true(s.bulk_queued_bytes <= o.queue_bytes_max);
    assert_in_range(n, 10, 60);                 /* 1 MiB + 1.25 MiB + some kernel buffers */

    /* A blocked sender goes on as soon as somebody reads. */
    sender more = {.link = p.a, .bulk = b, .n = 40};
    pthread_t thread;
    pthread_create(&thread, NULL, send_many, &more);
    for (uint32_t i = 0; i < n + 40; i++) {
        bt_frame f;
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
        assert_int_equal(f.size, 100000);
    }
    pthread_join(thread, NULL);
    assert_int_equal(more.status, BT_OK);
    pair_close(&p);
    assert_int_equal(g.filled, n + 40);
}

static void a_frame_larger_than_the_queue_may_wait_alone(void **state)
{
    (void)state;
    const bt_link_options o = {.queue_bytes_max = 1000};
    pair p = pair_open(&o);
    gate g;
    gate_init(&g, true);
    const bt_bulk b = gated_bulk(&g, 1, 3, BT_WIRE_BODY_BYTES_MAX);
    bt_frame f;

    assert_ok(bt_link_send_bulk(p.a, &b, &pair_err));
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.size, BT_WIRE_BODY_BYTES_MAX);
    pair_close(&p);
}

/* ---- dropping ---- */

static void a_dropped_stream_is_forgotten_and_others_stay(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    gate g, other;
    gate_init(&g, false);
    gate_init(&other, true);
    bt_frame f;

    for (uint8_t i = 0; i < 4; i++) {
        const bt_bulk mine = gated_bulk(&g, 1, i, 300 << 10);
        const bt_bulk theirs = gated_bulk(&other, 2, (uint8_t)(100 + i), 1000);
        assert_ok(bt_link_send_bulk(p.a, &mine, &pair_err));
        if (i == 0) {
            gate_await_inside(&g);
        }
        assert_ok(bt_link_send_bulk(p.a, &theirs, &pair_err));
    }
    gate_open(&g);
    bt_link_drop_stream(p.a, 1);
    const int filled = gate_get(&g, &g.filled), dropped = gate_get(&g, &g.dropped);
    assert_int_equal(filled + dropped, 4);
    assert_int_equal(gate_get(&g, &g.inside), 0);
    for (int i = 0, theirs = 0; theirs < 4; i++) {
        assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
        if (f.stream == 2) {
            assert_int_equal(f.body[0], 100 + theirs++);
        }
    }
    assert_int_equal(gate_get(&g, &g.filled), filled);
    assert_int_equal(gate_get(&g, &g.dropped), dropped);
    pair_close(&p);
}

static atomic_bool drop_returned;

static void *drop_one(void *link)
{
    bt_link_drop_stream(link, 1);
    atomic_store(&drop_returned, true);
    return NULL;
}

static void dropping_waits_for_a_fill_that_runs(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    gate g;
    gate_init(&g, false);
    const bt_bulk b = gated_bulk(&g, 1, 1, 10);
    pthread_t thread;

    atomic_store(&drop_returned, false);
    assert_ok(bt_link_send_bulk(p.a, &b, &pair_err));
    gate_await_inside(&g);
    pthread_create(&thread, NULL, drop_one, p.a);
    bt_clock_sleep_ms(50);
    assert_false(atomic_load(&drop_returned));
    gate_open(&g);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&drop_returned));
    assert_int_equal(g.filled, 1);
    pair_close(&p);
}

/* While the first of them is dropped, the writer is let go on, and has time for more. */
static void opening_drop(void *context)
{
    const gated *c = context;
    gated_drop(context);
    gate_open(c->g);
    bt_clock_sleep_ms(50);
}

static void nothing_of_a_stream_leaves_while_it_is_dropped(void **state)
{
    (void)state;
    pair p = pair_open(NULL);
    gate g;
    bt_frame f;
    gate_init(&g, false);
    for (uint8_t i = 0; i < 5; i++) {
        bt_bulk b = gated_bulk(&g, 1, i, 1000);
        b.drop = opening_drop;
        assert_ok(bt_link_send_bulk(p.a, &b, &pair_err));
    }
    gate_await_inside(&g);
    bt_link_drop_stream(p.a, 1);
    assert_int_equal(gate_get(&g, &g.filled), 1);
    assert_int_equal(gate_get(&g, &g.dropped), 4);
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.body[0], 0);
    assert_int_equal(bt_link_receive(p.b, within(50), &f, &pair_err), BT_E_AGAIN);
    pair_close(&p);
}

static void dropping_wakes_a_sender_of_the_stream(void **state)
{
    (void)state;
    const bt_link_options o = {.queue_bytes_max = 1000};
    pair p = pair_open(&o);
    gate g;
    gate_init(&g, false);
    sender s = {.link = p.a, .bulk = gated_bulk(&g, 1, 1, 900), .n = 10};
    pthread_t thread;

    pthread_create(&thread, NULL, send_many, &s);
    gate_await_inside(&g);                      /* one is filled, one waits, the third blocks */
    bt_clock_sleep_ms(50);
    pthread_t dropper;
    pthread_create(&dropper, NULL, drop_one, p.a);
    pthread_join(thread, NULL);
    assert_int_equal(s.status, BT_E_CANCELLED);
    gate_open(&g);
    pthread_join(dropper, NULL);
    pair_close(&p);
    assert_int_equal(g.filled + g.dropped, s.sent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_goes_before_bulk),
        cmocka_unit_test(a_peer_that_does_not_read_slows_the_sender),
        cmocka_unit_test(a_frame_larger_than_the_queue_may_wait_alone),
        cmocka_unit_test(a_dropped_stream_is_forgotten_and_others_stay),
        cmocka_unit_test(dropping_waits_for_a_fill_that_runs),
        cmocka_unit_test(nothing_of_a_stream_leaves_while_it_is_dropped),
        cmocka_unit_test(dropping_wakes_a_sender_of_the_stream),
    };
    return cmocka_run_group_tests_name("link/queue", tests, NULL, NULL);
}
