/* Experts: which rows go where, and the products of each expert with its rows.
 *
 * Rows are sorted by expert, each thread for itself, since that takes less time than a barrier. A
 * task is a block of an expert's outputs times a block of its rows, so that weights are read once
 * for all rows that need them; with one row only the chosen experts are touched. The activations of
 * a task are converted by its thread, and since a product's bits do not depend on its neighbours,
 * nobody's result depends on who else chose the same expert. */
#include <string.h>

#include "base/check.h"
#include "device/cpu/op.h"

enum {
    TASK_ROWS = 32,                      /* rows of an expert at a time */
    TASK_OUTS_MAX = 512,
    TASKS_PER_THREAD = 6
};

static void run_route(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_route *o = &op->route;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    for (uint32_t r = rows.first; r < rows.last; r++) {
        w->walk->device->kernels->route(
                bt_device_cpu_rows(w, o->scores) + r * bt_device_cpu_stride(w, o->scores),
                o->scores.cols, o->n_used, o->renormalise,
                bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y));
    }
}

const bt_cpu_op bt_device_cpu_op_route = {
    .run = run_route,
    .split = bt_device_cpu_split_rows,
    .own_cols_max = UINT32_MAX,
};

/* ---- a thread's scratch ---- */

typedef struct {
    uint32_t *starts;                    /* [n_experts + 1] places in `visits` */
    uint32_t *visits;                    /* [n_rows * n_used] row * n_used + rank, by expert */
    char     *acts;                      /* [TASK_ROWS] converted rows */
    float    *y;                         /* [TASK_ROWS][y_stride], real only where touched */
    size_t    y_stride;
} desk;

static uint64_t act_bytes(const bt_cpu_device *d, const bt_op_expert_linear *o)
{
    uint64_t most = 0;
    for (int i = 0; i < BT_EXPERT_PARTS_MAX && o->w[i].id != 0; i++) {
        const uint64_t bytes = bt_device_cpu_line(
                d->kernels->act_row_bytes(&bt_device_cpu_weight_of(d, o->w[i])->matrix));
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint32_t widest(const bt_cpu_device *d, const bt_op_expert_linear *o)
{
    uint32_t most = 0;
    for (int i = 0; i < BT_EXPERT_PARTS_MAX && o->w[i].id != 0; i++) {
        const uint32_t n_out = bt_device_cpu_weight_of(d, o->w[i])->n_out;
        most = n_out > most ? n_out : most;
    }
    return most;
}

static uint64_t lay_out(const bt_cpu_device *d, const bt_op_expert_linear *o, uint32_t n_rows,
                        char *base, desk *ret)
{
    const uint32_t n_experts = bt_device_cpu_weight_of(d, o->w[0])->n_slices;
    const uint64_t visits_at = bt_device_cpu_line((n_experts + 1) * sizeof(uint32_t));
    const uint64_t acts_at =
            visits_at + bt_device_cpu_line((uint64_t)n_rows * o->n_used * sizeof(uint32_t));
    const uint64_t y_at = acts_at + TASK_ROWS * act_bytes(d, o);
    if (ret) {
        *ret = (desk){ .starts = (uint32_t *)(void *)base,
                       .visits = (uint32_t *)(void *)(base + visits_at), .acts = base + acts_at,
                       .y = (float *)(void *)(base + y_at), .y_stride = widest(d, o) };
    }
    return y_at + (uint64_t)TASK_ROWS * widest(d, o) * sizeof(float);
}

static void measure_expert_linear(const bt_cpu_device *d, const bt_op *op, uint32_t n_rows,
                                  bt_cpu_needs *needs)
{
    bt_device_cpu_need(&needs->expert_bytes, lay_out(d, &op->expert_linear, n_rows, NULL, NULL));
}

/* ---- who goes where ---- */

static uint32_t expert_of(const bt_cpu_worker *w, const bt_op_expert_linear *o, uint32_t visit)
{
    const float *route =
            bt_device_cpu_rows(w, o->route) + visit / o->n_used * bt_device_cpu_stride(w, o->route);
    return (uint32_t)route[visit % o->n_used];
}

/* A counting sort: an expert's visits stay in order. */
static void sort_visits(const bt_cpu_worker *w, const bt_op_expert_linear *o, uint32_t n_visits,
                        uint32_t n_experts, desk *k)
{
    memset(k->starts, 0, (n_experts + 1) * sizeof *k->starts);
    for (uint32_t i = 0; i < n_visits; i++) {
        const uint32_t e = expert_of(w, o, i);
        BT_ASSERT(e < n_experts);
        k->starts[e + 1]++;
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        k->starts[e + 1] += k->starts[e];
    }
    for (uint32_t i = 0; i < n_visits; i++) {
        k->visits[k->starts[expert_of(w, o, i)]++] = i;
    }
    for (uint32_t e = n_experts; e > 0; e--) {       /* each start has become its end */
        k->starts[e] = k->starts[e - 1];
    }
    k->starts[0] = 0;
}

/* ---- one task ---- */

typedef struct {
    const bt_op_expert_linear *op;
    const bt_cpu_weight *weight;
    uint32_t column;                     /* of the part's first output in y */
    uint32_t outs, n_out_tiles;
} part;

static const float *input_of(const bt_cpu_worker *w, const bt_op_expert_linear *o, uint32_t visit,
                             uint32_t n_in)
{
    const float *x =
            bt_device_cpu_rows(w, o->x) + visit / o->n_used * bt_device_cpu_stride(w, o->x);
    return o->per_expert ? x + (size_t)(visit % o->n_used) * n_in : x;
}

static float *output_of(const bt_cpu_worker *w, const part *p, uint32_t visit, uint32_t out)
{
    const bt_op_expert_linear *o = p->op;
    return bt_device_cpu_rows(w, o->y) + visit / o->n_used * bt_device_cpu_stride(w, o->y) +
           p->column + (size_t)(visit % o->n_used) * p->weight->n_out + out;
}

/* Outputs [out, out_last) of one expert for n of its rows. */
static void run_task(const bt_cpu_worker *w, const part *p, const desk *k, uint32_t expert,
                     const uint32_t *visits, uint32_t n, uint32_t out, uint32_t out_last)
{
    const bt_cpu_kernels *kernels = w->walk->device->kernels;
    const bt_cpu_matrix m = bt_device_cpu_weight_slice(p->weight, expert);
    const size_t stride = (size_t)bt_device_cpu_line(kernels->act_row_bytes(&m));
    for (uint32_t i = 0; i < n; i++) {
        kernels->act_convert(&m, input_of(w, p->op, visits[i], m.n_in), k->acts + i * stride);
    }
    if (n == 1) {
        kernels->linear(&m, k->acts, stride, 1, out, out_last, NULL, false,
                        output_of(w, p, visits[0], 0), 0);
        return;
    }
    kernels->linear(&m, k->acts, stride, n, out, out_last, NULL, false, k->y, k->y_stride);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(output_of(w, p, visits[i], out), k->y + i * k->y_stride + out,
               (out_last - out) * sizeof *k->y);
    }
}

/* Blocks of outputs so that there are tasks enough for all threads. */
static void cut_part(const bt_cpu_worker *w, part *p, uint32_t n_visited)
{
    const uint32_t n_out = p->weight->n_out;
    const uint32_t wanted = TASKS_PER_THREAD * w->n_threads / (n_visited ? n_visited : 1) + 1;
    uint32_t outs = (n_out / wanted + BT_CPU_OUT_STEP - 1) / BT_CPU_OUT_STEP * BT_CPU_OUT_STEP;
    outs = outs < BT_CPU_OUT_STEP ? BT_CPU_OUT_STEP : outs > TASK_OUTS_MAX ? TASK_OUTS_MAX : outs;
    p->outs = outs;
    p->n_out_tiles = (n_out + outs - 1) / outs;
}

static uint32_t count_visited(const desk *k, uint32_t n_experts)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        n += k->starts[e + 1] > k->starts[e];
    }
    return n;
}

