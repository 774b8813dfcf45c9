/* handoff/prefill.h - the server's side: prompts prefilled on workers.
 *
 * Keeps one connection to each worker, decides for every new prompt where it is prefilled, and
 * writes the rows that come back into the pages which the engine has reserved. A prefix becomes
 * usable only through a verified COMMIT; whatever else happens, the rows of complete, verified
 * chunks are kept and the rest is prefilled here (or on another worker), and the user is told.
 *
 * Lifetime: open takes the engine's offers (engine/external.h). Before the engine is destroyed call
 *           bt_handoff_client_stop (every ticket is ended, no import follows), after it
 *           bt_handoff_client_close.
 * Threads:  one per worker, plus the link's writer. status_get: any thread.
 * Failure:  open only (bad address, no memory, key file). A worker that cannot be reached is a
 *           state, not a failure: the server starts and serves without it.
 */
#ifndef BT_HANDOFF_PREFILL_H
#define BT_HANDOFF_PREFILL_H

#include "engine/engine.h"
#include "handoff/report.h"
#include "kv/codec.h"
#include "link/link.h"
#include "wire/order.h"

typedef struct bt_prefill bt_prefill;

#define BT_PREFILL_MIN_AUTO UINT32_MAX

typedef struct {
    const char     *addresses;         /* "host:port[;host:port...]", at most BT_WORKERS_MAX */
    bool addresses_change; /* by bt_handoff_client_set_workers; else there must be one now */
    uint32_t        min_tokens;        /* fewer uncached tokens stay here; BT_PREFILL_MIN_AUTO:
                                          from measured rates, BT_PREFILL_MIN_FIRST before that */
    uint32_t        n_prefill;         /* prompts in flight per worker; 0: what the worker offers */
    uint32_t        n_prefill_chunk;   /* tokens of one prompt per step there; 0: its own choice */
    uint32_t        stall_ms;          /* without news of a prompt; 0: adapts to the prompt */
    uint64_t        window_bytes;      /* rows under way per prompt; 0: adapts to the link */
    bt_kv_codec   codec;             /* of rows on the wire; stored: bit for bit */
    bt_wire_order   order;
    const char     *trace_file;        /* a timeline of all prompts (base/timeline.h); NULL: none */
    const char     *numerics;          /* instruction set tier here, by name; NULL: not told */
    bt_link_options link;              /* key_file, heartbeat, buffers */
} bt_prefill_options;

enum { BT_PREFILL_MIN_FIRST = 64 };    /* tokens; used by `auto` until both rates are measured */

/* The engine must not have had a request yet. Strings are copied. */
BT_MUST_CHECK bt_status bt_handoff_client_open(const bt_prefill_options *o, bt_engine *engine,
                                               bt_prefill **ret_prefill, bt_error *err);
/* Whether a list of workers could be one, and how many it names. BT_E_BADINPUT. */
BT_MUST_CHECK bt_status bt_handoff_client_check_workers(const char *addresses, uint32_t *ret_n,
                                                        bt_error *err);
/* The workers from now on, in the form of `addresses`, maybe none. Those that stay are not touched;
 * those that are gone finish what they compute and get no more. Any thread. On failure nothing has
 * changed: BT_E_BADINPUT (an address; too many), BT_E_FULL (those that leave still need room). */
BT_MUST_CHECK bt_status bt_handoff_client_set_workers(bt_prefill *p, const char *addresses,
                                                      bt_error *err);
void bt_handoff_client_stop(bt_prefill *p); /* NULL is fine; may be called twice */
void bt_handoff_client_close(bt_prefill *p);                  /* stops first if nobody did */

/* ---- looking in ---- */

/*    name        text */
#define BT_PREFILL_STATE_LIST(X)                                            \
    X(CONNECTING, "connecting")   /* trying; `reason` says what came of it */ \
    X(READY,      "ready")                                                  \
    X(REFUSED,    "refused")      /* it answered and said no, or we did */  \
    X(LOST,       "lost")         /* was ready, is being tried again */     \
    X(DRAINING,   "draining")     /* finishes what it has, takes no more */

typedef enum {
#define X(name, text) BT_PREFILL_##name,
    BT_PREFILL_STATE_LIST(X)
#undef X
    BT_PREFILL_STATE_COUNT
} bt_prefill_state;

const char *bt_handoff_client_state_name(bt_prefill_state s);      /* static, lower case */

