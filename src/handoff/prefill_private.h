/* handoff/prefill_private.h - what the files of the server's side share.
 *
 * prefill.c   open, stop, close; the clerk
 * place.c     the placement callbacks: where a prompt goes; the last decisions
 * workers.c   the list of workers, which may change; status
 * peer.c      one thread per worker: connect, greet, receive, tick, back off
 * job.c       one prompt on one worker: its life, sending it
 * job_rows.c  what comes of it: import, verify, commit
 * job_end.c   how else it ends, and deadlines
 * job_state.c its recurrent states, and the snapshots that follow COMMIT
 * learn.c     what a committed prompt teaches; what the router is told of a worker
 *
 * Locking: one lock for all of it (bt_prefill.lock). Events are rare (a few per frame of up to
 * 1 MiB), so nothing finer is needed. Only the thread of the peer that a job is on takes the job
 * off the list or frees it; with the lock free it may therefore import rows for it. Engine and link
 * are called without the lock, except bt_link_send, which never blocks.
 */
#ifndef BT_HANDOFF_PREFILL_PRIVATE_H
#define BT_HANDOFF_PREFILL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "handoff/dying.h"
#include "route/cache_hint.h"
#include "handoff/offer.h"
#include "transfer/receipt.h"
#include "handoff/prefill.h"
#include "route/router.h"
#include "base/timeline.h"
#include "wire/codec.h"

#define BT_HANDOFF_NONE UINT32_MAX

enum {
    BT_HANDOFF_TICK_MS = 10,           /* cancel and deadlines are looked at this often */
    BT_HANDOFF_IDLE_MS = 100,          /* with no prompt under way */
    BT_HANDOFF_GREETING_MS = 3000,     /* HELLO to WELCOME */
    BT_HANDOFF_BACKOFF_FIRST_MS = 100, /* between attempts; doubled up to: */
    BT_HANDOFF_BACKOFF_LOST_MS = 2000,     /* nobody there: a restart is seen soon */
    BT_HANDOFF_BACKOFF_REFUSED_MS = 10000, /* somebody said no: only a restart changes that */
    BT_HANDOFF_TRIES_MAX = 2,          /* workers that one prompt is given to */
    BT_HANDOFF_EXPRESS_PART = 4,       /* a prompt so much shorter than all others needs no slot */
    BT_HANDOFF_HEDGE_LATE_MS = 20,     /* later than predicted by this and a quarter: hedge */
    BT_HANDOFF_MARKS = 64,
    BT_HANDOFF_GATHER_MAX = 4096,      /* tokens of a sample of what prefill costs here */
    BT_HANDOFF_MEASURE_MIN = 16        /* tokens; fewer measure the reading of weights */
};

#define BT_HANDOFF_WINDOW_MIN (16u << 20)   /* rows under way per prompt, at least and at most */
#define BT_HANDOFF_WINDOW_MAX (64u << 20)

typedef struct bt_handoff_peer bt_handoff_peer;
typedef struct bt_handoff_job  bt_handoff_job;

typedef struct {
    uint64_t ticket;
    double   made_ms;
    bt_prefill_decision told;          /* but for its age */
} bt_handoff_decision;

typedef struct { double ms, bytes; } bt_handoff_mark;

/* Steps of a prompt that was prefilled here. */
typedef struct { uint32_t first, end, n_steps; double ms; } bt_handoff_local;

struct bt_handoff_job {
    bt_handoff_job *next;
    bt_handoff_request *request;       /* a reference; NULL: nobody reads the report */
    uint64_t  ticket;
    uint32_t *tokens;                  /* [end] owned */
    uint32_t  first, end;              /* rows wanted from workers in all */
    uint32_t  borders[BT_WIRE_BORDERS_MAX], n_borders;   /* states wanted behind COMMIT */
    uint32_t  border;                  /* the one that comes now */
    uint32_t  snapshot;                /* where it is written; BT_HANDOFF_NONE: nowhere */
    uint32_t  complete;                /* of these, verified so far */
    bool      policy_fail;
    uint64_t  tenant;                  /* whose caches it may meet */
    bool      hedged;                  /* the engine was told to prefill it here as well */
    bool      outrun;                  /* and was first; set by its thread, with `cancelled` */
    double    hedge_ms;                /* when it is to be told; 0: never */
    bool      cancelled;               /* set by the engine's thread */
    bool      sent, over;              /* PREFILL is out; the worker's last word has come */
    bt_status send_status;             /* what came of sending it; of `refused`: why */
    uint32_t  n_tries;
    uint32_t  stream;
    bt_wire_prefill asked;             /* as sent */
    bt_transfer_receipt ledger;        /* open while sent */
    uint64_t  credit_left;             /* bytes that the worker may still send */
    uint64_t  credit_owed;             /* bytes imported and not yet returned as CREDIT */
    bool      alone;                   /* no other prompt was on the worker meanwhile */
    uint32_t  n_marks;                 /* when how many bytes had come: thinned out when full */
    bt_handoff_mark marks[BT_HANDOFF_MARKS];
    double    first_bytes;             /* of the frame that came at rows_ms */
    double    start_ms, given_ms;      /* given to us; to this worker */
    double    waited_ms;               /* here, for a slot, of all workers */
    double    told_compute_ms;         /* by this worker's last CHUNK, since it began */
    char      lost[256];               /* who had it before, how far, and the cause; "": nobody */
    double    sent_ms, rows_ms, news_ms;   /* PREFILL out; first rows; last frame; 0: not yet */
    bt_prefill_report report;
};

