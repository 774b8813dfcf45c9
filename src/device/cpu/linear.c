/* linear: conversion of activations once for all parts, then outputs in pieces.
 *
 * Few rows: each thread converts for itself; the outputs of all parts, one after the other, are
 * cut into as many equal runs as there are threads, or more when that pays. Many rows: rows are
 * converted together; a tile is a block of outputs times a block of rows, numbered so that
 * neighbours in time share the block of weights, which then is read from memory once. */
#include "base/check.h"
#include "device/cpu/op.h"

enum {
    /* A tile's activations stay in a core's second-level cache beside the weights. */
    TILE_ACT_BYTES = 256 << 10, TILE_ROWS_MIN = 16,
    TILE_WEIGHT_BYTES = 192 << 10,
    TILES_PER_THREAD = 6,                /* at least about so many, so that threads end together */
    /* Few rows: below so many bytes of weights a run is not worth taking from the counter. */
    RUN_WEIGHT_BYTES = 256 << 10
};

static char *acts_base(const bt_cpu_worker *w, uint32_t buffer)
{
    return w->walk->few ? w->own + w->walk->list->own_acts_at[buffer]
                        : (char *)w->walk->device->shared.base + w->walk->plan->acts_at[buffer];
}

static size_t act_stride(const bt_cpu_worker *w, const bt_cpu_matrix *m)
{
    return (size_t)bt_device_cpu_line(w->walk->device->kernels->act_row_bytes(m));
}

void bt_device_cpu_run_convert(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_linear *o)
{
    const bt_cpu_kernels *k = w->walk->device->kernels;
    int part = 0;
    while (s->part_buffer[part] != s->number) {
        part++;
        BT_ASSERT(part < BT_LINEAR_PARTS_MAX);
    }
    const bt_cpu_matrix *m = &bt_device_cpu_weight_of(w->walk->device, o->w[part])->matrix;
    const size_t stride = act_stride(w, m);
    char *acts = acts_base(w, s->number);
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->x));
    for (uint32_t r = rows.first; r < rows.last; r++) {
        k->act_convert(m, bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x),
                       acts + r * stride);
    }
}

/* How one part is cut into tiles. */
typedef struct {
    const bt_cpu_matrix *matrix;
    const float *bias;
    const char  *acts;
    size_t       stride;                 /* bytes of a row of acts */
    float       *y;                      /* of the part's first output */
    uint32_t     outs, rows;             /* of a tile, at most */
    uint32_t     n_out_tiles, n_row_tiles;
} part_tiles;

static uint32_t clamp(uint64_t v, uint32_t low, uint32_t high)
{
    return v < low ? low : v > high ? high : (uint32_t)v;
}

static uint32_t tiles_of(uint32_t n, uint32_t size)
{
    return (n + size - 1) / size;
}

static void cut_tiles(const bt_cpu_worker *w, part_tiles *t, uint32_t n_rows, uint32_t n_out_all)
{
    const bt_cpu_matrix *m = t->matrix;
    const uint64_t out_bytes = m->size_bytes / m->n_out + 1;
    /* The part's share of the tiles that keep all threads busy. */
    const uint64_t want = (uint64_t)TILES_PER_THREAD * w->n_threads * m->n_out / n_out_all + 1;
    t->rows = clamp(TILE_ACT_BYTES / t->stride, TILE_ROWS_MIN, n_rows > TILE_ROWS_MIN ? n_rows
                                                                         : TILE_ROWS_MIN);
    t->rows = (t->rows + TILE_ROWS_MIN - 1) / TILE_ROWS_MIN * TILE_ROWS_MIN;
    t->n_row_tiles = tiles_of(n_rows, t->rows);
    uint64_t outs = TILE_WEIGHT_BYTES / out_bytes;
    const uint64_t balanced = (uint64_t)m->n_out * t->n_row_tiles / want;
    outs = outs < balanced ? outs : balanced;
    t->outs = clamp(outs / BT_CPU_OUT_STEP * BT_CPU_OUT_STEP, BT_CPU_OUT_STEP,
                    (m->n_out + BT_CPU_OUT_STEP - 1) / BT_CPU_OUT_STEP * BT_CPU_OUT_STEP);
    t->n_out_tiles = tiles_of(m->n_out, t->outs);
}

static uint32_t find_parts(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_linear *o,
                           part_tiles parts[BT_LINEAR_PARTS_MAX])
{
    uint32_t n_parts = 0, column = 0;
    for (; n_parts < BT_LINEAR_PARTS_MAX && o->w[n_parts].id != 0; n_parts++) {
        const bt_weight bias = o->bias[n_parts];
        part_tiles *t = &parts[n_parts];
        t->matrix = &bt_device_cpu_weight_of(w->walk->device, o->w[n_parts])->matrix;
        t->bias = bias.id ? bt_device_cpu_weight_of(w->walk->device, bias)->vector : NULL;
        t->acts = acts_base(w, s->part_buffer[n_parts]);
        t->stride = act_stride(w, t->matrix);
        t->y = bt_device_cpu_rows(w, o->y) + column;
        column += t->matrix->n_out;
    }
    return n_parts;
}

