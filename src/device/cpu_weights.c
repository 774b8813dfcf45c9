/* Weights of the CPU device: from rows of a file to matrices, slices of them, vectors and taps. */
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/cpu_private.h"

/* ---- what is asked for ---- */

/* One slice as a run of rows, or as several that must be gathered first. */
typedef struct {
    const bt_weight_source *source;
    uint64_t row_bytes;
    uint32_t n_slices, run, step;    /* rows; run divides n_out */
} cut;

static uint32_t runs_of(const cut *c)
{
    return c->source->n_out / c->run;
}

/* The file's row of row `row` of slice `slice`. */
static uint64_t file_row(const cut *c, uint32_t slice, uint32_t row)
{
    const uint64_t run = (uint64_t)slice * runs_of(c) + row / c->run;
    return c->source->row_first + run * c->step + row % c->run;
}

static bt_status bad_size(const bt_weight_source *s, const char *type, bt_error *err)
{
    return bt_fail(err, BT_E_BADFILE, "tensor '%s': %u x %u x %u values of type %s are not %zu bytes",
                   s->name, s->n_in, s->n_out, s->n_slices ? s->n_slices : 1, type, s->size_bytes);
}

static bt_status check_source(const bt_weight_source *s, cut *ret, bt_error *err)
{
    const bt_type_info *type = bt_type_find((uint32_t)s->type);
    const bool all = s->row_run == 0;
    cut c = { .source = s, .n_slices = s->n_slices ? s->n_slices : 1,
              .run = all ? s->n_out : s->row_run, .step = all ? s->n_out : s->row_step };
    size_t size = 0;
    if (!type || !type->can_decode) {
        return bt_fail(err, BT_E_UNSUPPORTED, "tensor '%s' is of type %s, which cannot be read",
                       s->name, type ? type->name : "unknown");
    }
    if (s->n_in == 0 || s->n_out == 0 || !bt_type_row_bytes(type, s->n_in, &c.row_bytes)) {
        return bad_size(s, type->name, err);
    }
    if (s->n_out % c.run != 0 || c.step < c.run || (uint64_t)s->n_out * c.n_slices > UINT32_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "tensor '%s': %u x %u rows cannot be taken in runs of %u, "
                       "%u apart", s->name, s->n_out, c.n_slices, c.run, c.step);
    }
    const uint64_t n_rows = file_row(&c, c.n_slices - 1, s->n_out - 1) + 1;
    if (n_rows > SIZE_MAX || !bt_size_mul((size_t)c.row_bytes, (size_t)n_rows, &size) ||
        (all ? size != s->size_bytes : size > s->size_bytes)) {
        return bad_size(s, type->name, err);
    }
    *ret = c;
    return BT_OK;
}

/* ---- vectors and taps ---- */

static bt_status no_memory(const bt_weight_source *s, bt_error *err)
{
    return bt_fail(err, BT_E_NOMEM, "no memory for tensor '%s'", s->name);
}

static bt_status load_vector(bt_cpu_weight *w, const bt_weight_source *s, bt_error *err)
{
    w->kind = BT_CPU_VECTOR;
    w->vector = bt_alloc_aligned(BT_MEM_weights, 64, s->n_in * sizeof(float));
    if (!w->vector) {
        return no_memory(s, err);
    }
    if (bt_type_decode(s->type, s->rows, w->vector, s->n_in) != BT_OK) {
        bt_free_aligned(w->vector);
        return bt_fail(err, BT_E_UNSUPPORTED, "tensor '%s' cannot be decoded", s->name);
    }
    return BT_OK;
}

/* Turned over: all columns of the oldest tap first, since a row's columns are worked on together. */
static bt_status load_taps(bt_cpu_weight *w, const bt_weight_source *s, bt_error *err)
{
    const size_t n = (size_t)s->n_in * s->n_out;
    float *values = bt_alloc(BT_MEM_weights, n * sizeof *values);
    w->kind = BT_CPU_TAPS;
    w->vector = bt_alloc_aligned(BT_MEM_weights, 64, n * sizeof *w->vector);
    if (!values || !w->vector) {
        bt_free(values);
        bt_free_aligned(w->vector);
        return no_memory(s, err);
    }
    const bt_status status = bt_type_decode(s->type, s->rows, values, n);
    for (size_t i = 0; i < n && status == BT_OK; i++) {
        w->vector[i % s->n_in * s->n_out + i / s->n_in] = values[i];
    }
    bt_free(values);
    if (status != BT_OK) {
        bt_free_aligned(w->vector);
        return bt_fail(err, BT_E_UNSUPPORTED, "tensor '%s' cannot be decoded", s->name);
    }
    return BT_OK;
}

