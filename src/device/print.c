/* A tape as text: what a golden test of a family compares. */
#include "device/device.h"
#include "device/tape.h"

static void put_rows(bt_buf *to, const bt_tape *t, bt_rows r)
{
    bool picked;
    const uint32_t cols = bt_ops_tape_slot_cols(t, r.slot, &picked);
    if (r.column == 0 && r.cols == cols) {
        bt_buf_printf(to, " s%u", r.slot);
    } else {
        bt_buf_printf(to, " s%u[%u+%u]", r.slot, r.column, r.cols);
    }
}

static void put_weight(bt_buf *to, const bt_tape *t, bt_weight w)
{
    bt_weight_shape shape;
    if (bt_device_weight_shape(bt_ops_tape_device(t), w, &shape) != BT_OK) {
        bt_buf_puts(to, " (?)");
        return;
    }
    const bt_type_info *type = bt_quant_type_find(shape.type);
    if (shape.n_slices > 1) {
        bt_buf_printf(to, " (%ux%ux%u %s)", shape.n_in, shape.n_out, shape.n_slices,
                      type ? type->name : "?");
    } else {
        bt_buf_printf(to, " (%ux%u %s)", shape.n_in, shape.n_out, type ? type->name : "?");
    }
}

static void put_linear(bt_buf *to, const bt_tape *t, const bt_op_linear *o)
{
    for (int i = 0; i < BT_LINEAR_PARTS_MAX && o->w[i].id != 0; i++) {
        put_weight(to, t, o->w[i]);
        if (o->bias[i].id != 0) {
            bt_buf_puts(to, " + bias");
        }
    }
}

static const char *activation(bt_activation act)
{
    switch (act) {
    case BT_ACT_SILU:      return "silu";
    case BT_ACT_GELU_TANH: return "gelu_tanh";
    case BT_ACT_SIGMOID:   break;
    }
    return "sigmoid";
}

static void put_delta_scan(bt_buf *to, const bt_tape *t, const bt_op_delta_scan *o)
{
    put_weight(to, t, o->decay);
    put_weight(to, t, o->dt_bias);
    bt_buf_printf(to, " of %u heads %u/%u %s l2_eps %.9g scale %.9g", o->layer, o->n_v_heads,
                  o->n_k_heads, o->tiled ? "tiled" : "grouped", (double)o->l2_eps,
                  (double)o->scale);
}

/* Ops of recurrent layers and of experts. */
static void put_more_details(bt_buf *to, const bt_tape *t, const bt_op *op)
{
    switch (op->kind) {
    case BT_OP_mul:
        bt_buf_printf(to, " %s", activation(op->mul.act));
        break;
    case BT_OP_short_conv:
        put_weight(to, t, op->short_conv.w);
        bt_buf_printf(to, " of %u %s", op->short_conv.layer, activation(op->short_conv.act));
        break;
    case BT_OP_delta_scan:
        put_delta_scan(to, t, &op->delta_scan);
        break;
    case BT_OP_route:
        bt_buf_printf(to, " best %u%s", op->route.n_used,
                      op->route.renormalise ? " renormalised" : "");
        break;
    case BT_OP_expert_linear:
        for (int i = 0; i < BT_EXPERT_PARTS_MAX && op->expert_linear.w[i].id != 0; i++) {
            put_weight(to, t, op->expert_linear.w[i]);
        }
        bt_buf_printf(to, " best %u%s", op->expert_linear.n_used,
                      op->expert_linear.per_expert ? " of its own" : "");
        break;
    case BT_OP_combine:
        bt_buf_printf(to, " best %u", op->combine.n_used);
        break;
    default:
        break;
    }
}

