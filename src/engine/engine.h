/* engine/engine.h - requests in, tokens out: sequences, batching, scheduling.
 *
 * One engine thread owns the device, the KV pool and all sequences. Other threads submit requests
 * and read events from a bounded ring per request. Every step decodes all running sequences first
 * and gives what is left to prefill, in chunks bounded so that a long prompt never freezes others.
 *
 * The engine does not know that workers exist. It offers a door in each direction:
 *   placement - asked, for each new prompt, whether somebody else will fill in its KV rows
 *               (reserve, import rows, commit or abandon);
 *   push      - told, for a prefill-only request, when rows of a layer are complete.
 * handoff/ drives both.
 *
 * Models with recurrent layers: a sequence then also has a state, which exists at its last position
 * only. Copies are kept at chosen positions (snapshots), and a prompt may begin where its longest
 * known beginning has one. A step that fails ends its sequences, so a state that ran ahead of its
 * rows is never used.
 *
 * Lifetime: create starts the thread; destroy ends all requests (reason: closed) and joins it.
 *           A bt_request lives until bt_engine_request_release, which may come after the engine's
 *           end.
 * Threads:  submit, the bt_request_* and bt_engine_import_* functions: any thread.
 * Failure:  a request that cannot run ends with an END event that carries the status and a
 *           sentence; a token is never produced from rows that were not computed or committed.
 *           Nothing allocates per token.
 */
#ifndef BT_ENGINE_ENGINE_H
#define BT_ENGINE_ENGINE_H

#include "engine/forecast.h"
#include "kv/pages.h"
#include "model/model.h"
#include "sample/sampler.h"
#include "text/stream.h"
#include "text/tokenizer.h"

typedef struct bt_engine  bt_engine;
typedef struct bt_request bt_request;

typedef struct {
    const bt_model     *model;         /* all three borrowed */
    const bt_tokenizer *tokenizer;
    bt_device          *device;
    uint32_t n_parallel;               /* sequences running at once, 1 .. BT_PARALLEL_MAX */
    uint32_t n_ctx;                    /* KV positions, shared; one request may use them all */
    uint32_t n_batch;                  /* rows in a step at most */
    uint32_t n_prefill_chunk;          /* tokens of one prompt in a step at most */
    uint32_t decode_gap_ms;            /* aim for steps with prefill while others decode; 0: 50 */
    bt_type  type_k, type_v;
    uint32_t snapshot_every;           /* keep recurrent states each so many tokens; 0: 1024 */
    uint64_t snapshot_bytes;           /* memory for them at most; 0: none are kept */
    uint32_t queue_max;                /* waiting requests; more are refused (BT_E_FULL) */
    bool     push;                     /* a worker: run the tape with marks */
} bt_engine_options;

/* ---- where a prompt was prefilled, shown to the user ---- */

typedef enum {
    BT_PREFILL_LOCAL, BT_PREFILL_REMOTE, BT_PREFILL_MIXED, BT_PREFILL_CACHE
} bt_prefill_place;
const char *bt_engine_prefill_place_name(bt_prefill_place place); /* static; "unknown" for others */
typedef enum { BT_POLICY_FALLBACK, BT_POLICY_FAIL, BT_POLICY_HEDGE } bt_prefill_policy;
typedef enum { BT_WHERE_AUTO, BT_WHERE_LOCAL, BT_WHERE_REMOTE } bt_prefill_where;

