/* A device that computes every op by its formula, in double, one value after the other. It is the
 * reference of the check device in these tests, so it shares nothing with the CPU device. */
#ifndef TESTS_DEVICE_NAIVE_H
#define TESTS_DEVICE_NAIVE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit/device/host_memory.h"

enum { NAIVE_WEIGHTS = 256, NAIVE_ROWS = 128 };

typedef struct { uint32_t n_in, n_out; bt_type type; float *values; } naive_weight;

typedef struct {
    bt_device      base;
    naive_weight   weights[NAIVE_WEIGHTS];
    uint32_t       n_weights;
    uint8_t       *memory;                          /* the one buffer */
    float         *slots[BT_TAPE_SLOTS_MAX + 1];    /* [NAIVE_ROWS][cols] */
    uint32_t       cols[BT_TAPE_SLOTS_MAX + 1];
    const bt_tape *tape;
    uint32_t       flaw;        /* the op whose first value is spoilt; UINT32_MAX: none */
} naive_device;

static float *naive_row(naive_device *d, bt_rows r, uint32_t row)
{
    return d->slots[r.slot] + (size_t)row * d->cols[r.slot] + r.column;
}

static const naive_weight *naive_w(const naive_device *d, bt_weight w)
{
    return &d->weights[w.id - 1];
}

static void naive_norm(const float *x, const float *w, float *y, uint32_t n, double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i] * x[i];
    }
    const double by = 1 / sqrt(sum / n + eps);
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (float)(x[i] * by * w[i]);
    }
}

static void naive_linear(naive_device *d, const bt_op_linear *o, uint32_t row)
{
    const float *x = naive_row(d, o->x, row);
    float *y = naive_row(d, o->y, row);
    for (int part = 0; part < BT_LINEAR_PARTS_MAX && o->w[part].id; part++) {
        const naive_weight *w = naive_w(d, o->w[part]);
        for (uint32_t out = 0; out < w->n_out; out++, y++) {
            double sum = o->bias[part].id ? naive_w(d, o->bias[part])->values[out] : 0;
            for (uint32_t i = 0; i < w->n_in; i++) {
                sum += (double)w->values[(size_t)out * w->n_in + i] * x[i];
            }
            *y = (float)((o->add ? *y : 0) + sum);
        }
    }
}

static void naive_rope(naive_device *d, const bt_op_rope *o, uint32_t row, uint32_t position)
{
    const uint32_t dim = o->x.cols / o->n_heads, half = o->n_rot / 2;
    for (uint32_t h = 0; h < o->n_heads; h++) {
        float *x = naive_row(d, o->x, row) + h * dim;
        for (uint32_t i = 0; i < half; i++) {
            const double angle = (double)position * naive_w(d, o->frequencies)->values[i];
            const uint32_t a = o->style == BT_ROPE_NORM ? 2 * i : i;
            const uint32_t b = o->style == BT_ROPE_NORM ? 2 * i + 1 : i + half;
            const double xa = x[a], xb = x[b], m = o->magnitude;
            x[a] = (float)(m * (xa * cos(angle) - xb * sin(angle)));
            x[b] = (float)(m * (xa * sin(angle) + xb * cos(angle)));
        }
    }
}

static uint8_t *naive_page(naive_device *d, const bt_step *s, uint32_t step_row, uint32_t position)
{
    const uint32_t *pages = s->sequences[s->row_sequence[step_row]].pages;
    return d->memory + pages[position / s->kv->page_tokens] * s->kv->page_bytes;
}

static void naive_store(naive_device *d, const bt_op_kv_put *o, const bt_step *s, uint32_t row)
{
    const bt_kv_layer *l = &s->kv->layers[o->layer];
    const uint32_t position = s->positions[row], at = position % s->kv->page_tokens;
    uint8_t *page = naive_page(d, s, row, position);
    if (bt_quant_type_encode(s->kv->type_k, naive_row(d, o->k, row),
                             page + l->k_offset + at * l->k_row_bytes, o->k.cols) != BT_OK ||
        bt_quant_type_encode(s->kv->type_v, naive_row(d, o->v, row),
                             page + l->v_offset + at * l->v_row_bytes, o->v.cols) != BT_OK) {
        abort();
    }
}

