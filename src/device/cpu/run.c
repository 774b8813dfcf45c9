/* The walk: every thread goes through the stages of the list, meets the others where the plan says,
 * and does its piece. The step is looked over first, so that no thread can meet a token, a page or
 * a row that does not exist. */
#include <string.h>

#include "base/check.h"
#include "device/cpu/recurrent.h"

/* ---- looking a step over ---- */

static bt_status check_rows_of(const bt_cpu_plan *p, const bt_step *s, bt_error *err)
{
    if (s->n_rows == 0 || s->n_rows > p->n_rows_max || s->n_logit_rows > p->n_logit_rows_max) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: a step of %u rows (%u with logits), prepared "
                       "for 1 to %u (%u)", s->n_rows, s->n_logit_rows, p->n_rows_max,
                       p->n_logit_rows_max);
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->tokens[r] >= p->n_vocab) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: row %u has token %u, the model knows %u",
                           r, s->tokens[r], p->n_vocab);
        }
        if (s->row_sequence[r] >= s->n_sequences) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: row %u is of sequence %u of %u", r,
                           s->row_sequence[r], s->n_sequences);
        }
    }
    for (uint32_t i = 0; i < s->n_logit_rows; i++) {
        if (s->logit_rows[i] >= s->n_rows || (i > 0 && s->logit_rows[i] <= s->logit_rows[i - 1])) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: logits of row %u of %u are asked for",
                           s->logit_rows[i], s->n_rows);
        }
    }
    return BT_OK;
}

/* kv: NULL when the tape keeps no keys, so that pages do not matter. */
static bt_status check_sequence(const bt_step *s, uint32_t index, const bt_kv_layout *kv,
                                uint64_t n_pool_pages, bt_error *err)
{
    const bt_step_sequence *q = &s->sequences[index];
    if (q->n_rows == 0) {
        return BT_OK;
    }
    const uint64_t end = (uint64_t)q->position + q->n_rows;
    if (q->row_first >= s->n_rows || q->n_rows > s->n_rows - q->row_first ||
        end > BT_CONTEXT_MAX ||
        (kv && (end + kv->page_tokens - 1) / kv->page_tokens > q->n_pages)) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: sequence %u has rows %u..%u at position %u, "
                       "but %u rows and %u pages exist", index, q->row_first,
                       q->row_first + q->n_rows, q->position, s->n_rows, q->n_pages);
    }
    for (uint32_t r = 0; r < q->n_rows; r++) {
        if (s->positions[q->row_first + r] != q->position + r ||
            s->row_sequence[q->row_first + r] != index) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: row %u does not stand at position %u of "
                           "sequence %u", q->row_first + r, q->position + r, index);
        }
    }
    for (uint32_t i = 0; kv && i < q->n_pages; i++) {
        if (q->pages[i] >= n_pool_pages) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: page %u of sequence %u is %u of %llu", i,
                           index, q->pages[i], (unsigned long long)n_pool_pages);
        }
    }
    return BT_OK;
}

static bt_status check_layout(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                              bt_error *err)
{
    const bt_kv_layout *kv = s->kv;
    if (!kv || kv->buffer.id == 0 || kv->buffer.id > BT_CPU_BUFFERS_MAX ||
        !d->buffers[kv->buffer.id - 1].base || kv->page_bytes == 0 || kv->page_tokens == 0 ||
        kv->page_tokens > BT_CPU_PAGE_TOKENS_MAX || kv->n_layers < p->n_layers) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the step has no pages of keys and values "
                       "that fit this model");
    }
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const bt_kv_layer *l = &kv->layers[i];
        const uint64_t tokens = kv->page_tokens;
        if (p->k_dim[i] == 0) {
            continue;
        }
        if (l->k_dim != p->k_dim[i] || l->v_dim != p->v_dim[i] ||
            l->k_offset > kv->page_bytes || l->v_offset > kv->page_bytes ||
            l->k_row_bytes * tokens > kv->page_bytes - l->k_offset ||
            l->v_row_bytes * tokens > kv->page_bytes - l->v_offset) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: pages keep %u and %u values of layer %u, "
                           "the model has %u and %u", l->k_dim, l->v_dim, i, p->k_dim[i],
                           p->v_dim[i]);
        }
    }
    return BT_OK;
}

