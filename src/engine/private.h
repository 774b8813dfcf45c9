/* engine/private.h - what the files of the engine share.
 *
 * engine.c    create, destroy, the thread's loop
 * mail.c      how other threads reach it
 * request.c   submit: checks and memory; handles
 * ring.h      events from the engine to one consumer
 * sequence.c  admission, pages, preemption, the end
 * cache.c     the prefix tree: lookup, entering, eviction when a page is needed
 * schedule.c  which rows the next step evaluates
 * pace.h      how long steps take: a fit that bounds prefill while others decode
 * step.c      runs a step; logits to tokens to events
 * state.c     recurrent states: slots, snapshots, where steps are cut for them
 * external.c  tickets: rows that somebody else computes; load.h: what a prefill here meets
 * stats.c     counters and reports
 *
 * A request is handed over: submit makes it, the engine thread owns all of it but what its lock
 * guards, and the last of client and engine to let go frees it. Locks, never two at once:
 * engine.mail_lock, engine.import_lock, engine.stats_lock, request.ring.lock.
 * Callbacks (external, push, on_event) are made without a lock. */
#ifndef BT_ENGINE_PRIVATE_H
#define BT_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/external.h"
#include "engine/pace.h"
#include "engine/ring.h"
#include "kv/lease.h"

#define BT_NOTHING UINT32_MAX

/* ---- a request, and the sequence that it becomes ---- */

/*  WAITING --admit--> EXTERNAL --commit, abandon--> PREFILL --last prompt token--> DECODE
 *     ^      \---------------------------------------^  |                            |
 *     '------- preempted (pages are short) -----------+--------'  all, at any time: ENDED  */
typedef enum {
    BT_PHASE_WAITING, BT_PHASE_EXTERNAL, BT_PHASE_PREFILL, BT_PHASE_DECODE, BT_PHASE_ENDED
} bt_phase;

struct bt_request {
    /* Fixed by submit. */
    bt_engine *engine;                 /* one of its counted holders */
    uint64_t   id, cache_key;
    bool       prefill_only, has_push, ignore_eog, special, no_cache, want_logprobs, is_long;
    bt_push    push;
    uint32_t   n_prompt, n_predict, n_prefill_chunk, n_logprobs, seed;
    uint32_t   cuts[BT_CUTS_MAX], n_cuts;     /* where steps must end */
    bt_tag     tag;
    double     submit_ms;

    atomic_uint refs;                  /* client, engine */
    atomic_bool cancelled, released;   /* set by the client, read by the engine */
    uint64_t    counted_round;         /* engine->mail_round when it was last counted as waiting */

    bt_event_ring    ring;
    bt_request_stats stats;            /* under ring.lock */
    char       message[BT_ERROR_TEXT_MAX];   /* written before END is put */

    /* The engine's thread. */
    bt_request *next;                  /* in the queue */
    bt_phase   phase;
    uint32_t  *tokens;                 /* [n_tokens <= n_tokens_max] prompt, then answer */
    uint32_t   n_tokens, n_tokens_max;
    uint32_t   n_prefill;              /* before it decodes: prompt; once preempted, answer too */
    uint32_t   n_done;                 /* positions whose rows are computed or committed */
    bt_kv_lease lease;                 /* while rows come from elsewhere: of its own beginning */
    uint32_t   n_entered;              /* positions in the prefix tree */
    uint32_t  *borders;                /* [n_borders] ascending, inside the prompt */
    uint32_t   n_borders;
    uint32_t   snapshot_at;            /* position of the last snapshot of it; 0: none */
    uint32_t   shared_at;              /* another waits for so much of it; 0: none */
    bt_kv_prefix_cursor cursor;
    bool       begun, waits_for_room, hedged; /* BEGIN was put; in this round: its ring is full */
    uint64_t   ticket;                 /* 0: none */
    uint32_t   n_cached, n_external;   /* of the prompt */
    double     admitted_ms, first_token_ms, offered_ms;
    bt_sampler     *sampler;
    bt_text_stream *stream;            /* NULL without a tokenizer */
};

static inline bt_kv_name bt_engine_name_of(const bt_request *r)
{
    return (bt_kv_name){ r->cache_key, r->tokens };
}

/* ---- tickets ---- */

typedef enum {
    BT_TICKET_FREE, BT_TICKET_OPEN, BT_TICKET_COMMITTED, BT_TICKET_ABANDONED
} bt_ticket_state;

typedef struct {
    uint64_t  id;
    bt_ticket_state state;
    bool      hedge;                   /* shall be prefilled here as well */
    uint32_t  n_writers;               /* threads that copy rows just now */
    bt_kv_lease lease;                 /* lent to the writer, and a slot for what comes */
    uint32_t  first, end;              /* positions reserved */
    uint64_t *have;                    /* [n_layers * words] bit per row that has come */
    uint32_t  words;
    uint32_t  snapshot;                /* the state that comes, once more; BT_NOTHING: no room */
    uint64_t *state_have;              /* [n_layers] bytes that have come; after `have` */
    uint64_t  n_missing;               /* rows, and layers with part of their state */
    uint32_t  position_complete;       /* of abandon, as all below */
    bool      end_request;
    bt_status status;
    char      message[BT_ERROR_TEXT_MAX];
} bt_ticket;

/* ---- a step ---- */

