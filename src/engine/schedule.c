/* One step's rows: first one row of every sequence that decodes, then prefill with what is left.
 *
 * While others decode, prefill is bounded by time, so that the gap between two tokens stays near
 * decode_gap_ms; the fit of pace.c says how many rows that is. Alone, a step is bounded too, at a
 * second, because cancelling and admitting wait for its end. The last step of a prompt that was
 * planned in steps is left whole for longer: it hides what has to be sent with it, and of two
 * halves the second would be too short for that.
 *
 * Which prompt goes first: the one with the fewest tokens left, less what could have been computed
 * since it was begun. So a short prompt overtakes a long one, and a long one cannot be overtaken
 * for ever: it waits at most for as much work as it is itself. */
#include "base/check.h"
#include "base/clock.h"
#include "engine/private.h"
#include "engine/state.h"

enum {
    ROWS_MIN_DECODING = 16,     /* prefill goes on, at least so fast, however slow the device is */
    ROWS_MIN_ALONE = 64,        /* below this a step wastes the reading of weights */
    ROWS_FIRST = 64             /* while nothing is known about the device */
};

static void add_part(bt_plan *p, bt_request *r, uint32_t n_rows, bool wants_logits)
{
    bt_step_part *part = &p->parts[p->n_parts];
    *part = (bt_step_part){ .request = r, .position = r->n_done, .n_rows = n_rows,
                            .logit_row = BT_NOTHING };
    p->sequences[p->n_parts] = (bt_step_sequence){ .row_first = p->n_rows, .n_rows = n_rows,
                                                   .position = r->n_done, .pages = r->lease.pages,
                                                   .n_pages = r->lease.n_pages,
                                                   .state_slot = r->lease.slot,
                                                   .is_long = r->is_long };
    for (uint32_t i = 0; i < n_rows; i++) {
        p->tokens[p->n_rows + i] = r->tokens[r->n_done + i];
        p->positions[p->n_rows + i] = r->n_done + i;
        p->row_sequence[p->n_rows + i] = p->n_parts;
    }
    p->n_rows += n_rows;
    p->n_parts++;
    if (wants_logits) {
        part->logit_row = p->n_logit_rows;
        p->logit_rows[p->n_logit_rows++] = p->n_rows - 1;
    }
}

/* Pages first, rows afterwards: making room for one sequence may end another. */
static void plan_decode(bt_engine *e)
{
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        bt_request *r = e->active[i];
        if (r && r->phase == BT_PHASE_DECODE) {
            r->waits_for_room = !bt_engine_ring_has_room(&r->ring);
            if (!r->waits_for_room) {
                (void)bt_engine_sequence_has_page(e, r);
            }
        }
    }
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        bt_request *r = e->active[i];
        if (r && r->phase == BT_PHASE_DECODE && !r->waits_for_room) {
            add_part(&e->plan, r, 1, true);
        }
    }
    e->plan.n_decode_rows = e->plan.n_rows;
}

/* ---- prefill ---- */

static double urgency(const bt_request *r, double now_ms, double rows_per_ms)
{
    return (now_ms - r->admitted_ms) * rows_per_ms - (r->n_prefill - r->n_done);
}

/* Whether its step may end in a token: one that was preempted may have a reader that is behind. */
static bool has_room_for_token(bt_request *r)
{
    r->waits_for_room = r->n_tokens > r->n_prompt && !bt_engine_ring_has_room(&r->ring);
    return !r->waits_for_room;
}

/* Sequences that have tokens left to prefill, most urgent first; gives how many. */
static uint32_t line_up(const bt_engine *e, bt_request **line)
{
    const double now = bt_clock_ms(), rate = bt_engine_pace_prefill_rate(&e->pace);
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        bt_request *r = e->active[i];
        if (!r || r->phase != BT_PHASE_PREFILL || !has_room_for_token(r)) {
            continue;
        }
        uint32_t at = n++;
        while (at > 0 && urgency(line[at - 1], now, rate) < urgency(r, now, rate)) {
            line[at] = line[at - 1];
            at--;
        }
        line[at] = r;
    }
    return n;
}

