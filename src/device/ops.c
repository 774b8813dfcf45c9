/* What an op is called, reads and writes: the one place that wrappers and planners ask. */
#include "device/ops.h"
#include "device/tape.h"

const char *bt_op_name(bt_op_kind kind)
{
    static const char *const names[] = {
#define X(name) #name,
        BT_OP_LIST(X)
#undef X
    };
    return (unsigned)kind < BT_OP_COUNT ? names[kind] : "unknown";
}

bt_rows bt_op_output(const bt_op *op)
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
    case BT_OP_kv_put:
    case BT_OP_mark:
    case BT_OP_COUNT:     break;
    }
    return (bt_rows){ 0 };
}

static uint32_t give(bt_rows to[BT_OP_INPUTS_MAX], bt_rows a, bt_rows b)
{
    to[0] = a;
    to[1] = b;
    return b.slot ? 2 : a.slot ? 1 : 0;
}

uint32_t bt_op_inputs(const bt_op *op, bt_rows ret_inputs[BT_OP_INPUTS_MAX])
{
    const bt_rows none = { 0 };
    switch (op->kind) {
    case BT_OP_rows:
        return give(ret_inputs, op->rows.x, none);
    case BT_OP_rmsnorm:
        return give(ret_inputs, op->rmsnorm.x, op->rmsnorm.add ? op->rmsnorm.y : none);
    case BT_OP_head_norm:
        return give(ret_inputs, op->head_norm.x, none);
    case BT_OP_linear:
        return give(ret_inputs, op->linear.x, op->linear.add ? op->linear.y : none);
    case BT_OP_rope:
        return give(ret_inputs, op->rope.x, none);
    case BT_OP_kv_put:
        return give(ret_inputs, op->kv_put.k, op->kv_put.v);
    case BT_OP_attention:
        return give(ret_inputs, op->attention.q, none);
    case BT_OP_add:
        return give(ret_inputs, op->add.x, op->add.y);
    case BT_OP_scale:
        return give(ret_inputs, op->scale.x, none);
    case BT_OP_glu:
        return give(ret_inputs, op->glu.gate, op->glu.up);
    case BT_OP_softcap:
        return give(ret_inputs, op->softcap.x, none);
    case BT_OP_embed:
    case BT_OP_mark:
    case BT_OP_COUNT:
        break;
    }
    return give(ret_inputs, none, none);
}
