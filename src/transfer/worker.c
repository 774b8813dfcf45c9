/* transfer/worker.c - see worker.h: the table, what the engine tells, credit. Which frame comes
 * next is in pieces.c. */
#include "transfer/worker.h"

#include <stddef.h>

#include "base/memory.h"

/* ---- names ---- */

#define X(name, text) text,
static const char *const states[] = { BT_TRANSFER_WORKER_STATE_LIST(X) };
static const char *const inputs[] = { BT_TRANSFER_WORKER_INPUT_LIST(X) };
static const char *const actions[] = { BT_TRANSFER_WORKER_ACTION_LIST(X) };
#undef X

const char *bt_transfer_worker_state_name(bt_transfer_worker_state s)
{
    return (size_t)s < BT_LEN(states) ? states[s] : "unknown";
}

const char *bt_transfer_worker_input_name(bt_transfer_worker_input i)
{
    return (size_t)i < BT_LEN(inputs) ? inputs[i] : "unknown";
}

const char *bt_transfer_worker_action_name(uint32_t bit)
{
    return bit < BT_LEN(actions) ? actions[bit] : "unknown";
}

/* ---- the table ---- */

#define DO(name) BT_TRANSFER_WORKER_DO_##name
#define TO(state, what) { BT_TRANSFER_WORKER_##state, (what) }
#define ON(input) [BT_TRANSFER_WORKER_ON_##input]

/* Where an input makes no sense it is ignored: a client may send what it likes, and what the engine
 * and the writer report may cross what has happened meanwhile. */
#define T TO(TOKENS, 0)
#define W TO(WAITING, 0)
#define Q TO(QUEUED, 0)
#define C TO(COMPUTING, 0)
#define S TO(SENDING, 0)
#define M TO(COMMITTED, 0)
#define O TO(OWING, 0)
#define P TO(CHECKPOINTS, 0)
#define X TO(CANCELLING, 0)
#define F TO(FAILING, 0)
#define A TO(ABANDONED, 0)
#define D TO(DONE, 0)
/* The engine's end, where something was waiting for it. */
#define OVER TO(DONE, DO(RELEASE))
#define X_OVER TO(DONE, DO(RELEASE) | DO(SAY_CANCELLED))
#define F_OVER TO(DONE, DO(RELEASE) | DO(SAY_ERROR))
#define O_OVER TO(CHECKPOINTS, DO(RELEASE))
/* Given up, with or without a request that has to end first. */
#define CANCELLED TO(DONE, DO(SAY_CANCELLED))
#define ERROR TO(DONE, DO(SAY_ERROR))
#define CANCELLING TO(CANCELLING, DO(STOP_COMPUTING))
#define FAILING TO(FAILING, DO(STOP_COMPUTING))
#define ABANDONED TO(ABANDONED, DO(STOP_COMPUTING))

static const bt_transfer_worker_cell
        table[BT_TRANSFER_WORKER_INPUT_COUNT][BT_TRANSFER_WORKER_STATE_COUNT] = {
    ON(FULL)         = { W, W, Q, C, S, M, O, P, X, F, A, D },
    ON(UNFIT)        = { ERROR, W, Q, C, S, M, O, P, X, F, A, D },
    ON(ADMITTED)     = { T, TO(QUEUED, DO(SUBMIT)), Q, C, S, M, O, P, X, F, A, D },
    ON(REFUSED)      = { T, W, ERROR, C, S, M, O, P, CANCELLED, ERROR, D, D },
    ON(STARTED)      = { T, W, C, C, S, M, O, P, X, F, A, D },
    ON(ENDED)        = { T, W, S, S, S, OVER, O_OVER, P, X_OVER, F_OVER, OVER, D },
    ON(FAILED)       = { T, W, F_OVER, F_OVER, S, OVER, O_OVER, P, X_OVER, F_OVER, OVER, D },
    ON(COMMIT)       = { T, W, Q, M, OVER, M, O, P, X, F, A, D },
    ON(COMMIT_OWING) = { T, W, Q, O, O_OVER, M, O, P, X, F, A, D },
    ON(LAST_CLOSED)  = { T, W, Q, C, S, M, O, D, X, F, A, D },
    ON(CANCEL)       = { CANCELLED, CANCELLED, CANCELLING, CANCELLING, X_OVER, CANCELLING,
                         CANCELLING, CANCELLED, X, X, A, D },
    ON(STALLED)      = { ERROR, W, Q, FAILING, F_OVER, M, O, ERROR, X, F, A, D },
    ON(LOST)         = { D, D, ABANDONED, ABANDONED, OVER, ABANDONED, ABANDONED, D, A, A, A, D },
};

