/* tests/kernels/check_linear.c - packing, and products of weights with activations.
 *
 * Two bounds hold for each output. Against the exact product with the activations as converted (in
 * double): the floating-point additions, gamma(n) times the sum of the magnitudes that are added,
 * n being the length of the chain (docs/quants.md). Against the exact product with the activations
 * as given: half a step of each activation on top.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/acts.h"
#include "cpu/tables.h"
#include "harness.h"
#include "quant/blocks.h"

static const bt_type TYPES[] = {
    BT_TYPE_F32, BT_TYPE_F16, BT_TYPE_BF16, BT_TYPE_Q4_0, BT_TYPE_Q4_1, BT_TYPE_Q5_0, BT_TYPE_Q5_1,
    BT_TYPE_Q8_0, BT_TYPE_IQ4_NL, BT_TYPE_MXFP4, BT_TYPE_Q2_K, BT_TYPE_Q3_K, BT_TYPE_Q4_K,
    BT_TYPE_Q5_K, BT_TYPE_Q6_K, BT_TYPE_IQ4_XS,
};

/* ---- Weights ---- */

/* Places of the f16 fields in a block; -1 ends. */
static const int *f16_fields(bt_type type)
{
    static const int first[] = { 0, -1 }, first_two[] = { 0, 2, -1 }, none[] = { -1 };
    static const int q2_k[] = { 80, 82, -1 }, q3_k[] = { 108, -1 }, q6_k[] = { 208, -1 };

    switch (type) {
    case BT_TYPE_Q4_1:
    case BT_TYPE_Q5_1:
    case BT_TYPE_Q4_K:
    case BT_TYPE_Q5_K:
        return first_two;
    case BT_TYPE_Q2_K:
        return q2_k;
    case BT_TYPE_Q3_K:
        return q3_k;
    case BT_TYPE_Q6_K:
        return q6_k;
    case BT_TYPE_MXFP4:
        return none;
    default:
        return first;
    }
}

/* Blocks whose every bit pattern of codes is possible: random bytes, all clear or all set; scales
 * are ordinary numbers of either sign, now and then zero or tiny. */
static void fill_weights(bt_type type, uint8_t *to, size_t n_values)
{
    const bt_type_info *info = bt_quant_type_find(type);

    if (info->block_elems == 1) {
        for (size_t i = 0; i < n_values; i++) {
            const float value = random_normal();
            if (bt_quant_type_encode(type, &value, to + i * info->block_bytes, 1) != BT_OK) {
                abort();
            }
        }
        return;
    }
    for (size_t b = 0; b < n_values / info->block_elems; b++, to += info->block_bytes) {
        const uint32_t extreme = random_below(8);
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            to[i] = extreme == 0 ? 0 : extreme == 1 ? 0xff : (uint8_t)random_u64();
        }
        for (const int *f = f16_fields(type); *f >= 0; f++) {
            const float scale = random_below(16) == 0 ? 0.0f
                : random_below(16) == 0 ? 0x1p-20f : 0.02f * random_unit();
            bt_put_le16(to + *f, bt_quant_f32_to_f16(scale));
        }
        if (type == BT_TYPE_MXFP4) {
            to[0] = (uint8_t)(118 + random_below(8));
        }
    }
}

/* What the kernels add per activation besides code * scale: |scale * zero| or |minimum|. An upper
 * bound for element i, read from the block with the format's own fields. */