typedef struct {
    bt_request *request;
    uint32_t    position, n_rows;
    uint32_t    logit_row;             /* BT_NOTHING: no logits wanted */
} bt_step_part;

typedef struct {
    uint32_t  n_rows, n_parts, n_logit_rows, n_decode_rows, n_prefill_rows;
    double    n_keys;                  /* that prefill rows look at */
    uint32_t *tokens, *positions, *row_sequence;     /* [n_batch] */
    uint32_t *logit_rows;                            /* [n_parallel] */
    bt_step_sequence *sequences;                     /* [n_parallel] */
    bt_step_part     *parts;                         /* [n_parallel] alike */
} bt_plan;

/* ---- the engine ---- */

struct bt_engine {
    bt_engine_options options;         /* as in force */
    uint32_t    n_vocab;
    size_t      piece_max;
    uint32_t   *eog;                   /* [n_eog] ids that end generation */
    size_t      n_eog;
    const bt_tape *tape;
    bt_kv_memory memory;
    bt_external external;              /* offer NULL: none */
    atomic_uint refs;                  /* owner, requests */
    atomic_ullong next_id;
    pthread_t   thread;

    pthread_mutex_t mail_lock;         /* guards the next eight, and counted_round of requests */
    pthread_cond_t  mail;
    bt_request *inbox, **inbox_end;
    uint32_t    n_queued, n_free;      /* waiting and not cancelled; sequences that are free */
    uint32_t    n_in_line;             /* waiting in all */
    uint64_t    mail_round;            /* how often mail was taken */
    bool        woken, closing;

    pthread_mutex_t import_lock;       /* guards tickets */
    pthread_cond_t  writers_left;
    bt_ticket  *tickets;               /* [n_parallel] by sequence number */
    uint64_t    ticket_serial;

    pthread_mutex_t stats_lock;        /* guards published */
    bt_engine_stats published;

    /* The engine's thread. */
    bt_request *waiting;               /* in order of arrival */
    bt_request **active;               /* [n_parallel] NULL: free */
    uint32_t    n_active;
    bt_request *ended_pushes;          /* END was put, pages are kept until release */
    bt_plan     plan;
    bt_pace     pace;
    bt_engine_stats stats;
};

/* ---- mail.c, request.c ---- */
void bt_engine_wake(bt_engine *e);                     /* any thread, as the next two */
void bt_engine_unref(bt_engine *e);
void bt_engine_mail_close(bt_engine *e);
void bt_engine_mail_wait(bt_engine *e);
bool bt_engine_mail_take(bt_engine *e);                /* false: the engine is to end */
void bt_engine_request_unref(bt_request *r);

/* ---- sequence.c ---- */
void bt_engine_sequences_admit(bt_engine *e);
void bt_engine_sequences_reap(bt_engine *e);                  /* what was cancelled or released */
void bt_engine_sequences_settle(bt_engine *e);                /* what came from elsewhere */
/* Makes sure of a page for position n_done. May preempt others, or this one: false then. */
bool bt_engine_sequence_has_page(bt_engine *e, bt_request *r);
/* END, and everything given back. */
void bt_engine_sequence_end(bt_engine *e, bt_request *r, bt_finish finish, bt_status status,
                            const char *message);
void bt_engine_sequence_end_stop(bt_engine *e, bt_request *r, int stop_index);
void bt_engine_sequences_close(bt_engine *e);                 /* the engine ends: all of them */

/* ---- cache.c ---- */
/* Whether so many pages can be had without those that answers will ask for before long. */
bool bt_engine_cache_fits(const bt_engine *e, uint32_t n_pages);
uint32_t bt_engine_cache_match(const bt_engine *e, const bt_request *r);
/* Shares the pages of the longest known beginning; n_done becomes its length. */
void bt_engine_cache_share(bt_engine *e, bt_request *r);
void bt_engine_cache_enter(bt_request *r);      /* full pages that are done */
void bt_engine_cache_enter_last(bt_request *r); /* and the last, once complete */
void bt_engine_cache_forget(bt_engine *e, bt_request *r);     /* its rows proved to be damaged */

/* ---- schedule.c ---- */
bool bt_engine_schedule(bt_engine *e); /* fills e->plan; false: nothing to do */

/* ---- step.c ---- */
void bt_engine_step_run(bt_engine *e);

/* ---- external.c ---- */
/* TAKEN: the request is EXTERNAL; LOCAL: it goes on here; REFUSED: it shall end with *err. */
bt_external_answer bt_engine_external_offer(bt_engine *e, bt_request *r, uint32_t place,
                                            bt_error *err);
/* A commit or an abandon that came; false: the request shall end with *err. */
bool bt_engine_external_settle(bt_engine *e, bt_request *r, uint32_t place, bt_error *err);
/* It is prefilled here as well as elsewhere. */
static inline bool bt_engine_external_hedges(const bt_request *r)
{
    return r->ticket != 0 && r->hedged;
}

/* No rows after this; calls the taker. */
void bt_engine_external_cancel(bt_engine *e, bt_request *r, bt_external_reason reason);

/* ---- stats.c ---- */
void bt_engine_stats_publish(bt_engine *e);
void bt_engine_stats_finish(bt_engine *e, bt_request *r,
                            bt_finish finish); /* the request's own too */
void bt_engine_stats_begin(bt_engine *e, bt_request *r);
void bt_engine_stats_preempted(bt_engine *e, bt_request *r);

#endif
