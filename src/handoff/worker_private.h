/* handoff/worker_private.h - what the files of the worker's side share.
 *
 * worker.c   open, drain, close, status; the listener's thread
 * guest.c    one reader thread per connected server: handshake, frames
 * visitor.c  one who only looks and measures, in place of a server
 * push.c     one prompt: what is ready to be sent, in which order; callbacks of engine and link
 * push_state.c   its recurrent states: the last one, and those that follow COMMIT
 * sender.c   one sender thread per connected server: pieces to the link, ends of prompts
 *
 * Locking: guest.lock guards the guest's list and what engine, reader and sender share of a push.
 * Engine and link are called without it. Only the sender takes a push off the list and frees it,
 * when nobody has it pinned, the engine has said END and no bulk frame of it is queued.
 */
#ifndef BT_HANDOFF_WORKER_PRIVATE_H
#define BT_HANDOFF_WORKER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "transfer/receipt.h"
#include "route/router.h"
#include "base/timeline.h"
#include "handoff/worker.h"
#include "wire/codec.h"
#include "wire/order.h"
#include "wire/identity.h"

enum {
    BT_HANDOFF_LISTEN_MS = 200,        /* ended connections are cleared away this often */
    BT_HANDOFF_POLL_MS = 10,           /* the engine's END is looked for at least this often */
    BT_HANDOFF_END_MS = 1,             /* where END is all that is missing */
    BT_HANDOFF_REST_MS = 200,          /* with no prompt: load is told this often */
    BT_HANDOFF_FINISH_MS = 1000,       /* for a last REJECT or ERROR to arrive */
    BT_HANDOFF_STRANGERS_MAX = 16,     /* connections that have not said HELLO yet */
    BT_HANDOFF_WARN_MS = 1000,         /* between two lines about strangers */
    BT_HANDOFF_STRANGER_MS = 100,      /* the time for HELLO that nobody can take from them */
    BT_HANDOFF_PEERS_DEFAULT = 16
};

/* When the link is behind, a run of complete positions is cut into pieces of at most so many bytes
 * and tokens, so that CHUNKs keep coming and a lost connection costs little. */
#define BT_HANDOFF_SEGMENT_BYTES  (4u << 20)
#define BT_HANDOFF_SEGMENT_TOKENS 256u

/* Bulk frames queued per server: enough to keep the writer busy, little enough that a short prompt
 * does not wait long behind the rows of long ones. */
#define BT_HANDOFF_QUEUE_BYTES (4u << 20)

#define BT_HANDOFF_NONE UINT32_MAX

typedef struct bt_handoff_guest bt_handoff_guest;
typedef struct bt_handoff_push  bt_handoff_push;

struct bt_handoff_push {
    bt_handoff_push  *next;
    bt_handoff_guest *guest;
    uint32_t          stream;
    bt_wire_prefill   asked;
    bt_kv_form      form;            /* as asked for */
    bt_kv_scratch      room;            /* link's writer thread; empty where rows go as stored */
    uint64_t          token_bytes;     /* on the wire */
    uint32_t         *tokens;          /* until the request is submitted, or for the borders */
    uint32_t          n_got;
    bt_wire_tally    *tally;           /* link's writer thread */
    double            submit_ms;
    uint64_t          lane;            /* of the trace; the next one is its too */
    double            step_begun_ms;   /* engine's thread: a step's first layer was done */

    /* guest->lock */
    bt_request *request;               /* NULL until all tokens are there */
    uint32_t    pins;                  /* others who use `request` just now */
    uint32_t    n_queued;              /* bulk frames accepted, neither filled nor dropped yet */
    uint64_t    credit;
    bool        cancelled;             /* nobody wants it any more */
    bool        tell_cancelled;        /* and the server waits for CANCELLED */
    bool        ended;                 /* the engine said END */
    bt_error    failure;               /* status other than OK: the server gets ERROR */
    bool        started;               /* the first layer was told; n_cached is known */
    uint32_t    n_cached;
    uint32_t   *ready;                 /* [n_layers] rows below it may be exported */
    uint32_t    complete;              /* all layers below it may be */
    uint32_t    counted;               /* positions not in worker->queued_tokens any more */
    double      complete_ms;           /* when complete reached the end */

    /* sender */
    double   queue_ms;                 /* in the engine's line, by its word */
    uint32_t segment_first, segment_end;   /* positions being sent, all layers, then CHUNK */
    uint32_t layer, position;          /* next piece of it */
    uint32_t state_offset;             /* next part of the layer's state */
    bool     committed;                /* COMMIT is queued */
    uint32_t borders[BT_WIRE_BORDERS_MAX], n_borders;      /* whose states follow COMMIT */
    uint32_t snapshots[BT_WIRE_BORDERS_MAX];               /* pinned; BT_HANDOFF_NONE: not */
    uint32_t border;                   /* the one that is being sent */
    bool     border_begun;
};

