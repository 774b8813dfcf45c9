/* Recurrent layers: the step's states, convolutions and the delta rule along each sequence.
 *
 * Both ops walk the rows of a sequence in order, so work is split where rows do not meet: the
 * convolution by columns, the scan by heads, and by rows of a head's state when there are few. */
#include <string.h>

#include "base/check.h"
#include "device/cpu/recurrent.h"

/* ---- looking a step's states over ---- */

static bool fits(const bt_state_layout *s, uint64_t offset, uint64_t a, uint64_t b, uint64_t c)
{
    size_t bytes, end;
    return bt_size_mul((size_t)a, (size_t)b, &bytes) && bt_size_mul(bytes, (size_t)c, &bytes) &&
           bt_size_mul(bytes, sizeof(float), &bytes) && offset % sizeof(float) == 0 &&
           bt_size_add((size_t)offset, bytes, &end) && end <= s->slot_bytes;
}

static bt_status check_state_layer(const bt_state_layout *s, const bt_state_layer *want,
                                   uint32_t layer, bt_error *err)
{
    const bt_state_layer *l = &s->layers[layer];
    if (l->conv_rows != want->conv_rows || l->conv_cols != want->conv_cols ||
        l->n_heads != want->n_heads || l->dk != want->dk || l->dv != want->dv ||
        !fits(s, l->conv_offset, l->conv_rows, l->conv_cols, 1) ||
        !fits(s, l->delta_offset, l->n_heads, l->dk, l->dv)) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: states keep %u x %u and %u x %u x %u values "
                       "of layer %u, the model has %u x %u and %u x %u x %u", l->conv_rows,
                       l->conv_cols, l->n_heads, l->dv, l->dk, layer, want->conv_rows,
                       want->conv_cols, want->n_heads, want->dv, want->dk);
    }
    return BT_OK;
}

bt_status bt_device_cpu_check_states(const bt_cpu_device *d, const bt_cpu_plan *p,
                                     const bt_step *step, bt_error *err)
{
    const bt_state_layout *s = step->state;
    if (p->n_state_layers == 0) {
        return BT_OK;
    }
    if (!s || s->buffer.id == 0 || s->buffer.id > BT_CPU_BUFFERS_MAX ||
        !d->buffers[s->buffer.id - 1].base || s->n_layers < p->n_state_layers ||
        s->slot_bytes == 0 || s->slot_bytes % sizeof(float) != 0 ||
        s->n_slots > d->buffers[s->buffer.id - 1].size / s->slot_bytes) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the step has no recurrent states that fit "
                       "this model");
    }
    for (uint32_t i = 0; i < p->n_state_layers; i++) {
        if (p->state[i].conv_cols != 0 || p->state[i].n_heads != 0) {
            BT_TRY(check_state_layer(s, &p->state[i], i, err));
        }
    }
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const uint32_t slot = step->sequences[i].state_slot;
        bool twice = false;
        for (uint32_t j = 0; j < i && step->sequences[i].n_rows > 0; j++) {
            twice = twice || (step->sequences[j].n_rows > 0 &&
                              step->sequences[j].state_slot == slot);
        }
        if (step->sequences[i].n_rows > 0 && (slot >= s->n_slots || twice)) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: sequence %u has state %u of %u%s", i,
                           slot, s->n_slots, twice ? ", which another one has too" : "");
        }
    }
    return BT_OK;
}

static float *state_of(const bt_cpu_worker *w, uint32_t sequence, uint64_t offset)
{
    const bt_state_layout *s = w->walk->step->state;
    char *base = w->walk->device->buffers[s->buffer.id - 1].base;
    return (float *)(void *)(base + w->walk->step->sequences[sequence].state_slot * s->slot_bytes +
                             offset);
}

/* ---- short_conv ---- */

/* Columns [first, first + n) of one sequence. */
static void convolve(const bt_cpu_worker *w, const bt_op_short_conv *o, uint32_t sequence,
                     uint32_t first, uint32_t n)
{
    const bt_step_sequence *q = &w->walk->step->sequences[sequence];
    const bt_cpu_weight *taps = bt_device_cpu_weight_of(w->walk->device, o->w);
    const bt_state_layer *l = &w->walk->step->state->layers[o->layer];
    const size_t x_stride = bt_device_cpu_stride(w, o->x), y_stride = bt_device_cpu_stride(w, o->y);
    const float *x = bt_device_cpu_rows(w, o->x) + q->row_first * x_stride + first;
    float *y = bt_device_cpu_rows(w, o->y) + q->row_first * y_stride + first;
    float *past = state_of(w, sequence, l->conv_offset) + first;
    const uint32_t n_past = taps->n_in - 1;
    const float *rows[BT_CONV_TAPS_MAX];
    for (uint32_t t = 0; t < q->n_rows; t++) {
        for (uint32_t m = 0; m < taps->n_in; m++) {
            rows[m] = t + m < n_past ? past + (size_t)(t + m) * l->conv_cols
                                     : x + (t + m - n_past) * x_stride;
        }
        w->walk->device->kernels->short_conv(y + t * y_stride, rows, taps->vector + first,
                                             taps->n_out, taps->n_in, n, o->act);
    }
    /* The last n_past of (past, x) are the next step's past; row by row from the oldest on, so
     * that none is overwritten before it has moved. */
    for (uint32_t m = 0; m < n_past; m++) {
        const uint64_t from = (uint64_t)q->n_rows + m;
        const float *row = from < n_past ? past + from * l->conv_cols
                                         : x + (from - n_past) * x_stride;
        memmove(past + (size_t)m * l->conv_cols, row, n * sizeof *past);
    }
}

