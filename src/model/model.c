/* Loading in order: configuration, weights, tapes. */
#include "model/model.h"

#include "base/check.h"
#include "base/memory.h"
#include "model/family.h"

/* ---- the tape ---- */

static bt_status build_tape(const bt_model *m, const bt_device *device, bool push,
                            bt_tape **ret_tape, bt_error *err)
{
    const bt_model_config *c = &m->config;
    bt_tape *t = NULL;
    BT_TRY(bt_device_tape_create(device, &t, err));
    const bt_model_stream s = bt_model_take_stream(t, c, false);
    bt_ops_put(t, embed, .table = m->table, .y = s.x,
               .scale = m->family->embed_scale ? m->family->embed_scale(c) : 1.0f);
    const bt_model_stream picked = m->family->layers(t, m, &s, push);
    bt_ops_tape_set_layer(t, BT_TAPE_NO_LAYER);
    const bt_rows logits = bt_ops_tape_rows_picked(t, c->n_vocab);
    bt_ops_put(t, rmsnorm, .x = picked.x, .w = m->output_norm, .y = picked.h, .eps = c->rms_eps);
    bt_ops_put(t, linear, .x = picked.h, .y = logits, .w = { m->output },
               .bias = { m->output_bias });
    if (c->logit_softcap > 0.0f) {
        bt_ops_put(t, softcap, .x = logits, .cap = c->logit_softcap);
    }
    bt_ops_tape_set_result(t, logits);
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
        return bt_fail_nomem(err, sizeof *m, "a model");
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
