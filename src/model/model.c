/* Loading in order: configuration, weights, tapes. */
#include "model/model.h"

#include "base/check.h"
#include "base/memory.h"
#include "model/family.h"

/* ---- rows ---- */

static uint32_t most(const uint32_t *values, uint32_t n)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        m = values[i] > m ? values[i] : m;
    }
    return m;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* None if there are no columns. */
static bt_rows take(bt_tape *t, bool picked, uint32_t cols)
{
    if (cols == 0) {
        return (bt_rows){ 0 };
    }
    return picked ? bt_ops_tape_rows_picked(t, cols) : bt_ops_tape_rows(t, cols);
}

/* Rows wide enough for every layer. Picked rows need no keys and values. */
static bt_model_rows take_rows(bt_tape *t, const bt_model *m, bool picked)
{
    const bt_model_config *c = &m->config;
    const uint32_t heads = most(c->n_heads, c->n_layers);
    const uint32_t kv_heads = picked ? 0 : most(c->n_kv_heads, c->n_layers);
    const uint32_t ff = most(c->n_ff, c->n_layers);
    const uint32_t q = heads * c->head_dim_k;
    const uint32_t values = c->n_delta_v * c->delta_dim;
    const uint32_t channels = 2 * c->n_delta_k * c->delta_dim + values;
    const uint32_t delta = picked ? values : channels + values + 2 * c->n_delta_v;
    const uint32_t gated = c->gated_attention ? larger(q, values) : 0;
    const bool shared = c->n_experts > 0 && ff > 0;
    return (bt_model_rows){
        .x = take(t, picked, c->n_embd),
        .h = take(t, picked, c->n_embd),
        .o = take(t, picked, m->family->norms_behind || shared ? c->n_embd : 0),
        .qkv = take(t, picked, larger(q + kv_heads * (c->head_dim_k + c->head_dim_v) +
                                              (c->gated_attention ? q : 0), delta)),
        .a = take(t, picked, larger(heads * c->head_dim_v, values)),
        .gate_up = take(t, picked, 2 * ff),
        .g = take(t, picked, larger(ff, gated)),
        .c = take(t, picked, picked ? 0 : channels),
        .scores = take(t, picked, c->n_experts + shared),
        .route = take(t, picked, 2 * c->n_experts_used),
        .expert_gate_up = take(t, picked, 2 * c->n_experts_used * c->n_ff_expert),
        .expert_g = take(t, picked, c->n_experts_used * c->n_ff_expert),
        .expert_down = take(t, picked, c->n_experts_used * (c->n_experts ? c->n_embd : 0)),
    };
}

bt_model_rows bt_model_rows_of(const bt_model_config *c, const bt_model_rows *set, uint32_t layer)
{
    const uint32_t q = c->n_heads[layer] * c->head_dim_k;
    const uint32_t k = c->n_kv_heads[layer] * c->head_dim_k;
    const uint32_t v = c->n_kv_heads[layer] * c->head_dim_v;
    const uint32_t ff = c->n_ff[layer];
    return (bt_model_rows){
        .x = set->x,
        .h = set->h,
        .o = set->o,
        .qkv = bt_ops_rows_slice(set->qkv, 0, q + k + v),
        .q = bt_ops_rows_slice(set->qkv, 0, q),
        .k = bt_ops_rows_slice(set->qkv, q, k),
        .v = bt_ops_rows_slice(set->qkv, q + k, v),
        .a = bt_ops_rows_slice(set->a, 0, c->n_heads[layer] * c->head_dim_v),
        .gate_up = bt_ops_rows_slice(set->gate_up, 0, 2 * ff),
        .gate = bt_ops_rows_slice(set->gate_up, 0, ff),
        .up = bt_ops_rows_slice(set->gate_up, ff, ff),
        .g = bt_ops_rows_slice(set->g, 0, ff),
        .c = set->c, .scores = set->scores, .route = set->route,
        .expert_gate_up = set->expert_gate_up, .expert_g = set->expert_g,
        .expert_down = set->expert_down,
    };
}

/* ---- pieces of a layer that all families share ---- */

void bt_model_put_qkv(bt_tape *t, const bt_model_layer *w, bt_rows x, bt_rows y)
{
    if (w->qkv.id != 0) {
        bt_linear(t, .x = x, .y = y, .w = { w->qkv }, .bias = { w->qkv_bias });
    } else {
        bt_linear(t, .x = x, .y = y, .w = { w->q, w->k, w->v },
                  .bias = { w->q_bias, w->k_bias, w->v_bias });
    }
}

bt_model_rows bt_model_put_kv(bt_tape *t, const bt_model *m, const bt_model_scratch *s,
                              const bt_model_rows *r, uint32_t layer, bool push)
{
    bt_kv_put(t, .k = r->k, .v = r->v, .layer = layer);
    if (push) {
        bt_mark(t, .layer = layer);
    }
    if (layer + 1 < m->config.n_layers) {
        return *r;
    }
    const bt_model_rows picked = bt_model_rows_of(&m->config, &s->picked, layer);
    bt_pick(t, .x = r->x, .y = picked.x);
    bt_pick(t, .x = r->q, .y = picked.q);
    return picked;
}

void bt_model_put_head_norms(bt_tape *t, const bt_model *m, const bt_model_rows *r, uint32_t layer)
{
    const bt_model_config *c = &m->config;
    const bt_model_layer *w = &m->layers[layer];
    bt_head_norm(t, .x = r->q, .w = w->q_norm, .n_heads = c->n_heads[layer], .eps = c->rms_eps);
    bt_head_norm(t, .x = r->k, .w = w->k_norm, .n_heads = c->n_kv_heads[layer], .eps = c->rms_eps);
}

