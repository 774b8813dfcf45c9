/* A tape with every op of the vocabulary, its weights, and steps to run it with. */
#ifndef TESTS_DEVICE_BENCH_H
#define TESTS_DEVICE_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu.h"

enum {
    WIDTH = 96, HEADS = 6, KEY_HEADS = 2, DIM = 32, DIM_V = 32, FF = 160, VOCAB = 77, LAYERS = 2,
    PAGE = 8, POOL_PAGES = 64, ROWS_MAX = 96
};

static const bt_type all_types[] = { BT_TYPE_F32, BT_TYPE_F16, BT_TYPE_BF16, BT_TYPE_Q8_0,
                                     BT_TYPE_Q4_0, BT_TYPE_Q4_1, BT_TYPE_Q5_0, BT_TYPE_Q5_1,
                                     BT_TYPE_IQ4_NL };

typedef struct {
    bt_device   *device;
    bt_mt19937   random;
    bt_tape     *tape;
    uint32_t     marks[64], n_marks;
    bt_kv_layout layout;
    bt_kv_layer  layers[LAYERS];
    void        *kept[256];              /* bytes of weights, which must stay */
    uint32_t     n_kept;
} bench;

static inline float bench_value(bench *b)
{
    /* Nearly normal: the sum of four uniform draws. */
    double sum = -2;
    for (int i = 0; i < 4; i++) {
        sum += bt_mt19937_unit(&b->random);
    }
    return (float)(sum * 1.7);
}

static inline bt_weight bench_weight(bench *b, bt_type type, uint32_t n_in, uint32_t n_out,
                                     float size, float middle, bool as_table)
{
    const size_t n = (size_t)n_in * n_out;
    float *values = malloc(n * sizeof *values);
    uint64_t row_bytes;
    bt_weight w;
    for (size_t i = 0; i < n; i++) {
        values[i] = middle + size * bench_value(b);
    }
    assert_true(bt_quant_type_row_bytes(bt_quant_type_find(type), n_in, &row_bytes));
    void *bytes = malloc(row_bytes * n_out);
    assert_int_equal(bt_quant_type_encode(type, values, bytes, n), BT_OK);
    free(values);
    b->kept[b->n_kept++] = bytes;
    const bt_weight_source s = { .name = "weight", .type = type, .n_in = n_in, .n_out = n_out,
                                 .rows = bytes, .size_bytes = row_bytes * n_out,
                                 .as_table = as_table };
    assert_int_equal(bt_device_weight_load(b->device, &s, &w, NULL), BT_OK);
    return w;
}

static inline bt_weight bench_matrix(bench *b, bt_type type, uint32_t n_in, uint32_t n_out)
{
    return bench_weight(b, type, n_in, n_out, 0.1f, 0, false);
}

static inline bt_weight bench_vector(bench *b, uint32_t n, float middle)
{
    return bench_weight(b, BT_TYPE_F32, n, 1, 0.3f, middle, false);
}

static inline bt_weight bench_frequencies(bench *b, uint32_t n)
{
    float *f = malloc(n * sizeof *f);
    bt_weight w;
    for (uint32_t i = 0; i < n; i++) {
        f[i] = (float)(i + 1) / (float)(3 * n);
    }
    const bt_weight_source s = { .name = "angles", .type = BT_TYPE_F32, .n_in = n, .n_out = 1,
                                 .rows = f, .size_bytes = n * sizeof *f };
    assert_int_equal(bt_device_weight_load(b->device, &s, &w, NULL), BT_OK);
    b->kept[b->n_kept++] = f;
    return w;
}

