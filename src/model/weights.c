/* Tensors by name, with every shape checked before the device sees it. Each tensor's bytes are
 * digested right before the device packs them, so that the file is read once. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "model/family.h"

enum { NAME_MAX = 64 };

struct bt_model_loader {
    const bt_gguf *file;
    bt_device     *device;
    bt_status      status;           /* sticky */
    bt_error      *err;
    bt_digest     *contents;         /* [n_tensors] */
    bool          *used;             /* [n_tensors] digested, and asked for by the family */
};

/* ---- one tensor ---- */

static uint32_t index_of(const bt_model_loader *l, const bt_gguf_tensor *t)
{
    /* Tensors usually stand in one array; if not, look for it. */
    const uintptr_t first = (uintptr_t)bt_gguf_tensor_at(l->file, 0), at = (uintptr_t)t;
    const uint32_t n = bt_gguf_tensor_count(l->file);
    if (at >= first && (at - first) / sizeof *t < n) {
        const uint32_t guess = (uint32_t)((at - first) / sizeof *t);
        if (bt_gguf_tensor_at(l->file, guess) == t) {
            return guess;
        }
    }
    uint32_t i = 0;
    while (bt_gguf_tensor_at(l->file, i) != t) {
        i++;
        BT_ASSERT(i < n);
    }
    return i;
}

static void digest(bt_model_loader *l, const bt_gguf_tensor *t)
{
    const uint32_t i = index_of(l, t);
    if (!l->used[i]) {
        l->contents[i] = bt_digest_of(t->data, t->size_bytes);
        l->used[i] = true;
    }
}

static void shape_text(char to[96], uint32_t n_dims, const uint64_t ne[4])
{
    size_t at = 0;
    to[0] = '\0';
    for (uint32_t i = 0; i < n_dims && at < 80; i++) {
        at += (size_t)snprintf(to + at, 96 - at, "%s%llu", i ? " x " : "",
                               (unsigned long long)ne[i]);
    }
}

static bool fits_slices(bt_model_loader *l, const bt_gguf_tensor *t, uint32_t n_in, uint32_t n_out,
                        uint32_t n_slices)
{
    char found[96];
    if (!t->type->can_decode) {
        l->status = bt_fail(l->err, BT_E_UNSUPPORTED, "'%s': tensor '%s' is of type %s, which this "
                            "build cannot read", bt_gguf_path(l->file), t->name, t->type->name);
        return false;
    }
    if (t->ne[0] == n_in && t->ne[1] == n_out && t->ne[2] == n_slices && t->ne[3] == 1) {
        return true;
    }
    shape_text(found, t->n_dims, t->ne);
    if (n_slices != 1) {
        l->status =
                bt_fail(l->err, BT_E_BADFILE, "'%s': tensor '%s' is %s, but %u x %u x %u is wanted",
                        bt_gguf_path(l->file), t->name, found, n_in, n_out, n_slices);
    } else if (n_out == 1) {
        l->status =
                bt_fail(l->err, BT_E_BADFILE, "'%s': tensor '%s' is %s, but %u values are wanted",
                        bt_gguf_path(l->file), t->name, found, n_in);
    } else {
        l->status = bt_fail(l->err, BT_E_BADFILE, "'%s': tensor '%s' is %s, but %u x %u is wanted",
                            bt_gguf_path(l->file), t->name, found, n_in, n_out);
    }
    return false;
}

static bool fits(bt_model_loader *l, const bt_gguf_tensor *t, uint32_t n_in, uint32_t n_out)
{
    return fits_slices(l, t, n_in, n_out, 1);
}

static bt_weight load_source(bt_model_loader *l, const bt_gguf_tensor *t, bt_weight_source source)
{
    bt_weight w = { 0 };
    bt_weight_shape shape;
    source.name = t->name;
    source.type = t->type->id;
    source.rows = t->data;
    source.size_bytes = t->size_bytes;
    digest(l, t);
    l->status = bt_device_weight_load(l->device, &source, &w, l->err);
    if (l->status == BT_OK && bt_device_weight_shape(l->device, w, &shape) == BT_OK &&
        !shape.mapped) {
        bt_gguf_drop_pages(l->file, t);
    }
    return w;
}

