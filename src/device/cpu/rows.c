/* Embedding, picking and norms: whole rows of rows. */
#include <string.h>

#include "device/cpu/op.h"

/* ---- embed ---- */

static void run_embed(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_embed *o = &op->embed;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_cpu_weight *table = bt_device_cpu_weight_of(w->walk->device, o->table);
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    for (uint32_t r = rows.first; r < rows.last; r++) {
        float *y = bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y);
        k->decode_row(table->type, table->rows, table->n_in, w->walk->step->tokens[r], y);
        if (o->scale != 1.0f) {
            k->scale(y, y, o->y.cols, o->scale);
        }
    }
}

static bt_status note_embed(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op, bt_error *err)
{
    const uint32_t n = bt_device_cpu_weight_of(d, op->embed.table)->n_out;
    (void)err;
    p->n_vocab = p->n_vocab < n ? p->n_vocab : n;
    return BT_OK;
}

const bt_cpu_op bt_device_cpu_op_embed = {
    .run = run_embed,
    .split = bt_device_cpu_split_rows,
    .own_cols_max = UINT32_MAX,
    .weights = { { BT_OP_AT(embed, table), 1, BT_CPU_TABLE } },
    .note = note_embed,
};

/* ---- rows ---- */

static void run_rows(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_rows *o = &op->rows;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    for (uint32_t r = rows.first; r < rows.last; r++) {
        memcpy(bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y),
               bt_device_cpu_rows(w, o->x) +
                       bt_device_cpu_step_row(w, true, r) * bt_device_cpu_stride(w, o->x),
               o->x.cols * sizeof(float));
    }
}

const bt_cpu_op bt_device_cpu_op_rows = {
    .run = run_rows,
    .split = bt_device_cpu_split_rows,
    .own_cols_max = UINT32_MAX,
    .crosses_rows = true,
};

/* ---- norms ---- */

static void run_rmsnorm(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_rmsnorm *o = &op->rmsnorm;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const float *weight = bt_device_cpu_weight_of(w->walk->device, o->w)->vector;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    float *temp = (float *)(void *)(w->own + w->walk->plan->temp_at);
    for (uint32_t r = rows.first; r < rows.last; r++) {
        const float *x = bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x);
        float *y = bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y);
        k->rmsnorm(o->add ? temp : y, x, weight, o->x.cols, o->eps);
        if (o->add) {
            k->add(y, temp, o->x.cols);
        }
    }
}

static void measure_rmsnorm(const bt_cpu_device *d, const bt_op *op, uint32_t n_rows,
                            bt_cpu_needs *needs)
{
    (void)d;
    (void)n_rows;
    if (op->rmsnorm.add) {
        bt_device_cpu_need(&needs->temp_cols, op->rmsnorm.x.cols);
    }
}

const bt_cpu_op bt_device_cpu_op_rmsnorm = {
    .run = run_rmsnorm,
    .split = bt_device_cpu_split_rows,
    .own_cols_max = UINT32_MAX,
    .weights = { { BT_OP_AT(rmsnorm, w), 1, BT_CPU_VECTOR } },
    .measure = measure_rmsnorm,
};

static void run_head_norm(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_head_norm *o = &op->head_norm;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const float *weight = bt_device_cpu_weight_of(w->walk->device, o->w)->vector;
    const uint32_t dim = o->x.cols / o->n_heads;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->x));
    const bt_cpu_range heads = bt_device_cpu_my_heads(w, s, o->n_heads);
    for (uint32_t r = rows.first; r < rows.last; r++) {
        float *x = bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x);
        for (uint32_t h = heads.first; h < heads.last; h++) {
            k->rmsnorm(x + h * dim, x + h * dim, weight, dim, o->eps);
        }
    }
}

static bt_cpu_split split_head_norm(const bt_op *op, const bt_cpu_splitting *how)
{
    return bt_device_cpu_split_heads(how->n_groups && op->head_norm.n_heads % how->n_groups == 0,
                                     how);
}

const bt_cpu_op bt_device_cpu_op_head_norm = {
    .run = run_head_norm,
    .split = split_head_norm,
    .weights = { { BT_OP_AT(head_norm, w), 1, BT_CPU_VECTOR } },
};
