/* engine/engine.h: requests in, tokens out, on a model whose right answers are known. */
#include "unit/engine/ask.h"

/* ---- answers ---- */

static void a_prompt_is_continued(void **state)
{
    fixture *f = *state;
    uint32_t prompt[10];
    fake_prompt(1, 10, prompt);
    const bt_request_options o = fake_request(prompt, 10, 24);
    fake_result got;
    fake_ask(f->engine, &o, &got);
    assert_answer(&o, &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    assert_int_equal(got.n_begin, 1);
    assert_int_equal(got.stats.n_prompt, 10);
    assert_int_equal(got.stats.n_predicted, 24);
    assert_int_equal(got.stats.n_local, 10);
    assert_true(got.stats.prompt_ms > 0 && got.stats.predicted_ms > 0);
    assert_true(got.stats.first_token_ms >= got.stats.prompt_ms);
}

static void every_prompt_length_and_chunk_gives_the_same(void **state)
{
    (void)state;
    const uint32_t chunks[] = { 1, 5, 16, 32, 33, 256 };
    const uint32_t lengths[] = { 1, 2, 31, 32, 33, 64, 65, 200 };
    for (size_t c = 0; c < BT_LEN(chunks); c++) {
        bt_engine_options options = fake_options();
        options.n_prefill_chunk = chunks[c];
        fixture *f = fake_open(&options);
        for (size_t i = 0; i < BT_LEN(lengths); i++) {
            uint32_t prompt[200];
            fake_prompt((uint32_t)i + 7, lengths[i], prompt);
            bt_request_options o = fake_request(prompt, lengths[i], 40);
            o.no_cache = c % 2;
            o.n_prefill_chunk = i % 3 == 0 ? 3 : 0;
            fake_result got;
            fake_ask(f->engine, &o, &got);
            assert_answer(&o, &got);
        }
        fake_close(f);
    }
}

static void seeded_draws_equal_the_sampler_alone(void **state)
{
    fixture *f = *state;
    for (uint32_t seed = 1; seed < 20; seed++) {
        uint32_t prompt[50];
        fake_prompt(seed, 50, prompt);
        bt_request_options o = fake_request(prompt, 50, 60);
        o.sampling = bt_sample_defaults();
        o.sampling.seed = seed;
        o.sampling.temperature = 1.2f;
        o.sampling.penalty_repeat = 1.2f;
        o.sampling.penalty_presence = 0.3f;
        o.ignore_eog = seed % 2;
        bt_request *r = fake_submit(f->engine, &o);
        assert_int_equal(bt_engine_request_seed(r), seed);
        fake_result got;
        fake_finish(r, &got);
        bt_engine_request_release(r);
        assert_answer(&o, &got);
        assert_int_equal(got.finish, got.n < 60 ? BT_FINISH_EOG : BT_FINISH_LENGTH);
    }
}

/* The promise: what else runs never shows in the tokens. */
static void company_does_not_change_an_answer(void **state)
{
    fixture *f = *state;
    enum { N = 12 };
    static uint32_t prompts[N][300];
    static fake_result got;
    bt_request *requests[N];
    bt_request_options options[N];
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t n = 3 + (i * 71 + round * 13) % 290;
            fake_prompt(100 + i % 5, n, prompts[i]);         /* many begin alike */
            options[i] = fake_request(prompts[i], n, 30 + i);
            options[i].sampling.temperature = i % 2 ? 0.9f : 0;
            options[i].sampling.seed = i + 1;
            options[i].no_cache = i % 7 == 3;
            options[i].n_prefill_chunk = i % 4 == 1 ? 7 : 0;
            requests[i] = fake_submit(f->engine, &options[i]);
        }
        for (uint32_t i = 0; i < N; i++) {
            fake_finish(requests[i], &got);
            bt_engine_request_release(requests[i]);
            assert_answer(&options[i], &got);
        }
    }
    assert_true(atomic_load(&f->device.sequences_most) > 1);
}

/* ---- the prefix cache ---- */

static void a_second_turn_is_cached_to_the_last_token(void **state)
{
    fixture *f = *state;
    uint32_t tokens[400];
    fake_prompt(3, 100, tokens);
    bt_request_options o = fake_request(tokens, 100, 20);
    fake_result got;
    fake_ask(f->engine, &o, &got);
    memcpy(tokens + 100, got.tokens, 20 * sizeof *tokens);
    fake_prompt(4, 30, tokens + 120);
    o = fake_request(tokens, 150, 20);
    fake_ask(f->engine, &o, &got);
    assert_answer(&o, &got);
    /* The last token of the first answer was drawn but never evaluated. */
    assert_int_equal(got.stats.n_cached, 119);
    assert_int_equal(got.stats.n_cached, 119);
    assert_int_equal(got.stats.n_local, 31);
}

