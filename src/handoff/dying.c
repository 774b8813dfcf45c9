/* handoff/dying.c - see dying.h. */
#include "handoff/dying.h"

static const double LAST_WORD_MS = 5000;       /* a worker's longest step, and then some */

void bt_handoff_cancelling_add(bt_dying *d, uint32_t stream, double now_ms)
{
    if (d->n < BT_DYING_MAX) {
        d->streams[d->n].stream = stream;
        d->streams[d->n].until_ms = now_ms + LAST_WORD_MS;
        d->n++;
    }
}

bool bt_handoff_cancelling_over(bt_dying *d, uint32_t stream)
{
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->streams[i].stream == stream) {
            d->streams[i] = d->streams[--d->n];
            return true;
        }
    }
    return false;
}

uint32_t bt_handoff_cancelling_count(bt_dying *d, double now_ms)
{
    for (uint32_t i = d->n; i > 0; i--) {
        if (d->streams[i - 1].until_ms <= now_ms) {
            d->streams[i - 1] = d->streams[--d->n];
        }
    }
    return d->n;
}
