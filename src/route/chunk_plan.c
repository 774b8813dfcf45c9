/* route/chunk_plan.c - see chunk_plan.h. */
#include "route/chunk_plan.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/status.h"

/* Less than this is below what the model knows, and not worth another step. */
static const double WORTH_MS = 0.5;

/* A link is seldom better than it was, and never known exactly. A state that is late has nothing
 * behind it to hide in, so a last chunk that is too short for it costs far more than one that is
 * too long: plans of prompts with states are judged by the link as measured and at two slower
 * rates. */
static const double SLOW = 1.4, SLOWEST = 1.8;

enum { CHUNKS_MAX = 64 };              /* that are planned at once */

/* ---- the model: one machine computes, one link sends ---- */

static uint32_t last_max(const bt_route_plan *t)
{
    return t->last_max > t->chunk ? t->last_max : t->chunk;
}

/* What layer `i` sends of a chunk with these bytes of rows and of state in all. */
static double layer_bytes(const bt_route_plan *t, uint32_t i, double rows, double state)
{
    const uint64_t n = t->n_layers, r = t->n_row_layers;
    if (r == 0 || r >= n) {
        return (rows + state) / (double)n;
    }
    return (i + 1) * r / n > i * r / n ? rows / (double)r : state / (double)(n - r);
}

double bt_route_chunk_plan_ms(const bt_route_plan *t, const uint32_t *splits, uint32_t n_splits)
{
    double computed = 0, sent = 0;
    uint32_t at = t->first, cut = 0;
    while (at < t->end) {
        while (cut < n_splits && splits[cut] <= at) {
            cut++;
        }
        const uint32_t stop = cut < n_splits && splits[cut] < t->end ? splits[cut] : t->end;
        const uint32_t most = n_splits > 0 && cut == n_splits ? last_max(t) : t->chunk;
        const uint32_t n = stop - at < most ? stop - at : most;
        const double layer_ms = (t->step_ms + n * t->token_ms) / t->n_layers;
        const double state = at + n == t->end ? (double)t->state_bytes : 0;
        const double rows = (double)n * (double)t->token_bytes;
        for (uint32_t i = 0; i < t->n_layers; i++) {
            computed += layer_ms;
            sent = (sent > computed ? sent : computed) +
                   layer_bytes(t, i, rows, state) / t->bytes_per_ms;
        }
        at += n;
    }
    return sent > computed ? sent : computed;
}

/* ---- candidates ---- */

/* Ends with a chunk of `last` tokens. Each chunk before it is as long as the next one's computing
 * can hide, until chunks are whole. Gives the number of splits, falling positions. */
static uint32_t cut_from_the_end(const bt_route_plan *t, uint32_t last, uint32_t *falling)
{
    const uint32_t parts = t->n_row_layers > 0 ? t->n_row_layers : t->n_layers;
    const double per_ms = t->bytes_per_ms * parts / (double)t->token_bytes;
    uint32_t n = 0, at = t->end, size = last;
    /* One place is left for the cut of a first chunk. */
    while (n < BT_ROUTE_SPLITS_MAX - 1 && (n == 0 || size < t->chunk) && size < at - t->first) {
        at -= size;
        falling[n++] = at;
        const double longer = (t->step_ms + size * t->token_ms) * per_ms;
        if (longer < size * 1.25) {
            break;                      /* the link is the slower side: no end of splits */
        }
        size = longer < t->chunk ? (uint32_t)longer : t->chunk;
    }
    return n;
}

/* A first chunk of `begin` tokens (0: a whole one) and a last one of `last`. */
static uint32_t cut(const bt_route_plan *t, uint32_t begin, uint32_t last, uint32_t *ret_splits)
{
    uint32_t falling[BT_ROUTE_SPLITS_MAX];
    const uint32_t n_falling = last > 0 ? cut_from_the_end(t, last, falling) : 0;
    uint32_t n = 0;
    if (begin > 0 && begin < t->chunk && begin < t->end - t->first &&
        (n_falling == 0 || t->first + begin < falling[n_falling - 1])) {
        ret_splits[n++] = t->first + begin;
    }
    for (uint32_t i = n_falling; i > 0; i--) {
        ret_splits[n++] = falling[i - 1];
    }
    return n;
}

