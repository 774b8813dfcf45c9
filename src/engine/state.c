/* Recurrent states, as sequences use them. A sequence holds one slot from admission to its end. Its
 * state stands at n_done always: a step moves both, and one that fails ends the sequence.
 *
 * Snapshots are what makes a prefix reusable, so where they are taken decides what a later prompt
 * has to compute again:
 *   - every snapshot_every positions, in prompt and answer;
 *   - at checkpoint positions that the client names (before a message, before the generation
 *     prompt);
 *   - one position before the end of a long prompt without such, for whoever asks it again;
 *   - where a prompt that waits parts from this one (sequence.c);
 *   - at the end of a sequence, or when it loses its place.
 * A step has to end at such a position, and an additional step reads all weights once more; hence
 * positions that follow each other closely count as one, and short prompts are not cut at all. */
#include <string.h>

#include "base/check.h"
#include "engine/state.h"

enum {
    CHECKPOINT_GAP = 32,           /* tokens between the last snapshot and one that is asked for */
    LAST_MIN = 256             /* new tokens that a prompt without such has at least to be cut */
};

bt_status bt_engine_states_create(bt_engine *e, bt_error *err)
{
    const bt_model_config *config = bt_model_config_of(e->options.model);
    if (!bt_model_has_state(config)) {
        return BT_OK;
    }
    bt_state_layer layers[BT_LAYERS_MAX];
    for (uint32_t i = 0; i < config->n_layers; i++) {
        bt_model_state_layer(config, i, &layers[i]);
    }
    /* Two per sequence: one that comes from elsewhere must not touch the one it would replace, and
     * a pushed prompt keeps its own until the last byte has left. Untouched ones cost nothing. */
    const bt_state_pool_options o = {
        .n_layers = config->n_layers, .layers = layers, .n_live = 2 * e->options.n_parallel,
        .snapshot_bytes_max = e->options.snapshot_bytes,
    };
    return bt_kv_state_pool_create(e->options.device, &o, &e->memory.states, err);
}

uint32_t bt_engine_state_usable(const bt_engine *e, const bt_request *r, uint32_t n)
{
    return e->memory.states ? bt_kv_snapshot_find(e->memory.states, r->cache_key, r->tokens, n) : n;
}

/* ---- where ---- */

static bool keeps(const bt_engine *e, const bt_request *r)
{
    return e->memory.states && !r->no_cache &&
           e->options.snapshot_bytes >= bt_kv_state_pool_layout(e->memory.states)->slot_bytes;
}

/* How far a sequence has come, and where it left its last snapshot. */
typedef struct { uint32_t done, snapshot; } place;

/* One close after a snapshot gets none, except where somebody elsewhere asked for it. */
static uint32_t next_asked(const bt_request *r, place at)
{
    const uint32_t least = r->has_push || at.snapshot == 0 ? at.done + 1
                                                           : at.snapshot + CHECKPOINT_GAP;
    for (uint32_t i = 0; i < r->n_borders; i++) {
        if (r->borders[i] > at.done && r->borders[i] >= least && r->borders[i] < r->n_prompt) {
            return r->borders[i];
        }
    }
    return BT_NOTHING;
}

/* The position before the last, if nothing better is near. */
static uint32_t last_position(const bt_request *r, place at)
{
    const bool wanted = r->n_borders == 0 && !r->prefill_only &&
                        r->n_prompt > at.snapshot + LAST_MIN && r->n_prompt - 1 > at.done;
    return wanted ? r->n_prompt - 1 : BT_NOTHING;
}

/* The one rule: where a sequence that stands at `at` leaves its next snapshot. */
static uint32_t next_snapshot(const bt_engine *e, const bt_request *r, place at)
{
    const uint32_t every = e->options.snapshot_every;
    const uint32_t candidates[] = {
        at.done > BT_NOTHING - every ? BT_NOTHING : (at.done / every + 1) * every,
        next_asked(r, at), last_position(r, at),
        r->shared_at > at.done ? r->shared_at : BT_NOTHING,
    };
    uint32_t next = BT_NOTHING;
    for (size_t i = 0; i < BT_LEN(candidates); i++) {
        next = candidates[i] < next ? candidates[i] : next;
    }
    return next;
}