static double addend_bound(bt_type type, const uint8_t *row, uint32_t i)
{
    const bt_type_info *info = bt_quant_type_find(type);
    const uint8_t *block = row + i / info->block_elems * info->block_bytes;
    const unsigned e = i % info->block_elems;
    uint8_t        scale, min;

    switch (type) {
    case BT_TYPE_Q4_0:
        return 8 * fabs(bt_quant_block_f16(block));
    case BT_TYPE_Q5_0:
        return 16 * fabs(bt_quant_block_f16(block));
    case BT_TYPE_Q8_0:
    case BT_TYPE_IQ4_NL:
        return 128 * fabs(bt_quant_block_f16(block));
    case BT_TYPE_Q4_1:
    case BT_TYPE_Q5_1:
        return fabs(bt_quant_block_f16(block + 2));
    case BT_TYPE_MXFP4:
        return 12 * bt_quant_block_e8m0_half(block[0]);
    case BT_TYPE_Q2_K:
        return fabs(bt_quant_block_f16(block + 82) * (block[e / 16] >> 4));
    case BT_TYPE_Q3_K:
        return 4 *
               fabs(bt_quant_block_f16(block + 108) * bt_quant_block_q3_scale(block + 96, e / 16));
    case BT_TYPE_Q4_K:
    case BT_TYPE_Q5_K:
        bt_quant_block_scale_min(block + 4, e / 32, &scale, &min);
        return fabs(bt_quant_block_f16(block + 2) * min);
    case BT_TYPE_Q6_K:
        return 32 * fabs(bt_quant_block_f16(block + 208) * (int8_t)block[192 + e / 16]);
    case BT_TYPE_IQ4_XS:
        return 128 * fabs(bt_quant_block_f16(block) *
                          bt_quant_block_iq4_xs_scale(bt_get_le16(block + 2), block + 4, e / 32));
    default:
        return 0.0;
    }
}

/* ---- One case ---- */

typedef struct {
    bt_type       type;
    uint32_t      n_in, n_out, n_rows;
    bt_cpu_matrix m;
    guarded       rows, packed, x, acts, bias;
    uint64_t      row_bytes;
    size_t        act_stride;
} linear_case;

static bool case_make(linear_case *c, const bt_cpu_kernels *k, bool repack)
{
    if (!bt_quant_type_row_bytes(bt_quant_type_find(c->type), c->n_in, &c->row_bytes)) {
        return false;
    }
    c->rows = guarded_alloc(c->row_bytes * c->n_out);
    fill_weights(c->type, c->rows.data, (size_t)c->n_in * c->n_out);
    const size_t packed = repack ? k->pack_bytes(c->type, c->n_out, c->n_in) : 0;
    c->m = (bt_cpu_matrix){
        .type = c->type, .n_in = c->n_in, .n_out = c->n_out,
        .layout = k->layout_of(c->type, packed != 0), .data = c->rows.data,
        .size_bytes = c->rows.size,
    };
    if (packed) {
        c->packed = guarded_alloc(packed);
        k->pack(c->type, c->n_out, c->n_in, c->rows.data, c->packed.data, 0, c->n_out);
        c->m.data = c->packed.data;
        c->m.size_bytes = packed;
    }
    c->x = guarded_alloc(sizeof(float) * c->n_in * c->n_rows);
    c->act_stride = (k->act_row_bytes(&c->m) + 63) / 64 * 64;
    c->acts = guarded_alloc(c->act_stride * c->n_rows);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        float *x = (float *)c->x.data + (size_t)r * c->n_in;
        fill_pattern(r ? (pattern)(r % PATTERN_COUNT) : PATTERN_NORMAL, x, c->n_in);
        k->act_convert(&c->m, x, (uint8_t *)c->acts.data + r * c->act_stride);
    }
    c->bias = guarded_alloc(sizeof(float) * c->n_out);
    fill_pattern(PATTERN_NORMAL, c->bias.data, c->n_out);
    return true;
}

static void case_done(linear_case *c)
{
    guarded_free(&c->rows);
    guarded_free(&c->x);
    guarded_free(&c->acts);
    guarded_free(&c->bias);
    if (c->packed.map) {
        guarded_free(&c->packed);
    }
}

/* Activation i of row r as the kernel sees it. */
static double act_value(const linear_case *c, const bt_cpu_kernels *k, uint32_t r, uint32_t i)
{
    const uint8_t *row = (const uint8_t *)c->acts.data + r * c->act_stride;

    if (k->act_form(&c->m) == BT_ACT_FORM_F32) {
        return ((const float *)row)[i];
    }
    const bt_act_block *b = (const bt_act_block *)row + i / BT_ACT_BLOCK;
    return (double)b->scale[i % BT_ACT_BLOCK / BT_ACT_PART] * b->q[i % BT_ACT_BLOCK];
}

