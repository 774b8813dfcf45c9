/* cost/fit.c - see fit.h.
 *
 * Weighted least squares over ms per unit of n, so that a long prompt does not outweigh what short
 * ones tell of fixed costs; coefficients are held at or above 0. Samples of about one size cannot
 * tell the three apart, and noise would decide: work is mainly per unit until samples of several
 * sizes say otherwise, which a ridge on the two other terms sees to.
 */
#include "cost/fit.h"

#include <math.h>

/* A sample counts half after 16 newer ones of its size and after 64 of any: a change of the link or
 * of the load shows within a few prompts, one odd prompt moves little, and a hundred steps of one
 * long prompt do not wipe out what short ones cost. 2^(-1/16), 2^(-1/64). */
#define FADE_OWN 0.9576032806985737
#define FADE_ALL 0.9892280131939755
/* Two samples in a row so far off, on the same side: the world has changed, and the old is told to
 * go faster. */
#define SURPRISE 1.5
#define SURPRISE_KEEPS 0.1
/* The two other terms are drawn to 0 as by PRIOR of a sample: (noise / share)^2, with noise of 10 %
 * and a third of the time as their share. Five samples outweigh it where their sizes spread by 15 %
 * or more, twenty where by 7 %. RIDGE is what stays of it however many there are. */
#define RIDGE 1e-3
#define PRIOR 0.1

enum { PIECES, UNITS, ATTENDED };

static uint32_t class_of(double n)
{
    int exponent = 0;
    (void)frexp(n, &exponent);
    const int c = exponent <= 0 ? 0 : (exponent - 1) / 2;
    return c < BT_COST_CLASSES ? (uint32_t)c : BT_COST_CLASSES - 1;
}

static void scale(bt_cost_sums *s, double by)
{
    for (int i = 0; i < BT_COST_TERMS; i++) {
        s->xy[i] *= by;
        for (int j = 0; j < BT_COST_TERMS; j++) {
            s->xx[i][j] *= by;
        }
    }
}

static void add(bt_cost_sums *to, const bt_cost_sums *s)
{
    for (int i = 0; i < BT_COST_TERMS; i++) {
        to->xy[i] += s->xy[i];
        for (int j = 0; j < BT_COST_TERMS; j++) {
            to->xx[i][j] += s->xx[i][j];
        }
    }
}

/* ---- solving ---- */

/* The terms in `mask` of a * x = b by elimination, others 0; false when one comes out below 0 or
 * the terms cannot be told apart. The matrix is positive definite with a unit diagonal. */
static bool solve_subset(const bt_cost_sums *s, unsigned mask, double *x)
{
    double a[BT_COST_TERMS][BT_COST_TERMS + 1];
    int terms[BT_COST_TERMS], n = 0;
    for (int i = 0; i < BT_COST_TERMS; i++) {
        x[i] = 0;
        if (mask & 1u << i) {
            terms[n++] = i;
        }
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            a[i][j] = s->xx[terms[i]][terms[j]];
        }
        a[i][n] = s->xy[terms[i]];
    }
    for (int i = 0; i < n; i++) {
        if (a[i][i] < 1e-9) {
            return false;
        }
        for (int k = i + 1; k < n; k++) {
            const double by = a[k][i] / a[i][i];
            for (int j = i; j <= n; j++) {
                a[k][j] -= by * a[i][j];
            }
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double sum = a[i][n];
        for (int j = i + 1; j < n; j++) {
            sum -= a[i][j] * x[terms[j]];
        }
        x[terms[i]] = sum / a[i][i];
    }
    for (int i = 0; i < n; i++) {
        if (x[terms[i]] < 0) {
            return false;
        }
    }
    return true;
}

/* What is left of the squares, up to a constant. */
static double objective(const bt_cost_sums *s, const double *x)
{
    double sum = 0;
    for (int i = 0; i < BT_COST_TERMS; i++) {
        sum -= 2 * s->xy[i] * x[i];
        for (int j = 0; j < BT_COST_TERMS; j++) {
            sum += x[i] * s->xx[i][j] * x[j];
        }
    }
    return sum;
}

