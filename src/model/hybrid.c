/* Qwen3.5 and 3.6, dense and with experts, and Qwen3-Next: of every few layers one has attention
 * with a gate behind it, the others are gated delta nets. docs/models/qwen35.md, qwen35moe.md and
 * qwen3next.md tell it in words, docs/models/hybrid.py in numpy; this file keeps their order. */
#include <math.h>

#include "model/family.h"

static void configure_tiled(bt_model_keys *k, bt_model_config *c)
{
    (void)k;
    c->delta_tiled = true;
}

/* ---- tensors ---- */

static void load_attention(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                           bt_model_layer *to)
{
    const uint32_t d = c->head_dim_k, n = c->n_heads[layer] * d, k = c->n_kv_heads[layer] * d;
    /* Of each head first the rows of query, then those of its gate. */
    const bt_model_cut query = { .n_in = c->n_embd, .n_out = n, .n_rows = 2 * n, .run = d,
                                 .step = 2 * d };
    bt_model_cut gate = query;
    gate.first = d;
    to->q = bt_model_load_cut(l, &query, "blk.%u.attn_q.weight", layer);
    to->attn_gate = bt_model_load_cut(l, &gate, "blk.%u.attn_q.weight", layer);
    to->k = bt_model_load_matrix(l, c->n_embd, k, "blk.%u.attn_k.weight", layer);
    to->v = bt_model_load_matrix(l, c->n_embd, k, "blk.%u.attn_v.weight", layer);
    to->q_norm = bt_model_load_vector(l, d, "blk.%u.attn_q_norm.weight", layer);
    to->k_norm = bt_model_load_vector(l, d, "blk.%u.attn_k_norm.weight", layer);
    to->out = bt_model_load_matrix(l, n, c->n_embd, "blk.%u.attn_output.weight", layer);
}

/* q, k, v and the gate of a delta net: two tensors, or in old files one that has them key head by
 * key head. */
static void load_delta_input(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                             bt_model_layer *to)
{
    const uint32_t s = c->delta_dim, keys = c->n_delta_k * s, values = c->n_delta_v * s;
    const uint32_t r = c->n_delta_v / c->n_delta_k;
    if (!bt_model_has_tensor(l, "blk.%u.ssm_in.weight", layer)) {
        to->qkv = bt_model_load_matrix(l, c->n_embd, 2 * keys + values, "blk.%u.attn_qkv.weight",
                                       layer);
        to->attn_gate = bt_model_load_matrix(l, c->n_embd, values, "blk.%u.attn_gate.weight",
                                             layer);
        return;
    }
    bt_weight *const to_parts[] = { &to->q, &to->k, &to->v, &to->attn_gate };
    const uint32_t first[] = { 0, s, 2 * s, (2 + r) * s }, run[] = { s, s, r * s, r * s };
    for (size_t i = 0; i < BT_LEN(to_parts); i++) {
        *to_parts[i] = bt_model_load_cut(l, &(bt_model_cut){
                .n_in = c->n_embd, .n_out = i < 2 ? keys : values, .n_rows = 2 * (keys + values),
                .first = first[i], .run = run[i], .step = (2 + 2 * r) * s, .as_matrix = true },
                "blk.%u.ssm_in.weight", layer);
    }
}

/* beta and alpha: two tensors, or one with r rows of either in turn. */
static void load_delta_gates(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                             bt_model_layer *to)
{
    const uint32_t n = c->n_delta_v, r = n / c->n_delta_k;
    bt_model_cut cut = { .n_in = c->n_embd, .n_out = n, .as_matrix = true };
    if (!bt_model_has_tensor(l, "blk.%u.ssm_ba.weight", layer)) {
        to->beta = bt_model_load_cut(l, &cut, "blk.%u.ssm_beta.weight", layer);
        to->alpha = bt_model_load_cut(l, &cut, "blk.%u.ssm_alpha.weight", layer);
        return;
    }
    cut.n_rows = 2 * n;
    cut.run = r;
    cut.step = 2 * r;
    to->beta = bt_model_load_cut(l, &cut, "blk.%u.ssm_ba.weight", layer);
    cut.first = r;
    to->alpha = bt_model_load_cut(l, &cut, "blk.%u.ssm_ba.weight", layer);
}

