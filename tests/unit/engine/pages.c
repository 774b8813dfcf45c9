/* When pages are short: the cache gives way, prompts wait, and an answer that loses its pages goes
 * on later as if nothing had been. */
#include <pthread.h>

#include "unit/engine/ask.h"

static void old_prefixes_give_way(void **state)
{
    fixture *f = *state;
    uint32_t tokens[700];
    static fake_result got;
    for (uint32_t i = 0; i < 12; i++) {
        fake_prompt(i, 700, tokens);
        const bt_request_options o = fake_request(tokens, 700, 20);
        fake_ask(f->engine, &o, &got);
        assert_answer(&o, &got);
    }
    const bt_engine_stats s = fake_stats_idle(f->engine);
    assert_true(s.kv_pages_used <= s.kv_pages);
    assert_int_equal(s.kv_pages, 1024 / BT_KV_PAGE_TOKENS + 4);
}

static void prompts_wait_until_there_are_pages(void **state)
{
    fixture *f = *state;
    enum { N = 4 };
    static uint32_t tokens[N][600];
    static fake_result got;
    bt_request_options o[N];
    bt_request *requests[N];
    for (uint32_t i = 0; i < N; i++) {                    /* 4 * 600 do not fit 1024 at once */
        fake_prompt(30 + i, 600, tokens[i]);
        o[i] = fake_request(tokens[i], 600, 30);
        requests[i] = fake_submit(f->engine, &o[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        fake_finish(requests[i], &got);
        assert_answer(&o[i], &got);
        bt_engine_request_release(requests[i]);
    }
}

/* ---- answers that lose their pages ---- */

enum { MANY = 8, PROMPT = 60, ANSWER = 150 };

typedef struct { bt_request *request; fake_result got; pthread_t thread; } reader;

static void *read_all(void *context)
{
    reader *r = context;
    fake_finish(r->request, &r->got);
    return NULL;
}

static void expect_undisturbed(const bt_request_options *o, const fake_result *got)
{
    assert_answer(o, got);
    assert_int_equal(got->finish, BT_FINISH_LENGTH);
    assert_int_equal(got->n, o->n_predict);
    assert_int_equal(got->n_begin, 1);
    assert_int_equal(got->stats.n_predicted, o->n_predict);
    assert_int_equal(got->stats.n_cached + got->stats.n_local, o->n_tokens);
}

/* A round of requests of which each fits alone, and two at most fit at once. */
static uint32_t ask_many(uint32_t seed, bool threads)
{
    bt_engine_options options = fake_options();
    options.n_parallel = MANY;
    options.n_ctx = 256;
    fixture *f = fake_open(&options);
    static uint32_t tokens[MANY][PROMPT];
    static reader readers[MANY];
    bt_request_options o[MANY];
    uint32_t n_preemptions = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        fake_prompt(1000 * seed + i, PROMPT, tokens[i]);
        o[i] = fake_request(tokens[i], PROMPT, ANSWER);
        o[i].no_cache = (seed + i) % 3 == 0;
        o[i].sampling.temperature = (seed + i) % 2 ? 0.9f : 0;
        o[i].sampling.seed = seed + i;
        readers[i].request = fake_submit(f->engine, &o[i]);
    }
    for (uint32_t i = 0; i < MANY && threads; i++) {
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_all, &readers[i]), 0);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        if (threads) {
            pthread_join(readers[i].thread, NULL);
        } else {
            read_all(&readers[i]);     /* meanwhile those after it fill their rings and pause */
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        expect_undisturbed(&o[i], &readers[i].got);
        n_preemptions += readers[i].got.stats.n_preemptions;
        bt_engine_request_release(readers[i].request);
    }
    const bt_engine_stats s = fake_stats_idle(f->engine);
    assert_int_equal(s.n_preemptions, n_preemptions);
    assert_int_equal(s.n_contexts_full, 0);
    assert_int_equal(s.kv_pages_used, s.kv_pages_cached);
    assert_true(n_preemptions == 0 || s.n_recomputed_tokens > 0);
    fake_close(f);
    return n_preemptions;
}

