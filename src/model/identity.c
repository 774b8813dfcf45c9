/* What two machines compare before they share keys and values. Every digest is over bytes in one
 * fixed order, little-endian, so that it depends neither on the machine nor on how a file is split
 * or its tensors and keys are ordered. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/memory.h"
#include "model/family.h"

static void put_u32(bt_digester *d, uint32_t v)
{
    uint8_t bytes[4];
    bt_put_le32(bytes, v);
    bt_digester_put(d, bytes, sizeof bytes);
}

static void put_u64(bt_digester *d, uint64_t v)
{
    uint8_t bytes[8];
    bt_put_le64(bytes, v);
    bt_digester_put(d, bytes, sizeof bytes);
}

static void put_f32(bt_digester *d, float v)
{
    put_u32(d, bt_bits_of_float(v));
}

/* Bytes with their length in front, so that no two lists of texts give the same bytes. */
static void put_bytes(bt_digester *d, const void *bytes, size_t n)
{
    put_u64(d, n);
    bt_digester_put(d, bytes, n);
}

/* ---- weights ---- */

typedef struct { const bt_gguf_tensor *tensor; const bt_digest *content; } named_tensor;

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const named_tensor *)a)->tensor->name, ((const named_tensor *)b)->tensor->name);
}

static bt_status digest_weights(bt_digester *d, const bt_gguf *file, const bt_digest *contents,
                                bt_digest *ret)
{
    const uint32_t n = bt_gguf_tensor_count(file);
    named_tensor *list = bt_alloc_zero(BT_MEM_model, n + 1, sizeof *list);
    if (!list) {
        return BT_E_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i] = (named_tensor){ bt_gguf_tensor_at(file, i), &contents[i] };
    }
    qsort(list, n, sizeof *list, by_tensor_name);
    bt_digester_reset(d);
    for (uint32_t i = 0; i < n; i++) {
        const bt_gguf_tensor *t = list[i].tensor;
        put_bytes(d, t->name, strlen(t->name));
        put_u32(d, (uint32_t)t->type->id);
        for (int dim = 0; dim < 4; dim++) {
            put_u64(d, t->ne[dim]);
        }
        bt_digester_put(d, list[i].content->bytes, sizeof list[i].content->bytes);
    }
    *ret = bt_digester_value(d);
    bt_free(list);
    return BT_OK;
}

/* ---- tokenizer ---- */

static bool is_tokenizer_key(const bt_gguf_pair *p)
{
    static const char prefix[] = "tokenizer.", format[] = "tokenizer.chat_template";
    const size_t n = sizeof prefix - 1, m = sizeof format - 1;
    /* A chat format makes text, not tokens out of text: it may differ. */
    return p->key.size >= n && memcmp(p->key.data, prefix, n) == 0 &&
           !(p->key.size >= m && memcmp(p->key.data, format, m) == 0);
}

static int by_key(const void *a, const void *b)
{
    const bt_gguf_string x = (*(const bt_gguf_pair *const *)a)->key;
    const bt_gguf_string y = (*(const bt_gguf_pair *const *)b)->key;
    const int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    return order != 0 ? order : (x.size > y.size) - (x.size < y.size);
}

static size_t value_bytes(bt_gguf_value_type type)
{
    switch (type) {
    case BT_GGUF_U8: case BT_GGUF_I8: case BT_GGUF_BOOL:  return 1;
    case BT_GGUF_U16: case BT_GGUF_I16:                   return 2;
    case BT_GGUF_U32: case BT_GGUF_I32: case BT_GGUF_F32: return 4;
    case BT_GGUF_U64: case BT_GGUF_I64: case BT_GGUF_F64: return 8;
    default:                                              return 0;
    }
}

