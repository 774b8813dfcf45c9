/* From a tape to stages: who does what, and where barriers are needed.
 *
 * Every stage reads and writes resources: slots, activation buffers, keys and values, angles. Since
 * the last barrier each resource remembers in which ways it was read and written. A stage that
 * would touch what another thread may still be working on gets a barrier before it; all else runs
 * on. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/cpu/op.h"

enum {
    R_ACTS = BT_TAPE_SLOTS_MAX + 1,
    R_KV = R_ACTS + BT_CPU_FORMS_MAX,
    R_STATE,
    R_ANGLES,
    R_COUNT,
    /* Ways to touch. OTHER conflicts with everything, each of the others agrees with itself. */
    W_ONE = 1, W_ROWS = 2, W_HEADS = 4, W_OTHER = 8,
    TOUCHES_MAX = 12
};

typedef struct { uint16_t resource; uint8_t way; bool write; } touch;

typedef struct {
    bool     full;
    bt_rows  x;
    uint32_t form;
    uint32_t source_op;
} held_acts;

typedef struct {
    const bt_cpu_device *device;
    bt_cpu_plan *plan;
    bt_cpu_list *list;
    bool         few;
    uint32_t     n_threads;
    uint16_t    *groups;                 /* [n_ops] key heads of the next attention; 0: none */
    uint8_t      read[R_COUNT], write[R_COUNT];
    uint16_t     read_groups[R_COUNT];   /* of W_HEADS; two group counts make it W_OTHER */
    held_acts    acts[BT_CPU_FORMS_MAX];
    touch        touches[TOUCHES_MAX];
    uint32_t     n_touches;
    bool         no_memory;
} builder;

/* ---- conflicts ---- */

static void touches(builder *b, uint32_t resource, uint8_t way, bool write)
{
    if (b->few && resource <= BT_TAPE_SLOTS_MAX && b->list->own[resource]) {
        return;
    }
    if (b->few && resource >= R_ACTS && resource < R_KV) {
        return;                          /* each thread converts for itself */
    }
    BT_ASSERT(b->n_touches < TOUCHES_MAX);
    b->touches[b->n_touches++] = (touch){ (uint16_t)resource, way, write };
}

static bool conflicts(const builder *b, const touch *t, uint16_t n_groups)
{
    const uint8_t before = (uint8_t)(b->write[t->resource] | (t->write ? b->read[t->resource] : 0));
    if (before == 0) {
        return false;
    }
    if (t->way == W_OTHER || (before & ~t->way) != 0) {
        return true;
    }
    return t->way == W_HEADS && b->read_groups[t->resource] != n_groups;
}

static uint8_t way_of(bt_cpu_split split)
{
    switch (split) {
    case BT_SPLIT_ONE:   return W_ONE;
    case BT_SPLIT_ROWS:  return W_ROWS;
    case BT_SPLIT_HEADS: return W_HEADS;
    case BT_SPLIT_SAME:
    case BT_SPLIT_CELLS:
    case BT_SPLIT_TASKS: break;
    }
    return W_OTHER;
}

/* Appends the stage whose touches have been collected. */
static void put_stage(builder *b, bt_cpu_stage stage)
{
    for (uint32_t i = 0; i < b->n_touches && !stage.barrier; i++) {
        stage.barrier = conflicts(b, &b->touches[i], stage.n_groups);
    }
    if (stage.barrier) {
        memset(b->read, 0, sizeof b->read);
        memset(b->write, 0, sizeof b->write);
    }
    for (uint32_t i = 0; i < b->n_touches; i++) {
        const touch *t = &b->touches[i];
        if (t->write) {
            b->write[t->resource] |= t->way;
        } else {
            b->read[t->resource] |= t->way;
        }
        b->read_groups[t->resource] = stage.n_groups;
    }
    b->n_touches = 0;
    bt_cpu_list *list = b->list;
    if (list->n_stages == list->capacity) {
        const uint32_t capacity = list->capacity ? list->capacity * 2 : 256;
        bt_cpu_stage *stages = bt_realloc(BT_MEM_scratch, list->stages, capacity * sizeof *stages);
        if (!stages) {
            b->no_memory = true;
            return;
        }
        list->stages = stages;
        list->capacity = capacity;
    }
    list->stages[list->n_stages++] = stage;
}

