/* Tiny models of every family, made in memory, with one thing wrong where a test asks for it. */
#ifndef TESTS_MODEL_TINY_H
#define TESTS_MODEL_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "gguf/writer.h"
#include "model/model.h"

enum { TINY_LAYERS = 3, TINY_WIDTH = 256, TINY_HEADS = 4, TINY_KV_HEADS = 2, TINY_DIM = 64,
       TINY_FF = 512, TINY_VOCAB = 320, TINY_CONTEXT = 1024,
       TINY_DELTA_K = 2, TINY_DELTA_V = 4, TINY_DELTA_DIM = 32, TINY_TAPS = 4,
       TINY_EXPERTS = 4, TINY_EXPERTS_USED = 2, TINY_FF_EXPERT = 256, TINY_FF_SHARED = 256 };

typedef struct {
    const char *arch;
    bt_type     type;              /* of matrices */
    bt_type     type_v;            /* of attn_v and ffn_down, as mixed files have */
    bool        tied, fused;
    bool        experts;           /* llama: in place of the feed-forward block */
    bool        merged;            /* experts' gate and up in one tensor; qwen3next: ssm_in */
    uint32_t    interval;          /* hybrids: of layers with attention; 0: TINY_LAYERS */
    bool        behind;            /* hybrids: a block behind the layers */
    const char *without_key;       /* left out; the test adds its own */
    void      (*more_keys)(bt_gguf_writer *w);
    const char *without_tensor;
    const char *wider_tensor;      /* one row or value more than wanted */
    const char *strange_tensor;    /* of a type that cannot be read */
    const char *extra_tensor;      /* one that nobody asks for */
    bool        backwards;         /* tensors in another order */
    bool        blank;             /* all tensors are zeros: for tests that read keys alone */
} tiny_options;

typedef struct {
    const tiny_options *o;
    bt_gguf_writer      w;
    bt_mt19937          random;
    struct {
        char name[64];
        bt_type type;
        uint32_t n_in, n_out, n_slices;
        void *bytes;
        size_t size;
    } tensors[128];
    uint32_t            n_tensors;
} tiny;

static inline bool tiny_is(const char *a, const char *b)
{
    return b && strcmp(a, b) == 0;
}

static inline void tiny_u32(tiny *t, const char *key, uint32_t v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", t->o->arch, key);
    if (!tiny_is(full, t->o->without_key)) {
        bt_gguf_writer_put_integer(&t->w, full, BT_GGUF_U32, v);
    }
}

static inline void tiny_f32(tiny *t, const char *key, double v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", t->o->arch, key);
    if (!tiny_is(full, t->o->without_key)) {
        bt_gguf_writer_put_real(&t->w, full, BT_GGUF_F32, v);
    }
}

static inline void tiny_tensor(tiny *t, const char *name, bt_type type, uint32_t n_in,
                               uint32_t n_out, float middle, float size)
{
    uint64_t row_bytes;
    bt_mt19937 *random = &t->random;
    if (tiny_is(name, t->o->without_tensor)) {
        return;
    }
    bt_mt19937_init(random, bt_checksum32(name, strlen(name)));   /* whatever the order */
    n_in += tiny_is(name, t->o->wider_tensor) && n_out == 1;
    n_out += tiny_is(name, t->o->wider_tensor) && n_out != 1;
    const size_t n = t->o->blank ? 0 : (size_t)n_in * n_out;
    float *values = malloc((n + 1) * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        const double spread = bt_mt19937_unit(random) + bt_mt19937_unit(random) +
                              bt_mt19937_unit(random) - 1.5;
        values[i] = middle + (float)(2 * spread) * size;
    }
    assert_true(bt_quant_type_row_bytes(bt_quant_type_find(type), n_in, &row_bytes));
    void *bytes = calloc(n_out, row_bytes);
    if (n > 0) {
        assert_int_equal(bt_quant_type_encode(type, values, bytes, n), BT_OK);
    }
    free(values);
    const uint32_t i = t->n_tensors++;
    assert_true(i < BT_LEN(t->tensors));
    snprintf(t->tensors[i].name, sizeof t->tensors[i].name, "%s", name);
    t->tensors[i].type = type;
    t->tensors[i].n_in = n_in;
    t->tensors[i].n_out = n_out;
    t->tensors[i].n_slices = 1;
    t->tensors[i].bytes = bytes;
    t->tensors[i].size = (size_t)(row_bytes * n_out);
}

static inline void tiny_matrix(tiny *t, const char *name, bt_type type, uint32_t n_in,
                               uint32_t n_out)
{
    tiny_tensor(t, name, type, n_in, n_out, 0, 1.5f / sqrtf((float)n_in));
}

