/* handoff/client_private.h - what the files of the server's side share; each calls those above it.
 *
 * client_stats.c   looking in: status, decisions; what the router is told, what prompts teach
 * client_prompt.c  a prompt on a worker: carrying out what transfer/client.h decides
 * client_send.c    PREFILL and TOKENS once there is a slot, and CREDIT
 * client_session.c a connection: frames in, what is due, until it ends
 * client_workers.c the list of workers, which may change; a thread for each: connect, back off
 * client.c         the engine's offers: where a prompt goes; open, stop, close
 *
 * Threads and locking: each worker has a thread, its session. It alone changes the state of its
 * transfers, takes them off its list and frees them, so it reads them without a lock; it changes
 * what others read under the pool's lock. Others put a transfer into `inbox` or a reason into
 * `cancel`, both under the lock, and wake the link. Of received frames, rows take no lock and all
 * others at most one. Engine and link are called without it, except what never blocks (send, wake,
 * close, stats).
 */
#ifndef BT_HANDOFF_CLIENT_PRIVATE_H
#define BT_HANDOFF_CLIENT_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sync.h"
#include "base/timeline.h"
#include "base/waker.h"
#include "cost/link.h"
#include "engine/snapshots.h"
#include "handoff/client.h"
#include "route/cache_hint.h"
#include "route/router.h"
#include "transfer/incoming.h"
#include "wire/codec.h"

enum { BT_HANDOFF_MEASURE_MIN = 16 };  /* tokens; fewer measure the reading of weights */

typedef struct bt_client_worker   bt_client_worker;
typedef struct bt_client_transfer bt_client_transfer;

/* A prompt that the engine offers, and what its request wishes; borrows what the offer borrows. */
typedef struct {
    bt_handoff_request *request;       /* may be NULL, as all of it takes */
    uint64_t        ticket;
    const uint32_t *tokens;
    uint32_t        n_tokens, position_first, position_end;
    const uint32_t *checkpoints;       /* positions, rising */
    uint32_t        n_checkpoints;
    uint64_t        cache_key;
    bool            no_cache;          /* a worker's is not for it */
    bt_prefill_where  where;
    bt_prefill_policy policy;
    uint64_t        tokens_ahead;
    double          attended_ahead, decode_ms, last_ms;
} bt_prefill_job;

/* A prompt, as it goes from worker to worker until its ticket ends. Of whoever has the transfer. */
typedef struct {
    bt_handoff_request *request;       /* a reference; NULL: nobody reads the report */
    uint64_t  ticket;
    uint32_t *tokens;                  /* [end] owned */
    uint32_t  first, end;              /* rows wanted from workers in all */
    uint32_t  complete;                /* of these, verified so far; written under the lock */
    uint32_t  checkpoints[BT_WIRE_BORDERS_MAX], n_checkpoints;   /* positions, falling */
    bool      policy_fail;
    uint64_t  tenant;                  /* whose caches it may meet */
    uint64_t  hedge_ns;                /* to be prefilled here as well; BT_TRANSFER_NEVER */
    uint32_t  n_tries;
    double    start_ms, waited_ms;     /* given to us; waited here for slots, of all workers */
    char      lost[256];               /* who had it before, how far, and the cause; "": nobody */
    bt_prefill_report report;
} bt_client_prompt;

typedef enum { BT_CLIENT_KEPT, BT_CLIENT_GONE, BT_CLIENT_LOCAL_FIRST } bt_client_cancel;

/* A prompt given to one worker. */
struct bt_client_transfer {
    bt_client_transfer *next;          /* lock */
    bt_client_prompt   *prompt;        /* owned; NULL once it ended or has gone on; lock */
    bt_client_cancel    cancel;        /* set by the engine's thread; lock */
    bt_transfer_client_state shown;    /* the machine's, for others; lock */

    bt_transfer_client machine;        /* from here on the session's alone */
    bt_client_cancel   reason;         /* `cancel`, as the session has seen it */
    uint32_t           stream;
    bt_wire_prefill    asked;          /* as sent, but for the checkpoints */
    bt_transfer_receipt          receipt;        /* open while rows may come */
    bt_cost_arrivals   arrivals;
    bool               alone;          /* no other prompt was on the worker meanwhile */
    uint32_t           snapshot;       /* where a checkpoint is written; UINT32_MAX: nowhere */
    double             given_ms, sent_ms;
    double             compute_ms;     /* by the worker's last CHUNK */
    uint64_t           bytes;          /* of rows and states that were stored */
};

