/* A device that doubts another: every op runs on both, the reference always on the device's own
 * inputs, so that what differs is the fault of that op alone and small differences do not pile up.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/check.h"
#include "ops/info.h"

enum { BUFFERS_MAX = 64, ROW_VALUES_MAX = 65536,
       RAW_BYTES = ROW_VALUES_MAX * 4 };

typedef struct {
    bt_device  base;                 /* first: bt_device * is cast to this */
    bt_device *device, *reference;
    double     nmse_max;
    bt_buffer  device_buffer[BUFFERS_MAX], reference_buffer[BUFFERS_MAX];   /* number id - 1 */
    float     *row_a, *row_b;        /* [ROW_VALUES_MAX] decoded K or V */
    void      *raw;                  /* [RAW_BYTES] of either device */
} check_device;

static check_device *checker(bt_device *d) { return (check_device *)(void *)d; }

/* ---- one op on both ---- */

typedef struct {
    check_device  *d;
    const bt_tape *tape;
    uint32_t       index;
    const bt_step *device_step, *reference_step;
} doubt;

static uint32_t row_count(const doubt *q, bt_rows r)
{
    return r.picked ? q->device_step->n_logit_rows : q->device_step->n_rows;
}

static void give_inputs(const doubt *q, const bt_op *op)
{
    bt_rows x[BT_OP_INPUTS_MAX];
    const uint32_t n = bt_ops_inputs(op, x);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t stride;
        const float *from = q->d->device->ops->read_rows(q->d->device, x[i], &stride);
        q->d->reference->ops->write_rows(q->d->reference, x[i], row_count(q, x[i]), from, stride);
    }
}

/* Bytes of one of the device's buffers, to where the reference has them. */
static void give_bytes(const doubt *q, bt_buffer device_buffer, bt_buffer reference_buffer,
                       uint64_t at, uint64_t size)
{
    const check_device *d = q->d;
    while (size > 0) {
        const uint64_t n = size < RAW_BYTES ? size : RAW_BYTES;
        d->device->ops->buffer_read(d->device, device_buffer, at, d->raw, n);
        d->reference->ops->buffer_write(d->reference, reference_buffer, at, d->raw, n);
        at += n;
        size -= n;
    }
}

/* Rows may have come from outside (a worker, a prefix), so all that attention sees is copied. */
static void give_pages(const doubt *q, uint32_t layer)
{
    const bt_kv_layout *kv = q->device_step->kv;
    const bt_kv_layer *l = &kv->layers[layer];
    const bt_buffer to = q->reference_step->kv->buffer;
    for (uint32_t i = 0; i < q->device_step->n_sequences; i++) {
        const bt_step_sequence *seq = &q->device_step->sequences[i];
        for (uint32_t p = 0; p < seq->n_pages; p++) {
            const uint64_t page = seq->pages[p] * kv->page_bytes;
            give_bytes(q, kv->buffer, to, page + l->k_offset, l->k_row_bytes * kv->page_tokens);
            give_bytes(q, kv->buffer, to, page + l->v_offset, l->v_row_bytes * kv->page_tokens);
        }
    }
}

/* The layer's state as the device has it, which its reference has to start from. */
static void give_states(const doubt *q, uint32_t layer)
{
    const bt_state_layout *s = q->device_step->state;
    const bt_state_layer *l = &s->layers[layer];
    for (uint32_t i = 0; i < q->device_step->n_sequences; i++) {
        const uint64_t at = q->device_step->sequences[i].state_slot * s->slot_bytes;
        for (uint32_t j = 0; j < l->n_tensors; j++) {
            give_bytes(q, s->buffer, q->reference_step->state->buffer, at + l->tensors[j].offset,
                       bt_ops_state_tensor_bytes(&l->tensors[j]));
        }
    }
}

