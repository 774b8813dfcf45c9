/* Recurrent layers: convolutions and the delta rule along each sequence.
 *
 * Both ops walk the rows of a sequence in order, so work is split into parts that share no values:
 * the convolution by columns, the scan by heads, or by rows of a head's state if there are few. */
#include <string.h>

#include "device/cpu/op.h"

static const bt_state_tensor *tensor_of(const bt_cpu_worker *w, uint32_t layer, uint32_t state)
{
    return &w->walk->step->state->layers[layer].tensors[state];
}

static float *state_of(const bt_cpu_worker *w, uint32_t sequence, const bt_state_tensor *t)
{
    const bt_state_layout *s = w->walk->step->state;
    char *base = w->walk->device->buffers[s->buffer.id - 1].base;
    return (float *)(void *)(base + w->walk->step->sequences[sequence].state_slot * s->slot_bytes +
                             t->offset);
}

/* The plan has a layer with this tensor. */
static void note_tensor(bt_cpu_plan *p, uint32_t layer, uint32_t state, bt_state_tensor tensor)
{
    bt_state_layer *l = &p->state[layer];
    l->tensors[state] = tensor;
    l->n_tensors = l->n_tensors > state + 1 ? l->n_tensors : state + 1;
    p->n_state_layers = p->n_state_layers > layer + 1 ? p->n_state_layers : layer + 1;
}

/* ---- short_conv ---- */

/* Columns [first, first + n) of one sequence. */
static void convolve(const bt_cpu_worker *w, const bt_op_short_conv *o, uint32_t sequence,
                     uint32_t first, uint32_t n)
{
    const bt_step_sequence *q = &w->walk->step->sequences[sequence];
    const bt_cpu_weight *taps = bt_device_cpu_weight_of(w->walk->device, o->w);
    const bt_state_tensor *kept = tensor_of(w, o->layer, o->state);
    const size_t x_stride = bt_device_cpu_stride(w, o->x), y_stride = bt_device_cpu_stride(w, o->y);
    const float *x = bt_device_cpu_rows(w, o->x) + q->row_first * x_stride + first;
    float *y = bt_device_cpu_rows(w, o->y) + q->row_first * y_stride + first;
    float *past = state_of(w, sequence, kept) + first;
    const uint32_t n_past = taps->n_in - 1;
    const float *rows[BT_CONV_TAPS_MAX];
    for (uint32_t t = 0; t < q->n_rows; t++) {
        for (uint32_t m = 0; m < taps->n_in; m++) {
            rows[m] = t + m < n_past ? past + (size_t)(t + m) * kept->cols
                                     : x + (t + m - n_past) * x_stride;
        }
        w->walk->device->kernels->short_conv(y + t * y_stride, rows, taps->vector + first,
                                             taps->n_out, taps->n_in, n, o->act);
    }
    /* The last n_past of (past, x) are the next step's past; row by row from the oldest on, so
     * that none is overwritten before it has moved. */
    for (uint32_t m = 0; m < n_past; m++) {
        const uint64_t from = (uint64_t)q->n_rows + m;
        const float *row = from < n_past ? past + from * kept->cols
                                         : x + (from - n_past) * x_stride;
        memmove(past + (size_t)m * kept->cols, row, n * sizeof *past);
    }
}

static void run_short_conv(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_short_conv *o = &op->short_conv;
    enum { BLOCK = 256 };                /* columns */
    const uint32_t n_blocks = (o->x.cols + BLOCK - 1) / BLOCK;
    const uint32_t n_tasks = w->walk->step->n_sequences * n_blocks;
    for (uint32_t task = bt_device_cpu_task_first(w); task < n_tasks;
         task = bt_device_cpu_task_next(w, s)) {
        const uint32_t first = task % n_blocks * BLOCK;
        if (w->walk->step->sequences[task / n_blocks].n_rows > 0) {
            convolve(w, o, task / n_blocks, first,
                     o->x.cols - first < BLOCK ? o->x.cols - first : BLOCK);
        }
    }
}

static bt_status note_short_conv(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op,
                                  bt_error *err)
{
    const bt_op_short_conv *o = &op->short_conv;
    (void)err;
    note_tensor(p, o->layer, o->state, (bt_state_tensor){
            .n = 1, .rows = bt_device_cpu_weight_of(d, o->w)->n_in - 1, .cols = o->x.cols });
    return BT_OK;
}

const bt_cpu_op bt_device_cpu_op_short_conv = {
    .run = run_short_conv,
    .split = bt_device_cpu_split_tasks,
    .weights = { { BT_OP_AT(short_conv, w), 1, BT_CPU_TAPS } },
    .note = note_short_conv,
};

