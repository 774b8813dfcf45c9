/* engine/external.h: rows that somebody else computes. */
#include "unit/engine/place.h"

/* ---- commit ---- */

static void committed_rows_give_the_same_answer(void **state)
{
    fixture *f = *state;
    const uint32_t lengths[] = { 2, 3, 32, 33, 34, 65, 200 }, chunks[] = { 1, 16, 64, 500 };
    for (size_t i = 0; i < BT_LEN(lengths) * BT_LEN(chunks); i++) {
        const uint32_t n = lengths[i % BT_LEN(lengths)];
        uint32_t tokens[LENGTH];
        fake_result got;
        fake_prompt((uint32_t)i + 500, n, tokens);
        bt_request_options o = fake_request(tokens, n, 30);
        o.no_cache = true;
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job((int)i);
        assert_int_equal(job.n_tokens, n);
        assert_int_equal(job.position_first, 0);
        assert_int_equal(job.position_end, n - 1);
        give_all(f->engine, &job, chunks[i / BT_LEN(lengths)]);
        commit(f->engine, &job);
        finish_right(r, &o, &got);
        assert_int_equal(got.stats.n_external, n - 1);
        assert_int_equal(got.stats.n_local, 1);
        assert_false(got.stats.hedged);
    }
    assert_int_equal(fake_stats_idle(f->engine).n_prompt_tokens, BT_LEN(lengths) * BT_LEN(chunks));
}

static void committed_rows_are_cached_and_only_the_rest_is_asked_for(void **state)
{
    fixture *f = *state;
    uint32_t tokens[300];
    fake_result got;
    fake_prompt(600, 300, tokens);
    for (int turn = 0; turn < 2; turn++) {
        const uint32_t n = turn == 0 ? 200 : 300;
        const bt_request_options o = fake_request(tokens, n, 5);
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job(turn);
        assert_int_equal(job.position_first, turn == 0 ? 0 : 200);
        give_all(f->engine, &job, 50);
        commit(f->engine, &job);
        finish_right(r, &o, &got);
    }
    assert_int_equal(got.stats.n_cached, 200);
    assert_int_equal(got.stats.n_external, 99);
}

static void rows_may_come_in_any_order_and_twice(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH];
    fake_result got;
    fake_prompt(601, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 10);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    uint64_t wrong[LENGTH] = { 0 };
    assert_int_equal(bt_engine_external_import_rows(f->engine, job.ticket, 0, 10, 90, wrong,
                                                    wrong), BT_OK);
    for (uint32_t layer = FAKE_LAYERS; layer-- > 0;) {
        for (uint32_t at = LENGTH - 1; at > 0; at--) {
            assert_int_equal(give(f->engine, &job, layer, at - 1, at), BT_OK);
        }
    }
    commit(f->engine, &job);
    finish_right(r, &o, &got);
    assert_int_equal(got.stats.n_external, LENGTH - 1);
}

/* A commit that lies is not believed: one row of one layer is missing. */
static void a_commit_without_all_rows_is_refused(void **state)
{
    fixture *f = *state;
    fake_result got;
    for (int turn = 0; turn < 2; turn++) {
        uint32_t tokens[LENGTH];
        fake_prompt(602 + (uint32_t)turn, LENGTH, tokens);
        bt_request_options o = fake_request(tokens, LENGTH, 10);
        o.no_cache = true;
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job(turn);
        for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
            const uint32_t hole = layer == 3 ? 131 : LENGTH;
            for (uint32_t at = 0; at < LENGTH - 1; at++) {
                if (at != hole) {
                    assert_int_equal(give(f->engine, &job, layer, at, at + 1), BT_OK);
                }
            }
            assert_int_equal(give(f->engine, &job, 0, 131, 132), BT_OK);  /* twice does not help */
        }
        bt_error err;
        assert_int_equal(bt_engine_external_commit(f->engine, job.ticket, &err), BT_E_PROTOCOL);
        assert_non_null(strstr(err.text, "1 rows"));
        if (turn == 0) {                   /* the ticket is still open */
            assert_int_equal(give(f->engine, &job, 3, 131, 132), BT_OK);
            commit(f->engine, &job);
        } else {
            abandon(f->engine, &job, 0);
        }
        finish_right(r, &o, &got);
        assert_int_equal(got.stats.n_external, turn == 0 ? LENGTH - 1 : 0);
    }
}