/* Values of `a` against those of the reference `b`. */
static bt_status compare(const doubt *q, const char *what, uint32_t row, const float *a,
                         const float *b, uint32_t n, bt_error *err)
{
    double error = 0.0, power = 0.0, worst = -1.0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double difference = (double)a[i] - (double)b[i];
        const double size = isfinite(a[i]) ? fabs(difference) : (double)INFINITY;
        error += size * size;
        power += (double)b[i] * (double)b[i];
        if (size > worst) {
            worst = size;
            at = i;
        }
    }
    const double nmse = error == 0.0 ? 0.0 : error / power;
    if (nmse <= q->d->nmse_max) {
        return BT_OK;
    }
    const uint32_t layer = bt_ops_tape_layer_of(q->tape, q->index);
    const bt_op *op = bt_ops_tape_op(q->tape, q->index);
    char where[24] = "no layer";
    if (layer != BT_TAPE_NO_LAYER) {
        snprintf(where, sizeof where, "layer %u", layer);
    }
    return bt_fail(err, BT_E_DEVICE, "check: %s, op %u (%s), row %u of %s: nmse %.3g against the "
                   "reference, at most %.3g; column %u is %.9g, should be %.9g", where, q->index,
                   bt_ops_name(op->kind), row, what, nmse, q->d->nmse_max, at, (double)a[at],
                   (double)b[at]);
}

static bt_status compare_rows(const doubt *q, bt_rows y, bt_error *err)
{
    uint64_t stride_a, stride_b;
    const float *a = q->d->device->ops->read_rows(q->d->device, y, &stride_a);
    const float *b = q->d->reference->ops->read_rows(q->d->reference, y, &stride_b);
    for (uint32_t r = 0; r < row_count(q, y); r++) {
        BT_TRY(compare(q, "y", r, a + r * stride_a, b + r * stride_b, y.cols, err));
    }
    return BT_OK;
}

static bt_status compare_stored(const doubt *q, uint32_t row, const char *what, bt_type type,
                                uint32_t n, uint64_t offset, uint64_t size, bt_error *err)
{
    const check_device *d = q->d;
    BT_ASSERT(size <= RAW_BYTES);
    d->device->ops->buffer_read(d->device, q->device_step->kv->buffer, offset, d->raw, size);
    BT_TRY(bt_quant_type_decode(type, d->raw, d->row_a, n));
    d->reference->ops->buffer_read(d->reference, q->reference_step->kv->buffer, offset, d->raw,
                                   size);
    BT_TRY(bt_quant_type_decode(type, d->raw, d->row_b, n));
    return compare(q, what, row, d->row_a, d->row_b, n, err);
}

static bt_status compare_kv(const doubt *q, uint32_t layer, bt_error *err)
{
    const bt_step *s = q->device_step;
    const bt_kv_layout *kv = s->kv;
    const bt_kv_layer *l = &kv->layers[layer];
    if (l->k_dim > ROW_VALUES_MAX || l->v_dim > ROW_VALUES_MAX) {
        return bt_fail(err, BT_E_UNSUPPORTED, "check: rows of %u and %u values", l->k_dim,
                       l->v_dim);
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        const uint32_t position = s->positions[r];
        const uint32_t *pages = s->sequences[s->row_sequence[r]].pages;
        const uint64_t page = pages[position / kv->page_tokens] * kv->page_bytes;
        const uint64_t slot = position % kv->page_tokens;
        BT_TRY(compare_stored(q, r, "k", kv->type_k, l->k_dim,
                              page + l->k_offset + slot * l->k_row_bytes, l->k_row_bytes, err));
        BT_TRY(compare_stored(q, r, "v", kv->type_v, l->v_dim,
                              page + l->v_offset + slot * l->v_row_bytes, l->v_row_bytes, err));
    }
    return BT_OK;
}

static bt_status run_one(bt_device *d, const doubt *q, const bt_step *s, bt_error *err)
{
    BT_TRY(d->ops->run(d, q->tape, s, q->index, q->index + 1, err));
    return d->ops->wait(d, err);
}

static bt_status run_both(const doubt *q, bt_error *err)
{
    const bt_op *op = bt_ops_tape_op(q->tape, q->index);
    give_inputs(q, op);
    const bt_op_memory memory = bt_ops_info(op->kind)->memory;
    if (memory == BT_OP_READS_KV) {
        give_pages(q, bt_ops_layer(op));
    } else if (q->device_step->state && memory == BT_OP_MOVES_STATE) {
        give_states(q, bt_ops_layer(op));
    }
    BT_TRY(run_one(q->d->device, q, q->device_step, err));
    BT_TRY(run_one(q->d->reference, q, q->reference_step, err));
    if (memory == BT_OP_WRITES_KV) {
        return compare_kv(q, bt_ops_layer(op), err);
    }
    const bt_rows y = bt_ops_output(op);
    return y.slot != 0 ? compare_rows(q, y, err) : BT_OK;
}

