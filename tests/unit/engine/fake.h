/* tests/unit/engine/fake.h - a model and a device whose answers depend on everything they should.
 *
 * The row of a position is a hash of the token and of the row before it, read back through the page
 * table, so one wrong page, position or shared prefix changes every later row. A position's logits
 * are made of all rows up to it. `fake_answer` (unit/engine/ask.h) computes the same without
 * pages, steps or engine. The few functions of model/ and text/tokenizer.h that the engine calls
 * are defined here in place of the real ones.
 */
#ifndef TESTS_ENGINE_FAKE_H
#define TESTS_ENGINE_FAKE_H

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"
#include "unit/device/host_memory.h"

enum {
    FAKE_VOCAB = 64, FAKE_EOG = 63, FAKE_SUPPRESSED = 62, FAKE_LAYERS = 4, FAKE_BARE_LAYER = 2,
    FAKE_ROWS_MAX = 4096, FAKE_SEQUENCES_MAX = 64
};

/* ---- rows ---- */

static inline uint64_t fake_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b * 0x9E3779B97F4A7C15u)) + 0x632BE59BD9B4E019u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

/* K of a layer is this, V its complement. The kept bits never make a NaN of either float. */
static inline uint64_t fake_row(uint64_t before, uint32_t token, uint32_t position, uint32_t layer)
{
    return fake_mix(fake_mix(before, token + 1), (uint64_t)position << 8 | layer);
}

static inline void fake_logits(uint64_t sum, float *logits)
{
    for (uint32_t v = 0; v < FAKE_VOCAB; v++) {
        logits[v] = (float)(fake_mix(sum, v) % 4001) / 500 - 4;
    }
}

/* ---- the model's doors ---- */

struct bt_model { int unused; };

static struct bt_model fake_model;
static bt_tape *fake_tape;
static bt_model_config fake_config = { .n_layers = FAKE_LAYERS, .n_vocab = FAKE_VOCAB };

const bt_model_config *bt_model_config_of(const bt_model *m)
{
    (void)m;
    return &fake_config;
}

uint32_t bt_model_k_dim(const bt_model_config *c, uint32_t layer)
{
    (void)c;
    return layer == FAKE_BARE_LAYER ? 0 : 2;
}

uint32_t bt_model_v_dim(const bt_model_config *c, uint32_t layer)
{
    return bt_model_k_dim(c, layer);
}

const bt_tape *bt_model_tape(const bt_model *m, bool push)
{
    (void)m;
    (void)push;
    return fake_tape;
}

/* ---- the tokenizer's doors: letters, an end, and a token never to be sampled ---- */

struct bt_tokenizer { int unused; };

static struct bt_tokenizer fake_tokenizer;

uint32_t bt_text_tokenizer_count(const bt_tokenizer *t)
{
    (void)t;
    return FAKE_VOCAB;
}

size_t bt_text_tokenizer_piece_max(const bt_tokenizer *t)
{
    (void)t;
    return 8;
}

bool bt_text_tokenizer_is_eog(const bt_tokenizer *t, uint32_t id)
{
    (void)t;
    return id == FAKE_EOG;
}

const uint32_t *bt_text_tokenizer_suppressed(const bt_tokenizer *t, size_t *ret_count)
{
    static const uint32_t ids[1] = { FAKE_SUPPRESSED };
    (void)t;
    *ret_count = 1;
    return ids;
}

/* Token 40 is the first byte of a two-byte character and 41 its second. */
const char *bt_text_tokenizer_piece(const bt_tokenizer *t, uint32_t id, bool special,
                                    size_t *ret_size)
{
    static char pieces[FAKE_VOCAB][4];
    static atomic_flag made = ATOMIC_FLAG_INIT;
    static atomic_bool ready;
    (void)t;
    if (!atomic_flag_test_and_set(&made)) {
        for (int i = 0; i < FAKE_VOCAB; i++) {
            const int letter = i < 26 ? 'a' + i : 'A' + i % 26;
            pieces[i][0] = (char)(i == 40 ? 0xC3 : i == 41 ? 0xA4 : letter);
        }
        atomic_store(&ready, true);
    }
    while (!atomic_load(&ready)) {
    }
    *ret_size = id == FAKE_EOG && !special ? 0 : 1;
    return pieces[id];
}

/* ---- the device ---- */

typedef struct {
    bt_device device;
    uint8_t  *memory;
    float     logits[FAKE_SEQUENCES_MAX][FAKE_VOCAB];
    /* Knobs, set between steps or before the engine starts. */
    atomic_uint us_per_step, us_per_row;
    atomic_int  fail_in;              /* steps until one fails; 0: never */
    atomic_int  damage_token;         /* a row of this token gives NaN logits; -1: none */
    /* What it saw. */
    atomic_uint n_steps, rows_most, rows_most_mixed, sequences_most;
    atomic_ullong n_rows;
    bool        pushes;
    /* A gate in front of each step (fake_gate_*). */
    pthread_mutex_t gate_lock;
    pthread_cond_t  gate_changed;
    bool            gate_closed, at_gate;
    uint32_t        n_passes;          /* steps that may pass though it is closed */
} fake_device;