/* ---- few rows ---- */

/* Steps of outputs [first, last), counted through all parts. */
static void run_steps(const bt_cpu_worker *w, const part_tiles *parts, uint32_t n_parts,
                      bt_cpu_range steps, uint32_t n_rows, bool add, size_t y_stride)
{
    uint32_t begin = 0;                  /* of the part */
    for (uint32_t i = 0; i < n_parts && begin < steps.last; i++) {
        const part_tiles *t = &parts[i];
        const uint32_t n_out = t->matrix->n_out, n = tiles_of(n_out, BT_CPU_OUT_STEP);
        const uint32_t first = steps.first > begin ? steps.first - begin : 0;
        const uint32_t last = steps.last - begin < n ? steps.last - begin : n;
        if (first < last) {
            w->walk->device->kernels->linear(
                    t->matrix, t->acts, t->stride, n_rows, first * BT_CPU_OUT_STEP,
                    last == n ? n_out : last * BT_CPU_OUT_STEP, t->bias, add, t->y, y_stride);
        }
        begin += n;
    }
}

static void run_few(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_linear *o,
                    const part_tiles *parts, uint32_t n_parts)
{
    uint64_t bytes = 0;
    uint32_t n_steps = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        bytes += parts[i].matrix->size_bytes;
        n_steps += tiles_of(parts[i].matrix->n_out, BT_CPU_OUT_STEP);
    }
    const uint64_t each = bytes / w->n_threads / RUN_WEIGHT_BYTES;
    const uint32_t n_runs = w->n_threads * clamp(each, 1, TILES_PER_THREAD);
    for (uint32_t i = bt_device_cpu_task_first(w); i < n_runs;
         i = n_runs == w->n_threads ? n_runs : bt_device_cpu_task_next(w, s)) {
        run_steps(w, parts, n_parts, bt_device_cpu_part(n_steps, i, n_runs),
                  bt_device_cpu_row_count(w, o->y), o->add, bt_device_cpu_stride(w, o->y));
    }
}

/* ---- many rows ---- */

static void run_tile(const bt_cpu_worker *w, const part_tiles *t, uint32_t tile, uint32_t n_rows,
                     bool add, size_t y_stride)
{
    const uint32_t out = tile / t->n_row_tiles * t->outs;
    const uint32_t row = tile % t->n_row_tiles * t->rows;
    const uint32_t outs = t->matrix->n_out - out < t->outs ? t->matrix->n_out - out : t->outs;
    const uint32_t rows = n_rows - row < t->rows ? n_rows - row : t->rows;
    w->walk->device->kernels->linear(t->matrix, t->acts + row * t->stride, t->stride, rows, out,
                                     out + outs, t->bias, add, t->y + row * y_stride, y_stride);
}

static void run_many(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_linear *o,
                     part_tiles *parts, uint32_t n_parts)
{
    const uint32_t n_rows = bt_device_cpu_row_count(w, o->y);
    uint32_t n_tasks = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        cut_tiles(w, &parts[i], n_rows, o->y.cols);
        n_tasks += parts[i].n_out_tiles * parts[i].n_row_tiles;
    }
    for (uint32_t task = bt_device_cpu_task_first(w); task < n_tasks;
         task = bt_device_cpu_task_next(w, s)) {
        uint32_t tile = task;
        const part_tiles *t = parts;
        while (tile >= t->n_out_tiles * t->n_row_tiles) {
            tile -= t->n_out_tiles * t->n_row_tiles;
            t++;
        }
        run_tile(w, t, tile, n_rows, o->add, bt_device_cpu_stride(w, o->y));
    }
}

static void run_linear(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_linear *o = &op->linear;
    part_tiles parts[BT_LINEAR_PARTS_MAX];
    const uint32_t n_rows = bt_device_cpu_row_count(w, o->y);
    if (n_rows == 0) {
        return;
    }
    const uint32_t n_parts = find_parts(w, s, o, parts);
    if (n_rows <= BT_CPU_FEW_ROWS) {
        run_few(w, s, o, parts, n_parts);
    } else {
        run_many(w, s, o, parts, n_parts);
    }
}

static void measure_linear(const bt_cpu_device *d, const bt_op *op, uint32_t n_rows,
                           bt_cpu_needs *needs)
{
    const bt_op_linear *o = &op->linear;
    (void)n_rows;
    for (int i = 0; i < BT_LINEAR_PARTS_MAX && o->w[i].id != 0; i++) {
        const bt_cpu_matrix *m = &bt_device_cpu_weight_of(d, o->w[i])->matrix;
        bt_device_cpu_need(&needs->act_bytes, bt_device_cpu_line(d->kernels->act_row_bytes(m)));
    }
}

const bt_cpu_op bt_device_cpu_op_linear = {
    .run = run_linear,
    .split = bt_device_cpu_split_tasks,
    .weights = { { BT_OP_AT(linear, w), BT_LINEAR_PARTS_MAX, BT_CPU_MATRIX },
                 { BT_OP_AT(linear, bias), BT_LINEAR_PARTS_MAX, BT_CPU_VECTOR } },
    .converts = true,
    .measure = measure_linear,
};