static void run_expert_linear(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_expert_linear *o = &op->expert_linear;
    const bt_cpu_device *d = w->walk->device;
    const uint32_t n_rows = bt_device_cpu_row_count(w, o->y), n_visits = n_rows * o->n_used;
    const uint32_t n_experts = bt_device_cpu_weight_of(d, o->w[0])->n_slices;
    desk k;
    lay_out(d, o, n_rows, w->own + w->walk->plan->experts_at, &k);
    sort_visits(w, o, n_visits, n_experts, &k);
    const uint32_t n_visited = count_visited(&k, n_experts);
    part parts[BT_EXPERT_PARTS_MAX];
    uint32_t n_parts = 0, column = 0;
    for (; n_parts < BT_EXPERT_PARTS_MAX && o->w[n_parts].id != 0; n_parts++) {
        parts[n_parts] = (part){ .op = o, .weight = bt_device_cpu_weight_of(d, o->w[n_parts]),
                                 .column = column };
        cut_part(w, &parts[n_parts], n_visited);
        column += o->n_used * parts[n_parts].weight->n_out;
    }
    /* Tasks are numbered in this order by every thread; each does those whose number it draws. */
    uint32_t number = 0, mine = bt_device_cpu_task_first(w);
    for (uint32_t e = 0; e < n_experts; e++) {
        for (uint32_t at = k.starts[e]; at < k.starts[e + 1]; at += TASK_ROWS) {
            const uint32_t n = k.starts[e + 1] - at < TASK_ROWS ? k.starts[e + 1] - at : TASK_ROWS;
            for (uint32_t i = 0; i < n_parts; i++) {
                const part *p = &parts[i];
                for (uint32_t tile = 0; tile < p->n_out_tiles; tile++, number++) {
                    if (number == mine) {
                        const uint32_t out = tile * p->outs, n_out = p->weight->n_out;
                        run_task(w, p, &k, e, k.visits + at, n, out,
                                 n_out - out < p->outs ? n_out : out + p->outs);
                        mine = bt_device_cpu_task_next(w, s);
                    }
                }
            }
        }
    }
}

const bt_cpu_op bt_device_cpu_op_expert_linear = {
    .run = run_expert_linear,
    .split = bt_device_cpu_split_tasks,
    .weights = { { BT_OP_AT(expert_linear, w), BT_EXPERT_PARTS_MAX, BT_CPU_EXPERTS } },
    .measure = measure_expert_linear,
};

/* ---- combine ---- */

static void run_combine(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_combine *o = &op->combine;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    const bt_cpu_range cells = bt_device_cpu_my_cells(w, s, o->y.cols);
    for (uint32_t r = rows.first; r < rows.last && cells.first < cells.last; r++) {
        w->walk->device->kernels->combine(
                bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y) + cells.first,
                bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x) + cells.first,
                o->y.cols,
                bt_device_cpu_rows(w, o->route) + r * bt_device_cpu_stride(w, o->route) + o->n_used,
                o->n_used, cells.last - cells.first, o->add);
    }
}

const bt_cpu_op bt_device_cpu_op_combine = {
    .run = run_combine,
    .split = bt_device_cpu_split_cells,
    .own_cols_max = UINT32_MAX,
};
