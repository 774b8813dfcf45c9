/* cost/link.c - see link.h. */
#include "cost/link.h"

/* Of a prompt of which so many bytes came late, the exposed time is the link's, not the tail's. */
#define LINK_BOUND 0.2
/* Both ends of what is late are seen up to NOISE_MS too late: by when a thread runs, and by half a
 * round trip that is only guessed. In 5 times that a rate is known to a fifth, in less (the last
 * layer of SmolLM2 over loopback: 230 KB in 0.3 to 3.6 ms, 64 MB/s to 0.7 GB/s, where it carries
 * 0.8 to 1.7) it is only known that the bytes took no longer than that and the noise. */
#define NOISE_MS 1.0
#define LINK_MS_MIN (5 * NOISE_MS)
/* What came while a clock ran, but may have left before: a shaper's burst, a switch's queue, a
 * card's ring give so much at once after a pause. A rate is made of what is beyond, and only where
 * that is most of it; what is less only says that the link is at least so fast. */
#define BUFFERED_BYTES 65536.0
#define LINK_BYTES_MIN (4 * BUFFERED_BYTES)
#define SMOOTH 0.25

static void smooth(double *value, double sample)
{
    *value += (sample - *value) * (*value > 0 ? SMOOTH : 1);
}

/* ---- arrivals ---- */

void bt_cost_arrivals_put(bt_cost_arrivals *a, double ms, double bytes)
{
    if (a->n_marks == BT_COST_MARKS) {
        for (uint32_t i = 0; i < BT_COST_MARKS / 2; i++) {
            a->marks[i] = a->marks[2 * i + 1];
        }
        a->n_marks = BT_COST_MARKS / 2;
    }
    if (a->n_marks == 0 && a->bytes <= 0) {
        a->first_ms = ms;
        a->first_bytes = bytes;
    }
    a->bytes += bytes;
    a->marks[a->n_marks].ms = ms;
    a->marks[a->n_marks++].bytes = a->bytes;
}

double bt_cost_arrivals_at(const bt_cost_arrivals *a, double ms)
{
    double at_ms = a->first_ms, at_bytes = a->first_bytes;
    for (uint32_t i = 0; i < a->n_marks; i++) {
        if (a->marks[i].ms >= ms) {
            const double span = a->marks[i].ms - at_ms;
            return ms <= at_ms || span <= 0
                    ? at_bytes : at_bytes + (a->marks[i].bytes - at_bytes) * (ms - at_ms) / span;
        }
        at_ms = a->marks[i].ms;
        at_bytes = a->marks[i].bytes;
    }
    return at_bytes;
}

double bt_cost_arrivals_timed(const bt_cost_arrivals *a) { return a->bytes - a->first_bytes; }

/* ---- learning ---- */

/* So many bytes took at most so long: worth knowing only where that is less than was thought. */
static void learn_at_most(bt_cost_link *l, double bytes, double ms)
{
    const double sent = bytes - BUFFERED_BYTES;
    if (sent > 0 && ms < bt_cost_fit_at(&l->transfer, 1, sent, 0)) {
        bt_cost_fit_put(&l->transfer, 1, sent, 0, ms);
    }
}

/* Rows that come after the last one was computed come as fast as the link is. */
static void learn_late(bt_cost_link *l, const bt_cost_prompt *p)
{
    const bt_cost_arrivals *a = p->arrivals;
    const double late = a->bytes - bt_cost_arrivals_at(a, p->end_ms - p->exposed_ms);
    if (late >= LINK_BYTES_MIN && p->exposed_ms >= LINK_MS_MIN) {
        bt_cost_fit_put(&l->transfer, 1, late - BUFFERED_BYTES, 0, p->exposed_ms);
        if (p->frames_bytes_per_ms <= 0) {
            smooth(&l->bytes_per_ms, (late - BUFFERED_BYTES) / p->exposed_ms);
        }
    } else {
        learn_at_most(l, bt_cost_arrivals_timed(a), p->end_ms - a->first_ms);
        learn_at_most(l, late, p->exposed_ms + NOISE_MS);
    }
    if (late < LINK_BOUND * a->bytes) {
        smooth(&l->tail_ms, p->exposed_ms);
    }
    const double lead = a->first_ms - p->sent_ms - p->queue_ms;
    smooth(&l->lead_ms, lead > 0 ? lead : 0);
}

void bt_cost_link_learn(bt_cost_link *l, const bt_cost_prompt *p)
{
    if (p->frames_bytes_per_ms > 0) {
        l->bytes_per_ms = p->frames_bytes_per_ms;
    }
    if (p->alone) {
        learn_late(l, p);
    }
    /* Rows that waited for computing tell how fast that was: the link carries at least as much. */
    const double transfer_ms = p->end_ms - p->arrivals->first_ms;
    const double sent = bt_cost_arrivals_timed(p->arrivals) - BUFFERED_BYTES;
    const double seen = transfer_ms >= NOISE_MS ? sent / transfer_ms : 0;
    if (seen > 0) {
        smooth(&l->least_bytes_per_ms, seen);
    }
    if (l->bytes_per_ms > 0 && l->bytes_per_ms < seen) {
        l->bytes_per_ms = seen;
    }
}

void bt_cost_link_learn_part(bt_cost_link *l, const bt_cost_arrivals *a, double now_ms)
{
    learn_at_most(l, bt_cost_arrivals_timed(a), now_ms - a->first_ms);
}

double bt_cost_link_window(const bt_cost_link *l, double round_trip_ms)
{
    const double rate = l->bytes_per_ms > 0 ? l->bytes_per_ms : l->least_bytes_per_ms;
    return 2 * rate * round_trip_ms;
}
