/* Weights of the CPU device: from rows of a file to matrices, slices of them, vectors and taps. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/cpu/private.h"

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
    return bt_fail(err, BT_E_BADFILE,
                   "tensor '%s': %u x %u x %u values of type %s are not %zu bytes", s->name,
                   s->n_in, s->n_out, s->n_slices ? s->n_slices : 1, type, s->size_bytes);
}

static bt_status check_source(const bt_weight_source *s, cut *ret, bt_error *err)
{
    const bt_type_info *type = bt_quant_type_find((uint32_t)s->type);
    const bool all = s->row_run == 0;
    cut c = { .source = s, .n_slices = s->n_slices ? s->n_slices : 1,
              .run = all ? s->n_out : s->row_run, .step = all ? s->n_out : s->row_step };
    size_t size = 0;
    if (!type || !type->can_decode) {
        return bt_fail(err, BT_E_UNSUPPORTED, "tensor '%s' is of type %s, which cannot be read",
                       s->name, type ? type->name : "unknown");
    }
    if (s->n_in == 0 || s->n_out == 0 || !bt_quant_type_row_bytes(type, s->n_in, &c.row_bytes)) {
        return bad_size(s, type->name, err);
    }
    if (s->n_out % c.run != 0 || c.step < c.run || (uint64_t)s->n_out * c.n_slices > UINT32_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "tensor '%s': %u x %u rows cannot be taken in runs of "
                       "%u, %u apart", s->name, s->n_out, c.n_slices, c.run, c.step);
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

static bt_status no_memory(const bt_weight_source *s, uint64_t size, bt_error *err)
{
    char what[200];
    snprintf(what, sizeof what, "tensor '%.160s'", s->name);
    return bt_fail_nomem(err, (size_t)size, what);
}

static bt_status load_vector(bt_cpu_weight *w, const bt_weight_source *s, bt_error *err)
{
    w->kind = BT_CPU_VECTOR;
    w->vector = bt_alloc_aligned(BT_MEM_weights, 64, s->n_in * sizeof(float));
    if (!w->vector) {
        return no_memory(s, s->n_in * sizeof(float), err);
    }
    if (bt_quant_type_decode(s->type, s->rows, w->vector, s->n_in) != BT_OK) {
        bt_free_aligned(w->vector);
        return bt_fail(err, BT_E_UNSUPPORTED, "tensor '%s' cannot be decoded", s->name);
    }
    return BT_OK;
}

/* Turned over: all columns of the oldest tap first, since a row's columns go together. */
static bt_status load_taps(bt_cpu_weight *w, const bt_weight_source *s, bt_error *err)
{
    const size_t n = (size_t)s->n_in * s->n_out;
    float *values = bt_alloc(BT_MEM_weights, n * sizeof *values);
    w->kind = BT_CPU_TAPS;
    w->vector = bt_alloc_aligned(BT_MEM_weights, 64, n * sizeof *w->vector);
    if (!values || !w->vector) {
        bt_free(values);
        bt_free_aligned(w->vector);
        return no_memory(s, n * sizeof *values, err);
    }
    const bt_status status = bt_quant_type_decode(s->type, s->rows, values, n);
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

/* Slices to pack, by all threads. */
typedef struct {
    const bt_cpu_kernels *kernels;
    const cut     *cut;
    const uint8_t *gathered;             /* rows of the one slice; NULL: they lie together */
    uint8_t       *to;
    size_t         slice_bytes;
    uint32_t       slice_first, n_slices;
} packing;

static void pack_part(void *context, uint32_t index, uint32_t n_threads)
{
    enum { STEP = 64 };                  /* what pack() wants ranges to be multiples of */
    const packing *p = context;
    const bt_weight_source *s = p->cut->source;
    const uint32_t n_steps = (s->n_out + STEP - 1) / STEP;
    const bt_cpu_range part = bt_device_cpu_part(p->n_slices * n_steps, index, n_threads);
    for (uint32_t at = part.first; at < part.last;) {
        const uint32_t slice = at / n_steps, first = at % n_steps * STEP;
        const uint32_t end = (slice + 1) * n_steps < part.last ? (slice + 1) * n_steps : part.last;
        const uint32_t last = first + (end - at) * STEP < s->n_out ? first + (end - at) * STEP
                                                                   : s->n_out;
        const void *rows = p->gathered ? p->gathered : row_at(p->cut, p->slice_first + slice, 0);
        p->kernels->pack(s->type, s->n_out, s->n_in, rows, p->to + slice * p->slice_bytes, first,
                         last);
        at = end;
    }
}

static bt_status pack_slices(bt_cpu_device *d, const packing *all, bt_error *err)
{
    const cut *c = all->cut;
    if (runs_of(c) == 1) {
        union { const packing *read; void *context; } whole = { all };
        bt_team_run(d->team, d->n_threads_batch, pack_part, whole.context);
        return BT_OK;
    }
    uint8_t *rows = bt_alloc(BT_MEM_weights, (size_t)(c->row_bytes * c->source->n_out));
    if (!rows) {
        return no_memory(c->source, c->row_bytes * c->source->n_out, err);
    }
    for (uint32_t i = 0; i < all->n_slices; i++) {
        packing one = *all;
        one.to = all->to + i * all->slice_bytes;
        one.gathered = rows;
        one.slice_first = i;
        one.n_slices = 1;
        gather(c, i, rows);
        bt_team_run(d->team, d->n_threads_batch, pack_part, &one);
    }
    bt_free(rows);
    return BT_OK;
}

/* All slices repacked, or gathered as the file has them, one after the other in the store. */
static bt_status copy_slices(bt_cpu_device *d, bt_cpu_weight *w, const cut *c, size_t slice_bytes,
                             bool pack, bt_error *err)
{
    const bt_weight_source *s = c->source;
    size_t all;
    void *to;
    if (!bt_size_mul(slice_bytes, c->n_slices, &all)) {
        return bt_fail(err, BT_E_NOMEM, "tensor '%s' does not fit the address space", s->name);
    }
    BT_TRY(bt_device_cpu_store_take(&d->store, all, &to, err));
    const packing p = { .kernels = d->kernels, .cut = c, .to = to, .slice_bytes = slice_bytes,
                        .n_slices = c->n_slices };
    if (pack) {
        BT_TRY(pack_slices(d, &p, err));
    }
    for (uint32_t i = 0; i < c->n_slices && !pack; i++) {
        gather(c, i, p.to + i * slice_bytes);
    }
    w->matrix = (bt_cpu_matrix){ .type = s->type, .n_in = s->n_in, .n_out = s->n_out,
                                 .layout = d->kernels->layout_of(s->type, pack), .data = to,
                                 .size_bytes = slice_bytes };
    w->slice_bytes = slice_bytes;
    return BT_OK;
}

static bt_status load_matrix(bt_cpu_device *d, bt_cpu_weight *w, const cut *c, bt_error *err)
{
    const bt_weight_source *s = c->source;
    const size_t packed = d->repack ? d->kernels->pack_bytes(s->type, s->n_out, s->n_in) : 0;
    w->kind = s->n_slices != 0 ? BT_CPU_EXPERTS : BT_CPU_MATRIX;
    if (packed != 0) {
        return copy_slices(d, w, c, (size_t)bt_device_cpu_line(packed), true, err);
    }
    if (runs_of(c) > 1) {
        return copy_slices(d, w, c, (size_t)bt_device_cpu_line(c->row_bytes * s->n_out), false,
                           err);
    }
    w->mapped = true;
    w->slice_bytes = (size_t)(c->step * c->row_bytes);
    return bt_cpu_matrix_init(&w->matrix, d->kernels, s->type, s->n_out, s->n_in, row_at(c, 0, 0),
                              false, err);
}

bt_status bt_device_cpu_weight_make(bt_cpu_device *d, const bt_weight_source *s,
                                    bt_cpu_weight *ret_weight, bt_error *err)
{
    bt_cpu_weight w = { .type = s->type, .n_in = s->n_in, .n_out = s->n_out,
                        .n_slices = s->n_slices ? s->n_slices : 1, .rows = s->rows };
    cut c = { 0 };
    BT_TRY(check_source(s, &c, err));
    if (s->as_table) {
        w.kind = BT_CPU_TABLE;
        w.mapped = true;
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

bt_cpu_matrix bt_device_cpu_weight_slice(const bt_cpu_weight *w, uint32_t slice)
{
    BT_ASSERT(slice < w->n_slices);
    bt_cpu_matrix m = w->matrix;
    m.data = (const uint8_t *)m.data + slice * w->slice_bytes;
    m.owned = false;
    return m;
}