static bt_weight load_tensor(bt_model_loader *l, const bt_gguf_tensor *t, bool as_table)
{
    return load_source(l, t, (bt_weight_source){ .n_in = (uint32_t)t->ne[0],
                                                 .n_out = (uint32_t)t->ne[1],
                                                 .as_table = as_table });
}

static bt_weight load_named(bt_model_loader *l, const char *name, uint32_t n_in, uint32_t n_out,
                            bool optional)
{
    const bt_weight none = { 0 };
    if (l->status != BT_OK) {
        return none;
    }
    const bt_gguf_tensor *t = bt_gguf_tensor_find(l->file, name);
    if (!t) {
        if (!optional) {
            l->status = bt_fail(l->err, BT_E_BADFILE, "'%s': tensor '%s' (%u x %u) is missing",
                                bt_gguf_path(l->file), name, n_in, n_out);
        }
        return none;
    }
    return fits(l, t, n_in, n_out) ? load_tensor(l, t, false) : none;
}

/* The four forms of the door differ in two answers only. */
#define LOAD_NAMED(n_in, n_out, optional)                                \
    char full[NAME_MAX];                                                 \
    va_list args;                                                        \
    va_start(args, name);                                                \
    vsnprintf(full, sizeof full, name, args);                            \
    va_end(args);                                                        \
    return load_named(l, full, n_in, n_out, optional)

bt_weight bt_model_load_matrix(bt_model_loader *l, uint32_t n_in, uint32_t n_out, const char *name,
                               ...)
{
    LOAD_NAMED(n_in, n_out, false);
}

bt_weight bt_model_load_vector(bt_model_loader *l, uint32_t n, const char *name, ...)
{
    LOAD_NAMED(n, 1, false);
}

bt_weight bt_model_load_opt_matrix(bt_model_loader *l, uint32_t n_in, uint32_t n_out,
                                   const char *name, ...)
{
    LOAD_NAMED(n_in, n_out, true);
}

bt_weight bt_model_load_opt_vector(bt_model_loader *l, uint32_t n, const char *name, ...)
{
    LOAD_NAMED(n, 1, true);
}

bt_weight bt_model_load_cut(bt_model_loader *l, const bt_model_cut *cut, const char *name, ...)
{
    const bt_weight none = { 0 };
    const uint32_t n_rows = cut->n_rows ? cut->n_rows : cut->n_out;
    const uint32_t n_slices = cut->n_slices ? cut->n_slices : 1;
    char full[NAME_MAX];
    va_list args;
    va_start(args, name);
    vsnprintf(full, sizeof full, name, args);
    va_end(args);
    if (l->status != BT_OK) {
        return none;
    }
    const bt_gguf_tensor *t = bt_gguf_tensor_find(l->file, full);
    if (!t) {
        l->status = bt_fail(l->err, BT_E_BADFILE, "'%s': tensor '%s' (%u x %u x %u) is missing",
                            bt_gguf_path(l->file), full, cut->n_in, n_rows, n_slices);
        return none;
    }
    if (!fits_slices(l, t, cut->n_in, n_rows, n_slices)) {
        return none;
    }
    return load_source(l, t, (bt_weight_source){
            .n_in = cut->n_in, .n_out = cut->n_out, .n_slices = cut->n_slices,
            .as_taps = cut->as_taps, .as_matrix = cut->as_matrix, .row_first = cut->first,
            .row_run = cut->run, .row_step = cut->step });
}

bool bt_model_has_tensor(const bt_model_loader *l, const char *name, ...)
{
    char full[NAME_MAX];
    va_list args;
    va_start(args, name);
    vsnprintf(full, sizeof full, name, args);
    va_end(args);
    return l->status == BT_OK && bt_gguf_tensor_find(l->file, full);
}

void bt_model_require(bt_model_loader *l, bool there, const char *names, ...)
{
    if (!there && l->status == BT_OK) {
        char text[200];
        va_list args;
        va_start(args, names);
        vsnprintf(text, sizeof text, names, args);
        va_end(args);
        l->status = bt_fail(l->err, BT_E_BADFILE, "'%s': of tensors %s one is missing",
                            bt_gguf_path(l->file), text);
    }
}

/* ---- groups that families share ---- */

