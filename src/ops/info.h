/* ops/info.h - what is known of an op beside its numbers: one row per op, one table.
 *
 * A row stands beside the op's shape check, in rows.c, pointwise.c, sequence.c or experts.c.
 * Devices have tables of their own, by the same list. Threads: immutable.
 */
#ifndef BT_OPS_INFO_H
#define BT_OPS_INFO_H

#include <stddef.h>

#include "base/buffer.h"
#include "ops/tape.h"

/* What an op touches beside scratch rows. */
typedef enum {
    BT_OP_TOUCHES_ROWS,        /* nothing else */
    BT_OP_WRITES_KV,
    BT_OP_READS_KV,
    BT_OP_MOVES_STATE,         /* reads a layer's recurrent state and moves it on */
    BT_OP_SEES_ALL             /* all of the layer, K, V and state, must be complete */
} bt_op_memory;

typedef struct {
    const char *name;
    /* Rows, as offsets of a bt_rows in bt_op; 0: none. */
    uint16_t inputs[BT_OP_INPUTS_MAX];
    uint16_t output;
    /* Offset of the flag (bool) with which the op adds to its output, which then is an input. */
    uint16_t add;
    bool     adds_always;
    bt_op_memory memory;
    uint16_t layer;            /* offset of a uint32_t: whose K and V or state; 0: none */
    /* The shapes; a wrong one is a mistake of the tape (ops/check.h). */
    bool   (*check)(bt_tape *t, const bt_op *op);
    /* Weights and numbers, as text; NULL: it has none. */
    void   (*print)(bt_buf *to, const bt_op_weights *weights, const bt_op *op);
} bt_op_info;

#define BT_OP_AT(op, field) ((uint16_t)offsetof(bt_op, op.field))

const bt_op_info *bt_ops_info(bt_op_kind kind);
/* Whether the op adds to its output instead of writing it. */
bool              bt_ops_adds(const bt_op *op);
/* Of an op that touches K and V or a state. */
uint32_t          bt_ops_layer(const bt_op *op);

#endif