struct bt_handoff_guest {
    bt_handoff_guest *next;
    bt_worker        *worker;
    bt_link          *link;
    char              name[128];
    pthread_t         reader, sender;
    bool              sender_runs;
    char              host[128];       /* the name without its port */
    double            begun_ms;
    uint64_t          session;         /* the server's, from HELLO */
    bool              evicted;         /* worker->lock; a stranger that made room for another */
    atomic_bool       greeted;         /* said HELLO and was welcomed */
    atomic_bool       visiting;        /* said VISIT */
    atomic_bool       finished;        /* the reader is about to return */

    pthread_mutex_t   lock;
    pthread_cond_t    wake;            /* rows, credit, tokens, cancel, closing */
    bool              closing;         /* the connection is gone */
    uint32_t          stream_last;
    uint32_t          n_pushes;
    bt_handoff_push  *pushes;
};

struct bt_worker {
    bt_engine          *engine;
    const bt_kv_layout *layout;
    uint64_t           *state_bytes;   /* [n_layers] NULL: no layer keeps a state */
    uint64_t            epoch;
    bool                share_cache;
    uint32_t            n_prefill, n_streams, n_peers, n_ctx, n_vocab;
    char               *numerics;
    bt_wire_hello       own;
    bt_listener        *listener;
    pthread_t           thread;
    bool                thread_runs;
    atomic_bool         stopping, draining;
    atomic_uint         n_in_flight, n_connected, n_visitors;
    atomic_ullong       queued_tokens;     /* not computed yet, of all prompts in flight */
    atomic_ullong       n_lanes;
    bt_timeline           *trace;         /* NULL: none */
    atomic_ullong       n_connects, n_rejects, n_prompts, n_tokens, n_bytes, n_cancelled, n_errors,
                        n_corrupt;

    pthread_mutex_t     lock;          /* guards the rest */
    bt_handoff_guest   *guests;
    double              probe_used, probe_ms;  /* of visitors' allowance; when that was so */
    double              warned_ms;     /* the last line about somebody who is no server */
    uint64_t            n_unsaid;      /* that were not worth another one since */
    pthread_mutex_t     pace_lock;     /* guards step_ms; taken last */
    bt_cost_fit              step_ms;       /* of steps that had one prompt */
};

/* ---- guest.c ---- */
void *bt_handoff_guest_main(void *guest);
void  bt_handoff_guest_drain(bt_handoff_guest *g);
/* A warning about this peer, once a second at most: strangers must not fill the log. */
void  bt_handoff_guest_warn(bt_handoff_guest *g, const char *what, const char *reason);
/* Says no, and waits a moment for it to arrive. */
void  bt_handoff_guest_reject(bt_handoff_guest *g, const bt_wire_reject *m);

/* ---- visitor.c: from VISIT to the end of the connection ---- */
void bt_handoff_visitor_serve(bt_handoff_guest *g, const bt_frame *frame);

/* ---- push.c ---- */
bt_status bt_handoff_push_create(bt_handoff_guest *g, uint32_t stream, const bt_wire_prefill *asked,
                                 bt_handoff_push **ret_push, bt_error *err);
void bt_handoff_push_destroy(bt_handoff_push *u);
/* All tokens are there: gives the prompt to the engine. Lock free. */
bt_status bt_handoff_push_submit(bt_handoff_push *u, bt_error *err);

typedef enum {
    BT_PIECE_NONE, BT_PIECE_ROWS, BT_PIECE_STATE, BT_PIECE_CHUNK, BT_PIECE_COMMIT
} bt_piece_kind;
/* Lock held. The next bulk frame of this prompt, entered as queued; NONE: not now. */
bt_piece_kind bt_handoff_push_next(bt_handoff_push *u, bt_bulk *ret_bulk);
/* Lock held. Whether states of borders are still to follow its COMMIT. */
bool bt_handoff_push_owes_snapshots(const bt_handoff_push *u);
/* Lock held. All below `position` is computed. */
void bt_handoff_push_complete(bt_handoff_push *u, uint32_t position);

/* ---- sender.c ---- */
void *bt_handoff_sender_main(void *guest);
void  bt_handoff_guest_tell_load(bt_handoff_guest *g);
/* Control frames about a stream; what the link cannot take is lost with it. */
void  bt_handoff_guest_error(bt_handoff_guest *g, uint32_t stream, const bt_error *why);

#endif