typedef struct {
    bt_prefill_place place;
    bool     fallback;             /* meant for a worker, and then not */
    bool     hedged;               /* prefilled here and there; `place` says who was first */
    char     worker[128];          /* "host:port", "" if none */
    char     reason[400];          /* why this place, or why it fell back; one sentence */
    uint32_t n_cached;             /* tokens found in the prefix cache */
    uint32_t n_remote, n_local;    /* tokens prefilled there and here */
    uint32_t retries;
    uint64_t bytes;                /* of KV rows received, as they were on the wire */
    char     wire_type[24];        /* their element type there; "" if none came */
    double   queue_ms;             /* waiting, here and there */
    double   compute_ms;           /* remote prefill, by the worker's clock */
    double   transfer_ms;          /* first rows received to commit received */
    double   exposed_ms;           /* part of transfer_ms that computing did not hide */
    double   import_ms;            /* of the transfer: putting rows into pages */
    double   hidden;               /* share of sending the bytes that computing hid, 0 .. 1 */
    double   total_ms;             /* prompt given out to prefix usable */
    bt_prefill_forecast forecast;  /* what the choice was made from */
} bt_prefill_report;

/* ---- placement: somebody else fills in rows ---- */

typedef struct {
    uint64_t        ticket;        /* names the reservation; never reused */
    const uint32_t *tokens;        /* the whole prompt; borrowed during start() */
    uint32_t        n_tokens;
    uint32_t        position_first, position_end;  /* rows wanted; end is n_tokens - 1 */
    const uint32_t *borders;       /* [n_borders] ascending, inside the range: where a prefill
                                      here would leave snapshots; borrowed during start() */
    uint32_t        n_borders;
    uint64_t        cache_key;     /* of the request: whose prompts may share a cache */
    bool            no_cache;      /* of the request: a worker's is not for it */
    bt_prefill_where  where;       /* the request's wish */
    bt_prefill_policy policy;
    /* What a prefill here would meet; 0 where nothing is known yet. */
    uint64_t        tokens_ahead;  /* of other prompts, computed before or beside this one */
    double          keys_ahead;    /* positions that those look back at, all together */
    double          decode_ms;     /* that each step spends on those who decode */
    double          last_ms;       /* evaluating the last token, once all rows are there */
} bt_prefill_job;

/* All called on the engine thread; none may block. */
typedef struct {
    void *context;
    /* true: will end the ticket by commit or abandon, exactly once. false: prefill here;
     * report->reason says why. */
    bool (*start)(void *context, const bt_prefill_job *job, bt_prefill_report *report);
    /* The request is gone: stop writing and abandon the ticket soon (within 250 ms). */
    void (*cancel)(void *context, uint64_t ticket);
    /* As cancel, but because the prompt was prefilled here first (bt_engine_import_hedge). */
    void (*outrun)(void *context, uint64_t ticket);
    /* A local prefill of n_tokens from `position` took `ms`: for the cost model. May be NULL. */
    void (*measured)(void *context, uint32_t position, uint32_t n_tokens, double ms);
} bt_placement;

/* Rows [position, position + n) of a layer, canonical layout, into the reserved pages.
 * BT_E_CANCELLED when the ticket is closed or cancelled; BT_E_BADINPUT when the range is not
 * reserved. */
BT_MUST_CHECK bt_status bt_engine_import_rows(bt_engine *e, uint64_t ticket, uint32_t layer,
        uint32_t position, uint32_t n, const void *k, const void *v);
/* Bytes [offset, offset + size) of the state that `layer` has at the end of the range (kv/states.h
 * has the layout); parts of a layer come in order, and may begin anew. Failure as above. */
BT_MUST_CHECK bt_status bt_engine_import_state(bt_engine *e, uint64_t ticket, uint32_t layer,
        uint64_t offset, uint64_t size, const void *data);
/* All rows and states are in. The report is copied. */
void bt_engine_import_commit(bt_engine *e, uint64_t ticket, const bt_prefill_report *report);
/* Given up; rows up to position_complete (>= position_first) hold complete layers and are kept,
 * except where the model has states, which are then those at position_first again. Policy `fail`
 * ends the request with `status`; else the rest is prefilled here. */
void bt_engine_import_abandon(bt_engine *e, uint64_t ticket, uint32_t position_complete,
                              const bt_prefill_report *report, bt_status status);

