/* transfer/client.h - the server's side of one prompt given to one worker, as a state machine.
 *
 * What happens to the prompt is an input; a table of state and input gives the next state and what
 * there is to do (docs/handoff.md has the same table, and a test compares the two). Whoever drives
 * the machine carries actions out and reports what came of them. Contents are judged elsewhere
 * (transfer/receipt.h): inputs say only whether they hold.
 *
 * What the machine guarantees, whatever comes in whatever order: the ticket is ended exactly once;
 * nothing is stored after that, or after CANCEL; CANCEL is sent at most once; a worker never has
 * more credit than was given; every wait has a deadline.
 *
 * Pure: no clock, lock, memory or thread; time is an argument. Failure: none.
 */
#ifndef BT_TRANSFER_CLIENT_H
#define BT_TRANSFER_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/*    name         text */
#define BT_TRANSFER_CLIENT_STATE_LIST(X)                                                           \
    X(WAITING,    "waiting")           /* here, for a slot of the worker */                        \
    X(SENT,       "sent")              /* PREFILL and TOKENS are out */                            \
    X(PENDING,    "pending")           /* committed; checkpoints are owed */                     \
    X(CANCELLING, "cancelling")        /* CANCEL is out; the worker's last word is not here */     \
    X(DONE,       "done")

typedef enum {
#define X(name, text) BT_TRANSFER_CLIENT_##name,
    BT_TRANSFER_CLIENT_STATE_LIST(X)
#undef X
    BT_TRANSFER_CLIENT_STATE_COUNT
} bt_transfer_client_state;

/* What can happen. The first group is what the driver reports, the second the worker's frames, the
 * third what people and clocks decide.
 *    name          text */
#define BT_TRANSFER_CLIENT_INPUT_LIST(X)                                                           \
    X(POSTED,       "PREFILL and TOKENS are queued")                                               \
    X(UNSENDABLE,   "they could not be queued")                                                    \
    X(STORED,       "the part was stored")                                                         \
    X(GONE,         "the engine no longer takes the part")                                         \
    X(UNSTORED,     "the part could not be stored")                                                \
                                                                                                   \
    X(PART,         "ROWS or STATE, the next part within the credit")                              \
    X(UNASKED,      "ROWS or STATE, any other part")                                               \
    X(AGREED,       "CHUNK, equal digest")                                                         \
    X(AGREED_LAST,  "CHUNK, equal digest, of the last checkpoint")                                 \
    X(DIFFERS,      "CHUNK, or COMMIT with checkpoints to follow: not equal")                      \
    X(COMMIT,       "COMMIT, all equal")                                                           \
    X(COMMIT_OWING, "COMMIT, all equal, checkpoints to follow")                                    \
    X(COMMIT_DIFFERS, "COMMIT, not equal")                                                         \
    X(FAILED,       "ERROR")                                                                       \
    X(CANCELLED,    "CANCELLED")                                                                   \
    X(STRANGE,      "any other frame")                                                             \
                                                                                                   \
    X(CANCEL,       "the engine cancels")                                                          \
    X(HEDGE,        "later than predicted")                                                        \
    X(STALLED,      "out of patience")                                                             \
    X(DRAINING,     "the worker drains")                                                           \
    X(CROWDED,      "too many wait for checkpoints")                                               \
    X(LOST,         "the connection ends")

typedef enum {
#define X(name, text) BT_TRANSFER_CLIENT_ON_##name,
    BT_TRANSFER_CLIENT_INPUT_LIST(X)
#undef X
    BT_TRANSFER_CLIENT_INPUT_COUNT
} bt_transfer_client_input;

/* What there is to do, as bits, in the order in which it is done.
 *    name         text */
#define BT_TRANSFER_CLIENT_ACTION_LIST(X)                                                          \
    X(CORRUPT,     "corrupt")          /* count it; some bytes did not hold */                     \
    X(LATE,        "late")             /* count it, and drop it */                                 \
    X(STORE,       "store it")                                                                     \
    X(STORE_CHECKPOINT, "store it in the checkpoint")                                              \
    X(ADVANCE,     "rows below it are complete")                                                   \
    X(KEEP_CHECKPOINT, "keep the checkpoint")                                                      \
    X(DROP_CHECKPOINT, "drop the checkpoint")                                                      \
    X(SEND_CANCEL, "send CANCEL")                                                                  \
    X(END_COMMIT,  "commit")                                                                       \
    X(END_CANCEL,  "abandon")                                                                      \
    X(END_FAIL,    "next worker or abandon")                                                       \
    X(PREFILL_HERE, "prefill here as well")                                                        \
    X(DISCONNECT,  "end the connection")