#undef X

bt_transfer_worker_cell bt_transfer_worker_table(bt_transfer_worker_state s,
                                                 bt_transfer_worker_input i)
{
    if ((size_t)s >= BT_TRANSFER_WORKER_STATE_COUNT || (size_t)i >= BT_LEN(table)) {
        return (bt_transfer_worker_cell)D;
    }
    return table[i][s];
}

uint32_t bt_transfer_worker_put(bt_transfer_worker *w, bt_transfer_worker_input i, uint64_t now_ns)
{
    const bt_transfer_worker_cell cell = bt_transfer_worker_table(w->state, i);
    if (i == BT_TRANSFER_WORKER_ON_ENDED) {    /* also where nothing had to be computed */
        bt_transfer_worker_all_ready(w, w->ask.end, now_ns);
    }
    if (cell.next != w->state) {
        w->moved_ns = now_ns;
    }
    w->state = cell.next;
    return cell.actions;
}

/* ---- life ---- */

bt_status bt_transfer_worker_init(bt_transfer_worker *w, const bt_transfer_worker_ask *ask,
                                  uint64_t now_ns, bt_error *err)
{
    const uint32_t n_layers = ask->form->layout->n_layers;
    uint32_t *ready = bt_alloc_zero(BT_MEM_handoff, n_layers, sizeof *ready);
    if (!ready) {
        return bt_fail_nomem(err, n_layers * sizeof *ready, "a prompt of a client");
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        ready[i] = ask->first;
    }
    *w = (bt_transfer_worker){
        .state = BT_TRANSFER_WORKER_TOKENS, .ask = *ask, .credit = ask->credit, .ready = ready,
        .complete = ask->first, .segment_first = ask->first, .segment_end = ask->first,
        .moved_ns = now_ns,
    };
    return BT_OK;
}

void bt_transfer_worker_done(bt_transfer_worker *w)
{
    bt_free(w->ready);
    w->ready = NULL;
}

/* ---- how far the engine is ---- */

static uint32_t within(uint32_t position, uint32_t end) { return position < end ? position : end; }

static void complete(bt_transfer_worker *w, uint32_t position)
{
    const uint32_t n_layers = w->ask.form->layout->n_layers;
    for (uint32_t i = 0; position > w->complete && i < n_layers; i++) {
        w->ready[i] = w->ready[i] > position ? w->ready[i] : position;
    }
    w->complete = position > w->complete ? position : w->complete;
}

static void start(bt_transfer_worker *w, uint32_t n_cached, uint64_t now_ns)
{
    if (!w->started) {
        w->started = true;
        w->n_cached = within(n_cached, w->ask.end);
        complete(w, w->n_cached);
        (void)bt_transfer_worker_put(w, BT_TRANSFER_WORKER_ON_STARTED, now_ns);
    }
}

void bt_transfer_worker_layer_ready(bt_transfer_worker *w, uint32_t layer, uint32_t position,
                                    uint32_t n, uint64_t now_ns)
{
    const uint32_t end = w->ask.end;
    start(w, position, now_ns);
    if (layer < w->ask.form->layout->n_layers && position < end) {
        const uint32_t after = n < end - position ? position + n : end;
        w->ready[layer] = w->ready[layer] > after ? w->ready[layer] : after;
        w->moved_ns = now_ns;
    }
}

void bt_transfer_worker_all_ready(bt_transfer_worker *w, uint32_t position_end, uint64_t now_ns)
{
    const uint32_t position = within(position_end, w->ask.end);
    start(w, position, now_ns);
    complete(w, position);
    w->moved_ns = now_ns;
}

/* ---- credit ---- */

bool bt_transfer_worker_credit(bt_transfer_worker *w, uint64_t bytes, uint64_t now_ns)
{
    if (bytes == 0 || bytes > BT_TRANSFER_CREDIT_MAX ||
        w->credit > BT_TRANSFER_CREDIT_MAX - bytes) {
        return false;
    }
    w->credit += bytes;
    w->moved_ns = now_ns;
    return true;
}