struct bt_handoff_peer {
    bt_prefill *owner;
    uint32_t    index;
    bt_kv_scratch room;                 /* its thread's; empty where rows come as stored */
    pthread_t   thread;
    bool        thread_runs;
    char        address[128];

    /* All below: owner->lock. */
    bool            used;              /* this place in the list is taken */
    bool            leaving;           /* taken off the list: ends when its prompts have */
    bool            ended;             /* the thread is about to return; the clerk joins it */
    bt_link        *link;              /* only while READY or DRAINING */
    uint32_t        stream_next;
    uint64_t        epoch;
    uint32_t        n_ctx;             /* positions that fit the worker */
    uint32_t        chunk;             /* tokens of our prompts in a step there */
    uint32_t        n_streams;         /* prompts that it takes, in work and in line */
    bt_handoff_job *jobs;              /* in order of arrival */
    bt_dying        dying;             /* as good as sent */
    bt_handoff_job *committed;         /* see job_state.h; newest first; peer's thread */
    uint32_t        n_committed;
    bt_cost_fit          compute;           /* of prompts, by COMMIT */
    bt_cost_fit          transfer;          /* of bytes, where they were what was waited for */
    double          bytes_per_ms;      /* goodput; 0: the link was never what was waited for */
    double          least_bytes_per_ms;    /* rows as they came, at the pace of computing */
    double          lead_ms, tail_ms;  /* see router.h; smoothed */
    double          learned_ms;        /* when `compute` last was told something; 0: never */
    double          given_ms;          /* when it was last given a prompt; 0: never */
    uint32_t        n_passed;          /* prompts since then that might have come here */
    bt_cache_hint        known;             /* prompts that its cache should hold */
    uint64_t        others_tokens;     /* of other servers, by the worker's last word */
    uint32_t        others_prompts;
    double          load_told_ms, left_ms;   /* when that came; a prompt of ours last left it */
    bool            said_ready;        /* what the log was told last: ready, or this reason */
    char            said[256];
    bt_prefill_worker_status status;   /* what is derived is filled in on demand */
};

struct bt_prefill {
    bt_prefill_options options;
    char              *key_file, *numerics;   /* owned copies */
    bt_engine         *engine;
    bt_kv_form       form;           /* of rows on the wire */
    bt_wire_hello      hello;
    uint64_t           token_bytes;    /* on the wire */
    bt_timeline          *trace;          /* NULL: none */
    uint64_t          *state_bytes;    /* [n_layers] NULL: no layer keeps a state */

    atomic_bool        stopping;       /* set under the lock */
    bt_waker           stop_waker;     /* woken then: ends connecting */
    pthread_mutex_t lock;              /* guards all below and the peers */
    pthread_cond_t  wake;              /* stop (ends back-off), work for the clerk */
    bool            last_remote;
    bt_cost_fit          local;             /* of prompts, by measured() */
    bt_handoff_local gathered;         /* of the next sample for it */
    bt_prefill_status status;          /* what is derived is filled in on demand */
    bt_handoff_decision decisions[BT_PREFILL_DECISIONS_MAX];   /* a ring */
    uint64_t        n_decisions;       /* ever made */
    bt_handoff_job *refused;           /* tickets for the clerk to end */
    pthread_t       clerk;
    bool            clerk_runs;
    bt_handoff_peer  *peers;           /* [BT_WORKERS_MAX] those `used` are the list */
};

/* ---- peer.c ---- */
void *bt_handoff_peer_main(void *peer);

/* ---- workers.c ---- */
/* Lock held. How many are on the list; the one that people should be told about when none is ready
 * (NULL: the list is empty). */
uint32_t bt_handoff_workers_count(const bt_prefill *p);
const bt_handoff_peer *bt_handoff_workers_typical(const bt_prefill *p);
/* Lock held. The one with room for the most tokens; NULL while that is not known of all. */
const bt_handoff_peer *bt_handoff_workers_largest(const bt_prefill *p);
/* Lock held on entry and exit, free in between. Joins one that has left; false if none had. */
bool bt_handoff_workers_join_one(bt_prefill *p);

