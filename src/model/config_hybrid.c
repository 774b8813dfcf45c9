/* Keys of recurrent layers and of experts, and what follows from them. Hostile input like all of a
 * file: see config.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

enum { DELTA_DIM_MAX = 1024 };

/* ---- blocks ---- */

/* Every interval-th layer has attention, unless an array says which. */
static void read_recurrent(bt_model_keys *k, bt_model_config *c)
{
    static const char flags_key[] = "attention.recurrent_layers";
    uint32_t flags[BT_LAYERS_MAX] = { 0 };
    const uint32_t interval = bt_model_key_opt_u32(k, "full_attention_interval", 4, 1,
                                                   BT_LAYERS_MAX);
    bool any = false;
    if (bt_model_has_key(k, flags_key)) {
        bt_model_key_per_layer(k, flags_key, c->n_layers, 0, 1, flags);
    } else {
        for (uint32_t i = 0; i < c->n_layers; i++) {
            flags[i] = (i + 1) % interval != 0;
        }
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->recurrent[i] = flags[i] != 0;
        any = any || flags[i] == 0;
    }
    if (k->status == BT_OK && !any) {
        bt_model_key_fail(k, BT_E_UNSUPPORTED, "none of %u layers has attention; at least one must",
                          c->n_layers);
    }
}

void bt_model_read_blocks(bt_model_keys *k, const bt_model_family *family, bt_model_config *c)
{
    const uint32_t n = bt_model_key_u32(k, "block_count", 1, BT_LAYERS_MAX);
    c->n_layers = n;
    if (!family->hybrid || k->status != BT_OK) {
        return;
    }
    c->n_blocks_behind = bt_model_key_opt_u32(k, "nextn_predict_layers", 0, 0, n - 1);
    if (k->status == BT_OK) {
        c->n_layers = n - c->n_blocks_behind;
        k->n_behind = c->n_blocks_behind;
        read_recurrent(k, c);
    }
}

uint32_t bt_model_block_of(const char *tensor_name)
{
    if (strncmp(tensor_name, "blk.", 4) != 0 || tensor_name[4] < '0' || tensor_name[4] > '9') {
        return UINT32_MAX;
    }
    char *end;
    const unsigned long block = strtoul(tensor_name + 4, &end, 10);
    return *end == '.' && block < UINT32_MAX ? (uint32_t)block : UINT32_MAX;
}

/* ---- delta nets ---- */

/* Coordinates of pictures; text has one, so that only a mistake in the file can matter here. */
static void check_sections(bt_model_keys *k, const bt_model_config *c)
{
    char name[96];
    snprintf(name, sizeof name, "%s.rope.dimension_sections", k->architecture);
    const bt_gguf_pair *pair = bt_gguf_find(k->file, name);
    if (k->status != BT_OK || !pair) {
        return;
    }
    const bool integers = pair->element == BT_GGUF_I32 || pair->element == BT_GGUF_U32;
    if (pair->type != BT_GGUF_ARRAY || !integers || pair->count < 3 || pair->count > 4) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s is not an array of four integers", name);
        return;
    }
    uint64_t sum = 0;
    for (uint64_t i = 0; i < pair->count; i++) {
        sum += bt_gguf_array_u32(pair, i);       /* a negative one counts as the largest */
    }
    if (sum < c->n_rot / 2 || sum > BT_WIDTH_MAX) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s: the sections hold %llu pairs, but %u are rotated",
                          name, (unsigned long long)sum, c->n_rot / 2);
    }
}

