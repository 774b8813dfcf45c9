/* cost/fit.h - what work costs, fitted through samples of it, the newer the heavier.
 *
 * ms = a * pieces + b * n + c * attended. `pieces` are steps or prompts, `n` tokens or bytes, and
 * `attended` the positions that all rows look back at: a row is dearer the deeper it stands.
 *
 * Pure: no clock, no memory. Threads: callers lock. Failure: none. A zeroed fit knows nothing.
 */
#ifndef BT_COST_FIT_H
#define BT_COST_FIT_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_COST_CLASSES = 16, BT_COST_TERMS = 3 };

typedef struct { double xx[BT_COST_TERMS][BT_COST_TERMS], xy[BT_COST_TERMS]; } bt_cost_sums;

typedef struct {
    bt_cost_sums classes[BT_COST_CLASSES]; /* by size, so that many of one size leave the others */
    double cost[BT_COST_TERMS];             /* ms per piece, unit of n, attended position; >= 0 */
    uint64_t n_samples;
    int    surprise;                       /* the last sample was far above (1), below (-1) it */
} bt_cost_fit;

/* Samples that are no measurement (n or ms not above 0) are ignored. */
void   bt_cost_fit_put(bt_cost_fit *f, double pieces, double n, double attended, double ms);
bool   bt_cost_fit_known(const bt_cost_fit *f);
/* 0 when nothing is known. */
double bt_cost_fit_at(const bt_cost_fit *f, double pieces, double n, double attended);
/* n per ms for one piece of n that begins at position 0; 0 when nothing is known. */
double bt_cost_fit_rate(const bt_cost_fit *f, double n);

/* Positions that rows [first, end) look back at, all together. */
double bt_cost_attended(double first, double end);

#endif
