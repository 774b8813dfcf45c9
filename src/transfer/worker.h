/* transfer/worker.h - the worker's side of one prompt, as a state machine.
 *
 * What happens to the prompt is an input; a table of state and input gives the next state and what
 * there is to do (docs/handoff.md has the same table, and a test compares the two). Beside the
 * table the machine knows how far the engine is and what was sent, and says which frame comes next.
 *
 * What the machine guarantees, whatever comes in whatever order: no row leaves before it is
 * computed, none beyond the credit; CHUNK and COMMIT follow all rows that they speak for; the
 * engine's request is submitted at most once and released exactly once after that; the last word is
 * said once.
 *
 * Order of frames. Positions leave in segments: all layers of [first, end), then CHUNK, or COMMIT
 * after the last. While the link keeps up, a segment is what the engine computes now and a layer
 * leaves as soon as it is ready; a slower link gets segments cut from what is complete. The
 * state of a recurrent layer leaves after the last segment's rows of that layer. Checkpoints follow
 * COMMIT, each closed by a CHUNK.
 *
 * Pure: no clock, lock or thread; time is an argument. Failure: init only (memory).
 */
#ifndef BT_TRANSFER_WORKER_H
#define BT_TRANSFER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "kv/codec.h"
#include "wire/order.h"

/*    name         text */
#define BT_TRANSFER_WORKER_STATE_LIST(X)                                                           \
    X(TOKENS,      "tokens")           /* some are still to come */                                \
    X(WAITING,     "waiting")          /* for its client's share of the worker */                  \
    X(QUEUED,      "queued")           /* with the engine, nothing computed */                     \
    X(COMPUTING,   "computing")        /* rows appear, and leave */                                \
    X(SENDING,     "sending")          /* all is computed, the engine is through */                \
    X(COMMITTED,   "committed")        /* COMMIT is out, the engine's end is missing */            \
    X(OWING,       "owing")            /* the same, and checkpoints are owed */                    \
    X(CHECKPOINTS, "checkpoints")      /* they leave */                                            \
    X(CANCELLING,  "cancelling")       /* the engine's end is missing, then CANCELLED */           \
    X(FAILING,     "failing")          /* the engine's end is missing, then ERROR */               \
    X(ABANDONED,   "abandoned")        /* the engine's end is missing, and nobody listens */       \
    X(DONE,        "done")

typedef enum {
#define X(name, text) BT_TRANSFER_WORKER_##name,
    BT_TRANSFER_WORKER_STATE_LIST(X)
#undef X
    BT_TRANSFER_WORKER_STATE_COUNT
} bt_transfer_worker_state;

/*    name          text */
#define BT_TRANSFER_WORKER_INPUT_LIST(X)                                                           \
    X(FULL,         "the last token arrives")                                                     \
    X(UNFIT,        "TOKENS that do not fit")                                                      \
    X(ADMITTED,     "within the share of its client")                                              \
    X(REFUSED,      "the engine refuses the prompt")                                               \
    X(STARTED,      "the first rows are computed")                                                 \
    X(ENDED,        "the engine ends, all computed")                                               \
    X(FAILED,       "the engine ends, with an error")                                              \
    X(COMMIT,       "COMMIT is written")                                                           \
    X(COMMIT_OWING, "COMMIT is written, checkpoints to follow")                                    \
    X(LAST_CLOSED,  "CHUNK of the last checkpoint is written")                                     \
    X(CANCEL,       "CANCEL, or ERROR of the client")                                              \
    X(STALLED,      "it does not move")                                                            \
    X(LOST,         "the connection ends")

typedef enum {
#define X(name, text) BT_TRANSFER_WORKER_ON_##name,
    BT_TRANSFER_WORKER_INPUT_LIST(X)
#undef X
    BT_TRANSFER_WORKER_INPUT_COUNT
} bt_transfer_worker_input;

/* What there is to do, as bits, in the order in which it is done.
 *    name           text */
#define BT_TRANSFER_WORKER_ACTION_LIST(X)                                                          \
    X(SUBMIT,        "submit")         /* to the engine; REFUSED or nothing follows */             \
    X(STOP_COMPUTING, "stop computing")    /* cancel the engine's request; its end follows */      \
    X(RELEASE,       "release")        /* the engine's request, and its pages */                   \
    X(SAY_CANCELLED, "send CANCELLED")                                                             \
    X(SAY_ERROR,     "send ERROR")

enum {
#define X(name, text) BT_TRANSFER_WORKER_BIT_##name,
    BT_TRANSFER_WORKER_ACTION_LIST(X)
#undef X
    BT_TRANSFER_WORKER_ACTION_COUNT
};
enum {
#define X(name, text) BT_TRANSFER_WORKER_DO_##name = 1 << BT_TRANSFER_WORKER_BIT_##name,
    BT_TRANSFER_WORKER_ACTION_LIST(X)
#undef X
};

/* All names are static; "unknown" for others. */
const char *bt_transfer_worker_state_name(bt_transfer_worker_state s);
const char *bt_transfer_worker_input_name(bt_transfer_worker_input i);
const char *bt_transfer_worker_action_name(uint32_t bit);