void bt_model_read_delta_nets(bt_model_keys *k, bt_model_config *c)
{
    c->gated_attention = true;
    c->n_taps = bt_model_key_u32(k, "ssm.conv_kernel", 1, BT_CONV_TAPS_MAX);
    c->delta_dim = bt_model_key_u32(k, "ssm.state_size", 1, DELTA_DIM_MAX);
    c->n_delta_k = bt_model_key_u32(k, "ssm.group_count", 1, BT_HEADS_MAX);
    c->n_delta_v = bt_model_key_u32(k, "ssm.time_step_rank", 1, BT_HEADS_MAX);
    const uint32_t inner = bt_model_key_u32(k, "ssm.inner_size", 1, BT_WIDTH_MAX);
    if (k->status != BT_OK) {
        return;
    }
    if (c->n_delta_v % c->n_delta_k != 0 || inner != c->n_delta_v * c->delta_dim) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s.ssm: %u value heads of %u (inner size %u) on %u key "
                          "heads do not fit together", k->architecture, c->n_delta_v, c->delta_dim,
                          inner, c->n_delta_k);
    } else if ((2 * (uint64_t)c->n_delta_k + c->n_delta_v) * c->delta_dim > BT_WIDTH_MAX) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s.ssm: %u key heads and %u value heads of %u values "
                          "are more than %u channels", k->architecture, c->n_delta_k, c->n_delta_v,
                          c->delta_dim, BT_WIDTH_MAX);
    } else if (c->head_dim_k != c->head_dim_v) {
        bt_model_key_fail(k, BT_E_UNSUPPORTED, "%s has keys of %u and values of %u; a gate after "
                          "attention needs them equal", k->architecture, c->head_dim_k,
                          c->head_dim_v);
    }
    check_sections(k, c);
}

/* ---- experts ---- */

static void read_expert_widths(bt_model_keys *k, const bt_model_family *family, bt_model_config *c)
{
    if (family->has_experts) {
        c->n_ff_expert = bt_model_key_u32(k, "expert_feed_forward_length", 1, BT_WIDTH_MAX);
    } else {
        /* Experts in place of the block: as wide as that is said to be. */
        c->n_ff_expert = bt_model_key_opt_u32(k, "expert_feed_forward_length", c->n_ff[0], 1,
                                              BT_WIDTH_MAX);
    }
    const uint32_t shared = family->hybrid
            ? bt_model_key_opt_u32(k, "expert_shared_feed_forward_length", 0, 0, BT_WIDTH_MAX) : 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->n_ff[i] = shared;
    }
}

void bt_model_read_experts(bt_model_keys *k, const bt_model_family *family, bt_model_config *c)
{
    const bool known = family->has_experts || family->may_have_experts;
    const uint32_t n = family->has_experts
            ? bt_model_key_u32(k, "expert_count", 1, BT_EXPERTS_MAX)
            : bt_model_key_opt_u32(k, "expert_count", 0, 0, known ? BT_EXPERTS_MAX : UINT32_MAX);
    if (k->status != BT_OK || n == 0) {
        return;
    }
    if (!known) {
        bt_model_key_fail(k, BT_E_UNSUPPORTED, "%s.expert_count is %u: architecture '%s' is not "
                          "known with experts", k->architecture, n, k->architecture);
        return;
    }
    c->n_experts = n;
    c->n_experts_used = bt_model_key_u32(k, "expert_used_count", 1,
                                         n < BT_EXPERTS_USED_MAX ? n : BT_EXPERTS_USED_MAX);
    read_expert_widths(k, family, c);
    const uint64_t wide = c->n_ff_expert * 2 > c->n_embd ? c->n_ff_expert * 2 : c->n_embd;
    if (k->status == BT_OK && c->n_experts_used * wide > 8 * (uint64_t)BT_WIDTH_MAX) {
        bt_model_key_fail(k, BT_E_BADFILE, "%u experts of %u values side by side: more than %u",
                          c->n_experts_used, c->n_ff_expert, 8 * BT_WIDTH_MAX);
    }
}

/* ---- sums ---- */

void bt_model_count_tensors(const bt_gguf *file, bt_model_config *c)
{
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        const uint32_t block = bt_model_block_of(t->name);
        const bool experts = c->n_experts > 0 && strstr(t->name, "_exps.");
        c->n_params += t->n_elems;
        c->weight_bytes += t->size_bytes;
        if (block == UINT32_MAX || block < c->n_layers) {
            c->n_params_active +=
                    experts ? t->n_elems / c->n_experts * c->n_experts_used : t->n_elems;
        }
    }
}
