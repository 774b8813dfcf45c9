/* transfer/client.c - see client.h. */
#include "transfer/client.h"

#include <stddef.h>

#include "base/check.h"

/* CANCELLING: a worker's longest step, and then some. PENDING: an honest worker may be busy with
 * later prompts for long, and nobody waits for a checkpoint. */
static const uint64_t LAST_WORD_NS = 5000ull * 1000000, CHECKPOINT_NS = 600000ull * 1000000;

/* ---- names ---- */

#define X(name, text) text,
static const char *const states[] = { BT_TRANSFER_CLIENT_STATE_LIST(X) };
static const char *const inputs[] = { BT_TRANSFER_CLIENT_INPUT_LIST(X) };
static const char *const actions[] = { BT_TRANSFER_CLIENT_ACTION_LIST(X) };
#undef X

const char *bt_transfer_client_state_name(bt_transfer_client_state s)
{
    return (size_t)s < BT_LEN(states) ? states[s] : "unknown";
}

const char *bt_transfer_client_input_name(bt_transfer_client_input i)
{
    return (size_t)i < BT_LEN(inputs) ? inputs[i] : "unknown";
}

const char *bt_transfer_client_action_name(uint32_t bit)
{
    return bit < BT_LEN(actions) ? actions[bit] : "unknown";
}

/* ---- the table ---- */

#define DO(name) BT_TRANSFER_CLIENT_DO_##name
#define TO(state, what) { BT_TRANSFER_CLIENT_##state, (what) }
#define ON(input) [BT_TRANSFER_CLIENT_ON_##input]

/* Where an input makes no sense it is ignored, and a frame counted as late: a worker may say what
 * it likes, and reports of the driver may cross what has happened meanwhile. */
#define W TO(WAITING, 0)
#define S TO(SENT, 0)
#define P TO(PENDING, 0)
#define C TO(CANCELLING, 0)
#define D TO(DONE, 0)
#define W_LATE TO(WAITING, DO(LATE))
#define C_LATE TO(CANCELLING, DO(LATE))
#define D_LATE TO(DONE, DO(LATE))
/* Its last word; the ticket ends here only where a GONE has left that open. */
#define C_OVER TO(DONE, DO(END_CANCEL))
#define C_LATE_OVER TO(DONE, DO(LATE) | DO(END_CANCEL))
/* A checkpoint that does not hold costs the stream, and nothing that was committed. */
#define P_BAD TO(CANCELLING, DO(CORRUPT) | DO(DROP_CHECKPOINT) | DO(SEND_CANCEL))
#define P_GIVEN_UP TO(CANCELLING, DO(DROP_CHECKPOINT) | DO(SEND_CANCEL))
#define S_FAIL TO(CANCELLING, DO(SEND_CANCEL) | DO(END_FAIL))
#define S_BAD TO(CANCELLING, DO(CORRUPT) | DO(SEND_CANCEL) | DO(END_FAIL))
#define S_DISCONNECT TO(SENT, DO(DISCONNECT))

