/* Qwen3.5 and 3.6, dense and with experts, and Qwen3-Next: of every few layers one has attention
 * with a gate after it, the others are gated delta nets. docs/models/qwen35.md, qwen35moe.md and
 * qwen3next.md tell it in words, docs/models/hybrid.py in numpy; this file keeps their order. */
#include <math.h>

#include "model/family.h"

/* Of a layer with attention, or of a delta net. */
typedef struct {
    bt_weight    norm, gate, out, ffn_norm;      /* gate: after attention, or of a net's heads */
    bt_model_qkv qkv;
    bt_weight    q_norm, k_norm;                 /* attention */
    bt_weight    conv, alpha, beta, decay, dt_bias, delta_norm;     /* delta nets */
    bt_model_ffn ffn;
} tensors;

typedef struct {
    bt_model_plain plain;            /* qkv and a are wide enough for delta nets too */
    bt_rows        c;                /* after the convolution; all rows only */
    bt_rows        g;                /* gated */
} rows;

static void configure_tiled(bt_model_keys *k, bt_model_config *c)
{
    (void)k;
    c->delta_tiled = true;
}

/* ---- tensors ---- */

static void load_attention(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                           tensors *to)
{
    const uint32_t d = c->head_dim_k, n = c->n_heads[layer] * d, k = c->n_kv_heads[layer] * d;
    /* Of each head first the rows of query, then those of its gate. */
    const bt_model_cut query = { .n_in = c->n_embd, .n_out = n, .n_rows = 2 * n, .run = d,
                                 .step = 2 * d };
    bt_model_cut gate = query;
    gate.first = d;
    to->qkv.q = bt_model_load_cut(l, &query, "blk.%u.attn_q.weight", layer);
    to->gate = bt_model_load_cut(l, &gate, "blk.%u.attn_q.weight", layer);
    to->qkv.k = bt_model_load_matrix(l, c->n_embd, k, "blk.%u.attn_k.weight", layer);
    to->qkv.v = bt_model_load_matrix(l, c->n_embd, k, "blk.%u.attn_v.weight", layer);
    to->q_norm = bt_model_load_vector(l, d, "blk.%u.attn_q_norm.weight", layer);
    to->k_norm = bt_model_load_vector(l, d, "blk.%u.attn_k_norm.weight", layer);
    to->out = bt_model_load_matrix(l, n, c->n_embd, "blk.%u.attn_output.weight", layer);
}

/* q, k, v and the gate of a delta net: two tensors, or in old files one that has them key head by
 * key head. */
static void load_delta_input(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                             tensors *to)
{
    const uint32_t s = c->delta_dim, keys = c->n_delta_k * s, values = c->n_delta_v * s;
    const uint32_t r = c->n_delta_v / c->n_delta_k;
    if (!bt_model_has_tensor(l, "blk.%u.ssm_in.weight", layer)) {
        to->qkv.all = bt_model_load_matrix(l, c->n_embd, 2 * keys + values,
                                           "blk.%u.attn_qkv.weight", layer);
        to->gate = bt_model_load_matrix(l, c->n_embd, values, "blk.%u.attn_gate.weight",
                                             layer);
        return;
    }
    bt_weight *const to_parts[] = { &to->qkv.q, &to->qkv.k, &to->qkv.v, &to->gate };
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
                             tensors *to)
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
                           tensors *to)
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

static void load(bt_model_loader *l, const bt_model_config *c, uint32_t layer, void *to_tensors)
{
    tensors *to = to_tensors;
    to->norm = bt_model_load_vector(l, c->n_embd, "blk.%u.attn_norm.weight", layer);
    if (c->recurrent[layer]) {
        load_delta_net(l, c, layer, to);
    } else {
        load_attention(l, c, layer, to);
    }
    to->ffn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.post_attention_norm.weight", layer);
    bt_model_load_ffn(l, c, layer, &to->ffn);
}

/* ---- the state ---- */

static uint32_t delta_values(const bt_model_config *c)
{
    return c->n_delta_v * c->delta_dim;
}

/* What the convolution of a delta net sees: q, k and v. */
static uint32_t delta_channels(const bt_model_config *c)
{
    return 2 * c->n_delta_k * c->delta_dim + delta_values(c);
}

enum { STATE_CONV, STATE_DELTA, STATE_TENSORS };

/* The last inputs of the convolution, and a matrix per value head. */
static void keep_state(const bt_model_config *c, bt_state_layer *ret_layer)
{
    *ret_layer = (bt_state_layer){ .n_tensors = STATE_TENSORS, .tensors = {
        [STATE_CONV] = { .name = "conv", .n = 1, .rows = c->n_taps - 1, .cols = delta_channels(c) },
        [STATE_DELTA] = { .name = "delta", .n = c->n_delta_v, .rows = c->delta_dim,
                          .cols = c->delta_dim },
    } };
}

