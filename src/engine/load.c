/* See load.h. */
#include "engine/load.h"

void bt_engine_load_describe(const bt_engine *e, const bt_request *r, bt_external_offer *offer)
{
    const uint32_t n = r->n_prefill - r->n_done;
    uint32_t n_decoding = 0;
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        const bt_request *s = e->active[i];
        if (!s || s == r) {
            continue;
        }
        if (s->phase == BT_PHASE_PREFILL) {
            /* The shorter one goes first, so a longer one costs as much as we are ourselves. */
            const uint32_t left = s->n_prefill - s->n_done;
            const uint32_t ahead = left < n ? left : n;
            offer->tokens_ahead += ahead;
            offer->attended_ahead += (double)ahead * (s->n_done + ahead / 2.0);
        }
        n_decoding += s->phase == BT_PHASE_DECODE;
    }
    offer->decode_ms = bt_engine_pace_decode_ms(&e->pace, n_decoding);
    offer->last_ms = bt_engine_pace_decode_ms(&e->pace, n_decoding + 1);
}