typedef struct {
    char             address[128];
    bt_prefill_state state;
    char             reason[400];      /* why it is not ready; "" when it is */
    char             version[64];      /* what the worker calls itself; "" before it answered */
    char             numerics[32];     /* instruction set tier there; rows are bit-equal only when
                                          it is ours */
    double           round_trip_ms;    /* the least seen, so of no ping that waited behind rows;
                                          0: not yet */
    double           goodput_bytes_per_second;   /* what the link carries; 0: never waited for */
    double           tokens_per_second;          /* prefill rate there; 0: not yet */
    double           step_ms, token_ms, key_ms;      /* fitted: of each step, token, and position
                                                        that a token looks back at */
    double           lead_ms, tail_ms; /* until the first rows; transfer that nothing hides */
    double           idle_seconds;     /* since it was last given a prompt; < 0: never was */
    uint32_t         n_slots;          /* prompts in flight at most */
    uint32_t         n_in_flight, n_waiting;     /* prompts given to it; waiting here for a slot */
    uint64_t         tokens_in_flight;           /* of both */
    uint32_t         peer_prompts;     /* by its last PONG: prompts of all its servers */
    uint64_t         peer_tokens;
    uint64_t         n_connects, n_lost;         /* times it became ready, times it was lost */
    uint64_t         n_prompts, n_tokens, n_bytes;   /* committed prompts, their tokens and bytes */
    uint64_t         n_partial_tokens; /* kept from prompts that were given up */
    uint64_t         n_fallbacks;      /* prompts it was given and that ended elsewhere */
    uint64_t         n_cancelled;
    uint64_t         n_late_frames;    /* of streams that had ended, dropped */
    uint64_t         n_corrupt;        /* frames, digests or commits that did not hold */
} bt_prefill_worker_status;

typedef struct {
    uint32_t n_workers, n_ready;
    uint32_t min_tokens;               /* in force; with `auto` the present break-even */
    bool     min_tokens_auto;
    uint64_t n_prompts, n_tokens, n_bytes;
    uint64_t n_local;                  /* prompts kept here by decision */
    uint64_t n_fallbacks;              /* prompts meant for a worker and prefilled here after all:
                                          docs/handoff.md, "What a fallback is" */
    uint64_t n_failed;                 /* the same under policy `fail`: answered with an error */
    uint64_t n_retries;                /* prompts given to a second worker */
    uint64_t n_hedged, n_outrun;       /* prefilled here as well; and here first */
    uint64_t n_cancelled;
    double   exposed_seconds, transfer_seconds;  /* sums over committed prompts */
    double   local_tokens_per_second;  /* 0: not measured yet */
    double   local_step_ms, local_token_ms, local_key_ms;    /* fitted, as those of workers */
} bt_prefill_status;

void bt_handoff_client_status_get(const bt_prefill *p, bt_prefill_status *ret_status);
/* The `index`th worker; false when there are not so many (any more). */
bool bt_handoff_client_worker_status_get(const bt_prefill *p, uint32_t index,
                                         bt_prefill_worker_status *ret_status);

/* ---- what was decided lately, and what came of it ---- */

/*    name       text */
#define BT_PREFILL_OUTCOME_LIST(X)                                        \
    X(HERE,      "here")          /* kept here by decision */             \
    X(UNDER_WAY, "under way")                                             \
    X(REMOTE,    "remote")                                                \
    X(FALLBACK,  "fallback")      /* meant for a worker, finished here */ \
    X(FAILED,    "failed")        /* the same under policy `fail` */      \
    X(OUTRUN,    "outrun")        /* prefilled here as well, and first */ \
    X(CANCELLED, "cancelled")

typedef enum {
#define X(name, text) BT_PREFILL_OUTCOME_##name,
    BT_PREFILL_OUTCOME_LIST(X)
#undef X
    BT_PREFILL_OUTCOME_COUNT
} bt_prefill_outcome;

const char *bt_handoff_client_outcome_name(bt_prefill_outcome o);  /* static, lower case */

typedef struct {
    double   age_seconds;
    uint32_t position_first, n_tokens; /* rows wanted; before them lies what the cache had */
    char     worker[128];              /* the one chosen first; "": here */
    char     reason[400];
    double   local_ms, remote_ms;      /* predicted until the first token, remote: by the best
                                          worker; 0: unknown */
    bool     probe;                    /* to learn what it costs */
    bt_prefill_outcome outcome;
    double   took_ms;                  /* prompt given out to prefix usable; 0: not known */
} bt_prefill_decision;

enum { BT_PREFILL_DECISIONS_MAX = 32 };
/* The last ones, newest first; returns how many. */
uint32_t
bt_handoff_client_decisions_get(const bt_prefill *p,
                                bt_prefill_decision ret_decisions[BT_PREFILL_DECISIONS_MAX]);

#endif
