/* tests/unit/engine/place.h - takes offers in tests: remembers what it was asked, computes rows.
 *
 * Tests of both ways to use the rows of somebody else, import.c and hedge.c, stand on it.
 */
#ifndef PLACE_H
#define PLACE_H

#include <pthread.h>

#include "engine/external.h"
#include "unit/engine/ask.h"

/* ---- somebody who takes offers and remembers them ---- */

enum { JOBS_MAX = 64, LENGTH = 200 };

typedef struct {
    pthread_mutex_t lock;
    bt_external_offer  jobs[JOBS_MAX];
    uint32_t        tokens[JOBS_MAX][1024];
    int             n_jobs;
    uint64_t        cancelled[JOBS_MAX];
    int             n_cancelled, n_local_first;
    void           *tag;               /* of the last offer */
    bool            refuses, ends;     /* the offer; the request */
    uint32_t        n_measured;
    double          measured_ms;
} taker;

static taker place;

static inline bt_external_answer offer(void *context, const bt_external_offer *job, bt_error *err)
{
    taker *p = context;
    pthread_mutex_lock(&p->lock);
    assert_true(p->n_jobs < JOBS_MAX && job->n_tokens <= 1024);
    memcpy(p->tokens[p->n_jobs], job->tokens, job->n_tokens * sizeof *job->tokens);
    p->jobs[p->n_jobs] = *job;
    p->jobs[p->n_jobs].tokens = p->tokens[p->n_jobs];
    p->tag = job->tag;
    p->n_jobs++;
    const bool keeps = p->refuses || job->ticket == 0, ends = p->ends;
    pthread_mutex_unlock(&p->lock);
    if (ends) {
        (void)bt_fail(err, BT_E_LOST, "too short");
    }
    return ends ? BT_EXTERNAL_REFUSED : keeps ? BT_EXTERNAL_LOCAL : BT_EXTERNAL_TAKEN;
}

static inline void cancel(void *context, uint64_t ticket, void *tag, bt_external_reason reason)
{
    taker *p = context;
    (void)tag;
    pthread_mutex_lock(&p->lock);
    if (reason == BT_EXTERNAL_GONE) {
        p->cancelled[p->n_cancelled++] = ticket;
    } else {
        p->n_local_first++;
    }
    pthread_mutex_unlock(&p->lock);
}

static inline void measured(void *context, uint32_t position, uint32_t n_tokens, double ms)
{
    taker *p = context;
    (void)position;
    pthread_mutex_lock(&p->lock);
    p->n_measured += n_tokens;
    p->measured_ms += ms;
    pthread_mutex_unlock(&p->lock);
}

static inline fixture *open_with(const bt_engine_options *o)
{
    memset(&place, 0, sizeof place);
    pthread_mutex_init(&place.lock, NULL);
    fixture *f = fake_open(o);
    const bt_external p = { .context = &place, .offer = offer, .cancel = cancel,
                            .measured = measured };
    bt_engine_set_external(f->engine, &p);
    return f;
}

static inline int open_default(void **state)
{
    const bt_engine_options o = fake_options();
    *state = open_with(&o);
    return 0;
}

static inline int close_it(void **state)
{
    fake_close(*state);
    return 0;
}

static inline bt_external_offer wait_for_job(int index)
{
    bt_external_offer job;
    for (int i = 0;; i++) {
        pthread_mutex_lock(&place.lock);
        const bool there = place.n_jobs > index;
        job = place.jobs[index];
        pthread_mutex_unlock(&place.lock);
        if (there) {
            return job;
        }
        assert_true(i < FAKE_PATIENCE_MS);
        bt_clock_sleep_ms(1);
    }
}

/* ---- somebody who computes rows ---- */

static inline bt_status give(bt_engine *e, const bt_external_offer *job, uint32_t layer,
                             uint32_t first, uint32_t end)
{
    uint64_t k[1024], v[1024];
    if (layer == FAKE_BARE_LAYER) {
        return BT_OK;
    }
    fake_rows_of(job->tokens, layer, first, end - first, k, v);
    return bt_engine_external_import_rows(e, job->ticket, layer, first, end - first, k, v);
}

static inline void give_all(bt_engine *e, const bt_external_offer *job, uint32_t chunk)
{
    for (uint32_t at = job->position_first; at < job->position_end; at += chunk) {
        const uint32_t end = at + chunk < job->position_end ? at + chunk : job->position_end;
        for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
            assert_int_equal(give(e, job, layer, at, end), BT_OK);
        }
    }
}

static inline void commit(bt_engine *e, const bt_external_offer *job)
{
    bt_error err;
    const bt_status s = bt_engine_external_commit(e, job->ticket, &err);
    assert_true(s == BT_OK || s == BT_E_CANCELLED);
}

/* Gives the ticket up; the rest is prefilled here. */
static inline void abandon(bt_engine *e, const bt_external_offer *job, uint32_t complete)
{
    const bt_external_end end = { .position_complete = complete, .status = BT_E_LOST };
    bt_engine_external_abandon(e, job->ticket, &end);
}

/* ---- what tests begin and end with ---- */

#define IN_DEFAULT(name) cmocka_unit_test_setup_teardown(name, open_default, close_it)

/* From now on it takes prompts, and counts them from 0. */
static inline void refuse_no_more(void)
{
    pthread_mutex_lock(&place.lock);
    place.refuses = false;
    place.n_jobs = 0;
    pthread_mutex_unlock(&place.lock);
}

static inline void finish_right(bt_request *r, const bt_request_options *o, fake_result *got)
{
    fake_finish(r, got);
    bt_engine_request_release(r);
    assert_answer(o, got);
}

/* An engine with `n_ctx` positions and an answer on its way, prefilled here, that will need most of
 * them; whoever comes next goes elsewhere. */
static inline fixture *open_with_answer(uint32_t n_ctx, uint32_t n_predict, uint32_t us_per_step,
                                        bt_request **ret_first)
{
    bt_engine_options options = fake_options();
    options.n_parallel = 2;
    options.n_ctx = n_ctx;
    fixture *f = open_with(&options);
    static uint32_t tokens[2];
    fake_prompt(960, 2, tokens);
    place.refuses = true;
    atomic_store(&f->device.us_per_step, us_per_step);
    const bt_request_options o = fake_request(tokens, 2, n_predict);
    *ret_first = fake_submit(f->engine, &o);
    fake_wait_for(*ret_first, BT_EVENT_TOKEN);
    refuse_no_more();
    return f;
}

/* That answer comes whole, whatever it takes from others. */
static inline void expect_whole(bt_request *first)
{
    bt_event event;
    do {
        assert_int_equal(bt_engine_request_wait(first, FAKE_PATIENCE_MS, &event), BT_OK);
    } while (event.kind != BT_EVENT_END);
    assert_int_equal(event.finish, BT_FINISH_LENGTH);
    bt_engine_request_release(first);
}

#endif
