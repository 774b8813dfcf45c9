/* Prompts that are prefilled here as well as elsewhere: whoever is first is used, whole. */
#include "unit/engine/place.h"

enum { SLOW_US = 300 };                /* a row here, so that a prompt takes some 60 ms */

static fixture *slow(void **state)
{
    fixture *f = *state;
    atomic_store(&f->device.us_per_row, SLOW_US);
    return f;
}

/* Rows as another kind of machine might compute them: what decodes from them says other things. */
static void give_other(bt_engine *e, const bt_external_offer *job)
{
    uint64_t k[1024], v[1024];
    const uint32_t n = job->position_end - job->position_first;
    for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
        if (layer == FAKE_BARE_LAYER) {
            continue;
        }
        fake_rows_of(job->tokens, layer, job->position_first, n, k, v);
        for (uint32_t i = 0; i < n; i++) {
            v[i] ^= 12345;
        }
        const bt_status s = bt_engine_external_import_rows(e, job->ticket, layer,
                                                           job->position_first, n, k, v);
        assert_true(s == BT_OK || s == BT_E_CANCELLED);     /* short ones are complete by now */
    }
}

/* Until rows of the prompt were computed here. */
static void wait_for_steps(fixture *f, uint32_t n)
{
    for (int i = 0; atomic_load(&f->device.n_steps) < n; i++) {
        assert_true(i < FAKE_PATIENCE_MS);
        bt_clock_sleep_ms(1);
    }
}

static void here_first(void **state)
{
    fixture *f = slow(state);
    const uint32_t lengths[] = { 3, 33, 64, LENGTH };
    for (size_t i = 0; i < BT_LEN(lengths); i++) {
        uint32_t tokens[LENGTH];
        fake_prompt(900 + (uint32_t)i, lengths[i], tokens);
        const bt_request_options o = fake_request(tokens, lengths[i], 20);
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job((int)i);
        bt_engine_external_hedge(f->engine, job.ticket);
        give_other(f->engine, &job);   /* all of it, but never committed */
        static fake_result got;
        fake_finish(r, &got);
        assert_answer(&o, &got);
        assert_true(got.stats.hedged && got.stats.local_first);
        assert_int_equal(got.stats.n_local, lengths[i]);
        assert_int_equal(place.n_local_first, (int)i + 1);
        assert_int_equal(place.n_cancelled, 0);
        commit(f->engine, &job);       /* too late: the ticket is gone */
        bt_engine_request_release(r);
    }
    (void)fake_stats_idle(f->engine);
}

/* Nothing of what was computed here is in the answer: it is the same as without hedging, also where
 * the other machine computes otherwise. */
static void elsewhere_first(void **state)
{
    fixture *f = slow(state);
    uint32_t tokens[LENGTH];
    fake_prompt(910, LENGTH, tokens);
    bt_request_options o = fake_request(tokens, LENGTH, 30);
    static fake_result got[2];
    for (int i = 0; i < 2; i++) {
        o.no_cache = i == 0;
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job(i);
        const uint32_t n_steps = atomic_load(&f->device.n_steps);
        if (i == 1) {
            bt_engine_external_hedge(f->engine, job.ticket);
            wait_for_steps(f, n_steps + 2);
        }
        give_other(f->engine, &job);
        commit(f->engine, &job);
        fake_finish(r, &got[i]);
        bt_engine_request_release(r);
        assert_int_equal(got[i].stats.hedged, i == 1);
        assert_false(got[i].stats.local_first);
        assert_int_equal(got[i].stats.n_external, LENGTH - 1);
        assert_int_equal(got[i].stats.n_local, 1);
    }
    assert_int_equal(got[0].n, 30);
    assert_int_equal(got[1].n, 30);
    assert_memory_equal(got[0].tokens, got[1].tokens, 30 * sizeof *got[0].tokens);
    assert_int_equal(place.n_local_first + place.n_cancelled, 0);
    /* And what the cache has is of one side too. */
    bt_request *r = fake_submit(f->engine, &o);
    static fake_result again;
    fake_finish(r, &again);
    bt_engine_request_release(r);
    assert_int_equal(again.stats.n_cached, LENGTH - 1);
    assert_memory_equal(again.tokens, got[0].tokens, 30 * sizeof *again.tokens);
}