/* ---- abandon ---- */

static void abandoned_prompts_keep_what_is_complete(void **state)
{
    fixture *f = *state;
    const struct { uint32_t given, claimed, kept; } cases[] = {
        { 0, 0, 0 }, { 100, 0, 0 }, { 100, 100, 100 }, { 100, 64, 64 },
        { 100, 150, 100 },              /* claims more than it gave */
        { 199, 199, 199 }, { 199, 5000, 199 },
    };
    fake_result got;
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        uint32_t tokens[LENGTH];
        fake_prompt(610 + (uint32_t)i, LENGTH, tokens);
        bt_request_options o = fake_request(tokens, LENGTH, 20);
        o.no_cache = true;
        bt_request *r = fake_submit(f->engine, &o);
        bt_external_offer job = wait_for_job((int)i);
        job.position_end = cases[i].given;
        give_all(f->engine, &job, 32);
        abandon(f->engine, &job, cases[i].claimed);
        finish_right(r, &o, &got);
        assert_int_equal(got.stats.n_external, cases[i].kept);
        assert_int_equal(got.stats.n_local, LENGTH - cases[i].kept);
    }
}

static void an_end_may_be_the_end_of_the_request(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH];
    fake_result got;
    fake_prompt(620, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 20);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    const bt_external_end end = { .end_request = true, .status = BT_E_TIMEOUT,
                                  .message = "box:7070 was unplugged" };
    bt_engine_external_abandon(f->engine, job.ticket, &end);
    fake_finish(r, &got);
    bt_engine_request_release(r);
    assert_int_equal(got.finish, BT_FINISH_ERROR);
    assert_int_equal(got.status, BT_E_TIMEOUT);
    assert_non_null(strstr(got.message, "unplugged"));
    assert_int_equal(got.n, 0);
    place.ends = true;                    /* and when the offer is not even taken */
    fake_ask(f->engine, &o, &got);
    assert_int_equal(got.status, BT_E_LOST);
    assert_non_null(strstr(got.message, "too short"));
}

static atomic_int tag_refs;

static void tag_ref(void *data) { assert_ptr_equal(data, &tag_refs); tag_refs++; }

static void tag_unref(void *data) { assert_ptr_equal(data, &tag_refs); tag_refs--; }

static void the_tag_goes_with_the_request(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH];
    fake_result got;
    bt_request *r = NULL;
    bt_error err;
    fake_prompt(623, LENGTH, tokens);
    bt_request_options o = fake_request(tokens, LENGTH, 3);
    o.tag = (bt_tag){ &tag_refs, tag_ref, tag_unref };
    place.refuses = true;
    fake_ask(f->engine, &o, &got);
    assert_ptr_equal(place.tag, &tag_refs);
    o.tokens = (const uint32_t[]){ UINT32_MAX };
    o.n_tokens = 1;
    assert_int_equal(bt_engine_submit(f->engine, &o, &r, &err), BT_E_BADINPUT);
    (void)fake_stats_idle(f->engine);
    for (int i = 0; tag_refs > 0 && i < FAKE_PATIENCE_MS; i++) {
        bt_clock_sleep_ms(1);             /* the engine's thread lets go of it last */
    }
    assert_int_equal(tag_refs, 0);
}

static void a_refusal_is_prefilled_here_and_measured(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH];
    fake_result got;
    fake_prompt(621, LENGTH, tokens);
    place.refuses = true;
    atomic_store(&f->device.us_per_row, 20);
    const bt_request_options o = fake_request(tokens, LENGTH, 20);
    fake_ask(f->engine, &o, &got);
    assert_answer(&o, &got);
    assert_int_equal(got.stats.n_local, LENGTH);
    pthread_mutex_lock(&place.lock);
    assert_int_equal(place.n_measured, LENGTH);
    assert_true(place.measured_ms >= LENGTH * 0.02);
    pthread_mutex_unlock(&place.lock);
    fake_ask(f->engine, &o, &got);        /* all cached: nobody is asked */
    assert_int_equal(place.n_jobs, 1);
    assert_int_equal(got.stats.n_cached, LENGTH - 1);
}

