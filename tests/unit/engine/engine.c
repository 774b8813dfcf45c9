/* engine/engine.h: requests in, tokens out, on a model whose right answers are known. */
#include "unit/engine/fake.h"

static int open_default(void **state)
{
    const bt_engine_options o = fake_options();
    *state = fake_open(&o);
    return 0;
}

static int close_it(void **state)
{
    fake_close(*state);
    return 0;
}

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

/* ---- refusals ---- */

static void refuse(bt_engine *e, const bt_request_options *o, bt_status status, const char *says)
{
    bt_request *r = NULL;
    bt_error err = { 0 };
    assert_int_equal(bt_engine_submit(e, o, &r, &err), status);
    assert_null(r);
    if (!strstr(err.text, says)) {
        print_error("'%s' does not say '%s'\n", err.text, says);
    }
    assert_non_null(strstr(err.text, says));
}

static void what_cannot_run_is_refused_with_its_numbers(void **state)
{
    fixture *f = *state;
    static uint32_t tokens[1100];
    fake_prompt(14, 1100, tokens);
    bt_request_options o = fake_request(tokens, 1024, 1);
    refuse(f->engine, &o, BT_E_CONTEXT, "context_length_exceeded");
    refuse(f->engine, &o, BT_E_CONTEXT, "exceeds the available context size");
    o.n_tokens = 1100;
    refuse(f->engine, &o, BT_E_CONTEXT, "1100");
    refuse(f->engine, &o, BT_E_CONTEXT, "1024");
    o.n_tokens = 0;
    refuse(f->engine, &o, BT_E_BADINPUT, "empty");
    o.n_tokens = 50;
    tokens[37] = FAKE_VOCAB;
    refuse(f->engine, &o, BT_E_BADINPUT, "token 37");
    tokens[37] = UINT32_MAX;
    refuse(f->engine, &o, BT_E_BADINPUT, "token 37");
    tokens[37] = 1;
    o.sampling.temperature = NAN;
    refuse(f->engine, &o, BT_E_BADINPUT, "temperature");
    o = fake_request(tokens, 50, 1);
    o.n_logprobs = BT_TOP_LOGPROBS_MAX + 1;
    refuse(f->engine, &o, BT_E_BADINPUT, "log probabilities");
    o = fake_request(tokens, 50, 1);
    const bt_push push = { 0 };
    o.push = &push;
    refuse(f->engine, &o, BT_E_BADINPUT, "push");
    o = fake_request(tokens, 1023, 1);
    fake_result got;
    fake_ask(f->engine, &o, &got);
    assert_answer(&o, &got);
}

static void bad_engines_are_refused(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        fake_device d;
        fake_device_init(&d, false);
        bt_engine_options o = fake_options();
        o.device = &d.device;
        o.n_parallel = kind == 0 ? 0 : kind == 1 ? BT_PARALLEL_MAX + 1 : o.n_parallel;
        o.n_ctx = kind == 2 ? 1 : o.n_ctx;
        o.n_batch = kind == 3 ? 3 : o.n_batch;
        o.n_prefill_chunk = kind == 4 ? 0 : o.n_prefill_chunk;
        bt_engine *e = NULL;
        bt_error err = { 0 };
        assert_int_equal(bt_engine_create(&o, &e, &err), BT_E_BADINPUT);
        assert_null(e);
        assert_true(err.text[0] != '\0');
    }
}

static void a_full_queue_says_so_and_drains(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_parallel = 1;
    options.queue_max = 2;
    fixture *f = fake_open(&options);
    atomic_store(&f->device.us_per_step, 2000);
    uint32_t tokens[8];
    fake_prompt(15, 8, tokens);
    const bt_request_options o = fake_request(tokens, 8, 30);
    bt_request *requests[3];
    requests[0] = fake_submit(f->engine, &o);
    fake_wait_for(requests[0], BT_EVENT_TOKEN);
    requests[1] = fake_submit(f->engine, &o);
    requests[2] = fake_submit(f->engine, &o);
    refuse(f->engine, &o, BT_E_FULL, "2 requests");
    fake_result got;
    for (int i = 0; i < 3; i++) {
        fake_finish(requests[i], &got);
        bt_engine_request_release(requests[i]);
        assert_int_equal(got.finish, BT_FINISH_LENGTH);
    }
    (void)fake_stats_idle(f->engine);
    bt_engine_request_release(fake_submit(f->engine, &o));
    fake_close(f);
}