static void naive_attend(naive_device *d, const bt_op_attention *o, const bt_step *s, uint32_t row)
{
    const bt_kv_layer *l = &s->kv->layers[o->layer];
    const uint32_t step_row = o->q.picked ? s->logit_rows[row] : row;
    const uint32_t last = s->positions[step_row];
    const uint32_t first = o->window && last + 1 > o->window ? last + 1 - o->window : 0;
    const uint32_t dim = o->q.cols / o->n_heads, dim_v = o->y.cols / o->n_heads;
    float *k = malloc(l->k_dim * sizeof *k), *v = malloc(l->v_dim * sizeof *v);
    double *score = malloc((last + 1) * sizeof *score), *sum = malloc(dim_v * sizeof *sum);
    for (uint32_t h = 0; h < o->n_heads; h++) {
        const uint32_t group = h / (o->n_heads / o->n_kv_heads);
        const float *q = naive_row(d, o->q, row) + h * dim;
        double most = -INFINITY, all = 0;
        for (uint32_t p = first; p <= last; p++) {
            const uint8_t *page = naive_page(d, s, step_row, p);
            const uint32_t at = p % s->kv->page_tokens;
            if (bt_quant_type_decode(s->kv->type_k, page + l->k_offset + at * l->k_row_bytes, k,
                                     l->k_dim) != BT_OK) {
                abort();
            }
            double dot = 0;
            for (uint32_t i = 0; i < dim; i++) {
                dot += (double)q[i] * k[group * dim + i];
            }
            score[p] = dot * o->scale;
            score[p] = o->softcap > 0 ? o->softcap * tanh(score[p] / o->softcap) : score[p];
            most = score[p] > most ? score[p] : most;
        }
        memset(sum, 0, dim_v * sizeof *sum);
        for (uint32_t p = first; p <= last; p++) {
            const uint8_t *page = naive_page(d, s, step_row, p);
            const uint32_t at = p % s->kv->page_tokens;
            const double weight = exp(score[p] - most);
            if (bt_quant_type_decode(s->kv->type_v, page + l->v_offset + at * l->v_row_bytes, v,
                                     l->v_dim) != BT_OK) {
                abort();
            }
            all += weight;
            for (uint32_t i = 0; i < dim_v; i++) {
                sum[i] += weight * v[group * dim_v + i];
            }
        }
        for (uint32_t i = 0; i < dim_v; i++) {
            naive_row(d, o->y, row)[h * dim_v + i] = (float)(sum[i] / all);
        }
    }
    free(k);
    free(v);
    free(score);
    free(sum);
}

static void naive_pointwise(naive_device *d, const bt_op *op, uint32_t row)
{
    const bt_rows out = bt_ops_output(op);
    bt_rows in[BT_OP_INPUTS_MAX];
    bt_ops_inputs(op, in);
    float *y = naive_row(d, out, row);
    const float *x = naive_row(d, in[0], row);
    for (uint32_t i = 0; i < out.cols; i++) {
        const double v = x[i];
        switch (op->kind) {
        case BT_OP_add:
            y[i] = (float)(y[i] + v);
            break;
        case BT_OP_scale:
            y[i] = (float)(v * op->scale.by);
            break;
        case BT_OP_softcap:
            y[i] = (float)(op->softcap.cap * tanh(v / op->softcap.cap));
            break;
        default: {
            const double gate = op->glu.act == BT_ACT_SILU ? v / (1 + exp(-v))
                : 0.5 * v * (1 + tanh(sqrt(2 / acos(-1.0)) * (v + 0.044715 * v * v * v)));
            y[i] = (float)(gate * naive_row(d, op->glu.up, row)[i]);
            break;
        }
        }
    }
}

static void naive_rmsnorm(naive_device *d, const bt_op_rmsnorm *o, uint32_t row)
{
    float *y = naive_row(d, o->y, row);
    float *normed = malloc(o->x.cols * sizeof *normed);
    naive_norm(naive_row(d, o->x, row), naive_w(d, o->w)->values, normed, o->x.cols, o->eps);
    for (uint32_t i = 0; i < o->x.cols; i++) {
        y[i] = o->add ? (float)((double)y[i] + normed[i]) : normed[i];
    }
    free(normed);
}

static void naive_op(naive_device *d, const bt_op *op, const bt_step *s, uint32_t row)
{
    switch (op->kind) {
    case BT_OP_embed:
        for (uint32_t i = 0; i < op->embed.y.cols; i++) {
            naive_row(d, op->embed.y, row)[i] = op->embed.scale *
                naive_w(d, op->embed.table)->values[(size_t)s->tokens[row] * op->embed.y.cols + i];
        }
        break;
    case BT_OP_rows:
        memcpy(naive_row(d, op->rows.y, row), naive_row(d, op->rows.x, s->logit_rows[row]),
               op->rows.x.cols * sizeof(float));
        break;
    case BT_OP_rmsnorm:
        naive_rmsnorm(d, &op->rmsnorm, row);
        break;
    case BT_OP_head_norm:
        for (uint32_t h = 0; h < op->head_norm.n_heads; h++) {
            const uint32_t dim = op->head_norm.x.cols / op->head_norm.n_heads;
            float *x = naive_row(d, op->head_norm.x, row) + h * dim;
            naive_norm(x, naive_w(d, op->head_norm.w)->values, x, dim, op->head_norm.eps);
        }
        break;
    case BT_OP_linear:    naive_linear(d, &op->linear, row); break;
    case BT_OP_rope:
        naive_rope(d, &op->rope, row, s->positions[op->rope.x.picked ? s->logit_rows[row] : row]);
        break;
    case BT_OP_kv_put:    naive_store(d, &op->kv_put, s, row); break;
    case BT_OP_attention: naive_attend(d, &op->attention, s, row); break;
    case BT_OP_mark:      break;
    default:              naive_pointwise(d, op, row); break;
    }
}