/* ---- how an op is split ---- */

static bt_cpu_split split_of(const builder *b, const bt_op *op, uint16_t groups)
{
    const bt_rows y = bt_ops_output(op);
    if (b->few && y.slot != 0 && b->list->own[y.slot]) {
        return BT_SPLIT_SAME;
    }
    return bt_device_cpu_op(op->kind)->split(op, &(bt_cpu_splitting){
            .few = b->few, .n_threads = b->n_threads, .n_groups = groups });
}

/* ---- stages of an op ---- */

static void forget_acts(builder *b, bt_rows y)
{
    for (int i = 0; i < BT_CPU_FORMS_MAX; i++) {
        if (b->acts[i].full && b->acts[i].x.slot == y.slot) {
            b->acts[i].full = false;
        }
    }
}

static bool same_rows(bt_rows a, bt_rows b)
{
    return a.slot == b.slot && a.column == b.column && a.cols == b.cols;
}

/* The buffer that holds x in this form, or one that the op (mask `used`) does not need. */
static int find_buffer(const builder *b, bt_rows x, uint32_t form, unsigned used, bool *ret_held)
{
    int free_buffer = -1;
    for (int i = 0; i < BT_CPU_FORMS_MAX; i++) {
        const held_acts *a = &b->acts[i];
        if (a->full && a->form == form && same_rows(a->x, x)) {
            *ret_held = true;
            return i;
        }
        if (!(used & (1u << i)) && (free_buffer < 0 || !a->full)) {
            free_buffer = i;
        }
    }
    BT_ASSERT(free_buffer >= 0);
    *ret_held = false;
    return free_buffer;
}

static void put_convert(builder *b, uint32_t op_index, const bt_op_linear *o, int buffer,
                        uint32_t source_op, const uint8_t part_buffer[BT_LINEAR_PARTS_MAX])
{
    bt_cpu_stage s = { .op = op_index, .kind = BT_STAGE_CONVERT, .number = (uint8_t)buffer,
                       .split = b->few ? BT_SPLIT_SAME : BT_SPLIT_ROWS, .source_op = source_op };
    memcpy(s.part_buffer, part_buffer, sizeof s.part_buffer);
    if (source_op == op_index) {
        touches(b, o->x.slot, way_of((bt_cpu_split)s.split), false);
        touches(b, R_ACTS + (uint32_t)buffer, way_of((bt_cpu_split)s.split), true);
    }
    put_stage(b, s);
}

/* Conversions that the op needs, and which buffer serves which part. */
static void put_conversions(builder *b, uint32_t op_index, const bt_op_linear *o,
                            uint8_t part_buffer[BT_LINEAR_PARTS_MAX])
{
    const bt_cpu_kernels *k = b->device->kernels;
    unsigned used = 0;
    memset(part_buffer, 0, BT_LINEAR_PARTS_MAX);
    for (int i = 0; i < BT_LINEAR_PARTS_MAX && o->w[i].id != 0; i++) {
        const uint32_t form = k->act_form(&bt_device_cpu_weight_of(b->device, o->w[i])->matrix);
        bool held;
        const int buffer = find_buffer(b, o->x, form, used, &held);
        part_buffer[i] = (uint8_t)buffer;
        if (!(used & (1u << buffer))) {
            const uint32_t source = held ? b->acts[buffer].source_op : op_index;
            b->acts[buffer] = (held_acts){ .full = true, .x = o->x, .form = form,
                                           .source_op = source };
            put_convert(b, op_index, o, buffer, source, part_buffer);
        }
        used |= 1u << buffer;
    }
}

