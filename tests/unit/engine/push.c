/* The push door of engine/engine.h: rows told of as they are computed, exported until release. */
#include <pthread.h>

#include "unit/engine/ask.h"

enum { LENGTH = 150, PUSHES_MAX = 8 };

/* What a push heard; checks the order that engine.h promises. */
typedef struct {
    pthread_mutex_t lock;
    uint32_t ready[FAKE_LAYERS];       /* rows below it were told */
    uint32_t complete;
    uint32_t first;                    /* position of the first layer_done */
    bool     started;
    uint32_t n_chunks;
    uint32_t ends[LENGTH];             /* [n_chunks] as chunk_done told them */
} listener;

static void layer_done(void *context, uint32_t layer, uint32_t position, uint32_t n)
{
    listener *l = context;
    pthread_mutex_lock(&l->lock);
    if (!l->started) {
        l->started = true;
        l->first = position;
        assert_int_equal(l->complete, position);          /* cached rows were told before */
        for (int i = 0; i < FAKE_LAYERS; i++) {
            l->ready[i] = position;
        }
    }
    assert_int_equal(l->ready[layer], position);
    assert_true(layer == 0 || l->ready[layer - 1] == position + n);
    l->ready[layer] = position + n;
    pthread_mutex_unlock(&l->lock);
}

static void chunk_done(void *context, uint32_t position_end)
{
    listener *l = context;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; l->started && i < FAKE_LAYERS; i++) {
        assert_int_equal(l->ready[i], position_end);
    }
    assert_true(position_end > l->complete);
    l->complete = position_end;
    l->ends[l->n_chunks++] = position_end;
    pthread_mutex_unlock(&l->lock);
}

static bt_request *push_cut(bt_engine *e, const uint32_t *tokens, uint32_t n, listener *l,
                            const uint32_t *cuts, uint32_t n_cuts)
{
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    const bt_push p = { .context = l, .layer_done = layer_done, .chunk_done = chunk_done };
    bt_request_options o = fake_request(tokens, n, 0);
    o.prefill_only = true;
    o.push = &p;
    o.cuts = cuts;
    o.n_cuts = n_cuts;
    return fake_submit(e, &o);
}

static bt_request *push(bt_engine *e, const uint32_t *tokens, uint32_t n, listener *l)
{
    return push_cut(e, tokens, n, l, NULL, 0);
}

static void assert_rows(const bt_request *r, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
        uint64_t k[LENGTH], v[LENGTH], want_k[LENGTH], want_v[LENGTH];
        if (layer != FAKE_BARE_LAYER) {
            fake_rows_of(tokens, layer, 0, n, want_k, want_v);
            bt_engine_request_export_rows(r, layer, 0, n, k, v);
            assert_memory_equal(k, want_k, n * sizeof *k);
            assert_memory_equal(v, want_v, n * sizeof *v);
        }
    }
}

static fixture *open_worker(uint32_t n_ctx)
{
    bt_engine_options o = fake_options();
    o.push = true;
    o.n_ctx = n_ctx;
    return fake_open(&o);
}

static void rows_are_told_layer_by_layer_and_exported(void **state)
{
    (void)state;
    fixture *f = open_worker(1024);
    const uint32_t lengths[] = { 1, 2, 31, 32, 33, 64, 65, LENGTH };
    for (size_t i = 0; i < BT_LEN(lengths); i++) {
        uint32_t tokens[LENGTH];
        fake_prompt((uint32_t)i, lengths[i], tokens);
        listener l;
        bt_request *r = push(f->engine, tokens, lengths[i], &l);
        fake_result got;
        fake_finish(r, &got);
        assert_int_equal(got.finish, BT_FINISH_LENGTH);
        assert_int_equal(l.complete, lengths[i]);
        assert_int_equal(l.first, 0);
        assert_int_equal(l.n_chunks, (lengths[i] + 63) / 64);
        assert_rows(r, tokens, lengths[i]);               /* END, and not released */
        bt_engine_request_release(r);
    }
    fake_close(f);
}

