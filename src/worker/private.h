/* worker/private.h - what the files of this room share.
 *
 * worker.c   open, drain, close, status; the listener's thread
 * session.c  one client: its reader's thread, handshake, deadlines
 * frames.c   what it sends
 * settle.c   what its prompts' machines want done; the engine's events
 * stream.c   one prompt: submit, what the engine computes, what leaves
 * probe.c    `baton doctor` in place of a client
 * shares.c   what sessions have to do with each other: load, shares, pace
 *
 * A session has two threads. The reader feeds the machines of its prompts (transfer/worker.h) with
 * frames, events and deadlines, carries out what they say, and alone takes prompts off the list and
 * frees them. The link's writer asks for the next frame and exports rows into its send buffer; a
 * prompt from which it is writing just now (`filling`) keeps its pages until it is through. The
 * engine's threads only move numbers.
 *
 * Locks, none taken while another is held: session.lock, worker.lock, worker.pace_lock. Engine and
 * link are called without them, except bt_link_send, _wake, _pull and _set_load, which never block.
 */
#ifndef BT_WORKER_PRIVATE_H
#define BT_WORKER_PRIVATE_H

#include <stdatomic.h>

#include "base/sync.h"
#include "base/timeline.h"
#include "cost/fit.h"
#include "engine/engine.h"
#include "worker/worker.h"
#include "route/chunk_plan.h"
#include "transfer/worker.h"
#include "wire/codec.h"
#include "wire/identity.h"
#include "wire/tally.h"

enum {
    BT_WORKER_FINISH_MS = 1000,       /* for a last REJECT or ERROR to arrive */
    BT_WORKER_PENDING_MAX = 16,       /* connections that have not said HELLO yet */
    BT_WORKER_PENDING_MS = 100,       /* the time for HELLO that nobody can take from them */
    BT_WORKER_WARN_MS = 1000,         /* between two lines about pending connections */
    BT_WORKER_CLIENTS_DEFAULT = 16,
    BT_WORKER_STALL_MS = 30000,       /* what does not move for so long ends while others wait */
    BT_WORKER_STALL_MAX_MS = 600000   /* and whether they do or not */
};

#define BT_WORKER_NONE UINT32_MAX

typedef struct bt_worker_session bt_worker_session;
typedef struct bt_worker_stream  bt_worker_stream;

struct bt_worker_stream {
    bt_worker_stream  *next;
    bt_worker_session *session;
    uint32_t        stream;
    bt_wire_prefill asked;
    bt_kv_form      form;              /* as asked for */
    uint64_t        lane;              /* of the timeline; the next one is its too */

    /* The reader. */
    uint32_t   *tokens;                /* until the request is submitted, or for checkpoints */
    uint32_t    n_got;
    bool        admitted;              /* counted in the session's share */
    bool        ended;                 /* the engine's END was read */
    bt_error    failure;               /* what ERROR says */

    /* The writer. */
    bt_kv_scratch  scratch;            /* empty where rows go as stored */
    bt_wire_tally *tally;
    uint32_t       snapshot;           /* pinned for the present checkpoint, or BT_WORKER_NONE */
    double         fill_ms;            /* when writing the present piece began */
    uint64_t       queue_us, compute_us;   /* what CHUNK and COMMIT say */

    double step_ms;                    /* the engine's thread: a step's first layer was done */

    /* session->lock */
    bt_transfer_worker machine;
    uint32_t    todo;                  /* actions that the reader has to carry out */
    bt_request *request;               /* NULL before submit and after release */
    bool        filling;               /* the writer works on `piece` */
    bt_transfer_piece piece;
    uint32_t    counted;               /* positions not in worker->queued_tokens any more */
    double      submit_ms, queue_ms;   /* given to the engine; waiting there, by its word */
    double      complete_ms;           /* all is computed; 0: not yet */
    bool        committed;             /* COMMIT is written, and nothing else was said since */
};

struct bt_worker_session {
    bt_worker_session *next;
    bt_worker *worker;
    bt_link   *link;
    char       name[128], host[128];   /* address and port; without the port */
    pthread_t  reader;
    double     begun_ms;
    uint64_t   id;                     /* the client's, from HELLO */
    atomic_bool greeted;               /* said HELLO and was welcomed */
    atomic_bool probing;               /* said VISIT */
    atomic_bool finished;              /* the reader is about to return */

    bool       evicted;                /* worker->lock; it made room for another */
    uint32_t   n_open, n_unstarted;    /* worker->lock; prompts; those with nothing computed yet */
    uint64_t   n_admitted_tokens;      /* worker->lock; of prompts within the share */

    pthread_mutex_t lock;
    pthread_cond_t  event;             /* the engine has put one */
    bool       has_event;
    uint32_t   stream_last, stream_turn;   /* the newest; whose frame left last */
    bt_worker_stream *streams;         /* in order of arrival */
    bt_worker_stream *filling;         /* the writer works on a piece of it */
    uint64_t   pulled_ns;              /* the writer last asked, or was called when idle */
    bool       idle;                   /* there was nothing for it, nor has it been called since */
};