/* Keys and values, and states. */
static void touch_memory(builder *b, const bt_op *op, uint8_t way)
{
    switch (bt_ops_info(op->kind)->memory) {
    case BT_OP_WRITES_KV:
        touches(b, R_KV, way, true);
        break;
    case BT_OP_READS_KV:
        touches(b, R_KV, way, false);
        break;
    case BT_OP_MOVES_STATE:
        /* Each op its own part of a state; only the mark looks at both. */
        touches(b, R_STATE, W_ROWS, true);
        break;
    case BT_OP_SEES_ALL:
        touches(b, R_KV, W_OTHER, false);
        touches(b, R_STATE, W_OTHER, false);
        break;
    case BT_OP_TOUCHES_ROWS:
        break;
    }
}

static void touch_op(builder *b, const bt_op *op, const bt_cpu_stage *s)
{
    const bt_cpu_op *row = bt_device_cpu_op(op->kind);
    const uint8_t way = way_of((bt_cpu_split)s->split);
    bt_rows x[BT_OP_INPUTS_MAX];
    const uint32_t n = bt_ops_inputs(op, x);
    for (uint32_t i = 0; i < n && !row->converts; i++) {
        touches(b, x[i].slot, row->crosses_rows ? W_OTHER : way, false);
    }
    const bt_rows y = bt_ops_output(op);
    if (y.slot != 0) {
        touches(b, y.slot, way, true);
    }
    for (int i = 0; row->converts && i < BT_LINEAR_PARTS_MAX && op->linear.w[i].id != 0; i++) {
        touches(b, R_ACTS + s->part_buffer[i], W_OTHER, false);
    }
    if (row->rotates) {
        /* Row by row by the thread that made them; picked rows are other rows. */
        touches(b, R_ANGLES, y.picked ? W_OTHER : way, false);
    }
    touch_memory(b, op, way);
}

static void put_op(builder *b, uint32_t index)
{
    const bt_op *op = bt_ops_tape_op(b->plan->tape, index);
    const bt_cpu_op *row = bt_device_cpu_op(op->kind);
    const uint16_t groups = b->groups[index];
    bt_cpu_stage s = { .op = index, .kind = BT_STAGE_OP };
    s.split = (uint8_t)split_of(b, op, groups);
    s.n_groups = s.split == BT_SPLIT_HEADS ? groups : 0;
    if (row->converts) {
        put_conversions(b, index, &op->linear, s.part_buffer);
    }
    if (row->rotates) {
        s.number = (uint8_t)bt_device_cpu_angles_of(b->plan, &op->rope);
    }
    touch_op(b, op, &s);
    put_stage(b, s);
    const bt_rows y = bt_ops_output(op);
    if (y.slot != 0) {
        forget_acts(b, y);
    }
}

/* ---- what must be known of the whole tape first ---- */

/* Slots that cheap whole-row ops alone write: in the few-rows list every thread keeps its own. */
static void find_own_slots(const bt_tape *t, bool own[BT_TAPE_SLOTS_MAX + 1])
{
    for (uint32_t i = 1; i <= bt_ops_tape_slots(t); i++) {
        own[i] = true;
    }
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        const bt_rows y = bt_ops_output(op);
        if (y.slot != 0 && y.cols > bt_device_cpu_op(op->kind)->own_cols_max) {
            own[y.slot] = false;
        }
    }
}

static void find_groups(const bt_tape *t, uint16_t *groups)
{
    uint16_t ahead = 0;
    for (uint32_t i = bt_ops_tape_count(t); i-- > 0;) {
        const bt_op *op = bt_ops_tape_op(t, i);
        if (op->kind == BT_OP_attention) {
            ahead = (uint16_t)op->attention.n_kv_heads;
        }
        groups[i] = ahead;
    }
}

static bt_status read_tape(const bt_cpu_device *d, bt_cpu_plan *p, bt_error *err)
{
    p->n_vocab = UINT32_MAX;
    for (uint32_t i = 0; i < bt_ops_tape_count(p->tape); i++) {
        const bt_op *op = bt_ops_tape_op(p->tape, i);
        const bt_cpu_op *row = bt_device_cpu_op(op->kind);
        if (row->note) {
            BT_TRY(row->note(d, p, op, err));
        }
    }
    return BT_OK;
}

