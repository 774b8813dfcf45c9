/* tests/unit/engine/ask.h - requests to an engine on the fake device, and what is right. */
#ifndef TESTS_ENGINE_ASK_H
#define TESTS_ENGINE_ASK_H

#include "unit/engine/fake.h"

/* ---- the oracle ---- */

/* Up to n tokens that follow the prompt; fewer when the end token is drawn. */
static inline uint32_t fake_answer(const uint32_t *prompt, uint32_t n_prompt, uint32_t n,
                                   const bt_sampler_options *sampling, bool ignore_eog,
                                   uint32_t n_context, uint32_t *to)
{
    static const uint32_t room = 8192;
    bt_logit_bias bans[] = { { FAKE_SUPPRESSED, -INFINITY }, { FAKE_EOG, -INFINITY } };
    bt_sampler_options o = *sampling;
    bt_sampler *sampler = NULL;
    bt_error err = { 0 };
    uint64_t *rows[FAKE_LAYERS];
    uint32_t *tokens = calloc(room, sizeof *tokens), n_tokens = n_prompt, n_done = 0, n_made = 0;
    o.bias = bans;
    o.n_bias = ignore_eog ? 2 : 1;
    assert_int_equal(bt_sample_create(&o, FAKE_VOCAB, n_context, &sampler, &err), BT_OK);
    memcpy(tokens, prompt, n_prompt * sizeof *tokens);
    for (uint32_t i = 0; i < n_prompt; i++) {
        bt_sample_accept(sampler, prompt[i]);
    }
    for (int layer = 0; layer < FAKE_LAYERS; layer++) {
        rows[layer] = calloc(room, sizeof *rows[layer]);
    }
    while (n_made < n) {
        uint64_t sum = 0;
        float logits[FAKE_VOCAB];
        for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
            for (uint32_t p = n_done; p < n_tokens; p++) {
                rows[layer][p] = fake_row(p ? rows[layer][p - 1] : 0, tokens[p], p, layer);
            }
            for (uint32_t p = 0; layer != FAKE_BARE_LAYER && p < n_tokens; p++) {
                sum = fake_mix(sum, rows[layer][p]);
            }
        }
        n_done = n_tokens;
        fake_logits(sum, logits);
        uint32_t token = 0;
        assert_int_equal(bt_sample_pick(sampler, logits, &token, &err), BT_OK);
        if (token == FAKE_EOG && !ignore_eog) {
            break;
        }
        tokens[n_tokens++] = to[n_made++] = token;
    }
    for (int layer = 0; layer < FAKE_LAYERS; layer++) {
        free(rows[layer]);
    }
    free(tokens);
    bt_sample_destroy(sampler);
    return n_made;
}

/* Rows [position, position + n) of a layer as somebody else would send them. */
static inline void fake_rows_of(const uint32_t *tokens, uint32_t layer, uint32_t position,
                                uint32_t n, uint64_t *k, uint64_t *v)
{
    uint64_t before = 0;
    for (uint32_t p = 0; p < position + n; p++) {
        before = fake_row(before, tokens[p], p, layer);
        if (p >= position) {
            k[p - position] = before;
            v[p - position] = ~before;
        }
    }
}

/* ---- asking ---- */

static inline void fake_prompt(uint32_t seed, uint32_t n, uint32_t *to)
{
    bt_mt19937 g;
    bt_mt19937_init(&g, seed);
    for (uint32_t i = 0; i < n; i++) {
        to[i] = bt_mt19937_next(&g) % 60;
    }
}

static inline bt_request_options fake_request(const uint32_t *tokens, uint32_t n,
                                              uint32_t n_predict)
{
    bt_request_options o = bt_engine_request_defaults();
    o.tokens = tokens;
    o.n_tokens = n;
    o.n_predict = n_predict;
    o.sampling.temperature = 0;
    o.ignore_eog = true;
    return o;
}

static inline bt_request *fake_submit(bt_engine *e, const bt_request_options *o)
{
    bt_request *r = NULL;
    bt_error err = { 0 };
    const bt_status status = bt_engine_submit(e, o, &r, &err);
    if (status != BT_OK) {
        print_error("submit: %s\n", err.text);
    }
    assert_int_equal(status, BT_OK);
    return r;
}

typedef struct {
    uint32_t  tokens[2048], n;
    char      text[4096];
    bt_finish finish;
    bt_status status;
    int       stop_index;
    char      message[BT_ERROR_TEXT_MAX];
    uint32_t  n_begin, n_progress;
    bt_request_stats stats;
} fake_result;

