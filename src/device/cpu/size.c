/* Scratch of a plan: where every slot and buffer lies. */
#include "base/memory.h"
#include "device/cpu/op.h"

/* A sticky sum of pieces, each on its own cache lines. */
typedef struct { uint64_t at; bool overflow; } layout;

static uint64_t place(layout *l, uint64_t count, uint64_t size)
{
    const uint64_t at = l->at;
    size_t bytes, end;
    if (!bt_size_mul((size_t)count, (size_t)size, &bytes) ||
        !bt_size_add((size_t)at, bytes, &end) || end > SIZE_MAX / 2) {
        l->overflow = true;
        return at;
    }
    l->at = bt_device_cpu_line(end);
    return at;
}

static bt_cpu_needs measure(const bt_cpu_device *d, const bt_tape *t, uint32_t n_rows)
{
    bt_cpu_needs needs = { 0 };
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        const bt_cpu_op *row = bt_device_cpu_op(op->kind);
        if (row->measure) {
            row->measure(d, op, n_rows, &needs);
        }
    }
    return needs;
}

/* Rows start on cache lines; strides of whole pages would put all rows into the same cache sets. */
static uint32_t stride_of(uint32_t cols)
{
    const uint32_t stride = (cols + 15) / 16 * 16;
    return stride % 1024 == 0 ? stride + 16 : stride;
}

static void size_own(bt_cpu_plan *p, bt_cpu_list *list, const bt_cpu_needs *n, layout *l)
{
    for (uint32_t i = 1; i <= bt_ops_tape_slots(p->tape); i++) {
        if (list->own[i]) {
            list->own_at[i] = place(l, BT_CPU_FEW_ROWS, p->slot_stride[i] * sizeof(float));
        }
    }
    for (int i = 0; i < BT_CPU_FORMS_MAX; i++) {
        list->own_acts_at[i] = place(l, BT_CPU_FEW_ROWS, n->act_bytes);
    }
}

bt_status bt_device_cpu_plan_size(const bt_cpu_device *d, bt_cpu_plan *p, uint32_t n_rows,
                                  uint32_t n_logit_rows, bt_error *err)
{
    const bt_cpu_needs n = measure(d, p->tape, n_rows > n_logit_rows ? n_rows : n_logit_rows);
    layout shared = { 0 }, own = { 0 };
    for (uint32_t i = 1; i <= bt_ops_tape_slots(p->tape); i++) {
        bool picked;
        p->slot_stride[i] = stride_of(bt_ops_tape_slot_cols(p->tape, (uint16_t)i, &picked));
        p->slot_at[i] = place(&shared, picked ? n_logit_rows : n_rows,
                              p->slot_stride[i] * sizeof(float));
    }
    for (int i = 0; i < BT_CPU_FORMS_MAX; i++) {
        p->acts_at[i] = place(&shared, n_rows, n.act_bytes);
    }
    for (uint32_t i = 0; i < p->n_angles; i++) {
        p->angles[i].at = place(&shared, n_rows, 2 * p->angles[i].stride * sizeof(float));
    }
    size_own(p, &p->few, &n, &own);
    p->temp_at = place(&own, n.temp_cols, sizeof(float));
    p->attention_at = place(&own, n.attention_floats, sizeof(float));
    p->scan_at = place(&own, n.scan_floats, sizeof(float));
    p->experts_at = place(&own, n.expert_bytes, 1);
    if (shared.overflow || own.overflow) {
        return bt_fail(err, BT_E_NOMEM, "scratch for %u rows and %u rows of logits does not fit "
                       "an address", n_rows, n_logit_rows);
    }
    p->shared_bytes = shared.at;
    p->own_bytes = own.at;
    p->n_rows_max = n_rows;
    p->n_logit_rows_max = n_logit_rows;
    return BT_OK;
}