enum {
#define X(name, text) BT_TRANSFER_CLIENT_BIT_##name,
    BT_TRANSFER_CLIENT_ACTION_LIST(X)
#undef X
    BT_TRANSFER_CLIENT_ACTION_COUNT
};
enum {
#define X(name, text) BT_TRANSFER_CLIENT_DO_##name = 1 << BT_TRANSFER_CLIENT_BIT_##name,
    BT_TRANSFER_CLIENT_ACTION_LIST(X)
#undef X
    BT_TRANSFER_CLIENT_END_ANY = BT_TRANSFER_CLIENT_DO_END_COMMIT |
                                 BT_TRANSFER_CLIENT_DO_END_CANCEL | BT_TRANSFER_CLIENT_DO_END_FAIL
};

/* All names are static; "unknown" for others. */
const char *bt_transfer_client_state_name(bt_transfer_client_state s);
const char *bt_transfer_client_input_name(bt_transfer_client_input i);
const char *bt_transfer_client_action_name(uint32_t bit);

typedef struct { bt_transfer_client_state next; uint32_t actions; } bt_transfer_client_cell;

/* The table itself, for the test that compares it with the page. */
bt_transfer_client_cell bt_transfer_client_table(bt_transfer_client_state s,
                                                 bt_transfer_client_input i);

/* ---- one prompt on one worker ---- */

#define BT_TRANSFER_NEVER UINT64_MAX

typedef struct {
    bt_transfer_client_state state;
    bool     ended;                    /* the ticket: by END_COMMIT, END_CANCEL or END_FAIL */
    uint32_t checkpoint, n_checkpoints;    /* the one that comes next; how many were asked for */
    uint64_t window, credit_left, credit_owed;     /* bytes: in all; may still come; stored since */
    uint64_t stored_size;              /* of the part that is being stored */
    uint64_t posted_ns, frame_ns;      /* sent; the last frame of the worker */
    uint64_t hedge_ns;                 /* to be prefilled here as well; BT_TRANSFER_NEVER: not */
    uint64_t pause_ns, limit_ns;       /* patience: without a frame; since it was sent */
} bt_transfer_client;

void bt_transfer_client_init(bt_transfer_client *c, uint32_t n_checkpoints, uint64_t hedge_ns);

/* POSTED, with the credit that PREFILL gave. */
uint32_t bt_transfer_client_posted(bt_transfer_client *c, uint64_t window, uint64_t now_ns);

/* A frame of the worker. `holds`: it is what the receipt expects; of ERROR and CANCELLED unused. */
typedef enum {
    BT_TRANSFER_FRAME_ROWS, BT_TRANSFER_FRAME_STATE, BT_TRANSFER_FRAME_CHUNK,
    BT_TRANSFER_FRAME_COMMIT, BT_TRANSFER_FRAME_ERROR, BT_TRANSFER_FRAME_CANCELLED,
    BT_TRANSFER_FRAME_OTHER
} bt_transfer_frame;
uint32_t bt_transfer_client_frame(bt_transfer_client *c, bt_transfer_frame frame, bool holds,
                                  uint32_t size, uint64_t now_ns);

/* Anything without more to say. */
uint32_t bt_transfer_client_put(bt_transfer_client *c, bt_transfer_client_input i, uint64_t now_ns);

/* The next moment at which bt_transfer_client_tick() has something to do; BT_TRANSFER_NEVER. */
uint64_t bt_transfer_client_deadline(const bt_transfer_client *c);
/* One thing that is due; call it again until the deadline lies ahead. */
uint32_t bt_transfer_client_tick(bt_transfer_client *c, uint64_t now_ns);

/* Bytes to return as CREDIT now; 0: not yet. Given once it has been sent. */
uint64_t bt_transfer_client_credit_due(const bt_transfer_client *c);
void     bt_transfer_client_credit_given(bt_transfer_client *c, uint64_t bytes);

/* ---- patience ---- */

/* What is known of a prompt that a worker has, in ms; 0: unknown. */
typedef struct {
    double here_ms;                    /* prefilling the rest here, measured here */
    double there_ms;                   /* the same there, by the worker's clock */
    double queue_ms;                   /* work before it, by the worker's word */
} bt_transfer_forecast;

/* How long a prompt may be without a frame (pause_ns), and in all (limit_ns). Heartbeats say that
 * the worker lives, so this is about being useful only. What the worker announces lengthens the
 * pause, up to a ceiling that depends on nothing but what was measured here. */
void bt_transfer_client_set_patience(bt_transfer_client *c, const bt_transfer_forecast *f);
/* A fixed pause instead. */
void bt_transfer_client_set_pause(bt_transfer_client *c, uint64_t pause_ns);

#endif
