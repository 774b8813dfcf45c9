/* The CPU device: buffers, weights and plans; cpu_run.c walks them. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/cpu/private.h"

enum { WEIGHTS_MAX = 1 << 20, THREADS_MAX = 1024 };

static bt_cpu_device *cpu(bt_device *d) { return (bt_cpu_device *)(void *)d; }
static const bt_cpu_device *cpu_of(const bt_device *d)
{
    return (const bt_cpu_device *)(const void *)d;
}

/* ---- buffers ---- */

static bt_status buffer_alloc(bt_device *base, uint64_t size_bytes, bt_buffer *ret, bt_error *err)
{
    bt_cpu_device *d = cpu(base);
    for (uint32_t i = 0; i < BT_CPU_BUFFERS_MAX; i++) {
        if (!d->buffers[i].base) {
            BT_TRY(bt_device_cpu_region_map(&d->buffers[i], size_bytes, "a buffer", err));
            ret->id = i + 1;
            return BT_OK;
        }
    }
    return bt_fail(err, BT_E_FULL, "cpu device: more than %d buffers", BT_CPU_BUFFERS_MAX);
}

static bt_cpu_region *buffer_of(bt_cpu_device *d, bt_buffer b)
{
    BT_ASSERT(b.id >= 1 && b.id <= BT_CPU_BUFFERS_MAX && d->buffers[b.id - 1].base);
    return &d->buffers[b.id - 1];
}

static void buffer_free(bt_device *base, bt_buffer b)
{
    bt_device_cpu_region_unmap(buffer_of(cpu(base), b));
}

static uint8_t *bytes_at(const bt_device *base, bt_buffer b, uint64_t at, uint64_t size)
{
    const bt_cpu_device *d = cpu_of(base);
    BT_ASSERT(b.id >= 1 && b.id <= BT_CPU_BUFFERS_MAX && d->buffers[b.id - 1].base);
    const bt_cpu_region *r = &d->buffers[b.id - 1];
    BT_ASSERT(size <= r->size && at <= r->size - size);
    return (uint8_t *)r->base + at;
}

static void buffer_read(const bt_device *d, bt_buffer b, uint64_t at, void *to, uint64_t size)
{
    memcpy(to, bytes_at(d, b, at, size), size);
}

static void buffer_write(bt_device *d, bt_buffer b, uint64_t at, const void *from, uint64_t size)
{
    memcpy(bytes_at(d, b, at, size), from, size);
}

static void buffer_copy(bt_device *d, bt_buffer b, uint64_t to, uint64_t from, uint64_t size)
{
    memcpy(bytes_at(d, b, to, size), bytes_at(d, b, from, size), size);
}

static void buffer_fill(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte, uint64_t size)
{
    memset(bytes_at(d, b, at, size), byte, size);
}

/* ---- weights ---- */

static bt_status has_room(bt_cpu_device *d, bt_error *err)
{
    if (d->n_weights < d->weights_capacity) {
        return BT_OK;
    }
    if (d->n_weights == WEIGHTS_MAX) {
        return bt_fail(err, BT_E_FULL, "cpu device: more than %d weights", WEIGHTS_MAX);
    }
    const uint32_t capacity = d->weights_capacity ? d->weights_capacity * 2 : 64;
    bt_cpu_weight *weights = bt_realloc(BT_MEM_weights, d->weights, capacity * sizeof *weights);
    if (!weights) {
        return bt_fail_nomem(err, capacity * sizeof *weights, "the table of weights");
    }
    d->weights = weights;
    d->weights_capacity = capacity;
    return BT_OK;
}

static bt_status weight_load(bt_device *base, const bt_weight_source *s, bt_weight *ret,
                             bt_error *err)
{
    bt_cpu_device *d = cpu(base);
    bt_cpu_weight w;
    BT_TRY(has_room(d, err));
    BT_TRY(bt_device_cpu_weight_make(d, s, &w, err));
    d->weights[d->n_weights++] = w;
    ret->id = d->n_weights;
    return BT_OK;
}

