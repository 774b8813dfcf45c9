/* tests/kernels/check_chunks.c - the delta rule in chunks against the token recurrence.
 *
 * How far chunks may be off, per row of the state. All factors keep, beta and |k| are at most 1, so
 * what is added to one token's d reaches any later d and the state's row with a factor of at most
 * 1: errors add up, they do not grow. With V the largest |v|, L the longest row of the state on its
 * way, |u| <= V + 2L, |w| <= 1, |d| <= V + L. Substitution leaves in row i
 *
 *     sum over j < i of (gamma(dk + i + 6) beta_i decay_ij + gamma(i + 2) |a_ij|) (|u| + |w| L)
 *
 * from the products k.k, the decays and the sum itself, and gamma(dk + n + 8) of V + 3L from the
 * rest of the row; the state's sum adds gamma(2n + 4) of L and of the decayed |d|. The outputs are
 * off by what the state is, times |q|, and by their own sums. The kernel under test adds per token
 * what check_recurrent.c grants it. These are worst cases, thousands of times what is found; in
 * double they are still some 1e-10 of the values, so that no mistake in the form hides below them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/tables.h"
#include "harness.h"

enum { CHUNK_MAX = 64, DIM_MAX = 128, TOKENS_MAX = 200 };

#define REAL       float
#define IN_REAL(x) single_##x
#include "delta_chunks.h"
#undef REAL
#undef IN_REAL
#define REAL       double
#define IN_REAL(x) double_##x
#include "delta_chunks.h"

static double gamma_in(double n, double u)
{
    return n * u / (1.0 - n * u);
}

/* One head and n tokens, in double and as the kernel wants them. */
typedef struct {
    uint32_t n, dk, dv;
    float    q[TOKENS_MAX * DIM_MAX], k[TOKENS_MAX * DIM_MAX], v[TOKENS_MAX * DIM_MAX];
    float    alpha[TOKENS_MAX], beta_in[TOKENS_MAX], keep[TOKENS_MAX], beta[TOKENS_MAX];
    float    start[DIM_MAX * DIM_MAX];
    double   unit_q[TOKENS_MAX * DIM_MAX], unit_k[TOKENS_MAX * DIM_MAX];
    float    single_q[TOKENS_MAX * DIM_MAX], single_k[TOKENS_MAX * DIM_MAX];
    double   state[DIM_MAX * DIM_MAX], y[TOKENS_MAX * DIM_MAX];     /* of the recurrence */
    double   v_max, row_max;
    float    decay, dt_bias, scale;
} head;

static void unit(const float *x, uint32_t n, double scale, double *to, float *to_single)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        to[i] = (double)x[i] * scale / sqrt(sum);
        to_single[i] = (float)to[i];
    }
}

/* Token by token, in double from end to end. */
static void recur(head *h)
{
    for (uint32_t i = 0; i < h->dk * h->dv; i++) {
        h->state[i] = (double)h->start[i];
    }
    for (uint32_t t = 0; t < h->n; t++) {
        const double *k = h->unit_k + t * h->dk, *q = h->unit_q + t * h->dk;
        for (uint32_t c = 0; c < h->dv; c++) {
            double      *row = h->state + (size_t)c * h->dk, v = (double)h->v[t * h->dv + c];
            const double length = sqrt(double_dot(row, row, h->dk)), keep = (double)h->keep[t];
            const double d = (double)h->beta[t] * (v - keep * double_dot(row, k, h->dk));
            for (uint32_t i = 0; i < h->dk; i++) {
                row[i] = keep * row[i] + d * k[i];
            }
            h->y[t * h->dv + c] = double_dot(row, q, h->dk);
            h->v_max = fmax(h->v_max, fabs(v));
            h->row_max = fmax(h->row_max, fmax(length, sqrt(double_dot(row, row, h->dk))));
        }
    }
}