/* Two layers that differ in everything an op can differ in; the last one ends in picked rows. */
static inline void bench_tape(bench *b, bt_type type)
{
    bt_tape *t;
    const uint32_t q = HEADS * DIM, k = KEY_HEADS * DIM, v = KEY_HEADS * DIM_V;
    assert_int_equal(bt_device_tape_create(b->device, &t, NULL), BT_OK);
    const bt_rows x = bt_ops_tape_rows(t, WIDTH), h = bt_ops_tape_rows(t, WIDTH);
    const bt_rows qkv = bt_ops_tape_rows(t, q + k + v), a = bt_ops_tape_rows(t, HEADS * DIM_V);
    const bt_rows again = bt_ops_tape_rows(t, WIDTH);
    const bt_rows gu = bt_ops_tape_rows(t, 2 * FF), g = bt_ops_tape_rows(t, FF);
    const bt_rows xp = bt_ops_tape_rows_picked(t, WIDTH), qp = bt_ops_tape_rows_picked(t, q);
    const bt_rows ap = bt_ops_tape_rows_picked(t, HEADS * DIM_V);
    const bt_rows logits = bt_ops_tape_rows_picked(t, VOCAB);
    bt_ops_put(t, embed, .table = bench_weight(b, type, WIDTH, VOCAB, 1, 0, true), .y = x,
               .scale = 1.5f);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const bt_weight angles = bench_frequencies(b, DIM / 2 - 4 * i);
        const bt_rope_style style = i == 0 ? BT_ROPE_NORM : BT_ROPE_NEOX;
        const bt_type other = i == 0 ? type : BT_TYPE_Q8_0;
        const bt_rows rq = bt_ops_rows_slice(qkv, 0, q), rk = bt_ops_rows_slice(qkv, q, k);
        const bool last = i + 1 == LAYERS;
        bt_ops_tape_set_layer(t, i);
        bt_ops_put(t, rmsnorm, .x = x, .w = bench_vector(b, WIDTH, 1), .y = h, .eps = 1e-5f);
        bt_ops_put(t, linear, .x = h, .y = qkv,
                   .w = { bench_matrix(b, type, WIDTH, q), bench_matrix(b, other, WIDTH, k),
                         bench_matrix(b, BT_TYPE_F32, WIDTH, v) },
                   .bias = { { 0 }, bench_vector(b, k, 0) });
        /* The same rows once more, for another op, in the form that one part of the first has. */
        bt_ops_put(t, linear, .x = h, .y = again, .w = { bench_matrix(b, other, WIDTH, WIDTH) });
        bt_ops_put(t, head_norm, .x = rq, .w = bench_vector(b, DIM, 1), .n_heads = HEADS,
                   .eps = 1e-6f);
        bt_ops_put(t, rope, .x = rq, .frequencies = angles, .n_heads = HEADS, .n_rot = DIM - 8 * i,
                   .style = style, .magnitude = 1.1f);
        bt_ops_put(t, rope, .x = rk, .frequencies = angles, .n_heads = KEY_HEADS,
                   .n_rot = DIM - 8 * i, .style = style, .magnitude = 1.0f);
        bt_ops_put(t, kv_put, .k = rk, .v = bt_ops_rows_slice(qkv, q + k, v), .layer = i);
        bt_ops_put(t, mark, .layer = i);
        if (last) {
            bt_ops_put(t, rows, .x = x, .y = xp);
            bt_ops_put(t, rows, .x = rq, .y = qp);
        }
        bt_ops_put(t, attention, .q = last ? qp : rq, .y = last ? ap : a, .layer = i,
                   .n_heads = HEADS, .n_kv_heads = KEY_HEADS, .window = i == 0 ? 0 : 11,
                   .scale = 0.2f, .softcap = i == 0 ? 5.0f : 0.0f);
        bt_ops_put(t, linear, .x = last ? ap : a, .y = last ? xp : x, .add = true,
                   .w = { bench_matrix(b, type, HEADS * DIM_V, WIDTH) });
        if (last) {
            break;
        }
        bt_ops_put(t, linear, .x = x, .y = gu, .w = { bench_matrix(b, type, WIDTH, FF),
                                             bench_matrix(b, other, WIDTH, FF) });
        bt_ops_put(t, glu, .gate = bt_ops_rows_slice(gu, 0, FF),
                   .up = bt_ops_rows_slice(gu, FF, FF), .y = g, .act = BT_ACT_SILU);
        bt_ops_put(t, glu, .gate = g, .up = bt_ops_rows_slice(gu, 0, FF), .y = g,
                   .act = BT_ACT_GELU_TANH);
        bt_ops_put(t, linear, .x = g, .y = h, .w = { bench_matrix(b, other, FF, WIDTH) });
        bt_ops_put(t, rmsnorm, .x = h, .w = bench_vector(b, WIDTH, 1), .y = x, .eps = 1e-5f,
                   .add = true);
        bt_ops_put(t, add, .x = again, .y = x);
        bt_ops_put(t, scale, .x = x, .by = 0.7f);
    }
    bt_ops_tape_set_layer(t, BT_TAPE_NO_LAYER);
    bt_ops_put(t, linear, .x = xp, .y = logits, .w = { bench_matrix(b, type, WIDTH, VOCAB) },
               .bias = { bench_vector(b, VOCAB, 0) });
    bt_ops_put(t, softcap, .x = logits, .cap = 2.0f);
    bt_ops_tape_set_result(t, logits);
    bt_error err = { 0 };
    if (bt_ops_tape_finish(t, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    b->tape = t;
}

static inline void bench_pool(bench *b, bt_type type_k, bt_type type_v)
{
    uint64_t k_bytes, v_bytes, at = 0;
    assert_true(bt_quant_type_row_bytes(bt_quant_type_find(type_k), KEY_HEADS * DIM, &k_bytes));
    assert_true(bt_quant_type_row_bytes(bt_quant_type_find(type_v), KEY_HEADS * DIM_V, &v_bytes));
    for (uint32_t i = 0; i < LAYERS; i++) {
        b->layers[i] = (bt_kv_layer){ KEY_HEADS * DIM, KEY_HEADS * DIM_V, at, at + PAGE * k_bytes,
                                      k_bytes, v_bytes };
        at += PAGE * (k_bytes + v_bytes);
    }
    b->layout = (bt_kv_layout){ .page_tokens = PAGE, .page_bytes = at, .type_k = type_k,
                                .type_v = type_v, .n_layers = LAYERS, .layers = b->layers };
    assert_int_equal(bt_device_buffer_alloc(b->device, at * POOL_PAGES, &b->layout.buffer, NULL),
                     BT_OK);
}

static inline void bench_mark(void *context, uint32_t layer)
{
    bench *b = context;
    b->marks[b->n_marks++ % BT_LEN(b->marks)] = layer;
}

/* Takes the device. */
static inline bench *bench_open(bt_device *device, bt_type type, bt_type type_k, bt_type type_v)
{
    bench *b = calloc(1, sizeof *b);
    b->device = device;
    bt_mt19937_init(&b->random, 5489);
    bench_tape(b, type);
    bench_pool(b, type_k, type_v);
    assert_int_equal(bt_device_prepare(device, b->tape, ROWS_MAX, ROWS_MAX, NULL), BT_OK);
    return b;
}

static inline void bench_close(bench *b)
{
    bt_ops_tape_destroy(b->tape);
    bt_device_close(b->device);
    for (uint32_t i = 0; i < b->n_kept; i++) {
        free(b->kept[i]);
    }
    free(b);
}

static inline bt_device *bench_cpu(bt_isa isa, uint32_t n_threads)
{
    bt_device *d;
    bt_error err = { 0 };
    const bt_device_cpu_options o = { .isa = isa, .n_threads = n_threads };
    if (bt_device_cpu_open(&o, &d, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return d;
}

/* ---- steps ---- */

enum { SEQUENCES_MAX = 4, PAGES_EACH = POOL_PAGES / SEQUENCES_MAX };

/* Sequences of tokens that depend only on sequence and position; pages in no order. */
typedef struct {
    bt_step          step;
    bt_step_sequence sequences[SEQUENCES_MAX];
    uint32_t tokens[ROWS_MAX], positions[ROWS_MAX], row_sequence[ROWS_MAX], logit_rows[ROWS_MAX];
    uint32_t pages[SEQUENCES_MAX][PAGES_EACH];
} bench_step;

static inline void step_begin(bench *b, bench_step *s)
{
    memset(s, 0, sizeof *s);
    s->step = (bt_step){ .tokens = s->tokens, .positions = s->positions,
                         .row_sequence = s->row_sequence, .sequences = s->sequences,
                         .logit_rows = s->logit_rows, .kv = &b->layout, .on_mark = bench_mark,
                         .mark_context = b };
}

/* n rows of sequence `number` from `position` on; logits of every `every`-th row (0: none). */
static inline void step_add(bench_step *s, uint32_t number, uint32_t position, uint32_t n,
                            uint32_t every)
{
    const uint32_t index = s->step.n_sequences++;
    for (uint32_t i = 0; i < PAGES_EACH; i++) {
        s->pages[index][i] = (i * 7 + 3) % PAGES_EACH * SEQUENCES_MAX + number;
    }
    s->sequences[index] = (bt_step_sequence){ .row_first = s->step.n_rows, .n_rows = n,
                                              .position = position, .pages = s->pages[index],
                                              .n_pages = PAGES_EACH };
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = s->step.n_rows++;
        s->tokens[row] = (number * 31 + (position + i) * 13) % VOCAB;
        s->positions[row] = position + i;
        s->row_sequence[row] = index;
        if (every != 0 && i % every == 0) {
            s->logit_rows[s->step.n_logit_rows++] = row;
        }
    }
}

#endif