static bt_status weight_shape(const bt_device *base, bt_weight w, bt_weight_shape *ret)
{
    const bt_cpu_device *d = cpu_of(base);
    if (w.id == 0 || w.id > d->n_weights) {
        return BT_E_NOTFOUND;
    }
    const bt_cpu_weight *x = bt_device_cpu_weight_of(d, w);
    *ret = (bt_weight_shape){
        .n_in = x->n_in, .n_out = x->n_out, .n_slices = x->n_slices, .type = x->type,
        .mapped = x->mapped
    };
    return BT_OK;
}

/* ---- plans and scratch ---- */

static bt_cpu_plan *find_plan(const bt_cpu_device *d, const bt_tape *t)
{
    for (uint32_t i = 0; i < d->n_plans; i++) {
        if (d->plans[i]->tape_id == bt_ops_tape_id(t)) {
            return d->plans[i];
        }
    }
    return NULL;
}

static void forget_oldest_plan(bt_cpu_device *d)
{
    if (d->last_plan == d->plans[0]) {
        d->last_plan = NULL;
    }
    bt_device_cpu_plan_destroy(d->plans[0]);
    d->n_plans--;
    memmove(d->plans, d->plans + 1, d->n_plans * sizeof d->plans[0]);
}

static bt_status grow_region(bt_cpu_region *r, uint64_t size, bt_error *err)
{
    bt_cpu_region larger;
    if (size <= r->size) {
        return BT_OK;
    }
    BT_TRY(bt_device_cpu_region_map(&larger, size, "scratch", err));
    bt_device_cpu_region_unmap(r);
    *r = larger;
    return BT_OK;
}

static bt_status grow_scratch(bt_cpu_device *d, const bt_cpu_plan *p, bt_error *err)
{
    /* A page between the threads' parts keeps the prefetcher of one out of the other's. */
    const uint64_t stride = (p->own_bytes + 4096 + 4095) & ~(uint64_t)4095;
    const uint64_t own_stride = stride > d->own_stride ? stride : d->own_stride;
    BT_TRY(grow_region(&d->shared, p->shared_bytes, err));
    BT_TRY(grow_region(&d->own, own_stride * bt_team_size(d->team), err));
    d->own_stride = own_stride;
    return BT_OK;
}

static bt_status prepare(bt_device *base, const bt_tape *t, uint32_t n_rows, uint32_t n_logit_rows,
                         bt_error *err)
{
    bt_cpu_device *d = cpu(base);
    bt_cpu_plan *p = find_plan(d, t);
    if (p && n_rows <= p->n_rows_max && n_logit_rows <= p->n_logit_rows_max) {
        return BT_OK;
    }
    bt_cpu_plan *made = NULL;
    if (!p) {
        BT_TRY(bt_device_cpu_plan_create(d, t, &made, err));
        p = made;
    }
    n_rows = n_rows > p->n_rows_max ? n_rows : p->n_rows_max;
    n_logit_rows = n_logit_rows > p->n_logit_rows_max ? n_logit_rows : p->n_logit_rows_max;
    bt_status status = bt_device_cpu_plan_size(d, p, n_rows, n_logit_rows, err);
    if (status == BT_OK) {
        status = grow_scratch(d, p, err);
    }
    if (status != BT_OK) {
        p->n_rows_max = p->n_logit_rows_max = 0;     /* run() refuses until prepared again */
        bt_device_cpu_plan_destroy(made);
        return status;
    }
    if (made) {
        if (d->n_plans == BT_CPU_PLANS_MAX) {
            forget_oldest_plan(d);
        }
        d->plans[d->n_plans++] = made;
    }
    return BT_OK;
}

/* ---- running ---- */

static bt_status run(bt_device *base, const bt_tape *t, const bt_step *s, uint32_t op_first,
                     uint32_t op_last, bt_error *err)
{
    bt_cpu_device *d = cpu(base);
    const bt_cpu_plan *p = find_plan(d, t);
    if (!p) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the tape was not prepared");
    }
    return bt_device_cpu_run(d, p, s, op_first, op_last, err);
}

static bt_status wait_done(bt_device *base, bt_error *err)
{
    (void)base;
    (void)err;
    return BT_OK;                        /* run() returns when all threads have */
}

