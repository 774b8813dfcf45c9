/* handoff/client.h - the server's side: prompts prefilled on workers.
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
#ifndef BT_HANDOFF_CLIENT_H
#define BT_HANDOFF_CLIENT_H

#include "base/metric.h"
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

/* One list for the struct, its JSON and its Prometheus families (base/metric.h). */
#define BT_PREFILL_WORKER_STATUS_LIST(X)                                                           \
    X(char[128], address, TEXT, NONE, "HOST:PORT")                                                 \
    X(const char *, state, TEXT, NONE, "connecting, ready, refused, lost or draining")             \
    X(char[400], reason, TEXT, NONE, "Why it is not ready; empty when it is")                      \
    X(char[64], version, TEXT, NONE, "What the worker calls itself; empty until it answered")      \
    X(char[32], isa, TEXT, NONE,                                                                   \
      "Instruction set there; rows are bit-equal only when it is ours")                            \
    X(bool, up, GAUGE, NONE, "1 when the worker is ready")                                         \
    X(double, round_trip_ms, GAUGE, MS, "Least round trip seen: the link's own; 0: not yet")       \
    X(double, goodput_bytes_per_second, GAUGE, BYTES_PER_SECOND,                                   \
      "What the link carries; 0: not known, rows never waited for it")                             \
    X(double, tokens_per_second, GAUGE, TOKENS_PER_SECOND, "Prefill rate there; 0: not yet")       \
    X(double, step_ms, GAUGE, MS, "Fitted cost of each step there")                                \
    X(double, token_ms, GAUGE, MS, "Fitted cost of each token there")                              \
    X(double, attention_ms, GAUGE, MS, "Fitted cost of each position attended to there")           \
    X(double, lead_ms, GAUGE, MS, "Until the first rows of a prompt")                              \
    X(double, tail_ms, GAUGE, MS, "Transfer that computing does not hide")                         \
    X(double, idle_seconds, GAUGE, SECONDS, "Since it was last given a prompt; negative: never")   \
    X(uint32_t, n_slots, GAUGE, NONE, "Prompts sent to it at a time")                              \
    X(uint32_t, n_in_flight, GAUGE, NONE, "Prompts sent to it now")                                \
    X(uint32_t, n_waiting, GAUGE, NONE, "Prompts waiting here for one of its slots")               \
    X(uint64_t, tokens_in_flight, GAUGE, TOKENS, "Tokens of both that have not come")              \
    X(uint64_t, worker_prompts, GAUGE, NONE, "Prompts of all its clients, by its last word")       \
    X(uint64_t, worker_tokens, GAUGE, TOKENS, "Their tokens not yet computed")                     \
    X(uint64_t, n_connects, COUNTER, NONE, "Times it became ready")                                \
    X(uint64_t, n_lost, COUNTER, NONE, "Times it was lost")                                        \
    X(uint64_t, n_prompts, COUNTER, NONE, "Prompts committed")                                     \
    X(uint64_t, n_tokens, COUNTER, TOKENS, "Tokens committed")                                     \
    X(uint64_t, n_bytes, COUNTER, BYTES, "Bytes of committed rows and states, as they travelled")  \
    X(uint64_t, n_partial_tokens, COUNTER, TOKENS, "Tokens kept of prompts that were given up")    \
    X(uint64_t, n_fallbacks, COUNTER, NONE, "Prompts it was given that ended elsewhere")           \
    X(uint64_t, n_cancelled, COUNTER, NONE, "Prompts cancelled, hedges won locally among them")    \
    X(uint64_t, n_late_frames, COUNTER, NONE, "Frames of streams that had ended")                  \
    X(uint64_t, n_corrupt, COUNTER, NONE, "Frames, digests or commits that did not hold")

typedef struct {
    bt_prefill_state phase;            /* `state` as a number */
    BT_METRIC_MEMBERS(BT_PREFILL_WORKER_STATUS_LIST)
} bt_prefill_worker_status;

/* What is a sum over workers is one also over those that have left the list. */
#define BT_PREFILL_STATUS_LIST(X)                                                                  \
    X(uint32_t, n_workers, GAUGE, NONE, "Workers on the list")                                     \
    X(uint32_t, n_ready, GAUGE, NONE, "Workers that are ready")                                    \
    X(uint32_t, min_tokens, GAUGE, TOKENS, "Uncached tokens from which a worker is used now")      \
    X(bool, min_tokens_auto, GAUGE, NONE, "Whether that is chosen by predicted times")             \
    X(uint64_t, n_prompts, COUNTER, NONE, "Prompts committed, of all workers")                     \
    X(uint64_t, n_tokens, COUNTER, TOKENS, "Tokens committed, of all workers")                     \
    X(uint64_t, n_bytes, COUNTER, BYTES, "Bytes of committed rows and states, of all workers")     \
    X(uint64_t, n_local, COUNTER, NONE, "Prompts kept local by decision")                          \
    X(uint64_t, n_fallbacks, COUNTER, NONE,                                                        \
      "Prompts meant for a worker and prefilled locally after all")                                \
    X(uint64_t, n_failed, COUNTER, NONE, "The same under policy fail: answered with an error")     \
    X(uint64_t, n_retries, COUNTER, NONE, "Prompts given to a second worker")                      \
    X(uint64_t, n_hedged, COUNTER, NONE,                                                           \
      "Prompts prefilled locally as well because their worker was late")                           \
    X(uint64_t, n_hedges_won_locally, COUNTER, NONE, "Of these, complete here first")              \
    X(uint64_t, n_cancelled, COUNTER, NONE, "Prompts cancelled while a worker had them")           \
    X(double, exposed_seconds, COUNTER, SECONDS, "Transfer that computing did not hide")           \
    X(double, transfer_seconds, COUNTER, SECONDS, "First rows to commit")                          \
    X(double, local_tokens_per_second, GAUGE, TOKENS_PER_SECOND, "Prefill rate here; 0: not yet")  \
    X(double, local_step_ms, GAUGE, MS, "Fitted cost of each step here")                           \
    X(double, local_token_ms, GAUGE, MS, "Fitted cost of each token here")                         \
    X(double, local_attention_ms, GAUGE, MS, "Fitted cost of each position attended to here")

typedef struct { BT_METRIC_MEMBERS(BT_PREFILL_STATUS_LIST) } bt_prefill_status;

bt_metric_list bt_handoff_client_metrics(void);            /* of bt_prefill_status */
bt_metric_list bt_handoff_client_worker_metrics(void);     /* of bt_prefill_worker_status */

/* Waits until a worker is ready, or each has said why it is not, or the time is over. */
void bt_handoff_client_wait_tried(bt_prefill *p, uint32_t timeout_ms);
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
    X(LOCAL_FIRST, "hedge won locally")   /* prefilled here as well */    \
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
