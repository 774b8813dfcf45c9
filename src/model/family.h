/* model/family.h - what the files of this room share: the model's parts, the loader, the families.
 *
 * A family says how its file is read beyond the common keys (configure), which tensors it has
 * (load), and what is computed with them (layer, in the order of docs/models/FAMILY.md). A new
 * family is one file and one line in families.c. Private to model/.
 */
#ifndef BT_MODEL_FAMILY_H
#define BT_MODEL_FAMILY_H

#include "model/model.h"

/* Tensors of one layer; those a family or a file does not have are none (id 0). */
typedef struct {
    bt_weight attn_norm, q, k, v, q_bias, k_bias, v_bias;
    bt_weight qkv, qkv_bias;                     /* q, k and v in one tensor */
    bt_weight q_norm, k_norm;
    bt_weight out, out_bias, post_attn_norm;
    bt_weight ffn_norm, gate, up, down, gate_bias, up_bias, down_bias, post_ffn_norm;
    bt_weight attn_gate;                         /* behind attention, or of a delta net's heads */
    bt_weight conv, alpha, beta, decay, dt_bias, delta_norm;
    bt_weight router, shared_router, expert_gate, expert_up, expert_down;
} bt_model_layer;

typedef struct { bt_weight frequencies; float magnitude; } bt_model_rope;

typedef struct bt_model_family bt_model_family;

struct bt_model {
    const bt_model_family *family;
    bt_model_config   config;
    bt_model_identity identity;
    bt_weight         table, output_norm, output, output_bias;
    bt_model_rope     rope, rope_sliding;        /* of layers that see all keys; of others */
    bt_model_layer   *layers;                    /* [n_layers] */
    bt_tape          *tape, *push_tape;
};

/* ---- keys ---- */

/* Reads ARCHITECTURE.key; the first failure sticks. */
typedef struct {
    const bt_gguf *file;
    const char    *architecture;
    bt_status      status;
    bt_error      *err;
    uint32_t       n_behind;       /* arrays may have so many elements more than there are layers */
    const bool    *ignored;        /* layers whose values do not matter; NULL: none */
} bt_model_keys;

bool     bt_model_has_key(const bt_model_keys *k, const char *key);
bool     bt_model_key_is_array(const bt_model_keys *k, const char *key);
/* Within [low, high], which a sentence names otherwise. */
uint32_t bt_model_key_u32(bt_model_keys *k, const char *key, uint32_t low, uint32_t high);
uint32_t bt_model_key_opt_u32(bt_model_keys *k, const char *key, uint32_t fallback, uint32_t low,
                              uint32_t high);
float    bt_model_key_opt_f32(bt_model_keys *k, const char *key, float fallback, float low,
                              float high);
void     bt_model_key_per_layer(bt_model_keys *k, const char *key, uint32_t n, uint32_t low,
                                uint32_t high, uint32_t *ret_values);
