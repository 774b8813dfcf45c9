/* ops/tape.h - a list of ops that stays true from one step to the next.
 *
 * Model code appends ops in order; devices run the tape again and again. Shapes are checked here,
 * once for all devices. The first mistake sticks: later appends do nothing, and
 * bt_ops_tape_finish() reports what it was.
 *
 *   bt_rows x = bt_ops_tape_rows(t, n_embd);
 *   bt_ops_put(t, embed, .table = w->embd, .y = x, .scale = 1);
 *
 * Lifetime: create to destroy; immutable after finish. Threads: owned by one thread until finish,
 * then any.
 */
#ifndef BT_OPS_TAPE_H
#define BT_OPS_TAPE_H

#include "base/buffer.h"
#include "ops/ops.h"

typedef struct bt_tape bt_tape;

enum { BT_OP_INPUTS_MAX = 5, BT_TAPE_SLOTS_MAX = 64, BT_TAPE_OPS_MAX = 1 << 16 };
#define BT_TAPE_NO_LAYER UINT32_MAX

/* What the tape must know of a weight to check shapes. `mapped`: the device still reads the rows
 * it was loaded from. */
typedef struct {
    uint32_t n_in, n_out;
    uint32_t n_slices;         /* experts; 1: a plain weight */
    bt_type  type;
    bool     mapped;
} bt_weight_shape;

/* Who knows the weights that ops name: a device, see bt_device_tape_create. */
typedef struct {
    const void *context;
    /* BT_E_NOTFOUND: there is no such weight. */
    bt_status (*shape)(const void *context, bt_weight w, bt_weight_shape *ret);
} bt_op_weights;

/* Copies `weights`, whose context must outlive the tape. */
BT_MUST_CHECK bt_status bt_ops_tape_create(const bt_op_weights *weights, bt_tape **ret_tape,
                                           bt_error *err);
void bt_ops_tape_destroy(bt_tape *t);

bt_rows bt_ops_tape_rows(bt_tape *t, uint32_t cols);            /* one row per step row */
bt_rows bt_ops_tape_rows_picked(bt_tape *t, uint32_t cols);     /* one row per logit row */
/* Columns [column, column + cols) of r; rows that do not exist (slot 0) when r is narrower. */
bt_rows bt_ops_rows_slice(bt_rows r, uint32_t column, uint32_t cols);

void bt_ops_tape_put(bt_tape *t, const bt_op *op);
/* Ops put from now on belong to `layer` (BT_TAPE_NO_LAYER: to none). For messages and traces. */
void bt_ops_tape_set_layer(bt_tape *t, uint32_t layer);
/* Names the rows that hold the logits, for the host to read. */
void bt_ops_tape_set_result(bt_tape *t, bt_rows logits);
BT_MUST_CHECK bt_status bt_ops_tape_finish(bt_tape *t, bt_error *err);

const bt_op_weights *bt_ops_tape_weights(const bt_tape *t);
/* No other tape of this process has or had it: what a device may remember a tape by. */
uint64_t     bt_ops_tape_id(const bt_tape *t);
uint32_t     bt_ops_tape_count(const bt_tape *t);
const bt_op *bt_ops_tape_op(const bt_tape *t, uint32_t index);
uint32_t     bt_ops_tape_layer_of(const bt_tape *t, uint32_t index);
uint32_t     bt_ops_tape_slots(const bt_tape *t);                       /* highest slot number */
uint32_t     bt_ops_tape_slot_cols(const bt_tape *t, uint16_t slot, bool *ret_picked);
bt_rows      bt_ops_tape_result(const bt_tape *t);
/* The rows an op writes (slot 0: none), and those it reads; of an op that adds, what it adds to is
 * the last. For tracing, checking and planning. */
bt_rows      bt_ops_output(const bt_op *op);
uint32_t     bt_ops_inputs(const bt_op *op, bt_rows ret_inputs[BT_OP_INPUTS_MAX]);
/* One line per slot and op, weights by shape and type: equal tapes give equal text. */
void         bt_ops_tape_print(const bt_tape *t, bt_buf *to);

/* Puts one op, its arguments by name; a wrong name does not compile. */
#define bt_ops_put(t, op, ...) \
    bt_ops_tape_put((t), &(bt_op){ .kind = BT_OP_##op, .op = { __VA_ARGS__ } })

#endif