static const bt_transfer_client_cell
        table[BT_TRANSFER_CLIENT_INPUT_COUNT][BT_TRANSFER_CLIENT_STATE_COUNT] = {
    /*                  waiting               sent */
    ON(POSTED)       = { S,                    S, P, C, D },
    ON(UNSENDABLE)   = { TO(DONE, DO(END_FAIL)), S, P, C, D },
    ON(STORED)       = { W,                    S, P, C, D },
    ON(GONE)         = { W,                    TO(CANCELLING, DO(SEND_CANCEL)), P, C, D },
    ON(UNSTORED)     = { W,                    S_FAIL, P_GIVEN_UP, C, D },

    ON(PART)         = { W_LATE, TO(SENT, DO(STORE)), TO(PENDING, DO(STORE_CHECKPOINT)),
                         C_LATE, D_LATE },
    ON(UNASKED)      = { W_LATE, S_DISCONNECT, P_BAD, C_LATE, D_LATE },
    ON(AGREED)       = { W_LATE, TO(SENT, DO(ADVANCE)), TO(PENDING, DO(KEEP_CHECKPOINT)),
                         C_LATE, D_LATE },
    ON(AGREED_LAST)  = { W_LATE, TO(SENT, DO(ADVANCE)), TO(DONE, DO(KEEP_CHECKPOINT)),
                         C_LATE, D_LATE },
    ON(DIFFERS)      = { W_LATE, S_BAD, P_BAD, C_LATE, D_LATE },
    ON(COMMIT)       = { W_LATE, TO(DONE, DO(END_COMMIT)), P_BAD, C_LATE_OVER, D_LATE },
    ON(COMMIT_OWING) = { W_LATE, TO(PENDING, DO(END_COMMIT)), P_BAD, C_LATE, D_LATE },
    ON(COMMIT_DIFFERS) = { W_LATE, TO(DONE, DO(CORRUPT) | DO(SEND_CANCEL) | DO(END_FAIL)), P_BAD,
                         C_LATE_OVER, D_LATE },
    ON(FAILED)       = { W_LATE, TO(DONE, DO(END_FAIL)), TO(DONE, DO(DROP_CHECKPOINT)),
                         C_LATE_OVER, D_LATE },
    ON(CANCELLED)    = { W, S_DISCONNECT, TO(DONE, DO(CORRUPT) | DO(DROP_CHECKPOINT)), C_OVER, D },
    ON(STRANGE)      = { W_LATE, S_DISCONNECT, P_BAD, C_LATE, D_LATE },

    ON(CANCEL)       = { TO(DONE, DO(END_CANCEL)), TO(CANCELLING, DO(SEND_CANCEL) | DO(END_CANCEL)),
                         P, TO(CANCELLING, DO(END_CANCEL)), D },
    ON(HEDGE)        = { TO(WAITING, DO(PREFILL_HERE)), TO(SENT, DO(PREFILL_HERE)), P, C, D },
    ON(STALLED)      = { W, S_FAIL, P_GIVEN_UP, C_OVER, D },
    ON(DRAINING)     = { TO(DONE, DO(END_FAIL)), S, P, C, D },
    ON(CROWDED)      = { W, S, P_GIVEN_UP, C, D },
    ON(LOST)         = { TO(DONE, DO(END_FAIL)), TO(DONE, DO(END_FAIL)),
                         TO(DONE, DO(DROP_CHECKPOINT)), C_OVER, D },
};

bt_transfer_client_cell bt_transfer_client_table(bt_transfer_client_state s,
                                                 bt_transfer_client_input i)
{
    if ((size_t)s >= BT_TRANSFER_CLIENT_STATE_COUNT || (size_t)i >= BT_LEN(table)) {
        return (bt_transfer_client_cell)D;
    }
    return table[i][s];
}

/* ---- steps ---- */

void bt_transfer_client_init(bt_transfer_client *c, uint32_t n_checkpoints, uint64_t hedge_ns)
{
    *c = (bt_transfer_client){ .state = BT_TRANSFER_CLIENT_WAITING,
                               .n_checkpoints = n_checkpoints, .hedge_ns = hedge_ns,
                               .pause_ns = BT_TRANSFER_NEVER, .limit_ns = BT_TRANSFER_NEVER };
}

static void stored(bt_transfer_client *c)
{
    c->credit_owed += c->stored_size;
    c->stored_size = 0;
}

