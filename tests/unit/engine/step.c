/* engine/engine.h: what a step takes in, readers that are behind, and devices that fail. */
#include "unit/engine/ask.h"

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
    assert_int_equal(fake_stats_idle(f->engine).n_requests_failed, 1);
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
    const struct CMUnitTest tests[] = {
        ON_FAKE(a_consumer_that_does_not_read_pauses_only_itself),
        ON_FAKE(a_failed_step_fails_only_what_was_in_it),
        ON_FAKE(damaged_logits_fail_one_request_and_are_forgotten),
        ON_FAKE(nothing_allocates_per_token),
        cmocka_unit_test(a_long_prompt_leaves_gaps_for_those_who_answer),
        ON_FAKE(a_short_prompt_is_not_behind_two_long_ones),
        ON_FAKE(prompts_share_a_step),
    };
    return cmocka_run_group_tests_name("engine/step", tests, NULL, NULL);
}