static void the_same_prompt_again_evaluates_one_token(void **state)
{
    fixture *f = *state;
    uint32_t tokens[96];
    fake_prompt(5, 96, tokens);
    const bt_request_options o = fake_request(tokens, 96, 5);
    fake_result got;
    fake_ask(f->engine, &o, &got);
    fake_ask(f->engine, &o, &got);
    assert_answer(&o, &got);
    assert_int_equal(got.stats.n_cached, 95);
}

static void no_cache_neither_uses_nor_fills(void **state)
{
    fixture *f = *state;
    uint32_t tokens[96];
    fake_prompt(6, 96, tokens);
    bt_request_options o = fake_request(tokens, 96, 5);
    o.no_cache = true;
    fake_result got;
    fake_ask(f->engine, &o, &got);
    o.no_cache = false;
    fake_ask(f->engine, &o, &got);
    assert_int_equal(got.stats.n_cached, 0);
    o.no_cache = true;
    fake_ask(f->engine, &o, &got);
    assert_int_equal(got.stats.n_cached, 0);
}

static void keys_keep_caches_apart(void **state)
{
    fixture *f = *state;
    uint32_t tokens[96];
    fake_prompt(26, 96, tokens);
    bt_request_options o = fake_request(tokens, 96, 5);
    fake_result got;
    for (uint64_t round = 0; round < 2; round++) {
        for (uint64_t key = 0; key < 3; key++) {
            o.cache_key = key << 40;
            fake_ask(f->engine, &o, &got);
            assert_answer(&o, &got);
            assert_int_equal(got.stats.n_cached, round == 0 ? 0 : 95);
        }
    }
}

static void a_prefix_is_shared_while_its_maker_still_answers(void **state)
{
    fixture *f = *state;
    uint32_t tokens[220];
    fake_prompt(8, 220, tokens);
    atomic_store(&f->device.us_per_step, 500);
    const bt_request_options first = fake_request(tokens, 200, 600);
    bt_request *running = fake_submit(f->engine, &first);
    fake_wait_for(running, BT_EVENT_TOKEN);
    tokens[199] = 61;                                     /* differs in the last token */
    const bt_request_options o = fake_request(tokens, 220, 8);
    fake_result got;
    fake_ask(f->engine, &o, &got);
    assert_answer(&o, &got);
    assert_int_equal(got.stats.n_cached, 199 / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS);
    bt_engine_request_release(running);
}

/* Four requests with one prompt, at once: it is evaluated once. */
static void prompts_that_begin_alike_wait_for_the_first(void **state)
{
    fixture *f = *state;
    enum { N = 4, LENGTH = 320 };
    uint32_t tokens[LENGTH];
    bt_request *requests[N];
    static fake_result got;
    fake_prompt(9, LENGTH, tokens);
    atomic_store(&f->device.us_per_step, 500);
    const bt_request_options o = fake_request(tokens, LENGTH, 10);
    for (int i = 0; i < N; i++) {
        requests[i] = fake_submit(f->engine, &o);
    }
    for (int i = 0; i < N; i++) {
        fake_finish(requests[i], &got);
        assert_answer(&o, &got);
        bt_engine_request_release(requests[i]);
    }
    const bt_engine_stats s = fake_stats_idle(f->engine);
    /* The first computes all; the others at most their last page and the last token. */
    assert_true(s.n_prompt_tokens <= LENGTH + (N - 1) * BT_KV_PAGE_TOKENS);
}

/* ---- ends ---- */

static void nothing_is_predicted_when_nothing_is_asked_for(void **state)
{
    fixture *f = *state;
    uint32_t tokens[70];
    fake_prompt(10, 70, tokens);
    for (int only = 0; only < 2; only++) {
        bt_request_options o = fake_request(tokens, 70, 0);
        o.prefill_only = only;
        o.no_cache = true;
        fake_result got;
        fake_ask(f->engine, &o, &got);
        assert_int_equal(got.n, 0);
        assert_int_equal(got.finish, BT_FINISH_LENGTH);
        assert_int_equal(got.stats.n_local, 70);
        assert_int_equal(got.stats.n_predicted, 0);
    }
}

static void the_end_token_ends_and_is_not_shown(void **state)
{
    fixture *f = *state;
    bool ended = false;
    for (uint32_t seed = 0; seed < 40; seed++) {
        uint32_t tokens[20];
        fake_prompt(seed, 20, tokens);
        bt_request_options o = fake_request(tokens, 20, 100);
        o.ignore_eog = false;
        fake_result got;
        fake_ask(f->engine, &o, &got);
        assert_answer(&o, &got);
        for (uint32_t i = 0; i < got.n; i++) {
            assert_int_not_equal(got.tokens[i], FAKE_EOG);
            assert_int_not_equal(got.tokens[i], FAKE_SUPPRESSED);
        }
        assert_int_equal(got.finish, got.n < 100 ? BT_FINISH_EOG : BT_FINISH_LENGTH);
        ended |= got.finish == BT_FINISH_EOG;
    }
    assert_true(ended);
}

