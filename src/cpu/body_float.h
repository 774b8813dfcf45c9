/* cpu/body_float.h - y = W x for plain weights in strips, any width; included several times.
 *
 * A tile is FLOAT_ROWS rows times FLOAT_VECTORS vectors of outputs. Weights become f32, activations
 * are f32 as they come, and an output is one chain of fused operations over ascending inputs:
 * nothing else decides its bits.
 */
#ifndef BT_CPU_BODY_FLOAT_H
#define BT_CPU_BODY_FLOAT_H

#include "cpu/body_math.h"
#include "cpu/pack.h"
#include "cpu/tables.h"

typedef struct {
    const uint8_t *strips;
    size_t         strip_size, act_stride;    /* bytes */
    uint32_t       n_in;
    const uint8_t *acts;
    const float   *bias;
    bool           add;
    float         *y;
    size_t         y_stride;
} float_job;

/* Vector v of the weights of one input; `at` is this input's place in the first strip. */
BT_INLINE vf load_weights(bt_type type, const uint8_t *at, size_t strip_size, uint32_t lane, int v)
{
    const uint32_t out = lane + (uint32_t)(LANES * v);
    const uint8_t *from = at + out / BT_STRIP * strip_size
                          + out % BT_STRIP * (type == BT_TYPE_F32 ? 4 : 2);

    return type == BT_TYPE_F32 ? vf_load((const float *)(const void *)from)
           : type == BT_TYPE_F16 ? vf_from_f16(from) : vf_from_bf16(from);
}

BT_INLINE void store_plain(const float_job *job, uint32_t row, uint32_t out, uint32_t out_last,
                           vf acc)
{
    float         *y = job->y + row * job->y_stride + out;
    /* The last vectors of a tile may lie in the strip's padding. */
    const uint32_t n = out < out_last ? out_last - out : 0;

    if (job->bias) {
        acc = vf_add(acc, vf_load_part(job->bias + out, n));
    }
    if (job->add) {
        acc = vf_add(vf_load_part(y, n), acc);
    }
    vf_store_part(y, acc, n);
}

/* type, rows and vectors are constants at each use. */
BT_INLINE void float_tile(const float_job *job, bt_type type, int rows, int vectors, uint32_t row,
                          uint32_t out, uint32_t out_last)
{
    const size_t   input_bytes = type == BT_TYPE_F32 ? 64 : 32;
    const uint8_t *at = job->strips + out / BT_STRIP * job->strip_size;
    const uint8_t *acts = job->acts + row * job->act_stride;
    vf             acc[FLOAT_ROWS][FLOAT_VECTORS];

    BT_UNROLL
    for (int r = 0; r < rows; r++) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            acc[r][v] = vf_zero();
        }
    }
    for (uint32_t i = 0; i < job->n_in; i++, at += input_bytes) {
        vf w[FLOAT_VECTORS];
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            w[v] = load_weights(type, at, job->strip_size, out % BT_STRIP, v);
        }
        BT_UNROLL
        for (int r = 0; r < rows; r++) {
            const vf x = vf_set(((const float *)(const void *)(acts + r * job->act_stride))[i]);
            BT_UNROLL
            for (int v = 0; v < vectors; v++) {
                acc[r][v] = vf_fma(w[v], x, acc[r][v]);
            }
        }
    }
    BT_UNROLL
    for (int r = 0; r < rows; r++) {
        BT_UNROLL
        for (int v = 0; v < vectors; v++) {
            store_plain(job, row + (uint32_t)r, out + (uint32_t)(LANES * v), out_last, acc[r][v]);
        }
    }
}

BT_INLINE void float_rows(const float_job *job, bt_type type, int vectors, uint32_t n_rows,
                          uint32_t out, uint32_t out_last)
{
    uint32_t row = 0;

    for (; n_rows - row >= FLOAT_ROWS; row += FLOAT_ROWS) {
        float_tile(job, type, FLOAT_ROWS, vectors, row, out, out_last);
    }
    for (; n_rows - row >= 2; row += 2) {
        float_tile(job, type, 2, vectors, row, out, out_last);
    }
    for (; row < n_rows; row++) {
        float_tile(job, type, 1, vectors, row, out, out_last);
    }
}

BT_INLINE void float_outputs(const float_job *job, bt_type type, uint32_t n_rows,
                             uint32_t out_first, uint32_t out_last)
{
    uint32_t out = out_first;

    /* Whole tiles may reach into the last strip's padding, never past it. */
    for (; out < out_last; out += FLOAT_VECTORS * LANES) {
        const uint32_t strips_end = (out_last + BT_STRIP - 1) / BT_STRIP * BT_STRIP;
        if (strips_end - out < FLOAT_VECTORS * LANES) {
            break;
        }
        float_rows(job, type, FLOAT_VECTORS, n_rows, out, out_last);
    }
    for (; out < out_last; out += LANES) {
        float_rows(job, type, 1, n_rows, out, out_last);
    }
}

static void linear_plain(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                         uint32_t n_rows, uint32_t out_first, uint32_t out_last, const float *bias,
                         bool add, float *y, size_t y_stride)
{
    const float_job job = {
        .strips = w->data,
        .strip_size = bt_cpu_pack_strip_of(bt_cpu_pack_kind_of(w->type), w->n_in).size,
        .act_stride = act_stride_bytes,
        .n_in = w->n_in,
        .acts = acts,
        .bias = bias,
        .add = add,
        .y = y,
        .y_stride = y_stride,
    };

    switch (w->type) {
    case BT_TYPE_F32:
        float_outputs(&job, BT_TYPE_F32, n_rows, out_first, out_last);
        break;
    case BT_TYPE_F16:
        float_outputs(&job, BT_TYPE_F16, n_rows, out_first, out_last);
        break;
    default:
        float_outputs(&job, BT_TYPE_BF16, n_rows, out_first, out_last);
        break;
    }
}

#endif
