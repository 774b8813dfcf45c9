/* handoff/router.h - where a prompt is cheapest: pure arithmetic, no clocks, no threads.
 *
 * Times are fitted lines, time(n) = fixed + n * per_token, over what was measured, with old
 * samples fading. The estimate for a worker is that of docs/handoff.md: round trip, work ahead of
 * us, then computing or the link, whichever is longer, then the tail that nothing hides.
 *
 * Threads: callers lock. Failure: none.
 */
#ifndef BT_HANDOFF_ROUTER_H
#define BT_HANDOFF_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- a line through samples (x, y), the newer the heavier ---- */

typedef struct { double w, x, y, xx, xy; } bt_fit;

void   bt_fit_put(bt_fit *f, double x, double y);
bool   bt_fit_known(const bt_fit *f);
/* y at x; the line never falls and never starts below 0. 0 when nothing is known. */
double bt_fit_at(const bt_fit *f, double x);
/* x per unit of y on a long run; 0 when nothing is known. */
double bt_fit_rate(const bt_fit *f);

/* ---- the choice ---- */

typedef struct {
    bool     ready;
    double   round_trip_ms;
    bt_fit   compute_ms;               /* over tokens */
    double   bytes_per_ms;             /* goodput; 0: not yet */
    double   tail_ms;                  /* exposed transfer so far, smoothed */
    uint64_t tokens_ahead;             /* given to it and not finished */
    double   measured_age_ms;          /* since it last committed a prompt */
} bt_router_worker;

typedef struct {
    uint32_t n_tokens;                 /* to be prefilled */
    uint64_t token_bytes;              /* KV bytes of each */
    uint32_t min_tokens;               /* explicit threshold; ignored with `automatic` */
    bool     automatic;
    uint32_t min_first;                /* with `automatic`, until both sides are measured */
    bool     always;                   /* the request asks for a worker */
    bool     last_remote;              /* the previous automatic answer: hysteresis */
    const bt_fit *local_ms;            /* over tokens */
} bt_router_question;

typedef struct {
    int    worker;                     /* index, or -1: here */
    bool   wanted_remote;              /* -1 only because no worker was ready */
    bool   measured;                   /* both times below were used */
    double remote_ms, local_ms;        /* 0: unknown */
} bt_router_answer;

/* Local must be this much faster before a ready worker is passed over, because a worker leaves
 * this machine free to decode; and a worker must be no slower at all to be taken up again. */
#define BT_ROUTER_BIAS 1.25
/* A worker passed over for so long gets a prompt again, or nobody would learn that it has become
 * faster; unless it would take this many times as long as here. */
#define BT_ROUTER_STALE_MS 60000.0
#define BT_ROUTER_PROBE_MAX 4.0

/* `skip`: an index that must not be chosen (it failed this prompt), or -1. */
bt_router_answer bt_router_choose(const bt_router_question *q, const bt_router_worker *workers,
                                  uint32_t n_workers, int skip, char *reason, size_t reason_size);
/* Milliseconds until n_tokens would be here; 0: unknown. */
double bt_router_remote_ms(const bt_router_worker *w, uint32_t n_tokens, uint64_t token_bytes);
/* The smallest prompt that `automatic` sends to an idle worker; UINT32_MAX: none. */
uint32_t bt_router_break_even(const bt_router_question *q, const bt_router_worker *w);

#endif