uint32_t bt_transfer_client_put(bt_transfer_client *c, bt_transfer_client_input i, uint64_t now_ns)
{
    const bt_transfer_client_cell cell = bt_transfer_client_table(c->state, i);
    uint32_t todo = cell.actions;
    if (c->ended) {                    /* once */
        todo &= ~(uint32_t)BT_TRANSFER_CLIENT_END_ANY;
    }
    c->ended |= (todo & BT_TRANSFER_CLIENT_END_ANY) != 0;
    if (i == BT_TRANSFER_CLIENT_ON_STORED) {
        stored(c);
    }
    c->checkpoint += (todo & DO(KEEP_CHECKPOINT)) != 0;
    if (cell.next == BT_TRANSFER_CLIENT_CANCELLING && c->state != cell.next) {
        c->frame_ns = now_ns;          /* from here on the worker's last word is waited for */
    }
    c->state = cell.next;
    return todo;
}

uint32_t bt_transfer_client_posted(bt_transfer_client *c, uint64_t window, uint64_t now_ns)
{
    if (c->state == BT_TRANSFER_CLIENT_WAITING) {
        c->window = c->credit_left = window;
        c->posted_ns = c->frame_ns = now_ns;
    }
    return bt_transfer_client_put(c, BT_TRANSFER_CLIENT_ON_POSTED, now_ns);
}

/* ---- frames ---- */

static bool receives(const bt_transfer_client *c)
{
    return c->state == BT_TRANSFER_CLIENT_SENT || c->state == BT_TRANSFER_CLIENT_PENDING;
}

/* Within the credit, and of a kind that may come now: after COMMIT there are no rows. */
static bt_transfer_client_input judge_part(const bt_transfer_client *c, bool rows, bool holds,
                                           uint32_t size)
{
    const bool now = !rows || c->state != BT_TRANSFER_CLIENT_PENDING;
    return holds && now && size <= c->credit_left ? BT_TRANSFER_CLIENT_ON_PART
                                                  : BT_TRANSFER_CLIENT_ON_UNASKED;
}

static bt_transfer_client_input judge(const bt_transfer_client *c, bt_transfer_frame frame,
                                      bool holds, uint32_t size)
{
    const bool owes = c->n_checkpoints > 0;
    const bool last = c->state == BT_TRANSFER_CLIENT_PENDING &&
                      c->checkpoint + 1 >= c->n_checkpoints;
    switch (frame) {
    case BT_TRANSFER_FRAME_ROWS:
    case BT_TRANSFER_FRAME_STATE:
        return judge_part(c, frame == BT_TRANSFER_FRAME_ROWS, holds, size);
    case BT_TRANSFER_FRAME_CHUNK:
        return !holds ? BT_TRANSFER_CLIENT_ON_DIFFERS
               : last ? BT_TRANSFER_CLIENT_ON_AGREED_LAST
                      : BT_TRANSFER_CLIENT_ON_AGREED;
    case BT_TRANSFER_FRAME_COMMIT:
        return holds ? (owes ? BT_TRANSFER_CLIENT_ON_COMMIT_OWING : BT_TRANSFER_CLIENT_ON_COMMIT)
                     : (owes ? BT_TRANSFER_CLIENT_ON_DIFFERS
                             : BT_TRANSFER_CLIENT_ON_COMMIT_DIFFERS);
    case BT_TRANSFER_FRAME_ERROR:
        return BT_TRANSFER_CLIENT_ON_FAILED;
    case BT_TRANSFER_FRAME_CANCELLED:
        return BT_TRANSFER_CLIENT_ON_CANCELLED;
    case BT_TRANSFER_FRAME_OTHER:
        break;
    }
    return BT_TRANSFER_CLIENT_ON_STRANGE;
}

uint32_t bt_transfer_client_frame(bt_transfer_client *c, bt_transfer_frame frame, bool holds,
                                  uint32_t size, uint64_t now_ns)
{
    if (receives(c)) {
        c->frame_ns = now_ns;
    }
    const uint32_t todo = bt_transfer_client_put(c, judge(c, frame, holds, size), now_ns);
    if (todo & (DO(STORE) | DO(STORE_CHECKPOINT))) {
        c->credit_left -= size;
        c->stored_size = size;
    }
    return todo;
}