static inline void tiny_experts(tiny *t, const char *name, bt_type type, uint32_t n_in,
                                uint32_t n_out)
{
    const uint32_t before = t->n_tensors;
    tiny_matrix(t, name, type, n_in, n_out * TINY_EXPERTS);
    if (t->n_tensors > before) {
        t->tensors[before].n_out = n_out;
        t->tensors[before].n_slices = TINY_EXPERTS;
    }
}

#define TINY_NAME(format) (snprintf(name, sizeof name, "blk.%u." format, i), name)

static inline bool tiny_is_hybrid(const tiny_options *o)
{
    return strncmp(o->arch, "qwen35", 6) == 0 || strcmp(o->arch, "qwen3next") == 0;
}

static inline bool tiny_has_experts(const tiny_options *o)
{
    return o->experts || strstr(o->arch, "moe") || strcmp(o->arch, "qwen3next") == 0;
}

static inline bool tiny_is_recurrent(const tiny_options *o, uint32_t i)
{
    const uint32_t interval = o->interval ? o->interval : TINY_LAYERS;
    return tiny_is_hybrid(o) && i < TINY_LAYERS && (i + 1) % interval != 0;
}

static inline void tiny_delta_net(tiny *t, uint32_t i)
{
    char name[64];
    const bt_type type = t->o->type;
    const uint32_t keys = TINY_DELTA_K * TINY_DELTA_DIM, values = TINY_DELTA_V * TINY_DELTA_DIM;
    const bool next = strcmp(t->o->arch, "qwen3next") == 0;
    if (next && t->o->merged) {
        tiny_matrix(t, TINY_NAME("ssm_in.weight"), type, TINY_WIDTH, 2 * (keys + values));
    } else {
        tiny_matrix(t, TINY_NAME("attn_qkv.weight"), type, TINY_WIDTH, 2 * keys + values);
        tiny_matrix(t, TINY_NAME("attn_gate.weight"), type, TINY_WIDTH, values);
    }
    if (next) {
        tiny_matrix(t, TINY_NAME("ssm_ba.weight"), type, TINY_WIDTH, 2 * TINY_DELTA_V);
    } else {
        tiny_matrix(t, TINY_NAME("ssm_beta.weight"), type, TINY_WIDTH, TINY_DELTA_V);
        tiny_matrix(t, TINY_NAME("ssm_alpha.weight"), type, TINY_WIDTH, TINY_DELTA_V);
    }
    tiny_tensor(t, TINY_NAME("ssm_conv1d.weight"), BT_TYPE_F32, TINY_TAPS, 2 * keys + values, 0,
                0.5f);
    tiny_tensor(t, TINY_NAME("ssm_dt.bias"), BT_TYPE_F32, TINY_DELTA_V, 1, -3, 0.5f);
    tiny_tensor(t, TINY_NAME("ssm_a"), BT_TYPE_F32, TINY_DELTA_V, 1, -4, 0.5f);
    tiny_tensor(t, TINY_NAME("ssm_norm.weight"), BT_TYPE_F32, TINY_DELTA_DIM, 1, 1, 0.1f);
    tiny_matrix(t, TINY_NAME("ssm_out.weight"), type, values, TINY_WIDTH);
}

