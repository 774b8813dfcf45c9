/* Gemma 3, text: sliding layers between full ones, each with angles of its own; norms before and
 * after both blocks. docs/models/gemma3.md has it in words, docs/models/gemma3.py in numpy; this
 * file keeps their order. */
#include <math.h>

#include "model/family.h"

typedef struct {
    bt_weight    attn_norm, q_norm, k_norm, out, post_attn_norm, ffn_norm, post_ffn_norm;
    bt_model_qkv qkv;
    bt_model_ffn ffn;
} tensors;

typedef struct {
    bt_rows        o;                /* what a block gives, before its last norm */
    bt_model_plain plain;
} rows;

enum { USUAL_PERIOD = 6, LAYERS_OF_27B = 62 };

/* Which layers slide: every n-th does not, or one flag per layer. */
static void read_pattern(bt_model_keys *k, bt_model_config *c)
{
    static const char key[] = "attention.sliding_window_pattern";
    uint32_t flags[BT_LAYERS_MAX] = { 0 };
    if (bt_model_key_is_array(k, key)) {
        bt_model_key_per_layer(k, key, c->n_layers, 0, 1, flags);
    } else {
        const uint32_t period = bt_model_key_opt_u32(k, key, USUAL_PERIOD, 0, BT_LAYERS_MAX);
        for (uint32_t i = 0; i < c->n_layers; i++) {
            flags[i] = period == 0 || i % period != period - 1;
        }
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->slides[i] = c->window != 0 && flags[i] != 0;
    }
}

static void configure(bt_model_keys *k, bt_model_config *c)
{
    c->window = bt_model_key_opt_u32(k, "attention.sliding_window", 0, 0, BT_CONTEXT_MAX);
    read_pattern(k, c);
    c->rope_base_swa = bt_model_key_opt_f32(k, "rope.freq_base_swa", 10000.0f, 1.0f, 1e30f);
    c->logit_softcap = bt_model_key_opt_f32(k, "final_logit_softcapping", 0.0f, 0.0f, 1e6f);
    /* The largest model alone scales by its width per head, which is not the width of a head. */
    const float size = c->n_layers == LAYERS_OF_27B ? (float)c->n_embd / (float)c->n_heads[0]
                                                    : (float)c->head_dim_k;
    c->attention_scale = 1.0f / sqrtf(size);
}

static float embed_scale(const bt_model_config *c)
{
    return sqrtf((float)c->n_embd);
}

static void load(bt_model_loader *l, const bt_model_config *c, uint32_t layer, void *to_tensors)
{
    tensors *to = to_tensors;
    to->attn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.attn_norm.weight", layer);
    bt_model_load_qkv(l, c, layer, false, &to->qkv);
    to->q_norm = bt_model_load_vector(l, c->head_dim_k, "blk.%u.attn_q_norm.weight", layer);
    to->k_norm = bt_model_load_vector(l, c->head_dim_k, "blk.%u.attn_k_norm.weight", layer);
    to->out = bt_model_load_matrix(l, c->n_heads[layer] * c->head_dim_v, c->n_embd,
                                   "blk.%u.attn_output.weight", layer);
    to->post_attn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.post_attention_norm.weight",
                                              layer);
    to->ffn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.ffn_norm.weight", layer);
    bt_model_load_ffn(l, c, layer, &to->ffn);
    to->post_ffn_norm = bt_model_load_vector(l, c->n_embd, "blk.%u.post_ffw_norm.weight", layer);
}

static void put_layer(bt_tape *t, const bt_model *m, const rows *all, const rows *picked,
                      uint32_t i, bool push)
{
    const bt_model_config *c = &m->config;
    const tensors *w = (const tensors *)m->layers + i;
    bt_model_plain r = bt_model_plain_of(c, &all->plain, i);

    bt_ops_put(t, rmsnorm, .x = r.s.x, .w = w->attn_norm, .y = r.s.h, .eps = c->rms_eps);
    bt_model_put_qkv(t, &w->qkv, r.s.h, r.heads.qkv);
    bt_model_put_head_norms(t, c, w->q_norm, w->k_norm, &r.heads, i);
    bt_model_put_rotation(t, m, &r.heads, i);
    r = bt_model_put_kv_plain(t, c, &r, &picked->plain, i, push);
    const bt_rows o = r.s.x.picked ? picked->o : all->o;
    bt_model_put_attention(t, c, &r.heads, i);
    bt_ops_put(t, linear, .x = r.heads.a, .y = o, .w = { w->out });
    bt_ops_put(t, rmsnorm, .x = o, .w = w->post_attn_norm, .y = r.s.x, .eps = c->rms_eps,
               .add = true);

    bt_ops_put(t, rmsnorm, .x = r.s.x, .w = w->ffn_norm, .y = r.s.h, .eps = c->rms_eps);
    bt_ops_put(t, linear, .x = r.s.h, .y = r.hidden.gate_up, .w = { w->ffn.gate, w->ffn.up });
    bt_ops_put(t, glu, .gate = r.hidden.gate, .up = r.hidden.up, .y = r.hidden.g,
               .act = BT_ACT_GELU_TANH);
    bt_ops_put(t, linear, .x = r.hidden.g, .y = o, .w = { w->ffn.down });
    bt_ops_put(t, rmsnorm, .x = o, .w = w->post_ffn_norm, .y = r.s.x, .eps = c->rms_eps,
               .add = true);
}

static rows take_rows(bt_tape *t, const bt_model_config *c, const bt_model_stream *s, bool picked)
{
    rows r = { .o = bt_model_take(t, picked, c->n_embd) };
    r.plain = bt_model_take_plain(t, c, s, picked);
    return r;
}

static bt_model_stream layers(bt_tape *t, const bt_model *m, const bt_model_stream *s, bool push)
{
    const bt_model_config *c = &m->config;
    const rows all = take_rows(t, c, s, false);
    const bt_model_stream end = bt_model_take_stream(t, c, true);
    const rows picked = take_rows(t, c, &end, true);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bt_ops_tape_set_layer(t, i);
        put_layer(t, m, &all, &picked, i, push);
    }
    return end;
}

const bt_model_family bt_model_family_gemma3 = {
    .name = "gemma3",
    .rope_style = BT_ROPE_NEOX,
    .embed_scale = embed_scale,
    .configure = configure,
    .layer_bytes = sizeof(tensors),
    .load = load,
    .layers = layers,
};
