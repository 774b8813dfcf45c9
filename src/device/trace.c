/* A device that times another: one op at a time, one JSON line per op, totals at the end. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/trace.h"
#include "device/wrapper.h"

enum { VALUES_SHOWN = 4 };

typedef struct { uint64_t count, ns; } total;

typedef struct {
    bt_device_wrapper wrapper;       /* first: bt_device * is cast to this */
    FILE        *file;               /* NULL: totals only */
    bt_digester *digester;           /* NULL: no values */
    uint64_t     n_steps;
    total        totals[BT_OP_COUNT];
} trace_device;

static trace_device *trace(bt_device *d) { return (trace_device *)(void *)d; }

/* JSON has no infinities. */
static void put_value(FILE *file, float v)
{
    if (isfinite(v)) {
        fprintf(file, "%.9g", (double)v);
    } else {
        fputs("null", file);
    }
}

static void put_rows(trace_device *d, bt_rows y, uint32_t n_rows)
{
    uint64_t stride;
    if (y.slot == 0 || n_rows == 0) {
        return;
    }
    const float *rows = d->wrapper.inner->ops->read_rows(d->wrapper.inner, y, &stride);
    char text[BT_DIGEST_TEXT_MAX];
    bt_digester_reset(d->digester);
    for (uint32_t r = 0; r < n_rows; r++) {
        bt_digester_put(d->digester, rows + r * stride, y.cols * sizeof *rows);
    }
    const bt_digest digest = bt_digester_value(d->digester);
    bt_digest_text(&digest, text);
    fprintf(d->file, ",\"digest\":\"%s\",\"values\":[", text);
    for (uint32_t c = 0; c < VALUES_SHOWN && c < y.cols; c++) {
        fputs(c ? "," : "", d->file);
        put_value(d->file, rows[(n_rows - 1) * stride + c]);
    }
    fputs("]", d->file);
}

static void put_line(trace_device *d, const bt_tape *t, const bt_step *s, uint32_t index,
                     uint64_t ns)
{
    const bt_op *op = bt_ops_tape_op(t, index);
    const bt_rows y = bt_ops_output(op);
    const uint32_t n_rows = y.picked ? s->n_logit_rows : s->n_rows;
    const uint32_t layer = bt_ops_tape_layer_of(t, index);
    fprintf(d->file, "{\"step\":%" PRIu64 ",\"op\":%u,\"name\":\"%s\"", d->n_steps, index,
            bt_ops_name(op->kind));
    if (layer != BT_TAPE_NO_LAYER) {
        fprintf(d->file, ",\"layer\":%u", layer);
    }
    fprintf(d->file, ",\"rows\":%u,\"cols\":%u,\"us\":%.2f", n_rows, y.cols, (double)ns / 1e3);
    if (d->digester) {
        put_rows(d, y, n_rows);
    }
    fputs("}\n", d->file);
}

static bt_status run(bt_device *base, const bt_tape *t, const bt_step *s, uint32_t op_first,
                     uint32_t op_last, bt_error *err)
{
    trace_device *d = trace(base);
    if (op_first == 0) {
        d->n_steps++;
    }
    for (uint32_t i = op_first; i < op_last; i++) {
        const uint64_t begin = bt_clock_ns();
        BT_TRY(d->wrapper.inner->ops->run(d->wrapper.inner, t, s, i, i + 1, err));
        BT_TRY(d->wrapper.inner->ops->wait(d->wrapper.inner, err));
        const uint64_t ns = bt_clock_ns() - begin;
        total *sum = &d->totals[bt_ops_tape_op(t, i)->kind];
        sum->count++;
        sum->ns += ns;
        if (d->file) {
            put_line(d, t, s, i, ns);
        }
    }
    return BT_OK;
}

static void put_totals(const trace_device *d)
{
    for (int kind = 0; kind < BT_OP_COUNT; kind++) {
        const total *sum = &d->totals[kind];
        if (sum->count == 0) {
            continue;
        }
        const char *name = bt_ops_name((bt_op_kind)kind);
        const double ms = (double)sum->ns / 1e6;
        if (d->file) {
            fprintf(d->file, "{\"total\":\"%s\",\"steps\":%" PRIu64 ",\"count\":%" PRIu64
                    ",\"ms\":%.3f}\n", name, d->n_steps, sum->count, ms);
        }
        bt_log(BT_LOG_DEBUG, "op_time", "op=%s count=%" PRIu64 " ms=%.3f", name, sum->count, ms);
    }
}

static void close_device(bt_device *base)
{
    trace_device *d = trace(base);
    put_totals(d);
    if (d->file && (ferror(d->file) | fclose(d->file)) != 0) {
        bt_log(BT_LOG_WARN, "trace_incomplete", "what=%s", "the file of op times");
    }
    bt_digester_destroy(d->digester);
    bt_device_close(d->wrapper.inner);
    bt_free(d);
}

static const bt_device_ops ops = {
    BT_DEVICE_WRAPPER_OPS,
    .name = "trace",
    .close = close_device,
    .run = run,
};

bt_status bt_device_trace_open(bt_device *inner, const bt_device_trace_options *o,
                               bt_device **ret_device, bt_error *err)
{
    trace_device *d = bt_alloc_zero(BT_MEM_scratch, 1, sizeof *d);
    if (!d || (o->values && bt_digester_create(&d->digester) != BT_OK)) {
        bt_free(d);
        return bt_fail_nomem(err, sizeof *d, "a tracing device");
    }
    if (o->path) {
        d->file = fopen(o->path, "w");
        if (!d->file) {
            bt_digester_destroy(d->digester);
            bt_free(d);
            return bt_fail(err, BT_E_IO, "cannot write op times to '%s': %s", o->path,
                           strerror(errno));
        }
    }
    d->wrapper = (bt_device_wrapper){ { &ops }, inner };
    *ret_device = &d->wrapper.base;
    return BT_OK;
}
