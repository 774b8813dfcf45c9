/* The configuration, read as hostile input: every number is held against a limit before anything
 * is computed with it, and every sentence names the key. */
#include <math.h>
#include <string.h>

#include "model/family.h"

enum { HEAD_DIM_MAX = 8192 };

/* A string cut to the room there is, between characters, always terminated. */
static void copy_text(bt_gguf_string from, char *to, size_t capacity)
{
    size_t n = from.size < capacity - 1 ? from.size : capacity - 1;
    while (n < from.size && n > 0 && ((unsigned char)from.data[n] & 0xC0) == 0x80) {
        n--;
    }
    memcpy(to, from.data, n);
    to[n] = '\0';
}

static bool text_is(bt_gguf_string s, const char *text)
{
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

/* ---- parts ---- */

static void read_sizes(bt_model_keys *k, const bt_model_family *family, bt_model_config *c)
{
    c->n_embd = bt_model_key_u32(k, "embedding_length", 1, BT_WIDTH_MAX);
    c->n_ctx_train = bt_model_key_u32(k, "context_length", 1, BT_CONTEXT_MAX);
    if (!family->has_experts) {
        bt_model_key_per_layer(k, "feed_forward_length", c->n_layers, 1, BT_WIDTH_MAX, c->n_ff);
    }
    c->rms_eps = bt_model_key_opt_f32(k, "attention.layer_norm_rms_epsilon", -1.0f, 0.0f, 1.0f);
    if (k->status == BT_OK && c->rms_eps < 0.0f) {
        bt_model_key_fail(k, BT_E_BADFILE, "the key %s.attention.layer_norm_rms_epsilon is missing",
                          k->architecture);
    }
}

static void read_heads(bt_model_keys *k, bt_model_config *c)
{
    uint32_t first = 0;                  /* with attention; blocks are such that there is one */
    k->ignored = c->recurrent;
    bt_model_key_per_layer(k, "attention.head_count", c->n_layers, 1, BT_HEADS_MAX, c->n_heads);
    if (bt_model_has_key(k, "attention.head_count_kv")) {
        bt_model_key_per_layer(k, "attention.head_count_kv", c->n_layers, 1, BT_HEADS_MAX,
                               c->n_kv_heads);
    } else {
        memcpy(c->n_kv_heads, c->n_heads, sizeof c->n_kv_heads);
    }
    k->ignored = NULL;
    for (uint32_t i = 0; i < c->n_layers && k->status == BT_OK; i++) {
        if (!c->recurrent[i] && c->n_heads[i] % c->n_kv_heads[i] != 0) {
            bt_model_key_fail(k, BT_E_BADFILE, "layer %u has %u heads and %u heads of keys, which "
                              "must divide them", i, c->n_heads[i], c->n_kv_heads[i]);
        }
    }
    if (k->status != BT_OK) {
        return;
    }
    while (c->recurrent[first]) {
        first++;
    }
    if (!bt_model_has_key(k, "attention.key_length") && c->n_embd % c->n_heads[first] != 0) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s.embedding_length %u is not a multiple of %u heads, "
                          "and %s.attention.key_length is missing", k->architecture, c->n_embd,
                          c->n_heads[first], k->architecture);
    }
    const uint32_t usual = c->n_embd / c->n_heads[first];
    c->head_dim_k = bt_model_key_opt_u32(k, "attention.key_length", usual, 1, HEAD_DIM_MAX);
    c->head_dim_v = bt_model_key_opt_u32(k, "attention.value_length", usual, 1, HEAD_DIM_MAX);
    if (k->status == BT_OK && (c->head_dim_k == 0 || c->head_dim_k > HEAD_DIM_MAX ||
                               c->head_dim_v == 0 || c->head_dim_v > HEAD_DIM_MAX)) {
        bt_model_key_fail(k, BT_E_BADFILE, "heads of %u and %u values, at most %d are supported",
                          c->head_dim_k, c->head_dim_v, HEAD_DIM_MAX);
    }
    c->attention_scale = 1.0f / sqrtf((float)c->head_dim_k);
}

static void read_scaling_type(bt_model_keys *k, bt_model_config *c)
{
    bt_gguf_string type = { "linear", 6 };
    if (!bt_model_key_opt_string(k, "rope.scaling.type", &type)) {
        return;
    }
    if (text_is(type, "none")) {
        c->rope_scaling = BT_ROPE_PLAIN;
    } else if (text_is(type, "linear")) {
        c->rope_scaling = BT_ROPE_LINEAR;
    } else if (text_is(type, "yarn")) {
        c->rope_scaling = BT_ROPE_YARN;
    } else if (text_is(type, "longrope")) {
        c->rope_scaling = BT_ROPE_LONG;
    } else {
        char shown[32];
        copy_text(type, shown, sizeof shown);
        bt_model_key_fail(k, BT_E_UNSUPPORTED,
                          "%s.rope.scaling.type is '%s'; none, linear, yarn and "
                          "longrope are supported",
                          k->architecture, shown);
    }
}

