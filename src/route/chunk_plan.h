/* route/chunk_plan.h - where a prompt is split, so that little is left to send when computing ends.
 *
 * While a chunk computes, its layers leave one by one. What no computing hides is the tail: the
 * last layer of the last chunk, and of a recurrent state what the last chunk was too short to hide.
 * A small last chunk has a small tail, but every step has a fixed cost (weights are read once
 * more), and a state wants a last chunk that is long enough. Where the link is the slower side, a
 * small first chunk gives it something to do earlier. The plan is whatever a small model of both
 * machines says is ready first.
 *
 * Pure arithmetic: no clocks, no memory. Threads: any. Failure: none.
 */
#ifndef BT_ROUTE_CHUNK_PLAN_H
#define BT_ROUTE_CHUNK_PLAN_H

#include <stdint.h>

enum { BT_ROUTE_SPLITS_MAX = 16 };

typedef struct {
    uint32_t first, end;               /* positions to compute and to send */
    uint32_t chunk;                    /* tokens in a step at most, >= 1 */
    uint32_t last_max;                 /* the same behind the last cut, where a state is to be
                                          covered; >= chunk, else as chunk */
    uint32_t n_layers;                 /* parts of a chunk that leave one by one, >= 1; 1: a chunk
                                          leaves as a whole when it is computed */
    uint32_t n_row_layers;             /* so many of these, evenly spread and the last among them,
                                          have rows, the others the state; 0: all have both */
    uint64_t token_bytes;              /* of one token, all layers, on the wire */
    uint64_t state_bytes;              /* recurrent state, all layers; leaves with the last chunk */
    double   token_ms, step_ms;        /* a step of n tokens takes step_ms + n * token_ms */
    double   bytes_per_ms;             /* of the link */
} bt_route_plan;

/* Positions in (first, end), rising, where a step must end; gives how many. Between them steps take
 * `chunk` tokens, behind the last all that are left. 0: chunk after chunk is as good, or rate or
 * link are not known (<= 0). */
uint32_t bt_route_chunk_plan_make(const bt_route_plan *t, uint32_t ret_splits[BT_ROUTE_SPLITS_MAX]);

/* From the first step's begin until all is sent, with these splits; the way there is not in it. */
double bt_route_chunk_plan_ms(const bt_route_plan *t, const uint32_t *splits, uint32_t n_splits);

#endif