/* ---- the table ---- */

static bt_status naive_run(bt_device *base, const bt_tape *t, const bt_step *s, uint32_t first,
                           uint32_t last, bt_error *err)
{
    naive_device *d = (naive_device *)base;
    (void)err;
    for (uint32_t i = first; i < last; i++) {
        const bt_op *op = bt_ops_tape_op(t, i);
        const bt_rows y = bt_ops_output(op);
        const uint32_t n = y.picked ? s->n_logit_rows : s->n_rows;
        for (uint32_t row = 0; row < n; row++) {
            naive_op(d, op, s, row);
        }
        if (i == d->flaw && y.slot && n > 0) {
            naive_row(d, y, n - 1)[0] += 1.0f;
        }
    }
    return BT_OK;
}

static bt_status naive_wait(bt_device *d, bt_error *err)
{
    (void)d;
    (void)err;
    return BT_OK;
}

static bt_status naive_prepare(bt_device *base, const bt_tape *t, uint32_t n_rows,
                               uint32_t n_picked, bt_error *err)
{
    naive_device *d = (naive_device *)base;
    (void)n_picked;
    if (n_rows > NAIVE_ROWS) {
        return bt_fail(err, BT_E_NOMEM, "too many rows");
    }
    for (uint32_t i = 1; i <= bt_ops_tape_slots(t); i++) {
        bool picked;
        d->cols[i] = bt_ops_tape_slot_cols(t, (uint16_t)i, &picked);
        d->slots[i] = realloc(d->slots[i], (size_t)NAIVE_ROWS * d->cols[i] * sizeof(float));
    }
    d->tape = t;
    return BT_OK;
}

static bt_status naive_load(bt_device *base, const bt_weight_source *s, bt_weight *ret,
                            bt_error *err)
{
    naive_device *d = (naive_device *)base;
    const size_t n = (size_t)s->n_in * s->n_out;
    (void)err;
    if (d->n_weights == NAIVE_WEIGHTS) {
        abort();
    }
    naive_weight *w = &d->weights[d->n_weights++];
    *w = (naive_weight){ s->n_in, s->n_out, s->type, malloc(n * sizeof(float)) };
    *ret = (bt_weight){ d->n_weights };
    return bt_quant_type_decode(s->type, s->rows, w->values, n);
}

static bt_status naive_shape(const bt_device *base, bt_weight w, bt_weight_shape *ret)
{
    const naive_device *d = (const naive_device *)base;
    if (w.id == 0 || w.id > d->n_weights) {
        return BT_E_NOTFOUND;
    }
    *ret = (bt_weight_shape){ .n_in = naive_w(d, w)->n_in, .n_out = naive_w(d, w)->n_out,
                              .n_slices = 1, .type = naive_w(d, w)->type };
    return BT_OK;
}

static bt_status naive_alloc(bt_device *base, uint64_t size, bt_buffer *ret, bt_error *err)
{
    naive_device *d = (naive_device *)base;
    (void)err;
    d->memory = calloc(1, (size_t)size);
    *ret = (bt_buffer){ 7 };             /* unlike the other device's number */
    return BT_OK;
}

static void naive_free(bt_device *base, bt_buffer b)
{
    (void)b;
    free(((naive_device *)base)->memory);
    ((naive_device *)base)->memory = NULL;
}

HOST_MEMORY(naive_device)

static const float *naive_read(bt_device *base, bt_rows r, uint64_t *ret_stride)
{
    *ret_stride = ((naive_device *)base)->cols[r.slot];
    return naive_row((naive_device *)base, r, 0);
}

static void naive_write(bt_device *base, bt_rows r, uint32_t n, const float *from, uint64_t stride)
{
    for (uint32_t row = 0; row < n; row++) {
        memcpy(naive_row((naive_device *)base, r, row), from + row * stride,
               r.cols * sizeof(float));
    }
}

static void naive_close(bt_device *base)
{
    naive_device *d = (naive_device *)base;
    for (uint32_t i = 0; i < d->n_weights; i++) {
        free(d->weights[i].values);
    }
    for (uint32_t i = 0; i <= BT_TAPE_SLOTS_MAX; i++) {
        free(d->slots[i]);
    }
    free(d->memory);
    free(d);
}

static const bt_device_ops naive_ops = {
    .name = "naive", .close = naive_close, .buffer_alloc = naive_alloc, .buffer_free = naive_free,
    HOST_MEMORY_OPS, .weight_load = naive_load, .weight_shape = naive_shape,
    .prepare = naive_prepare, .run = naive_run, .wait = naive_wait, .read_rows = naive_read,
    .write_rows = naive_write,
};

static naive_device *naive_open(void)
{
    naive_device *d = calloc(1, sizeof *d);
    d->base.ops = &naive_ops;
    d->flaw = UINT32_MAX;
    return d;
}

#endif