/* keys_alike: later keys lean on the first, so that A is far from diagonal. */
static void make_head(head *h, uint32_t n, uint32_t dk, uint32_t dv, float decay, bool keys_alike)
{
    *h = (head){ .n = n, .dk = dk, .dv = dv, .decay = decay, .dt_bias = -2.0f,
                 .scale = 1.0f / sqrtf((float)dk) };
    fill_pattern(PATTERN_NORMAL, h->q, n * dk);
    fill_pattern(PATTERN_NORMAL, h->k, n * dk);
    fill_pattern(PATTERN_NORMAL, h->v, n * dv);
    fill_pattern(PATTERN_NORMAL, h->alpha, n);
    fill_pattern(PATTERN_NORMAL, h->beta_in, n);
    fill_pattern(PATTERN_NORMAL, h->start, dk * dv);
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < dk && keys_alike && t > 0; i++) {
            h->k[t * dk + i] += 2.0f * h->k[i];
        }
        unit(h->q + t * dk, dk, (double)h->scale, h->unit_q + t * dk, h->single_q + t * dk);
        unit(h->k + t * dk, dk, 1.0, h->unit_k + t * dk, h->single_k + t * dk);
        bt_cpu_delta_gates(h->alpha[t], h->dt_bias, decay, h->beta_in[t], &h->keep[t],
                           &h->beta[t]);
    }
    recur(h);
}

/* Adds what one chunk may lose, as a share of V + 3L; gives the share of its outputs' own sums. */
static double chunk_loss(const double_chunk *c, const head *h, uint32_t first, uint32_t n, double u,
                         double *loss)
{
    double longest = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        double sum = 0.0;
        *loss += gamma_in(h->dk + n + 8, u);
        for (uint32_t j = 0; j < i; j++) {
            *loss += gamma_in(h->dk + i + 6, u) * (double)h->beta[first + i] * c->decay[i][j]
                     + gamma_in(i + 2, u) * fabs(c->a[i][j]);
            sum += c->decay[i][j];
        }
        longest = fmax(longest, sum + 1.0);
    }
    *loss += gamma_in(2 * n + 4, u) * (1.0 + longest);
    return gamma_in(h->dk + n + 8, u) * (1.0 + longest);
}

static void compare(const char *what, const head *h, uint32_t size, const double *y,
                    const double *state, const double *most_y, double most_state)
{
    for (uint32_t i = 0; i < h->n * h->dv; i++) {
        if (!(fabs(y[i] - h->y[i]) <= most_y[i / h->dv])) {
            check_failed("%s, %u tokens of %u x %u by %u: output %u of token %u is %.9g instead of "
                         "%.9g (allowed %.1g)", what, h->n, h->dv, h->dk, size, i % h->dv,
                         i / h->dv, y[i], h->y[i], most_y[i / h->dv]);
            return;
        }
    }
    for (uint32_t i = 0; i < h->dk * h->dv; i++) {
        if (!(fabs(state[i] - h->state[i]) <= most_state)) {
            check_failed("%s, %u tokens of %u x %u by %u: state %u is %.9g instead of %.9g "
                         "(allowed %.1g)", what, h->n, h->dv, h->dk, size, i, state[i], h->state[i],
                         most_state);
            return;
        }
    }
}

typedef struct {
    double_chunk in_double;
    single_chunk in_single;
    double       y[TOKENS_MAX * DIM_MAX], state[DIM_MAX * DIM_MAX];
    float        y_single[TOKENS_MAX * DIM_MAX], state_single[DIM_MAX * DIM_MAX];
    double       most[TOKENS_MAX], most_single[TOKENS_MAX];
} work;

