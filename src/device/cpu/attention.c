/* Rotation, the writing of keys and values, and attention over pages. */
#include <math.h>

#include "base/check.h"
#include "device/cpu/op.h"

/* ---- angles ---- */

/* cos and sin of one angle, the same bits on every machine: libraries differ in the last place, and
 * machines that share keys must not. The remainder is taken from a pi/2 in two parts, of which the
 * upper has 29 bits, so that its product with up to 2^24 quarter turns is exact. Then come Taylor's
 * series, to a term below 2^-53 on [-pi/4, pi/4]. All in double; f32 comes last. */
static void cos_sin(double a, float *ret_cos, float *ret_sin)
{
    static const double two_over_pi = 0x1.45f306dc9c883p-1;
    static const double half_pi_upper = 0x1.921fb54p+0, half_pi_lower = 0x1.10b4611a62633p-30;
    /* 1 / (n (n - 1)) and 1 / (n (n + 1)) for n = 2, 4 .. 16. */
    static const double per_cos[] = { 1 / 2.0, 1 / 12.0, 1 / 30.0, 1 / 56.0, 1 / 90.0, 1 / 132.0,
                                      1 / 182.0, 1 / 240.0 };
    static const double per_sin[] = { 1 / 6.0, 1 / 20.0, 1 / 42.0, 1 / 72.0, 1 / 110.0, 1 / 156.0,
                                      1 / 210.0, 1 / 272.0 };
    const double turns = floor(a * two_over_pi + 0.5);
    const double x = (a - turns * half_pi_upper) - turns * half_pi_lower;
    const double z = x * x;
    double s = 0.0, c = 0.0;
    for (int i = (int)BT_LEN(per_sin) - 1; i >= 0; i--) {
        s = (s + 1.0) * -(z * per_sin[i]);
        c = (c + 1.0) * -(z * per_cos[i]);
    }
    const double sine = x + x * s, cosine = 1.0 + c;
    switch ((int64_t)turns & 3) {
    case 0:  *ret_cos = (float)cosine;  *ret_sin = (float)sine;    break;
    case 1:  *ret_cos = (float)-sine;   *ret_sin = (float)cosine;  break;
    case 2:  *ret_cos = (float)-cosine; *ret_sin = (float)-sine;   break;
    default: *ret_cos = (float)sine;    *ret_sin = (float)-cosine; break;
    }
}

int bt_device_cpu_angles_of(const bt_cpu_plan *p, const bt_op_rope *o)
{
    for (uint32_t i = 0; i < p->n_angles; i++) {
        if (p->angles[i].frequencies.id == o->frequencies.id &&
            p->angles[i].long_frequencies.id == o->long_frequencies.id &&
            p->angles[i].magnitude == o->magnitude) {
            return (int)i;
        }
    }
    return -1;
}

static float *angles_row(const bt_cpu_worker *w, const bt_cpu_angles *a, uint32_t row)
{
    char *base = (char *)w->walk->device->shared.base + a->at;
    return (float *)(void *)base + (size_t)row * 2 * a->stride;
}

void bt_device_cpu_run_angles(const bt_cpu_worker *w, const bt_cpu_stage *s)
{
    const bt_cpu_angles *a = &w->walk->plan->angles[s->number];
    const bt_cpu_device *d = w->walk->device;
    const bt_step *step = w->walk->step;
    const float *usual = bt_device_cpu_weight_of(d, a->frequencies)->vector, *of_long = usual;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, step->n_rows);
    if (a->long_frequencies.id != 0) {
        of_long = bt_device_cpu_weight_of(d, a->long_frequencies)->vector;
    }
    for (uint32_t r = rows.first; r < rows.last; r++) {
        const bool is_long = step->sequences[step->row_sequence[r]].is_long;
        const float *frequencies = is_long ? of_long : usual;
        float *cosines = angles_row(w, a, r), *sines = cosines + a->stride;
        const double position = step->positions[r];
        for (uint32_t i = 0; i < a->n_half; i++) {
            cos_sin(position * (double)frequencies[i], &cosines[i], &sines[i]);
            cosines[i] *= a->magnitude;
            sines[i] *= a->magnitude;
        }
    }
}