static bt_status fake_alloc(bt_device *d, uint64_t size, bt_buffer *ret, bt_error *err)
{
    fake_device *f = (fake_device *)d;
    f->memory = calloc(1, size);
    if (!f->memory) {
        return bt_fail(err, BT_E_NOMEM, "no memory");
    }
    ret->id = 1;
    return BT_OK;
}

static void fake_free(bt_device *d, bt_buffer b)
{
    (void)b;
    free(((fake_device *)d)->memory);
    ((fake_device *)d)->memory = NULL;
}

HOST_MEMORY(fake_device)

static bt_status fake_weight_shape(const bt_device *d, bt_weight w, bt_weight_shape *ret)
{
    (void)d;
    (void)w;
    *ret = (bt_weight_shape){ .n_in = FAKE_VOCAB, .n_out = FAKE_VOCAB, .type = BT_TYPE_F32 };
    return BT_OK;
}

static bt_status fake_prepare(bt_device *d, const bt_tape *t, uint32_t n_rows,
                              uint32_t n_logit_rows, bt_error *err)
{
    (void)d;
    (void)t;
    (void)err;
    assert_true(n_rows <= FAKE_ROWS_MAX && n_logit_rows <= FAKE_SEQUENCES_MAX);
    return BT_OK;
}

static uint64_t *fake_place(fake_device *f, const bt_kv_layout *kv, const bt_step_sequence *s,
                            uint32_t layer, uint32_t position, bool v)
{
    const bt_kv_layer *y = &kv->layers[layer];
    const uint32_t page = s->pages[position / kv->page_tokens], slot = position % kv->page_tokens;
    const uint64_t at = v ? y->v_offset + slot * y->v_row_bytes
                          : y->k_offset + slot * y->k_row_bytes;
    return (uint64_t *)(void *)(f->memory + page * kv->page_bytes + at);
}

static void fake_layer(fake_device *f, const bt_step *s, uint32_t layer)
{
    for (uint32_t i = 0; layer != FAKE_BARE_LAYER && i < s->n_sequences; i++) {
        const bt_step_sequence *q = &s->sequences[i];
        for (uint32_t row = q->row_first; row < q->row_first + q->n_rows; row++) {
            const uint32_t p = s->positions[row];
            const uint64_t before = p == 0 ? 0 : *fake_place(f, s->kv, q, layer, p - 1, false);
            const uint64_t k = fake_row(before, s->tokens[row], p, layer);
            *fake_place(f, s->kv, q, layer, p, false) = k;
            *fake_place(f, s->kv, q, layer, p, true) = ~k;
        }
    }
}

static uint64_t fake_sum(fake_device *f, const bt_step *s, const bt_step_sequence *q, uint32_t end)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
        for (uint32_t p = 0; layer != FAKE_BARE_LAYER && p < end; p++) {
            const uint64_t k = *fake_place(f, s->kv, q, layer, p, false);
            const uint64_t v = *fake_place(f, s->kv, q, layer, p, true);
            sum = fake_mix(sum, k);
            sum += k ^ ~v;                       /* 0 when V is what it should be */
        }
    }
    return sum;
}

/* What every step must hold to (device/step.h). */
static void fake_check(const bt_step *s)
{
    uint32_t rows = 0;
    assert_true(s->n_rows >= 1 && s->n_rows <= FAKE_ROWS_MAX);
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        const bt_step_sequence *q = &s->sequences[i];
        assert_int_equal(q->row_first, rows);
        assert_true(q->n_rows >= 1);
        assert_true(q->position + q->n_rows <= q->n_pages * s->kv->page_tokens);
        for (uint32_t j = 0; j < q->n_rows; j++) {
            assert_int_equal(s->row_sequence[rows], i);
            assert_int_equal(s->positions[rows], q->position + j);
            rows++;
        }
    }
    assert_int_equal(rows, s->n_rows);
    for (uint32_t i = 0; i < s->n_logit_rows; i++) {
        assert_true(s->logit_rows[i] < s->n_rows);
        assert_true(i == 0 || s->logit_rows[i - 1] < s->logit_rows[i]);
    }
}

static void fake_note(fake_device *f, const bt_step *s)
{
    uint32_t decode = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        decode += s->sequences[i].n_rows == 1;
    }
    atomic_fetch_add(&f->n_steps, 1);
    atomic_fetch_add(&f->n_rows, s->n_rows);
    if (s->n_rows > atomic_load(&f->rows_most)) {
        atomic_store(&f->rows_most, s->n_rows);
    }
    if (decode > 0 && s->n_rows - decode > atomic_load(&f->rows_most_mixed)) {
        atomic_store(&f->rows_most_mixed, s->n_rows - decode);
    }
    if (s->n_sequences > atomic_load(&f->sequences_most)) {
        atomic_store(&f->sequences_most, s->n_sequences);
    }
}

