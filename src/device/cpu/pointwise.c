/* Ops that work value by value. */
#include "base/check.h"
#include "device/cpu/op.h"

/* n values of y from those of the inputs, in their order. */
typedef void cells_run(const bt_cpu_kernels *k, const bt_op *op, float *y, const float *x,
                       const float *z, uint32_t n);

/* Columns [first, first + n) of one row. */
static void run_cells(const bt_cpu_worker *w, const bt_op *op, cells_run *compute, uint32_t row,
                      uint32_t first, uint32_t n)
{
    const bt_rows out = bt_ops_output(op);
    bt_rows in[BT_OP_INPUTS_MAX];
    const float *x[2] = { NULL, NULL };
    const uint32_t n_inputs = bt_ops_inputs(op, in);
    for (uint32_t i = 0; i < n_inputs && i < BT_LEN(x); i++) {
        x[i] = bt_device_cpu_rows(w, in[i]) + row * bt_device_cpu_stride(w, in[i]) + first;
    }
    compute(w->walk->device->kernels, op,
            bt_device_cpu_rows(w, out) + row * bt_device_cpu_stride(w, out) + first, x[0], x[1], n);
}

static void run_pointwise(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op,
                          cells_run *compute)
{
    enum { BLOCK = 1024 };               /* columns; a multiple of every vector width */
    const bt_rows y = bt_ops_output(op);
    const uint32_t n_rows = bt_device_cpu_row_count(w, y);
    if (s->split != BT_SPLIT_CELLS) {
        const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, n_rows);
        for (uint32_t r = rows.first; r < rows.last; r++) {
            run_cells(w, op, compute, r, 0, y.cols);
        }
        return;
    }
    const uint32_t n_blocks = (y.cols + BLOCK - 1) / BLOCK;
    const bt_cpu_range blocks = bt_device_cpu_part(n_rows * n_blocks, w->index, w->n_threads);
    for (uint32_t i = blocks.first; i < blocks.last; i++) {
        const uint32_t first = i % n_blocks * BLOCK;
        run_cells(w, op, compute, i / n_blocks, first,
                  y.cols - first < BLOCK ? y.cols - first : BLOCK);
    }
}

/* ---- add ---- */

static void add_cells(const bt_cpu_kernels *k, const bt_op *op, float *y, const float *x,
                      const float *z, uint32_t n)
{
    (void)op;
    (void)z;
    k->add(y, x, n);
}

static void run_add(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    run_pointwise(w, s, op, add_cells);
}

const bt_cpu_op bt_device_cpu_op_add = {
    .run = run_add,
    .split = bt_device_cpu_split_cells,
    .own_cols_max = UINT32_MAX,
};

/* ---- scale ---- */

static void scale_cells(const bt_cpu_kernels *k, const bt_op *op, float *y, const float *x,
                        const float *z, uint32_t n)
{
    (void)x;
    (void)z;
    k->scale(y, y, n, op->scale.by);
}

static void run_scale(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    run_pointwise(w, s, op, scale_cells);
}

const bt_cpu_op bt_device_cpu_op_scale = {
    .run = run_scale,
    .split = bt_device_cpu_split_cells,
    .own_cols_max = UINT32_MAX,
};

/* ---- glu ---- */

/* Above this, sharing the work is worth a barrier. */
enum { GLU_COLS_MAX = 8192 };

static void glu_cells(const bt_cpu_kernels *k, const bt_op *op, float *y, const float *x,
                      const float *z, uint32_t n)
{
    k->glu(y, x, z, n, op->glu.act);
}

static void run_glu(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    run_pointwise(w, s, op, glu_cells);
}

const bt_cpu_op bt_device_cpu_op_glu = {
    .run = run_glu,
    .split = bt_device_cpu_split_cells,
    .own_cols_max = GLU_COLS_MAX,
};

/* ---- softcap ---- */

static void softcap_cells(const bt_cpu_kernels *k, const bt_op *op, float *y, const float *x,
                          const float *z, uint32_t n)
{
    (void)x;
    (void)z;
    k->softcap(y, n, op->softcap.cap);
}

static void run_softcap(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    run_pointwise(w, s, op, softcap_cells);
}

const bt_cpu_op bt_device_cpu_op_softcap = {
    .run = run_softcap,
    .split = bt_device_cpu_split_cells,
};

/* ---- mul: a gate of one column ---- */

static void run_mul(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_mul *o = &op->mul;
    static const float one = 1.0f;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    const bt_cpu_range cells = bt_device_cpu_my_cells(w, s, o->y.cols);
    for (uint32_t r = rows.first; r < rows.last && cells.first < cells.last; r++) {
        float by;
        k->glu(&by, bt_device_cpu_rows(w, o->gate) + r * bt_device_cpu_stride(w, o->gate), &one, 1,
               o->act);
        k->combine(bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y) + cells.first,
                   bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x) + cells.first, 0,
                   &by, 1, cells.last - cells.first, o->add);
    }
}

const bt_cpu_op bt_device_cpu_op_mul = {
    .run = run_mul,
    .split = bt_device_cpu_split_cells,
    .own_cols_max = UINT32_MAX,
};