/* Three terms have seven subsets: the best one without a negative term is the answer. */
static void solve(bt_cost_fit *f)
{
    bt_cost_sums s = { 0 };
    double size[BT_COST_TERMS], best = 0;
    for (int c = 0; c < BT_COST_CLASSES; c++) {
        add(&s, &f->classes[c]);
    }
    unsigned there = 0;
    for (int i = 0; i < BT_COST_TERMS; i++) {
        size[i] = s.xx[i][i] > 0 ? sqrt(s.xx[i][i]) : 0;
        there |= size[i] > 0 ? 1u << i : 0;
    }
    const double weight = s.xx[UNITS][UNITS];       /* of all samples, as many as are not faded */
    for (int i = 0; i < BT_COST_TERMS; i++) {
        for (int j = 0; j < BT_COST_TERMS; j++) {
            s.xx[i][j] = size[i] > 0 && size[j] > 0 ? s.xx[i][j] / (size[i] * size[j]) : 0;
        }
        s.xy[i] = size[i] > 0 ? s.xy[i] / size[i] : 0;
        s.xx[i][i] += i == UNITS || weight <= 0 ? 0 : RIDGE + PRIOR / weight;
    }
    for (unsigned mask = 1; mask < 1u << BT_COST_TERMS; mask++) {
        double x[BT_COST_TERMS];
        if ((mask & ~there) != 0 || !solve_subset(&s, mask, x)) {
            continue;
        }
        const double left = objective(&s, x);
        if (left < best) {
            best = left;
            for (int i = 0; i < BT_COST_TERMS; i++) {
                f->cost[i] = size[i] > 0 ? x[i] / size[i] : 0;
            }
        }
    }
}

/* ---- public ---- */

void bt_cost_fit_put(bt_cost_fit *f, double pieces, double n, double attended, double ms)
{
    if (!(n > 0) || !(ms > 0) || !isfinite(ms) || !(pieces >= 0) || !(attended >= 0)) {
        return;
    }
    const double x[BT_COST_TERMS] = { pieces / n, 1, attended / n }, y = ms / n;
    bt_cost_sums sample;
    for (int i = 0; i < BT_COST_TERMS; i++) {
        sample.xy[i] = x[i] * y;
        for (int j = 0; j < BT_COST_TERMS; j++) {
            sample.xx[i][j] = x[i] * x[j];
        }
    }
    const double told = bt_cost_fit_at(f, pieces, n, attended);
    const int surprise = told <= 0 ? 0 : ms > told * SURPRISE ? 1 : ms < told / SURPRISE ? -1 : 0;
    const bool changed = surprise != 0 && surprise == f->surprise;
    const uint32_t own = class_of(n);
    f->surprise = surprise;
    for (uint32_t c = 0; c < BT_COST_CLASSES; c++) {
        scale(&f->classes[c], (c == own ? FADE_OWN : FADE_ALL) * (changed ? SURPRISE_KEEPS : 1));
    }
    add(&f->classes[own], &sample);
    f->n_samples++;
    solve(f);
}

bool bt_cost_fit_known(const bt_cost_fit *f)
{
    return f && f->n_samples > 0;
}

double bt_cost_fit_at(const bt_cost_fit *f, double pieces, double n, double attended)
{
    return bt_cost_fit_known(f)
                   ? f->cost[PIECES] * pieces + f->cost[UNITS] * n + f->cost[ATTENDED] * attended
                   : 0;
}

double bt_cost_fit_rate(const bt_cost_fit *f, double n)
{
    const double ms = bt_cost_fit_at(f, 1, n, bt_cost_attended(0, n));
    return ms > 0 ? n / ms : 0;
}

double bt_cost_attended(double first, double end)
{
    return end > first ? (end - first) * (first + end + 1) / 2 : 0;
}