static void load_delta_net(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                           bt_model_layer *to)
{
    const uint32_t values = c->n_delta_v * c->delta_dim;
    const uint32_t channels = 2 * c->n_delta_k * c->delta_dim + values;
    load_delta_input(l, c, layer, to);
    load_delta_gates(l, c, layer, to);
    to->conv = bt_model_load_cut(l, &(bt_model_cut){ .n_in = c->n_taps, .n_out = channels,
                                                     .as_taps = true },
                                 "blk.%u.ssm_conv1d.weight", layer);
    to->dt_bias = bt_model_load_vector(l, c->n_delta_v, "blk.%u.ssm_dt.bias", layer);
    to->decay = bt_model_load_vector(l, c->n_delta_v, "blk.%u.ssm_a", layer);
    to->delta_norm = bt_model_load_vector(l, c->delta_dim, "blk.%u.ssm_norm.weight", layer);
    to->out = bt_model_load_matrix(l, values, c->n_embd, "blk.%u.ssm_out.weight", layer);
}

static void load(bt_model_loader *l, const bt_model_config *c, uint32_t layer, bt_model_layer *to)
{
    to->attn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.attn_norm.weight", layer);
    if (c->recurrent[layer]) {
        load_delta_net(l, c, layer, to);
    } else {
        load_attention(l, c, layer, to);
    }
    to->ffn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.post_attention_norm.weight", layer);
    bt_model_load_ffn(l, c, layer, to);
}

/* ---- the tape ---- */

static bt_model_rows put_attention(bt_tape *t, const bt_model *m, const bt_model_scratch *s,
                                   uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const bt_model_layer *w = &m->layers[i];
    bt_model_rows r = bt_model_rows_of(c, &s->all, i);
    const uint32_t q = r.q.cols, k = r.k.cols;
    bt_rows gate = bt_ops_rows_slice(s->all.qkv, q + 2 * k, q);

    bt_linear(t, .x = r.h, .y = bt_ops_rows_slice(s->all.qkv, 0, 2 * q + 2 * k),
              .w = {w->q, w->k, w->v, w->attn_gate});
    bt_model_put_head_norms(t, m, &r, i);
    bt_model_put_rotation(t, m, &r, i);
    r = bt_model_put_kv(t, m, s, &r, i, push);
    if (r.x.picked) {
        const bt_rows picked = bt_ops_rows_slice(s->picked.qkv, q, q);
        bt_pick(t, .x = gate, .y = picked);
        gate = picked;
    }
    bt_model_put_attention(t, m, &r, i);
    const bt_rows g = bt_ops_rows_slice(r.x.picked ? s->picked.g : s->all.g, 0, q);
    bt_glu(t, .gate = gate, .up = r.a, .y = g, .act = BT_ACT_SIGMOID);
    bt_linear(t, .x = g, .y = r.x, .w = { w->out }, .add = true);
    return r;
}

/* h through the layer's projections: channels, gates of heads, beta, alpha, side by side. */
static void put_delta_input(bt_tape *t, const bt_model_layer *w, bt_rows h, bt_rows all,
                            uint32_t n_heads)
{
    if (w->qkv.id != 0) {
        bt_linear(t, .x = h, .y = all, .w = { w->qkv, w->attn_gate, w->beta, w->alpha });
        return;
    }
    const uint32_t wide = all.cols - 2 * n_heads;
    bt_linear(t, .x = h, .y = bt_ops_rows_slice(all, 0, wide),
              .w = {w->q, w->k, w->v, w->attn_gate});
    bt_linear(t, .x = h, .y = bt_ops_rows_slice(all, wide, 2 * n_heads), .w = {w->beta, w->alpha});
}