enum { FAKE_PATIENCE_MS = 60000 };

/* Reads events until END. */
static inline void fake_finish(bt_request *r, fake_result *to)
{
    bt_event event = { 0 };
    size_t size = 0;
    memset(to, 0, sizeof *to);
    do {
        assert_int_equal(bt_engine_request_wait(r, FAKE_PATIENCE_MS, &event), BT_OK);
        to->n_begin += event.kind == BT_EVENT_BEGIN;
        to->n_progress += event.kind == BT_EVENT_PROGRESS;
        if (event.kind == BT_EVENT_TOKEN) {
            assert_true(to->n < 2048);
            to->tokens[to->n++] = event.token;
        }
        assert_true(size + event.text_size < sizeof to->text);
        memcpy(to->text + size, event.text, event.text_size);
        size += event.text_size;
    } while (event.kind != BT_EVENT_END);
    to->finish = event.finish;
    to->status = event.status;
    to->stop_index = event.stop_index;
    snprintf(to->message, sizeof to->message, "%s", event.message);
    bt_engine_request_stats_get(r, &to->stats);
}

static inline void fake_ask(bt_engine *e, const bt_request_options *o, fake_result *to)
{
    bt_request *r = fake_submit(e, o);
    fake_finish(r, to);
    bt_engine_request_release(r);
}

static inline void assert_answer(const bt_request_options *o, const fake_result *got)
{
    uint32_t expected[2048];
    const uint32_t n = fake_answer(o->tokens, o->n_tokens, o->n_predict, &o->sampling,
                                   o->ignore_eog, 1024, expected);
    assert_int_equal(got->n, n);
    assert_memory_equal(got->tokens, expected, n * sizeof *expected);
}

/* Waits for an event of this kind and drops those before it. */
static inline void fake_wait_for(bt_request *r, bt_event_kind kind)
{
    bt_event event = { .kind = BT_EVENT_END };
    do {
        assert_int_equal(bt_engine_request_wait(r, FAKE_PATIENCE_MS, &event), BT_OK);
        assert_true(event.kind == kind || event.kind != BT_EVENT_END);
    } while (event.kind != kind);
}

static inline bt_engine_stats fake_stats(bt_engine *e)
{
    bt_engine_stats s;
    bt_engine_stats_get(e, &s);
    return s;
}

/* The engine publishes its counters at the end of a round, a little after the END event. */
static inline bt_engine_stats fake_stats_idle(bt_engine *e)
{
    bt_engine_stats s = fake_stats(e);
    for (int i = 0; (s.n_running > 0 || s.n_waiting > 0) && i < FAKE_PATIENCE_MS; i++) {
        bt_clock_sleep_ms(1);
        s = fake_stats(e);
    }
    assert_int_equal(s.n_running + s.n_waiting, 0);
    return s;
}

/* ---- the gate in front of each step ---- */

static inline void fake_gate_set(fixture *f, bool closed)
{
    pthread_mutex_lock(&f->device.gate_lock);
    f->device.gate_closed = closed;
    pthread_cond_broadcast(&f->device.gate_changed);
    pthread_mutex_unlock(&f->device.gate_lock);
}

/* Until a step stands at the closed gate. */
static inline void fake_gate_wait(fixture *f)
{
    pthread_mutex_lock(&f->device.gate_lock);
    while (!f->device.at_gate) {
        pthread_cond_wait(&f->device.gate_changed, &f->device.gate_lock);
    }
    pthread_mutex_unlock(&f->device.gate_lock);
}

/* Lets the step that stands there pass, and waits for the next one. */
static inline void fake_gate_step(fixture *f)
{
    fake_gate_wait(f);
    pthread_mutex_lock(&f->device.gate_lock);
    f->device.at_gate = false;
    f->device.n_passes = 1;
    pthread_cond_broadcast(&f->device.gate_changed);
    pthread_mutex_unlock(&f->device.gate_lock);
    fake_gate_wait(f);
}

/* ---- what tests begin and end with ---- */

static inline int fake_open_default(void **state)
{
    const bt_engine_options o = fake_options();
    *state = fake_open(&o);
    return 0;
}

static inline int fake_close_it(void **state)
{
    fake_close(*state);
    return 0;
}

#define ON_FAKE(name) cmocka_unit_test_setup_teardown(name, fake_open_default, fake_close_it)

#endif
