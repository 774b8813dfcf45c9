/* Scratch rows, and the pieces of a layer that families share. */
#include "model/family.h"

/* ---- scratch: taken one after the other, so that slots have the same numbers everywhere ---- */

uint32_t bt_model_most(const uint32_t *values, uint32_t n)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        m = values[i] > m ? values[i] : m;
    }
    return m;
}

bt_rows bt_model_take(bt_tape *t, bool picked, uint32_t cols)
{
    if (cols == 0) {
        return (bt_rows){ 0 };
    }
    return picked ? bt_ops_tape_rows_picked(t, cols) : bt_ops_tape_rows(t, cols);
}

bt_model_stream bt_model_take_stream(bt_tape *t, const bt_model_config *c, bool picked)
{
    bt_model_stream r = { 0 };
    r.x = bt_model_take(t, picked, c->n_embd);
    r.h = bt_model_take(t, picked, c->n_embd);
    return r;
}

bt_model_heads bt_model_take_heads(bt_tape *t, const bt_model_config *c, bool picked)
{
    const uint32_t heads = bt_model_most(c->n_heads, c->n_layers);
    const uint32_t kv_heads = picked ? 0 : bt_model_most(c->n_kv_heads, c->n_layers);
    bt_model_heads r = { 0 };
    r.qkv = bt_model_take(t, picked, heads * c->head_dim_k +
                                                kv_heads * (c->head_dim_k + c->head_dim_v));
    r.a = bt_model_take(t, picked, heads * c->head_dim_v);
    return r;
}

bt_model_hidden bt_model_take_hidden(bt_tape *t, const bt_model_config *c, bool picked)
{
    const uint32_t ff = bt_model_most(c->n_ff, c->n_layers);
    const bool shared = c->n_experts > 0 && ff > 0;
    bt_model_hidden r = { 0 };
    r.gate_up = bt_model_take(t, picked, 2 * ff);
    r.g = bt_model_take(t, picked, ff);
    r.shared = bt_model_take(t, picked, shared ? c->n_embd : 0);
    r.scores = bt_model_take(t, picked, c->n_experts + shared);
    r.route = bt_model_take(t, picked, 2 * c->n_experts_used);
    r.expert_gate_up = bt_model_take(t, picked, 2 * c->n_experts_used * c->n_ff_expert);
    r.expert_g = bt_model_take(t, picked, c->n_experts_used * c->n_ff_expert);
    r.expert_down = bt_model_take(t, picked, c->n_experts_used * (c->n_experts ? c->n_embd : 0));
    return r;
}

bt_model_heads bt_model_heads_of(const bt_model_config *c, const bt_model_heads *h, uint32_t layer)
{
    const uint32_t q = c->n_heads[layer] * c->head_dim_k;
    const uint32_t k = c->n_kv_heads[layer] * c->head_dim_k;
    const uint32_t v = c->n_kv_heads[layer] * c->head_dim_v;
    return (bt_model_heads){
        .qkv = bt_ops_rows_slice(h->qkv, 0, q + k + v),
        .q = bt_ops_rows_slice(h->qkv, 0, q),
        .k = bt_ops_rows_slice(h->qkv, q, k),
        .v = bt_ops_rows_slice(h->qkv, q + k, v),
        .a = bt_ops_rows_slice(h->a, 0, c->n_heads[layer] * c->head_dim_v),
    };
}

bt_model_hidden bt_model_hidden_of(const bt_model_config *c, const bt_model_hidden *h,
                                   uint32_t layer)
{
    const uint32_t ff = c->n_ff[layer];
    bt_model_hidden r = *h;
    r.gate_up = bt_ops_rows_slice(h->gate_up, 0, 2 * ff);
    r.gate = bt_ops_rows_slice(h->gate_up, 0, ff);
    r.up = bt_ops_rows_slice(h->gate_up, ff, ff);
    r.g = bt_ops_rows_slice(h->g, 0, ff);
    return r;
}

