/* A tape as text: what a golden test of a family compares. */
#include "device/device.h"
#include "device/tape.h"

static void put_rows(bt_buf *to, const bt_tape *t, bt_rows r)
{
    bool picked;
    const uint32_t cols = bt_tape_slot_cols(t, r.slot, &picked);
    if (r.column == 0 && r.cols == cols) {
        bt_buf_printf(to, " s%u", r.slot);
    } else {
        bt_buf_printf(to, " s%u[%u+%u]", r.slot, r.column, r.cols);
    }
}

static void put_weight(bt_buf *to, const bt_tape *t, bt_weight w)
{
    bt_weight_shape shape;
    if (bt_device_weight_shape(bt_tape_device(t), w, &shape) != BT_OK) {
        bt_buf_puts(to, " (?)");
        return;
    }
    const bt_type_info *type = bt_type_find(shape.type);
    bt_buf_printf(to, " (%ux%u %s)", shape.n_in, shape.n_out, type ? type->name : "?");
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
        bt_buf_puts(to, op->glu.act == BT_ACT_SILU ? " silu" : " gelu_tanh");
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
    }
}

static bool adds(const bt_op *op)
{
    return op->kind == BT_OP_add || (op->kind == BT_OP_linear && op->linear.add) ||
           (op->kind == BT_OP_rmsnorm && op->rmsnorm.add);
}

static void put_op(bt_buf *to, const bt_tape *t, uint32_t index)
{
    const bt_op *op = bt_tape_op(t, index);
    const bt_rows y = bt_op_output(op);
    bt_rows x[BT_OP_INPUTS_MAX];
    const uint32_t n = bt_op_inputs(op, x);
    const uint32_t layer = bt_tape_layer_of(t, index);
    if (layer == BT_TAPE_NO_LAYER) {
        bt_buf_printf(to, "%04u    - %-9s", index, bt_op_name(op->kind));
    } else {
        bt_buf_printf(to, "%04u %4u %-9s", index, layer, bt_op_name(op->kind));
    }
    for (uint32_t i = 0; i < n && !(adds(op) && i == 1); i++) {
        put_rows(to, t, x[i]);
    }
    if (y.slot != 0) {
        bt_buf_puts(to, adds(op) ? " +>" : " ->");
        put_rows(to, t, y);
    }
    put_details(to, t, op);
    bt_buf_puts(to, "\n");
}

void bt_tape_print(const bt_tape *t, bt_buf *to)
{
    for (uint32_t i = 1; i <= bt_tape_slots(t); i++) {
        bool picked;
        const uint32_t cols = bt_tape_slot_cols(t, (uint16_t)i, &picked);
        bt_buf_printf(to, "s%u: %u columns%s\n", i, cols, picked ? ", picked rows" : "");
    }
    for (uint32_t i = 0; i < bt_tape_count(t); i++) {
        put_op(to, t, i);
    }
    if (bt_tape_result(t).slot != 0) {
        bt_buf_puts(to, "result");
        put_rows(to, t, bt_tape_result(t));
        bt_buf_puts(to, "\n");
    }
}
