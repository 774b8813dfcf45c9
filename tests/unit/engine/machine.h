/* The engine on real (tiny) models, as two tests use it. */
#ifndef BT_TESTS_ENGINE_MACHINE_H
#define BT_TESTS_ENGINE_MACHINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "device/cpu/cpu.h"
#include "engine/engine.h"

enum { PREDICT = 12, PROMPT_MAX = 300, PATIENCE_MS = 60000, BATCH = 256,
       SNAPSHOT_EVERY = 48 };

typedef struct {
    bt_gguf      *file;
    bt_device    *device;
    bt_model     *model;
    bt_tokenizer *tokenizer;
    bt_engine    *engine;
} machine;

#define must(call)                                              \
    do {                                                        \
        bt_error err = { 0 };                                   \
        const bt_status must_status = (call);                   \
        if (must_status != BT_OK) {                             \
            print_error("%s: %s\n", #call, err.text);           \
        }                                                       \
        assert_int_equal(must_status, BT_OK);                   \
    } while (0)

static inline machine open_machine_context(const char *name, uint32_t n_threads, uint32_t chunk,
                                           bool push, uint32_t every, uint64_t snapshot_bytes,
                                           uint32_t n_ctx)
{
    machine m = { 0 };
    char path[1024];
    if (name[0] == '/') {
        snprintf(path, sizeof path, "%s", name);
    } else {
        snprintf(path, sizeof path, "%s/tests/golden/models/%s.gguf", BATON_SOURCE_DIR, name);
    }
    const bt_device_cpu_options cpu = { .isa = bt_cpu_isa_detect(), .n_threads = n_threads,
                                        .n_threads_batch = n_threads };
    must(bt_gguf_open(path, &m.file, &err));
    must(bt_device_cpu_open(&cpu, &m.device, &err));
    must(bt_model_load(m.file, m.device, &m.model, &err));
    must(bt_text_tokenizer_create(m.file, &m.tokenizer, &err));
    const bt_engine_options o = {
        .model = m.model, .tokenizer = m.tokenizer, .device = m.device, .n_parallel = 4,
        .n_ctx = n_ctx, .n_batch = BATCH, .n_prefill_chunk = chunk, .type_k = BT_TYPE_F16,
        .type_v = BT_TYPE_F16, .queue_max = 16, .push = push, .snapshot_every = every,
        .snapshot_bytes = snapshot_bytes,
    };
    must(bt_engine_create(&o, &m.engine, &err));
    return m;
}

static inline machine open_machine_with(const char *name, uint32_t n_threads, uint32_t chunk,
                                        bool push, uint32_t every, uint64_t snapshot_bytes)
{
    return open_machine_context(name, n_threads, chunk, push, every, snapshot_bytes, 2048);
}

static inline machine open_machine(const char *name, uint32_t n_threads, uint32_t chunk, bool push)
{
    return open_machine_with(name, n_threads, chunk, push, SNAPSHOT_EVERY, 64u << 20);
}

static inline void close_machine(machine *m)
{
    bt_engine_destroy(m->engine);
    bt_text_tokenizer_destroy(m->tokenizer);
    bt_model_destroy(m->model);
    bt_device_close(m->device);
    bt_gguf_close(m->file);
}

/* ---- asking ---- */

typedef struct {
    uint32_t n, tokens[PREDICT];
    float    logprobs[PREDICT];
    bt_request_stats stats;
} answer;

static inline void make_prompt(const machine *m, uint32_t seed, uint32_t n, uint32_t *to)
{
    bt_mt19937 g;
    bt_mt19937_init(&g, seed);
    for (uint32_t i = 0; i < n; i++) {
        to[i] = bt_mt19937_next(&g) % bt_model_config_of(m->model)->n_vocab;
    }
}

static inline bt_request *submit(const machine *m, const uint32_t *prompt, uint32_t n, bool drawn,
                          bool no_cache)
{
    bt_request_options o = bt_engine_request_defaults();
    bt_request *r = NULL;
    o.tokens = prompt;
    o.n_tokens = n;
    o.n_predict = PREDICT;
    o.ignore_eog = true;
    o.no_cache = no_cache;
    o.want_logprobs = true;
    o.sampling.temperature = drawn ? 1.0f : 0.0f;
    o.sampling.seed = 7;
    must(bt_engine_submit(m->engine, &o, &r, &err));
    return r;
}

static inline void finish(bt_request *r, answer *to)
{
    bt_event event = { 0 };
    memset(to, 0, sizeof *to);
    while (event.kind != BT_EVENT_END) {
        assert_int_equal(bt_engine_request_wait(r, PATIENCE_MS, &event), BT_OK);
        if (event.kind == BT_EVENT_TOKEN) {
            to->tokens[to->n] = event.token;
            to->logprobs[to->n++] = event.logprob;
        }
    }
    assert_int_equal(event.finish, BT_FINISH_LENGTH);
    assert_int_equal(to->n, PREDICT);
    bt_engine_request_stats_get(r, &to->stats);
    bt_engine_request_release(r);
}

static inline answer ask(const machine *m, const uint32_t *prompt, uint32_t n, bool drawn,
                         bool no_cache)
{
    answer a;
    finish(submit(m, prompt, n, drawn, no_cache), &a);
    return a;
}

static inline void assert_same(const answer *a, const answer *b)
{
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, sizeof a->logprobs);
}

static inline bool is_hybrid(const machine *m)
{
    return bt_model_has_state(bt_model_config_of(m->model));
}

#endif