bt_model_plain bt_model_take_plain(bt_tape *t, const bt_model_config *c, const bt_model_stream *s,
                                   bool picked)
{
    bt_model_plain r = { 0 };
    r.s = s ? *s : bt_model_take_stream(t, c, picked);
    r.heads = bt_model_take_heads(t, c, picked);
    r.hidden = bt_model_take_hidden(t, c, picked);
    return r;
}

bt_model_plain bt_model_plain_of(const bt_model_config *c, const bt_model_plain *r, uint32_t layer)
{
    return (bt_model_plain){
        .s = r->s,
        .heads = bt_model_heads_of(c, &r->heads, layer),
        .hidden = bt_model_hidden_of(c, &r->hidden, layer),
    };
}

/* ---- pieces of a layer ---- */

void bt_model_put_qkv(bt_tape *t, const bt_model_qkv *w, bt_rows x, bt_rows y)
{
    if (w->all.id != 0) {
        bt_ops_put(t, linear, .x = x, .y = y, .w = { w->all }, .bias = { w->all_bias });
    } else {
        bt_ops_put(t, linear, .x = x, .y = y, .w = { w->q, w->k, w->v },
                   .bias = { w->q_bias, w->k_bias, w->v_bias });
    }
}

void bt_model_put_kv(bt_tape *t, const bt_model_heads *h, uint32_t layer, bool push)
{
    bt_ops_put(t, kv_put, .k = h->k, .v = h->v, .layer = layer);
    if (push) {
        bt_ops_put(t, mark, .layer = layer);
    }
}

bt_model_plain bt_model_put_kv_plain(bt_tape *t, const bt_model_config *c, const bt_model_plain *r,
                                     const bt_model_plain *picked, uint32_t layer, bool push)
{
    bt_model_put_kv(t, &r->heads, layer, push);
    if (layer + 1 < c->n_layers) {
        return *r;
    }
    const bt_model_plain p = bt_model_plain_of(c, picked, layer);
    bt_ops_put(t, rows, .x = r->s.x, .y = p.s.x);
    bt_ops_put(t, rows, .x = r->heads.q, .y = p.heads.q);
    return p;
}

void bt_model_put_head_norms(bt_tape *t, const bt_model_config *c, bt_weight q_norm,
                             bt_weight k_norm, const bt_model_heads *h, uint32_t layer)
{
    bt_ops_put(t, head_norm, .x = h->q, .w = q_norm, .n_heads = c->n_heads[layer],
               .eps = c->rms_eps);
    bt_ops_put(t, head_norm, .x = h->k, .w = k_norm, .n_heads = c->n_kv_heads[layer],
               .eps = c->rms_eps);
}

void bt_model_put_rotation(bt_tape *t, const bt_model *m, const bt_model_heads *h, uint32_t layer)
{
    const bt_model_config *c = &m->config;
    const bt_model_rope *rope = c->slides[layer] ? &m->rope_sliding : &m->rope;
    bt_ops_put(t, rope, .x = h->q, .frequencies = rope->frequencies,
               .long_frequencies = rope->long_frequencies, .magnitude = rope->magnitude,
               .n_heads = c->n_heads[layer], .n_rot = c->n_rot, .style = c->rope_style);
    bt_ops_put(t, rope, .x = h->k, .frequencies = rope->frequencies,
               .long_frequencies = rope->long_frequencies, .magnitude = rope->magnitude,
               .n_heads = c->n_kv_heads[layer], .n_rot = c->n_rot, .style = c->rope_style);
}

void bt_model_put_attention(bt_tape *t, const bt_model_config *c, const bt_model_heads *h,
                            uint32_t layer)
{
    bt_ops_put(t, attention, .q = h->q, .y = h->a, .layer = layer, .n_heads = c->n_heads[layer],
               .n_kv_heads = c->n_kv_heads[layer], .scale = c->attention_scale,
               .window = c->slides[layer] ? c->window : 0);
}
