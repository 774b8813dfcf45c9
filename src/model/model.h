/* model/model.h - a loaded model: what its file says, its weights on a device, its tapes.
 *
 * One file per family builds the tape (llama.c, qwen3.c, hybrid.c, ...); this header is the
 * same for all. docs/models/FAMILY.md has the mathematics, docs/models/FAMILY.py runs it in numpy.
 *
 * Lifetime: load to destroy. Borrows the file and the device, which must outlive it.
 * Threads:  immutable after load.
 * Failure:  load; every message names the key or tensor, what it is and what it should be.
 */
#ifndef BT_MODEL_MODEL_H
#define BT_MODEL_MODEL_H

#include "base/digest.h"
#include "device/device.h"
#include "gguf/gguf.h"

typedef struct bt_model bt_model;

/* How positions become angles (docs/models/rope.md). */
typedef enum { BT_ROPE_PLAIN, BT_ROPE_LINEAR, BT_ROPE_YARN, BT_ROPE_LONG } bt_rope_scaling;

/* What the file says, checked. Widths in values. */
typedef struct {
    char     architecture[32];
    char     name[128];               /* general.name, cut */
    uint32_t n_layers;
    uint32_t n_embd, n_vocab, n_ctx_train;
    uint32_t n_heads[BT_LAYERS_MAX], n_kv_heads[BT_LAYERS_MAX], n_ff[BT_LAYERS_MAX];
    uint32_t head_dim_k, head_dim_v;
    float    rms_eps;
    float    attention_scale;
    float    rope_base, rope_base_swa;
    uint32_t n_rot;
    bt_rope_style rope_style;
    bt_rope_scaling rope_scaling;
    float    rope_factor;             /* positions are squeezed by this much; 1: not */
    float    rope_attn_factor;        /* cos and sin are multiplied by it */
    uint32_t rope_ctx_original;       /* trained on before scaling */
    uint32_t rope_long_above;         /* longer prompts have factors of their own; 0: none have */
    uint32_t window;                  /* sliding layers see this many keys; 0: none slide */
    bool     slides[BT_LAYERS_MAX];
    float    logit_softcap;           /* 0: none */
    uint32_t n_blocks_behind;         /* in the file, but no layers: they predict further tokens */
    /* Layers that keep a state in place of keys and values: gated delta nets. Their n_heads and
     * n_kv_heads are 0. */
    bool     recurrent[BT_LAYERS_MAX];
    uint32_t n_delta_k, n_delta_v, delta_dim, n_taps;    /* heads, their width; taps of the conv */
    bool     delta_tiled;             /* value heads go round the key heads */
    bool     gated_attention;
    /* Experts in every layer; n_ff is then the width of the shared one. 0: none. */
    uint32_t n_experts, n_experts_used, n_ff_expert;
    uint64_t n_params;                /* sum over tensors */
    uint64_t n_params_active;         /* of layers and ends, with as many experts as are used */
    uint64_t weight_bytes;            /* in the file */
} bt_model_config;

/* What must be equal on two machines that share KV rows; each compared and named alone. */
typedef struct {
    bt_digest weights;                /* names, types, shapes and contents of all tensors */
    bt_digest tokenizer;              /* all keys tokenizer.*, but for the chat template */
    bt_digest geometry;               /* the architecture and all of its keys */
} bt_model_identity;

/* Reads the configuration only; needs no device and no tensor data (inspect, tests). */
BT_MUST_CHECK bt_status bt_model_config_read(const bt_gguf *file, bt_model_config *ret_config,
                                             bt_error *err);
BT_MUST_CHECK bt_status bt_model_load(const bt_gguf *file, bt_device *device, bt_model **ret_model,
                                      bt_error *err);
void bt_model_destroy(bt_model *m);

const bt_model_config   *bt_model_config_of(const bt_model *m);
const bt_model_identity *bt_model_identity_of(const bt_model *m);
/* The tape for steps of this model. With `push`, a mark follows each layer's kv_put. */
const bt_tape *bt_model_tape(const bt_model *m, bool push);
/* Whether a sequence with such a prompt is long (bt_step_sequence): it never changes, since rows
 * that were rotated one way mean nothing to queries rotated the other way. */
static inline bool bt_model_is_long(const bt_model_config *c, uint32_t n_prompt)
{
    return c->rope_long_above > 0 && n_prompt > c->rope_long_above;
}
/* Values in a K and a V row of `layer`; 0: the layer keeps none. */
uint32_t bt_model_k_dim(const bt_model_config *c, uint32_t layer);
uint32_t bt_model_v_dim(const bt_model_config *c, uint32_t layer);
/* Bytes of K and V per token for given types. */
uint64_t bt_model_kv_token_bytes(const bt_model_config *c, bt_type type_k, bt_type type_v);

/* What `layer` keeps per sequence beside keys and values (offsets are 0); all 0: nothing. */
void bt_model_state_layer(const bt_model_config *c, uint32_t layer, bt_state_layer *ret_layer);
bool bt_model_has_state(const bt_model_config *c);
/* Bytes of recurrent state per sequence. */
uint64_t bt_model_state_bytes(const bt_model_config *c);

/* Families known, for messages: "llama, qwen2, qwen3, ...". */
const char *bt_model_families(void);

#endif