/* Counters that add up over workers, those that have left among them. */
typedef struct {
    uint64_t n_prompts, n_tokens, n_bytes, n_cancelled, n_hedged, n_local_first;
    double   exposed_ms, transfer_ms;
} bt_client_counts;

struct bt_client_worker {
    bt_prefill *owner;
    uint32_t    index;
    char        address[128];
    pthread_t   thread;

    /* The session's alone. */
    bt_kv_scratch scratch;             /* empty where rows come as stored */
    uint64_t    epoch, retry_ns;       /* retry: the queue of control frames was full */
    uint32_t    n_streams, stream_next;
    bool        sends, drains;         /* `status.phase`, as the session has seen it */
    bt_client_transfer *done;          /* off the list, to be freed */

    /* Written by its session, read by others: lock. */
    bool        used, leaving, ended;  /* not yet joined; off the list; the thread is over */
    bt_link    *link;                  /* NULL: not connected */
    bt_client_transfer *transfers;     /* in the order given */
    bt_client_transfer *inbox;         /* newest first; the session takes them */
    uint32_t    n_ctx, chunk;          /* by WELCOME */
    bt_cost_fit compute;               /* of prompts, by COMMIT */
    bt_cost_link carries;
    double      learned_ms;            /* when `compute` last learned something; 0: never */
    double      given_ms;              /* when it was last given a prompt; 0: never */
    uint32_t    n_passed;              /* prompts since then that might have come here */
    bt_cache_hint known;               /* prompts that its cache should hold */
    uint64_t    others_tokens;         /* of other servers, by the worker's last word */
    uint32_t    others_prompts;
    double      load_ms, left_ms;      /* when that came; a prompt of ours last left it */
    bool        said_ready;            /* what the log has last: ready, or this reason */
    char        said[256];
    bt_client_counts counts;
    bt_prefill_worker_status status;   /* what is derived is filled in on demand */
};

typedef struct {
    uint64_t ticket;
    double   made_ms;
    bt_prefill_decision told;          /* but for its age */
} bt_client_decision;

/* Steps of a prompt that was prefilled here. */
typedef struct { uint32_t first, end, n_steps; double ms; } bt_client_local;

struct bt_prefill {
    bt_prefill_options options;
    char              *key_file, *numerics;   /* owned copies */
    bt_engine         *engine;
    bt_kv_form         form;           /* of rows on the wire */
    bt_wire_hello      hello;
    uint64_t           token_bytes;    /* on the wire */
    bt_timeline       *timeline;       /* NULL: none */
    uint64_t          *state_bytes;    /* [n_layers] NULL: no layer keeps a state */
    bt_waker           stop_waker;     /* ends connecting */

    pthread_mutex_t lock;              /* guards all below */
    pthread_cond_t  wake;              /* stop, leaving, another state of a worker */
    bool            stopping;
    bool            last_remote;
    bt_cost_fit     local;             /* of prompts, by measured() */
    bt_client_local gathered;          /* of the next sample for it */
    bt_client_counts retired;          /* of workers that have left */
    bt_prefill_status status;          /* the pool's own; what adds up is filled in on demand */
    bt_client_decision decisions[BT_PREFILL_DECISIONS_MAX];   /* a ring */
    uint64_t        n_decisions;       /* ever made */
    bt_client_worker *workers;         /* [BT_WORKERS_MAX] those `used` are the list */
};

/* Two lanes of the timeline per prompt: what happens to it, and the rows that come. Ticket numbers
 * are not in order. */
static inline uint64_t bt_handoff_prompt_lane(const bt_client_prompt *prompt)
{
    return 2 * prompt->ticket + 2;
}

/* ---- client_stats.c; all with the lock held ---- */

/* The question about a prompt that is as the job says; NULL: any. */
bt_route_question bt_handoff_stats_question(const bt_prefill *p, const bt_prefill_job *job);
/* What the router has to know about every place in the list, for rows [first, end) of these tokens
 * (NULL: any). */
void bt_handoff_stats_view(bt_prefill *p, uint64_t tenant, const uint32_t *tokens, uint32_t first,
                           uint32_t end, bt_route_worker ret_workers[BT_WORKERS_MAX]);