/* Prefills the prompt here as well, as soon as there are pages for it: whichever side is complete
 * first is used, and no row of the other. Nothing when the ticket is closed. */
void bt_engine_import_hedge(bt_engine *e, uint64_t ticket);

/* ---- push: rows leave as they are computed ---- */

typedef struct {
    void *context;
    /* Engine or device thread; must not block. Rows [position, position + n) of `layer` may be
     * exported from now until the request is released, and its state too once position + n is
     * the prompt's end. The first call's position is the number of
     * tokens that the prefix cache had. */
    void (*layer_done)(void *context, uint32_t layer, uint32_t position, uint32_t n);
    /* All layers of positions below `position_end` are complete. Called first, before any
     * layer_done, for what the prefix cache had; it alone is called when that was everything. */
    void (*chunk_done)(void *context, uint32_t position_end);
} bt_push;

/* Any thread, for rows told by layer_done or chunk_done, while the request is not released. A
 * pushing request keeps its pages until then, END or not; release it before the engine's end. */
void bt_engine_request_export_rows(const bt_request *r, uint32_t layer, uint32_t position,
                                   uint32_t n, void *ret_k, void *ret_v);
void bt_engine_request_export_state(const bt_request *r, uint32_t layer, uint64_t offset,
                                    uint64_t size, void *ret_data);

/* ---- requests ---- */

typedef struct {
    const uint32_t *tokens;            /* copied */
    uint32_t        n_tokens;          /* >= 1; must leave room for one more in n_ctx */
    const uint32_t *borders;           /* [n_borders] ascending, copied: positions in the prompt
                                          where a later prompt may part from it; snapshots */
    uint32_t        n_borders;         /* at most BT_BORDERS_MAX */
    bool            prefill_only;      /* compute KV rows of all tokens, no logits, then END */
    const bt_push  *push;              /* with prefill_only; copied; NULL: none */
    uint32_t        n_prefill_chunk;   /* tokens of this prompt in a step at most, up to n_batch;
                                          0: the engine's own */
    const uint32_t *cuts;              /* rising positions where a step of this prompt must end, */
    uint32_t        n_cuts;            /* BT_CUTS_MAX of them at most; copied. Behind the last
                                          of them n_prefill_chunk does not count */
    uint32_t        n_predict;         /* tokens to generate at most; UINT32_MAX: until the context
                                          is full; 0: evaluate the prompt only */
    bool            ignore_eog;
    bool            special;           /* control tokens appear in the text */
    bool            no_cache;          /* do not use nor fill the prefix cache */
    bool            no_worker_cache;   /* nor that of a worker */
    uint64_t        cache_key;         /* only requests with equal keys share what is cached */
    bt_sampler_options sampling;       /* bias copied */
    const bt_stop  *stops;             /* copied */
    uint32_t        n_stops;
    uint32_t        n_logprobs;        /* top alternatives per token; 0: only when want_logprobs */
    bool            want_logprobs;
    bt_prefill_where  where;
    bt_prefill_policy policy;
} bt_request_options;

/* What a step of a prompt takes at most while nobody decodes, as far as the engine can tell ahead;
 * and what the one behind the last cut should take at most: who cuts had other samples, so it is
 * divided only beyond twice that. */
enum { BT_CUTS_MAX = 16, BT_STEP_MAX_MS = 1000, BT_STEP_LAST_MAX_MS = 2000 };

bt_request_options bt_engine_request_defaults(void);

typedef enum {
    BT_EVENT_BEGIN,       /* validated and started; n_prompt, n_cached are known */
    BT_EVENT_PROGRESS,    /* n_done of n_prompt are evaluated */
    BT_EVENT_TOKEN,
    BT_EVENT_END
} bt_event_kind;