/* Rows as the last run left them; of rows that each thread has, those of thread 0. */
static float *rows_at(const bt_cpu_device *d, bt_rows rows)
{
    const bt_cpu_plan *p = d->last_plan;
    BT_ASSERT(p && rows.slot <= bt_ops_tape_slots(p->tape));
    char *base = d->last_few && p->few.own[rows.slot]
                 ? (char *)d->own.base + p->few.own_at[rows.slot]
                 : (char *)d->shared.base + p->slot_at[rows.slot];
    return (float *)(void *)base + rows.column;
}

static const float *read_rows(bt_device *base, bt_rows rows, uint64_t *ret_stride)
{
    const bt_cpu_device *d = cpu(base);
    const float *at = rows_at(d, rows);
    *ret_stride = d->last_plan->slot_stride[rows.slot];
    return at;
}

static void write_rows(bt_device *base, bt_rows rows, uint32_t n, const float *from,
                       uint64_t stride)
{
    const bt_cpu_device *d = cpu(base);
    const bt_cpu_plan *p = d->last_plan;
    float *to = rows_at(d, rows);
    const bool own = d->last_few && p->few.own[rows.slot];
    for (uint32_t copy = 0; copy < (own ? bt_team_size(d->team) : 1); copy++) {
        for (uint32_t r = 0; r < n; r++) {
            memcpy(to + (size_t)r * p->slot_stride[rows.slot], from + r * stride,
                   rows.cols * sizeof *to);
        }
        to += d->own_stride / sizeof *to;
    }
}

/* ---- life ---- */

static void close_device(bt_device *base)
{
    bt_cpu_device *d = cpu(base);
    for (uint32_t i = 0; i < d->n_plans; i++) {
        bt_device_cpu_plan_destroy(d->plans[i]);
    }
    for (uint32_t i = 0; i < d->n_weights; i++) {
        bt_free_aligned(d->weights[i].vector);
    }
    for (uint32_t i = 0; i < BT_CPU_BUFFERS_MAX; i++) {
        bt_device_cpu_region_unmap(&d->buffers[i]);
    }
    bt_device_cpu_region_unmap(&d->shared);
    bt_device_cpu_region_unmap(&d->own);
    bt_device_cpu_store_done(&d->store);
    bt_team_destroy(d->team);
    bt_free(d->weights);
    bt_free(d);
}

static const bt_device_ops ops = {
    .name = "cpu",
    .close = close_device,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_read = buffer_read,
    .buffer_write = buffer_write,
    .buffer_copy = buffer_copy,
    .buffer_fill = buffer_fill,
    .weight_load = weight_load,
    .weight_shape = weight_shape,
    .prepare = prepare,
    .run = run,
    .wait = wait_done,
    .read_rows = read_rows,
    .write_rows = write_rows,
};

bt_status bt_device_cpu_open(const bt_device_cpu_options *o, bt_device **ret_device, bt_error *err)
{
    const bt_cpu_kernels *kernels = bt_cpu_kernels_get(o->isa);
    if (!kernels) {
        return bt_fail(err, BT_E_UNSUPPORTED, "this machine does not support isa '%s'; the best it "
                       "has is '%s'", bt_cpu_isa_name(o->isa),
                       bt_cpu_isa_name(bt_cpu_isa_detect()));
    }
    if (o->n_threads > THREADS_MAX || o->n_threads_batch > THREADS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "%u and %u threads asked for, at most %d are supported",
                       o->n_threads, o->n_threads_batch, THREADS_MAX);
    }
    bt_cpu_device *d = bt_alloc_zero(BT_MEM_scratch, 1, sizeof *d);
    if (!d) {
        return bt_fail_nomem(err, sizeof *d, "the cpu device");
    }
    d->base.ops = &ops;
    d->kernels = kernels;
    d->n_threads = o->n_threads ? o->n_threads : bt_cpu_count();
    d->n_threads_batch = o->n_threads_batch ? o->n_threads_batch : d->n_threads;
    d->repack = !o->no_repack;
    const uint32_t most = d->n_threads > d->n_threads_batch ? d->n_threads : d->n_threads_batch;
    const bt_status status = bt_team_create(most, &d->team, err);
    if (status != BT_OK) {
        bt_free(d);
        return status;
    }
    *ret_device = &d->base;
    return BT_OK;
}
