/* The walk: every thread goes through the stages of the list, waits at the barriers of the plan,
 * and does its piece. */
#include "base/check.h"
#include "device/cpu/op.h"

static void walk_stages(void *context, uint32_t index, uint32_t n_threads)
{
    const bt_cpu_walk *walk = context;
    const bt_cpu_list *list = walk->list;
    const uint32_t first = list->first_stage[walk->op_first];
    const uint32_t last = list->first_stage[walk->op_last];
    const bt_cpu_worker w = {
        .walk = walk, .index = index, .n_threads = n_threads,
        .own = (char *)walk->device->own.base + index * walk->device->own_stride
    };
    for (uint32_t i = first; i < last; i++) {
        const bt_cpu_stage *s = &list->stages[i];
        const bool kept = s->kind == BT_STAGE_CONVERT && s->source_op != s->op;
        if (kept && s->source_op >= walk->op_first) {
            continue;                    /* an earlier op of this walk converted the same rows */
        }
        if (s->barrier && i != first && n_threads > 1) {
            bt_team_barrier(walk->device->team);
        }
        const bt_op *op = bt_ops_tape_op(walk->plan->tape, s->op);
        switch ((bt_cpu_stage_kind)s->kind) {
        case BT_STAGE_ANGLES:
            bt_device_cpu_run_angles(&w, s);
            break;
        case BT_STAGE_CONVERT:
            bt_device_cpu_run_convert(&w, s, &op->linear);
            if (kept && !walk->few) {
                bt_team_barrier(walk->device->team);   /* the plan counted on the earlier one */
            }
            break;
        case BT_STAGE_OP:
            bt_device_cpu_op(op->kind)->run(&w, s, op);
            break;
        }
    }
}

static void reset_counters(const bt_cpu_plan *p, const bt_cpu_walk *walk, uint32_t n_threads)
{
    const uint32_t last = walk->list->first_stage[walk->op_last];
    for (uint32_t i = walk->list->first_stage[walk->op_first]; i < last; i++) {
        /* Relaxed: the start of the team releases it. */
        atomic_store_explicit(&p->next[i], n_threads, memory_order_relaxed);
    }
}

bt_status bt_device_cpu_run(bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                            uint32_t op_first, uint32_t op_last, bt_error *err)
{
    BT_ASSERT(op_first <= op_last && op_last <= bt_ops_tape_count(p->tape));
    BT_TRY(bt_device_cpu_check_step(d, p, s, err));
    const bool few = s->n_rows <= BT_CPU_FEW_ROWS;
    bt_cpu_walk walk = { .device = d, .plan = p, .list = few ? &p->few : &p->many, .step = s,
                         .op_first = op_first, .op_last = op_last, .few = few };
    const uint32_t n_threads = few ? d->n_threads : d->n_threads_batch;
    d->last_plan = p;
    d->last_few = few;
    reset_counters(p, &walk, n_threads);
    bt_team_run(d->team, n_threads, walk_stages, &walk);
    return BT_OK;
}
