/* ops/check.h - what the shape checks of ops share: a tape being written, and its mistakes.
 * Private to ops/. A check describes what is wrong and returns false; the first mistake sticks. */
#ifndef BT_OPS_CHECK_H
#define BT_OPS_CHECK_H

#include "ops/info.h"

enum { BT_OPS_SPANS_MAX = 16 };

typedef struct { uint32_t first, end; } bt_ops_span;

typedef struct {
    uint32_t    cols;
    bool        picked;
    uint32_t    n_spans;
    bt_ops_span written[BT_OPS_SPANS_MAX];   /* ascending, apart: columns that were written */
} bt_ops_slot;

typedef struct { bt_op op; uint32_t layer; } bt_ops_entry;

struct bt_tape {
    bt_op_weights weights;
    uint64_t      id;
    bt_ops_entry *ops;
    uint32_t      n_ops, capacity;
    uint32_t      layer;                              /* of ops put now */
    bt_ops_slot   slots[BT_TAPE_SLOTS_MAX + 1];       /* number 0 unused */
    uint32_t      n_slots;
    uint32_t      k_cols[BT_LAYERS_MAX], v_cols[BT_LAYERS_MAX];  /* of a layer's kv_put; 0: none */
    uint8_t       states[BT_LAYERS_MAX];              /* bits: tensors moved on */
    bt_rows       result;
    bool          finished;
    bt_error      mistake;                            /* status BT_OK: none so far */
};

/* Always false. */
bool bt_ops_mistake(bt_tape *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* These rows exist and may be written; have been written and may be read. */
bool bt_ops_writes(bt_tape *t, bt_rows r, const char *what);
bool bt_ops_reads(bt_tape *t, bt_rows r, const char *what);
void bt_ops_note_written(bt_tape *t, bt_rows r);
bool bt_ops_same_shape(bt_tape *t, bt_rows x, bt_rows y, const char *what);
bool bt_ops_overlap(bt_rows a, bt_rows b);
/* The weight exists and is n_in x n_out (n_out 0: any). */
bool bt_ops_weight_is(bt_tape *t, bt_weight w, uint32_t n_in, uint32_t n_out, const char *what,
                      bt_weight_shape *ret_shape);
/* Tensor `state` of the layer's state is moved on for the first time. */
bool bt_ops_takes_state(bt_tape *t, uint32_t layer, uint32_t state);
/* The sum of a linear's or of experts' parts against y. */
bool bt_ops_parts_fill(bt_tape *t, uint64_t n_out, bt_rows x, bt_rows y);

#define X(name) extern const bt_op_info bt_ops_info_##name;
BT_OP_LIST(X)
#undef X

/* ---- text ---- */

void        bt_ops_print_weight(bt_buf *to, const bt_op_weights *weights, bt_weight w);
const char *bt_ops_activation_name(bt_activation act);

#endif