/* Steps have 64 tokens at most; cuts behind the prompt or inside what is cached say nothing. */
static void steps_end_at_cuts(void **state)
{
    (void)state;
    fixture *f = open_worker(1024);
    const uint32_t cuts[] = { 10, 80, 140, 144, 999 };
    const uint32_t ends[] = { 10, 74, 80, 140, 144, LENGTH }, again[] = { 100, 140, 144, LENGTH };
    uint32_t tokens[LENGTH];
    fake_prompt(41, LENGTH, tokens);
    listener l;
    fake_result got;
    bt_request *r = push_cut(f->engine, tokens, LENGTH, &l, cuts, 5);
    fake_finish(r, &got);
    assert_int_equal(l.n_chunks, BT_LEN(ends));
    assert_memory_equal(l.ends, ends, sizeof ends);
    assert_rows(r, tokens, LENGTH);
    bt_engine_request_release(r);

    fake_prompt(42, LENGTH, tokens);
    r = push(f->engine, tokens, 100, &l);
    fake_finish(r, &got);
    bt_engine_request_release(r);
    r = push_cut(f->engine, tokens, LENGTH, &l, cuts, 5);
    fake_finish(r, &got);
    assert_int_equal(l.n_chunks, BT_LEN(again));
    assert_memory_equal(l.ends, again, sizeof again);
    bt_engine_request_release(r);

    bt_error err;
    uint32_t many[BT_CUTS_MAX + 1] = { 0 };
    bt_request_options o = fake_request(tokens, LENGTH, 0);
    o.cuts = many;
    o.n_cuts = BT_CUTS_MAX + 1;
    assert_int_equal(bt_engine_submit(f->engine, &o, &r, &err), BT_E_BADINPUT);
    fake_close(f);
}

static void cached_rows_are_told_first(void **state)
{
    (void)state;
    fixture *f = open_worker(1024);
    uint32_t tokens[LENGTH];
    fake_prompt(40, LENGTH, tokens);
    const struct { uint32_t n, cached; } turns[] = { { 100, 0 }, { LENGTH, 100 }, { 80, 80 } };
    for (size_t i = 0; i < BT_LEN(turns); i++) {
        listener l;
        bt_request *r = push(f->engine, tokens, turns[i].n, &l);
        fake_result got;
        fake_finish(r, &got);
        assert_int_equal(got.stats.n_cached, turns[i].cached);
        assert_int_equal(l.complete, turns[i].n);
        assert_int_equal(l.started, turns[i].cached < turns[i].n);
        assert_int_equal(l.first, l.started ? turns[i].cached : 0);
        assert_rows(r, tokens, turns[i].n);
        bt_engine_request_release(r);
    }
    fake_close(f);
}

static void several_prompts_push_from_one_step(void **state)
{
    (void)state;
    fixture *f = open_worker(1024);
    static uint32_t tokens[4][LENGTH];
    static listener l[4];
    bt_request *r[4];
    fake_result got;
    atomic_store(&f->device.us_per_step, 2000);
    for (uint32_t i = 0; i < 4; i++) {
        fake_prompt(50 + i, LENGTH, tokens[i]);
        r[i] = push(f->engine, tokens[i], LENGTH - i, &l[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        fake_finish(r[i], &got);
        assert_int_equal(l[i].complete, LENGTH - i);
        assert_rows(r[i], tokens[i], LENGTH - i);
    }
    assert_true(atomic_load(&f->device.sequences_most) >= 2);
    for (uint32_t i = 0; i < 4; i++) {
        bt_engine_request_release(r[i]);
    }
    fake_close(f);
}

/* Pages of a push stay its own until release, END or cancel: others wait for them. */
static void pages_stay_until_release(void **state)
{
    (void)state;
    fixture *f = open_worker(256);
    uint32_t a[LENGTH], b[240];
    listener l, m;
    fake_result got;
    fake_prompt(60, LENGTH, a);
    fake_prompt(61, 240, b);
    bt_request *first = push(f->engine, a, LENGTH, &l);
    fake_finish(first, &got);
    bt_request *second = push(f->engine, b, 240, &m);     /* 5 + 8 pages of 12 */
    bt_event event;
    assert_int_equal(bt_engine_request_wait(second, 100, &event), BT_E_AGAIN);
    assert_rows(first, a, LENGTH);
    bt_engine_request_release(first);
    fake_finish(second, &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    bt_engine_request_release(second);
    fake_close(f);
}

static void a_cancelled_push_keeps_its_rows_too(void **state)
{
    (void)state;
    fixture *f = open_worker(1024);
    uint32_t tokens[LENGTH];
    listener l;
    fake_result got;
    fake_prompt(62, LENGTH, tokens);
    atomic_store(&f->device.us_per_step, 20000);
    bt_request *r = push(f->engine, tokens, LENGTH, &l);
    fake_wait_for(r, BT_EVENT_PROGRESS);
    bt_engine_request_cancel(r);
    fake_finish(r, &got);
    assert_int_equal(got.finish, BT_FINISH_CANCELLED);
    assert_true(l.complete >= 64 && l.complete < LENGTH);
    assert_rows(r, tokens, l.complete);
    bt_engine_request_release(r);
    fake_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_told_layer_by_layer_and_exported),
        cmocka_unit_test(steps_end_at_cuts),
        cmocka_unit_test(cached_rows_are_told_first),
        cmocka_unit_test(several_prompts_push_from_one_step),
        cmocka_unit_test(pages_stay_until_release),
        cmocka_unit_test(a_cancelled_push_keeps_its_rows_too),
    };
    return cmocka_run_group_tests_name("engine/push", tests, NULL, NULL);
}