/* ---- the tape ---- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static rows take_rows(bt_tape *t, const bt_model_config *c, const bt_model_stream *s, bool picked)
{
    const uint32_t heads = bt_model_most(c->n_heads, c->n_layers), q = heads * c->head_dim_k;
    const uint32_t kv_heads = picked ? 0 : bt_model_most(c->n_kv_heads, c->n_layers);
    const uint32_t kv = kv_heads * (c->head_dim_k + c->head_dim_v);
    const uint32_t values = delta_values(c), channels = delta_channels(c);
    const uint32_t delta = picked ? values : channels + values + 2 * c->n_delta_v;
    rows r = { .plain.s = *s };
    r.plain.heads.qkv = bt_model_take(t, picked, larger(2 * q + kv, delta));
    r.plain.heads.a = bt_model_take(t, picked, larger(heads * c->head_dim_v, values));
    r.c = bt_model_take(t, picked, picked ? 0 : channels);
    r.g = bt_model_take(t, picked, larger(q, values));
    r.plain.hidden = bt_model_take_hidden(t, c, picked);
    return r;
}

/* x += attention's answer, gated. */
static void put_attention(bt_tape *t, const bt_model *m, const rows *all, const rows *picked,
                          uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const tensors *w = (const tensors *)m->layers + i;
    bt_model_plain r = bt_model_plain_of(c, &all->plain, i);
    const uint32_t q = r.heads.q.cols, k = r.heads.k.cols;
    const bt_rows wide = all->plain.heads.qkv;
    bt_rows gate = bt_ops_rows_slice(wide, q + 2 * k, q);

    bt_ops_put(t, linear, .x = r.s.h, .y = bt_ops_rows_slice(wide, 0, 2 * q + 2 * k),
               .w = { w->qkv.q, w->qkv.k, w->qkv.v, w->gate });
    bt_model_put_head_norms(t, c, w->q_norm, w->k_norm, &r.heads, i);
    bt_model_put_rotation(t, m, &r.heads, i);
    r = bt_model_put_kv_plain(t, c, &r, &picked->plain, i, push);
    if (r.s.x.picked) {
        const bt_rows to = bt_ops_rows_slice(picked->plain.heads.qkv, q, q);
        bt_ops_put(t, rows, .x = gate, .y = to);
        gate = to;
    }
    bt_model_put_attention(t, c, &r.heads, i);
    const bt_rows g = bt_ops_rows_slice(r.s.x.picked ? picked->g : all->g, 0, q);
    bt_ops_put(t, glu, .gate = gate, .up = r.heads.a, .y = g, .act = BT_ACT_SIGMOID);
    bt_ops_put(t, linear, .x = g, .y = r.s.x, .w = { w->out }, .add = true);
}

/* h through the layer's projections: channels, gates of heads, beta, alpha, side by side. */
static void put_delta_input(bt_tape *t, const tensors *w, bt_rows h, bt_rows all, uint32_t n_heads)
{
    if (w->qkv.all.id != 0) {
        bt_ops_put(t, linear, .x = h, .y = all, .w = { w->qkv.all, w->gate, w->beta, w->alpha });
        return;
    }
    const uint32_t wide = all.cols - 2 * n_heads;
    bt_ops_put(t, linear, .x = h, .y = bt_ops_rows_slice(all, 0, wide),
               .w = { w->qkv.q, w->qkv.k, w->qkv.v, w->gate });
    bt_ops_put(t, linear, .x = h, .y = bt_ops_rows_slice(all, wide, 2 * n_heads),
               .w = { w->beta, w->alpha });
}

/* The net's answer, normed by head and gated by z, is added to x. */
static void put_delta_output(bt_tape *t, const bt_model_config *c, const tensors *w, bt_rows z,
                             bt_rows a, bt_rows g, bt_rows x)
{
    bt_ops_put(t, head_norm, .x = a, .w = w->delta_norm, .n_heads = c->n_delta_v,
               .eps = c->rms_eps);
    bt_ops_put(t, glu, .gate = z, .up = a, .y = g, .act = BT_ACT_SILU);
    bt_ops_put(t, linear, .x = g, .y = x, .w = { w->out }, .add = true);
}

