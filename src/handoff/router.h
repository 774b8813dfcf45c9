/* handoff/router.h - where a prompt is cheapest: pure arithmetic, no clocks, no threads.
 *
 * Everything that takes time is a fitted cost: ms = a * pieces + b * n + c * keys, over what was
 * measured, with old samples fading. `pieces` are steps or prompts, `n` tokens or bytes, and `keys`
 * the positions that all rows look back at, because a row is dearer the deeper it stands. From
 * costs, lines and loads come the predicted milliseconds until the first token, for this machine
 * and for each worker (docs/handoff.md, "Where a prompt goes").
 *
 * Threads: callers lock. Failure: none.
 */
#ifndef BT_HANDOFF_ROUTER_H
#define BT_HANDOFF_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- a cost through samples, the newer the heavier ---- */

enum { BT_FIT_CLASSES = 16, BT_FIT_TERMS = 3 };

typedef struct { double xx[BT_FIT_TERMS][BT_FIT_TERMS], xy[BT_FIT_TERMS]; } bt_fit_sums;

typedef struct {
    bt_fit_sums classes[BT_FIT_CLASSES];   /* by size, so that many of one size leave the others */
    double cost[BT_FIT_TERMS];             /* ms per piece, per unit of n, per key; none below 0 */
    uint64_t n_samples;
    int    surprise;                       /* the last sample was far above (1), below (-1) it */
} bt_fit;

/* Samples that are no measurement (n or ms not above 0) are ignored. */
void   bt_cost_fit_put(bt_fit *f, double pieces, double n, double keys, double ms);
bool   bt_cost_fit_known(const bt_fit *f);
/* 0 when nothing is known. */
double bt_cost_fit_at(const bt_fit *f, double pieces, double n, double keys);
/* n per ms for one piece of n that begins at position 0; 0 when nothing is known. */
double bt_cost_fit_rate(const bt_fit *f, double n);

/* Positions that rows [first, end) look back at, all together. */
double bt_route_keys(double first, double end);

/* Steps of at most `chunk` (0: any) tokens that n take; at least one, unless n is 0. */
double bt_route_steps(double n, uint32_t chunk);

/* ---- the places ---- */

/* Work of others that is done before or beside a prompt. */
typedef struct { double n_tokens, keys; } bt_router_load;

/* This machine. */
typedef struct {
    const bt_fit *step;                /* of prompts and their steps; NULL: nothing known */
    uint32_t chunk;                    /* tokens of one prompt in a step at most; 0: no limit */
    double   decode_ms;                /* of each step spent on decoding now; 0: nobody decodes */
    double   gap_ms;                   /* what a step may take while somebody does */
    double   last_ms;                  /* evaluating one token, as after a remote prefill */
    bt_router_load ahead;
} bt_router_here;

/* A worker. */
typedef struct {
    bool     ready;                    /* and has room for it; what is below is known before */
    const bt_fit *compute;             /* of a prompt that is alone there; NULL: nothing known */
    uint32_t chunk;                    /* as of this machine */
    const bt_fit *link;                /* of bytes that were waited for; NULL: nothing known */
    double   round_trip_ms;
    double   lead_ms;                  /* until the first rows are here, without waiting in line */
    double   tail_ms;                  /* transfer that computing did not hide, smoothed */
    bt_router_load ahead;
    uint32_t n_known;                  /* positions of this prompt that it has in its cache */
    double   idle_ms;                  /* since it was last given a prompt; 0: never was */
    uint32_t n_passed;                 /* prompts since then for which it was not chosen */
} bt_router_worker;

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
    bt_router_here here;
} bt_router_question;

typedef struct {
    int    worker;                     /* index, or -1: here */
    bool   wanted_remote;              /* -1 only because no worker could take it: a fallback */
    bool   measured;                   /* both times below are known and were compared */
    bool   probe;                      /* chosen to learn what it costs */
    double remote_ms, local_ms;        /* the best worker's, and here; 0: unknown */
} bt_router_answer;

/* The other side must be this much faster before the mind is changed. */
#define BT_ROUTER_MARGIN 1.03
/* A worker passed over for so long, or so often, gets a prompt again, or nobody would learn that it
 * has become faster; unless it would take this many times as long as here and is not hedged. */
#define BT_ROUTER_STALE_MS 60000.0
#define BT_ROUTER_STALE_PROMPTS 16u
#define BT_ROUTER_PROBE_MAX 4.0
/* Samples before a place is judged: the first one also pays for memory that is touched first. */
#define BT_ROUTER_SAMPLES_MIN 2u
/* Where workers took all, this machine is measured with prompts of at most so many tokens. */
#define BT_ROUTER_LOCAL_PROBE_TOKENS 1024u

/* `skip`: an index that must not be chosen (it failed this prompt), or -1. */
bt_router_answer bt_route_choose(const bt_router_question *q, const bt_router_worker *workers,
                                 uint32_t n_workers, int skip, char *reason, size_t reason_size);
/* Milliseconds until the first token; 0: unknown. */
double bt_route_remote_ms(const bt_router_question *q, const bt_router_worker *w);
double bt_route_local_ms(const bt_router_question *q);
/* The smallest prompt from position 0 that `automatic` sends to this worker were everything idle;
 * UINT32_MAX: none. */
uint32_t bt_route_break_even(const bt_router_question *q, const bt_router_worker *w);

#endif
