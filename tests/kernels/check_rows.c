/* tests/kernels/check_rows.c - norms, pointwise functions, rotations and stores of one row.
 *
 * The reference computes in double and rounds once; u is 2^-24. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "harness.h"

static const uint32_t SIZES[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 576, 1000, 2049 };
static const double   U = 0x1p-24;

static const bt_cpu_kernels *reference(void)
{
    return bt_cpu_kernels_get(BT_ISA_REF);
}

static guarded floats(uint32_t n, pattern kind)
{
    guarded g = guarded_alloc(sizeof(float) * n);

    fill_pattern(kind, g.data, n);
    return g;
}

static guarded copy_of(const guarded *from)
{
    guarded g = guarded_alloc(from->size);

    memcpy(g.data, from->data, from->size);
    return g;
}

/* got against want, each within `relative` of want plus `absolute`. */
static void compare(const char *what, const float *got, const float *want, uint32_t n,
                    double relative, double absolute)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!within(got[i], want[i], relative * fabs(want[i]) + absolute)) {
            check_failed("%s of %u: value %u is %.9g instead of %.9g", what, n, i, got[i], want[i]);
            return;
        }
    }
}

void check_rmsnorm(const bt_cpu_kernels *k)
{
    for (size_t s = 0; s < BT_LEN(SIZES); s++) {
        for (int kind = 0; kind < PATTERN_COUNT; kind++) {
            const uint32_t n = SIZES[s];
            guarded x = floats(n, (pattern)kind), w = floats(n, PATTERN_NORMAL);
            guarded want = floats(n, PATTERN_ZERO), got = floats(n, PATTERN_ZERO);
            reference()->rmsnorm(want.data, x.data, w.data, n, 1e-5f);
            k->rmsnorm(got.data, x.data, w.data, n, 1e-5f);
            /* The factor as f32, two products, and the reference's own rounding. */
            compare("rmsnorm", got.data, want.data, n, 4.1 * U, 0x1p-126);
            k->rmsnorm(x.data, x.data, w.data, n, 1e-5f);
            if (memcmp(x.data, got.data, x.size) != 0) {
                check_failed("rmsnorm in place differs, n %u", n);
            }
            guarded_free(&x);
            guarded_free(&w);
            guarded_free(&want);
            guarded_free(&got);
        }
    }
}

void check_add(const bt_cpu_kernels *k)
{
    for (size_t s = 0; s < BT_LEN(SIZES); s++) {
        const uint32_t n = SIZES[s];
        guarded x = floats(n, PATTERN_NORMAL), got = floats(n, PATTERN_SPIKE), want = copy_of(&got);
        reference()->add(want.data, x.data, n);
        k->add(got.data, x.data, n);
        compare("add", got.data, want.data, n, 0.0, 0.0);
        guarded_free(&x);
        guarded_free(&want);
        guarded_free(&got);
    }
}

void check_scale(const bt_cpu_kernels *k)
{
    for (size_t s = 0; s < BT_LEN(SIZES); s++) {
        const uint32_t n = SIZES[s];
        guarded x = floats(n, PATTERN_NORMAL), got = floats(n, PATTERN_ZERO), want = copy_of(&got);
        reference()->scale(want.data, x.data, n, 25.298f);
        k->scale(got.data, x.data, n, 25.298f);
        compare("scale", got.data, want.data, n, 0.0, 0.0);
        k->scale(x.data, x.data, n, 25.298f);
        compare("scale in place", x.data, want.data, n, 0.0, 0.0);
        guarded_free(&x);
        guarded_free(&want);
        guarded_free(&got);
    }
}

/* y = g * s(t) * up with s(t) = 1 / (1 + e^-t). The exponential is good to 2^-22; so is the sum,
 * and two roundings follow, and the product with up. For gelu t itself carries four roundings,
 * which the exponential turns into |t| 4 u, weighed by how much of the sum it is, 1 - s(t). Results
 * below the normal range, and those where e^-t leaves it (t < -87), are as good as that range. */
