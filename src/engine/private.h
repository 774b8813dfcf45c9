/* engine/private.h - what the files of the engine share.
 *
 * engine.c    create, destroy, the thread's loop, mail from other threads
 * request.c   submit: checks and memory; handles
 * ring.c      events from the engine to one consumer
 * sequence.c  admission, pages, preemption, the end
 * cache.c     the prefix tree: lookup, entering, eviction when a page is needed
 * schedule.c  which rows the next step evaluates
 * pace.h      how long steps take: a fit that bounds prefill while others decode
 * step.c      runs a step; logits to tokens to events
 * state.c     recurrent states: slots, snapshots, where steps are cut for them
 * external.c  tickets: rows that somebody else computes; load.h: what a prefill here meets
 * hedge.h     a prompt that is prefilled here as well as elsewhere
 * stats.c     counters and reports
 *
 * A request is handed over: submit makes it, the engine thread owns all of it but what its lock
 * guards, and the last of client and engine to let go frees it. Locks, never two at once:
 * engine.mail_lock, engine.import_lock, engine.stats_lock, request.lock.
 * Callbacks (external, push, on_event) are made without a lock. */
#ifndef BT_ENGINE_PRIVATE_H
#define BT_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/external.h"
#include "engine/pace.h"
#include "kv/prefix.h"
#include "kv/states.h"

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

    /* Events. The consumer reads slots [head, head + count); the slot it was given last stays its
     * own until the next wait. */
    pthread_mutex_t lock;              /* guards all up to `stats` */
    pthread_cond_t  arrived;
    bt_event  *slots;                  /* [n_slots] */
    uint32_t   n_slots, head, count;
    bool       lent;                   /* slot `head` is with the consumer */
    bool       ended;                  /* END was put */
    bool       paused;                 /* the engine waits for room */
    bool       calling;                /* on_event, just now */
    void     (*on_event)(void *context);   /* NULL: none, or none any more */
    void      *on_event_context;
    bt_request_stats stats;

    char      *texts;                  /* [n_slots * text_max] of the slots */
    size_t     text_max;
    bt_token_logprob *tops;            /* [n_slots * n_logprobs] of the slots */
    char       message[BT_ERROR_TEXT_MAX];   /* written before END is put */

    /* The engine's thread. */
    bt_request *next;                  /* in the line of those that wait */
    bt_phase   phase;
    uint32_t  *tokens;                 /* [n_tokens <= n_tokens_max] prompt, then answer */
    uint32_t   n_tokens, n_tokens_max;
    uint32_t   n_prefill;              /* of these, to be evaluated before it decodes: the prompt,
                                          and once preempted the answer so far */
    uint32_t   n_done;                 /* positions whose rows are computed or committed */
    uint32_t  *pages;                  /* [n_pages <= n_pages_max] */
    uint32_t   n_pages, n_pages_max;
    uint32_t  *other_pages, n_other_pages;    /* hedge.h: where rows come in; NULL: into `pages` */
    uint32_t   n_entered;              /* positions in the prefix tree */
    uint32_t  *borders;                /* [n_borders] ascending, inside the prompt */
    uint32_t   n_borders;
    uint32_t   state_slot;             /* BT_NOTHING: none */
    uint32_t   snapshot_at;            /* position of the last snapshot of it; 0: none */
    uint32_t   shared_at;              /* another waits for so much of it; 0: none */
    bt_kv_prefix_cursor cursor;
    bool       begun, waits_for_room, hedged; /* BEGIN was put; in this round: its ring is full */
    uint64_t   ticket;                 /* 0: none */
    uint32_t   n_cached, n_external;
    double     admitted_ms, first_token_ms, offered_ms;
    bt_sampler     *sampler;
    bt_text_stream *stream;            /* NULL without a tokenizer */
};

/* ---- tickets ---- */

typedef enum {
    BT_TICKET_FREE, BT_TICKET_OPEN, BT_TICKET_COMMITTED, BT_TICKET_ABANDONED
} bt_ticket_state;

