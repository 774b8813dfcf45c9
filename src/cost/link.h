/* cost/link.h - what a link carries, learned from how the rows of prompts arrived.
 *
 * Rows that come after the last one was computed wait for nothing but the link, so only those
 * measure it. Rows that kept pace with computing show a lower bound and may raise an estimate,
 * never lower it. What a shaper, a switch or a card had buffered is no goodput (docs/handoff.md,
 * "Where a prompt goes").
 *
 * Pure: no clock, no memory; milliseconds of any one clock. Threads: callers lock. Failure: none.
 * Zeroed: nothing known.
 */
#ifndef BT_COST_LINK_H
#define BT_COST_LINK_H

#include "cost/fit.h"

/* ---- when how many bytes of a prompt had come ---- */

enum { BT_COST_MARKS = 64 };

typedef struct {
    double   first_ms, first_bytes;    /* of the first frame; 0: none yet */
    double   bytes;                    /* in all */
    uint32_t n_marks;                  /* thinned out when full */
    struct { double ms, bytes; } marks[BT_COST_MARKS];
} bt_cost_arrivals;

/* `bytes` more, at `ms`. */
void   bt_cost_arrivals_put(bt_cost_arrivals *a, double ms, double bytes);
/* Bytes that had come by then; between two marks in proportion. */
double bt_cost_arrivals_at(const bt_cost_arrivals *a, double ms);
/* Bytes after the first frame: those that the time since then was for. */
double bt_cost_arrivals_timed(const bt_cost_arrivals *a);

/* ---- a link ---- */

typedef struct {
    bt_cost_fit transfer;              /* ms of bytes, where they were what was waited for */
    double      bytes_per_ms;          /* goodput; 0: it never was what was waited for */
    double      least_bytes_per_ms;    /* rows as they came, at the pace of computing */
    double      lead_ms;               /* until the first rows, queueing aside; smoothed */
    double      tail_ms;               /* transfer that computing did not hide; smoothed */
} bt_cost_link;

/* A committed prompt. */
typedef struct {
    const bt_cost_arrivals *arrivals;
    double sent_ms, end_ms;            /* PREFILL out; COMMIT here */
    double queue_ms;                   /* by the worker's clock */
    double exposed_ms;                 /* after all was computed */
    bool   alone;                      /* no other prompt was on the worker meanwhile */
    double frames_bytes_per_ms;        /* what large frames say of the link; 0: nothing */
} bt_cost_prompt;

void bt_cost_link_learn(bt_cost_link *l, const bt_cost_prompt *p);
/* One that was given up at `now_ms`: what has come took at most so long. */
void bt_cost_link_learn_part(bt_cost_link *l, const bt_cost_arrivals *a, double now_ms);

/* Bytes under way with which a worker never waits for CREDIT: twice what the path holds. */
double bt_cost_link_window(const bt_cost_link *l, double round_trip_ms);

#endif