/* What of the worker's load, by its last word, is not ours. */
void bt_handoff_stats_load(bt_client_worker *w, const bt_link_stats *link);
/* Writes into the report what a committed prompt took. Without the lock. */
void bt_handoff_stats_measure(const bt_prefill *p, bt_client_transfer *t, const bt_wire_commit *m,
                              const bt_link_stats *link);
/* What a committed prompt teaches about its worker; what one that was given up does. */
void bt_handoff_stats_committed(bt_client_worker *w, const bt_client_transfer *t,
                                const bt_wire_commit *m, const bt_link_stats *link);
void bt_handoff_stats_given_up(bt_client_worker *w, const bt_client_transfer *t);
/* How long a prompt may take. */
void bt_handoff_stats_patience(const bt_client_worker *w, bt_client_transfer *t,
                               const bt_link_load *load);
void bt_handoff_stats_decided(bt_prefill *p, uint64_t ticket, bt_prefill_outcome outcome,
                              double took_ms);
/* Adds the counters of a worker that leaves to those of the pool. */
void bt_handoff_stats_retire(bt_prefill *p, const bt_client_worker *w);
/* Tokens that are not here yet. */
uint32_t bt_handoff_stats_left(const bt_client_prompt *prompt);

/* ---- client_prompt.c ---- */

/* NULL when there is no memory. hedge_ns: when it is to be prefilled here as well. */
bt_client_prompt *bt_handoff_prompt_create(const bt_prefill *p, const bt_prefill_job *job,
                                           const bt_prefill_report *report, uint64_t hedge_ns);
void bt_handoff_prompt_destroy(bt_client_prompt *prompt);      /* NULL is fine */
/* Whose prompts it may meet in a worker's cache. */
uint64_t bt_handoff_prompt_tenant(const bt_prefill_job *job);
/* Lock held. Into the worker's inbox, and wakes it; false: no memory, and nothing has changed. */
bool bt_handoff_prompt_give(bt_client_worker *w, bt_client_prompt *prompt);
/* Lock free. Ends the ticket without COMMIT, and frees the prompt. */
void bt_handoff_prompt_abandon(bt_prefill *p, bt_client_prompt *prompt, bt_status status,
                               bt_prefill_outcome outcome);

/* The rest: session's thread, lock free. */
bt_client_transfer *bt_handoff_transfer_find(bt_client_worker *w, uint32_t stream);
/* Carries out what the machine said. `why`: of what failed; `commit`: of COMMIT; else NULL. */
void bt_handoff_transfer_do(bt_client_worker *w, bt_client_transfer *t, uint32_t todo,
                            const bt_error *why, const bt_wire_commit *commit);
/* Frees those that are done. */
void bt_handoff_transfers_reap(bt_client_worker *w);
void bt_handoff_transfer_send_cancel(const bt_client_worker *w, uint32_t stream, bt_status why);

/* ---- client_send.c; session's thread, lock free ---- */

/* Sends what waits, as far as there are slots. */
void bt_handoff_send_waiting(bt_client_worker *w);
/* A part of rows or states has been stored: counts it, and returns credit when enough is owed. */
void bt_handoff_send_stored(bt_client_worker *w, bt_client_transfer *t, uint32_t frame_size,
                            uint64_t n_bytes);
void bt_handoff_send_credit(bt_client_worker *w, bt_client_transfer *t);

/* ---- client_session.c ---- */

/* From WELCOME on, until the connection ends; *err says how. Ends every transfer. */
void bt_handoff_session_run(bt_client_worker *w, bt_link *link, bt_error *err);
/* Says a state once: a worker that stays away is one line, not one per attempt. */
void bt_handoff_session_set_state(bt_client_worker *w, bt_prefill_state state, const char *reason);

/* ---- client_workers.c ---- */

/* Lock held. How many are on the list; the one that people should hear of when none is ready (NULL:
 * the list is empty); the one with room for the most tokens (NULL: that is not known of all). */
uint32_t bt_handoff_workers_count(const bt_prefill *p);
const bt_client_worker *bt_handoff_workers_typical(const bt_prefill *p);
const bt_client_worker *bt_handoff_workers_largest(const bt_prefill *p);
/* Lock free, once `stopping` is set: ends every connection and joins every thread. */
void bt_handoff_workers_stop(bt_prefill *p);

#endif
