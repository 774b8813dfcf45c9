/* What part of a stage a thread does, and the splits that several ops share. */
#include "device/cpu/op.h"

bt_cpu_range bt_device_cpu_my_rows(const bt_cpu_worker *w, const bt_cpu_stage *s, uint32_t n_rows)
{
    switch ((bt_cpu_split)s->split) {
    case BT_SPLIT_ROWS:
        return bt_device_cpu_part(n_rows, w->index, w->n_threads);
    case BT_SPLIT_ONE:
        return (bt_cpu_range){ 0, w->index == 0 ? n_rows : 0 };
    default:
        return (bt_cpu_range){ 0, n_rows };
    }
}

bt_cpu_range bt_device_cpu_my_heads(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                    uint32_t n_heads)
{
    if (s->split != BT_SPLIT_HEADS) {
        return (bt_cpu_range){ 0, n_heads };
    }
    const bt_cpu_range groups = bt_device_cpu_part(s->n_groups, w->index, w->n_threads);
    const uint32_t each = n_heads / s->n_groups;
    return (bt_cpu_range){ groups.first * each, groups.last * each };
}

bt_cpu_range bt_device_cpu_my_cells(const bt_cpu_worker *w, const bt_cpu_stage *s, uint32_t cols)
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

uint32_t bt_device_cpu_task_next(const bt_cpu_worker *w, const bt_cpu_stage *s)
{
    /* Relaxed: the counter only deals out numbers; barriers order the data. */
    return atomic_fetch_add_explicit(&w->walk->plan->next[s - w->walk->list->stages], 1,
                                     memory_order_relaxed);
}

/* ---- splits ---- */

bt_cpu_split bt_device_cpu_split_rows(const bt_op *op, const bt_cpu_splitting *how)
{
    (void)op;
    return how->few ? BT_SPLIT_ONE : BT_SPLIT_ROWS;
}

bt_cpu_split bt_device_cpu_split_cells(const bt_op *op, const bt_cpu_splitting *how)
{
    return how->few || bt_ops_output(op).picked ? BT_SPLIT_CELLS : BT_SPLIT_ROWS;
}

bt_cpu_split bt_device_cpu_split_tasks(const bt_op *op, const bt_cpu_splitting *how)
{
    (void)op;
    (void)how;
    return BT_SPLIT_TASKS;
}

bt_cpu_split bt_device_cpu_split_heads(bool even, const bt_cpu_splitting *how)
{
    if (!how->few) {
        return BT_SPLIT_ROWS;
    }
    return even ? BT_SPLIT_HEADS : BT_SPLIT_ONE;
}