/* Rows of a prompt that begin at `position` and take about `ms`. */
static uint32_t rows_in(const bt_engine *e, bool decoding, double position, double ms,
                        uint32_t n_max)
{
    const double one = bt_engine_pace_prefill_ms(&e->pace, decoding, position);
    if (one <= 0) {
        return n_max < ROWS_FIRST ? n_max : ROWS_FIRST;
    }
    double n = ms / one;
    n = ms /
        bt_engine_pace_prefill_ms(&e->pace, decoding, position + n / 2); /* of the middle row */
    return n < 0 ? 0 : n < n_max ? (uint32_t)n : n_max;
}

/* Tokens of the prompt that may go into one step at most; whether it is the planned last one. */
static uint32_t rows_wanted(const bt_engine *e, const bt_request *r, bool *ret_last)
{
    uint32_t end = bt_engine_state_next_cut(e, r);
    bool last = r->n_cuts > 0;
    for (uint32_t i = r->n_cuts; i > 0; i--) {
        if (r->cuts[i - 1] > r->n_done) {
            end = r->cuts[i - 1] < end ? r->cuts[i - 1] : end;
            last = false;
        }
    }
    *ret_last = last;
    const uint32_t n = end - r->n_done;
    return last || n < r->n_prefill_chunk ? n : r->n_prefill_chunk;
}

/* How many of n rows take `ms`; of a planned last step, which has the device alone: all, or if that
 * is far too much, those of a long step. */
static uint32_t rows_in_time(const bt_engine *e, const bt_request *r, bool decoding, bool last,
                             double ms, uint32_t n)
{
    if (!last || decoding) {
        return rows_in(e, decoding, r->n_done, ms, n);
    }
    const double more_ms = BT_STEP_LAST_MAX_MS - BT_STEP_MAX_MS;
    const bool whole = rows_in(e, false, r->n_done, ms + more_ms + BT_STEP_LAST_MAX_MS, n) == n;
    return whole ? n : rows_in(e, false, r->n_done, ms + more_ms, n);
}

static void plan_prefill(bt_engine *e)
{
    bt_plan *p = &e->plan;
    bt_request *line[BT_PARALLEL_MAX];
    const uint32_t n_line = line_up(e, line);
    const bool decoding = p->n_decode_rows > 0;
    const uint32_t n_least = decoding ? ROWS_MIN_DECODING : ROWS_MIN_ALONE;
    double ms = decoding ? e->options.decode_gap_ms -
                                   bt_engine_pace_decode_ms(&e->pace, p->n_decode_rows)
                         : BT_STEP_MAX_MS;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n_line && p->n_rows < e->options.n_batch; i++) {
        bt_request *r = line[i];
        const uint32_t left = r->n_prefill - r->n_done, room = e->options.n_batch - p->n_rows;
        bool last;
        uint32_t n = rows_wanted(e, r, &last);
        n = n < room ? n : room;
        uint32_t in_time = rows_in_time(e, r, decoding, last, ms, n);
        const uint32_t least = n_rows < n_least ? n_least - n_rows : 0;
        in_time = in_time < least ? least : in_time;
        n = n < in_time ? n : in_time;
        if (n == 0) {
            break;
        }
        ms -= n * bt_engine_pace_prefill_ms(&e->pace, decoding, r->n_done + n / 2.0);
        p->n_keys += (double)n * (r->n_done + (n + 1) / 2.0);
        n_rows += n;
        add_part(p, r, n, n == left && !r->prefill_only && r->n_predict > 0);
    }
    p->n_prefill_rows = n_rows;
}

bool bt_engine_schedule(bt_engine *e)
{
    bt_plan *p = &e->plan;
    p->n_rows = p->n_parts = p->n_logit_rows = 0;
    p->n_decode_rows = p->n_prefill_rows = 0;
    p->n_keys = 0;
    plan_decode(e);
    plan_prefill(e);
    return p->n_rows > 0;
}
