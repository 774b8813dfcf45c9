/* A tape as text: what a golden test of a family compares. */
#include "ops/info.h"

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

static void put_op(bt_buf *to, const bt_tape *t, uint32_t index)
{
    const bt_op *op = bt_ops_tape_op(t, index);
    const bt_op_info *info = bt_ops_info(op->kind);
    const bool adds = bt_ops_adds(op);
    const bt_rows y = bt_ops_output(op);
    bt_rows x[BT_OP_INPUTS_MAX];
    const uint32_t n = bt_ops_inputs(op, x);
    const uint32_t layer = bt_ops_tape_layer_of(t, index);
    if (layer == BT_TAPE_NO_LAYER) {
        bt_buf_printf(to, "%04u    - %-9s", index, info->name);
    } else {
        bt_buf_printf(to, "%04u %4u %-9s", index, layer, info->name);
    }
    for (uint32_t i = 0; i < (adds ? n - 1 : n); i++) {
        put_rows(to, t, x[i]);
    }
    if (y.slot != 0) {
        bt_buf_puts(to, adds ? " +>" : " ->");
        put_rows(to, t, y);
    }
    if (info->print) {
        info->print(to, bt_ops_tape_weights(t), op);
    }
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
