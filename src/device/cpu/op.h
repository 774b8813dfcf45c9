/* device/cpu/op.h - what the CPU device knows of an op: one row per op, one table.
 *
 * A row, bt_device_cpu_op_NAME, stands beside the function that runs the op. The plan asks the rows
 * how work is split and what scratch it takes; the walk calls `run`. Private to device/cpu/.
 */
#ifndef BT_DEVICE_CPU_OP_H
#define BT_DEVICE_CPU_OP_H

#include "device/cpu/private.h"
#include "ops/info.h"

/* n weights from offset `at` of bt_op on, which must have been loaded as `kind`; those that are
 * none (id 0) are left out. */
typedef struct { uint16_t at; uint8_t n, kind; } bt_cpu_op_weights;

/* For which list an op is split. */
typedef struct {
    bool     few;
    uint32_t n_threads;
    uint16_t n_groups;               /* key heads of the next attention; 0: none */
} bt_cpu_splitting;

typedef struct {
    void         (*run)(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op);
    bt_cpu_split (*split)(const bt_op *op, const bt_cpu_splitting *how);
    /* Outputs of up to so many columns are cheap enough for each thread of the few-rows list to
     * have them for itself; 0: never. */
    uint32_t          own_cols_max;
    bt_cpu_op_weights weights[2];
    bool              converts;      /* its x is read through activation buffers (linear) */
    bool              rotates;       /* reads the angles of its rotation (rope) */
    bool              crosses_rows;  /* row r of y comes from another row of x */
    /* What the plan must know of the op before it is split, and the scratch it takes with n_rows
     * rows; NULL: nothing. */
    bt_status    (*note)(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op, bt_error *err);
    void         (*measure)(const bt_cpu_device *d, const bt_op *op, uint32_t n_rows,
                            bt_cpu_needs *needs);
} bt_cpu_op;

#define X(name) extern const bt_cpu_op bt_device_cpu_op_##name;
BT_OP_LIST(X)
#undef X

const bt_cpu_op *bt_device_cpu_op(bt_op_kind kind);

/* ---- what part of a stage a thread does, and splits that several ops share (share.c) ---- */

/* Rows of this stage that this thread does. */
bt_cpu_range bt_device_cpu_my_rows(const bt_cpu_worker *w, const bt_cpu_stage *s, uint32_t n_rows);
/* The next piece of a TASKS stage: first() is free of traffic, next() takes from the counter. */
static inline uint32_t bt_device_cpu_task_first(const bt_cpu_worker *w) { return w->index; }
uint32_t bt_device_cpu_task_next(const bt_cpu_worker *w, const bt_cpu_stage *s);

/* Heads of n_heads that this thread does, by key heads; all if the stage is not split by heads. */
bt_cpu_range bt_device_cpu_my_heads(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                    uint32_t n_heads);
/* Columns of a row that this thread does; all if the stage is not split by cells. */
bt_cpu_range bt_device_cpu_my_cells(const bt_cpu_worker *w, const bt_cpu_stage *s, uint32_t cols);

bt_cpu_split bt_device_cpu_split_rows(const bt_op *op, const bt_cpu_splitting *how);
bt_cpu_split bt_device_cpu_split_cells(const bt_op *op, const bt_cpu_splitting *how);
bt_cpu_split bt_device_cpu_split_tasks(const bt_op *op, const bt_cpu_splitting *how);
/* `even`: the op's heads come in runs per key head. */
bt_cpu_split bt_device_cpu_split_heads(bool even, const bt_cpu_splitting *how);

#endif
