/* Tensors by name, with every shape checked before the device sees it. Each tensor's bytes are
 * digested right before the device packs them, so that the file is read once. */
#include "model/loader.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/check.h"

enum { NAME_MAX = 64 };

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

void bt_model_digest_tensor(bt_model_loader *l, const bt_gguf_tensor *t)
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

bool bt_model_tensor_fits(bt_model_loader *l, const bt_gguf_tensor *t, uint32_t n_in,
                          uint32_t n_out)
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
    bt_model_digest_tensor(l, t);
    l->status = bt_device_weight_load(l->device, &source, &w, l->err);
    if (l->status == BT_OK && bt_device_weight_shape(l->device, w, &shape) == BT_OK &&
        !shape.mapped) {
        bt_gguf_drop_pages(l->file, t);
    }
    return w;
}

bt_weight bt_model_load_tensor(bt_model_loader *l, const bt_gguf_tensor *t, bool as_table)
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
    return bt_model_tensor_fits(l, t, n_in, n_out) ? bt_model_load_tensor(l, t, false) : none;
}

/* The four public forms differ in two answers only. */
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