/* How far an activation may move: half of its part's step, or to zero if the part is that small. */
static double half_step(const float *x, uint32_t i)
{
    const float *part = x + i / BT_ACT_PART * BT_ACT_PART;
    float        largest = 0.0f;

    for (int j = 0; j < BT_ACT_PART; j++) {
        largest = fabsf(part[j]) > largest ? fabsf(part[j]) : largest;
    }
    return largest < 0x1p-100f ? largest
                               : largest / BT_ACT_CODE_MAX_LEAST * (0.5 + 127 * gamma_of(4));
}

static void check_output(const linear_case *c, const bt_cpu_kernels *k, const float *weights,
                         uint32_t r, uint32_t o, float start, bool biased, float got)
{
    const uint8_t *row = (const uint8_t *)c->rows.data + o * c->row_bytes;
    const float   *x = (const float *)c->x.data + (size_t)r * c->n_in;
    const bool     codes = k->act_form(&c->m) == BT_ACT_FORM_Q8;
    const char    *name = bt_quant_type_find(c->type)->name;
    double         exact = 0.0, given = 0.0, magnitude = 0.0, step = 0.0;

    for (uint32_t i = 0; i < c->n_in; i++) {
        const double w = weights[i], a = act_value(c, k, r, i);
        const double extra = codes ? addend_bound(c->type, row, i) : 0.0;
        exact += w * a;
        given += w * x[i];
        magnitude += (fabs(w) + 2.0 * extra) * fabs(a);
        step += codes ? fabs(w) * half_step(x, i) : 0.0;
    }
    const double more = (biased ? ((const float *)c->bias.data)[o] : 0.0) + (double)start;
    /* Plain: one fused operation per input. Codes: at most four per block, and three roundings
     * inside a term. Then bias and the value before. */
    const double n = codes ? 4.0 * (c->n_in / 32) + 3 : c->n_in;
    const double bound = gamma_of(n + 2) * (magnitude + fabs(more) + fabs(exact)) + 0x1p-140;
    if (!within(got, exact + more, bound)) {
        check_failed("%s %u x %u, row %u, output %u: %.9g instead of %.9g, bound %.3g", name,
                     c->n_out, c->n_in, r, o, got, exact + more, bound);
    }
    if (!within(got, given + more, bound + step)) {
        check_failed("%s %u x %u, row %u, output %u: %.9g is too far from the exact %.9g", name,
                     c->n_out, c->n_in, r, o, got, given + more);
    }
}

static void run(const linear_case *c, const bt_cpu_kernels *k, uint32_t row, uint32_t n_rows,
                uint32_t out_first, uint32_t out_last, bool biased, bool add, float *y)
{
    k->linear(&c->m, (const uint8_t *)c->acts.data + row * c->act_stride, c->act_stride, n_rows,
              out_first, out_last, biased ? c->bias.data : NULL, add, y, c->n_out);
}

/* Every output near the truth, with and without bias and addition. */
static void check_values(const linear_case *c, const bt_cpu_kernels *k)
{
    float *weights = malloc(sizeof(float) * c->n_in);

    for (int mode = 0; mode < 2; mode++) {
        const bool biased = mode == 1, add = mode == 1;
        guarded    y = guarded_alloc(sizeof(float) * c->n_out * c->n_rows);
        float     *values = y.data;
        for (size_t i = 0; i < (size_t)c->n_out * c->n_rows; i++) {
            values[i] = add ? (float)i * 0.25f : NAN;
        }
        run(c, k, 0, c->n_rows, 0, c->n_out, biased, add, values);
        for (uint32_t o = 0; o < c->n_out; o++) {
            const uint8_t *row = (const uint8_t *)c->rows.data + o * c->row_bytes;
            if (bt_quant_type_decode(c->type, row, weights, c->n_in) != BT_OK) {
                abort();
            }
            for (uint32_t r = 0; r < c->n_rows; r++) {
                const size_t i = (size_t)r * c->n_out + o;
                check_output(c, k, weights, r, o, add ? (float)i * 0.25f : 0.0f, biased, values[i]);
            }
        }
        guarded_free(&y);
    }
    free(weights);
}

