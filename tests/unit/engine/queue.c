/* engine/engine.h: what is refused, who waits, and cancelling. */
#include "unit/engine/ask.h"

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
    const uint32_t tokens[] = { 5, 6, 7 };
    const bt_request_options o = fake_request(tokens, 3, 3);
    fake_gate_set(f, true);
    bt_request *running = fake_submit(f->engine, &o);
    fake_gate_step(f);                          /* it runs, and its second step is under way */
    bt_request *waiting = fake_submit(f->engine, &o);
    for (int i = 0; i < 8; i++) {
        bt_engine_request_release(fake_submit(f->engine, &o));
    }
    refuse(f->engine, &o, BT_E_FULL, "9 requests are waiting already, with those that were");
    fake_gate_set(f, false);
    fake_result got;
    fake_finish(running, &got);
    fake_finish(waiting, &got);
    assert_int_equal(got.finish, BT_FINISH_LENGTH);
    bt_engine_request_release(running);
    bt_engine_request_release(waiting);
    const bt_engine_stats stats = fake_stats_idle(f->engine);
    assert_int_equal(stats.n_requests_cancelled, 8);
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
    assert_int_equal(s.n_requests_cancelled, 4);
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
    fake_gate_set(f, true);
    const bt_request_options o = fake_request(tokens, 8, 1);
    bt_request *r = fake_submit(f->engine, &o);
    fake_wait_for(r, BT_EVENT_BEGIN);
    bt_event event;
    const double start = bt_clock_ms();
    assert_int_equal(bt_engine_request_wait(r, 0, &event), BT_E_AGAIN);
    assert_int_equal(bt_engine_request_wait(r, 20, &event), BT_E_AGAIN);
    assert_true(bt_clock_ms() - start >= 19);
    fake_gate_set(f, false);
    fake_result got;
    fake_finish(r, &got);
    bt_engine_request_release(r);
}

/* ---- being called ---- */

typedef struct { atomic_uint n_calls; atomic_bool released; } called;

static void note_call(void *context)
{
    called *c = context;
    assert_false(atomic_load(&c->released));
    atomic_fetch_add(&c->n_calls, 1);
}

/* Once per event, END too; none is lost by a consumer that reads only when it is called. */
static void every_event_is_called_out(void **state)
{
    fixture *f = *state;
    uint32_t tokens[8];
    called c = { 0 };
    bt_event event = { 0 };
    uint32_t n_events = 0;
    fake_prompt(80, 8, tokens);
    bt_request_options o = fake_request(tokens, 8, 20);
    o.on_event.fn = note_call;
    o.on_event.context = &c;
    bt_request *r = fake_submit(f->engine, &o);
    while (event.kind != BT_EVENT_END) {
        assert_int_equal(bt_engine_request_wait(r, FAKE_PATIENCE_MS, &event), BT_OK);
        n_events++;
    }
    bt_engine_request_release(r);          /* waits for a call under way */
    assert_int_equal(atomic_load(&c.n_calls), n_events);
}

static void nobody_is_called_after_release(void **state)
{
    fixture *f = *state;
    uint32_t tokens[8];
    static called c[200];
    fake_prompt(81, 8, tokens);
    bt_request_options o = fake_request(tokens, 8, 50);
    o.on_event.fn = note_call;
    for (int i = 0; i < 200; i++) {
        o.on_event.context = &c[i];
        bt_request *r = fake_submit(f->engine, &o);
        if (i % 2) {
            fake_wait_for(r, i % 4 == 1 ? BT_EVENT_BEGIN : BT_EVENT_TOKEN);
        }
        bt_engine_request_release(r);
        atomic_store(&c[i].released, true);
    }
    (void)fake_stats_idle(f->engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_FAKE(what_cannot_run_is_refused_with_its_numbers),
        cmocka_unit_test(bad_engines_are_refused),
        cmocka_unit_test(a_full_queue_says_so_and_drains),
        cmocka_unit_test(who_left_takes_no_place_in_the_line),
        cmocka_unit_test(cancel_ends_at_any_stage),
        cmocka_unit_test(release_without_reading_frees_everything),
        cmocka_unit_test(the_end_of_the_engine_ends_all_requests),
        ON_FAKE(waiting_without_news_says_again),
        ON_FAKE(every_event_is_called_out),
        ON_FAKE(nobody_is_called_after_release),
    };
    return cmocka_run_group_tests_name("engine/queue", tests, NULL, NULL);
}
