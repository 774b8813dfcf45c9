/* Qwen3, dense and with experts: q and k are normed head by head before they are rotated.
 * docs/models/qwen3.md and qwen3moe.md have it in words, the reference implementations beside
 * them in numpy; this file keeps their order. */
#include "model/family.h"

typedef struct {
    bt_weight    attn_norm, q_norm, k_norm, out, ffn_norm;
    bt_model_qkv qkv;
    bt_model_ffn ffn;
} tensors;

static void load(bt_model_loader *l, const bt_model_config *c, uint32_t layer, void *to_tensors)
{
    tensors *to = to_tensors;
    to->attn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.attn_norm.weight", layer);
    bt_model_load_qkv(l, c, layer, false, &to->qkv);
    to->q_norm = bt_model_load_vector(l, c->head_dim_k, "blk.%u.attn_q_norm.weight", layer);
    to->k_norm = bt_model_load_vector(l, c->head_dim_k, "blk.%u.attn_k_norm.weight", layer);
    to->out = bt_model_load_matrix(l, c->n_heads[layer] * c->head_dim_v, c->n_embd,
                                   "blk.%u.attn_output.weight", layer);
    to->ffn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.ffn_norm.weight", layer);
    bt_model_load_ffn(l, c, layer, &to->ffn);
}

static void put_layer(bt_tape *t, const bt_model *m, const bt_model_plain *all,
                      const bt_model_plain *picked, uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const tensors *w = (const tensors *)m->layers + i;
    bt_model_plain r = bt_model_plain_of(c, all, i);

    bt_ops_put(t, rmsnorm, .x = r.s.x, .w = w->attn_norm, .y = r.s.h, .eps = c->rms_eps);
    bt_model_put_qkv(t, &w->qkv, r.s.h, r.heads.qkv);
    bt_model_put_head_norms(t, c, w->q_norm, w->k_norm, &r.heads, i);
    bt_model_put_rotation(t, m, &r.heads, i);
    r = bt_model_put_kv_plain(t, c, &r, picked, i, push);
    bt_model_put_attention(t, c, &r.heads, i);
    bt_ops_put(t, linear, .x = r.heads.a, .y = r.s.x, .w = { w->out }, .add = true);

    bt_ops_put(t, rmsnorm, .x = r.s.x, .w = w->ffn_norm, .y = r.s.h, .eps = c->rms_eps);
    bt_model_put_ffn(t, c, &w->ffn, &r.s, &r.hidden);
}

static bt_model_stream layers(bt_tape *t, const bt_model *m, const bt_model_stream *s, bool push)
{
    const bt_model_config *c = &m->config;
    const bt_model_plain all = bt_model_take_plain(t, c, s, false);
    const bt_model_plain picked = bt_model_take_plain(t, c, NULL, true);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bt_ops_tape_set_layer(t, i);
        put_layer(t, m, &all, &picked, i, push);
    }
    return picked.s;
}

const bt_model_family bt_model_family_qwen3 = {
    .name = "qwen3",
    .rope_style = BT_ROPE_NEOX,
    .configure = bt_model_rotates_whole_heads,
    .layer_bytes = sizeof(tensors),
    .load = load,
    .layers = layers,
};

const bt_model_family bt_model_family_qwen3moe = {
    .name = "qwen3moe",
    .rope_style = BT_ROPE_NEOX,
    .has_experts = true,
    .configure = bt_model_rotates_whole_heads,
    .layer_bytes = sizeof(tensors),
    .load = load,
    .layers = layers,
};
