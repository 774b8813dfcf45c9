/* handoff/push_state.c - the recurrent states of a prompt on the worker.
 *
 * The state of a layer is final once the last chunk has passed that layer, so it leaves behind that
 * chunk's rows of the layer, while later layers compute. States of other positions (borders) are
 * what the server's next turn may begin from; they follow COMMIT, when nothing else is to be sent,
 * and each is closed by a CHUNK. A border whose state this worker has not kept is closed by a CHUNK
 * alone.
 */
#include <string.h>

#include "base/check.h"
#include "engine/snapshots.h"
#include "handoff/push_private.h"

/* Parts as large as a frame allows. */
enum { PART_MAX = BT_WIRE_BODY_BYTES_MAX - 64 };

bt_status bt_handoff_push_take_borders(bt_handoff_push *u, bt_wire_ids borders, bt_error *err)
{
    if (borders.n > BT_WIRE_BORDERS_MAX) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL wants the states at %u borders; at most %u",
                       borders.n, BT_WIRE_BORDERS_MAX);
    }
    for (uint32_t i = 0; i < borders.n; i++) {
        u->borders[i] = bt_wire_token(borders, i);
        u->snapshots[i] = BT_HANDOFF_NONE;
        if (u->borders[i] == 0 || u->borders[i] > u->asked.position_end ||
            (i > 0 && u->borders[i] >= u->borders[i - 1])) {
            return bt_fail(err, BT_E_PROTOCOL, "PREFILL wants the state at %u of %u tokens, which "
                           "must fall and lie inside", u->borders[i], u->asked.position_end);
        }
    }
    u->n_borders = u->guest->worker->state_bytes ? borders.n : 0;
    return BT_OK;
}

void bt_handoff_push_unpin(bt_handoff_push *u)
{
    for (uint32_t i = 0; i < u->n_borders; i++) {
        if (u->snapshots[i] != BT_HANDOFF_NONE) {
            bt_engine_snapshot_unpin(u->guest->worker->engine, u->snapshots[i]);
        }
    }
}

/* ---- to the link: its writer thread ---- */

typedef struct {
    bt_handoff_push  *push;
    const bt_request *request;         /* NULL: from the snapshot */
    uint32_t snapshot, layer, position, offset, size;
} state_context;

_Static_assert(sizeof(state_context) <= sizeof ((bt_bulk *)0)->context, "fits a bulk frame");

static void state_fill(void *context, uint8_t *to, size_t size)
{
    const state_context *c = context;
    const bt_worker *w = c->push->guest->worker;
    const bt_wire_state m = { .layer = c->layer, .position = c->position, .offset = c->offset,
                              .total = (uint32_t)w->state_bytes[c->layer] };
    BT_ASSERT(size == bt_wire_state_place_size(c->size));
    uint8_t *data = bt_wire_state_place(to, &m, c->size);
    if (c->request) {
        bt_engine_request_export_state(c->request, c->layer, c->offset, c->size, data);
    } else {
        bt_engine_snapshot_export(w->engine, c->snapshot, c->layer, c->offset, c->size, data);
    }
}

static void state_seal(void *context, uint64_t hash)
{
    const state_context *c = context;
    bt_wire_tally_put(c->push->tally, BT_WIRE_STATE, (uint32_t)bt_wire_state_place_size(c->size),
                      hash);
    atomic_fetch_add(&c->push->guest->worker->n_bytes, (uint64_t)c->size);
    bt_handoff_push_unqueue(c->push);
}

static void state_drop(void *context)
{
    const state_context *c = context;
    bt_handoff_push_unqueue(c->push);
}

/* The next part of the present layer's state, as far as credit goes. */
static bt_piece_kind next_part(bt_handoff_push *u, const bt_request *request, uint32_t snapshot,
                               uint32_t position, bt_bulk *ret_bulk)
{
    const uint64_t left = u->guest->worker->state_bytes[u->layer] - u->state_offset;
    const uint64_t fixed = bt_wire_state_place_size(0);
    uint64_t n = left < PART_MAX ? left : PART_MAX;
    if (u->credit <= fixed) {
        return BT_PIECE_NONE;
    }
    n = n < u->credit - fixed ? n : u->credit - fixed;
    const state_context c = { .push = u, .request = request, .snapshot = snapshot,
                              .layer = u->layer, .position = position, .offset = u->state_offset,
                              .size = (uint32_t)n };
    *ret_bulk = (bt_bulk){
        .type = BT_WIRE_STATE, .stream = u->stream,
        .size = (uint32_t)bt_wire_state_place_size(c.size),
        .fill = state_fill, .seal = state_seal, .drop = state_drop,
    };
    memcpy(ret_bulk->context, &c, sizeof c);
    u->credit -= ret_bulk->size;
    u->state_offset += c.size;
    u->n_queued++;
    return BT_PIECE_STATE;
}

uint64_t bt_handoff_push_state_left(const bt_handoff_push *u)
{
    const uint64_t *bytes = u->guest->worker->state_bytes;
    const uint32_t n_layers = u->guest->worker->layout->n_layers;
    return bytes && u->layer < n_layers ? bytes[u->layer] - u->state_offset : 0;
}

bt_piece_kind bt_handoff_push_next_state(bt_handoff_push *u, bt_bulk *ret_bulk)
{
    return next_part(u, u->request, BT_HANDOFF_NONE, u->asked.position_end, ret_bulk);
}

/* ---- behind COMMIT ---- */

bool bt_handoff_push_owes_snapshots(const bt_handoff_push *u)
{
    return u->committed && u->border < u->n_borders;
}

/* To the next layer of the snapshot that has a state, from `layer` on. */
static void to_layer(bt_handoff_push *u, uint32_t layer)
{
    u->layer = layer;
    u->state_offset = 0;
    while (u->layer < u->guest->worker->layout->n_layers && bt_handoff_push_state_left(u) == 0) {
        u->layer++;
    }
}

bt_piece_kind bt_handoff_push_next_snapshot(bt_handoff_push *u, bt_bulk *ret_bulk)
{
    const uint32_t i = u->border, n_layers = u->guest->worker->layout->n_layers;
    if (!u->border_begun) {
        u->border_begun = true;
        to_layer(u, 0);
        if (!bt_engine_snapshot_pin(u->guest->worker->engine, bt_handoff_push_cache_key(u),
                                    u->tokens, u->borders[i], &u->snapshots[i])) {
            u->snapshots[i] = BT_HANDOFF_NONE;
            u->layer = n_layers;
        }
    }
    if (u->layer < n_layers) {
        const bt_piece_kind kind = next_part(u, NULL, u->snapshots[i], u->borders[i], ret_bulk);
        if (kind == BT_PIECE_STATE && bt_handoff_push_state_left(u) == 0) {
            to_layer(u, u->layer + 1);
        }
        return kind;
    }
    u->border++;
    u->border_begun = false;
    return bt_handoff_push_next_chunk(u, u->borders[i], ret_bulk);
}
