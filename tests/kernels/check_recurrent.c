/* tests/kernels/check_recurrent.c - convolutions, the delta rule, and the choice of experts.
 *
 * Against the reference, which sums in double; u is 2^-24. How a call is cut (tokens, rows) must
 * not change one bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/tables.h"
#include "harness.h"

static const double U = 0x1p-24;

static const bt_cpu_kernels *reference(void)
{
    return bt_cpu_kernels_get(BT_ISA_REF);
}

static guarded floats(size_t n, pattern kind)
{
    guarded g = guarded_alloc(sizeof(float) * n);

    fill_pattern(kind, g.data, n);
    return g;
}

/* ---- short_conv ---- */

/* The sum's error is gamma(n_taps) of the sum of magnitudes; silu has a slope of at most 1.1, and
 * is itself good to 2^-22 and five roundings (check_glu). */
static void check_conv_of(const bt_cpu_kernels *k, uint32_t n, uint32_t n_taps, bt_activation act)
{
    guarded rows[4], taps = floats((size_t)n * n_taps, PATTERN_NORMAL);
    guarded got = floats(n, PATTERN_ZERO), want = floats(n, PATTERN_ZERO);
    const float *x[4], *w = taps.data, *y = got.data, *z = want.data;

    for (uint32_t m = 0; m < n_taps; m++) {
        rows[m] = floats(n, PATTERN_NORMAL);
        x[m] = rows[m].data;
    }
    reference()->short_conv(want.data, x, w, n, n_taps, n, act);
    k->short_conv(got.data, x, w, n, n_taps, n, act);
    for (uint32_t i = 0; i < n; i++) {
        double size = 0.0;
        for (uint32_t m = 0; m < n_taps; m++) {
            size += fabs((double)w[m * n + i] * (double)x[m][i]);
        }
        const double bound = 1.2 * gamma_of(n_taps + 1) * size
                             + fabs(z[i]) * (0x1p-22 + 6.0 * U) + 0x1p-120;
        if (!within(y[i], z[i], bound)) {
            check_failed("convolution of %u columns, %u taps: value %u is %.9g instead of %.9g", n,
                         n_taps, i, y[i], z[i]);
            break;
        }
    }
    for (uint32_t m = 0; m < n_taps; m++) {
        guarded_free(&rows[m]);
    }
    guarded_free(&taps);
    guarded_free(&got);
    guarded_free(&want);
}

void check_short_conv(const bt_cpu_kernels *k)
{
    static const uint32_t sizes[] = { 1, 3, 8, 15, 16, 17, 40, 256, 1001 };

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (uint32_t n_taps = 1; n_taps <= 4; n_taps++) {
            check_conv_of(k, sizes[s], n_taps, BT_ACT_SILU);
        }
        check_conv_of(k, sizes[s], 4, BT_ACT_SIGMOID);
    }
}

/* ---- delta_scan ---- */

enum { TOKENS = 70 };

typedef struct {
    bt_cpu_delta d;
    guarded q, k, v, alpha, beta, y, state, scratch;
} scan;

static scan make_scan(uint32_t dk, uint32_t dv, uint32_t n_tokens)
{
    scan s = { .q = floats((size_t)n_tokens * dk, PATTERN_NORMAL),
               .k = floats((size_t)n_tokens * dk, PATTERN_NORMAL),
               .v = floats((size_t)n_tokens * dv, PATTERN_NORMAL),
               .alpha = floats(n_tokens, PATTERN_NORMAL), .beta = floats(n_tokens, PATTERN_NORMAL),
               .y = floats((size_t)n_tokens * dv, PATTERN_ZERO),
               .state = floats((size_t)dk * dv, PATTERN_NORMAL),
               .scratch = floats(bt_cpu_delta_scratch(dk), PATTERN_ZERO) };

    s.d = (bt_cpu_delta){
        .q = s.q.data, .k = s.k.data, .v = s.v.data, .alpha = s.alpha.data, .beta = s.beta.data,
        .y = s.y.data, .q_stride = dk, .k_stride = dk, .v_stride = dv, .alpha_stride = 1,
        .beta_stride = 1, .y_stride = dv, .n_tokens = n_tokens, .dk = dk, .dv = dv,
        .row_first = 0, .row_last = dv, .decay = -1.0f - random_unit(), .dt_bias = -2.0f,
        .l2_eps = 1e-6f, .scale = 1.0f / sqrtf((float)dk), .state = s.state.data,
        .scratch = s.scratch.data,
    };
    return s;
}