static void read_rope(bt_model_keys *k, bt_model_config *c)
{
    if (k->status != BT_OK) {
        return;
    }
    c->n_rot = bt_model_key_opt_u32(k, "rope.dimension_count", c->head_dim_k, 2, c->head_dim_k);
    if (k->status == BT_OK && (c->n_rot % 2 != 0 || c->n_rot < 2)) {
        bt_model_key_fail(k, BT_E_BADFILE, "%u values of each head are rotated (%s.rope."
                          "dimension_count); the number must be even", c->n_rot, k->architecture);
    }
    c->rope_base = bt_model_key_opt_f32(k, "rope.freq_base", 10000.0f, 1.0f, 1e30f);
    c->rope_base_swa = c->rope_base;
    read_scaling_type(k, c);
    const char *factor = bt_model_has_key(k, "rope.scaling.factor") ? "rope.scaling.factor"
                                                                    : "rope.scale_linear";
    c->rope_factor = bt_model_key_opt_f32(k, factor, 1.0f, 0.0f, 1e6f);
    if (c->rope_factor <= 0.0f || c->rope_scaling == BT_ROPE_PLAIN) {
        c->rope_factor = 1.0f;
    }
    c->rope_attn_factor = bt_model_key_opt_f32(k, "rope.scaling.attn_factor", 1.0f, 0.0f, 1e6f);
    c->rope_ctx_original = bt_model_key_opt_u32(k, "rope.scaling.original_context_length",
                                                c->n_ctx_train, 1, BT_CONTEXT_MAX);
}

/* Factors for short prompts and for long ones: both, or neither. */
static void read_long_factors(bt_model_keys *k, bt_model_config *c)
{
    if (k->status != BT_OK || c->rope_scaling != BT_ROPE_LONG ||
        c->n_ctx_train <= c->rope_ctx_original) {
        return;
    }
    const bool has_short = bt_gguf_tensor_find(k->file, "rope_factors_short.weight") != NULL;
    const bool has_long = bt_gguf_tensor_find(k->file, "rope_factors_long.weight") != NULL;
    if (has_short != has_long) {
        bt_model_key_fail(k, BT_E_BADFILE, "tensor 'rope_factors_%s.weight' is missing",
                          has_long ? "short" : "long");
    }
    c->rope_long_above = has_long ? c->rope_ctx_original : 0;
}

/* Rows of the embedding are the vocabulary; a tokenizer in the file must agree. */
static void read_vocabulary(bt_model_keys *k, bt_model_config *c)
{
    const bt_gguf_tensor *table = bt_gguf_tensor_find(k->file, "token_embd.weight");
    const bt_gguf_pair *tokens = bt_gguf_find(k->file, "tokenizer.ggml.tokens");
    uint64_t n = 0;
    if (table) {
        n = table->ne[1];
    } else if (tokens && tokens->type == BT_GGUF_ARRAY) {
        n = tokens->count;
    } else {
        n = bt_model_key_u32(k, "vocab_size", 1, BT_VOCAB_MAX);
    }
    if (n == 0 || n > BT_VOCAB_MAX) {
        bt_model_key_fail(k, BT_E_BADFILE, "a vocabulary of %llu tokens; 1 to %u are supported",
                          (unsigned long long)n, BT_VOCAB_MAX);
    }
    if (table && tokens && tokens->type == BT_GGUF_ARRAY && tokens->count != n) {
        bt_model_key_fail(k, BT_E_BADFILE,
                          "the tokenizer has %llu tokens, but token_embd.weight has "
                          "%llu rows",
                          (unsigned long long)tokens->count, (unsigned long long)n);
    }
    c->n_vocab = k->status == BT_OK ? (uint32_t)n : 0;
}

/* Rows wider than the limit could only come from a made-up file. */
static void check_widths(bt_model_keys *k, const bt_model_config *c)
{
    const uint32_t dim = c->head_dim_k > c->head_dim_v ? c->head_dim_k : c->head_dim_v;
    for (uint32_t i = 0; i < c->n_layers && k->status == BT_OK; i++) {
        if ((uint64_t)c->n_heads[i] * dim > BT_WIDTH_MAX) {
            bt_model_key_fail(k, BT_E_BADFILE,
                              "layer %u has %u heads of %u values: more than %u in "
                              "all",
                              i, c->n_heads[i], dim, BT_WIDTH_MAX);
        }
    }
}

bt_status bt_model_config_read(const bt_gguf *file, bt_model_config *ret_config, bt_error *err)
{
    bt_gguf_string name = { "", 0 };
    const bt_model_family *family = NULL;
    bt_model_config c = { 0 };
    BT_TRY(bt_gguf_get_string(file, "general.architecture", &name, err));
    copy_text(name, c.architecture, sizeof c.architecture);
    BT_TRY(bt_model_family_find(c.architecture, &family, err));
    const bt_gguf_pair *title = bt_gguf_find(file, "general.name");
    if (title && title->type == BT_GGUF_STRING) {
        BT_TRY(bt_gguf_get_string(file, "general.name", &name, err));
        copy_text(name, c.name, sizeof c.name);
    }
    bt_model_keys k = { .file = file, .architecture = c.architecture, .err = err };
    bt_model_read_blocks(&k, family, &c);
    read_sizes(&k, family, &c);
    bt_model_read_experts(&k, family, &c);
    read_heads(&k, &c);
    read_rope(&k, &c);
    read_long_factors(&k, &c);
    read_vocabulary(&k, &c);
    if (family->hybrid) {
        bt_model_read_delta_nets(&k, &c);
    }
    check_widths(&k, &c);
    c.rope_style = family->rope_style;
    if (k.status == BT_OK && family->configure) {
        family->configure(&k, &c);
    }
    if (k.status != BT_OK) {
        return k.status;
    }
    bt_model_count_tensors(file, &c);
    *ret_config = c;
    return BT_OK;
}
