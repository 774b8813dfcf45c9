/* tests/unit/link/tls.c - with a key: the same promises, and nobody else's. */
#include "key_files.h"

static void an_encrypted_frame_arrives(void **state)
{
    (void)state;
    pair p = pair_open(&with_key);
    bt_link_stats s;
    bt_frame f;

    assert_ok(bt_link_send(p.b, BT_WIRE_WELCOME, 0, "hello", 5, &pair_err));
    assert_ok(bt_link_receive(p.a, within(20000), &f, &pair_err));
    assert_int_equal(f.size, 5);
    assert_memory_equal(f.body, "hello", 5);
    bt_link_stats_get(p.a, &s);
    assert_true(s.encrypted && s.alive);
    pair_close(&p);
}

/* ---- those without the key ---- */

typedef struct {
    bt_listener *listener;
    bt_status    status;
    bt_error     err;
} door;

static void *answer_door(void *context)
{
    door *d = context;
    bt_link *link;
    bt_frame f;
    d->status = bt_link_listener_accept(d->listener, within(20000), &link, &d->err);
    if (d->status == BT_OK) {
        d->status = bt_link_receive(link, within(20000), &f, &d->err);
        bt_link_destroy(link);
    }
    return NULL;
}

/* The caller's status comes back, its sentence is in pair_err, the door's in *d. */
static bt_status knock(const bt_link_options *inside, const bt_link_options *outside, door *d)
{
    pthread_t thread;
    bt_link *link = NULL;
    bt_frame f;

    memset(d, 0, sizeof *d);
    assert_ok(bt_link_listener_open("127.0.0.1:0", inside, &d->listener, &pair_err));
    pthread_create(&thread, NULL, answer_door, d);
    bt_status status =
            bt_link_connect(bt_link_listener_address(d->listener), outside, &link, &pair_err);
    if (status == BT_OK) {
        status = bt_link_send(link, BT_WIRE_HELLO, 0, "", 0, &pair_err);
    }
    if (status == BT_OK) {
        status = bt_link_receive(link, within(20000), &f, &pair_err);
    }
    pthread_join(thread, NULL);
    bt_link_destroy(link);
    bt_link_listener_close(d->listener);
    return status;
}

static void a_wrong_key_is_said_on_both_sides(void **state)
{
    (void)state;
    door d;
    assert_int_equal(knock(&with_key, &with_other_key, &d), BT_E_AUTH);
    assert_says(pair_err.text, "keys differ");
    assert_int_equal(d.status, BT_E_AUTH);
    assert_says(d.err.text, "keys differ");
}

static void a_key_on_one_side_only_is_said(void **state)
{
    (void)state;
    const bt_link_options plain = {.heartbeat_ms = 5000, .handshake_timeout_ms = 30000};
    door d;

    assert_int_equal(knock(&with_key, &plain, &d), BT_E_AUTH);
    assert_says(pair_err.text, "--key-file");
    assert_int_equal(d.status, BT_E_AUTH);
    assert_says(d.err.text, "does not encrypt");

    assert_int_equal(knock(&plain, &with_key, &d), BT_E_AUTH);
    assert_says(pair_err.text, "--key-file");
    assert_int_equal(d.status, BT_E_AUTH);
    assert_says(d.err.text, "has a key, and this side has none");
}

static void with_a_key_any_network_may_be_listened_on(void **state)
{
    (void)state;
    bt_listener *l;
    assert_ok(bt_link_listener_open("0.0.0.0:0", &with_key, &l, &pair_err));
    bt_link_listener_close(l);
}

static void a_silent_stranger_does_not_stay(void **state)
{
    (void)state;
    bt_link_options o = with_key;
    bt_listener *l;
    bt_link *link;
    bt_frame f;

    o.handshake_timeout_ms = 300;
    assert_ok(bt_link_listener_open("127.0.0.1:0", &o, &l, &pair_err));
    const int fd = raw_connect(bt_link_listener_address(l));
    assert_ok(bt_link_listener_accept(l, within(20000), &link, &pair_err));
    const double before = bt_clock_ms();
    assert_int_equal(bt_link_receive(link, within(20000), &f, &pair_err), BT_E_TIMEOUT);
    assert_true(bt_clock_ms() - before < 5000);
    bt_link_destroy(link);
    close(fd);

    /* And one that begins a TLS record and never ends it. */
    const int other = raw_connect(bt_link_listener_address(l));
    assert_ok(bt_link_listener_accept(l, within(20000), &link, &pair_err));
    bt_status status = BT_E_AGAIN;
    static const uint8_t record[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3};
    for (size_t i = 0; i < 100 && status == BT_E_AGAIN; i++) {
        const uint8_t byte = i < sizeof record ? record[i] : 0;
        assert_int_equal(send(other, &byte, 1, MSG_NOSIGNAL), 1);
        status = bt_link_receive(link, within(10), &f, &pair_err);
    }
    assert_int_equal(status, BT_E_TIMEOUT);
    bt_link_destroy(link);
    close(other);
    bt_link_listener_close(l);
}

