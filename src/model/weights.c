/* All weights of a model: its ends, the families' layers, the angles; and what nobody asked for. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "model/loader.h"

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
    if (!bt_model_tensor_fits(l, table, c->n_embd, c->n_vocab)) {
        return;
    }
    m->table = bt_model_load_tensor(l, table, true);
    m->output_norm = bt_model_load_vector(l, c->n_embd, "output_norm.weight");
    m->output = bt_model_load_opt_matrix(l, c->n_embd, c->n_vocab, "output.weight");
    if (m->output.id == 0 && l->status == BT_OK) {
        m->output = bt_model_load_tensor(l, table, false);
    }
    m->output_bias = bt_model_load_opt_vector(l, c->n_vocab, "output.bias");
}

/* Divisors of the angles, if the file has them: to[n], or NULL. */
static const float *load_factors(bt_model_loader *l, const bt_model_config *c, const char *name,
                                 float *to)
{
    const bt_gguf_tensor *t = bt_gguf_tensor_find(l->file, name);
    if (!t || l->status != BT_OK || !bt_model_tensor_fits(l, t, c->n_rot / 2, 1)) {
        return NULL;
    }
    bt_model_digest_tensor(l, t);
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
        l->status = bt_fail_nomem(l->err, 2 * (size_t)n * sizeof *frequencies, "angles");
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
        bt_model_digest_tensor(l, t);
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
        l.status = bt_fail_nomem(err, m->config.n_layers * m->family->layer_bytes,
                                 "the layers of a model");
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
