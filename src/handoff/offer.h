/* handoff/offer.h - a prompt that the engine offers, and what its request wishes. Private to
 * handoff/.
 *
 * Lifetime: during the offer; borrows what the offer borrows.
 */
#ifndef BT_HANDOFF_OFFER_H
#define BT_HANDOFF_OFFER_H

#include "handoff/report.h"

typedef struct {
    bt_handoff_request *request;       /* may be NULL, as all of it takes */
    uint64_t        ticket;
    const uint32_t *tokens;            /* as all below but the wish: of the offer, borrowed */
    uint32_t        n_tokens;
    uint32_t        position_first, position_end;
    const uint32_t *borders;
    uint32_t        n_borders;
    uint64_t        cache_key;
    bool            no_cache;          /* a worker's is not for it */
    bt_prefill_where  where;
    bt_prefill_policy policy;
    uint64_t        tokens_ahead;
    double          attended_ahead, decode_ms, last_ms;
} bt_prefill_job;

/* Whose prompts it may meet in a worker's cache. */
uint64_t bt_handoff_job_tenant(const bt_prefill_job *job);

#endif