static void free_scan(scan *s)
{
    guarded_free(&s->q);
    guarded_free(&s->k);
    guarded_free(&s->v);
    guarded_free(&s->alpha);
    guarded_free(&s->beta);
    guarded_free(&s->y);
    guarded_free(&s->state);
    guarded_free(&s->scratch);
}

/* One token. Unit vectors carry two roundings; |S k| <= |row| by Cauchy, and so is the sum of the
 * magnitudes of its terms. delta is off by (n + 6) u of |v| + |row|, the new row by that and three
 * roundings, its product with q by (n + 6) u of its length more. */
static void check_one_token(const bt_cpu_kernels *k, uint32_t dk, uint32_t dv)
{
    scan s = make_scan(dk, dv, 1);
    guarded start = guarded_alloc(s.state.size), y = guarded_alloc(s.y.size);
    guarded state = guarded_alloc(s.state.size);
    const float *before = start.data, *v = s.v.data;

    memcpy(start.data, s.state.data, s.state.size);
    reference()->delta_scan(&s.d);
    memcpy(y.data, s.y.data, y.size);
    memcpy(state.data, s.state.data, state.size);
    memcpy(s.state.data, start.data, start.size);
    k->delta_scan(&s.d);
    for (uint32_t c = 0; c < dv; c++) {
        double length = 0.0;
        for (uint32_t i = 0; i < dk; i++) {
            length += (double)before[c * dk + i] * (double)before[c * dk + i];
        }
        const double size = fabs((double)v[c]) + 2.0 * sqrt(length);
        const double bound = 2.0 * gamma_of(dk + 8) * size;
        if (!within(((float *)s.y.data)[c], ((float *)y.data)[c], bound * (double)s.d.scale)) {
            check_failed("delta rule %u x %u: value %u is %.9g instead of %.9g", dv, dk, c,
                         ((float *)s.y.data)[c], ((float *)y.data)[c]);
            break;
        }
        for (uint32_t i = 0; i < dk; i++) {
            const float got = ((float *)s.state.data)[c * dk + i];
            if (!within(got, ((float *)state.data)[c * dk + i], bound)) {
                check_failed("delta rule %u x %u: state %u, %u is %.9g instead of %.9g", dv, dk, c,
                             i, got, ((float *)state.data)[c * dk + i]);
                c = dv - 1;
                break;
            }
        }
    }
    free_scan(&s);
    guarded_free(&start);
    guarded_free(&y);
    guarded_free(&state);
}