/* The same bits for a row alone, in company, and for any split of the outputs. */
static void check_invariance(const linear_case *c, const bt_cpu_kernels *k)
{
    const size_t n = (size_t)c->n_out * c->n_rows;
    guarded      whole = guarded_alloc(sizeof(float) * n), y = guarded_alloc(sizeof(float) * n);
    float       *want = whole.data, *got = y.data;

    run(c, k, 0, c->n_rows, 0, c->n_out, true, false, want);
    for (uint32_t r = 0; r < c->n_rows; r++) {
        run(c, k, r, 1, 0, c->n_out, true, false, got + (size_t)r * c->n_out);
    }
    if (memcmp(want, got, sizeof(float) * n) != 0) {
        check_failed("%s: a row alone differs from it in company",
                     bt_quant_type_find(c->type)->name);
    }
    for (uint32_t size = 2; size <= 17 && size < c->n_rows; size++) {
        memset(got, 0xff, sizeof(float) * n);
        for (uint32_t r = 0; r < c->n_rows; r += size) {
            const uint32_t rows = c->n_rows - r < size ? c->n_rows - r : size;
            for (uint32_t o = 0; o < c->n_out;) {
                const uint32_t width = 64 * (1 + random_below(3));
                const uint32_t last = c->n_out - o < width ? c->n_out : o + width;
                run(c, k, r, rows, o, last, true, false, got + (size_t)r * c->n_out);
                o = last;
            }
        }
        if (memcmp(want, got, sizeof(float) * n) != 0) {
            check_failed("%s: batches of %u differ from one batch",
                         bt_quant_type_find(c->type)->name, size);
        }
    }
    guarded_free(&whole);
    guarded_free(&y);
}

/* ISAs with the same layout do the same operations: the same bits (docs/quants.md, 8). */
static void check_other_tiers(const linear_case *c, const bt_cpu_kernels *k)
{
    const size_t n = (size_t)c->n_out * c->n_rows;
    guarded      mine = guarded_alloc(sizeof(float) * n), theirs = guarded_alloc(mine.size);

    run(c, k, 0, c->n_rows, 0, c->n_out, true, false, mine.data);
    for (int isa = BT_ISA_REF + 1; isa < BT_ISA_COUNT; isa++) {
        const bt_cpu_kernels *other = bt_cpu_kernels_get((bt_isa)isa);
        if (!other || other->layout_of(c->type, true) != c->m.layout) {
            continue;
        }
        run(c, other, 0, c->n_rows, 0, c->n_out, true, false, theirs.data);
        if (memcmp(mine.data, theirs.data, mine.size) != 0) {
            check_failed("%s: differs from isa %s", bt_quant_type_find(c->type)->name,
                         bt_cpu_isa_name(other->isa));
        }
    }
    guarded_free(&mine);
    guarded_free(&theirs);
}

void check_linear(const bt_cpu_kernels *k)
{
    /* Shapes with one row, odd tiles, partial strips and panels, and more inputs than one span. */
    const uint32_t shapes[][3] = {
        { 32, 1, 1 },    { 64, 17, 5 },   { 96, 64, 13 },  { 256, 15, 3 },   { 576, 80, 26 },
        { 512, 65, 19 }, { 1280, 48, 4 }, { 2304, 33, 14 }, { 768, 192, 40 },
    };

    for (size_t t = 0; t < BT_LEN(TYPES); t++) {
        for (size_t s = 0; s < BT_LEN(shapes); s++) {
            for (int repack = 0; repack < 2; repack++) {
                linear_case c = {
                    .type = TYPES[t], .n_in = shapes[s][0], .n_out = shapes[s][1],
                    .n_rows = shapes[s][2],
                };
                /* The file's rows are the reference's work in every ISA: a few shapes do. */
                if ((repack || s % 4 == 1) && case_make(&c, k, repack != 0)) {
                    check_values(&c, k);
                    check_invariance(&c, k);
                    if (c.m.layout != 0) {
                        check_other_tiers(&c, k);
                    }
                    case_done(&c);
                }
            }
        }
    }
}

