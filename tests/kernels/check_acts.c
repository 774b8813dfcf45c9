/* tests/kernels/check_acts.c - activation rows: their form, their size, their values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/acts.h"
#include "cpu/tables.h"
#include "harness.h"

static bt_cpu_matrix matrix_of(const bt_cpu_kernels *k, bt_type type, uint32_t n_in, bool packed)
{
    const size_t bytes = packed ? k->pack_bytes(type, 16, n_in) : 0;

    return (bt_cpu_matrix){
        .type = type, .n_in = n_in, .n_out = 16, .layout = k->layout_of(type, bytes != 0),
    };
}

void check_act_form(const bt_cpu_kernels *k)
{
    for (uint32_t id = 0; id < BT_TYPE_ID_MAX; id++) {
        const bt_type_info *type = bt_quant_type_find(id);
        for (int packed = 0; type && type->can_decode && packed < 2; packed++) {
            const bt_cpu_matrix w = matrix_of(k, (bt_type)id, 256, packed != 0);
            const uint32_t form = k->act_form(&w);
            if (form != BT_ACT_FORM_F32 && form != BT_ACT_FORM_Q8) {
                check_failed("%s: form %u is not described", type->name, form);
            }
            if ((type->block_elems == 1 || w.layout == 0) && form != BT_ACT_FORM_F32) {
                check_failed("%s: plain numbers want plain activations", type->name);
            }
        }
    }
}

void check_act_row_bytes(const bt_cpu_kernels *k)
{
    const bt_type types[] = { BT_TYPE_F32, BT_TYPE_Q4_0, BT_TYPE_Q6_K };

    for (size_t i = 0; i < BT_LEN(types); i++) {
        for (uint32_t n = 256; n <= 1024; n += 256) {
            const bt_cpu_matrix w = matrix_of(k, types[i], n, true);
            const size_t want = k->act_form(&w) == BT_ACT_FORM_F32 ? 4 * n : 64 * (n / 32);
            if (k->act_row_bytes(&w) != want) {
                check_failed("%u values need %zu bytes, not %zu", n, want, k->act_row_bytes(&w));
            }
        }
    }
}

/* Squared error of a part whose largest magnitude becomes `code_max`, in double. */
static double squared_error(const float *x, double largest, int code_max)
{
    const double scale = largest / code_max;
    double       sum = 0.0;

    for (int i = 0; i < BT_ACT_PART; i++) {
        const double error = x[i] - scale * nearbyint(x[i] / scale);
        sum += error * error;
    }
    return sum;
}

/* No other range is better by more than the roundings of the comparison: a code is off by at most
 * 127 gamma(3) before its distance, at most 1/2, is squared, 16 times. */
static void check_choice(const float *x, double largest, int code_max)
{
    const double step = largest / BT_ACT_CODE_MAX_LEAST;
    const double slack = 16 * 2.0 * 0.5 * 127 * gamma_of(4) * step * step;

    for (int c = BT_ACT_CODE_MAX_LEAST; c <= BT_ACT_CODE_MAX; c++) {
        const double mine = squared_error(x, largest, code_max);
        if (squared_error(x, largest, c) < mine * (1.0 - gamma_of(20)) - slack) {
            check_failed("largest %g became %d, and %d is better", largest, code_max, c);
        }
    }
}

