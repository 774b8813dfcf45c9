/* What an op is called, reads and writes: the one place that wrappers and planners ask. */
#include "device/ops.h"
#include "device/tape.h"

const char *bt_ops_name(bt_op_kind kind)
{
    static const char *const names[] = {
#define X(name) #name,
        BT_OP_LIST(X)
#undef X
    };
    return (unsigned)kind < BT_OP_COUNT ? names[kind] : "unknown";
}

bt_rows bt_ops_output(const bt_op *op)
{
    switch (op->kind) {
    case BT_OP_embed:     return op->embed.y;
    case BT_OP_rows:      return op->rows.y;
    case BT_OP_rmsnorm:   return op->rmsnorm.y;
    case BT_OP_head_norm: return op->head_norm.x;
    case BT_OP_linear:    return op->linear.y;
    case BT_OP_rope:      return op->rope.x;
    case BT_OP_attention: return op->attention.y;
    case BT_OP_add:       return op->add.y;
    case BT_OP_scale:     return op->scale.x;
    case BT_OP_glu:       return op->glu.y;
    case BT_OP_softcap:   return op->softcap.x;
    case BT_OP_mul:       return op->mul.y;
    case BT_OP_short_conv: return op->short_conv.y;
    case BT_OP_delta_scan: return op->delta_scan.y;
    case BT_OP_route:     return op->route.y;
    case BT_OP_expert_linear: return op->expert_linear.y;
    case BT_OP_combine:   return op->combine.y;
    case BT_OP_kv_put:
    case BT_OP_mark:
    case BT_OP_COUNT:     break;
    }
    return (bt_rows){ 0 };
}

/* Rows that do not exist are left out. */
static uint32_t give(bt_rows to[BT_OP_INPUTS_MAX], uint32_t n, const bt_rows *from)
{
    uint32_t given = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (from[i].slot != 0) {
            to[given++] = from[i];
        }
    }
    return given;
}

#define GIVE(...)                                                               \
    give(ret_inputs, sizeof((bt_rows[]){ __VA_ARGS__ }) / sizeof(bt_rows),      \
         (const bt_rows[]){ __VA_ARGS__ })

uint32_t bt_ops_inputs(const bt_op *op, bt_rows ret_inputs[BT_OP_INPUTS_MAX])
{
    const bt_rows none = { 0 };
    switch (op->kind) {
    case BT_OP_rows:       return GIVE(op->rows.x);
    case BT_OP_rmsnorm:    return GIVE(op->rmsnorm.x, op->rmsnorm.add ? op->rmsnorm.y : none);
    case BT_OP_head_norm:  return GIVE(op->head_norm.x);
    case BT_OP_linear:     return GIVE(op->linear.x, op->linear.add ? op->linear.y : none);
    case BT_OP_rope:       return GIVE(op->rope.x);
    case BT_OP_kv_put:     return GIVE(op->kv_put.k, op->kv_put.v);
    case BT_OP_attention:  return GIVE(op->attention.q);
    case BT_OP_add:        return GIVE(op->add.x, op->add.y);
    case BT_OP_scale:      return GIVE(op->scale.x);
    case BT_OP_glu:        return GIVE(op->glu.gate, op->glu.up);
    case BT_OP_softcap:    return GIVE(op->softcap.x);
    case BT_OP_mul:        return GIVE(op->mul.x, op->mul.gate, op->mul.add ? op->mul.y : none);
    case BT_OP_short_conv: return GIVE(op->short_conv.x);
    case BT_OP_delta_scan: return GIVE(op->delta_scan.q, op->delta_scan.k, op->delta_scan.v,
                                       op->delta_scan.alpha, op->delta_scan.beta);
    case BT_OP_route:      return GIVE(op->route.scores);
    case BT_OP_expert_linear: return GIVE(op->expert_linear.x, op->expert_linear.route);
    case BT_OP_combine:    return GIVE(op->combine.x, op->combine.route,
                                       op->combine.add ? op->combine.y : none);
    case BT_OP_embed:
    case BT_OP_mark:
    case BT_OP_COUNT:
        break;
    }
    return 0;
}