static void every_answer_is_whole_and_as_if_alone(void **state)
{
    (void)state;
    uint32_t n_preemptions = 0;
    for (uint32_t seed = 0; seed < 40; seed++) {
        n_preemptions += ask_many(seed, seed % 2 == 0);
    }
    assert_true(n_preemptions > 0);
}

/* Answers that fit their rings, so that no reader counts. */
static void the_oldest_keeps_its_pages(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_parallel = MANY;
    options.n_ctx = 128;
    fixture *f = fake_open(&options);
    static uint32_t tokens[MANY][30];
    static fake_result got;
    bt_request *requests[MANY];
    bt_request_options o[MANY];
    uint32_t n_preemptions = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        fake_prompt(300 + i, 30, tokens[i]);
        o[i] = fake_request(tokens[i], 30, 50);
        requests[i] = fake_submit(f->engine, &o[i]);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        fake_finish(requests[i], &got);
        expect_undisturbed(&o[i], &got);
        assert_true(i > 0 || got.stats.n_preemptions == 0);
        n_preemptions += got.stats.n_preemptions;
        bt_engine_request_release(requests[i]);
    }
    assert_true(n_preemptions > 0);
    fake_close(f);
}

/* Pages that a client holds who does not read go to those who do, older or not. */
static void a_reader_that_is_behind_holds_nobody_up(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_parallel = 2;
    options.n_ctx = 256;
    fixture *f = fake_open(&options);
    uint32_t a[PROMPT], b[PROMPT];
    static fake_result got;
    fake_prompt(400, PROMPT, a);
    fake_prompt(401, PROMPT, b);
    const bt_request_options slow = fake_request(a, PROMPT, 190), o = fake_request(b, PROMPT, 190);
    bt_request *behind = fake_submit(f->engine, &slow);
    for (int i = 0; i < 3; i++) {
        fake_ask(f->engine, &o, &got);
        expect_undisturbed(&o, &got);
    }
    fake_finish(behind, &got);
    expect_undisturbed(&slow, &got);
    assert_true(got.stats.n_preemptions > 0);
    bt_engine_request_release(behind);
    fake_close(f);
}

/* Step by step, until the youngest has lost its pages and waits. */
static void a_preempted_answer_can_be_cancelled(void **state)
{
    (void)state;
    enum { N = 4 };
    bt_engine_options options = fake_options();
    options.n_parallel = N;
    options.n_ctx = 96;
    fixture *f = fake_open(&options);
    static uint32_t tokens[N][30];
    static fake_result got;
    bt_request *requests[N];
    bt_request_stats s = { 0 };
    fake_gate_set(f, true);
    for (uint32_t i = 0; i < N; i++) {
        fake_prompt(402 + i, 30, tokens[i]);
        const bt_request_options o = fake_request(tokens[i], 30, 50);   /* fits the ring unread */
        requests[i] = fake_submit(f->engine, &o);
    }
    for (int i = 0; s.n_preemptions == 0; i++) {
        assert_true(i < 60);
        fake_gate_step(f);
        bt_engine_request_stats_get(requests[N - 1], &s);
    }
    bt_engine_request_cancel(requests[N - 1]);
    fake_gate_set(f, false);
    for (uint32_t i = 0; i < N; i++) {
        fake_finish(requests[i], &got);
        assert_int_equal(got.finish, i == N - 1 ? BT_FINISH_CANCELLED : BT_FINISH_LENGTH);
        bt_engine_request_release(requests[i]);
    }
    const bt_engine_stats stats = fake_stats_idle(f->engine);
    assert_int_equal(stats.kv_pages_used, stats.kv_pages_cached);
    fake_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_FAKE(old_prefixes_give_way),
        ON_FAKE(prompts_wait_until_there_are_pages),
        cmocka_unit_test(every_answer_is_whole_and_as_if_alone),
        cmocka_unit_test(the_oldest_keeps_its_pages),
        cmocka_unit_test(a_reader_that_is_behind_holds_nobody_up),
        cmocka_unit_test(a_preempted_answer_can_be_cancelled),
    };
    return cmocka_run_group_tests_name("engine/pages", tests, NULL, NULL);
}
