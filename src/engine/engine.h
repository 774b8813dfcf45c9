/* engine/engine.h - requests in, tokens out: sequences, batching, scheduling.
 *
 * One engine thread owns the device, the KV pool and all sequences. Other threads submit requests
 * and read events from a bounded ring per request. Every step decodes all running sequences first
 * and gives what is left to prefill, in chunks bounded so that a long prompt never freezes others.
 *
 * KV rows may cross this interface in both directions:
 *   external - for each new prompt, somebody else may fill in its rows (engine/external.h);
 *   push     - for a prefill-only request, a callback says when rows of a layer are complete.
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
 * Threads:  submit and the bt_engine_request_* functions: any thread.
 * Failure:  a request that cannot run ends with an END event that carries the status and a
 *           sentence; a token is never produced from rows that were not computed or committed.
 *           Nothing allocates per token.
 */
#ifndef BT_ENGINE_ENGINE_H
#define BT_ENGINE_ENGINE_H

#include "engine/stats.h"
#include "kv/pages.h"
#include "model/model.h"
#include "sample/sampler.h"
#include "text/stream.h"
#include "text/tokenizer.h"

typedef struct bt_engine  bt_engine;
typedef struct bt_request bt_request;

typedef struct {
    const bt_gguf      *file;          /* prompts are refused once it was written to; may be NULL */
    const bt_model     *model;         /* all borrowed */
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
    bool     push;                     /* rows are pushed: run the tape with marks */
} bt_engine_options;

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

/* Any thread, for rows that layer_done or chunk_done named, while the request is not released. A
 * pushing request keeps its pages until then, END or not; release it before the engine's end. */
void bt_engine_request_export_rows(const bt_request *r, uint32_t layer, uint32_t position,
                                   uint32_t n, void *ret_k, void *ret_v);
void bt_engine_request_export_state(const bt_request *r, uint32_t layer, uint64_t offset,
                                    uint64_t size, void *ret_data);

/* ---- requests ---- */

/* Something of the caller's that goes with a request; the engine hands `data` to the callbacks of
 * engine/external.h and never looks into it. Held from submit until the request's memory is freed.
 * ref and unref may be called from any thread, and may be NULL. */
typedef struct {
    void *data;
    void (*ref)(void *data);
    void (*unref)(void *data);
} bt_tag;

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
    uint32_t        n_cuts;            /* BT_CUTS_MAX of them at most; copied. After the last
                                          of them n_prefill_chunk does not count */
    uint32_t        n_predict;         /* tokens to generate at most; UINT32_MAX: until the context
                                          is full; 0: evaluate the prompt only */
    bool            ignore_eog;
    bool            special;           /* control tokens appear in the text */
    bool            no_cache;          /* do not use nor fill the prefix cache */
    uint64_t        cache_key;         /* only requests with equal keys share what is cached */
    bt_sampler_options sampling;       /* bias copied */
    const bt_stop  *stops;             /* copied */
    uint32_t        n_stops;
    uint32_t        n_logprobs;        /* top alternatives per token; 0: only when want_logprobs */
    bool            want_logprobs;
    bt_tag          tag;
    /* Called after an event was put, from the engine's thread and without a lock; never after
     * release has returned, which waits for a call under way. It must not block, and no thread may
     * release while it holds a lock that this takes. fn NULL: none. */
    struct { void (*fn)(void *context); void *context; } on_event;
} bt_request_options;

/* What a step of a prompt takes at most while nobody decodes, as far as the engine can tell ahead;
 * and what the one after the last cut should take at most: who cuts had other samples, so it is
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
    uint32_t n_prompt, n_predicted;
    uint32_t n_cached, n_external, n_local;      /* of the prompt, by where its rows came from */
    uint32_t n_preemptions;                      /* it lost its pages so often */
    bool     hedged;                             /* prefilled here and elsewhere */
    bool     local_first;                        /* hedged, and what was computed here was used */
    double   queue_ms, prompt_ms, predicted_ms;  /* waiting; to the first token; after it */
    double   first_token_ms;                     /* submit to first token */
    double   external_ms;                        /* from the offer until its ticket was closed */
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

void bt_engine_stats_get(const bt_engine *e, bt_engine_stats *ret_stats);
const bt_engine_options *bt_engine_options_of(const bt_engine *e);
const bt_kv_layout      *bt_engine_kv_layout(const bt_engine *e);

#endif