void bt_device_cpu_run_short_conv(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                  const bt_op_short_conv *o)
{
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

/* ---- delta_scan ---- */

/* Rows of value head `head`'s state, for all tokens of one sequence. */
static void scan(const bt_cpu_worker *w, const bt_op_delta_scan *o, uint32_t sequence,
                 uint32_t head, bt_cpu_range rows)
{
    const bt_step_sequence *q = &w->walk->step->sequences[sequence];
    const bt_state_layer *l = &w->walk->step->state->layers[o->layer];
    const uint32_t key_head = o->tiled ? head % o->n_k_heads
                                       : head / (o->n_v_heads / o->n_k_heads);
#define FIRST(r, head_dim)                                                                         \
    (bt_device_cpu_rows(w, o->r) + q->row_first * bt_device_cpu_stride(w, o->r) +                  \
     (size_t)(head_dim))
    w->walk->device->kernels->delta_scan(&(bt_cpu_delta){
            .q = FIRST(q, key_head * l->dk),
            .k = FIRST(k, key_head * l->dk),
            .v = FIRST(v, head * l->dv),
            .alpha = FIRST(alpha, head),
            .beta = FIRST(beta, head),
            .y = FIRST(y, head * l->dv),
            .q_stride = bt_device_cpu_stride(w, o->q),
            .k_stride = bt_device_cpu_stride(w, o->k),
            .v_stride = bt_device_cpu_stride(w, o->v),
            .alpha_stride = bt_device_cpu_stride(w, o->alpha),
            .beta_stride = bt_device_cpu_stride(w, o->beta),
            .y_stride = bt_device_cpu_stride(w, o->y),
            .n_tokens = q->n_rows,
            .dk = l->dk,
            .dv = l->dv,
            .row_first = rows.first,
            .row_last = rows.last,
            .decay = bt_device_cpu_weight_of(w->walk->device, o->decay)->vector[head],
            .dt_bias = bt_device_cpu_weight_of(w->walk->device, o->dt_bias)->vector[head],
            .l2_eps = o->l2_eps,
            .scale = o->scale,
            .state = state_of(w, sequence, l->delta_offset) + (size_t)head * l->dv * l->dk,
            .scratch = (float *)(void *)(w->own + w->walk->plan->scan_at)});
#undef FIRST
}

void bt_device_cpu_run_delta_scan(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                  const bt_op_delta_scan *o)
{
    enum { ROWS_STEP = 8, TASKS_PER_THREAD = 4 };
    const bt_state_layer *l = &w->walk->step->state->layers[o->layer];
    const uint32_t n_heads = w->walk->step->n_sequences * o->n_v_heads;
    const uint32_t wanted = (TASKS_PER_THREAD * w->n_threads + n_heads - 1) / n_heads;
    const uint32_t most = (l->dv + ROWS_STEP - 1) / ROWS_STEP;
    const uint32_t n_parts = wanted < most ? wanted : most;
    for (uint32_t task = bt_device_cpu_task_first(w); task < n_heads * n_parts;
         task = bt_device_cpu_task_next(w, s)) {
        const uint32_t head = task / n_parts, sequence = head / o->n_v_heads;
        bt_cpu_range rows = bt_device_cpu_part(most, task % n_parts, n_parts);
        rows.first *= ROWS_STEP;
        rows.last = rows.last * ROWS_STEP < l->dv ? rows.last * ROWS_STEP : l->dv;
        if (w->walk->step->sequences[sequence].n_rows > 0) {
            scan(w, o, sequence, head % o->n_v_heads, rows);
        }
    }
}

/* ---- a gate of one column ---- */

/* Columns of row r that this thread does; all if the stage is not split by cells. */
static bt_cpu_range my_cells(const bt_cpu_worker *w, const bt_cpu_stage *s, uint32_t cols)
{
    enum { STEP = 64 };                  /* columns; a multiple of every vector width */
    if (s->split != BT_SPLIT_CELLS) {
        return (bt_cpu_range){ 0, cols };
    }
    bt_cpu_range part = bt_device_cpu_part((cols + STEP - 1) / STEP, w->index, w->n_threads);
    part.first *= STEP;
    part.last = part.last * STEP < cols ? part.last * STEP : cols;
    return part;
}

void bt_device_cpu_run_mul(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_mul *o)
{
    static const float one = 1.0f;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    const bt_cpu_range cells = my_cells(w, s, o->y.cols);
    for (uint32_t r = rows.first; r < rows.last && cells.first < cells.last; r++) {
        float by;
        k->glu(&by, bt_device_cpu_rows(w, o->gate) + r * bt_device_cpu_stride(w, o->gate), &one, 1,
               o->act);
        k->combine(bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y) + cells.first,
                   bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x) + cells.first, 0,
                   &by, 1, cells.last - cells.first, o->add);
    }
}

void bt_device_cpu_run_combine(const bt_cpu_worker *w, const bt_cpu_stage *s,
                               const bt_op_combine *o)
{
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    const bt_cpu_range cells = my_cells(w, s, o->y.cols);
    for (uint32_t r = rows.first; r < rows.last && cells.first < cells.last; r++) {
        w->walk->device->kernels->combine(
                bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y) + cells.first,
                bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x) + cells.first,
                o->y.cols,
                bt_device_cpu_rows(w, o->route) + r * bt_device_cpu_stride(w, o->route) + o->n_used,
                o->n_used, cells.last - cells.first, o->add);
    }
}