/* ---- rope and kv_put ---- */

static void run_rope(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_rope *o = &op->rope;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_cpu_angles *a = &w->walk->plan->angles[s->number];
    const uint32_t dim = o->x.cols / o->n_heads;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->x));
    const bt_cpu_range heads = bt_device_cpu_my_heads(w, s, o->n_heads);
    for (uint32_t r = rows.first; r < rows.last; r++) {
        float *x = bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x);
        const float *cosines = angles_row(w, a, bt_device_cpu_step_row(w, o->x.picked, r));
        for (uint32_t h = heads.first; h < heads.last; h++) {
            k->rope(x + h * dim, cosines, cosines + a->stride, o->n_rot, o->style);
        }
    }
}

static bt_cpu_split split_rope(const bt_op *op, const bt_cpu_splitting *how)
{
    return bt_device_cpu_split_heads(how->n_groups && op->rope.n_heads % how->n_groups == 0, how);
}

static bt_status note_rope(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op, bt_error *err)
{
    const uint32_t n_half = op->rope.n_rot / 2;
    (void)d;
    if (bt_device_cpu_angles_of(p, &op->rope) >= 0) {
        return BT_OK;
    }
    if (p->n_angles == BT_CPU_ANGLES_MAX) {
        return bt_fail(err, BT_E_UNSUPPORTED, "cpu device: a tape with more than %d different "
                       "rotations", BT_CPU_ANGLES_MAX);
    }
    p->angles[p->n_angles++] = (bt_cpu_angles){
        .frequencies = op->rope.frequencies, .long_frequencies = op->rope.long_frequencies,
        .magnitude = op->rope.magnitude, .n_half = n_half,
        .stride = (uint32_t)(bt_device_cpu_line(n_half * sizeof(float)) / sizeof(float))
    };
    return BT_OK;
}

const bt_cpu_op bt_device_cpu_op_rope = {
    .run = run_rope,
    .split = split_rope,
    .weights = { { BT_OP_AT(rope, frequencies), 1, BT_CPU_VECTOR },
                 { BT_OP_AT(rope, long_frequencies), 1, BT_CPU_VECTOR } },
    .rotates = true,
    .note = note_rope,
};

static char *kv_base(const bt_cpu_worker *w)
{
    return w->walk->device->buffers[w->walk->step->kv->buffer.id - 1].base;
}

/* Values `cells` of row x into their place in the stored row. The plan splits by whole blocks. */
static void store(const bt_cpu_kernels *k, bt_type type, const float *x, char *row,
                  bt_cpu_range cells)
{
    const bt_type_info *info = bt_quant_type_find(type);
    if (cells.first < cells.last) {
        k->kv_store(type, x + cells.first,
                    row + (size_t)(cells.first / info->block_elems) * info->block_bytes,
                    cells.last - cells.first);
    }
}

static void run_kv_put(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_kv_put *o = &op->kv_put;
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_step *step = w->walk->step;
    const bt_kv_layout *kv = step->kv;
    const bt_kv_layer *l = &kv->layers[o->layer];
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, step->n_rows);
    const bt_cpu_range k_cells = bt_device_cpu_my_heads(w, s, o->k.cols);
    const bt_cpu_range v_cells = bt_device_cpu_my_heads(w, s, o->v.cols);
    for (uint32_t r = rows.first; r < rows.last; r++) {
        const uint32_t position = step->positions[r];
        const uint32_t *pages = step->sequences[step->row_sequence[r]].pages;
        char *page = kv_base(w) + pages[position / kv->page_tokens] * kv->page_bytes;
        const uint64_t slot = position % kv->page_tokens;
        store(k, kv->type_k, bt_device_cpu_rows(w, o->k) + r * bt_device_cpu_stride(w, o->k),
              page + l->k_offset + slot * l->k_row_bytes, k_cells);
        store(k, kv->type_v, bt_device_cpu_rows(w, o->v) + r * bt_device_cpu_stride(w, o->v),
              page + l->v_offset + slot * l->v_row_bytes, v_cells);
    }
}