static void put_pair(bt_digester *d, const bt_gguf_pair *p)
{
    put_bytes(d, p->key.data, p->key.size);
    put_u32(d, (uint32_t)p->type);
    put_u32(d, (uint32_t)p->element);
    put_u64(d, p->count);
    if (p->element != BT_GGUF_STRING) {
        bt_digester_put(d, p->data, (size_t)p->count * value_bytes(p->element));
        return;
    }
    bt_gguf_strings it = bt_gguf_strings_begin(p);
    bt_gguf_string s;
    while (bt_gguf_strings_next(&it, &s)) {
        put_bytes(d, s.data, s.size);
    }
}

static bt_status digest_tokenizer(bt_digester *d, const bt_gguf *file, bt_digest *ret)
{
    uint32_t n = 0;
    const bt_gguf_pair **list = bt_alloc_zero(BT_MEM_model, bt_gguf_pair_count(file) + 1,
                                              sizeof *list);
    if (!list) {
        return BT_E_NOMEM;
    }
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        if (is_tokenizer_key(bt_gguf_pair_at(file, i))) {
            list[n++] = bt_gguf_pair_at(file, i);
        }
    }
    qsort(list, n, sizeof *list, by_key);
    bt_digester_reset(d);
    for (uint32_t i = 0; i < n; i++) {
        put_pair(d, list[i]);
    }
    *ret = bt_digester_value(d);
    bt_free(list);
    return BT_OK;
}

/* ---- geometry ---- */

/* The angles stand for base, factors and scaling: only what comes out of them matters. */
static bt_digest digest_geometry(bt_digester *d, const bt_model_config *c, const float *frequencies,
                                 uint32_t n_frequencies)
{
    bt_digester_reset(d);
    put_bytes(d, c->architecture, strlen(c->architecture));
    put_u32(d, c->n_layers);
    put_u32(d, c->n_embd);
    put_u32(d, c->n_vocab);
    put_u32(d, c->head_dim_k);
    put_u32(d, c->head_dim_v);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        put_u32(d, c->n_heads[i]);
        put_u32(d, c->n_kv_heads[i]);
        put_u32(d, c->n_ff[i]);
        put_u32(d, c->slides[i]);
    }
    if (c->gated_attention) {
        put_u32(d, c->n_delta_k);
        put_u32(d, c->n_delta_v);
        put_u32(d, c->delta_dim);
        put_u32(d, c->n_taps);
        put_u32(d, c->delta_tiled);
        for (uint32_t i = 0; i < c->n_layers; i++) {
            put_u32(d, c->recurrent[i]);
        }
    }
    if (c->n_experts > 0) {
        put_u32(d, c->n_experts);
        put_u32(d, c->n_experts_used);
        put_u32(d, c->n_ff_expert);
    }
    put_f32(d, c->rms_eps);
    put_f32(d, c->attention_scale);
    put_f32(d, c->logit_softcap);
    put_u32(d, c->window);
    put_u32(d, c->n_rot);
    put_u32(d, (uint32_t)c->rope_style);
    put_f32(d, bt_model_rope_magnitude(c, false));
    put_f32(d, bt_model_rope_magnitude(c, true));
    for (uint32_t i = 0; i < n_frequencies; i++) {
        put_f32(d, frequencies[i]);
    }
    return bt_digester_value(d);
}

bt_status bt_model_identify(const bt_gguf *file, const bt_model_config *c,
                            const bt_digest *contents, const float *frequencies,
                            uint32_t n_frequencies, bt_model_identity *ret_identity, bt_error *err)
{
    bt_digester *d = NULL;
    bt_model_identity made;
    bt_status status = bt_digester_create(&d);
    if (status == BT_OK) {
        status = digest_weights(d, file, contents, &made.weights);
    }
    if (status == BT_OK) {
        status = digest_tokenizer(d, file, &made.tokenizer);
    }
    if (status == BT_OK) {
        made.geometry = digest_geometry(d, c, frequencies, n_frequencies);
        *ret_identity = made;
    }
    bt_digester_destroy(d);
    return status == BT_OK ? BT_OK : bt_fail(err, status, "no memory for the identity of a model");
}
