/* Qwen3, dense and with experts: q and k are normed head by head before they are rotated.
 * docs/models/qwen3.md and qwen3moe.md tell it in words, the twins beside them in numpy; this file
 * keeps their order. */
#include "model/family.h"

static void load(bt_model_loader *l, const bt_model_config *c, uint32_t layer, bt_model_layer *to)
{
    to->attn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.attn_norm.weight", layer);
    bt_model_load_qkv(l, c, layer, false, to);
    to->q_norm = bt_model_load_vector(l, c->head_dim_k, "blk.%u.attn_q_norm.weight", layer);
    to->k_norm = bt_model_load_vector(l, c->head_dim_k, "blk.%u.attn_k_norm.weight", layer);
    to->out = bt_model_load_matrix(l, c->n_heads[layer] * c->head_dim_v, c->n_embd,
                                   "blk.%u.attn_output.weight", layer);
    to->ffn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.ffn_norm.weight", layer);
    bt_model_load_ffn(l, c, layer, to);
}

static void layer(bt_tape *t, const bt_model *m, const bt_model_scratch *s, uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const bt_model_layer *w = &m->layers[i];
    bt_model_rows r = bt_model_rows_of(c, &s->all, i);

    bt_rmsnorm(t, .x = r.x, .w = w->attn_norm, .y = r.h, .eps = c->rms_eps);
    bt_model_put_qkv(t, w, r.h, r.qkv);
    bt_model_put_head_norms(t, m, &r, i);
    bt_model_put_rotation(t, m, &r, i);
    r = bt_model_put_kv(t, m, s, &r, i, push);
    bt_model_put_attention(t, m, &r, i);
    bt_linear(t, .x = r.a, .y = r.x, .w = { w->out }, .add = true);

    bt_rmsnorm(t, .x = r.x, .w = w->ffn_norm, .y = r.h, .eps = c->rms_eps);
    bt_model_put_ffn(t, m, w, &r);
}

const bt_model_family bt_model_family_qwen3 = {
    .name = "qwen3",
    .rope_style = BT_ROPE_NEOX,
    .configure = bt_model_rotates_whole_heads,
    .load = load,
    .layer = layer,
};

const bt_model_family bt_model_family_qwen3moe = {
    .name = "qwen3moe",
    .rope_style = BT_ROPE_NEOX,
    .has_experts = true,
    .configure = bt_model_rotates_whole_heads,
    .load = load,
    .layer = layer,
};