/* While a step runs, those who were cancelled are still in the line: they take nobody's place, but
 * there is an end to them. */
static void who_left_takes_no_place_in_the_line(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_parallel = 1;
    options.queue_max = 2;
    fixture *f = fake_open(&options);
    atomic_store(&f->device.us_per_step, 500000);
    const uint32_t tokens[] = { 5, 6, 7 };
    const bt_request_options o = fake_request(tokens, 3, 3);
    bt_request *running = fake_submit(f->engine, &o);
    fake_wait_for(running, BT_EVENT_TOKEN);
    bt_clock_sleep_ms(50);                      /* the next step is under way */
    bt_request *waiting = fake_submit(f->engine, &o);
    for (int i = 0; i < 8; i++) {
        bt_engine_request_release(fake_submit(f->engine, &o));
    }
    refuse(f->engine, &o, BT_E_FULL, "9 requests are waiting already, with those that were");
    atomic_store(&f->device.us_per_step, 0);
    fake_result got;
    fake_finish(running, &got);
    fake_finish(waiting, &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    bt_engine_request_release(running);
    bt_engine_request_release(waiting);
    const bt_engine_stats stats = fake_stats_idle(f->engine);
    assert_int_equal(stats.n_cancelled, 8);
    assert_int_equal(stats.n_requests, 10);
    fake_close(f);
}

/* ---- cancelling ---- */

static void cancel_ends_at_any_stage(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_parallel = 1;
    options.n_prefill_chunk = 8;
    fixture *f = fake_open(&options);
    atomic_store(&f->device.us_per_step, 1000);
    uint32_t tokens[500];
    fake_prompt(16, 500, tokens);
    const bt_request_options o = fake_request(tokens, 500, 500);
    fake_result got;
    for (int stage = 0; stage < 3; stage++) {
        bt_request *running = stage == 0 ? fake_submit(f->engine, &o) : NULL;
        if (running) {
            fake_wait_for(running, BT_EVENT_BEGIN);
        }
        bt_request *r = fake_submit(f->engine, &o);
        if (stage > 0) {
            fake_wait_for(r, stage == 1 ? BT_EVENT_PROGRESS : BT_EVENT_TOKEN);
        }
        bt_engine_request_cancel(r);
        fake_finish(r, &got);
        assert_int_equal(got.finish, BT_FINISH_CANCELLED);
        assert_int_equal(got.status, BT_E_CANCELLED);
        assert_true(got.n < 500);
        bt_event event;
        assert_int_equal(bt_engine_request_wait(r, 0, &event), BT_OK);
        assert_int_equal(event.kind, BT_EVENT_END);       /* and only END from now on */
        bt_engine_request_release(r);
        bt_engine_request_release(running);
    }
    const bt_engine_stats s = fake_stats_idle(f->engine);
    assert_int_equal(s.n_cancelled, 4);
    assert_int_equal(s.kv_pages_used, s.kv_pages_cached);
    fake_close(f);
}

static void release_without_reading_frees_everything(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.queue_max = 200;
    fixture *f = fake_open(&options);
    uint32_t tokens[100];
    for (uint32_t i = 0; i < 200; i++) {
        fake_prompt(i, 100, tokens);
        const bt_request_options o = fake_request(tokens, 1 + i % 100, i % 50);
        bt_engine_request_release(fake_submit(f->engine, &o));
    }
    bt_engine_request_release(NULL);
    const bt_engine_stats s = fake_stats_idle(f->engine);
    assert_int_equal(s.kv_pages_used, s.kv_pages_cached);
    fake_close(f);
}

static void the_end_of_the_engine_ends_all_requests(void **state)
{
    (void)state;
    const bt_engine_options options = fake_options();
    fixture *f = fake_open(&options);
    atomic_store(&f->device.us_per_step, 1000);
    enum { N = 10 };
    uint32_t tokens[N][60];
    bt_request *requests[N];
    for (uint32_t i = 0; i < N; i++) {
        fake_prompt(i, 60, tokens[i]);
        const bt_request_options o = fake_request(tokens[i], 60, 900);
        requests[i] = fake_submit(f->engine, &o);
    }
    fake_wait_for(requests[0], BT_EVENT_TOKEN);
    fake_close(f);
    static fake_result got;
    for (int i = 0; i < N; i++) {                         /* handles outlive the engine */
        fake_finish(requests[i], &got);
        assert_int_equal(got.finish, BT_FINISH_ERROR);
        assert_int_equal(got.status, BT_E_CLOSED);
        bt_engine_request_cancel(requests[i]);
        bt_engine_request_release(requests[i]);
    }
}

static void waiting_without_news_says_again(void **state)
{
    fixture *f = *state;
    uint32_t tokens[8];
    fake_prompt(17, 8, tokens);
    atomic_store(&f->device.us_per_step, 500000);
    const bt_request_options o = fake_request(tokens, 8, 1);
    bt_request *r = fake_submit(f->engine, &o);
    fake_wait_for(r, BT_EVENT_BEGIN);
    bt_event event;
    const double start = bt_clock_ms();
    assert_int_equal(bt_engine_request_wait(r, 0, &event), BT_E_AGAIN);
    assert_int_equal(bt_engine_request_wait(r, 20, &event), BT_E_AGAIN);
    assert_true(bt_clock_ms() - start >= 19);
    fake_result got;
    fake_finish(r, &got);
    bt_engine_request_release(r);
}

/* ---- those who do not read, and those who break ---- */

static void a_consumer_that_does_not_read_pauses_only_itself(void **state)
{
    fixture *f = *state;
    uint32_t a[30], b[30];
    fake_prompt(18, 30, a);
    fake_prompt(19, 30, b);
    const bt_request_options slow = fake_request(a, 30, 400), quick = fake_request(b, 30, 300);
    bt_request *r = fake_submit(f->engine, &slow);
    fake_result got;
    for (int i = 0; i < 3; i++) {
        fake_ask(f->engine, &quick, &got);
        assert_answer(&quick, &got);
    }
    assert_true(fake_stats(f->engine).n_running == 1);    /* still there, waiting to be read */
    fake_finish(r, &got);
    assert_answer(&slow, &got);
    bt_engine_request_release(r);
}

static void a_failed_step_fails_only_what_was_in_it(void **state)
{
    fixture *f = *state;
    uint32_t tokens[40];
    fake_prompt(20, 40, tokens);
    const bt_request_options o = fake_request(tokens, 40, 50);
    fake_result got;
    atomic_store(&f->device.fail_in, 10);
    fake_ask(f->engine, &o, &got);
    assert_int_equal(got.finish, BT_FINISH_ERROR);
    assert_int_equal(got.status, BT_E_DEVICE);
    assert_non_null(strstr(got.message, "a fuse blew"));
    fake_ask(f->engine, &o, &got);                        /* lives, and cached rows are right */
    assert_answer(&o, &got);
    assert_int_equal(fake_stats_idle(f->engine).n_errors, 1);
}

static void damaged_logits_fail_one_request_and_are_forgotten(void **state)
{
    fixture *f = *state;
    uint32_t bad[100], good[100];
    fake_prompt(21, 100, bad);
    fake_prompt(22, 100, good);
    for (int i = 0; i < 100; i++) {
        good[i] = good[i] == 50 ? 49 : good[i];
    }
    bad[99] = 50;
    atomic_store(&f->device.damage_token, 50);
    const bt_request_options a = fake_request(bad, 100, 5), b = fake_request(good, 100, 5);
    bt_request *other = fake_submit(f->engine, &b);
    fake_result got;
    fake_ask(f->engine, &a, &got);
    assert_int_equal(got.finish, BT_FINISH_ERROR);
    assert_int_equal(got.status, BT_E_DEVICE);
    assert_int_equal(got.n, 0);
    assert_true(got.message[0] != '\0');
    fake_finish(other, &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    bt_engine_request_release(other);
    atomic_store(&f->device.damage_token, -1);
    fake_ask(f->engine, &a, &got);
    assert_answer(&a, &got);
    assert_int_equal(got.stats.n_cached, 0);              /* its rows were thrown away */
}

/* ---- when pages are short ---- */

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
    assert_true(s.kv_pages_used <= s.kv_pages_total);
    assert_int_equal(s.kv_pages_total, 1024 / BT_KV_PAGE_TOKENS + 4);
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

static void the_youngest_answer_ends_when_all_pages_are_in_use(void **state)
{
    fixture *f = *state;
    enum { N = 4 };
    static uint32_t tokens[N][100];
    static fake_result got[N];
    bt_request *requests[N];
    bt_request_options o[N];
    for (uint32_t i = 0; i < N; i++) {                    /* 4 * 500 positions do not fit 1024 */
        fake_prompt(40 + i, 100, tokens[i]);
        o[i] = fake_request(tokens[i], 100, 400);
        requests[i] = fake_submit(f->engine, &o[i]);
        fake_wait_for(requests[i], BT_EVENT_BEGIN);       /* so that ages are known */
    }
    /* One reader for all: nobody may pause for long. */
    bool ended[N] = { false };
    for (int left = N; left > 0;) {
        for (int i = 0; i < N; i++) {
            bt_event event;
            if (ended[i] || bt_engine_request_wait(requests[i], 1, &event) != BT_OK) {
                continue;
            }
            if (event.kind == BT_EVENT_TOKEN) {
                got[i].tokens[got[i].n++] = event.token;
            } else if (event.kind == BT_EVENT_END) {
                ended[i] = true;
                got[i].finish = event.finish;
                snprintf(got[i].message, sizeof got[i].message, "%s", event.message);
                left--;
            }
        }
    }
    int n_full = 0, n_whole = 0;
    for (int i = 0; i < N; i++) {
        uint32_t expected[400];
        fake_answer(tokens[i], 100, 400, &o[i].sampling, true, 1024, expected);
        assert_memory_equal(got[i].tokens, expected, got[i].n * sizeof *expected);
        if (got[i].finish == BT_FINISH_CONTEXT) {
            n_full++;
            assert_non_null(strstr(got[i].message, "1024"));
            assert_true(got[i].n > 0 && got[i].n < 400);
        } else {
            assert_int_equal(got[i].finish, BT_FINISH_LENGTH);
            assert_int_equal(got[i].n, 400);
            n_whole++;
        }
        bt_engine_request_release(requests[i]);
    }
    assert_int_equal(got[0].finish, BT_FINISH_LENGTH);    /* the oldest is never the victim */
    assert_int_equal(got[1].finish, BT_FINISH_LENGTH);    /* two of 500 fit */
    assert_true(n_full >= 1 && n_whole >= 2);
}

/* ---- the step ---- */

static void nothing_allocates_per_token(void **state)
{
    fixture *f = *state;
    uint32_t tokens[10];
    fake_prompt(50, 10, tokens);
    bt_request_options o = fake_request(tokens, 10, 200);
    o.n_logprobs = 5;
    o.sampling.temperature = 1;
    o.sampling.penalty_repeat = 1.1f;
    bt_request *r = fake_submit(f->engine, &o);
    bt_event event;
    int n = 0;
    uint64_t before = 0;
    do {
        assert_int_equal(bt_engine_request_wait(r, FAKE_PATIENCE_MS, &event), BT_OK);
        n += event.kind == BT_EVENT_TOKEN;
        if (n == 20 && before == 0) {
            before = bt_memory_calls();
        }
    } while (n < 120);
    assert_int_equal(bt_memory_calls(), before);
    bt_engine_request_release(r);
}

/* With rows that cost 0.5 ms and a gap of 10 ms, a long prompt must not take 128 rows at a time. */
static void a_long_prompt_leaves_gaps_for_those_who_answer(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_prefill_chunk = 128;
    options.decode_gap_ms = 20;
    fixture *f = fake_open(&options);
    atomic_store(&f->device.us_per_row, 500);
    static uint32_t a[20], b[800];
    fake_prompt(51, 20, a);
    fake_prompt(52, 800, b);
    const bt_request_options chat = fake_request(a, 20, 400), big = fake_request(b, 800, 1);
    bt_request *r = fake_submit(f->engine, &chat);
    for (int i = 0; i < 5; i++) {
        fake_wait_for(r, BT_EVENT_TOKEN);
    }
    bt_request *long_one = fake_submit(f->engine, &big);
    fake_wait_for(long_one, BT_EVENT_BEGIN);
    double last = bt_clock_ms(), sum = 0;
    int n = 0;
    while (fake_stats(f->engine).n_prompt_tokens < 820) {
        fake_wait_for(r, BT_EVENT_TOKEN);
        const double now = bt_clock_ms();
        sum += now - last;
        n++;
        last = now;
    }
    assert_true(n >= 10);
    assert_true(atomic_load(&f->device.rows_most_mixed) <= 128 / 2);
    assert_true(sum / n < 60);    /* 20 wanted; 128 rows take 64, and the machine may be busy */
    bt_engine_request_release(r);
    bt_engine_request_release(long_one);
    fake_close(f);
}

/* While somebody answers, a step has time for few rows: the short prompt gets them first. */
static void a_short_prompt_is_not_behind_two_long_ones(void **state)
{
    fixture *f = *state;
    atomic_store(&f->device.us_per_row, 1000);
    static uint32_t tokens[4][400];
    bt_request *requests[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t n = i == 0 ? 5 : i < 3 ? 300 : 20;
        fake_prompt(60 + i, n, tokens[i]);
        const bt_request_options o = fake_request(tokens[i], n, i == 0 ? 1000 : 1);
        requests[i] = fake_submit(f->engine, &o);
        fake_wait_for(requests[i], i == 0 ? BT_EVENT_TOKEN : BT_EVENT_BEGIN);
    }
    fake_result got;
    fake_finish(requests[3], &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    for (int i = 1; i < 3; i++) {                         /* neither is done yet */
        bt_request_stats s;
        bt_engine_request_stats_get(requests[i], &s);
        assert_true(s.first_token_ms <= 0);
    }
    for (int i = 0; i < 4; i++) {
        bt_engine_request_release(requests[i]);
    }
}

static void prompts_share_a_step(void **state)
{
    fixture *f = *state;
    static uint32_t tokens[4][200];
    static fake_result got;
    bt_request_options o[4];
    bt_request *requests[4];
    atomic_store(&f->device.us_per_step, 3000);
    for (uint32_t i = 0; i < 4; i++) {
        fake_prompt(70 + i, 200, tokens[i]);
        o[i] = fake_request(tokens[i], 200, 1);
        o[i].n_prefill_chunk = 50;
        requests[i] = fake_submit(f->engine, &o[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        fake_finish(requests[i], &got);
        assert_answer(&o[i], &got);
        bt_engine_request_release(requests[i]);
    }
    assert_true(atomic_load(&f->device.sequences_most) >= 3);
    assert_true(atomic_load(&f->device.rows_most) >= 150);
}

int main(void)
{
#define IN_DEFAULT(name) cmocka_unit_test_setup_teardown(name, open_default, close_it)
    const struct CMUnitTest tests[] = {
        IN_DEFAULT(a_prompt_is_continued),
        cmocka_unit_test(every_prompt_length_and_chunk_gives_the_same),
        IN_DEFAULT(seeded_draws_equal_the_sampler_alone),
        IN_DEFAULT(company_does_not_change_an_answer),
        IN_DEFAULT(a_second_turn_is_cached_to_the_last_token),
        IN_DEFAULT(the_same_prompt_again_evaluates_one_token),
        IN_DEFAULT(no_cache_neither_uses_nor_fills),
        IN_DEFAULT(keys_keep_caches_apart),
        IN_DEFAULT(a_prefix_is_shared_while_its_maker_still_answers),
        IN_DEFAULT(prompts_that_begin_alike_wait_for_the_first),
        IN_DEFAULT(nothing_is_predicted_when_nothing_is_asked_for),
        IN_DEFAULT(the_end_token_ends_and_is_not_shown),
        IN_DEFAULT(a_stop_string_ends_and_is_cut_out),
        IN_DEFAULT(a_full_context_ends_the_answer_and_says_so),
        IN_DEFAULT(log_probabilities_come_with_their_tokens),
        IN_DEFAULT(what_cannot_run_is_refused_with_its_numbers),
        cmocka_unit_test(bad_engines_are_refused),
        cmocka_unit_test(a_full_queue_says_so_and_drains),
        cmocka_unit_test(who_left_takes_no_place_in_the_line),
        cmocka_unit_test(cancel_ends_at_any_stage),
        cmocka_unit_test(release_without_reading_frees_everything),
        cmocka_unit_test(the_end_of_the_engine_ends_all_requests),
        IN_DEFAULT(waiting_without_news_says_again),
        IN_DEFAULT(a_consumer_that_does_not_read_pauses_only_itself),
        IN_DEFAULT(a_failed_step_fails_only_what_was_in_it),
        IN_DEFAULT(damaged_logits_fail_one_request_and_are_forgotten),
        IN_DEFAULT(old_prefixes_give_way),
        IN_DEFAULT(prompts_wait_until_there_are_pages),
        IN_DEFAULT(the_youngest_answer_ends_when_all_pages_are_in_use),
        IN_DEFAULT(nothing_allocates_per_token),
        cmocka_unit_test(a_long_prompt_leaves_gaps_for_those_who_answer),
        IN_DEFAULT(a_short_prompt_is_not_behind_two_long_ones),
        IN_DEFAULT(prompts_share_a_step),
    };
    return cmocka_run_group_tests_name("engine/engine", tests, NULL, NULL);
}