typedef struct {
    uint64_t  id;
    bt_ticket_state state;
    bool      hedge;                   /* shall be prefilled here as well */
    uint32_t  n_writers;               /* threads that copy rows just now */
    const uint32_t *pages;
    uint32_t  first, end;              /* positions reserved */
    uint64_t *have;                    /* [n_layers * words] bit per row that has come */
    uint32_t  words;
    uint32_t  state_slot;              /* what comes; becomes the sequence's own by commit */
    uint32_t  snapshot;                /* the same, written by the way; BT_NOTHING: no room */
    uint64_t *state_have;              /* [n_layers] bytes that have come; behind `have` */
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
    bt_kv_pool *pool;
    bt_state_pool *states;             /* NULL: no layer keeps a state */
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
    bt_kv_prefix *prefixes;
    bt_plan     plan;
    bt_pace     pace;
    bt_engine_stats stats;
};

/* ---- engine.c, request.c ---- */
void bt_engine_wake(bt_engine *e);                     /* any thread */
void bt_engine_unref(bt_engine *e);
void bt_engine_request_unref(bt_request *r);

/* ---- ring.c ---- */
bt_status bt_engine_ring_init(bt_request *r);
void bt_engine_ring_done(bt_request *r);
/* Client's thread: on_event is not called after this, and no call of it is under way. */
void bt_engine_ring_mute(bt_request *r);
/* Whether a token's event and an END fit; if not, the consumer's next wait wakes the engine. */
bool bt_engine_ring_has_room(bt_request *r);
/* A slot to fill and then to put. Its text has room for text_max bytes, its top for n_logprobs. */
bt_event *bt_engine_ring_slot(bt_request *r, char **ret_text, bt_token_logprob **ret_top);
void bt_engine_ring_put(bt_request *r);
void bt_engine_ring_put_progress(bt_request *r, uint32_t n_done); /* dropped when it is half full */

/* ---- sequence.c ---- */
void bt_engine_sequences_admit(bt_engine *e);
void bt_engine_sequences_reap(bt_engine *e);                  /* what was cancelled or released */
/* Makes sure of a page for position n_done. May preempt others, or this one: false then. */
bool bt_engine_sequence_has_page(bt_engine *e, bt_request *r);
/* Whether so many pages can be had without those that answers will ask for before long. */
bool bt_engine_sequence_fits(const bt_engine *e, uint32_t n_pages);
/* END, and everything given back. */
void bt_engine_sequence_end(bt_engine *e, bt_request *r, bt_finish finish, bt_status status,
                            const char *message);
void bt_engine_sequence_end_stop(bt_engine *e, bt_request *r, int stop_index);
void bt_engine_sequences_close(bt_engine *e);                 /* the engine ends: all of them */

/* ---- cache.c ---- */
/* Both evict if they must; false: no page is left. The second makes a page writable whose first
 * n_rows rows count: a copy of its own, where others hold it. */
bool bt_engine_cache_take_page(bt_engine *e, uint32_t *ret_page);
bool bt_engine_cache_own_page(bt_engine *e, uint32_t *page, uint32_t n_rows);
uint32_t bt_engine_cache_match(const bt_engine *e, const bt_request *r);
/* Shares the pages of the longest known beginning; n_done becomes its length. */
void bt_engine_cache_share(bt_engine *e, bt_request *r);
void bt_engine_cache_enter(bt_engine *e, bt_request *r);      /* full pages that are done */
void bt_engine_cache_enter_last(bt_engine *e, bt_request *r); /* and the last, once complete */
void bt_engine_cache_forget(bt_engine *e, bt_request *r);     /* its rows proved to be damaged */

/* ---- schedule.c ---- */
bool bt_engine_schedule(bt_engine *e); /* fills e->plan; false: nothing to do */

/* ---- step.c ---- */
void bt_engine_step_run(bt_engine *e);

/* ---- external.c ---- */
/* TAKEN: the request is EXTERNAL; LOCAL: it goes on here; REFUSED: it shall end with *err. */
bt_external_answer bt_engine_external_offer(bt_engine *e, bt_request *r, uint32_t place,
                                            bt_error *err);
void bt_engine_externals_settle(bt_engine *e);                /* commits and abandons that came */
/* No rows after this; calls the taker. */
void bt_engine_external_cancel(bt_engine *e, bt_request *r, bt_external_reason reason);

/* ---- stats.c ---- */
void bt_engine_stats_publish(bt_engine *e);
void bt_engine_stats_finish(bt_engine *e, bt_request *r,
                            bt_finish finish); /* the request's own too */
void bt_engine_stats_begin(bt_engine *e, bt_request *r);
void bt_engine_stats_preempted(bt_engine *e, bt_request *r);

#endif