static void a_silent_server_is_lost(void **state)
{
    (void)state;
    bt_link_options o = with_key;
    char address[32];
    bt_link *link;
    const int fd = raw_listen(2, address);

    o.heartbeat_ms = 50;
    assert_int_equal(bt_link_connect(address, &o, &link, &pair_err), BT_E_LOST);
    assert_says(pair_err.text, "silent for");
    close(fd);
}

/* ---- damage on the way: somebody in the middle flips one byte ---- */

enum { FRAMES = 50, FRAME_BYTES = 100 };

typedef struct {
    int    from, to;
    size_t flip_at;                     /* SIZE_MAX: none */
} wire;

static void *carry(void *context)
{
    const wire *w = context;
    uint8_t bytes[4096];
    size_t total = 0;
    ssize_t n;
    while ((n = recv(w->from, bytes, sizeof bytes, 0)) > 0) {
        if (w->flip_at >= total && w->flip_at < total + (size_t)n) {
            bytes[w->flip_at - total] ^= 1;
        }
        total += (size_t)n;
        ssize_t sent = 1;
        for (ssize_t at = 0; at < n && sent > 0; at += sent) {
            sent = send(w->to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
        }
    }
    shutdown(w->to, SHUT_WR);
    return NULL;
}

typedef struct {
    int         listening;
    const char *back;
    size_t      flip_at;
} middle;

static void *stand_in_the_middle(void *context)
{
    const middle *m = context;
    pthread_t up_thread;
    const int front = accept(m->listening, NULL, NULL), back = raw_connect(m->back);
    wire up = {front, back, m->flip_at}, down = {back, front, SIZE_MAX};

    pthread_create(&up_thread, NULL, carry, &up);
    carry(&down);
    pthread_join(up_thread, NULL);
    close(front);
    close(back);
    return NULL;
}

typedef struct {
    bt_listener *listener;
    int          n_good;
    bt_status    status;
    bt_error     err;
} counter;

static void *count_frames(void *context)
{
    counter *c = context;
    bt_link *link;
    bt_frame f;
    c->status = bt_link_listener_accept(c->listener, within(20000), &link, NULL);
    while (c->status == BT_OK && c->n_good < FRAMES) {
        c->status = bt_link_receive(link, within(20000), &f, &c->err);
        if (c->status == BT_OK) {
            assert_int_equal(f.size, FRAME_BYTES);
            assert_int_equal(f.body[FRAME_BYTES - 1], c->n_good);
            c->n_good++;
        }
    }
    bt_link_destroy(link);
    return NULL;
}

static counter through_the_middle(size_t flip_at)
{
    char address[32];
    counter c = {0};
    pthread_t counting, carrying;
    bt_link *link = NULL;
    uint8_t body[FRAME_BYTES] = {0};

    assert_ok(bt_link_listener_open("127.0.0.1:0", &with_key, &c.listener, &pair_err));
    middle m = {raw_listen(2, address), bt_link_listener_address(c.listener), flip_at};
    pthread_create(&counting, NULL, count_frames, &c);
    pthread_create(&carrying, NULL, stand_in_the_middle, &m);
    if (bt_link_connect(address, &with_key, &link, &pair_err) == BT_OK) {
        for (int i = 0; i < FRAMES; i++) {
            body[FRAME_BYTES - 1] = (uint8_t)i;
            if (bt_link_send(link, BT_WIRE_HELLO, 0, body, sizeof body, &pair_err) != BT_OK) {
                break;
            }
        }
    }
    pthread_join(counting, NULL);
    bt_link_destroy(link);
    pthread_join(carrying, NULL);
    bt_link_listener_close(c.listener);
    close(m.listening);
    return c;
}

static void a_flipped_byte_is_noticed_anywhere(void **state)
{
    (void)state;
    const counter whole = through_the_middle(SIZE_MAX);
    assert_int_equal(whole.status, BT_OK);
    assert_int_equal(whole.n_good, FRAMES);
    /* The greeting and the client's Finished take about 500 bytes, the frames 6,600 and more. */
    for (size_t at = 5; at < 6000; at += at < 600 ? 23 : 977) {
        const counter c = through_the_middle(at);
        /* TIMEOUT: the size of a record grew, and no so many bytes came. */
        if (c.status != BT_E_PROTOCOL && c.status != BT_E_TIMEOUT &&
            !(at < 600 && (c.status == BT_E_AUTH || c.status == BT_E_LOST))) {
            fail_msg("byte %zu: %s after %d good frames: %s", at, bt_status_name(c.status),
                     c.n_good, c.err.text);
        }
        assert_true(c.n_good < FRAMES);
    }
}

/* ---- much, both ways at once, past several changes of keys ---- */

enum { BLOCK = 1 << 20, BLOCKS = 150 };

static void number_fill(void *context, uint8_t *to, size_t size)
{
    uint64_t x;
    memcpy(&x, context, sizeof x);
    for (size_t i = 0; i + 8 <= size; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(to + i, &x, 8);
    }
}

typedef struct {
    bt_link  *link;
    bt_status status;
} end;

/* The writer pulls blocks; whoever waits for them is the reader there. */
typedef struct {
    uint64_t n_sent;
} blocks;

static bool next_block(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    blocks *b = context;
    if (b->n_sent == BLOCKS) {
        return false;
    }
    assert_true(capacity >= BLOCK);
    number_fill(&b->n_sent, body, BLOCK);
    b->n_sent++;
    *ret = (bt_link_out){.type = BT_WIRE_ROWS, .stream = 1, .size = BLOCK, .again_ns = UINT64_MAX};
    return true;
}

static void *receive_blocks(void *context)
{
    end *e = context;
    uint8_t *want = malloc(BLOCK);
    bt_frame f;
    for (uint64_t i = 0; i < BLOCKS && e->status == BT_OK; i++) {
        e->status = bt_link_receive(e->link, within(60000), &f, NULL);
        if (e->status == BT_OK) {
            number_fill(&i, want, BLOCK);
            if (f.size != BLOCK || memcmp(f.body, want, BLOCK) != 0) {
                e->status = BT_E_PROTOCOL;
            }
        }
    }
    free(want);
    return NULL;
}

static void much_arrives_both_ways(void **state)
{
    (void)state;
    pair p = pair_open(&with_key);
    end ends[2] = {{.link = p.a}, {.link = p.b}};
    blocks sent[2] = {{0}, {0}};
    pthread_t threads[2];

    for (int i = 0; i < 2; i++) {
        const bt_link_source source = {.context = &sent[i], .next = next_block};
        assert_ok(bt_link_set_source(ends[i].link, &source, &pair_err));
        pthread_create(&threads[i], NULL, receive_blocks, &ends[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        if (ends[i].status != BT_OK) {
            bt_frame f;
            const bt_status why = bt_link_receive(ends[i].link, 0, &f, &pair_err);
            fail_msg("%d: %s, %s: %s", i, bt_status_name(ends[i].status), bt_status_name(why),
                     pair_err.text);
        }
    }
    pair_close(&p);
}

/* ---- ends ---- */

static void *finish_b(void *link)
{
    bt_link_finish(link, 20000, "refused");
    return NULL;
}

static void finish_delivers_the_last_word(void **state)
{
    (void)state;
    pair p = pair_open(&with_key);
    pthread_t thread;
    bt_frame f;

    for (int i = 0; i < 100; i++) {
        assert_ok(bt_link_send(p.a, BT_WIRE_TOKENS, 1, &(uint8_t[1000]){0}, 1000, &pair_err));
    }
    assert_ok(bt_link_send(p.b, BT_WIRE_REJECT, 0, "no", 2, &pair_err));
    pthread_create(&thread, NULL, finish_b, p.b);
    assert_ok(bt_link_receive(p.a, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_REJECT);
    assert_int_equal(bt_link_receive(p.a, within(20000), &f, &pair_err), BT_E_LOST);
    assert_says(pair_err.text, "closed the connection");
    pthread_join(thread, NULL);
    pair_close(&p);
}

/* Nobody reads, so the writer waits for the socket. */
static void stop_ends_a_blocked_writer(void **state)
{
    (void)state;
    bt_link_options o = with_key;
    o.buffer_bytes = 64 << 10;
    pair p = pair_open(&o);
    blocks sent = {0};
    const bt_link_source source = {.context = &sent, .next = next_block};

    assert_ok(bt_link_set_source(p.a, &source, &pair_err));
    bt_link_stop(p.a, "over");          /* returns when the writer has ended */
    assert_true(sent.n_sent < BLOCKS);
    pair_close(&p);
}

static void no_memory_is_said_and_survived(void **state)
{
    (void)state;
    int failed = 0;
    for (uint64_t n = 1; n < 20; n++) {
        bt_listener *listener = NULL;
        bt_link *a = NULL, *b = NULL;
        bt_memory_fail_after(n);
        bt_status status = bt_link_listener_open("127.0.0.1:0", &with_key, &listener, NULL);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            const int fd = raw_connect(bt_link_listener_address(listener));
            bt_memory_fail_after(n);
            status = bt_link_listener_accept(listener, within(20000), &b, NULL);
            bt_memory_fail_after(0);
            close(fd);
        }
        if (status != BT_OK) {
            assert_int_equal(status, BT_E_NOMEM);
            failed++;
        }
        bt_link_destroy(a);
        bt_link_destroy(b);
        bt_link_listener_close(listener);
    }
    assert_true(failed >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_encrypted_frame_arrives),
        cmocka_unit_test(a_wrong_key_is_said_on_both_sides),
        cmocka_unit_test(a_key_on_one_side_only_is_said),
        cmocka_unit_test(with_a_key_any_network_may_be_listened_on),
        cmocka_unit_test(a_silent_stranger_does_not_stay),
        cmocka_unit_test(a_silent_server_is_lost),
        cmocka_unit_test(a_flipped_byte_is_noticed_anywhere),
        cmocka_unit_test(much_arrives_both_ways),
        cmocka_unit_test(finish_delivers_the_last_word),
        cmocka_unit_test(stop_ends_a_blocked_writer),
        cmocka_unit_test(no_memory_is_said_and_survived),
    };
    return cmocka_run_group_tests_name("link/tls", tests, set_up, tear_down);
}