static bt_cpu_split split_kv_put(const bt_op *op, const bt_cpu_splitting *how)
{
    const bt_op_kv_put *o = &op->kv_put;
    const uint32_t groups = how->n_groups;
    const bool whole_blocks = groups != 0 && o->k.cols % groups == 0 && o->v.cols % groups == 0 &&
                              o->k.cols / groups % 32 == 0 && o->v.cols / groups % 32 == 0;
    return bt_device_cpu_split_heads(whole_blocks, how);
}

static bt_status note_kv_put(const bt_cpu_device *d, bt_cpu_plan *p, const bt_op *op,
                              bt_error *err)
{
    const uint32_t layer = op->kv_put.layer;
    (void)d;
    (void)err;
    p->k_dim[layer] = op->kv_put.k.cols;
    p->v_dim[layer] = op->kv_put.v.cols;
    p->n_layers = p->n_layers > layer + 1 ? p->n_layers : layer + 1;
    return BT_OK;
}

const bt_cpu_op bt_device_cpu_op_kv_put = {
    .run = run_kv_put,
    .split = split_kv_put,
    .note = note_kv_put,
};

/* ---- mark ---- */

static void run_mark(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_step *step = w->walk->step;
    (void)s;
    if (w->index == 0 && step->on_mark) {
        step->on_mark(step->mark_context, op->mark.layer);
    }
}

static bt_cpu_split split_mark(const bt_op *op, const bt_cpu_splitting *how)
{
    (void)op;
    (void)how;
    return BT_SPLIT_ONE;
}

const bt_cpu_op bt_device_cpu_op_mark = {
    .run = run_mark,
    .split = split_mark,
};

/* ---- attention ---- */

/* Rows of scratch [row, row + n) are neighbours of one sequence. */
static void attend(const bt_cpu_worker *w, const bt_op_attention *o, uint32_t row, uint32_t n,
                   bt_cpu_range heads)
{
    const bt_step *step = w->walk->step;
    const bt_kv_layout *kv = step->kv;
    const bt_kv_layer *l = &kv->layers[o->layer];
    const uint32_t step_row = bt_device_cpu_step_row(w, o->q.picked, row);
    if (heads.first == heads.last) {
        return;
    }
    w->walk->device->kernels->attention(&(bt_cpu_attention){
            .q = bt_device_cpu_rows(w, o->q) + row * bt_device_cpu_stride(w, o->q),
            .y = bt_device_cpu_rows(w, o->y) + row * bt_device_cpu_stride(w, o->y),
            .n_rows = n,
            .q_stride = bt_device_cpu_stride(w, o->q),
            .y_stride = bt_device_cpu_stride(w, o->y),
            .n_heads = o->n_heads,
            .n_kv_heads = o->n_kv_heads,
            .head_dim = o->q.cols / o->n_heads,
            .head_dim_v = o->y.cols / o->n_heads,
            .position = step->positions[step_row],
            .window = o->window,
            .scale = o->scale,
            .softcap = o->softcap,
            .type_k = kv->type_k,
            .type_v = kv->type_v,
            .kv_base = (const uint8_t *)kv_base(w),
            .page_bytes = kv->page_bytes,
            .page_tokens = kv->page_tokens,
            .pages = step->sequences[step->row_sequence[step_row]].pages,
            .k_offset = l->k_offset,
            .v_offset = l->v_offset,
            .k_row_bytes = l->k_row_bytes,
            .v_row_bytes = l->v_row_bytes,
            .head_first = heads.first,
            .head_last = heads.last,
            .scratch = (float *)(void *)(w->own + w->walk->plan->attention_at)});
}