/* The last chunk whose computing takes as long as sending it with the state over a slow link; 0:
 * none does. */
static uint32_t covering(const bt_route_plan *t)
{
    const double per_ms = t->bytes_per_ms / SLOW;
    const double gain = per_ms * t->token_ms - (double)t->token_bytes;
    const double owed = (double)t->state_bytes - per_ms * t->step_ms;
    if (t->state_bytes == 0 || gain <= 0 || owed <= 0) {
        return 0;
    }
    const double n = owed / gain + 1;
    return n < last_max(t) ? (uint32_t)n : last_max(t);
}

/* By a part: the first state leaves when the first layer is through, not when the chunk begins. */
static uint32_t longer(const bt_route_plan *t, uint32_t n, uint32_t part)
{
    return n + n / part < last_max(t) ? n + n / part : last_max(t);
}

static double ms_on_slower_link(const bt_route_plan *t, double slower, const uint32_t *splits,
                                uint32_t n_splits)
{
    bt_route_plan slow = *t;
    slow.bytes_per_ms /= slower;
    return bt_route_chunk_plan_ms(&slow, splits, n_splits);
}

/* What a plan is judged by. */
static double judged_ms(const bt_route_plan *t, const uint32_t *splits, uint32_t n_splits)
{
    const double ms = bt_route_chunk_plan_ms(t, splits, n_splits);
    return t->state_bytes == 0 ? ms
                               : (ms + ms_on_slower_link(t, SLOW, splits, n_splits) +
                                  ms_on_slower_link(t, SLOWEST, splits, n_splits)) / 3;
}

/* The end of a long prompt is planned as if it began CHUNKS_MAX chunks before it, so that planning
 * takes about a millisecond whatever is asked. */
static bt_route_plan end_of(const bt_route_plan *t)
{
    bt_route_plan end = *t;
    if ((t->end - t->first) / t->chunk >= CHUNKS_MAX) {
        end.first = t->end - CHUNKS_MAX * t->chunk;
    }
    return end;
}

uint32_t bt_route_chunk_plan_make(const bt_route_plan *whole,
                                  uint32_t ret_splits[BT_ROUTE_SPLITS_MAX])
{
    BT_ASSERT(whole->chunk > 0 && whole->n_layers > 0 && whole->first <= whole->end);
    const bt_route_plan part = end_of(whole), *t = &part;
    const uint32_t begins[] = { 0, 32, 128 };
    const size_t n_begins = t->first == whole->first ? BT_LEN(begins) : 1;
    const uint32_t cover = covering(t);
    const uint32_t lasts[] = { 0, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512,
                               cover / 4, cover / 2, cover * 3 / 4, cover,
                               longer(t, cover, 8), longer(t, cover, 4), longer(t, cover, 2) };
    if (!(t->token_ms > 0) || !(t->bytes_per_ms > 0) || t->token_bytes == 0) {
        return 0;
    }
    double best = judged_ms(t, NULL, 0) - WORTH_MS;
    uint32_t n_best = 0;
    for (size_t b = 0; b < n_begins; b++) {
        for (size_t i = 0; i < BT_LEN(lasts); i++) {
            uint32_t splits[BT_ROUTE_SPLITS_MAX];
            const uint32_t n = cut(t, begins[b], lasts[i], splits);
            const double ms = judged_ms(t, splits, n);
            if (n > 0 && ms < best) {
                best = ms;
                n_best = n;
                memcpy(ret_splits, splits, n * sizeof *splits);
            }
        }
    }
    return n_best;
}