/* ---- matrices ---- */

static const uint8_t *row_at(const cut *c, uint32_t slice, uint32_t row)
{
    return (const uint8_t *)c->source->rows + file_row(c, slice, row) * c->row_bytes;
}

static void gather(const cut *c, uint32_t slice, uint8_t *to)
{
    for (uint32_t row = 0; row < c->source->n_out; row += c->run) {
        memcpy(to, row_at(c, slice, row), c->run * c->row_bytes);
        to += c->run * c->row_bytes;
    }
}

/* All slices repacked, or gathered as the file has them, one behind the other. */
static bt_status copy_slices(const bt_cpu_device *d, bt_cpu_weight *w, const cut *c, bool pack,
                             bt_error *err)
{
    const bt_weight_source *s = c->source;
    const size_t file_bytes = (size_t)(c->row_bytes * s->n_out);
    const size_t one = (size_t)bt_cpu_line(pack ? d->kernels->pack_bytes(s->type, s->n_out, s->n_in)
                                                : file_bytes);
    size_t all;
    uint8_t *to = bt_size_mul(one, c->n_slices, &all)
                  ? bt_alloc_aligned(BT_MEM_weights, 64, all) : NULL;
    uint8_t *rows = pack && runs_of(c) > 1 ? bt_alloc(BT_MEM_weights, file_bytes) : NULL;
    if (!to || (pack && runs_of(c) > 1 && !rows)) {
        bt_free_aligned(to);
        bt_free(rows);
        return no_memory(s, err);
    }
    for (uint32_t i = 0; i < c->n_slices; i++) {
        if (!pack) {
            gather(c, i, to + i * one);
            continue;
        }
        if (rows) {
            gather(c, i, rows);
        }
        d->kernels->pack(s->type, s->n_out, s->n_in, rows ? rows : row_at(c, i, 0), to + i * one, 0,
                         s->n_out);
    }
    bt_free(rows);
    w->matrix = (bt_cpu_matrix){ .type = s->type, .n_in = s->n_in, .n_out = s->n_out,
                                 .layout = d->kernels->layout_of(s->type, pack), .data = to,
                                 .size_bytes = one, .owned = true };
    w->slice_bytes = one;
    return BT_OK;
}

static bt_status load_matrix(const bt_cpu_device *d, bt_cpu_weight *w, const cut *c, bt_error *err)
{
    const bt_weight_source *s = c->source;
    const bool pack = d->repack && d->kernels->pack_bytes(s->type, s->n_out, s->n_in) != 0;
    w->kind = s->n_slices != 0 ? BT_CPU_EXPERTS : BT_CPU_MATRIX;
    if (pack || runs_of(c) > 1) {
        return copy_slices(d, w, c, pack, err);
    }
    w->slice_bytes = (size_t)(c->step * c->row_bytes);
    return bt_cpu_matrix_init(&w->matrix, d->kernels, s->type, s->n_out, s->n_in, row_at(c, 0, 0),
                              false, err);
}

bt_status bt_cpu_weight_make(const bt_cpu_device *d, const bt_weight_source *s,
                             bt_cpu_weight *ret_weight, bt_error *err)
{
    bt_cpu_weight w = { .type = s->type, .n_in = s->n_in, .n_out = s->n_out,
                        .n_slices = s->n_slices ? s->n_slices : 1, .rows = s->rows };
    cut c = { 0 };
    BT_TRY(check_source(s, &c, err));
    if (s->as_table) {
        w.kind = BT_CPU_TABLE;
    } else if (s->as_taps) {
        BT_TRY(load_taps(&w, s, err));
    } else if (s->n_out == 1 && s->n_slices == 0 && !s->as_matrix) {
        BT_TRY(load_vector(&w, s, err));
    } else {
        BT_TRY(load_matrix(d, &w, &c, err));
    }
    *ret_weight = w;
    return BT_OK;
}

bt_cpu_matrix bt_cpu_weight_slice(const bt_cpu_weight *w, uint32_t slice)
{
    BT_ASSERT(slice < w->n_slices);
    bt_cpu_matrix m = w->matrix;
    m.data = (const uint8_t *)m.data + slice * w->slice_bytes;
    m.owned = false;
    return m;
}