/* All tokens and rows at once, against pieces of both. */
static void check_pieces(const bt_cpu_kernels *k, uint32_t dk, uint32_t dv, uint32_t tokens_step,
                         uint32_t rows_step)
{
    scan s = make_scan(dk, dv, TOKENS);
    guarded start = guarded_alloc(s.state.size), y = guarded_alloc(s.y.size);
    guarded state = guarded_alloc(s.state.size);

    memcpy(start.data, s.state.data, s.state.size);
    k->delta_scan(&s.d);
    memcpy(y.data, s.y.data, y.size);
    memcpy(state.data, s.state.data, state.size);
    memcpy(s.state.data, start.data, start.size);
    memset(s.y.data, 0, s.y.size);
    for (uint32_t t = 0; t < TOKENS; t += tokens_step) {
        bt_cpu_delta part = s.d;
        part.n_tokens = TOKENS - t < tokens_step ? TOKENS - t : tokens_step;
        part.q += t * part.q_stride;
        part.k += t * part.k_stride;
        part.v += t * part.v_stride;
        part.y += t * part.y_stride;
        part.alpha += t;
        part.beta += t;
        for (uint32_t row = 0; row < dv; row += rows_step) {
            part.row_first = row;
            part.row_last = dv - row < rows_step ? dv : row + rows_step;
            k->delta_scan(&part);
        }
    }
    if (memcmp(y.data, s.y.data, y.size) != 0 ||
        memcmp(state.data, s.state.data, state.size) != 0) {
        check_failed("delta rule %u x %u: %u tokens and %u rows at a time give other bits", dv, dk,
                     tokens_step, rows_step);
    }
    free_scan(&s);
    guarded_free(&start);
    guarded_free(&y);
    guarded_free(&state);
}

/* exp(a softplus(x)) and sigmoid against the library, to the last bit of f32 or its neighbour. */
static void check_gates(void)
{
    for (float x = -120.0f; x < 120.0f; x += 0.0371f) {
        const float decays[] = { -0.01f, -1.0f, -16.0f };
        for (size_t i = 0; i < sizeof decays / sizeof decays[0]; i++) {
            float keep, beta;
            bt_cpu_delta_gates(x, 0.25f, decays[i], x, &keep, &beta);
            const double sum = (double)x + 0.25;
            const double soft = sum > 20.0 ? sum : log1p(exp(sum));
            const double want = exp((double)decays[i] * soft), open = 1.0 / (1.0 + exp(-(double)x));
            if (!within(keep, want, U * want + 0x1p-149) ||
                !within(beta, open, U * open + 0x1p-149)) {
                check_failed("gates at %.9g, decay %g: %.9g and %.9g instead of %.9g and %.9g", x,
                             decays[i], keep, beta, want, open);
                return;
            }
        }
    }
}

void check_delta_scan(const bt_cpu_kernels *k)
{
    static const uint32_t dims[][2] = { { 1, 1 }, { 8, 8 }, { 16, 8 }, { 20, 12 }, { 32, 32 },
                                        { 64, 64 }, { 100, 70 }, { 128, 128 } };

    check_gates();
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        for (int round = 0; round < 4; round++) {
            check_one_token(k, dims[i][0], dims[i][1]);
        }
        check_pieces(k, dims[i][0], dims[i][1], 1, 1000);
        check_pieces(k, dims[i][0], dims[i][1], 33, 8);
        check_pieces(k, dims[i][0], dims[i][1], 7, 24);
    }
    check_delta_chunks(k);
}

/* ---- route and combine ---- */

static void check_route_of(const bt_cpu_kernels *k, const float *scores, uint32_t n,
                           uint32_t n_used, bool renormalise)
{
    float got[2 * 64], want[2 * 64];

    reference()->route(scores, n, n_used, renormalise, want);
    k->route(scores, n, n_used, renormalise, got);
    for (uint32_t j = 0; j < n_used; j++) {
        if (got[j] != want[j]) {
            check_failed("route %u of %u: number %u is %g instead of %g", n_used, n, j, got[j],
                         want[j]);
            return;
        }
        /* Two exponentials of differences, one division; the difference is off by u of itself. */
        const double difference = fabs((double)scores[(int)want[j]] - (double)scores[(int)want[0]]);
        const double relative = 2.0 * 0x1p-22 + (4.0 + 2.0 * difference) * U;
        if (!within(got[n_used + j], want[n_used + j],
                    fabs(want[n_used + j]) * relative + 0x1p-120)) {
            check_failed("route %u of %u: share %u is %.9g instead of %.9g", n_used, n, j,
                         got[n_used + j], want[n_used + j]);
            return;
        }
    }
}

