/* engine/external.h - prompts whose KV rows are computed elsewhere.
 *
 * For each new prompt the engine offers the rows that are missing. Whoever takes the offer holds a
 * ticket: the pages of the sequence, lent to a writer, until it commits or abandons them. The
 * engine knows neither who computes the rows nor how they arrive; what the taker has to know about
 * a request travels as the request's tag.
 *
 * Lifetime: a ticket ends with commit or abandon, or when the engine cancels it. An id is never
 *           used twice, so calls with an old one are harmless.
 * Threads:  the callbacks run on the engine's thread, without a lock, and must not block.
 *           The functions may be called from any thread.
 * Failure:  a status; a writer that is wrong about a range or commits too early changes nothing.
 */
#ifndef BT_ENGINE_EXTERNAL_H
#define BT_ENGINE_EXTERNAL_H

#include "engine/engine.h"

enum { BT_EXTERNAL_CHECKPOINTS_MAX = 32 };

typedef struct {
    uint64_t        ticket;        /* names the reservation; 0: there is no memory for one, so the
                                      offer must not be taken */
    void           *tag;           /* of the request: tag.data */
    const uint32_t *tokens;        /* the whole prompt; borrowed during offer() */
    uint32_t        n_tokens;
    uint32_t        position_first, position_end;  /* rows wanted; end is n_tokens - 1 */
    const uint32_t *checkpoints;   /* [n_checkpoints] ascending, inside the range: where a prefill
                                      here would keep recurrent states; borrowed during offer() */
    uint32_t        n_checkpoints;
    uint64_t        cache_key;     /* of the request: whose prompts may share a cache */
    /* What a prefill here would meet; 0 where nothing is known yet. */
    uint64_t        tokens_ahead;  /* of other prompts, computed before or beside this one */
    double          attended_ahead;/* positions that those attend to, all together */
    double          decode_ms;     /* that each step spends on sequences that decode */
    double          last_ms;       /* evaluating the last token, once all rows are there */
} bt_external_offer;

typedef enum {
    BT_EXTERNAL_LOCAL,             /* prefill here */
    BT_EXTERNAL_TAKEN,             /* the ticket will be committed or abandoned, exactly once */
    BT_EXTERNAL_REFUSED            /* the request ends with the error */
} bt_external_answer;

typedef enum {
    BT_EXTERNAL_GONE,              /* the request ended, or lost its pages */
    BT_EXTERNAL_LOCAL_FIRST,       /* hedged, and complete here first */
    BT_EXTERNAL_LOCAL_ONLY         /* hedged, and pages are too few to go on both ways */
} bt_external_reason;

typedef struct {
    void *context;
    bt_external_answer (*offer)(void *context, const bt_external_offer *offer, bt_error *err);
    /* The ticket is closed already: stop writing. `tag` is the request's. */
    void (*cancel)(void *context, uint64_t ticket, void *tag, bt_external_reason reason);
    /* A local prefill of n_tokens from `position` took `ms`: for a cost model. May be NULL. */
    void (*measured)(void *context, uint32_t position, uint32_t n_tokens, double ms);
} bt_external;

/* Before the first request; copied. */
void bt_engine_set_external(bt_engine *e, const bt_external *external);

/* Rows [position, position + n) of a layer, canonical layout, into the reserved pages.
 * BT_E_CANCELLED when the ticket is closed; BT_E_BADINPUT when the range is not reserved. */
BT_MUST_CHECK bt_status bt_engine_external_import_rows(bt_engine *e, uint64_t ticket,
        uint32_t layer, uint32_t position, uint32_t n, const void *k, const void *v);
/* Bytes [offset, offset + size) of the state that `layer` has at the end of the range (kv/states.h
 * has the layout); parts of a layer come in order, and may begin anew. Failure as above. */
BT_MUST_CHECK bt_status bt_engine_external_import_state(bt_engine *e, uint64_t ticket,
        uint32_t layer, uint64_t offset, uint64_t size, const void *data);
/* All rows and states are in. BT_E_PROTOCOL when some are not, which *err counts: the ticket stays
 * open, to be abandoned. BT_E_CANCELLED when it is closed. */
BT_MUST_CHECK bt_status bt_engine_external_commit(bt_engine *e, uint64_t ticket, bt_error *err);

/* How a ticket that is given up ends. */
typedef struct {
    uint32_t    position_complete; /* rows below it hold complete layers and are kept, except where
                                      the model has states: those are then the old ones again */
    bool        end_request;       /* with `status` and `message`; false: the rest is done here */
    bt_status   status;
    const char *message;           /* copied; NULL: "" */
} bt_external_end;

void bt_engine_external_abandon(bt_engine *e, uint64_t ticket, const bt_external_end *end);

/* Prefills the prompt here as well, as soon as there are pages for it: whichever side is complete
 * first is used, and no row of the other. Nothing when the ticket is closed. */
void bt_engine_external_hedge(bt_engine *e, uint64_t ticket);

#endif