void bt_model_load_qkv(bt_model_loader *l, const bt_model_config *c, uint32_t layer, bool may_fuse,
                       bt_model_qkv *to)
{
    const uint32_t q = c->n_heads[layer] * c->head_dim_k;
    const uint32_t k = c->n_kv_heads[layer] * c->head_dim_k;
    const uint32_t v = c->n_kv_heads[layer] * c->head_dim_v;
    if (may_fuse) {
        to->all =
                bt_model_load_opt_matrix(l, c->n_embd, q + k + v, "blk.%u.attn_qkv.weight", layer);
    }
    if (to->all.id != 0) {
        to->all_bias = bt_model_load_opt_vector(l, q + k + v, "blk.%u.attn_qkv.bias", layer);
        return;
    }
    to->q = bt_model_load_matrix(l, c->n_embd, q, "blk.%u.attn_q.weight", layer);
    to->k = bt_model_load_matrix(l, c->n_embd, k, "blk.%u.attn_k.weight", layer);
    to->v = bt_model_load_matrix(l, c->n_embd, v, "blk.%u.attn_v.weight", layer);
    to->q_bias = bt_model_load_opt_vector(l, q, "blk.%u.attn_q.bias", layer);
    to->k_bias = bt_model_load_opt_vector(l, k, "blk.%u.attn_k.bias", layer);
    to->v_bias = bt_model_load_opt_vector(l, v, "blk.%u.attn_v.bias", layer);
}

void bt_model_load_ffn(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                       bt_model_ffn *to)
{
    const uint32_t d = c->n_embd, f = c->n_ff[layer];
    if (c->n_experts > 0) {
        bt_model_load_experts(l, c, layer, to);
        return;
    }
    to->gate = bt_model_load_matrix(l, d, f, "blk.%u.ffn_gate.weight", layer);
    to->up = bt_model_load_matrix(l, d, f, "blk.%u.ffn_up.weight", layer);
    to->down = bt_model_load_matrix(l, f, d, "blk.%u.ffn_down.weight", layer);
    to->gate_bias = bt_model_load_opt_vector(l, f, "blk.%u.ffn_gate.bias", layer);
    to->up_bias = bt_model_load_opt_vector(l, f, "blk.%u.ffn_up.bias", layer);
    to->down_bias = bt_model_load_opt_vector(l, d, "blk.%u.ffn_down.bias", layer);
}

/* ---- the ends of the model ---- */

static void load_ends(bt_model_loader *l, bt_model *m)
{
    const bt_model_config *c = &m->config;
    const bt_gguf_tensor *table = bt_gguf_tensor_find(l->file, "token_embd.weight");
    if (l->status != BT_OK) {
        return;
    }
    if (!table) {
        l->status = bt_fail(l->err, BT_E_BADFILE, "'%s': tensor 'token_embd.weight' is missing",
                            bt_gguf_path(l->file));
        return;
    }
    if (!fits(l, table, c->n_embd, c->n_vocab)) {
        return;
    }
    m->table = load_tensor(l, table, true);
    m->output_norm = bt_model_load_vector(l, c->n_embd, "output_norm.weight");
    m->output = bt_model_load_opt_matrix(l, c->n_embd, c->n_vocab, "output.weight");
    if (m->output.id == 0 && l->status == BT_OK) {
        m->output = load_tensor(l, table, false);
    }
    m->output_bias = bt_model_load_opt_vector(l, c->n_vocab, "output.bias");
}

/* Divisors of the angles, if the file has them: to[n], or NULL. */
static const float *load_factors(bt_model_loader *l, const bt_model_config *c, const char *name,
                                 float *to)
{
    const bt_gguf_tensor *t = bt_gguf_tensor_find(l->file, name);
    if (!t || l->status != BT_OK || !fits(l, t, c->n_rot / 2, 1)) {
        return NULL;
    }
    digest(l, t);
    l->status = bt_quant_type_decode(t->type->id, t->data, to, c->n_rot / 2);
    for (uint32_t i = 0; i < c->n_rot / 2 && l->status == BT_OK; i++) {
        if (!(to[i] > 0.0f) || !isfinite(to[i])) {
            l->status = bt_fail(l->err, BT_E_BADFILE,
                                "'%s': value %u of tensor '%s' is %g, but must "
                                "be above 0",
                                bt_gguf_path(l->file), i, name, (double)to[i]);
        }
    }
    return to;
}

