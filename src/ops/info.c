/* The table, and what follows from it. */
#include "ops/info.h"

#include "base/check.h"
#include "ops/check.h"

const bt_op_info *bt_ops_info(bt_op_kind kind)
{
    static const bt_op_info *const table[] = {
#define X(name) [BT_OP_##name] = &bt_ops_info_##name,
        BT_OP_LIST(X)
#undef X
    };
    BT_ASSERT((unsigned)kind < BT_OP_COUNT);
    return table[kind];
}

const char *bt_ops_name(bt_op_kind kind)
{
    return (unsigned)kind < BT_OP_COUNT ? bt_ops_info(kind)->name : "unknown";
}

static const void *field(const bt_op *op, uint16_t offset)
{
    return (const char *)(const void *)op + offset;
}

bool bt_ops_adds(const bt_op *op)
{
    const bt_op_info *info = bt_ops_info(op->kind);
    return info->adds_always || (info->add != 0 && *(const bool *)field(op, info->add));
}

uint32_t bt_ops_layer(const bt_op *op)
{
    const uint16_t at = bt_ops_info(op->kind)->layer;
    BT_ASSERT(at != 0);
    return *(const uint32_t *)field(op, at);
}

bt_rows bt_ops_output(const bt_op *op)
{
    const uint16_t at = bt_ops_info(op->kind)->output;
    return at != 0 ? *(const bt_rows *)field(op, at) : (bt_rows){ 0 };
}

uint32_t bt_ops_inputs(const bt_op *op, bt_rows ret_inputs[BT_OP_INPUTS_MAX])
{
    const bt_op_info *info = bt_ops_info(op->kind);
    uint32_t n = 0;
    for (; n < BT_OP_INPUTS_MAX && info->inputs[n] != 0; n++) {
        ret_inputs[n] = *(const bt_rows *)field(op, info->inputs[n]);
    }
    if (bt_ops_adds(op)) {
        ret_inputs[n++] = bt_ops_output(op);
    }
    return n;
}