static void put_delta_net(bt_tape *t, const bt_model *m, const rows *all, const rows *picked,
                          uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const tensors *w = (const tensors *)m->layers + i;
    const uint32_t n = c->n_delta_v, keys = c->n_delta_k * c->delta_dim;
    const uint32_t values = delta_values(c), channels = delta_channels(c);
    const bt_rows wide = all->plain.heads.qkv;
    const bt_rows z = bt_ops_rows_slice(wide, channels, values);
    const bt_rows a = bt_ops_rows_slice(all->plain.heads.a, 0, values);

    put_delta_input(t, w, all->plain.s.h, bt_ops_rows_slice(wide, 0, channels + values + 2 * n), n);
    bt_ops_put(t, short_conv, .x = bt_ops_rows_slice(wide, 0, channels), .y = all->c, .w = w->conv,
               .layer = i, .state = STATE_CONV, .act = BT_ACT_SILU);
    bt_ops_put(t, delta_scan, .q = bt_ops_rows_slice(all->c, 0, keys),
               .k = bt_ops_rows_slice(all->c, keys, keys),
               .v = bt_ops_rows_slice(all->c, 2 * keys, values),
               .beta = bt_ops_rows_slice(wide, channels + values, n),
               .alpha = bt_ops_rows_slice(wide, channels + values + n, n), .y = a,
               .decay = w->decay, .dt_bias = w->dt_bias, .layer = i, .state = STATE_DELTA,
               .n_k_heads = c->n_delta_k, .n_v_heads = n, .tiled = c->delta_tiled,
               .l2_eps = c->rms_eps, .scale = 1.0f / sqrtf((float)c->delta_dim));
    if (push) {
        bt_ops_put(t, mark, .layer = i);
    }
    if (i + 1 < c->n_layers) {
        put_delta_output(t, c, w, z, a, bt_ops_rows_slice(all->g, 0, values), all->plain.s.x);
        return;
    }
    const bt_rows picked_z = bt_ops_rows_slice(picked->plain.heads.qkv, 0, values);
    const bt_rows picked_a = bt_ops_rows_slice(picked->plain.heads.a, 0, values);
    bt_ops_put(t, rows, .x = all->plain.s.x, .y = picked->plain.s.x);
    bt_ops_put(t, rows, .x = z, .y = picked_z);
    bt_ops_put(t, rows, .x = a, .y = picked_a);
    put_delta_output(t, c, w, picked_z, picked_a, bt_ops_rows_slice(picked->g, 0, values),
                     picked->plain.s.x);
}

static bt_model_stream layers(bt_tape *t, const bt_model *m, const bt_model_stream *s, bool push)
{
    const bt_model_config *c = &m->config;
    const rows all = take_rows(t, c, s, false);
    const bt_model_stream end = bt_model_take_stream(t, c, true);
    const rows picked = take_rows(t, c, &end, true);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const tensors *w = (const tensors *)m->layers + i;
        const rows *rest = i + 1 < c->n_layers ? &all : &picked;
        const bt_model_hidden hidden = bt_model_hidden_of(c, &rest->plain.hidden, i);
        bt_ops_tape_set_layer(t, i);
        bt_ops_put(t, rmsnorm, .x = s->x, .w = w->norm, .y = s->h, .eps = c->rms_eps);
        if (c->recurrent[i]) {
            put_delta_net(t, m, &all, &picked, i, push);
        } else {
            put_attention(t, m, &all, &picked, i, push);
        }
        bt_ops_put(t, rmsnorm, .x = rest->plain.s.x, .w = w->ffn_norm, .y = rest->plain.s.h,
                   .eps = c->rms_eps);
        bt_model_put_ffn(t, c, &w->ffn, &rest->plain.s, &hidden);
    }
    return end;
}

/* ---- the families ---- */

const bt_model_family bt_model_family_qwen35 = {
    .name = "qwen35",
    .rope_style = BT_ROPE_NEOX,
    .hybrid = true,
    .configure = configure_tiled,
    .layer_bytes = sizeof(tensors),
    .load = load,
    .layers = layers,
    .state = keep_state,
};

const bt_model_family bt_model_family_qwen35moe = {
    .name = "qwen35moe",
    .rope_style = BT_ROPE_NEOX,
    .hybrid = true,
    .has_experts = true,
    .configure = configure_tiled,
    .layer_bytes = sizeof(tensors),
    .load = load,
    .layers = layers,
    .state = keep_state,
};

const bt_model_family bt_model_family_qwen3next = {
    .name = "qwen3next",
    .rope_style = BT_ROPE_NEOX,
    .hybrid = true,
    .has_experts = true,
    .layer_bytes = sizeof(tensors),
    .load = load,
    .layers = layers,
    .state = keep_state,
};
