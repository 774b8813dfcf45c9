/* The feed-forward block made of experts, the same in all families that have it.
 * docs/models/qwen3moe.md tells it in words, docs/models/experts.py in numpy. */
#include "model/family.h"

/* Router and experts, and the shared expert if there is one. */
static void load_experts(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                         bt_model_ffn *to)
{
    bt_model_experts *x = &to->experts;
    const uint32_t d = c->n_embd, f = c->n_ff_expert, e = c->n_experts, shared = c->n_ff[layer];
    x->router = bt_model_load_cut(l, &(bt_model_cut){ .n_in = d, .n_out = e, .as_matrix = true },
                                  "blk.%u.ffn_gate_inp.weight", layer);
    if (bt_model_has_tensor(l, "blk.%u.ffn_gate_up_exps.weight", layer)) {
        /* Of each expert first the rows of gate, then those of up. */
        x->gate = bt_model_load_cut(l, &(bt_model_cut){
                .n_in = d, .n_out = f, .n_rows = 2 * f, .n_slices = e, .first = 0, .run = f,
                .step = 2 * f }, "blk.%u.ffn_gate_up_exps.weight", layer);
        x->up = bt_model_load_cut(l, &(bt_model_cut){
                .n_in = d, .n_out = f, .n_rows = 2 * f, .n_slices = e, .first = f, .run = f,
                .step = 2 * f }, "blk.%u.ffn_gate_up_exps.weight", layer);
    } else {
        const bt_model_cut wide = { .n_in = d, .n_out = f, .n_slices = e };
        x->gate = bt_model_load_cut(l, &wide, "blk.%u.ffn_gate_exps.weight", layer);
        x->up = bt_model_load_cut(l, &wide, "blk.%u.ffn_up_exps.weight", layer);
    }
    x->down = bt_model_load_cut(l, &(bt_model_cut){ .n_in = f, .n_out = d, .n_slices = e },
                                "blk.%u.ffn_down_exps.weight", layer);
    if (shared > 0) {
        x->shared_router = bt_model_load_cut(l, &(bt_model_cut){ .n_in = d, .n_out = 1,
                                                                 .as_matrix = true },
                                             "blk.%u.ffn_gate_inp_shexp.weight", layer);
        to->gate = bt_model_load_matrix(l, d, shared, "blk.%u.ffn_gate_shexp.weight", layer);
        to->up = bt_model_load_matrix(l, d, shared, "blk.%u.ffn_up_shexp.weight", layer);
        to->down = bt_model_load_matrix(l, shared, d, "blk.%u.ffn_down_shexp.weight", layer);
    }
}

void bt_model_load_ffn(bt_model_loader *l, const bt_model_config *c, uint32_t layer,
                       bt_model_ffn *to)
{
    const uint32_t d = c->n_embd, f = c->n_ff[layer];
    if (c->n_experts > 0) {
        load_experts(l, c, layer, to);
        return;
    }
    to->gate = bt_model_load_matrix(l, d, f, "blk.%u.ffn_gate.weight", layer);
    to->up = bt_model_load_matrix(l, d, f, "blk.%u.ffn_up.weight", layer);
    to->down = bt_model_load_matrix(l, f, d, "blk.%u.ffn_down.weight", layer);
    to->gate_bias = bt_model_load_opt_vector(l, f, "blk.%u.ffn_gate.bias", layer);
    to->up_bias = bt_model_load_opt_vector(l, f, "blk.%u.ffn_up.bias", layer);
    to->down_bias = bt_model_load_opt_vector(l, d, "blk.%u.ffn_down.bias", layer);
}

/* x += what the experts make of h. */
static void put_experts(bt_tape *t, const bt_model_config *c, const bt_model_ffn *w,
                        const bt_model_stream *s, const bt_model_hidden *r)
{
    const bt_model_experts *x = &w->experts;
    const uint32_t n = c->n_experts_used, wide = n * c->n_ff_expert;

    bt_ops_put(t, linear, .x = s->h, .y = r->scores, .w = { x->router, x->shared_router });
    bt_ops_put(t, route, .scores = bt_ops_rows_slice(r->scores, 0, c->n_experts), .y = r->route,
               .n_used = n, .renormalise = true);
    bt_ops_put(t, expert_linear, .x = s->h, .route = r->route, .y = r->expert_gate_up, .n_used = n,
               .w = { x->gate, x->up });
    bt_ops_put(t, glu, .gate = bt_ops_rows_slice(r->expert_gate_up, 0, wide),
               .up = bt_ops_rows_slice(r->expert_gate_up, wide, wide), .y = r->expert_g,
               .act = BT_ACT_SILU);
    bt_ops_put(t, expert_linear, .x = r->expert_g, .route = r->route, .y = r->expert_down,
               .n_used = n, .w = { x->down }, .per_expert = true);
    bt_ops_put(t, combine, .x = r->expert_down, .route = r->route, .y = s->x, .n_used = n,
               .add = true);
    if (x->shared_router.id == 0) {
        return;
    }
    bt_ops_put(t, linear, .x = s->h, .y = r->gate_up, .w = { w->gate, w->up });
    bt_ops_put(t, glu, .gate = r->gate, .up = r->up, .y = r->g, .act = BT_ACT_SILU);
    bt_ops_put(t, linear, .x = r->g, .y = r->shared, .w = { w->down });
    bt_ops_put(t, mul, .x = r->shared, .gate = bt_ops_rows_slice(r->scores, c->n_experts, 1),
               .y = s->x, .act = BT_ACT_SIGMOID, .add = true);
}

void bt_model_put_ffn(bt_tape *t, const bt_model_config *c, const bt_model_ffn *w,
                      const bt_model_stream *s, const bt_model_hidden *r)
{
    if (c->n_experts > 0) {
        put_experts(t, c, w, s, r);
        return;
    }
    bt_ops_put(t, linear, .x = s->h, .y = r->gate_up, .w = { w->gate, w->up },
               .bias = { w->gate_bias, w->up_bias });
    bt_ops_put(t, glu, .gate = r->gate, .up = r->up, .y = r->g, .act = BT_ACT_SILU);
    bt_ops_put(t, linear, .x = r->g, .y = s->x, .w = { w->down }, .bias = { w->down_bias },
               .add = true);
}