static bt_status run(bt_device *base, const bt_tape *t, const bt_step *s, uint32_t op_first,
                     uint32_t op_last, bt_error *err)
{
    check_device *d = checker(base);
    bt_step on_device = *s, on_reference = *s;
    bt_kv_layout device_kv, reference_kv;
    if (s->kv) {
        BT_ASSERT(s->kv->buffer.id >= 1 && s->kv->buffer.id <= BUFFERS_MAX);
        device_kv = reference_kv = *s->kv;
        device_kv.buffer = d->device_buffer[s->kv->buffer.id - 1];
        reference_kv.buffer = d->reference_buffer[s->kv->buffer.id - 1];
        on_device.kv = &device_kv;
        on_reference.kv = &reference_kv;
    }
    bt_state_layout device_state, reference_state;
    if (s->state) {
        BT_ASSERT(s->state->buffer.id >= 1 && s->state->buffer.id <= BUFFERS_MAX);
        device_state = reference_state = *s->state;
        device_state.buffer = d->device_buffer[s->state->buffer.id - 1];
        reference_state.buffer = d->reference_buffer[s->state->buffer.id - 1];
        on_device.state = &device_state;
        on_reference.state = &reference_state;
    }
    on_reference.on_mark = NULL;
    for (uint32_t i = op_first; i < op_last; i++) {
        BT_TRY(run_both(&(doubt){ .d = d, .tape = t, .index = i, .device_step = &on_device,
                                  .reference_step = &on_reference }, err));
    }
    return BT_OK;
}

static bt_status wait_done(bt_device *base, bt_error *err)
{
    (void)base;
    (void)err;
    return BT_OK;                        /* run() waits after every op */
}

/* ---- memory: everything twice ---- */

static bt_status buffer_alloc(bt_device *base, uint64_t size_bytes, bt_buffer *ret, bt_error *err)
{
    check_device *d = checker(base);
    uint32_t i = 0;
    while (i < BUFFERS_MAX && d->device_buffer[i].id != 0) {
        i++;
    }
    if (i == BUFFERS_MAX) {
        return bt_fail(err, BT_E_FULL, "check: more than %d buffers", BUFFERS_MAX);
    }
    bt_buffer a, b;
    BT_TRY(d->device->ops->buffer_alloc(d->device, size_bytes, &a, err));
    const bt_status status = d->reference->ops->buffer_alloc(d->reference, size_bytes, &b, err);
    if (status != BT_OK) {
        d->device->ops->buffer_free(d->device, a);
        return status;
    }
    d->device_buffer[i] = a;
    d->reference_buffer[i] = b;
    ret->id = i + 1;
    return BT_OK;
}

static void buffer_free(bt_device *base, bt_buffer b)
{
    check_device *d = checker(base);
    BT_ASSERT(b.id >= 1 && b.id <= BUFFERS_MAX && d->device_buffer[b.id - 1].id != 0);
    d->device->ops->buffer_free(d->device, d->device_buffer[b.id - 1]);
    d->reference->ops->buffer_free(d->reference, d->reference_buffer[b.id - 1]);
    d->device_buffer[b.id - 1] = d->reference_buffer[b.id - 1] = (bt_buffer){ 0 };
}

/* What the host reads and writes is the device's; the reference gets it before it needs it. */
static bt_buffer device_buffer(const check_device *d, bt_buffer b)
{
    BT_ASSERT(b.id >= 1 && b.id <= BUFFERS_MAX && d->device_buffer[b.id - 1].id != 0);
    return d->device_buffer[b.id - 1];
}

static void buffer_read(const bt_device *base, bt_buffer b, uint64_t at, void *to, uint64_t size)
{
    const check_device *d = (const check_device *)(const void *)base;
    d->device->ops->buffer_read(d->device, device_buffer(d, b), at, to, size);
}