/* ---- time ---- */

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > BT_TRANSFER_NEVER - b ? BT_TRANSFER_NEVER : a + b;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t stalls_at(const bt_transfer_client *c)
{
    switch (c->state) {
    case BT_TRANSFER_CLIENT_SENT:
        return least(sum(c->frame_ns, c->pause_ns), sum(c->posted_ns, c->limit_ns));
    case BT_TRANSFER_CLIENT_PENDING:
        return sum(c->frame_ns, CHECKPOINT_NS);
    case BT_TRANSFER_CLIENT_CANCELLING:
        return sum(c->frame_ns, LAST_WORD_NS);
    case BT_TRANSFER_CLIENT_WAITING:
    case BT_TRANSFER_CLIENT_DONE:
    case BT_TRANSFER_CLIENT_STATE_COUNT:
        break;
    }
    return BT_TRANSFER_NEVER;
}

static bool hedges(const bt_transfer_client *c)
{
    return c->state == BT_TRANSFER_CLIENT_WAITING || c->state == BT_TRANSFER_CLIENT_SENT;
}

uint64_t bt_transfer_client_deadline(const bt_transfer_client *c)
{
    return least(stalls_at(c), hedges(c) ? c->hedge_ns : BT_TRANSFER_NEVER);
}

uint32_t bt_transfer_client_tick(bt_transfer_client *c, uint64_t now_ns)
{
    if (now_ns < bt_transfer_client_deadline(c)) {
        return 0;
    }
    if (hedges(c) && now_ns >= c->hedge_ns) {
        c->hedge_ns = BT_TRANSFER_NEVER;
        return bt_transfer_client_put(c, BT_TRANSFER_CLIENT_ON_HEDGE, now_ns);
    }
    return bt_transfer_client_put(c, BT_TRANSFER_CLIENT_ON_STALLED, now_ns);
}

/* ---- credit ---- */

/* A quarter of the window at a time: seldom enough to cost nothing, often enough that the worker
 * does not run dry. */
uint64_t bt_transfer_client_credit_due(const bt_transfer_client *c)
{
    return receives(c) && c->credit_owed > 0 && c->credit_owed >= c->window / 4 ? c->credit_owed
                                                                                : 0;
}

void bt_transfer_client_credit_given(bt_transfer_client *c, uint64_t bytes)
{
    bytes = least(bytes, c->credit_owed);
    c->credit_owed -= bytes;
    c->credit_left += bytes;
}

/* ---- patience ---- */

/* ms. While this machine has not been measured there is no saying what waiting may be worth. */
#define PAUSE_BASE 10000.0
#define PAUSE_UNKNOWN 30000.0
#define PAUSE_PART 4.0                 /* times the slower of here and there, and the queue */
#define PAUSE_MOST 10.0                /* times what it takes here: by then it is done here */
#define LIMIT_BASE 120000.0
#define LIMIT_UNKNOWN 600000.0
#define LIMIT_MOST 20.0

static uint64_t to_ns(double ms)
{
    return ms < 1e12 ? (uint64_t)(ms * 1e6) : BT_TRANSFER_NEVER;
}

void bt_transfer_client_set_patience(bt_transfer_client *c, const bt_transfer_forecast *f)
{
    const bool known = f->here_ms > 0;
    const double most = known ? PAUSE_BASE + PAUSE_MOST * f->here_ms : PAUSE_UNKNOWN;
    const double slower = f->there_ms > f->here_ms ? f->there_ms : f->here_ms;
    const double wish = known || f->there_ms > 0
            ? PAUSE_BASE + PAUSE_PART * (slower + f->queue_ms) : PAUSE_UNKNOWN;
    c->pause_ns = to_ns(wish < most ? wish : most);
    c->limit_ns = to_ns(known ? LIMIT_BASE + LIMIT_MOST * f->here_ms : LIMIT_UNKNOWN);
}

void bt_transfer_client_set_pause(bt_transfer_client *c, uint64_t pause_ns)
{
    c->pause_ns = pause_ns;
}