/* Of all layers, or of those that slide, from the file's factors `factors_name`. */
static bt_weight load_angles(bt_model_loader *l, const bt_model_config *c, bool sliding,
                             const char *factors_name)
{
    const uint32_t n = c->n_rot / 2;
    bt_weight angles = { 0 };
    float *frequencies = bt_alloc(BT_MEM_model, 2 * (size_t)n * sizeof *frequencies);
    if (!frequencies && l->status == BT_OK) {
        l->status = bt_fail(l->err, BT_E_NOMEM, "no memory for the angles of a model");
    }
    if (l->status == BT_OK) {
        const float *divide = load_factors(l, c, factors_name, frequencies + n);
        bt_model_rope_frequencies(c, sliding, divide, frequencies);
    }
    if (l->status == BT_OK) {
        const bt_weight_source source = {
            .name = sliding ? "(angles of sliding layers)" : "(angles)", .type = BT_TYPE_F32,
            .n_in = n, .n_out = 1, .rows = frequencies, .size_bytes = n * sizeof *frequencies
        };
        l->status = bt_device_weight_load(l->device, &source, &angles, l->err);
    }
    bt_free(frequencies);
    return angles;
}

static void load_rope(bt_model_loader *l, bt_model *m)
{
    const bt_model_config *c = &m->config;
    const char *name = c->rope_scaling != BT_ROPE_LONG ? "rope_freqs.weight"
                                                       : "rope_factors_short.weight";
    for (int sliding = 0; sliding <= 1 && l->status == BT_OK; sliding++) {
        bt_model_rope *rope = sliding ? &m->rope_sliding : &m->rope;
        rope->frequencies = load_angles(l, c, sliding, name);
        if (c->rope_long_above > 0) {
            rope->long_frequencies = load_angles(l, c, sliding, "rope_factors_long.weight");
        }
        rope->magnitude = bt_model_rope_magnitude(c, sliding);
    }
}

/* A tensor that nothing asked for is part of a computation this build does not do: its answers
 * would be wrong without a word. */
static void refuse_unknown(bt_model_loader *l, const bt_model_config *c)
{
    for (uint32_t i = 0; i < bt_gguf_tensor_count(l->file) && l->status == BT_OK; i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(l->file, i);
        if (l->used[i]) {
            continue;
        }
        const uint32_t block = bt_model_block_of(t->name);
        const bool behind = block >= c->n_layers && block - c->n_layers < c->n_blocks_behind;
        if (strncmp(t->name, "rope_", 5) != 0 && !behind) {
            l->status = bt_fail(l->err, BT_E_UNSUPPORTED, "'%s': tensor '%s' is not part of "
                                "architecture '%s' as this build knows it", bt_gguf_path(l->file),
                                t->name, c->architecture);
            return;
        }
        digest(l, t);
    }
}

bt_status bt_model_weights_load(bt_model *m, const bt_gguf *file, bt_device *device, bt_error *err)
{
    const uint32_t n = bt_gguf_tensor_count(file);
    bt_model_loader l = { .file = file, .device = device, .err = err };
    l.contents = bt_alloc_zero(BT_MEM_model, n + 1, sizeof *l.contents);
    l.used = bt_alloc_zero(BT_MEM_model, n + 1, sizeof *l.used);
    m->layers = bt_alloc_zero(BT_MEM_model, m->config.n_layers, m->family->layer_bytes);
    if (!l.contents || !l.used || !m->layers) {
        l.status = bt_fail(err, BT_E_NOMEM, "no memory for the tables of a model");
    }
    if (l.status == BT_OK) {
        load_ends(&l, m);
    }
    for (uint32_t i = 0; i < m->config.n_layers && l.status == BT_OK; i++) {
        m->family->load(&l, &m->config, i, (char *)m->layers + i * m->family->layer_bytes);
    }
    if (l.status == BT_OK) {
        load_rope(&l, m);
    }
    refuse_unknown(&l, &m->config);
    if (l.status == BT_OK) {
        l.status = bt_model_identify(file, m->config.architecture, l.contents, &m->identity, err);
    }
    bt_free(l.contents);
    bt_free(l.used);
    return l.status;
}