/* ---- place.c ---- */
/* The callbacks for the engine. */
bt_external bt_handoff_external(bt_prefill *p);
/* Lock held. What came of the decision about this ticket. */
void bt_handoff_decided(bt_prefill *p, uint64_t ticket, bt_prefill_outcome outcome, double took_ms);
/* Lock held. The question about a prompt that is as the job says; NULL: any. */
bt_route_question bt_handoff_question(const bt_prefill *p, const bt_prefill_job *job);

/* ---- learn.c ---- */
/* Lock held. What the router has to know about every place in the list, for rows [first, end) of
 * these tokens (NULL: any). */
void bt_handoff_peers_view(const bt_prefill *p, uint64_t tenant, const uint32_t *tokens,
                           uint32_t first, uint32_t end,
                           bt_route_worker ret_workers[BT_WORKERS_MAX]);
/* Lock held. What of the worker's load, as it has just told, is not ours. */
void bt_handoff_peer_learn_load(bt_handoff_peer *peer, const bt_link_stats *link);
/* Lock held. What a committed prompt teaches about its worker. */
void bt_handoff_peer_learn(bt_handoff_peer *peer, const bt_handoff_job *job,
                           const bt_wire_commit *m, const bt_link_stats *link);
/* Lock held. The same of one that was given up: what has come took at most so long, which counts
 * where it is less than was thought. */
void bt_handoff_peer_learn_part(bt_handoff_peer *peer, const bt_handoff_job *job);
/* Peer's thread. Notes when rows came. */
void bt_handoff_job_mark(bt_handoff_job *job);
/* Lock held. Tokens of this job that are not here yet. */
uint32_t bt_handoff_job_left(const bt_handoff_job *job);

/* ---- job.c, job_rows.c, job_end.c ---- */
void bt_handoff_job_take_off(bt_handoff_peer *peer, bt_handoff_job *job);    /* lock held */
/* Writes into the report how rows came, if any did. */
void bt_handoff_job_tell_wire_type(const bt_prefill *p, bt_handoff_job *job);
/* NULL when there is no memory. hedge_ms: when it is to be prefilled here as well; 0: never. */
bt_handoff_job *bt_handoff_job_create(const bt_prefill_job *job, const bt_prefill_report *report,
                                      double hedge_ms);
void bt_handoff_job_destroy(bt_handoff_job *job);      /* NULL is fine */
/* Lock held. Puts it on the peer's list and sends it if there is a slot. */
void bt_handoff_job_give(bt_handoff_peer *peer, bt_handoff_job *job);
/* Lock held. Sends what waits, as far as there are slots. */
void bt_handoff_jobs_send(bt_handoff_peer *peer);
bt_handoff_job *bt_handoff_job_find(bt_handoff_peer *peer, uint32_t stream);

/* Peer's thread, lock free. Rows that nobody asked for are the connection's end (W-70, W-106). */
BT_MUST_CHECK bt_status bt_handoff_job_rows(bt_handoff_peer *peer, bt_handoff_job *job,
                                            const bt_frame *frame, bt_error *err);
/* The stream's end, and no more, where the account does not agree (W-63). */
void bt_handoff_job_chunk(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame);
void bt_handoff_job_commit(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame);
/* Of both: takes a frame off what the worker may send; what came of storing it (false: not stored,
 * and dealt with); that it has been stored. */
BT_MUST_CHECK bt_status bt_handoff_job_spend(bt_handoff_job *job, uint32_t size, bt_error *err);
bool bt_handoff_job_imported(bt_handoff_peer *peer, bt_handoff_job *job, bt_status status,
                             const char *what, uint32_t layer);
void bt_handoff_job_received(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                             uint64_t n_bytes);
/* Returns credit when enough is owed. */
void bt_handoff_job_give_credit(bt_handoff_peer *peer, bt_handoff_job *job);
void bt_handoff_job_send_cancel(bt_handoff_peer *peer, uint32_t stream, bt_status why);
/* What a worker sent did not hold: counted, and the stream ends. */
void bt_handoff_job_fail_corrupt(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *err);

/* Off this peer, with `why`: to another worker if one is ready, else abandoned. `tell`: the worker
 * still has the stream and is sent CANCEL. */
void bt_handoff_job_fail(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *why,
                         bool tell);
/* Ends what was cancelled or waits for too long. */
void bt_handoff_jobs_tick(bt_handoff_peer *peer);
/* The connection is gone (or we stop): every job fails with `why`. */
void bt_handoff_jobs_fail(bt_handoff_peer *peer, const bt_error *why);

#endif