struct bt_worker {
    bt_engine          *engine;
    const bt_kv_layout *layout;
    uint64_t           *state_bytes;   /* [n_layers] NULL: no layer keeps a state */
    uint64_t            epoch;
    bool                share_cache;
    uint32_t            n_prefill, n_streams, n_clients_max, n_ctx, n_vocab, stall_ms;
    char               *isa;
    bt_wire_hello       own;
    bt_listener        *listener;
    pthread_t           thread;
    bool                thread_runs;
    bt_timeline        *timeline;      /* NULL: none */
    atomic_bool         stopping, draining;
    atomic_uint         n_in_flight, n_connected, n_probing;
    atomic_ullong       queued_tokens;     /* not computed yet, of all prompts in flight */
    atomic_ullong       n_lanes, n_connects, n_rejects, n_prompts, n_tokens, n_bytes, n_cancelled,
                        n_errors, n_corrupt;

    pthread_mutex_t     lock;          /* guards the rest */
    pthread_cond_t      drained;       /* n_in_flight became 0 */
    bt_worker_session  *sessions;
    double              probe_used, probe_ms;  /* of the probes' allowance; when that was so */
    double              warned_ms;     /* the last line about a connection that is no client */
    uint64_t            n_suppressed;  /* lines since then */

    pthread_mutex_t     pace_lock;     /* guards step_cost */
    bt_cost_fit         step_cost;     /* of steps that had one prompt */
};

/* ---- shares.c ---- */
/* What PING tells all clients: after prompts came, went or moved. Any thread. */
void bt_worker_tell_load(bt_worker *w);
/* A prompt of a session came (n_open), began to be computed, or went; wakes sessions to look anew
 * where that may let them go on. */
void bt_worker_count_open(bt_worker_session *s, int by);
void bt_worker_count_unstarted(bt_worker_session *s, int by);
/* Whether n_tokens more are within the session's share: of a worker that several clients use at
 * once each gets an equal part, and one prompt in any case. Counts them then. */
bool bt_worker_admit(bt_worker_session *s, uint32_t n_tokens);
void bt_worker_give_back(bt_worker_session *s, uint32_t n_tokens);
/* Whether prompts of other clients wait to be computed. */
bool bt_worker_others_wait(const bt_worker_session *s);
void bt_worker_count_in_flight(bt_worker *w, int by);
/* Where to split the prompt, by what this worker and the link have shown so far; how many. */
uint32_t bt_worker_plan_splits(bt_worker *w, const bt_wire_prefill *asked,
                                       const bt_kv_form *form,
                                       uint32_t ret_splits[BT_ROUTE_SPLITS_MAX]);
/* A warning about a pending connection, once a second at most: they must not fill the log. */
void bt_worker_warn(bt_worker_session *s, const char *what, const char *reason);

/* ---- session.c ---- */
void *bt_worker_session_main(void *session);
void  bt_worker_session_drain(bt_worker_session *s);
/* Says no, and waits a moment for it to arrive. */
void  bt_worker_session_reject(bt_worker_session *s, const bt_wire_reject *m);

/* ---- frames.c ---- */
/* A failure is one of the connection; a stream's own failures end the stream only. */
BT_MUST_CHECK bt_status bt_worker_session_take_frame(bt_worker_session *s, const bt_frame *frame,
                                                      bt_error *err);

/* ---- settle.c ---- */
void bt_worker_stream_put(bt_worker_stream *u, bt_transfer_worker_input i);
bt_transfer_worker_state bt_worker_stream_state(bt_worker_stream *u);
void bt_worker_session_say_error(bt_worker_session *s, uint32_t stream, const bt_error *why);
/* Carries out all that the machines want done, and frees prompts that are done. */
void bt_worker_session_settle(bt_worker_session *s);
void bt_worker_session_take_events(bt_worker_session *s);

/* ---- probe.c: from VISIT to the end of the connection ---- */
void bt_worker_probe_serve(bt_worker_session *s, const bt_frame *frame);

/* ---- stream.c ---- */
BT_MUST_CHECK bt_status bt_worker_stream_create(bt_worker_session *s, uint32_t stream,
                                                 const bt_wire_prefill *asked,
                                                 bt_worker_stream **ret_stream, bt_error *err);
void bt_worker_stream_destroy(bt_worker_stream *u);   /* NULL is fine */
/* Gives the prompt to the engine. Lock free. */
BT_MUST_CHECK bt_status bt_worker_stream_submit(bt_worker_stream *u, bt_error *err);
/* Lock free. The request is gone, with all that it held. */
void bt_worker_stream_release(bt_worker_stream *u, bt_request *request);
/* Any thread, lock free. */
void bt_worker_session_pull(bt_worker_session *s);
/* The link's source; the context is the session. */
bool bt_worker_stream_next(void *session, uint8_t *body, size_t capacity, bt_link_out *ret);
void bt_worker_stream_sealed(void *session, uint32_t stream, uint64_t hash);

#endif