/* The family's own sentence. */
void     bt_model_key_fail(bt_model_keys *k, bt_status status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Parts of the configuration in config_hybrid.c. Blocks first: they say how many layers there are
 * and which of them keep keys and values. */
void bt_model_read_blocks(bt_model_keys *k, const bt_model_family *family, bt_model_config *c);
void bt_model_read_delta_nets(bt_model_keys *k, bt_model_config *c);
void bt_model_read_experts(bt_model_keys *k, const bt_model_family *family, bt_model_config *c);
void bt_model_count_tensors(const bt_gguf *file, bt_model_config *c);
/* A `configure` for families that rotate all values of a head. */
void bt_model_rotates_whole_heads(bt_model_keys *k, bt_model_config *c);
/* The block that a tensor's name begins with; UINT32_MAX: none. */
uint32_t bt_model_block_of(const char *tensor_name);

/* ---- weights ---- */

typedef struct bt_model_loader bt_model_loader;

/* The first failure sticks; later calls give none. Shapes as in the file: n_in is contiguous. */
bt_weight bt_model_load_matrix(bt_model_loader *l, uint32_t n_in, uint32_t n_out,
                               const char *name, ...) __attribute__((format(printf, 4, 5)));
bt_weight bt_model_load_vector(bt_model_loader *l, uint32_t n, const char *name, ...)
        __attribute__((format(printf, 3, 4)));
/* None when the file has no such tensor. */
bt_weight bt_model_load_opt_matrix(bt_model_loader *l, uint32_t n_in, uint32_t n_out,
                                   const char *name, ...) __attribute__((format(printf, 4, 5)));
bt_weight bt_model_load_opt_vector(bt_model_loader *l, uint32_t n, const char *name, ...)
        __attribute__((format(printf, 3, 4)));
/* A tensor of n_rows rows (times n_slices), or some of its rows; see bt_weight_source. */
typedef struct {
    uint32_t n_in, n_out;
    uint32_t n_rows;               /* of the tensor; 0: n_out */
    uint32_t n_slices;             /* 0: a plain matrix */
    uint32_t first, run, step;     /* rows taken; run 0: all */
    bool     as_taps, as_matrix;
} bt_model_cut;
bt_weight bt_model_load_cut(bt_model_loader *l, const bt_model_cut *cut, const char *name, ...)
        __attribute__((format(printf, 3, 4)));
bool      bt_model_has_tensor(const bt_model_loader *l, const char *name, ...)
        __attribute__((format(printf, 2, 3)));
/* Fails, naming these tensors as missing, unless they are there. */
void bt_model_require(bt_model_loader *l, bool there, const char *names, ...)
        __attribute__((format(printf, 3, 4)));
/* q, k, v with their biases, as three tensors or (if `may_fuse`) as one. */
void bt_model_load_qkv(bt_model_loader *l, const bt_model_config *c, uint32_t layer, bool may_fuse,
                       bt_model_layer *to);
/* gate, up and down with optional biases; or experts, if the model has them. */
void bt_model_load_ffn(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                       bt_model_layer *to);
/* Router and experts, and the shared expert if there is one. */
void bt_model_load_experts(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                           bt_model_layer *to);

/* Loads all weights of the model and digests every tensor of the file on the way. */
bt_status bt_model_weights_load(bt_model *m, const bt_gguf *file, bt_device *device, bt_error *err);

/* ---- angles ---- */

/* n_rot / 2 radians per position, all scaling applied, rounded to f32. `factors`: divisors, or
 * NULL. Sliding layers use their own base and no scaling. */
void  bt_model_rope_frequencies(const bt_model_config *c, bool sliding, const float *factors,
                                float *ret_frequencies);
float bt_model_rope_magnitude(const bt_model_config *c, bool sliding);

/* ---- identity ---- */

/* contents[i]: digest of the bytes of tensor i. */
bt_status bt_model_identify(const bt_gguf *file, const char *architecture,
                            const bt_digest *contents, bt_model_identity *ret_identity,
                            bt_error *err);

/* ---- tapes ---- */

/* Scratch rows of a layer, each as wide as the layer needs. */
typedef struct {
    bt_rows x;                       /* the residual stream */
    bt_rows h;                       /* normed */
    bt_rows o;                       /* what a block gives back, if it is normed first */
    bt_rows qkv, q, k, v;            /* side by side, and apart */
    bt_rows a;                       /* attention's answer, or a delta net's */
    bt_rows gate_up, gate, up, g;
    bt_rows c;                       /* behind the convolution */
    bt_rows scores, route;           /* of experts, and the shared one's */
    bt_rows expert_gate_up, expert_g, expert_down;
} bt_model_rows;

/* Two sets: for all rows, and for those alone whose logits are wanted. Keys and values of the last
 * layer are needed of every row, what comes after only of picked ones. */
typedef struct {
    bt_model_rows all, picked;
    bt_rows       logits;
} bt_model_scratch;

/* The set narrowed to the widths of this layer. */
bt_model_rows bt_model_rows_of(const bt_model_config *c, const bt_model_rows *set, uint32_t layer);
void bt_model_put_qkv(bt_tape *t, const bt_model_layer *w, bt_rows x, bt_rows y);
/* kv_put, the mark of a pushing tape, and in the last layer the step to picked rows: gives the rows
 * that the rest of the layer works on. */
bt_model_rows bt_model_put_kv(bt_tape *t, const bt_model *m, const bt_model_scratch *s,
                              const bt_model_rows *r, uint32_t layer, bool push);
/* x += what the experts make of h. */
void bt_model_put_experts(bt_tape *t, const bt_model *m, const bt_model_layer *w,
                          const bt_model_rows *r);
/* x += the feed-forward block of h: experts if the model has them, else gate, up and down. */
void bt_model_put_ffn(bt_tape *t, const bt_model *m, const bt_model_layer *w,
                      const bt_model_rows *r);
/* Of the heads of q and of k: norms, angles; and attention by q. */
void bt_model_put_head_norms(bt_tape *t, const bt_model *m, const bt_model_rows *r, uint32_t layer);
void bt_model_put_rotation(bt_tape *t, const bt_model *m, const bt_model_rows *r, uint32_t layer);
void bt_model_put_attention(bt_tape *t, const bt_model *m, const bt_model_rows *r, uint32_t layer);

struct bt_model_family {
    const char   *name;              /* general.architecture */
    bool          norms_behind;      /* blocks end in a norm: rows o are needed */
    bt_rope_style rope_style;
    bool          may_have_experts, has_experts;
    bool          hybrid;            /* some layers are recurrent; blocks may stand behind */
    float       (*embed_scale)(const bt_model_config *c);            /* NULL: 1 */
    void        (*configure)(bt_model_keys *k, bt_model_config *c);  /* after the common keys */
    void        (*load)(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                        bt_model_layer *to);
    void        (*layer)(bt_tape *t, const bt_model *m, const bt_model_scratch *s, uint32_t layer,
                         bool push);
};

extern const bt_model_family bt_model_family_llama, bt_model_family_qwen2, bt_model_family_qwen3,
        bt_model_family_gemma3, bt_model_family_qwen3moe, bt_model_family_qwen35,
        bt_model_family_qwen35moe, bt_model_family_qwen3next;

/* BT_E_UNSUPPORTED with the names of those known. */
bt_status bt_model_family_find(const char *name, const bt_model_family **ret_family, bt_error *err);

#endif