typedef enum {
    BT_FINISH_NONE, BT_FINISH_EOG, BT_FINISH_STOP, BT_FINISH_LENGTH, BT_FINISH_CONTEXT,
    BT_FINISH_CANCELLED, BT_FINISH_ERROR
} bt_finish;
const char *bt_engine_finish_name(bt_finish finish);          /* static; "unknown" for others */

typedef struct {
    uint32_t n_prompt, n_cached, n_predicted;
    double   queue_ms, prompt_ms, predicted_ms;  /* waiting; to the first token; after it */
    double   first_token_ms;                     /* submit to first token */
    bt_prefill_report prefill;
} bt_request_stats;

typedef struct {
    bt_event_kind kind;
    uint32_t      n_done;          /* PROGRESS */
    uint32_t      token;           /* TOKEN */
    const char   *text;            /* TOKEN, END: text released now; valid until the next wait */
    size_t        text_size;
    float         logprob;         /* TOKEN, if wanted */
    const bt_token_logprob *top;   /* [n_top], same lifetime */
    uint32_t      n_top;
    bt_finish     finish;          /* END */
    int           stop_index;      /* END with FINISH_STOP, else -1 */
    bt_status     status;          /* END with FINISH_ERROR */
    const char   *message;         /* the sentence, same lifetime; "" if none */
} bt_event;

BT_MUST_CHECK bt_status bt_engine_create(const bt_engine_options *o, bt_engine **ret_engine,
                                         bt_error *err);
void bt_engine_destroy(bt_engine *e);
/* Before the first request; copied. */
void bt_engine_set_placement(bt_engine *e, const bt_placement *placement);

/* BT_E_CONTEXT: prompt too long (the sentence has both numbers). BT_E_FULL: queue full.
 * BT_E_CLOSED. BT_E_BADINPUT names what is wrong. */
BT_MUST_CHECK bt_status bt_engine_submit(bt_engine *e, const bt_request_options *o,
                                         bt_request **ret_request, bt_error *err);
/* The next event; BT_E_AGAIN after timeout_ms without one. After END only END comes. A consumer
 * that does not read pauses its own sequence only. */
BT_MUST_CHECK bt_status bt_engine_request_wait(bt_request *r, uint32_t timeout_ms,
                                               bt_event *ret_event);
/* The END event follows (BT_FINISH_CANCELLED), within a step. */
void bt_engine_request_cancel(bt_request *r);
/* Cancels if still running; the handle is gone. NULL is fine. */
void bt_engine_request_release(bt_request *r);
/* After END (before: what is known so far). */
void bt_engine_request_stats_get(const bt_request *r, bt_request_stats *ret_stats);
uint64_t bt_engine_request_id(const bt_request *r);
uint32_t bt_engine_request_seed(const bt_request *r);

/* ---- looking in: any thread ---- */

typedef struct {
    uint32_t n_running, n_waiting, n_parallel;
    uint32_t n_queued;                                          /* not begun, at this moment */
    uint32_t kv_pages_used, kv_pages_total;
    uint32_t kv_pages_cached;                                   /* held by the prefix tree only */
    uint64_t kv_token_bytes;
    uint32_t n_snapshots;                                       /* of recurrent states, kept */
    uint64_t snapshot_bytes, state_bytes;                       /* theirs; of one sequence */
    uint64_t n_requests, n_prompt_tokens, n_cached_tokens, n_predicted_tokens, n_steps;
    uint64_t n_remote_tokens, n_fallbacks, n_cancelled, n_errors;
    double   prompt_seconds, predicted_seconds;
    uint32_t n_tokens_max;                                      /* longest sequence seen */
    double   prefill_tokens_per_second;                         /* fitted, local; 0: not yet */
    double   decode_tokens_per_second;
} bt_engine_stats;

void bt_engine_stats_get(const bt_engine *e, bt_engine_stats *ret_stats);
const bt_engine_options *bt_engine_options_of(const bt_engine *e);
const bt_kv_layout      *bt_engine_kv_layout(const bt_engine *e);

#endif