static void fake_pass_gate(fake_device *f)
{
    pthread_mutex_lock(&f->gate_lock);
    while (f->gate_closed && f->n_passes == 0) {
        f->at_gate = true;
        pthread_cond_broadcast(&f->gate_changed);
        pthread_cond_wait(&f->gate_changed, &f->gate_lock);
    }
    f->at_gate = false;
    f->n_passes -= f->gate_closed;
    pthread_mutex_unlock(&f->gate_lock);
}

static bt_status fake_run(bt_device *d, const bt_tape *t, const bt_step *s, uint32_t op_first,
                          uint32_t op_last, bt_error *err)
{
    fake_device *f = (fake_device *)d;
    (void)t;
    (void)op_first;
    (void)op_last;
    fake_pass_gate(f);
    fake_check(s);
    fake_note(f, s);
    const uint32_t us = atomic_load(&f->us_per_step) + s->n_rows * atomic_load(&f->us_per_row);
    const uint64_t until = bt_clock_ns() + us * 1000u;
    for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
        fake_layer(f, s, layer);
        if (f->pushes) {
            s->on_mark(s->mark_context, layer);
        }
    }
    for (uint32_t i = 0; i < s->n_logit_rows; i++) {
        const uint32_t row = s->logit_rows[i];
        const bt_step_sequence *q = &s->sequences[s->row_sequence[row]];
        fake_logits(fake_sum(f, s, q, s->positions[row] + 1), f->logits[i]);
        if ((int)s->tokens[row] == atomic_load(&f->damage_token)) {
            f->logits[i][5] = NAN;
        }
    }
    while (us > 0 && bt_clock_ns() < until) {
        if (until - bt_clock_ns() > 2000000) {
            bt_clock_sleep_ms(1);
        }
    }
    if (atomic_load(&f->fail_in) > 0 && atomic_fetch_sub(&f->fail_in, 1) == 1) {
        return bt_fail(err, BT_E_DEVICE, "a fuse blew");
    }
    return BT_OK;
}

static bt_status fake_wait(bt_device *d, bt_error *err)
{
    (void)d;
    (void)err;
    return BT_OK;
}

static const float *fake_read_rows(bt_device *d, bt_rows rows, uint64_t *ret_stride)
{
    (void)rows;
    *ret_stride = FAKE_VOCAB;
    return ((fake_device *)d)->logits[0];
}

static const bt_device_ops fake_ops = {
    .name = "fake", .buffer_alloc = fake_alloc, .buffer_free = fake_free, HOST_MEMORY_OPS,
    .weight_shape = fake_weight_shape, .prepare = fake_prepare, .run = fake_run, .wait = fake_wait,
    .read_rows = fake_read_rows,
};

/* ---- an engine on it ---- */

typedef struct {
    fake_device device;
    bt_engine  *engine;
} fixture;

static inline bt_engine_options fake_options(void)
{
    return (bt_engine_options){
        .model = &fake_model, .tokenizer = &fake_tokenizer, .n_parallel = 4, .n_ctx = 1024,
        .n_batch = 256, .n_prefill_chunk = 64, .type_k = BT_TYPE_F32, .type_v = BT_TYPE_F32,
        .queue_max = 64,
    };
}

static inline void fake_device_init(fake_device *d, bool pushes)
{
    memset(d, 0, sizeof *d);
    d->device.ops = &fake_ops;
    d->pushes = pushes;
    pthread_mutex_init(&d->gate_lock, NULL);
    pthread_cond_init(&d->gate_changed, NULL);
    atomic_init(&d->damage_token, -1);
    if (!fake_tape) {
        bt_error err = { 0 };
        assert_int_equal(bt_device_tape_create(&d->device, &fake_tape, &err), BT_OK);
        const bt_rows x = bt_ops_tape_rows(fake_tape, FAKE_VOCAB);
        const bt_rows y = bt_ops_tape_rows_picked(fake_tape, FAKE_VOCAB);
        bt_ops_put(fake_tape, embed, .table = { 1 }, .y = x, .scale = 1);
        bt_ops_put(fake_tape, rows, .x = x, .y = y);
        bt_ops_tape_set_result(fake_tape, y);
        assert_int_equal(bt_ops_tape_finish(fake_tape, &err), BT_OK);
    }
}

static inline fixture *fake_open(const bt_engine_options *options)
{
    fixture *f = calloc(1, sizeof *f);
    bt_engine_options o = *options;
    bt_error err = { 0 };
    fake_device_init(&f->device, o.push);
    o.device = &f->device.device;
    const bt_status status = bt_engine_create(&o, &f->engine, &err);
    if (status != BT_OK) {
        print_error("engine: %s\n", err.text);
    }
    assert_int_equal(status, BT_OK);
    return f;
}

/* By then no request holds a page: the pool's end asserts it. */
static inline void fake_close(fixture *f)
{
    bt_engine_destroy(f->engine);
    assert_null(f->device.memory);
    free(f);
}

#endif