static double glu_bound(bt_activation act, double g, double want)
{
    const double root = sqrt(2.0 / 3.14159265358979323846);
    const double t = act != BT_ACT_GELU_TANH ? g : 2.0 * root * (g + 0.044715 * g * g * g);
    const double share = t < -40.0 ? 1.0 : 1.0 - 1.0 / (1.0 + exp(-t));
    const double from_t = act != BT_ACT_GELU_TANH ? 0.0 : fabs(t) * 4.0 * U * share;

    return fabs(want) * (0x1p-22 + 5.0 * U + from_t) + 0x1p-120;
}

static void check_glu_rows(const bt_cpu_kernels *k, const float *gate, const float *up, uint32_t n,
                           bt_activation act)
{
    guarded want = floats(n, PATTERN_ZERO), got = floats(n, PATTERN_ZERO);
    float  *w = want.data, *y = got.data;

    reference()->glu(w, gate, up, n, act);
    k->glu(y, gate, up, n, act);
    for (uint32_t i = 0; i < n; i++) {
        if (!within(y[i], w[i], glu_bound(act, gate[i], w[i]))) {
            check_failed("%s(%.9g) * %.9g is %.9g instead of %.9g",
                         act == BT_ACT_SILU ? "silu" : act == BT_ACT_SIGMOID ? "sigmoid" : "gelu",
                         gate[i], up[i], y[i], w[i]);
            break;
        }
    }
    guarded_free(&want);
    guarded_free(&got);
}

void check_glu(const bt_cpu_kernels *k)
{
    for (int act = BT_ACT_SILU; act <= BT_ACT_SIGMOID; act++) {
        for (size_t s = 0; s < BT_LEN(SIZES); s++) {
            for (int kind = 0; kind < PATTERN_COUNT; kind++) {
                const uint32_t n = SIZES[s];
                guarded gate = floats(n, (pattern)kind), up = floats(n, PATTERN_NORMAL);
                check_glu_rows(k, gate.data, up.data, n, (bt_activation)act);
                guarded_free(&gate);
                guarded_free(&up);
            }
        }
        /* A fine comb over all of the range that the exponential has. */
        for (float from = -110.0f; from < 110.0f; from += 1.0f) {
            float gate[256], up[256];
            for (int i = 0; i < 256; i++) {
                gate[i] = from + (float)i / 256.0f;
                up[i] = 1.0f;
            }
            check_glu_rows(k, gate, up, 256, (bt_activation)act);
        }
        float gate[3] = { NAN, 1.0f, NAN }, up[3] = { 1.0f, NAN, 0.0f };
        check_glu_rows(k, gate, up, 3, (bt_activation)act);
    }
}

void check_softcap(const bt_cpu_kernels *k)
{
    for (size_t s = 0; s < BT_LEN(SIZES); s++) {
        for (int kind = 0; kind < PATTERN_COUNT; kind++) {
            guarded got = floats(SIZES[s], (pattern)kind), want = copy_of(&got);
            reference()->softcap(want.data, SIZES[s], 30.0f);
            k->softcap(got.data, SIZES[s], 30.0f);
            /* tanh is good to 2^-21; division, product and the reference round once each. */
            compare("softcap", got.data, want.data, SIZES[s], 0x1p-21 + 3.1 * U, 0x1p-126);
            guarded_free(&got);
            guarded_free(&want);
        }
    }
    for (float from = -40.0f; from < 40.0f; from += 0.25f) {
        float got[256], want[256];
        for (int i = 0; i < 256; i++) {
            got[i] = want[i] = from + (float)i / 1024.0f;
        }
        reference()->softcap(want, 256, 2.0f);
        k->softcap(got, 256, 2.0f);
        compare("softcap", got, want, 256, 0x1p-21 + 3.1 * U, 0x1p-126);
    }
}