static bt_model_rows put_delta_net(bt_tape *t, const bt_model *m, const bt_model_scratch *s,
                                   uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const bt_model_layer *w = &m->layers[i];
    const uint32_t n = c->n_delta_v, keys = c->n_delta_k * c->delta_dim;
    const uint32_t values = n * c->delta_dim, channels = 2 * keys + values;
    bt_model_rows r = bt_model_rows_of(c, &s->all, i);
    bt_rows z = bt_ops_rows_slice(s->all.qkv, channels, values);
    bt_rows a = bt_ops_rows_slice(s->all.a, 0, values);
    const bool last = i + 1 == c->n_layers;

    put_delta_input(t, w, r.h, bt_ops_rows_slice(s->all.qkv, 0, channels + values + 2 * n), n);
    bt_short_conv(t, .x = bt_ops_rows_slice(s->all.qkv, 0, channels), .y = r.c, .w = w->conv,
                  .layer = i, .act = BT_ACT_SILU);
    bt_delta_scan(t, .q = bt_ops_rows_slice(r.c, 0, keys), .k = bt_ops_rows_slice(r.c, keys, keys),
                  .v = bt_ops_rows_slice(r.c, 2 * keys, values),
                  .beta = bt_ops_rows_slice(s->all.qkv, channels + values, n),
                  .alpha = bt_ops_rows_slice(s->all.qkv, channels + values + n, n), .y = a,
                  .decay = w->decay, .dt_bias = w->dt_bias, .layer = i, .n_k_heads = c->n_delta_k,
                  .n_v_heads = n, .tiled = c->delta_tiled, .l2_eps = c->rms_eps,
                  .scale = 1.0f / sqrtf((float)c->delta_dim));
    if (push) {
        bt_mark(t, .layer = i);
    }
    if (last) {
        r = bt_model_rows_of(c, &s->picked, i);
        bt_pick(t, .x = s->all.x, .y = r.x);
        bt_pick(t, .x = z, .y = bt_ops_rows_slice(s->picked.qkv, 0, values));
        bt_pick(t, .x = a, .y = bt_ops_rows_slice(s->picked.a, 0, values));
        z = bt_ops_rows_slice(s->picked.qkv, 0, values);
        a = bt_ops_rows_slice(s->picked.a, 0, values);
    }
    const bt_rows g = bt_ops_rows_slice(last ? s->picked.g : s->all.g, 0, values);
    bt_head_norm(t, .x = a, .w = w->delta_norm, .n_heads = n, .eps = c->rms_eps);
    bt_glu(t, .gate = z, .up = a, .y = g, .act = BT_ACT_SILU);
    bt_linear(t, .x = g, .y = r.x, .w = { w->out }, .add = true);
    return r;
}

static void layer(bt_tape *t, const bt_model *m, const bt_model_scratch *s, uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const bt_model_layer *w = &m->layers[i];

    bt_rmsnorm(t, .x = s->all.x, .w = w->attn_norm, .y = s->all.h, .eps = c->rms_eps);
    const bt_model_rows r = c->recurrent[i] ? put_delta_net(t, m, s, i, push)
                                            : put_attention(t, m, s, i, push);
    bt_rmsnorm(t, .x = r.x, .w = w->ffn_norm, .y = r.h, .eps = c->rms_eps);
    bt_model_put_ffn(t, m, w, &r);
}

/* ---- the families ---- */

const bt_model_family bt_model_family_qwen35 = {
    .name = "qwen35",
    .rope_style = BT_ROPE_NEOX,
    .hybrid = true,
    .configure = configure_tiled,
    .load = load,
    .layer = layer,
};

const bt_model_family bt_model_family_qwen35moe = {
    .name = "qwen35moe",
    .rope_style = BT_ROPE_NEOX,
    .hybrid = true,
    .has_experts = true,
    .configure = configure_tiled,
    .load = load,
    .layer = layer,
};

const bt_model_family bt_model_family_qwen3next = {
    .name = "qwen3next",
    .rope_style = BT_ROPE_NEOX,
    .hybrid = true,
    .has_experts = true,
    .load = load,
    .layer = layer,
};