static bt_status check_step(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                            bt_error *err)
{
    BT_TRY(check_rows_of(p, s, err));
    if (p->n_layers == 0 && p->n_state_layers == 0) {
        return BT_OK;
    }
    const bt_kv_layout *kv = p->n_layers > 0 ? s->kv : NULL;
    if (p->n_layers > 0) {
        BT_TRY(check_layout(d, p, s, err));
    }
    const uint64_t n_pages = kv ? d->buffers[kv->buffer.id - 1].size / kv->page_bytes : 0;
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        BT_TRY(check_sequence(s, i, kv, n_pages, err));
        n_rows += s->sequences[i].n_rows;
    }
    if (n_rows != s->n_rows) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the sequences have %llu rows, the step %u",
                       (unsigned long long)n_rows, s->n_rows);
    }
    return bt_device_cpu_check_states(d, p, s, err);
}

/* ---- shares ---- */

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

uint32_t bt_device_cpu_task_next(const bt_cpu_worker *w, const bt_cpu_stage *s)
{
    /* Relaxed: the counter only deals out numbers; the meetings order the data. */
    return atomic_fetch_add_explicit(&w->walk->plan->next[s - w->walk->list->stages], 1,
                                     memory_order_relaxed);
}

/* ---- pointwise ops ---- */

static void run_embed(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_embed *o)
{
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_cpu_weight *table = bt_device_cpu_weight_of(w->walk->device, o->table);
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    for (uint32_t r = rows.first; r < rows.last; r++) {
        float *y = bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y);
        k->decode_row(table->type, table->rows, table->n_in, w->walk->step->tokens[r], y);
        if (o->scale != 1.0f) {
            k->scale(y, y, o->y.cols, o->scale);
        }
    }
}

static void run_rows(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_rows *o)
{
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    for (uint32_t r = rows.first; r < rows.last; r++) {
        memcpy(bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y),
               bt_device_cpu_rows(w, o->x) +
                       bt_device_cpu_step_row(w, true, r) * bt_device_cpu_stride(w, o->x),
               o->x.cols * sizeof(float));
    }
}

static void run_rmsnorm(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_rmsnorm *o)
{
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const float *weight = bt_device_cpu_weight_of(w->walk->device, o->w)->vector;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->y));
    float *temp = (float *)(void *)(w->own + w->walk->plan->temp_at);
    for (uint32_t r = rows.first; r < rows.last; r++) {
        const float *x = bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x);
        float *y = bt_device_cpu_rows(w, o->y) + r * bt_device_cpu_stride(w, o->y);
        k->rmsnorm(o->add ? temp : y, x, weight, o->x.cols, o->eps);
        if (o->add) {
            k->add(y, temp, o->x.cols);
        }
    }
}

static void run_head_norm(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_head_norm *o)
{
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const float *weight = bt_device_cpu_weight_of(w->walk->device, o->w)->vector;
    const uint32_t dim = o->x.cols / o->n_heads;
    const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, bt_device_cpu_row_count(w, o->x));
    bt_cpu_range heads = { 0, o->n_heads };
    if (s->split == BT_SPLIT_HEADS) {
        heads = bt_device_cpu_part(s->n_groups, w->index, w->n_threads);
        heads.first *= o->n_heads / s->n_groups;
        heads.last *= o->n_heads / s->n_groups;
    }
    for (uint32_t r = rows.first; r < rows.last; r++) {
        float *x = bt_device_cpu_rows(w, o->x) + r * bt_device_cpu_stride(w, o->x);
        for (uint32_t h = heads.first; h < heads.last; h++) {
            k->rmsnorm(x + h * dim, x + h * dim, weight, dim, o->eps);
        }
    }
}