/* ---- what writers may not do ---- */

static void rows_outside_the_reservation_are_refused(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH];
    fake_prompt(630, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 2);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    static uint64_t rows[4096];
    const struct { uint32_t layer, position, n; } bad[] = {
        { FAKE_LAYERS, 0, 1 }, { UINT32_MAX, 0, 1 }, { 0, LENGTH - 1, 1 }, { 0, LENGTH, 1 },
        { 0, 0, LENGTH }, { 0, 100, 100 }, { 0, UINT32_MAX, 1 }, { 0, 1, UINT32_MAX },
        { 0, UINT32_MAX, UINT32_MAX },
    };
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        assert_int_equal(bt_engine_external_import_rows(f->engine, job.ticket, bad[i].layer,
                                                        bad[i].position, bad[i].n, rows, rows),
                         BT_E_BADINPUT);
    }
    const uint64_t unknown[] = { 0, 1, job.ticket + 1, job.ticket + 256, UINT64_MAX };
    for (size_t i = 0; i < BT_LEN(unknown); i++) {
        assert_int_equal(bt_engine_external_import_rows(f->engine, unknown[i], 0, 0, 1, rows, rows),
                         BT_E_CANCELLED);
        bt_error err;
        assert_int_equal(bt_engine_external_commit(f->engine, unknown[i], &err),
                         BT_E_CANCELLED);
        abandon(f->engine, &(bt_external_offer){ .ticket = unknown[i] }, 1);
    }
    give_all(f->engine, &job, 64);
    commit(f->engine, &job);
    assert_int_equal(bt_engine_external_import_rows(f->engine, job.ticket, 0, 0, 1, rows, rows),
                     BT_E_CANCELLED);
    abandon(f->engine, &job, 0);          /* too late */
    fake_result got;
    finish_right(r, &o, &got);
}

static void a_cancelled_ticket_takes_no_rows(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH];
    fake_prompt(631, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 2);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    assert_int_equal(give(f->engine, &job, 0, 0, 50), BT_OK);
    bt_engine_request_cancel(r);
    fake_result got;
    fake_finish(r, &got);
    assert_int_equal(got.finish, BT_FINISH_CANCELLED);
    assert_int_equal(give(f->engine, &job, 0, 50, 60), BT_E_CANCELLED);
    assert_int_equal(place.n_cancelled, 1);
    assert_int_equal(place.cancelled[0], job.ticket);
    abandon(f->engine, &job, 0);
    bt_engine_request_release(r);
    assert_int_equal(fake_stats_idle(f->engine).kv_pages_used, 0);
}

static void others_decode_while_rows_come(void **state)
{
    fixture *f = *state;
    uint32_t tokens[LENGTH], other[1] = { 5 };
    fake_prompt(632, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 5);
    const bt_request_options quick = fake_request(other, 1, 50);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    fake_result got;
    fake_ask(f->engine, &quick, &got);
    assert_answer(&quick, &got);
    give_all(f->engine, &job, 64);
    commit(f->engine, &job);
    finish_right(r, &o, &got);
}

/* A remote prompt is the youngest when pages run out: it is cancelled and asked for again. */
static void short_pages_send_a_remote_prompt_back_to_the_line(void **state)
{
    (void)state;
    bt_request *first;
    fixture *f = open_with_answer(512, 400, 0, &first);
    static uint32_t tokens[300];
    fake_prompt(634, 300, tokens);
    const bt_request_options o = fake_request(tokens, 300, 5);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    assert_int_equal(give(f->engine, &job, 0, 0, 100), BT_OK);
    expect_whole(first);
    assert_int_equal(place.n_cancelled, 1);
    assert_int_equal(give(f->engine, &job, 0, 100, 101), BT_E_CANCELLED);
    const bt_external_offer again = wait_for_job(1);
    assert_int_not_equal(again.ticket, job.ticket);
    give_all(f->engine, &again, 64);
    commit(f->engine, &again);
    fake_result got;
    finish_right(r, &o, &got);
    assert_int_equal(got.n_begin, 1);
    fake_close(f);
}

