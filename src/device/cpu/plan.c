/* From a tape to stages: who does what, and where all threads must meet.
 *
 * Every stage reads and writes resources: slots, activation buffers, keys and values, angles. Since
 * the last meeting each resource remembers in which ways it was read and written. A stage that
 * would touch what another thread may still be working on gets a meeting before it; all else runs
 * on. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/cpu/recurrent.h"

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
    for (uint32_t i = 0; i < b->n_touches && !stage.meet; i++) {
        stage.meet = conflicts(b, &b->touches[i], stage.n_groups);
    }
    if (stage.meet) {
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

static bool whole_blocks(const bt_op_kv_put *o, uint32_t groups)
{
    return groups != 0 && o->k.cols % groups == 0 && o->v.cols % groups == 0 &&
           o->k.cols / groups % 32 == 0 && o->v.cols / groups % 32 == 0;
}

static bt_cpu_split split_few(const builder *b, const bt_op *op, uint32_t groups)
{
    const bt_rows y = bt_ops_output(op);
    if (y.slot != 0 && b->list->own[y.slot]) {
        return BT_SPLIT_SAME;
    }
    switch (op->kind) {
    case BT_OP_linear:
    case BT_OP_short_conv:
    case BT_OP_delta_scan:
    case BT_OP_expert_linear:
        return BT_SPLIT_TASKS;
    case BT_OP_head_norm:
        return groups && op->head_norm.n_heads % groups == 0 ? BT_SPLIT_HEADS : BT_SPLIT_ONE;
    case BT_OP_rope:
        return groups && op->rope.n_heads % groups == 0 ? BT_SPLIT_HEADS : BT_SPLIT_ONE;
    case BT_OP_kv_put:
        return whole_blocks(&op->kv_put, groups) ? BT_SPLIT_HEADS : BT_SPLIT_ONE;
    case BT_OP_attention:
        /* By key heads nobody has to meet; if they do not come out even, by query heads. */
        return op->attention.n_kv_heads % b->n_threads == 0 ? BT_SPLIT_HEADS : BT_SPLIT_TASKS;
    case BT_OP_add:
    case BT_OP_scale:
    case BT_OP_glu:
    case BT_OP_softcap:
    case BT_OP_mul:
    case BT_OP_combine:
        return BT_SPLIT_CELLS;
    default:
        return BT_SPLIT_ONE;
    }
}