/* ---- delta_scan ---- */

/* Rows of value head `head`'s state, for all tokens of one sequence. */
static void scan(const bt_cpu_worker *w, const bt_op_delta_scan *o, uint32_t sequence,
                 uint32_t head, bt_cpu_range rows)
{
    const bt_step_sequence *q = &w->walk->step->sequences[sequence];
    const bt_state_tensor *kept = tensor_of(w, o->layer, o->state);
    const uint32_t key_head = o->tiled ? head % o->n_k_heads
                                       : head / (o->n_v_heads / o->n_k_heads);
#define FIRST(r, head_dim)                                                                         \
    (bt_device_cpu_rows(w, o->r) + q->row_first * bt_device_cpu_stride(w, o->r) +                  \
     (size_t)(head_dim))
    w->walk->device->kernels->delta_scan(&(bt_cpu_delta){
            .q = FIRST(q, key_head * kept->cols),
            .k = FIRST(k, key_head * kept->cols),
            .v = FIRST(v, head * kept->rows),
            .alpha = FIRST(alpha, head),
            .beta = FIRST(beta, head),
            .y = FIRST(y, head * kept->rows),
            .q_stride = bt_device_cpu_stride(w, o->q),
            .k_stride = bt_device_cpu_stride(w, o->k),
            .v_stride = bt_device_cpu_stride(w, o->v),
            .alpha_stride = bt_device_cpu_stride(w, o->alpha),
            .beta_stride = bt_device_cpu_stride(w, o->beta),
            .y_stride = bt_device_cpu_stride(w, o->y),
            .n_tokens = q->n_rows,
            .dk = kept->cols,
            .dv = kept->rows,
            .row_first = rows.first,
            .row_last = rows.last,
            .decay = bt_device_cpu_weight_of(w->walk->device, o->decay)->vector[head],
            .dt_bias = bt_device_cpu_weight_of(w->walk->device, o->dt_bias)->vector[head],
            .l2_eps = o->l2_eps,
            .scale = o->scale,
            .state = state_of(w, sequence, kept) + (size_t)head * kept->rows * kept->cols,
            .scratch = (float *)(void *)(w->own + w->walk->plan->scan_at)});
#undef FIRST
}

static void run_delta_scan(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_delta_scan *o = &op->delta_scan;
    enum { ROWS_STEP = 8, TASKS_PER_THREAD = 4 };
    const bt_state_tensor *kept = tensor_of(w, o->layer, o->state);
    const uint32_t n_heads = w->walk->step->n_sequences * o->n_v_heads;
    const uint32_t wanted = (TASKS_PER_THREAD * w->n_threads + n_heads - 1) / n_heads;
    const uint32_t most = (kept->rows + ROWS_STEP - 1) / ROWS_STEP;
    const uint32_t n_parts = wanted < most ? wanted : most;
    for (uint32_t task = bt_device_cpu_task_first(w); task < n_heads * n_parts;
         task = bt_device_cpu_task_next(w, s)) {
        const uint32_t head = task / n_parts, sequence = head / o->n_v_heads;
        bt_cpu_range rows = bt_device_cpu_part(most, task % n_parts, n_parts);
        rows.first *= ROWS_STEP;
        rows.last = rows.last * ROWS_STEP < kept->rows ? rows.last * ROWS_STEP : kept->rows;
        if (w->walk->step->sequences[sequence].n_rows > 0) {
            scan(w, o, sequence, head % o->n_v_heads, rows);
        }
    }
}

static bt_status note_delta_scan(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op,
                                  bt_error *err)
{
    const bt_op_delta_scan *o = &op->delta_scan;
    (void)d;
    (void)err;
    note_tensor(p, o->layer, o->state, (bt_state_tensor){
            .n = o->n_v_heads, .rows = o->v.cols / o->n_v_heads,
            .cols = o->q.cols / o->n_k_heads });
    return BT_OK;
}

static void measure_delta_scan(const bt_cpu_device *d, const bt_op *op, uint32_t n_rows,
                               bt_cpu_needs *needs)
{
    (void)d;
    (void)n_rows;
    bt_device_cpu_need(&needs->scan_floats,
                       bt_cpu_delta_scratch(op->delta_scan.q.cols / op->delta_scan.n_k_heads));
}

const bt_cpu_op bt_device_cpu_op_delta_scan = {
    .run = run_delta_scan,
    .split = bt_device_cpu_split_tasks,
    .weights = { { BT_OP_AT(delta_scan, decay), 1, BT_CPU_VECTOR },
                 { BT_OP_AT(delta_scan, dt_bias), 1, BT_CPU_VECTOR } },
    .note = note_delta_scan,
    .measure = measure_delta_scan,
};