uint32_t bt_engine_state_next_cut(const bt_engine *e, const bt_request *r)
{
    if (!keeps(e, r)) {
        return r->n_prefill;
    }
    const uint32_t next = next_snapshot(e, r, (place){ r->n_done, r->snapshot_at });
    return next < r->n_prefill ? next : r->n_prefill;
}

uint32_t bt_engine_state_planned(const bt_engine *e, const bt_request *r, uint32_t end,
                                 uint32_t n_max, uint32_t *ret_positions)
{
    if (!keeps(e, r)) {
        return 0;
    }
    const uint64_t room =
            e->options.snapshot_bytes / bt_kv_state_pool_layout(e->memory.states)->slot_bytes;
    place at = { r->n_done, r->snapshot_at };
    uint32_t n = 0;
    n_max = n_max < room ? n_max : (uint32_t)room;
    for (;;) {
        const uint32_t next = next_snapshot(e, r, at);
        if (next >= end) {
            return n;
        }
        if (n == n_max) {
            memmove(ret_positions, ret_positions + 1, --n * sizeof *ret_positions);
        }
        ret_positions[n++] = next;
        at = (place){ next, next };
    }
}

uint32_t bt_engine_state_shared_up_to(const bt_engine *e, bt_request *r, uint32_t n)
{
    if (!e->memory.states) {
        return n;
    }
    if (!keeps(e, r)) {
        return 0;
    }
    if (r->phase == BT_PHASE_EXTERNAL) {           /* its state comes with the last row */
        return r->n_prompt - 1 <= n ? r->n_prompt - 1 : 0;
    }
    if (n > r->n_done) {
        r->shared_at = n;
    }
    return n;
}

/* ---- keeping ---- */

void bt_engine_state_keep(bt_engine *e, bt_request *r)
{
    if (keeps(e, r) && r->lease.slot != BT_NOTHING && r->n_done > 0 &&
        bt_kv_snapshot_keep(e->memory.states, r->lease.slot, r->cache_key, r->tokens, r->n_done)) {
        r->snapshot_at = r->n_done;
    }
}

void bt_engine_state_advanced(bt_engine *e, bt_request *r, uint32_t from)
{
    if (keeps(e, r) && next_snapshot(e, r, (place){ from, r->snapshot_at }) == r->n_done) {
        bt_engine_state_keep(e, r);
    }
}

/* ---- from and to elsewhere ---- */

uint64_t bt_engine_state_layer_bytes(const bt_engine *e, uint32_t layer)
{
    return e->memory.states ? bt_kv_state_layer_bytes(e->memory.states, layer) : 0;
}

uint64_t bt_engine_state_bytes(const bt_engine *e)
{
    return e->memory.states ? bt_kv_state_bytes(e->memory.states) : 0;
}

bool bt_engine_snapshot_pin(bt_engine *e, uint64_t cache_key, const uint32_t *tokens, uint32_t n,
                            uint32_t *ret_snapshot)
{
    return e->memory.states &&
           bt_kv_snapshot_pin(e->memory.states, cache_key, tokens, n, ret_snapshot);
}

void bt_engine_snapshot_export(const bt_engine *e, uint32_t snapshot, uint32_t layer,
                               uint64_t offset, uint64_t size, void *ret_data)
{
    bt_kv_state_export(e->memory.states, snapshot, layer, offset, size, ret_data);
}

void bt_engine_snapshot_unpin(bt_engine *e, uint32_t snapshot)
{
    bt_kv_snapshot_unpin(e->memory.states, snapshot);
}

bool bt_engine_snapshot_open(bt_engine *e, uint32_t *ret_snapshot)
{
    return e->memory.states && bt_kv_snapshot_reserve(e->memory.states, ret_snapshot);
}

void bt_engine_snapshot_write(bt_engine *e, uint32_t snapshot, uint32_t layer, uint64_t offset,
                              uint64_t size, const void *data)
{
    bt_kv_state_import(e->memory.states, snapshot, layer, offset, size, data);
}

void bt_engine_snapshot_close(bt_engine *e, uint32_t snapshot, uint64_t cache_key,
                              const uint32_t *tokens, uint32_t n)
{
    bt_kv_snapshot_publish(e->memory.states, snapshot, cache_key, tokens, n);
}