/* Columns [first, first + n) of one row, for the ops that work value by value. */
static void run_cells(const bt_cpu_worker *w, const bt_op *op, uint32_t row, uint32_t first,
                      uint32_t n)
{
    const bt_cpu_kernels *k = w->walk->device->kernels;
    const bt_rows out = bt_ops_output(op);
    float *y = bt_device_cpu_rows(w, out) + row * bt_device_cpu_stride(w, out) + first;
    bt_rows in[BT_OP_INPUTS_MAX];
    bt_ops_inputs(op, in);
    const float *x = bt_device_cpu_rows(w, in[0]) + row * bt_device_cpu_stride(w, in[0]) + first;
    switch (op->kind) {
    case BT_OP_add:
        k->add(y, x, n);
        break;
    case BT_OP_scale:
        k->scale(y, y, n, op->scale.by);
        break;
    case BT_OP_softcap:
        k->softcap(y, n, op->softcap.cap);
        break;
    default:
        BT_ASSERT(op->kind == BT_OP_glu);
        k->glu(y, x, bt_device_cpu_rows(w, in[1]) + row * bt_device_cpu_stride(w, in[1]) + first, n,
               op->glu.act);
        break;
    }
}

static void run_pointwise(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    enum { BLOCK = 1024 };               /* columns; a multiple of every vector width */
    const bt_rows y = bt_ops_output(op);
    const uint32_t n_rows = bt_device_cpu_row_count(w, y);
    if (s->split != BT_SPLIT_CELLS) {
        const bt_cpu_range rows = bt_device_cpu_my_rows(w, s, n_rows);
        for (uint32_t r = rows.first; r < rows.last; r++) {
            run_cells(w, op, r, 0, y.cols);
        }
        return;
    }
    const uint32_t n_blocks = (y.cols + BLOCK - 1) / BLOCK;
    const bt_cpu_range blocks = bt_device_cpu_part(n_rows * n_blocks, w->index, w->n_threads);
    for (uint32_t i = blocks.first; i < blocks.last; i++) {
        const uint32_t first = i % n_blocks * BLOCK;
        run_cells(w, op, i / n_blocks, first, y.cols - first < BLOCK ? y.cols - first : BLOCK);
    }
}

static void run_mark(const bt_cpu_worker *w, const bt_op_mark *o)
{
    const bt_step *s = w->walk->step;
    if (w->index == 0 && s->on_mark) {
        s->on_mark(s->mark_context, o->layer);
    }
}

/* ---- the walk ---- */

static void run_op(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op *op)
{
    switch (op->kind) {
    case BT_OP_embed:     run_embed(w, s, &op->embed); break;
    case BT_OP_rows:      run_rows(w, s, &op->rows); break;
    case BT_OP_rmsnorm:   run_rmsnorm(w, s, &op->rmsnorm); break;
    case BT_OP_head_norm: run_head_norm(w, s, &op->head_norm); break;
    case BT_OP_linear:    bt_device_cpu_run_linear(w, s, &op->linear); break;
    case BT_OP_rope:      bt_device_cpu_run_rope(w, s, &op->rope); break;
    case BT_OP_kv_put:    bt_device_cpu_run_kv_put(w, s, &op->kv_put); break;
    case BT_OP_attention: bt_device_cpu_run_attention(w, s, &op->attention); break;
    case BT_OP_add:
    case BT_OP_scale:
    case BT_OP_glu:
    case BT_OP_softcap:   run_pointwise(w, s, op); break;
    case BT_OP_mark:      run_mark(w, &op->mark); break;
    case BT_OP_mul:       bt_device_cpu_run_mul(w, s, &op->mul); break;
    case BT_OP_short_conv: bt_device_cpu_run_short_conv(w, s, &op->short_conv); break;
    case BT_OP_delta_scan: bt_device_cpu_run_delta_scan(w, s, &op->delta_scan); break;
    case BT_OP_route:     bt_device_cpu_run_route(w, s, &op->route); break;
    case BT_OP_expert_linear: bt_device_cpu_run_expert_linear(w, s, &op->expert_linear); break;
    case BT_OP_combine:   bt_device_cpu_run_combine(w, s, &op->combine); break;
    case BT_OP_COUNT:     break;
    }
}

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
        if (s->meet && i != first && n_threads > 1) {
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
            run_op(&w, s, op);
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
    BT_TRY(check_step(d, p, s, err));
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
