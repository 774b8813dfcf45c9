/* route/router.h - where a prompt is cheapest: pure arithmetic, no clocks, no threads.
 *
 * From fitted costs (cost/fit.h), queues and loads come the predicted milliseconds until the first
 * token, for this machine and for each worker (docs/handoff.md, "Where a prompt goes").
 *
 * Threads: callers lock. Failure: none.
 */
#ifndef BT_ROUTE_ROUTER_H
#define BT_ROUTE_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cost/fit.h"

/* Steps of at most `chunk` (0: any) tokens that n take; at least one, unless n is 0. */
double bt_route_steps(double n, uint32_t chunk);

/* ---- the places ---- */

/* Work of others that is done before or beside a prompt. */
typedef struct { double n_tokens, attended; } bt_route_load;

/* This machine. */
typedef struct {
    const bt_cost_fit *step;                /* of prompts and their steps; NULL: nothing known */
    uint32_t chunk;                    /* tokens of one prompt in a step at most; 0: no limit */
    double   decode_ms;                /* of each step spent on decoding now; 0: nobody decodes */
    double   gap_ms;                   /* what a step may take while somebody does */
    double   last_ms;                  /* evaluating one token, as after a remote prefill */
    bt_route_load ahead;
} bt_route_here;

/* A worker. */
typedef struct {
    bool     ready;                    /* and has room for it; what is below is known before */
    /* of a prompt that is alone there; NULL: nothing known */
    const bt_cost_fit *compute;
    uint32_t chunk;                    /* as of this machine */
    const bt_cost_fit *link;                /* of bytes that were waited for; NULL: nothing known */
    double   round_trip_ms;
    double   lead_ms;                  /* until the first rows are here, without waiting in line */
    double   tail_ms;                  /* transfer that computing did not hide, smoothed */
    bt_route_load ahead;
    uint32_t n_known;                  /* positions of this prompt that it has in its cache */
    double   idle_ms;                  /* since it was last given a prompt; 0: never was */
    uint32_t n_passed;                 /* prompts since then for which it was not chosen */
} bt_route_worker;

/* ---- the choice ---- */

typedef struct {
    uint32_t position_first, position_end;   /* rows wanted */
    uint64_t token_bytes;              /* KV bytes of each */
    uint64_t state_bytes;              /* recurrent state that comes with the last of them */
    uint32_t min_tokens;               /* explicit threshold; ignored with `automatic` */
    bool     automatic;
    uint32_t min_first;                /* with `automatic`, until workers are measured */
    bool     always;                   /* the request asks for a worker */
    bool     last_remote;              /* the previous automatic answer: hysteresis */
    bool     hedged;                   /* a probe is prefilled here as well, so it costs no time */
    bt_route_here here;
} bt_route_question;

typedef struct {
    int    worker;                     /* index, or -1: here */
    bool   wanted_remote;              /* -1 only because no worker could take it: a fallback */
    bool   measured;                   /* both times below are known and were compared */
    bool   probe;                      /* chosen to learn what it costs */
    double remote_ms, local_ms;        /* the best worker's, and here; 0: unknown */
} bt_route_answer;

/* The other side must be this much faster before the mind is changed. */
#define BT_ROUTE_MARGIN 1.03
/* A worker passed over for so long, or so often, gets a prompt again, or nobody would learn that it
 * has become faster; unless it would take this many times as long as here and is not hedged. */
#define BT_ROUTE_STALE_MS 60000.0
#define BT_ROUTE_STALE_PROMPTS 16u
#define BT_ROUTE_PROBE_MAX 4.0
/* Samples before a place is judged: the first one also pays for memory that is touched first. */
#define BT_ROUTE_SAMPLES_MIN 2u
/* Where workers took all, this machine is measured with prompts of at most so many tokens. */
#define BT_ROUTE_LOCAL_PROBE_TOKENS 1024u

/* `skip`: an index that must not be chosen (it failed this prompt), or -1. */
bt_route_answer bt_route_choose(const bt_route_question *q, const bt_route_worker *workers,
                                 uint32_t n_workers, int skip, char *reason, size_t reason_size);
/* Milliseconds until the first token; 0: unknown. */
double bt_route_remote_ms(const bt_route_question *q, const bt_route_worker *w);
double bt_route_local_ms(const bt_route_question *q);
/* The smallest prompt from position 0 that `automatic` sends to this worker were everything idle;
 * UINT32_MAX: none. */
uint32_t bt_route_break_even(const bt_route_question *q, const bt_route_worker *w);

#endif