static inline void tiny_ffn(tiny *t, uint32_t i)
{
    char name[64];
    const tiny_options *o = t->o;
    if (!tiny_has_experts(o)) {
        tiny_matrix(t, TINY_NAME("ffn_gate.weight"), o->type, TINY_WIDTH, TINY_FF);
        tiny_matrix(t, TINY_NAME("ffn_up.weight"), o->type, TINY_WIDTH, TINY_FF);
        tiny_matrix(t, TINY_NAME("ffn_down.weight"), o->type_v, TINY_FF, TINY_WIDTH);
        return;
    }
    tiny_matrix(t, TINY_NAME("ffn_gate_inp.weight"), BT_TYPE_F32, TINY_WIDTH, TINY_EXPERTS);
    if (o->merged) {
        tiny_experts(t, TINY_NAME("ffn_gate_up_exps.weight"), o->type, TINY_WIDTH,
                     2 * TINY_FF_EXPERT);
    } else {
        tiny_experts(t, TINY_NAME("ffn_gate_exps.weight"), o->type, TINY_WIDTH, TINY_FF_EXPERT);
        tiny_experts(t, TINY_NAME("ffn_up_exps.weight"), o->type_v, TINY_WIDTH, TINY_FF_EXPERT);
    }
    tiny_experts(t, TINY_NAME("ffn_down_exps.weight"), o->type_v, TINY_FF_EXPERT, TINY_WIDTH);
    if (tiny_is_hybrid(o)) {
        tiny_tensor(t, TINY_NAME("ffn_gate_inp_shexp.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 0, 0.1f);
        tiny_matrix(t, TINY_NAME("ffn_gate_shexp.weight"), o->type, TINY_WIDTH, TINY_FF_SHARED);
        tiny_matrix(t, TINY_NAME("ffn_up_shexp.weight"), o->type, TINY_WIDTH, TINY_FF_SHARED);
        tiny_matrix(t, TINY_NAME("ffn_down_shexp.weight"), o->type_v, TINY_FF_SHARED, TINY_WIDTH);
    }
}

static inline void tiny_layer(tiny *t, uint32_t i)
{
    char name[64];
    const tiny_options *o = t->o;
    const uint32_t q = TINY_HEADS * TINY_DIM, k = TINY_KV_HEADS * TINY_DIM;
    const bool gemma = strcmp(o->arch, "gemma3") == 0, qwen2 = strcmp(o->arch, "qwen2") == 0;
    tiny_tensor(t, TINY_NAME("attn_norm.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 1, 0.1f);
    if (tiny_is_recurrent(o, i)) {
        tiny_delta_net(t, i);
        tiny_tensor(t, TINY_NAME("post_attention_norm.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 1,
                    0.1f);
        tiny_ffn(t, i);
        return;
    }
    if (o->fused) {
        tiny_matrix(t, TINY_NAME("attn_qkv.weight"), o->type, TINY_WIDTH, q + 2 * k);
    } else {
        tiny_matrix(t, TINY_NAME("attn_q.weight"), o->type, TINY_WIDTH,
                    tiny_is_hybrid(o) ? 2 * q : q);
        tiny_matrix(t, TINY_NAME("attn_k.weight"), o->type, TINY_WIDTH, k);
        tiny_matrix(t, TINY_NAME("attn_v.weight"), o->type_v, TINY_WIDTH, k);
    }
    if (qwen2) {
        tiny_tensor(t, TINY_NAME("attn_q.bias"), BT_TYPE_F32, q, 1, 0, 0.1f);
        tiny_tensor(t, TINY_NAME("attn_k.bias"), BT_TYPE_F32, k, 1, 0, 0.1f);
        tiny_tensor(t, TINY_NAME("attn_v.bias"), BT_TYPE_F32, k, 1, 0, 0.1f);
    }
    if (gemma || strncmp(o->arch, "qwen3", 5) == 0) {
        tiny_tensor(t, TINY_NAME("attn_q_norm.weight"), BT_TYPE_F32, TINY_DIM, 1, 1.2f, 0.1f);
        tiny_tensor(t, TINY_NAME("attn_k_norm.weight"), BT_TYPE_F32, TINY_DIM, 1, 1.2f, 0.1f);
    }
    tiny_matrix(t, TINY_NAME("attn_output.weight"), o->type, q, TINY_WIDTH);
    if (gemma) {
        tiny_tensor(t, TINY_NAME("post_attention_norm.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 1,
                    0.1f);
        tiny_tensor(t, TINY_NAME("post_ffw_norm.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 1, 0.1f);
    }
    if (tiny_is_hybrid(o)) {
        tiny_tensor(t, TINY_NAME("post_attention_norm.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 1,
                    0.1f);
    } else {
        tiny_tensor(t, TINY_NAME("ffn_norm.weight"), BT_TYPE_F32, TINY_WIDTH, 1, 1, 0.1f);
    }
    tiny_ffn(t, i);
}

static inline void tiny_hybrid_keys(tiny *t)
{
    tiny_u32(t, "full_attention_interval", t->o->interval ? t->o->interval : TINY_LAYERS);
    tiny_u32(t, "rope.dimension_count", TINY_DIM / 4);
    tiny_u32(t, "ssm.conv_kernel", TINY_TAPS);
    tiny_u32(t, "ssm.state_size", TINY_DELTA_DIM);
    tiny_u32(t, "ssm.group_count", TINY_DELTA_K);
    tiny_u32(t, "ssm.time_step_rank", TINY_DELTA_V);
    tiny_u32(t, "ssm.inner_size", TINY_DELTA_V * TINY_DELTA_DIM);
    tiny_u32(t, "expert_shared_feed_forward_length", TINY_FF_SHARED);
    if (t->o->behind) {
        tiny_u32(t, "nextn_predict_layers", 1);
    }
}

static inline void tiny_keys(tiny *t)
{
    bt_gguf_writer_put_string(&t->w, "general.architecture", t->o->arch);
    bt_gguf_writer_put_string(&t->w, "general.name", "tiny");
    tiny_u32(t, "block_count", TINY_LAYERS + t->o->behind);
    tiny_u32(t, "context_length", TINY_CONTEXT);
    tiny_u32(t, "embedding_length", TINY_WIDTH);
    tiny_u32(t, "feed_forward_length", TINY_FF);
    tiny_u32(t, "attention.head_count", TINY_HEADS);
    tiny_u32(t, "attention.head_count_kv", TINY_KV_HEADS);
    tiny_u32(t, "attention.key_length", TINY_DIM);
    tiny_u32(t, "attention.value_length", TINY_DIM);
    tiny_f32(t, "attention.layer_norm_rms_epsilon", 1e-6);
    tiny_f32(t, "rope.freq_base", 1e5);
    if (tiny_is_hybrid(t->o)) {
        tiny_hybrid_keys(t);
    }
    if (tiny_has_experts(t->o)) {
        tiny_u32(t, "expert_count", TINY_EXPERTS);
        tiny_u32(t, "expert_used_count", TINY_EXPERTS_USED);
        tiny_u32(t, "expert_feed_forward_length", TINY_FF_EXPERT);
    }
    if (strcmp(t->o->arch, "gemma3") == 0) {
        tiny_u32(t, "attention.sliding_window", 24);
        tiny_u32(t, "attention.sliding_window_pattern", 2);
        tiny_f32(t, "final_logit_softcapping", 20);
    }
    if (t->o->more_keys) {
        t->o->more_keys(&t->w);
    }
}

static inline void tiny_put(tiny *t, uint32_t i)
{
    const bool strange = tiny_is(t->tensors[i].name, t->o->strange_tensor);
    bt_gguf_writer_put_tensor(&t->w, &(bt_gguf_writer_tensor){
        .name = t->tensors[i].name, .type = strange ? 16 : (uint32_t)t->tensors[i].type,
        .n_dims = t->tensors[i].n_slices != 1 ? 3 : t->tensors[i].n_out == 1 ? 1 : 2,
        .ne = { t->tensors[i].n_in, t->tensors[i].n_out, t->tensors[i].n_slices },
        .data = t->tensors[i].bytes,
        .size = strange ? (size_t)t->tensors[i].n_in / 256 * 66 * t->tensors[i].n_out
                        : t->tensors[i].size });
    free(t->tensors[i].bytes);
}

/* The bytes of the file; freed by the caller. */
static inline uint8_t *tiny_make(const tiny_options *o, size_t *ret_size)
{
    tiny *t = calloc(1, sizeof *t);
    bt_buf out;
    t->o = o;
    bt_gguf_writer_init(&t->w, 3, 32);
    tiny_keys(t);
    tiny_matrix(t, "token_embd.weight", o->type, TINY_WIDTH, TINY_VOCAB);
    for (uint32_t i = 0; i < TINY_LAYERS + (uint32_t)o->behind; i++) {
        tiny_layer(t, i);
    }
    if (o->behind) {
        tiny_matrix(t, "blk.3.nextn.eh_proj.weight", o->type, 2 * TINY_WIDTH, TINY_WIDTH);
    }
    tiny_tensor(t, "output_norm.weight", BT_TYPE_F32, TINY_WIDTH, 1, 1, 0.1f);
    if (!o->tied) {
        tiny_matrix(t, "output.weight", o->type, TINY_WIDTH, TINY_VOCAB);
    }
    if (o->extra_tensor) {
        tiny_tensor(t, o->extra_tensor, BT_TYPE_F32, 4, 1, 0, 1);
    }
    for (uint32_t i = 0; i < t->n_tensors; i++) {
        tiny_put(t, o->backwards ? t->n_tensors - 1 - i : i);
    }
    bt_buf_init(&out, BT_MEM_test, 1 << 26);
    assert_int_equal(bt_gguf_writer_write(&t->w, &out, NULL), BT_OK);
    uint8_t *bytes = malloc(out.size);
    memcpy(bytes, out.data, out.size);
    *ret_size = out.size;
    bt_buf_done(&out);
    bt_gguf_writer_done(&t->w);
    free(t);
    return bytes;
}

static inline bt_device *tiny_device(bt_isa isa, uint32_t n_threads)
{
    bt_device *d;
    bt_error err = { 0 };
    const bt_device_cpu_options o = { .isa = isa, .n_threads = n_threads };
    if (bt_device_cpu_open(&o, &d, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return d;
}

typedef struct {
    uint8_t   *bytes;
    size_t     size;
    bt_gguf   *file;
    bt_device *device;
    bt_model  *model;
} tiny_model;

/* Takes the device. What loading says is in err. */
static inline bt_status tiny_open(tiny_model *m, const tiny_options *o, bt_device *device,
                                  bt_error *err)
{
    *m = (tiny_model){ .device = device };
    *err = (bt_error){ 0 };
    m->bytes = tiny_make(o, &m->size);
    bt_status status = bt_gguf_open_memory(m->bytes, m->size, "tiny.gguf", &m->file, err);
    return status != BT_OK ? status : bt_model_load(m->file, m->device, &m->model, err);
}

static inline void tiny_close(tiny_model *m)
{
    bt_model_destroy(m->model);
    bt_device_close(m->device);
    bt_gguf_close(m->file);
    free(m->bytes);
}

#endif