/* One part of 16 against its definition in cpu/acts.h. */
static void check_part(const float *x, const bt_act_block *b, int h)
{
    float largest = 0.0f;
    int   sum = 0;

    for (int i = 0; i < BT_ACT_PART; i++) {
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        sum += b->q[BT_ACT_PART * h + i];
    }
    if (largest < 0x1p-100f) {
        if (b->scale[h] != 0.0f || b->part_sum[h] != 0.0f || sum != 0) {
            check_failed("a part of zeros has scale %g", b->scale[h]);
        }
        return;
    }
    const double range = largest / (double)b->scale[h];
    const double scale = largest / round(range);
    if (round(range) < BT_ACT_CODE_MAX_LEAST || round(range) > BT_ACT_CODE_MAX
        || fabs(range - round(range)) > range * gamma_of(3)) {
        check_failed("scale %g of largest %g", b->scale[h], largest);
    }
    check_choice(x, largest, (int)round(range));
    if (b->part_sum[h] != b->scale[h] * (float)sum) {
        check_failed("part sum %g, scale %g times %d", b->part_sum[h], b->scale[h], sum);
    }
    for (int i = 0; i < BT_ACT_PART; i++) {
        const int    q = b->q[BT_ACT_PART * h + i];
        const double exact = (double)x[i] / scale;
        /* Half a step, and the roundings of the factor and of the product, at most 127 large. */
        if (q < -127 || q > 127 || fabs(exact - q) > 0.5 + 127 * gamma_of(3)) {
            check_failed("%g of largest %g became %d", x[i], largest, q);
        }
    }
}

static void check_q8_row(const bt_cpu_kernels *k, const bt_cpu_matrix *w, const float *x)
{
    guarded             to = guarded_alloc(k->act_row_bytes(w));
    const bt_act_block *blocks = to.data;

    k->act_convert(w, x, to.data);
    for (uint32_t b = 0; b < w->n_in / BT_ACT_BLOCK; b++) {
        check_part(x + BT_ACT_BLOCK * b, &blocks[b], 0);
        check_part(x + BT_ACT_BLOCK * b + BT_ACT_PART, &blocks[b], 1);
        if (blocks[b].sum != blocks[b].part_sum[0] + blocks[b].part_sum[1]) {
            check_failed("sum %g of a block", blocks[b].sum);
        }
    }
    guarded_free(&to);
}

/* What is no number must not become one. */
static void check_not_finite(const bt_cpu_kernels *k, const bt_cpu_matrix *w)
{
    const float bad[] = { INFINITY, -INFINITY, NAN };

    for (size_t i = 0; i < BT_LEN(bad); i++) {
        float        x[64] = { 1.0f, 2.0f };
        bt_act_block blocks[2];
        x[35] = bad[i];
        k->act_convert(w, x, blocks);
        if (!isnan(blocks[1].scale[0]) || !isnan(blocks[1].sum) || isnan(blocks[1].scale[1])
            || isnan(blocks[0].sum)) {
            check_failed("%g among the activations is not a NaN of its part", bad[i]);
        }
    }
}

void check_act_convert(const bt_cpu_kernels *k)
{
    const uint32_t sizes[] = { 32, 64, 96, 576, 2048 };

    for (size_t i = 0; i < BT_LEN(sizes); i++) {
        const bt_cpu_matrix w = matrix_of(k, BT_TYPE_Q4_0, sizes[i], true);
        const bt_cpu_matrix plain = matrix_of(k, BT_TYPE_F16, sizes[i], true);
        for (int kind = 0; kind < PATTERN_COUNT; kind++) {
            guarded x = guarded_alloc(sizes[i] * sizeof(float));
            guarded copy = guarded_alloc(k->act_row_bytes(&plain));
            fill_pattern((pattern)kind, x.data, sizes[i]);
            if (k->act_form(&w) == BT_ACT_FORM_Q8) {
                check_q8_row(k, &w, x.data);
            }
            k->act_convert(&plain, x.data, copy.data);
            if (memcmp(copy.data, x.data, sizes[i] * sizeof(float)) != 0) {
                check_failed("a plain row of %u was changed", sizes[i]);
            }
            guarded_free(&x);
            guarded_free(&copy);
        }
    }
    const bt_cpu_matrix w = matrix_of(k, BT_TYPE_Q4_0, 64, true);
    if (k->act_form(&w) == BT_ACT_FORM_Q8) {
        check_not_finite(k, &w);
    }
}