/* Rows from `row` on, before `end`, at consecutive positions of one sequence: at most `most`. */
static uint32_t neighbours(const bt_cpu_worker *w, bool picked, uint32_t row, uint32_t end,
                           uint32_t most)
{
    const bt_step *step = w->walk->step;
    const uint32_t first = bt_device_cpu_step_row(w, picked, row);
    uint32_t n = 1;
    while (n < most && row + n < end) {
        const uint32_t next = bt_device_cpu_step_row(w, picked, row + n);
        if (next != first + n || step->row_sequence[next] != step->row_sequence[first]) {
            break;
        }
        n++;
    }
    return n;
}

/* Runs of query heads for the few-rows list: a run that begins or ends inside a group of heads
 * reads that group's keys too, which is no more than the thread with the most groups reads. */
static void run_heads(const bt_cpu_worker *w, const bt_op_attention *o, bt_cpu_range heads)
{
    const uint32_t n_rows = bt_device_cpu_row_count(w, o->q);
    for (uint32_t row = 0; row < n_rows;) {
        const uint32_t n = neighbours(w, o->q.picked, row, n_rows, n_rows);
        attend(w, o, row, n, heads);
        row += n;
    }
}

/* A task is a block of rows times the query heads of one key head. Blocks are cut at fixed row
 * numbers and once more where a sequence ends, so that threads need not agree on anything. Last
 * rows first: they attend the most positions, and long tasks taken early leave short ones to even
 * out the end. */
static void run_attention(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    const bt_op_attention *o = &op->attention;
    enum { ROWS = 48, ROWS_SMALL = 16 }; /* the kernel takes up to 48 rows of a head at a time */
    const uint32_t n_rows = bt_device_cpu_row_count(w, o->q), n_groups = o->n_kv_heads;
    if (s->split == BT_SPLIT_HEADS) {
        run_heads(w, o, bt_device_cpu_my_heads(w, s, o->n_heads));
        return;
    }
    if (w->walk->few) {
        run_heads(w, o, bt_device_cpu_part(o->n_heads, w->index, w->n_threads));
        return;
    }
    const bool plenty = n_rows / ROWS * n_groups >= 4 * w->n_threads;
    const uint32_t rows = plenty || w->n_threads == 1 ? ROWS : ROWS_SMALL;
    const uint32_t n_blocks = (n_rows + rows - 1) / rows, each = o->n_heads / n_groups;
    for (uint32_t task = bt_device_cpu_task_first(w); task < n_blocks * n_groups;
         task = bt_device_cpu_task_next(w, s)) {
        const uint32_t block = n_blocks - 1 - task / n_groups, group = task % n_groups;
        const uint32_t end = (block + 1) * rows < n_rows ? (block + 1) * rows : n_rows;
        for (uint32_t row = block * rows; row < end;) {
            const uint32_t n = neighbours(w, o->q.picked, row, end, rows);
            attend(w, o, row, n, (bt_cpu_range){ group * each, (group + 1) * each });
            row += n;
        }
    }
}

static bt_cpu_split split_attention(const bt_op *op, const bt_cpu_splitting *how)
{
    /* By key heads no barrier is needed; if they do not come out even, by query heads. */
    return how->few && op->attention.n_kv_heads % how->n_threads == 0 ? BT_SPLIT_HEADS
                                                                      : BT_SPLIT_TASKS;
}

static void measure_attention(const bt_cpu_device *d, const bt_op *op, uint32_t n_rows,
                              bt_cpu_needs *needs)
{
    const bt_op_attention *o = &op->attention;
    const uint32_t k = o->q.cols / o->n_heads, v = o->y.cols / o->n_heads;
    (void)d;
    (void)n_rows;
    bt_device_cpu_need(&needs->attention_floats,
                       bt_cpu_attention_scratch(o->n_heads, k > v ? k : v, BT_CPU_PAGE_TOKENS_MAX));
}

const bt_cpu_op bt_device_cpu_op_attention = {
    .run = run_attention,
    .split = split_attention,
    .measure = measure_attention,
};