static void the_engine_may_end_with_rows_under_way(void **state)
{
    (void)state;
    const bt_engine_options options = fake_options();
    fixture *f = open_with(&options);
    uint32_t tokens[LENGTH];
    fake_prompt(635, LENGTH, tokens);
    const bt_request_options o = fake_request(tokens, LENGTH, 5);
    bt_request *r = fake_submit(f->engine, &o);
    const bt_external_offer job = wait_for_job(0);
    assert_int_equal(give(f->engine, &job, 0, 0, 100), BT_OK);
    fake_close(f);
    assert_int_equal(place.n_cancelled, 1);
    fake_result got;
    fake_finish(r, &got);
    assert_int_equal(got.status, BT_E_CLOSED);
    bt_engine_request_release(r);
}

/* ---- threads: several write while requests are cancelled under them ---- */

typedef struct { bt_engine *engine; bt_external_offer job; uint32_t first; } writer;

static void *write_rows(void *context)
{
    const writer *w = context;
    for (uint32_t at = w->first; at < w->job.position_end; at += 6) {
        for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
            const uint32_t end = at + 3 < w->job.position_end ? at + 3 : w->job.position_end;
            if (give(w->engine, &w->job, layer, at, end) != BT_OK) {
                return NULL;
            }
        }
    }
    return NULL;
}

static void writers_and_cancels_do_not_meet(void **state)
{
    fixture *f = *state;
    fake_result got;
    for (int round = 0; round < 30; round++) {
        uint32_t tokens[LENGTH];
        fake_prompt(700 + (uint32_t)round, LENGTH, tokens);
        bt_request_options o = fake_request(tokens, LENGTH, 5);
        o.no_cache = true;
        bt_request *r = fake_submit(f->engine, &o);
        const bt_external_offer job = wait_for_job(round);
        writer w[2] = { { f->engine, job, 0 }, { f->engine, job, 3 } };
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            pthread_create(&threads[i], NULL, write_rows, &w[i]);
        }
        if (round % 2) {
            const uint64_t until = bt_clock_ns() + (uint64_t)round * 20000;
            while (bt_clock_ns() < until) {
            }
            bt_engine_request_cancel(r);
            fake_finish(r, &got);
            assert_int_equal(got.finish, BT_FINISH_CANCELLED);
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
        }
        commit(f->engine, &job);
        if (round % 2 == 0) {
            fake_finish(r, &got);
            assert_answer(&o, &got);
            assert_int_equal(got.stats.n_external, LENGTH - 1);
        }
        bt_engine_request_release(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DEFAULT(committed_rows_give_the_same_answer),
        IN_DEFAULT(committed_rows_are_cached_and_only_the_rest_is_asked_for),
        IN_DEFAULT(rows_may_come_in_any_order_and_twice),
        IN_DEFAULT(a_commit_without_all_rows_is_refused),
        IN_DEFAULT(abandoned_prompts_keep_what_is_complete),
        IN_DEFAULT(an_end_may_be_the_end_of_the_request),
        IN_DEFAULT(the_tag_goes_with_the_request),
        IN_DEFAULT(a_refusal_is_prefilled_here_and_measured),
        IN_DEFAULT(rows_outside_the_reservation_are_refused),
        IN_DEFAULT(a_cancelled_ticket_takes_no_rows),
        IN_DEFAULT(others_decode_while_rows_come),
        cmocka_unit_test(short_pages_send_a_remote_prompt_back_to_the_line),
        cmocka_unit_test(the_engine_may_end_with_rows_under_way),
        IN_DEFAULT(writers_and_cancels_do_not_meet),
    };
    return cmocka_run_group_tests_name("engine/import", tests, NULL, NULL);
}