static void buffer_write(bt_device *base, bt_buffer b, uint64_t at, const void *from, uint64_t size)
{
    const check_device *d = checker(base);
    d->device->ops->buffer_write(d->device, device_buffer(d, b), at, from, size);
}

static void buffer_copy(bt_device *base, bt_buffer b, uint64_t to, uint64_t from, uint64_t size)
{
    const check_device *d = checker(base);
    d->device->ops->buffer_copy(d->device, device_buffer(d, b), to, from, size);
}

static void buffer_fill(bt_device *base, bt_buffer b, uint64_t at, uint8_t byte, uint64_t size)
{
    const check_device *d = checker(base);
    d->device->ops->buffer_fill(d->device, device_buffer(d, b), at, byte, size);
}

static bt_status weight_load(bt_device *base, const bt_weight_source *s, bt_weight *ret,
                             bt_error *err)
{
    check_device *d = checker(base);
    bt_weight a, b;
    BT_TRY(d->device->ops->weight_load(d->device, s, &a, err));
    BT_TRY(d->reference->ops->weight_load(d->reference, s, &b, err));
    /* A tape names weights for both, so both must number them alike. */
    if (a.id != b.id) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "check: tensor '%s' is weight %u on one device and %u "
                       "on the other",
                       s->name, a.id, b.id);
    }
    *ret = a;
    return BT_OK;
}

static bt_status weight_shape(const bt_device *base, bt_weight w, bt_weight_shape *ret)
{
    const check_device *d = (const check_device *)(const void *)base;
    bt_weight_shape on_reference;
    BT_TRY(d->device->ops->weight_shape(d->device, w, ret));
    BT_TRY(d->reference->ops->weight_shape(d->reference, w, &on_reference));
    ret->mapped = ret->mapped || on_reference.mapped;
    return BT_OK;
}

static bt_status prepare(bt_device *base, const bt_tape *t, uint32_t n_rows, uint32_t n_logit_rows,
                         bt_error *err)
{
    check_device *d = checker(base);
    BT_TRY(d->device->ops->prepare(d->device, t, n_rows, n_logit_rows, err));
    return d->reference->ops->prepare(d->reference, t, n_rows, n_logit_rows, err);
}

static const float *read_rows(bt_device *base, bt_rows rows, uint64_t *ret_stride)
{
    return checker(base)->device->ops->read_rows(checker(base)->device, rows, ret_stride);
}

static void write_rows(bt_device *base, bt_rows rows, uint32_t n, const float *from,
                       uint64_t stride)
{
    checker(base)->device->ops->write_rows(checker(base)->device, rows, n, from, stride);
}

static void close_device(bt_device *base)
{
    check_device *d = checker(base);
    bt_device_close(d->device);
    bt_device_close(d->reference);
    bt_free(d->row_a);
    bt_free(d);
}

static const bt_device_ops ops = {
    .name = "check",
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

bt_status bt_device_check_open(bt_device *device, bt_device *reference, double nmse_max,
                               bt_device **ret_device, bt_error *err)
{
    if (!reference->ops->write_rows || !device->ops->read_rows) {
        return bt_fail(err, BT_E_UNSUPPORTED, "'%s' cannot be a reference: its scratch cannot be "
                       "written", reference->ops->name);
    }
    check_device *d = bt_alloc_zero(BT_MEM_scratch, 1, sizeof *d);
    float *rows = bt_alloc(BT_MEM_scratch, 3 * ROW_VALUES_MAX * sizeof *rows);
    if (!d || !rows) {
        bt_free(d);
        bt_free(rows);
        return bt_fail_nomem(err, sizeof *d + 3 * ROW_VALUES_MAX * sizeof *rows,
                             "a checking device");
    }
    *d = (check_device){ .base = { &ops }, .device = device, .reference = reference,
                         .nmse_max = nmse_max, .row_a = rows, .row_b = rows + ROW_VALUES_MAX,
                         .raw = rows + 2 * ROW_VALUES_MAX };
    *ret_device = &d->base;
    return BT_OK;
}
