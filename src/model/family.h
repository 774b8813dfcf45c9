/* model/family.h - what the files of this room share: the model's parts, the loader, the families.
 *
 * A family says how its file is read beyond the common keys (configure), which tensors it has
 * (load), and what is computed with them (layer, in the order of docs/models/FAMILY.md). A new
 * family is one file and one line in families.c. Private to model/.
 */
#ifndef BT_MODEL_FAMILY_H
#define BT_MODEL_FAMILY_H

#include "model/model.h"

/* ---- tensors that several families have; those that a file does not have are none (id 0) ---- */

typedef struct {
    bt_weight q, k, v, q_bias, k_bias, v_bias;
    bt_weight all, all_bias;                     /* q, k and v in one tensor */
} bt_model_qkv;

typedef struct { bt_weight router, shared_router, gate, up, down; } bt_model_experts;

typedef struct {
    /* Of the block, or of the expert that all rows take. */
    bt_weight        gate, up, down, gate_bias, up_bias, down_bias;
    bt_model_experts experts;
} bt_model_ffn;

typedef struct { bt_weight frequencies, long_frequencies; float magnitude; } bt_model_rope;

typedef struct bt_model_family bt_model_family;

struct bt_model {
    const bt_model_family *family;
    bt_model_config   config;
    bt_model_identity identity;
    bt_weight         table, output_norm, output, output_bias;
    bt_model_rope     rope, rope_sliding;        /* of layers that see all keys; of others */
    void             *layers;                    /* [n_layers] of the family's struct */
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
/* Keeps *io_text when there is no such key; false after a failure. */
bool     bt_model_key_opt_string(bt_model_keys *k, const char *key, bt_gguf_string *io_text);
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
                       bt_model_qkv *to);
/* gate, up and down with optional biases; or experts, if the model has them. */
void bt_model_load_ffn(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                       bt_model_ffn *to);

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

/* Scratch rows. A family takes what its layers need, twice: for all rows, and for those alone whose
 * logits are wanted. Keys and values of the last layer are needed of every row, what comes after
 * only of picked ones. Rows are as wide as the widest layer needs; functions _of narrow them. */
typedef struct {
    bt_rows x;                       /* the residual stream */
    bt_rows h;                       /* normed */
} bt_model_stream;

typedef struct {
    bt_rows qkv, q, k, v;            /* side by side, and apart; picked rows have q alone */
    bt_rows a;                       /* attention's answer */
} bt_model_heads;

typedef struct {
    bt_rows gate_up, gate, up, g;    /* of the block, or of the shared expert */
    bt_rows shared;                  /* the shared expert's answer */
    bt_rows scores, route;           /* of experts, and the shared one's */
    bt_rows expert_gate_up, expert_g, expert_down;
} bt_model_hidden;

/* What a layer of attention and a feed-forward block needs. */
typedef struct {
    bt_model_stream s;
    bt_model_heads  heads;
    bt_model_hidden hidden;
} bt_model_plain;

bt_rows         bt_model_take(bt_tape *t, bool picked, uint32_t cols);  /* cols 0: none */
uint32_t        bt_model_most(const uint32_t *values, uint32_t n);      /* the largest */
bt_model_stream bt_model_take_stream(bt_tape *t, const bt_model_config *c, bool picked);
bt_model_heads  bt_model_take_heads(bt_tape *t, const bt_model_config *c, bool picked);
bt_model_hidden bt_model_take_hidden(bt_tape *t, const bt_model_config *c, bool picked);
/* `s`: NULL for a stream of its own. */
bt_model_plain  bt_model_take_plain(bt_tape *t, const bt_model_config *c, const bt_model_stream *s,
                                    bool picked);
bt_model_plain  bt_model_plain_of(const bt_model_config *c, const bt_model_plain *r,
                                  uint32_t layer);
bt_model_heads  bt_model_heads_of(const bt_model_config *c, const bt_model_heads *h,
                                  uint32_t layer);
bt_model_hidden bt_model_hidden_of(const bt_model_config *c, const bt_model_hidden *h,
                                   uint32_t layer);

void bt_model_put_qkv(bt_tape *t, const bt_model_qkv *w, bt_rows x, bt_rows y);
/* kv_put, and the mark of a pushing tape. */
void bt_model_put_kv(bt_tape *t, const bt_model_heads *h, uint32_t layer, bool push);
/* The same, and in the last layer the step to picked rows: gives the rows that the rest of the
 * layer works on. */
bt_model_plain bt_model_put_kv_plain(bt_tape *t, const bt_model_config *c, const bt_model_plain *r,
                                     const bt_model_plain *picked, uint32_t layer, bool push);
/* x += the feed-forward block of h: experts if the model has them, else gate, up and down. */
void bt_model_put_ffn(bt_tape *t, const bt_model_config *c, const bt_model_ffn *w,
                      const bt_model_stream *s, const bt_model_hidden *r);
/* Of the heads of q and of k: norms, angles; and attention by q. */
void bt_model_put_head_norms(bt_tape *t, const bt_model_config *c, bt_weight q_norm,
                             bt_weight k_norm, const bt_model_heads *h, uint32_t layer);
void bt_model_put_rotation(bt_tape *t, const bt_model *m, const bt_model_heads *h, uint32_t layer);
void bt_model_put_attention(bt_tape *t, const bt_model_config *c, const bt_model_heads *h,
                            uint32_t layer);

/* ---- families ---- */

struct bt_model_family {
    const char   *name;              /* general.architecture */
    bt_rope_style rope_style;
    bool          may_have_experts, has_experts;
    bool          hybrid;            /* some layers are recurrent; blocks may stand behind */
    float       (*embed_scale)(const bt_model_config *c);            /* NULL: 1 */
    void        (*configure)(bt_model_keys *k, bt_model_config *c);  /* after the common keys */
    /* A layer's tensors, in a struct of the family's own of layer_bytes, zeroed before. */
    size_t        layer_bytes;
    void        (*load)(bt_model_loader *l, const bt_model_config *c, uint32_t layer, void *to);
    /* All layers, from the embedded rows on; gives the picked rows after the last one. */
    bt_model_stream (*layers)(bt_tape *t, const bt_model *m, const bt_model_stream *s, bool push);
    /* What a recurrent layer keeps per sequence; NULL: there are none. */
    void        (*state)(const bt_model_config *c, bt_state_layer *ret_layer);
};

extern const bt_model_family bt_model_family_llama, bt_model_family_qwen2, bt_model_family_qwen3,
        bt_model_family_gemma3, bt_model_family_qwen3moe, bt_model_family_qwen35,
        bt_model_family_qwen35moe, bt_model_family_qwen3next;

/* BT_E_UNSUPPORTED with the names of those known. */
bt_status bt_model_family_find(const char *name, const bt_model_family **ret_family, bt_error *err);

#endif