static bt_cpu_split split_many(const bt_op *op)
{
    switch (op->kind) {
    case BT_OP_linear:
    case BT_OP_attention:
    case BT_OP_short_conv:
    case BT_OP_delta_scan:
    case BT_OP_expert_linear:
        return BT_SPLIT_TASKS;
    case BT_OP_mark:
        return BT_SPLIT_ONE;
    case BT_OP_add:
    case BT_OP_scale:
    case BT_OP_glu:
    case BT_OP_softcap:
    case BT_OP_mul:
    case BT_OP_combine:
        return bt_ops_output(op).picked ? BT_SPLIT_CELLS : BT_SPLIT_ROWS;
    default:
        return BT_SPLIT_ROWS;
    }
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

static void touch_op(builder *b, const bt_op *op, const bt_cpu_stage *s)
{
    const uint8_t way = way_of((bt_cpu_split)s->split);
    bt_rows x[BT_OP_INPUTS_MAX];
    const uint32_t n = bt_ops_inputs(op, x);
    for (uint32_t i = 0; i < n; i++) {
        /* Picking crosses rows; a linear reads its x through the activation buffers. */
        if (op->kind != BT_OP_linear) {
            touches(b, x[i].slot, op->kind == BT_OP_rows ? W_OTHER : way, false);
        }
    }
    const bt_rows y = bt_ops_output(op);
    if (y.slot != 0) {
        touches(b, y.slot, way, true);
    }
    switch (op->kind) {
    case BT_OP_linear:
        for (int i = 0; i < BT_LINEAR_PARTS_MAX && op->linear.w[i].id != 0; i++) {
            touches(b, R_ACTS + s->part_buffer[i], W_OTHER, false);
        }
        break;
    case BT_OP_rope:
        /* Row by row by the thread that made them; picked rows are other rows. */
        touches(b, R_ANGLES, op->rope.x.picked ? W_OTHER : way, false);
        break;
    case BT_OP_kv_put:
        touches(b, R_KV, way, true);
        break;
    case BT_OP_attention:
        touches(b, R_KV, way, false);
        break;
    case BT_OP_short_conv:
    case BT_OP_delta_scan:
        /* Each its own part of a state; only the mark looks at both. */
        touches(b, R_STATE, W_ROWS, true);
        break;
    case BT_OP_mark:
        touches(b, R_KV, W_OTHER, false);
        touches(b, R_STATE, W_OTHER, false);
        break;
    default:
        break;
    }
}

static int angles_of(const bt_cpu_plan *p, const bt_op_rope *o)
{
    for (uint32_t i = 0; i < p->n_angles; i++) {
        if (p->angles[i].frequencies.id == o->frequencies.id &&
            p->angles[i].magnitude == o->magnitude) {
            return (int)i;
        }
    }
    return -1;
}

static void put_op(builder *b, uint32_t index)
{
    const bt_op *op = bt_ops_tape_op(b->plan->tape, index);
    const uint16_t groups = b->groups[index];
    bt_cpu_stage s = { .op = index, .kind = BT_STAGE_OP };
    s.split = (uint8_t)(b->few ? split_few(b, op, groups) : split_many(op));
    s.n_groups = s.split == BT_SPLIT_HEADS ? groups : 0;
    if (op->kind == BT_OP_linear) {
        put_conversions(b, index, &op->linear, s.part_buffer);
    }
    if (op->kind == BT_OP_rope) {
        s.number = (uint8_t)angles_of(b->plan, &op->rope);
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
    enum { GLU_COLS_MAX = 8192 };        /* beyond, sharing the work is worth a meeting */
    for (uint32_t i = 1; i <= bt_ops_tape_slots(t); i++) {
        own[i] = true;
    }
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        const bt_rows y = bt_ops_output(op);
        const bool cheap = op->kind == BT_OP_embed || op->kind == BT_OP_rows ||
                           op->kind == BT_OP_rmsnorm || op->kind == BT_OP_add ||
                           op->kind == BT_OP_scale ||
                           op->kind == BT_OP_route || op->kind == BT_OP_combine ||
                           op->kind == BT_OP_mul ||
                           (op->kind == BT_OP_glu && y.cols <= GLU_COLS_MAX);
        if (y.slot != 0 && !cheap) {
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

static void read_state(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op)
{
    const bool conv = op->kind == BT_OP_short_conv;
    const uint32_t layer = conv ? op->short_conv.layer : op->delta_scan.layer;
    bt_state_layer *l = &p->state[layer];
    if (conv) {
        l->conv_rows = bt_device_cpu_weight_of(d, op->short_conv.w)->n_in - 1;
        l->conv_cols = op->short_conv.x.cols;
    } else {
        l->n_heads = op->delta_scan.n_v_heads;
        l->dk = op->delta_scan.q.cols / op->delta_scan.n_k_heads;
        l->dv = op->delta_scan.v.cols / op->delta_scan.n_v_heads;
    }
    p->n_state_layers = p->n_state_layers > layer + 1 ? p->n_state_layers : layer + 1;
}

static bt_status read_tape(const bt_cpu_device *d, bt_cpu_plan *p, bt_error *err)
{
    p->n_vocab = UINT32_MAX;
    for (uint32_t i = 0; i < bt_ops_tape_count(p->tape); i++) {
        const bt_op *op = bt_ops_tape_op(p->tape, i);
        if (op->kind == BT_OP_embed) {
            const bt_cpu_weight *table = bt_device_cpu_weight_of(d, op->embed.table);
            p->n_vocab = p->n_vocab < table->n_out ? p->n_vocab : table->n_out;
        } else if (op->kind == BT_OP_kv_put) {
            const uint32_t layer = op->kv_put.layer;
            p->k_dim[layer] = op->kv_put.k.cols;
            p->v_dim[layer] = op->kv_put.v.cols;
            p->n_layers = p->n_layers > layer + 1 ? p->n_layers : layer + 1;
        } else if (op->kind == BT_OP_short_conv || op->kind == BT_OP_delta_scan) {
            read_state(d, p, op);
        } else if (op->kind == BT_OP_rope && angles_of(p, &op->rope) < 0) {
            if (p->n_angles == BT_CPU_ANGLES_MAX) {
                return bt_fail(err, BT_E_UNSUPPORTED, "cpu device: a tape with more than %d "
                               "different rotations", BT_CPU_ANGLES_MAX);
            }
            const uint32_t n_half = op->rope.n_rot / 2;
            p->angles[p->n_angles++] = (bt_cpu_angles){
                .frequencies = op->rope.frequencies, .magnitude = op->rope.magnitude,
                .n_half = n_half,
                .stride = (uint32_t)(bt_device_cpu_line(n_half * sizeof(float)) / sizeof(float))
            };
        }
    }
    return BT_OK;
}

/* The kinds of weights that ops need; the tape has checked shapes only. */
static bt_status check_weights(const bt_cpu_device *d, const bt_tape *t, bt_error *err)
{
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        bt_weight need[2 * BT_LINEAR_PARTS_MAX] = { { 0 } };
        bt_cpu_weight_kind kind = BT_CPU_VECTOR;
        uint32_t n_first = 1;            /* of the kind; the rest are vectors */
        switch (op->kind) {
        case BT_OP_embed:
            need[0] = op->embed.table;
            kind = BT_CPU_TABLE;
            break;
        case BT_OP_rmsnorm:   need[0] = op->rmsnorm.w; break;
        case BT_OP_head_norm: need[0] = op->head_norm.w; break;
        case BT_OP_rope:      need[0] = op->rope.frequencies; break;
        case BT_OP_short_conv:
            need[0] = op->short_conv.w;
            kind = BT_CPU_TAPS;
            break;
        case BT_OP_delta_scan:
            need[0] = op->delta_scan.decay;
            need[1] = op->delta_scan.dt_bias;
            break;
        case BT_OP_expert_linear:
            memcpy(need, op->expert_linear.w, sizeof op->expert_linear.w);
            kind = BT_CPU_EXPERTS;
            n_first = BT_EXPERT_PARTS_MAX;
            break;
        case BT_OP_linear:
            memcpy(need, op->linear.w, sizeof op->linear.w);
            memcpy(need + BT_LINEAR_PARTS_MAX, op->linear.bias, sizeof op->linear.bias);
            kind = BT_CPU_MATRIX;
            n_first = BT_LINEAR_PARTS_MAX;
            break;
        default:
            break;
        }
        for (uint32_t j = 0; j < BT_LEN(need); j++) {
            if (need[j].id != 0 &&
                bt_device_cpu_weight_of(d, need[j])->kind != (j < n_first ? kind : BT_CPU_VECTOR)) {
                return bt_fail(err, BT_E_DEVICE, "cpu device: op %u (%s) has a weight that was not "
                               "loaded for that use", i, bt_ops_name(op->kind));
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
        return bt_fail(err, BT_E_NOMEM, "no memory for the plan of a tape");
    }
    p->tape = t;
    p->tape_id = bt_ops_tape_id(t);
    bt_status status = read_tape(d, p, err);
    if (status == BT_OK &&
        (!build_list(d, p, &p->few, true) || !build_list(d, p, &p->many, false))) {
        status = bt_fail(err, BT_E_NOMEM, "no memory for the plan of a tape");
    }
    if (status == BT_OK) {
        const uint32_t n = p->few.n_stages > p->many.n_stages ? p->few.n_stages : p->many.n_stages;
        p->next = bt_alloc_zero(BT_MEM_scratch, n + 1, sizeof *p->next);
        if (!p->next) {
            status = bt_fail(err, BT_E_NOMEM, "no memory for the plan of a tape");
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

/* ---- scratch ---- */

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

typedef struct {
    uint64_t act_bytes, temp_cols, attention_floats, scan_floats, expert_bytes;
} needs;

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static needs measure(const bt_cpu_device *d, const bt_tape *t, uint32_t n_rows)
{
    needs n = { 0 };
    for (uint32_t i = 0; i < bt_ops_tape_count(t); i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        if (op->kind == BT_OP_linear) {
            for (int j = 0; j < BT_LINEAR_PARTS_MAX && op->linear.w[j].id != 0; j++) {
                const uint64_t bytes = bt_device_cpu_line(d->kernels->act_row_bytes(
                        &bt_device_cpu_weight_of(d, op->linear.w[j])->matrix));
                n.act_bytes = n.act_bytes > bytes ? n.act_bytes : bytes;
            }
        } else if (op->kind == BT_OP_rmsnorm && op->rmsnorm.add) {
            n.temp_cols = n.temp_cols > op->rmsnorm.x.cols ? n.temp_cols : op->rmsnorm.x.cols;
        } else if (op->kind == BT_OP_attention) {
            const bt_op_attention *a = &op->attention;
            const uint32_t k = a->q.cols / a->n_heads, v = a->y.cols / a->n_heads;
            const uint64_t floats = bt_cpu_attention_scratch(a->n_heads, k > v ? k : v,
                                                             BT_CPU_PAGE_TOKENS_MAX);
            n.attention_floats = n.attention_floats > floats ? n.attention_floats : floats;
        } else if (op->kind == BT_OP_delta_scan) {
            const uint32_t dk = op->delta_scan.q.cols / op->delta_scan.n_k_heads;
            n.scan_floats = larger(n.scan_floats, bt_cpu_delta_scratch(dk));
        } else if (op->kind == BT_OP_expert_linear) {
            n.expert_bytes = larger(n.expert_bytes,
                                    bt_device_cpu_experts_bytes(d, &op->expert_linear, n_rows));
        }
    }
    return n;
}

/* Rows start on cache lines; strides of whole pages would put all rows into the same cache sets. */
static uint32_t stride_of(uint32_t cols)
{
    const uint32_t stride = (cols + 15) / 16 * 16;
    return stride % 1024 == 0 ? stride + 16 : stride;
}

static void size_own(bt_cpu_plan *p, bt_cpu_list *list, const needs *n, layout *l)
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
    const needs n = measure(d, p->tape, n_rows > n_logit_rows ? n_rows : n_logit_rows);
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