/* The kinds of weights that ops need; the tape has checked shapes only. */
static bt_status check_weights(const bt_cpu_device *d, const bt_tape *t, bt_error *err)
{
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        const bt_cpu_op_weights *need = bt_device_cpu_op(op->kind)->weights;
        for (uint32_t j = 0; j < 2 && need[j].n > 0; j++) {
            const bt_weight *w = (const void *)((const char *)(const void *)op + need[j].at);
            for (uint32_t k = 0; k < need[j].n; k++) {
                if (w[k].id != 0 && bt_device_cpu_weight_of(d, w[k])->kind != need[j].kind) {
                    return bt_fail(err, BT_E_DEVICE, "cpu device: op %u (%s) has a weight that was "
                                   "not loaded for that use", i, bt_ops_name(op->kind));
                }
            }
        }
    }
    return BT_OK;
}

/* ---- plans ---- */

static bool build_list(const bt_cpu_device *d, bt_cpu_plan *p, bt_cpu_list *list, bool few)
{
    const uint32_t n_ops = bt_ops_tape_count(p->tape);
    builder b = { .device = d, .plan = p, .list = list, .few = few,
                  .n_threads = few ? d->n_threads : d->n_threads_batch };
    b.groups = bt_alloc_zero(BT_MEM_scratch, n_ops + 1, sizeof *b.groups);
    list->first_stage = bt_alloc_zero(BT_MEM_scratch, n_ops + 1, sizeof *list->first_stage);
    if (!b.groups || !list->first_stage) {
        bt_free(b.groups);
        return false;
    }
    find_groups(p->tape, b.groups);
    if (few) {
        find_own_slots(p->tape, list->own);
    }
    for (uint32_t i = 0; i < p->n_angles && n_ops > 0; i++) {
        touches(&b, R_ANGLES, W_ROWS, true);
        put_stage(&b, (bt_cpu_stage){ .kind = BT_STAGE_ANGLES, .split = BT_SPLIT_ROWS,
                                      .number = (uint8_t)i });
    }
    for (uint32_t i = 0; i < n_ops && !b.no_memory; i++) {
        list->first_stage[i] = i == 0 ? 0 : list->n_stages;
        put_op(&b, i);
    }
    list->first_stage[n_ops] = list->n_stages;
    bt_free(b.groups);
    return !b.no_memory;
}

bt_status bt_device_cpu_plan_create(const bt_cpu_device *d, const bt_tape *t,
                                    bt_cpu_plan **ret_plan, bt_error *err)
{
    BT_TRY(check_weights(d, t, err));
    bt_cpu_plan *p = bt_alloc_zero(BT_MEM_scratch, 1, sizeof *p);
    if (!p) {
        return bt_fail_nomem(err, sizeof *p, "the plan of a tape");
    }
    p->tape = t;
    p->tape_id = bt_ops_tape_id(t);
    bt_status status = read_tape(d, p, err);
    if (status == BT_OK &&
        (!build_list(d, p, &p->few, true) || !build_list(d, p, &p->many, false))) {
        status = bt_fail_nomem(err, bt_ops_tape_count(t) * sizeof(bt_cpu_stage),
                               "the plan of a tape");
    }
    if (status == BT_OK) {
        const uint32_t n = p->few.n_stages > p->many.n_stages ? p->few.n_stages : p->many.n_stages;
        p->next = bt_alloc_zero(BT_MEM_scratch, n + 1, sizeof *p->next);
        if (!p->next) {
            status = bt_fail_nomem(err, (n + 1) * sizeof *p->next, "the plan of a tape");
        }
    }
    if (status != BT_OK) {
        bt_device_cpu_plan_destroy(p);
        return status;
    }
    *ret_plan = p;
    return BT_OK;
}

static void list_done(bt_cpu_list *list)
{
    bt_free(list->stages);
    bt_free(list->first_stage);
}

void bt_device_cpu_plan_destroy(bt_cpu_plan *p)
{
    if (p) {
        list_done(&p->few);
        list_done(&p->many);
        bt_free(p->next);
        bt_free(p);
    }
}
