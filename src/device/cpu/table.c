/* The table of the CPU device; an op without a row does not link. */
#include "base/check.h"
#include "device/cpu/op.h"

const bt_cpu_op *bt_device_cpu_op(bt_op_kind kind)
{
    static const bt_cpu_op *const table[] = {
#define X(name) [BT_OP_##name] = &bt_device_cpu_op_##name,
        BT_OP_LIST(X)
#undef X
    };
    BT_ASSERT((unsigned)kind < BT_OP_COUNT);
    return table[kind];
}