/* Sorted by the rule itself: larger first, of equals the lower number. */
static void check_order(const float *scores, uint32_t n, uint32_t n_used)
{
    uint32_t best[64];

    bt_cpu_best_scores(scores, n, n_used, best);
    for (uint32_t j = 0; j < n_used; j++) {
        uint32_t n_before = 0;
        for (uint32_t i = 0; i < n; i++) {
            n_before += scores[i] > scores[best[j]] ||
                        (scores[i] == scores[best[j]] && i < best[j]);
        }
        if (n_before != j) {
            check_failed("the best %u of %u: %u in place %u stands behind %u", n_used, n, best[j],
                         j, n_before);
            return;
        }
    }
}

void check_route(const bt_cpu_kernels *k)
{
    static const uint32_t counts[][2] = { { 1, 1 }, { 8, 2 }, { 8, 8 }, { 60, 4 }, { 256, 8 },
                                          { 512, 10 }, { 100, 64 } };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int round = 0; round < 20; round++) {
            guarded g = floats(counts[i][0], PATTERN_NORMAL);
            float  *scores = g.data;
            for (uint32_t j = 0; j < counts[i][0] && round % 2; j++) {
                scores[j] = floorf(4.0f * scores[j]);        /* many equal ones */
            }
            check_order(scores, counts[i][0], counts[i][1]);
            check_route_of(k, scores, counts[i][0], counts[i][1], round % 3 != 0);
            guarded_free(&g);
        }
    }
    /* Whatever comes in, the numbers are those of different experts. */
    float odd[8] = { NAN, INFINITY, 1.0f, NAN, -INFINITY, 1.0f, NAN, 0.0f }, to[16];
    k->route(odd, 8, 8, true, to);
    uint32_t seen = 0;
    for (int j = 0; j < 8; j++) {
        seen |= to[j] >= 0.0f && to[j] < 8.0f ? 1u << (uint32_t)to[j] : 0;
    }
    if (seen != 0xff || to[0] != 1.0f || to[1] != 2.0f || to[2] != 5.0f || to[3] != 7.0f) {
        check_failed("route of odd scores: numbers %g %g %g %g, seen %x", to[0], to[1], to[2],
                     to[3], seen);
    }
}

void check_combine(const bt_cpu_kernels *k)
{
    static const uint32_t sizes[] = { 1, 7, 16, 33, 200 };

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (uint32_t n_used = 1; n_used <= 10; n_used += 3) {
            const uint32_t n = sizes[s];
            const bool add = n_used % 2 == 0;
            guarded x = floats((size_t)n * n_used, PATTERN_NORMAL);
            guarded by = floats(n_used, PATTERN_NORMAL);
            guarded got = floats(n, PATTERN_SPIKE), want = guarded_alloc(got.size);
            guarded start = guarded_alloc(got.size);
            const float *a = x.data, *b = by.data;
            memcpy(want.data, got.data, got.size);
            memcpy(start.data, got.data, got.size);
            reference()->combine(want.data, a, n, b, n_used, n, add);
            k->combine(got.data, a, n, b, n_used, n, add);
            for (uint32_t i = 0; i < n; i++) {
                double size = add ? fabs(((float *)start.data)[i]) : 0.0;
                for (uint32_t j = 0; j < n_used; j++) {
                    size += fabs((double)b[j] * (double)a[j * n + i]);
                }
                if (!within(((float *)got.data)[i], ((float *)want.data)[i],
                            gamma_of(n_used + 1) * size)) {
                    check_failed("combine %u of %u: value %u is %.9g instead of %.9g", n_used, n, i,
                                 ((float *)got.data)[i], ((float *)want.data)[i]);
                    break;
                }
            }
            guarded_free(&x);
            guarded_free(&by);
            guarded_free(&got);
            guarded_free(&want);
            guarded_free(&start);
        }
    }
}