static void check_rope_of(const bt_cpu_kernels *k, uint32_t n_rot, bt_rope_style style)
{
    guarded x = floats(n_rot, PATTERN_NORMAL), want = copy_of(&x), got = copy_of(&x);
    guarded cosines = guarded_alloc(sizeof(float) * n_rot / 2);
    guarded sines = guarded_alloc(sizeof(float) * n_rot / 2);
    float  *c = cosines.data, *s = sines.data;
    const float *from = x.data, *w = want.data, *y = got.data;

    for (uint32_t i = 0; i < n_rot / 2; i++) {
        const float angle = 3.0f * random_unit();
        c[i] = cosf(angle) * 1.1f;
        s[i] = sinf(angle) * 1.1f;
    }
    reference()->rope(want.data, c, s, n_rot, style);
    k->rope(got.data, c, s, n_rot, style);
    for (uint32_t i = 0; i < n_rot; i++) {
        const uint32_t pair = style == BT_ROPE_NORM ? i / 2 : i % (n_rot / 2);
        const uint32_t other = style == BT_ROPE_NORM ? i ^ 1u
                               : i < n_rot / 2 ? i + n_rot / 2 : i - n_rot / 2;
        const double size = fabs(from[i] * (double)c[pair]) + fabs(from[other] * (double)s[pair]);
        if (!within(y[i], w[i], 3.1 * U * size)) {
            check_failed("rope of %u, style %d: value %u is %.9g instead of %.9g", n_rot,
                         (int)style, i, y[i], w[i]);
            break;
        }
    }
    guarded_free(&x);
    guarded_free(&want);
    guarded_free(&got);
    guarded_free(&cosines);
    guarded_free(&sines);
}

void check_rope(const bt_cpu_kernels *k)
{
    for (uint32_t n_rot = 2; n_rot <= 260; n_rot += n_rot < 40 ? 2 : 22) {
        check_rope_of(k, n_rot, BT_ROPE_NORM);
        check_rope_of(k, n_rot, BT_ROPE_NEOX);
    }
}

/* The bytes of bt_quant_type_encode, whatever the value. */
static void check_store_of(const bt_cpu_kernels *k, bt_type type, const float *x, uint32_t n)
{
    uint64_t bytes = 0;

    if (!bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), n, &bytes)) {
        abort();
    }
    guarded got = guarded_alloc(bytes), want = guarded_alloc(bytes);
    if (bt_quant_type_encode(type, x, want.data, n) != BT_OK) {
        abort();
    }
    k->kv_store(type, x, got.data, n);
    if (memcmp(got.data, want.data, bytes) != 0) {
        check_failed("%u values of %s differ", n, bt_quant_type_find((uint32_t)type)->name);
    }
    guarded_free(&got);
    guarded_free(&want);
}

void check_kv_store(const bt_cpu_kernels *k)
{
    const bt_type plain[] = { BT_TYPE_F32, BT_TYPE_F16, BT_TYPE_BF16 };
    float         x[1024];

    for (size_t t = 0; t < BT_LEN(plain); t++) {
        for (uint32_t n = 1; n <= 70; n++) {
            fill_pattern(PATTERN_NORMAL, x, n);
            check_store_of(k, plain[t], x, n);
        }
        /* Any bits: NaN, infinities, denormals, ties. */
        for (int round = 0; round < 400; round++) {
            for (int i = 0; i < 1024; i++) {
                const uint32_t bits = (uint32_t)random_u64();
                const uint32_t kind = random_below(4);
                x[i] = bt_float_of_bits(kind == 0 ? bits : kind == 1 ? bits & 0xfffff000u
                    : kind == 2 ? bits & 0xffff8000u
                    : (bits & 0x80ffffffu) | (0x33u + random_below(0x15)) << 24);
            }
            check_store_of(k, plain[t], x, 1024);
        }
    }
    const bt_type blocks[] = { BT_TYPE_Q8_0, BT_TYPE_Q4_0, BT_TYPE_Q4_1, BT_TYPE_Q5_0, BT_TYPE_Q5_1,
                               BT_TYPE_IQ4_NL };
    for (size_t t = 0; t < BT_LEN(blocks); t++) {
        fill_pattern(PATTERN_NORMAL, x, 192);
        check_store_of(k, blocks[t], x, 192);
    }
}