static void a_stop_string_ends_and_is_cut_out(void **state)
{
    fixture *f = *state;
    uint32_t tokens[20];
    fake_prompt(77, 20, tokens);
    bt_request_options o = fake_request(tokens, 20, 200);
    fake_result all, got;
    fake_ask(f->engine, &o, &all);
    /* The stop spans three tokens in the middle of the answer. */
    size_t at = 0;
    char three[4] = { 0 };
    for (at = 30; at < 150; at++) {
        memcpy(three, all.text + at, 3);
        if ((unsigned char)three[0] < 128 && (unsigned char)three[1] < 128 &&
            (unsigned char)three[2] < 128 && strstr(all.text, three) == all.text + at) {
            break;
        }
    }
    assert_true(at < 150);
    const bt_stop stops[2] = { { "never there", 11 }, { three, 3 } };
    o.stops = stops;
    o.n_stops = 2;
    fake_ask(f->engine, &o, &got);
    assert_int_equal(got.finish, BT_FINISH_STOP);
    assert_int_equal(got.stop_index, 1);
    assert_int_equal(strlen(got.text), at);
    assert_memory_equal(got.text, all.text, at);
}

static void a_full_context_ends_the_answer_and_says_so(void **state)
{
    fixture *f = *state;
    uint32_t tokens[1000];
    fake_prompt(12, 1000, tokens);
    const bt_request_options o = fake_request(tokens, 1000, UINT32_MAX);
    fake_result got;
    fake_ask(f->engine, &o, &got);
    assert_int_equal(got.finish, BT_FINISH_CONTEXT);
    assert_int_equal(got.n, 24);
    assert_non_null(strstr(got.message, "1024"));
    const bt_request_options exact = fake_request(tokens, 1000, 24);
    fake_ask(f->engine, &exact, &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    const bt_request_options last = fake_request(tokens, 1000, 25);
    fake_ask(f->engine, &last, &got);
    assert_int_equal(got.finish, BT_FINISH_CONTEXT);
}

static void log_probabilities_come_with_their_tokens(void **state)
{
    fixture *f = *state;
    uint32_t tokens[8];
    fake_prompt(13, 8, tokens);
    bt_request_options o = fake_request(tokens, 8, 10);
    o.n_logprobs = 3;
    bt_request *r = fake_submit(f->engine, &o);
    bt_event event = { 0 };
    int n = 0;
    while (event.kind != BT_EVENT_END) {
        assert_int_equal(bt_engine_request_wait(r, FAKE_PATIENCE_MS, &event), BT_OK);
        if (event.kind == BT_EVENT_TOKEN) {
            n++;
            assert_int_equal(event.n_top, 3);
            assert_true(event.top[0].logprob >= event.top[1].logprob);
            assert_true(event.top[1].logprob >= event.top[2].logprob);
            assert_true(event.logprob <= event.top[0].logprob && event.logprob < 0);
            /* Greedy takes the best but for the token that is never sampled. */
            const int at = event.top[0].id == FAKE_SUPPRESSED || event.top[0].id == FAKE_EOG;
            assert_true(at == 1 || event.token == event.top[0].id);
        }
    }
    assert_int_equal(n, 10);
    bt_engine_request_release(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_FAKE(a_prompt_is_continued),
        cmocka_unit_test(every_prompt_length_and_chunk_gives_the_same),
        ON_FAKE(seeded_draws_equal_the_sampler_alone),
        ON_FAKE(company_does_not_change_an_answer),
        ON_FAKE(a_second_turn_is_cached_to_the_last_token),
        ON_FAKE(the_same_prompt_again_evaluates_one_token),
        ON_FAKE(no_cache_neither_uses_nor_fills),
        ON_FAKE(keys_keep_caches_apart),
        ON_FAKE(a_prefix_is_shared_while_its_maker_still_answers),
        ON_FAKE(prompts_that_begin_alike_wait_for_the_first),
        ON_FAKE(nothing_is_predicted_when_nothing_is_asked_for),
        ON_FAKE(the_end_token_ends_and_is_not_shown),
        ON_FAKE(a_stop_string_ends_and_is_cut_out),
        ON_FAKE(a_full_context_ends_the_answer_and_says_so),
        ON_FAKE(log_probabilities_come_with_their_tokens),
    };
    return cmocka_run_group_tests_name("engine/engine", tests, NULL, NULL);
}