/* ---- Packing ---- */

void check_pack(const bt_cpu_kernels *k)
{
    for (size_t t = 0; t < BT_LEN(TYPES); t++) {
        const uint32_t n_in = 512, n_out = 213;
        linear_case c = { .type = TYPES[t], .n_in = n_in, .n_out = n_out, .n_rows = 1 };
        if (!case_make(&c, k, true)) {
            check_failed("%s: no matrix of 512 inputs", bt_quant_type_find(TYPES[t])->name);
            continue;
        }
        if (c.packed.map) {
            /* In parts, from the last to the first, as threads may do it: the same outputs. */
            guarded parts = guarded_alloc(c.packed.size);
            float   whole[213], pieces[213];
            for (uint32_t first = n_out / 64 * 64;; first -= 64) {
                k->pack(c.type, n_out, n_in, c.rows.data, parts.data, first,
                        first + 64 < n_out ? first + 64 : n_out);
                if (first == 0) {
                    break;
                }
            }
            run(&c, k, 0, 1, 0, n_out, false, false, whole);
            c.m.data = parts.data;
            run(&c, k, 0, 1, 0, n_out, false, false, pieces);
            if (memcmp(whole, pieces, sizeof whole) != 0) {
                check_failed("%s: packed in parts differs", bt_quant_type_find(TYPES[t])->name);
            }
            guarded_free(&parts);
        }
        case_done(&c);
    }
}

void check_pack_bytes(const bt_cpu_kernels *k)
{
    for (size_t t = 0; t < BT_LEN(TYPES); t++) {
        uint64_t row_bytes = 0;
        const size_t packed = k->pack_bytes(TYPES[t], 64, 1024);
        if (!bt_quant_type_row_bytes(bt_quant_type_find(TYPES[t]), 1024, &row_bytes)) {
            abort();
        }
        /* No type may grow by more than a quarter: memory and bandwidth are what packing saves. */
        if (packed != 0 && (packed < 64 * row_bytes || packed > 80 * row_bytes)) {
            check_failed("%s: %zu bytes packed, %llu in the file",
                         bt_quant_type_find(TYPES[t])->name, packed,
                         (unsigned long long)(64 * row_bytes));
        }
        if (packed != 0 && k->pack_bytes(TYPES[t], 63, 1024) > packed) {
            check_failed("%s: fewer outputs need more", bt_quant_type_find(TYPES[t])->name);
        }
    }
}

void check_layout_of(const bt_cpu_kernels *k)
{
    for (size_t t = 0; t < BT_LEN(TYPES); t++) {
        if (k->layout_of(TYPES[t], false) != 0) {
            check_failed("%s: rows of the file are layout 0", bt_quant_type_find(TYPES[t])->name);
        }
        if (k->pack_bytes(TYPES[t], 16, 256) != 0 && k->layout_of(TYPES[t], true) == 0) {
            check_failed("%s: packed is not layout 0", bt_quant_type_find(TYPES[t])->name);
        }
    }
}

void check_decode_row(const bt_cpu_kernels *k)
{
    for (size_t t = 0; t < BT_LEN(TYPES); t++) {
        const uint32_t n_in = 512, n_rows = 3;
        uint64_t       row_bytes = 0;
        if (!bt_quant_type_row_bytes(bt_quant_type_find(TYPES[t]), n_in, &row_bytes)) {
            abort();
        }
        guarded rows = guarded_alloc(row_bytes * n_rows), got = guarded_alloc(sizeof(float) * n_in);
        float   want[512];
        fill_weights(TYPES[t], rows.data, n_in * n_rows);
        for (uint32_t r = 0; r < n_rows; r++) {
            k->decode_row(TYPES[t], rows.data, n_in, r, got.data);
            if (bt_quant_type_decode(TYPES[t], (uint8_t *)rows.data + r * row_bytes, want, n_in) !=
                        BT_OK ||
                memcmp(want, got.data, sizeof want) != 0) {
                check_failed("%s: row %u differs", bt_quant_type_find(TYPES[t])->name, r);
            }
        }
        guarded_free(&rows);
        guarded_free(&got);
    }
}