static void check_size(const head *h, uint32_t size, work *w)
{
    const double unit_size = h->v_max + 3.0 * h->row_max, scale = (double)h->scale;
    double loss = 0.0, loss_single = 0.0;

    for (uint32_t i = 0; i < h->dk * h->dv; i++) {
        w->state[i] = (double)(w->state_single[i] = h->start[i]);
    }
    for (uint32_t at = 0; at < h->n; at += size) {
        const uint32_t n = h->n - at < size ? h->n - at : size;
        const float   *v = h->v + at * h->dv;
        double_delta_chunk(&w->in_double, n, h->dk, h->dv, h->unit_q + at * h->dk,
                           h->unit_k + at * h->dk, v, h->keep + at, h->beta + at, w->state,
                           w->y + at * h->dv);
        single_delta_chunk(&w->in_single, n, h->dk, h->dv, h->single_q + at * h->dk,
                           h->single_k + at * h->dk, v, h->keep + at, h->beta + at,
                           w->state_single, w->y_single + at * h->dv);
        const double own = chunk_loss(&w->in_double, h, at, n, 0x1p-53, &loss);
        const double own_single = chunk_loss(&w->in_double, h, at, n, 0x1p-24, &loss_single);
        for (uint32_t i = at; i < at + n; i++) {
            /* The recurrence it is compared with is off by as much as chunks of one token. */
            w->most[i] = 2.0 * (loss + own) * unit_size * scale;
            w->most_single[i] = (loss_single + own_single) * unit_size * scale;
        }
    }
    compare("chunks in double", h, size, w->y, w->state, w->most, 2.0 * loss * unit_size);
    for (uint32_t i = 0; i < h->n * h->dv; i++) {
        w->y[i] = (double)w->y_single[i];
    }
    for (uint32_t i = 0; i < h->dk * h->dv; i++) {
        w->state[i] = (double)w->state_single[i];
    }
    compare("chunks in single", h, size, w->y, w->state, w->most_single, loss_single * unit_size);
}

/* The ISA's token recurrence against the one in double; errors of tokens add up. */
static void check_kernel(const bt_cpu_kernels *k, const head *h, work *w)
{
    const size_t n_scratch = bt_cpu_delta_scratch(h->dk);
    float *scratch = aligned_alloc(64, (n_scratch * sizeof(float) + 63) / 64 * 64);
    const bt_cpu_delta d = {
        .q = h->q, .k = h->k, .v = h->v, .alpha = h->alpha, .beta = h->beta_in, .y = w->y_single,
        .q_stride = h->dk, .k_stride = h->dk, .v_stride = h->dv, .alpha_stride = 1,
        .beta_stride = 1, .y_stride = h->dv, .n_tokens = h->n, .dk = h->dk, .dv = h->dv,
        .row_last = h->dv, .decay = h->decay, .dt_bias = h->dt_bias, .l2_eps = 1e-6f,
        .scale = h->scale, .state = w->state_single, .scratch = scratch,
    };
    const double each = 2.0 * gamma_of(h->dk + 8) * (h->v_max + 2.0 * h->row_max);

    memcpy(w->state_single, h->start, sizeof h->start);
    k->delta_scan(&d);
    for (uint32_t i = 0; i < h->n * h->dv; i++) {
        w->y[i] = (double)w->y_single[i];
        w->most[i / h->dv] = (i / h->dv + 1) * each * (double)h->scale;
    }
    for (uint32_t i = 0; i < h->dk * h->dv; i++) {
        w->state[i] = (double)w->state_single[i];
    }
    compare("token by token", h, 1, w->y, w->state, w->most, h->n * each);
    free(scratch);
}

void check_delta_chunks(const bt_cpu_kernels *k)
{
    static const struct { uint32_t n, dk, dv, size_first, size_step; } cases[] = {
        { 1, 8, 8, 1, 63 }, { 67, 16, 24, 1, 1 }, { 131, 32, 32, 1, 7 }, { 77, 100, 70, 5, 29 },
        { 133, 128, 128, 16, 48 },
    };
    static const float decays[] = { -0.01f, -1.5f, -16.0f };
    head *h = malloc(sizeof *h);
    work *w = calloc(1, sizeof *w);

    if (!h || !w) {
        abort();
    }
    for (size_t i = 0; i < 3 * sizeof cases / sizeof cases[0]; i++) {
        const size_t which = i / 3;
        make_head(h, cases[which].n, cases[which].dk, cases[which].dv, decays[i % 3], i % 2 != 0);
        check_kernel(k, h, w);
        for (uint32_t size = cases[which].size_first; size <= CHUNK_MAX;
             size += cases[which].size_step) {
            check_size(h, size, w);
        }
    }
    free(h);
    free(w);
}