static void the_worker_fails_meanwhile(void **state)
{
    fixture *f = slow(state);
    uint32_t tokens[LENGTH];
    fake_prompt(920, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 10);
    for (int i = 0; i < 2; i++) {      /* with less than is here, with more */
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job(i);
        const uint32_t complete = i == 0 ? job.position_first : LENGTH - 10;
        const uint32_t n_steps = atomic_load(&f->device.n_steps);
        bt_engine_external_hedge(f->engine, job.ticket);
        wait_for_steps(f, n_steps + 1);
        for (uint32_t layer = 0; layer < FAKE_LAYERS && i == 1; layer++) {
            assert_int_equal(give(f->engine, &job, layer, job.position_first, complete), BT_OK);
        }
        abandon(f->engine, &job, complete);
        static fake_result got;
        finish_right(r, &o, &got);
        assert_true(got.stats.hedged);
        assert_int_equal(got.stats.n_external, complete - job.position_first);
        fake_prompt(921, LENGTH, tokens);
    }
    (void)fake_stats_idle(f->engine);
}

static void a_client_leaves_meanwhile(void **state)
{
    fixture *f = slow(state);
    uint32_t tokens[LENGTH];
    fake_prompt(930, LENGTH, tokens);
    bt_request_options o = fake_request(tokens, LENGTH, 10);
    o.no_cache = true;
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    bt_engine_external_hedge(f->engine, job.ticket);
    wait_for_steps(f, 1);
    bt_engine_request_cancel(r);
    static fake_result got;
    fake_finish(r, &got);
    assert_int_equal(got.finish, BT_FINISH_CANCELLED);
    assert_int_equal(place.n_cancelled, 1);
    assert_int_equal(place.n_local_first, 0);
    assert_int_equal(give(f->engine, &job, 0, 0, 10), BT_E_CANCELLED);
    bt_engine_request_release(r);
    assert_int_equal(fake_stats_idle(f->engine).kv_pages_used, 0);
}

/* The match ends inside a page: both sides begin behind the same rows and write to their own. */
static void both_sides_share_what_was_cached(void **state)
{
    fixture *f = slow(state);
    uint32_t tokens[LENGTH];
    static fake_result got;
    fake_prompt(940, LENGTH, tokens);
    place.refuses = true;
    const bt_request_options first = fake_request(tokens, 50, 1);
    fake_ask(f->engine, &first, &got);
    refuse_no_more();
    for (int i = 0; i < 2; i++) {      /* here first, elsewhere first */
        tokens[150] ^= 1;
        const bt_request_options o = fake_request(tokens, LENGTH, 10);
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job(i);
        assert_int_equal(job.position_first, i == 0 ? 50 : 150);
        bt_engine_external_hedge(f->engine, job.ticket);
        if (i == 1) {
            give_all(f->engine, &job, 64);
            commit(f->engine, &job);
        }
        finish_right(r, &o, &got);
    }
}

/* No pages for a second time: it goes on elsewhere alone, and here once there are some. */
static void pages_are_short(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_ctx = 320;
    options.n_parallel = 2;
    fixture *f = open_with(&options);
    uint32_t tokens[LENGTH];
    fake_prompt(950, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 10);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    bt_engine_external_hedge(f->engine, job.ticket);
    const uint32_t one[] = { 7 };      /* whose end proves that the engine has looked */
    const bt_request_options other = fake_request(one, 1, 1);
    static fake_result quick;
    fake_ask(f->engine, &other, &quick);
    assert_int_equal(atomic_load(&f->device.n_rows), 1);
    give_all(f->engine, &job, 64);
    commit(f->engine, &job);
    static fake_result got;
    finish_right(r, &o, &got);
    assert_false(got.stats.hedged);
    fake_close(f);
}

/* Answers that need pages end the second half of a hedge before anybody loses his place. */
static void answers_come_first(void **state)
{
    (void)state;
    bt_request *first;
    fixture *f = open_with_answer(512, 300, 300, &first);
    uint32_t tokens[LENGTH];
    fake_prompt(961, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 5);
    atomic_store(&f->device.us_per_row, 2000);      /* still at it when pages end */
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    bt_engine_external_hedge(f->engine, job.ticket);
    expect_whole(first);
    fake_result got;
    finish_right(r, &o, &got);
    assert_true(got.stats.hedged);
    assert_int_equal(place.n_local_first, 1);
    assert_int_equal(place.n_cancelled, 0);
    fake_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DEFAULT(here_first),
        IN_DEFAULT(elsewhere_first),
        IN_DEFAULT(the_worker_fails_meanwhile),
        IN_DEFAULT(a_client_leaves_meanwhile),
        IN_DEFAULT(both_sides_share_what_was_cached),
        cmocka_unit_test(pages_are_short),
        cmocka_unit_test(answers_come_first),
    };
    return cmocka_run_group_tests_name("engine/hedge", tests, NULL, NULL);
}