void bt_model_put_rotation(bt_tape *t, const bt_model *m, const bt_model_rows *r, uint32_t layer)
{
    const bt_model_config *c = &m->config;
    const bt_model_rope *rope = c->slides[layer] ? &m->rope_sliding : &m->rope;
    bt_rope(t, .x = r->q, .frequencies = rope->frequencies, .magnitude = rope->magnitude,
            .n_heads = c->n_heads[layer], .n_rot = c->n_rot, .style = c->rope_style);
    bt_rope(t, .x = r->k, .frequencies = rope->frequencies, .magnitude = rope->magnitude,
            .n_heads = c->n_kv_heads[layer], .n_rot = c->n_rot, .style = c->rope_style);
}

void bt_model_put_attention(bt_tape *t, const bt_model *m, const bt_model_rows *r, uint32_t layer)
{
    const bt_model_config *c = &m->config;
    bt_attention(t, .q = r->q, .y = r->a, .layer = layer, .n_heads = c->n_heads[layer],
                 .n_kv_heads = c->n_kv_heads[layer], .scale = c->attention_scale,
                 .window = c->slides[layer] ? c->window : 0);
}

/* ---- the tape ---- */

static bt_status build_tape(const bt_model *m, const bt_device *device, bool push,
                            bt_tape **ret_tape, bt_error *err)
{
    const bt_model_config *c = &m->config;
    bt_tape *t = NULL;
    BT_TRY(bt_device_tape_create(device, &t, err));
    const bt_model_scratch s = {
        .all = take_rows(t, m, false),
        .picked = take_rows(t, m, true),
        .logits = bt_ops_tape_rows_picked(t, c->n_vocab),
    };
    bt_embed(t, .table = m->table, .y = s.all.x,
             .scale = m->family->embed_scale ? m->family->embed_scale(c) : 1.0f);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bt_ops_tape_set_layer(t, i);
        m->family->layer(t, m, &s, i, push);
    }
    bt_ops_tape_set_layer(t, BT_TAPE_NO_LAYER);
    bt_rmsnorm(t, .x = s.picked.x, .w = m->output_norm, .y = s.picked.h, .eps = c->rms_eps);
    bt_linear(t, .x = s.picked.h, .y = s.logits, .w = { m->output }, .bias = { m->output_bias });
    if (c->logit_softcap > 0.0f) {
        bt_softcap(t, .x = s.logits, .cap = c->logit_softcap);
    }
    bt_ops_tape_set_result(t, s.logits);
    const bt_status status = bt_ops_tape_finish(t, err);
    if (status != BT_OK) {
        bt_ops_tape_destroy(t);
        return status;
    }
    *ret_tape = t;
    return BT_OK;
}

/* ---- life ---- */

static bt_status load(bt_model *m, const bt_gguf *file, bt_device *device, bt_error *err)
{
    BT_TRY(bt_model_config_read(file, &m->config, err));
    BT_TRY(bt_model_family_find(m->config.architecture, &m->family, err));
    BT_TRY(bt_model_weights_load(m, file, device, err));
    BT_TRY(build_tape(m, device, false, &m->tape, err));
    return build_tape(m, device, true, &m->push_tape, err);
}

bt_status bt_model_load(const bt_gguf *file, bt_device *device, bt_model **ret_model, bt_error *err)
{
    BT_ASSERT(file && device);
    bt_model *m = bt_alloc_zero(BT_MEM_model, 1, sizeof *m);
    if (!m) {
        return bt_fail(err, BT_E_NOMEM, "no memory for a model");
    }
    const bt_status status = load(m, file, device, err);
    if (status != BT_OK) {
        bt_model_destroy(m);
        return status;
    }
    *ret_model = m;
    return BT_OK;
}

void bt_model_destroy(bt_model *m)
{
    if (m) {
        bt_ops_tape_destroy(m->tape);
        bt_ops_tape_destroy(m->push_tape);
        bt_free(m->layers);
        bt_free(m);
    }
}

/* ---- looking ---- */

const bt_model_config *bt_model_config_of(const bt_model *m) { return &m->config; }
const bt_model_identity *bt_model_identity_of(const bt_model *m) { return &m->identity; }

const bt_tape *bt_model_tape(const bt_model *m, bool push)
{
    return push ? m->push_tape : m->tape;
}

uint32_t bt_model_k_dim(const bt_model_config *c, uint32_t layer)
{
    BT_ASSERT(layer < c->n_layers);
    return c->n_kv_heads[layer] * c->head_dim_k;
}

uint32_t bt_model_v_dim(const bt_model_config *c, uint32_t layer)
{
    BT_ASSERT(layer < c->n_layers);
    return c->n_kv_heads[layer] * c->head_dim_v;
}

uint64_t bt_model_kv_token_bytes(const bt_model_config *c, bt_type type_k, bt_type type_v)
{
    const bt_type_info *k = bt_quant_type_find((uint32_t)type_k),
                       *v = bt_quant_type_find((uint32_t)type_v);
    BT_ASSERT(k && v);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        sum += (uint64_t)bt_model_k_dim(c, i) / k->block_elems * k->block_bytes;
        sum += (uint64_t)bt_model_v_dim(c, i) / v->block_elems * v->block_bytes;
    }
    return sum;
}