static void put_details(bt_buf *to, const bt_tape *t, const bt_op *op)
{
    switch (op->kind) {
    case BT_OP_embed:
        put_weight(to, t, op->embed.table);
        bt_buf_printf(to, " scale %.9g", (double)op->embed.scale);
        break;
    case BT_OP_rmsnorm:
        put_weight(to, t, op->rmsnorm.w);
        bt_buf_printf(to, " eps %.9g", (double)op->rmsnorm.eps);
        break;
    case BT_OP_head_norm:
        put_weight(to, t, op->head_norm.w);
        bt_buf_printf(to, " heads %u eps %.9g", op->head_norm.n_heads, (double)op->head_norm.eps);
        break;
    case BT_OP_linear:
        put_linear(to, t, &op->linear);
        break;
    case BT_OP_rope:
        bt_buf_printf(to, " heads %u n_rot %u %s magnitude %.9g", op->rope.n_heads, op->rope.n_rot,
                      op->rope.style == BT_ROPE_NEOX ? "neox" : "norm",
                      (double)op->rope.magnitude);
        break;
    case BT_OP_kv_put:
        bt_buf_printf(to, " of %u", op->kv_put.layer);
        break;
    case BT_OP_attention:
        bt_buf_printf(to, " of %u heads %u/%u window %u scale %.9g softcap %.9g",
                      op->attention.layer, op->attention.n_heads, op->attention.n_kv_heads,
                      op->attention.window, (double)op->attention.scale,
                      (double)op->attention.softcap);
        break;
    case BT_OP_scale:
        bt_buf_printf(to, " by %.9g", (double)op->scale.by);
        break;
    case BT_OP_glu:
        bt_buf_printf(to, " %s", activation(op->glu.act));
        break;
    case BT_OP_softcap:
        bt_buf_printf(to, " cap %.9g", (double)op->softcap.cap);
        break;
    case BT_OP_mark:
        bt_buf_printf(to, " of %u", op->mark.layer);
        break;
    case BT_OP_rows:
    case BT_OP_add:
    case BT_OP_COUNT:
        break;
    default:
        put_more_details(to, t, op);
        break;
    }
}

static bool adds(const bt_op *op)
{
    return op->kind == BT_OP_add || (op->kind == BT_OP_linear && op->linear.add) ||
           (op->kind == BT_OP_rmsnorm && op->rmsnorm.add) ||
           (op->kind == BT_OP_mul && op->mul.add) ||
           (op->kind == BT_OP_combine && op->combine.add);
}

static void put_op(bt_buf *to, const bt_tape *t, uint32_t index)
{
    const bt_op *op = bt_ops_tape_op(t, index);
    const bt_rows y = bt_ops_output(op);
    bt_rows x[BT_OP_INPUTS_MAX];
    const uint32_t n = bt_ops_inputs(op, x);
    const uint32_t layer = bt_ops_tape_layer_of(t, index);
    if (layer == BT_TAPE_NO_LAYER) {
        bt_buf_printf(to, "%04u    - %-9s", index, bt_ops_name(op->kind));
    } else {
        bt_buf_printf(to, "%04u %4u %-9s", index, layer, bt_ops_name(op->kind));
    }
    for (uint32_t i = 0; i < (adds(op) ? n - 1 : n); i++) {
        put_rows(to, t, x[i]);
    }
    if (y.slot != 0) {
        bt_buf_puts(to, adds(op) ? " +>" : " ->");
        put_rows(to, t, y);
    }
    put_details(to, t, op);
    bt_buf_puts(to, "\n");
}

void bt_ops_tape_print(const bt_tape *t, bt_buf *to)
{
    for (uint32_t i = 1; i <= bt_ops_tape_slots(t); i++) {
        bool picked;
        const uint32_t cols = bt_ops_tape_slot_cols(t, (uint16_t)i, &picked);
        bt_buf_printf(to, "s%u: %u columns%s\n", i, cols, picked ? ", picked rows" : "");
    }
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        put_op(to, t, i);
    }
    if (bt_ops_tape_result(t).slot != 0) {
        bt_buf_puts(to, "result");
        put_rows(to, t, bt_ops_tape_result(t));
        bt_buf_puts(to, "\n");
    }
}