typedef struct { bt_transfer_worker_state next; uint32_t actions; } bt_transfer_worker_cell;

/* The table itself, for the test that compares it with the page. */
bt_transfer_worker_cell bt_transfer_worker_table(bt_transfer_worker_state s,
                                                 bt_transfer_worker_input i);

/* ---- one prompt ---- */

/* What was asked for, checked: first < end, checkpoints falling inside (0, end]. */
typedef struct {
    const bt_kv_form *form;            /* of rows on the wire; borrowed */
    const uint64_t   *state_bytes;     /* [n_layers] NULL: no layer keeps a state; borrowed */
    uint32_t first, end;               /* positions wanted */
    uint32_t order;                    /* bt_wire_order */
    uint64_t credit;
    uint32_t checkpoints[BT_WIRE_BORDERS_MAX], n_checkpoints;
} bt_transfer_worker_ask;

typedef struct {
    bt_transfer_worker_state state;
    bt_transfer_worker_ask   ask;
    uint64_t  credit;
    /* How far the engine is. */
    uint32_t *ready;                   /* [n_layers] rows below it may leave; owned */
    uint32_t  complete;                /* all layers below it may */
    bool      started;
    uint32_t  n_cached;                /* found in the prefix cache; known once started */
    /* What was sent. */
    uint32_t  segment_first, segment_end, layer, position, state_offset;
    uint32_t  checkpoint;              /* the one that comes next */
    bool      checkpoint_open, checkpoint_kept;
    uint64_t  moved_ns;                /* the last frame, credit or state */
} bt_transfer_worker;

/* CREDIT, and the credit of PREFILL, is at most this in all (W-114). */
#define BT_TRANSFER_CREDIT_MAX (UINT64_C(1) << 63)

BT_MUST_CHECK bt_status bt_transfer_worker_init(bt_transfer_worker *w,
                                                const bt_transfer_worker_ask *ask, uint64_t now_ns,
                                                bt_error *err);
void bt_transfer_worker_done(bt_transfer_worker *w);           /* a zeroed one is fine */

/* Any input. COMMIT and LAST_CLOSED come from bt_transfer_worker_written(). */
uint32_t bt_transfer_worker_put(bt_transfer_worker *w, bt_transfer_worker_input i, uint64_t now_ns);

/* ---- how far the engine is ---- */

/* Layer `layer` of [position, position + n) is computed; the first call's position is what the
 * prefix cache had. Then all layers below position_end. */
void bt_transfer_worker_layer_ready(bt_transfer_worker *w, uint32_t layer, uint32_t position,
                                    uint32_t n, uint64_t now_ns);
void bt_transfer_worker_all_ready(bt_transfer_worker *w, uint32_t position_end, uint64_t now_ns);

/* ---- what is sent ---- */

/* False: 0, or more than W-114 allows in all; nothing changes. */
BT_MUST_CHECK bool bt_transfer_worker_credit(bt_transfer_worker *w, uint64_t bytes,
                                             uint64_t now_ns);

/*    name */
#define BT_TRANSFER_PIECE_LIST(X)                                                                  \
    X(NONE)            /* not now */                                                               \
    X(ROWS)            /* n rows of `layer` from `position` */                                     \
    X(STATE)           /* `n` bytes of the state of `layer` from `offset`, at the end */           \
    X(FIND)            /* no frame: say by _found() whether the checkpoint was kept */             \
    X(CHECKPOINT)      /* as STATE, of the checkpoint at `position` */                             \
    X(CHUNK)           /* up to `position` */                                                      \
    X(COMMIT)

typedef enum {
#define X(name) BT_TRANSFER_PIECE_##name,
    BT_TRANSFER_PIECE_LIST(X)
#undef X
} bt_transfer_piece_kind;

typedef struct {
    bt_transfer_piece_kind kind;
    uint32_t layer, position, n, offset;
    uint32_t size;                     /* of the frame's body */
    uint32_t checkpoint;               /* FIND, CHECKPOINT, and the CHUNK that closes one */
} bt_transfer_piece;

/* The next frame; credit is taken. The caller writes it, and says so before it asks again. */
bt_transfer_piece bt_transfer_worker_next(bt_transfer_worker *w, uint64_t now_ns);
void     bt_transfer_worker_found(bt_transfer_worker *w, bool kept);
uint32_t bt_transfer_worker_written(bt_transfer_worker *w, const bt_transfer_piece *piece,
                                    uint64_t now_ns);

/* ---- what does not move ---- */

/* Whether it holds on to something while its client does not let it move: tokens that do not come,
 * credit that is not given. */
bool bt_transfer_worker_is_held_up(const bt_transfer_worker *w);
/* When it has been held up for patience_ns; BT_TRANSFER_WORKER_NEVER. */
#define BT_TRANSFER_WORKER_NEVER UINT64_MAX
uint64_t bt_transfer_worker_deadline(const bt_transfer_worker *w, uint64_t patience_ns);

#endif
