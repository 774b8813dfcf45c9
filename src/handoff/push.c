/* handoff/push.c - one prompt on the worker (docs/handoff.md, "Order of rows").
 *
 * The engine tells how far each layer has come; the sender asks for the next piece. Nothing is
 * queued in between: how far is one number per layer, so memory does not grow when the link is
 * slow, and rows wait where they are, in their pages.
 *
 * Positions are sent in segments: all layers of [first, end), then CHUNK. While the link keeps up,
 * a segment is what the engine is computing now, and a layer leaves as soon as it is ready. When
 * the link is behind, the segment is cut from what is complete.
 */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/snapshots.h"
#include "route/chunk_plan.h"
#include "handoff/push_private.h"

_Static_assert((int)BT_ROUTE_SPLITS_MAX <= (int)BT_CUTS_MAX, "the engine takes all cuts");

/* ---- life ---- */

/* W-118: what was asked for, or an error; never another form. */
static bt_status check_form(bt_handoff_push *u, bt_error *err)
{
    const bt_wire_prefill *asked = &u->asked;
    if (asked->order >= BT_WIRE_ORDER_COUNT) {
        return bt_fail(err, BT_E_UNSUPPORTED, "rows in order %u, but only 0 to %d are known",
                       asked->order, (int)BT_WIRE_ORDER_COUNT - 1);
    }
    BT_TRY(bt_kv_codec_form_init(&u->form, u->guest->worker->layout, asked->codec, err));
    u->token_bytes = bt_kv_codec_token_bytes(&u->form);
    if (u->form.codec != BT_KV_CODEC_STORED) {
        BT_TRY(bt_kv_codec_scratch_open(&u->room, &u->form, err));
    }
    BT_TRY(bt_handoff_push_take_borders(u, asked->borders, err));
    u->asked.borders = (bt_wire_ids){ 0 };         /* lay in the frame */
    return BT_OK;
}

bt_status bt_handoff_push_create(bt_handoff_guest *g, uint32_t stream, const bt_wire_prefill *asked,
                                 bt_handoff_push **ret_push, bt_error *err)
{
    const uint32_t n_layers = g->worker->layout->n_layers;
    bt_handoff_push *u = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *u);
    if (!u) {
        return bt_fail(err, BT_E_NOMEM, "no memory for a prompt");
    }
    u->guest = g;
    u->stream = stream;
    u->asked = *asked;
    u->credit = asked->credit;
    u->lane = 2 * atomic_fetch_add(&g->worker->n_lanes, 1) + 2;
    bt_status s = check_form(u, err);
    if (s != BT_OK) {
        bt_handoff_push_destroy(u);
        return s;
    }
    u->tokens = bt_alloc_zero(BT_MEM_handoff, asked->n_tokens, sizeof *u->tokens);
    u->ready = bt_alloc_zero(BT_MEM_handoff, n_layers, sizeof *u->ready);
    if (!u->tokens || !u->ready ||
        bt_wire_tally_open(stream, asked, &u->tally, NULL) != BT_OK) {
        bt_handoff_push_destroy(u);
        return bt_fail(err, BT_E_NOMEM, "no memory for a prompt of %u tokens", asked->n_tokens);
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        u->ready[i] = asked->position_first;
    }
    u->complete = u->segment_first = u->segment_end = asked->position_first;
    *ret_push = u;
    return BT_OK;
}

void bt_handoff_push_destroy(bt_handoff_push *u)
{
    bt_handoff_push_unpin(u);
    bt_free(u->tokens);
    bt_free(u->ready);
    bt_kv_codec_scratch_close(&u->room);
    bt_wire_tally_close(u->tally);
    bt_free(u);
}

/* ---- from the engine: its thread, or the device's ---- */

void bt_handoff_push_complete(bt_handoff_push *u, uint32_t position)
{
    const uint32_t end = u->asked.position_end;
    position = position < end ? position : end;
    if (position <= u->complete) {
        return;
    }
    for (uint32_t i = 0; i < u->guest->worker->layout->n_layers; i++) {
        u->ready[i] = u->ready[i] > position ? u->ready[i] : position;
    }
    u->complete = position;
    if (position == end) {
        u->complete_ms = bt_clock_ms();
    }
}

/* Lock held. Tokens below `position` need no computing any more. */
static void count_done(bt_handoff_push *u, uint32_t position)
{
    position = position < u->asked.position_end ? position : u->asked.position_end;
    if (position > u->counted) {
        atomic_fetch_sub(&u->guest->worker->queued_tokens, position - u->counted);
        u->counted = position;
    }
}

/* Lock held. What lies before the first computed row was found in the worker's prefix cache. */
static void begin(bt_handoff_push *u, uint32_t n_cached)
{
    if (!u->started) {
        u->started = true;
        u->n_cached = n_cached;
        count_done(u, n_cached);
        bt_handoff_push_complete(u, n_cached);
    }
}

/* How long steps take, from steps that had this prompt alone: the layers behind the first one say
 * it, since nobody tells when a step begins. */
static void note_pace(bt_handoff_push *u, uint32_t layer, uint32_t position, uint32_t n)
{
    bt_worker *w = u->guest->worker;
    const uint32_t n_layers = w->layout->n_layers;
    const double now = bt_clock_ms();
    if (layer == 0) {
        u->step_begun_ms = now;
    } else if (layer + 1 == n_layers) {
        const double ms = (now - u->step_begun_ms) * n_layers / (n_layers - 1);
        bt_timeline_span(w->trace, u->lane, "step", now - ms, now, "\"position\":%u,\"n\":%u",
                         position, n);
        if (atomic_load(&w->n_in_flight) == 1) {
            (void)pthread_mutex_lock(&w->pace_lock);
            bt_cost_fit_put(&w->step_ms, 1, n, bt_cost_attended(position, (double)position + n),
                            ms);
            (void)pthread_mutex_unlock(&w->pace_lock);
        }
    }
}

static void layer_done(void *context, uint32_t layer, uint32_t position, uint32_t n)
{
    bt_handoff_push *u = context;
    bt_handoff_guest *g = u->guest;
    note_pace(u, layer, position, n);
    const uint32_t end = u->asked.position_end;
    const uint32_t after = n < end && position < end - n ? position + n : end;
    (void)pthread_mutex_lock(&g->lock);
    begin(u, position);
    if (layer < g->worker->layout->n_layers && u->ready[layer] < after) {
        u->ready[layer] = after;
    }
    (void)pthread_cond_signal(&g->wake);
    (void)pthread_mutex_unlock(&g->lock);
}

static void chunk_done(void *context, uint32_t position_end)
{
    bt_handoff_push *u = context;
    (void)pthread_mutex_lock(&u->guest->lock);
    begin(u, position_end);
    count_done(u, position_end);
    bt_handoff_push_complete(u, position_end);
    (void)pthread_cond_signal(&u->guest->wake);
    (void)pthread_mutex_unlock(&u->guest->lock);
}

/* Tokens that a step of `ms` has, n_max at most. */
static uint32_t tokens_in(double ms, double step_ms, double token_ms, uint32_t n_max)
{
    const double n = token_ms > 0 ? (ms - step_ms) / token_ms : n_max;
    return n < 1 ? 1 : n < n_max ? (uint32_t)n : n_max;
}

static uint32_t row_layers(const bt_worker *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->layout->n_layers; i++) {
        n += w->layout->layers[i].k_dim > 0 || w->layout->layers[i].v_dim > 0;
    }
    return n;
}

/* Where to cut the prompt, by what this worker and the link have shown so far. */
static uint32_t plan_cuts(const bt_handoff_push *u, uint32_t ret_cuts[BT_ROUTE_SPLITS_MAX])
{
    bt_worker *w = u->guest->worker;
    const bt_wire_prefill *asked = &u->asked;
    const bt_engine_options *e = bt_engine_options_of(w->engine);
    const uint32_t chunk = asked->chunk_tokens > 0 ? asked->chunk_tokens : e->n_prefill_chunk;
    const bool by_layers = asked->order == BT_WIRE_ORDER_PUSH;
    if (!by_layers && asked->order != BT_WIRE_ORDER_TAPER) {
        return 0;
    }
    (void)pthread_mutex_lock(&w->pace_lock);
    const double step_ms = bt_cost_fit_at(&w->step_ms, 1, 0, 0);
    const double token_ms = bt_cost_fit_at(&w->step_ms, 0, 1, asked->position_end);
    (void)pthread_mutex_unlock(&w->pace_lock);
    const bt_route_plan t = {
        .first = asked->position_first, .end = asked->position_end,
        .chunk = tokens_in(BT_STEP_MAX_MS, step_ms, token_ms,
                           chunk < e->n_batch ? chunk : e->n_batch),
        .n_layers = by_layers ? w->layout->n_layers : 1,
        .n_row_layers = by_layers ? row_layers(w) : 0,
        .token_bytes = u->token_bytes, .state_bytes = bt_engine_state_bytes(w->engine),
        .last_max = tokens_in(BT_STEP_LAST_MAX_MS, step_ms, token_ms, e->n_batch),
        .token_ms = token_ms, .step_ms = step_ms,
        .bytes_per_ms = (double)asked->link_rate / 1000,
    };
    return bt_route_chunk_plan_make(&t, ret_cuts);
}

/* What one server, and one tenant of a server, has in the cache tells nobody else what was asked
 * there: neither by n_cached nor by the time that computing took. Odd, since 0 is for requests of
 * this process itself. */
uint64_t bt_handoff_push_cache_key(const bt_handoff_push *u)
{
    const bt_worker *w = u->guest->worker;
    uint8_t whose[16];
    bt_put_le64(whose, u->guest->session);
    bt_put_le64(whose + 8, u->asked.tenant);
    return w->share_cache ? 0 : bt_hash64(whose, sizeof whose, w->epoch) | 1;
}

bt_status bt_handoff_push_submit(bt_handoff_push *u, bt_error *err)
{
    uint32_t cuts[BT_ROUTE_SPLITS_MAX], rising[BT_WIRE_BORDERS_MAX];
    bt_worker *w = u->guest->worker;
    const bt_push push = { .context = u, .layer_done = layer_done, .chunk_done = chunk_done };
    bt_request_options o = bt_engine_request_defaults();
    bt_request *request = NULL;
    o.tokens = u->tokens;
    o.n_tokens = u->asked.position_end;
    o.prefill_only = true;
    o.push = &push;
    o.n_prefill_chunk = u->asked.chunk_tokens;
    o.n_cuts = plan_cuts(u, cuts);
    o.cuts = cuts;
    for (uint32_t i = 0; i < u->n_borders; i++) {
        rising[u->n_borders - 1 - i] = u->borders[i];
    }
    o.borders = rising;
    o.n_borders = u->n_borders;
    o.cache_key = bt_handoff_push_cache_key(u);
    o.no_cache = (u->asked.tenant & BT_WIRE_TENANT_ALONE) != 0;

    atomic_fetch_add(&w->n_in_flight, 1);
    atomic_fetch_add(&w->queued_tokens, u->asked.position_end);
    u->submit_ms = bt_clock_ms();
    bt_timeline_name_lane(w->trace, u->lane, "%s stream %u: steps", u->guest->name, u->stream);
    bt_timeline_name_lane(w->trace, u->lane + 1, "%s stream %u: rows given to the link",
                          u->guest->name, u->stream);
    const bt_status s = bt_engine_submit(w->engine, &o, &request, err);
    if (s != BT_OK) {
        atomic_fetch_sub(&w->n_in_flight, 1);
        atomic_fetch_sub(&w->queued_tokens, u->asked.position_end);
        return s;
    }
    if (u->n_borders == 0) {
        bt_free(u->tokens);
        u->tokens = NULL;
    }
    (void)pthread_mutex_lock(&u->guest->lock);
    u->request = request;
    (void)pthread_cond_signal(&u->guest->wake);
    (void)pthread_mutex_unlock(&u->guest->lock);
    return BT_OK;
}

/* ---- to the link: its writer thread ---- */

typedef struct {
    bt_handoff_push *push;
    const bt_request *request;
    uint32_t layer, position, n;
    uint32_t k_size, v_size;
    double   begin_ms;                 /* of filling */
} rows_context;

typedef struct {
    bt_handoff_push *push;
    uint64_t queue_us, compute_us;
    uint32_t position_end, n_cached;
} mark_context;

_Static_assert(sizeof(rows_context) <= sizeof ((bt_bulk *)0)->context, "fits a bulk frame");
_Static_assert(sizeof(mark_context) <= sizeof ((bt_bulk *)0)->context, "fits a bulk frame");

void bt_handoff_push_unqueue(bt_handoff_push *u)
{
    /* The guest outlives the push; the push may be freed as soon as the lock is free. */
    bt_handoff_guest *g = u->guest;
    (void)pthread_mutex_lock(&g->lock);
    BT_ASSERT(u->n_queued > 0);
    u->n_queued--;
    (void)pthread_cond_signal(&g->wake);
    (void)pthread_mutex_unlock(&g->lock);
}

static void rows_fill(void *context, uint8_t *to, size_t size)
{
    rows_context *c = context;
    uint8_t *k, *v;
    c->begin_ms = bt_clock_ms();
    BT_ASSERT(size == bt_wire_rows_place_size(c->k_size, c->v_size));
    bt_wire_rows_place(to, c->layer, c->position, c->n, c->k_size, c->v_size, &k, &v);
    const bt_handoff_push *u = c->push;
    if (u->form.codec == BT_KV_CODEC_STORED) {
        bt_engine_request_export_rows(c->request, c->layer, c->position, c->n, k, v);
        return;
    }
    for (uint32_t at = 0; at < c->n; at += BT_KV_ROWS_AT_ONCE) {
        const uint32_t n = c->n - at < BT_KV_ROWS_AT_ONCE ? c->n - at : BT_KV_ROWS_AT_ONCE;
        bt_engine_request_export_rows(c->request, c->layer, c->position + at, n, u->room.k,
                                      u->room.v);
        bt_kv_codec_encode(&u->form, &u->room, c->layer, n,
                                k + (size_t)at * (c->k_size / c->n),
                                v + (size_t)at * (c->v_size / c->n));
    }
}

static void rows_seal(void *context, uint64_t hash)
{
    const rows_context *c = context;
    const size_t size = bt_wire_rows_place_size(c->k_size, c->v_size);
    bt_wire_tally_put(c->push->tally, BT_WIRE_ROWS, (uint32_t)size, hash);
    atomic_fetch_add(&c->push->guest->worker->n_bytes, (uint64_t)c->k_size + c->v_size);
    bt_timeline_span(c->push->guest->worker->trace, c->push->lane + 1, "rows", c->begin_ms,
                     bt_clock_ms(), "\"layer\":%u,\"position\":%u,\"n\":%u,\"bytes\":%u", c->layer,
                     c->position, c->n, c->k_size + c->v_size);
    bt_handoff_push_unqueue(c->push);
}

static void rows_drop(void *context)
{
    const rows_context *c = context;
    bt_handoff_push_unqueue(c->push);
}

static void chunk_fill(void *context, uint8_t *to, size_t size)
{
    const mark_context *c = context;
    const bt_wire_chunk m = {
        .position_end = c->position_end,
        .n_frames = bt_wire_tally_frames(c->push->tally),
        .digest = bt_wire_tally_value(c->push->tally),
        .compute_us = c->compute_us,
    };
    size_t n = 0;
    const bt_status s = bt_wire_chunk_encode(&m, to, size, &n, NULL);
    BT_ASSERT(s == BT_OK && n == size);
}

static void commit_fill(void *context, uint8_t *to, size_t size)
{
    const mark_context *c = context;
    const bt_wire_prefill *asked = &c->push->asked;
    const bt_wire_commit m = {
        .nonce = asked->nonce,
        .epoch = asked->epoch,
        .position_first = asked->position_first,
        .position_end = asked->position_end,
        .n_frames = bt_wire_tally_frames(c->push->tally),
        .n_bytes = bt_wire_tally_bytes(c->push->tally),
        .digest = bt_wire_tally_value(c->push->tally),
        .n_cached = c->n_cached,
        .queue_us = c->queue_us,
        .compute_us = c->compute_us,
    };
    size_t n = 0;
    const bt_status s = bt_wire_commit_encode(&m, to, size, &n, NULL);
    BT_ASSERT(s == BT_OK && n == size);
}

static void mark_seal(void *context, uint64_t hash)
{
    const mark_context *c = context;
    (void)hash;
    bt_handoff_push_unqueue(c->push);
}

static void mark_drop(void *context)
{
    const mark_context *c = context;
    bt_handoff_push_unqueue(c->push);
}

/* ---- order ---- */

static size_t layer_bytes(const bt_handoff_push *u, uint32_t layer)
{
    return bt_kv_codec_layer_bytes(&u->form, layer);
}

/* The first layer at or behind `layer` that has something in this segment, or n_layers: rows, or
 * where the segment is the last, a state. */
static void to_layer(bt_handoff_push *u, uint32_t layer)
{
    const bt_worker *w = u->guest->worker;
    const bool states = w->state_bytes && u->segment_end == u->asked.position_end;
    while (layer < w->layout->n_layers && layer_bytes(u, layer) == 0 &&
           !(states && w->state_bytes[layer] > 0)) {
        layer++;
    }
    u->layer = layer;
    u->position = layer < w->layout->n_layers && layer_bytes(u, layer) > 0 ? u->segment_first
                                                                           : u->segment_end;
    u->state_offset = states ? 0 : BT_HANDOFF_NONE;
}

static bool layer_is_sent(const bt_handoff_push *u)
{
    return u->position == u->segment_end &&
           (u->state_offset == BT_HANDOFF_NONE || bt_handoff_push_state_left(u) == 0);
}

/* Opens the next segment; false when nothing is ready. */
static bool open_segment(bt_handoff_push *u)
{
    const uint64_t whole = BT_HANDOFF_SEGMENT_BYTES / u->token_bytes;
    const uint32_t most = whole > BT_HANDOFF_SEGMENT_TOKENS ? BT_HANDOFF_SEGMENT_TOKENS
                          : whole > 0                       ? (uint32_t)whole
                                                            : 1;
    const uint32_t order = u->asked.order;
    const bool by_layers = order == BT_WIRE_ORDER_PUSH || order == BT_WIRE_ORDER_LAYERS;
    uint32_t end = by_layers ? u->ready[0] : u->complete;
    if (order == BT_WIRE_ORDER_BULK && u->complete < u->asked.position_end) {
        return false;
    }
    if (u->complete > u->segment_first) {
        end = u->complete - u->segment_first > most ? u->segment_first + most : u->complete;
    }
    if (end <= u->segment_first) {
        return false;
    }
    u->segment_end = end;
    to_layer(u, 0);
    return true;
}

static bt_piece_kind next_rows(bt_handoff_push *u, bt_bulk *ret_bulk)
{
    const size_t row = layer_bytes(u, u->layer);
    const size_t fixed = bt_wire_rows_place_size(0, 0);
    uint32_t n = u->segment_end - u->position;
    const uint32_t fit = bt_wire_rows_fit(row);
    n = n < fit ? n : fit;
    if (u->credit < fixed + row) {
        return BT_PIECE_NONE;
    }
    const uint64_t paid = (u->credit - fixed) / row;
    n = n < paid ? n : (uint32_t)paid;

    const rows_context c = {
        .push = u, .request = u->request, .layer = u->layer, .position = u->position, .n = n,
        .k_size = n * bt_kv_codec_k_bytes(&u->form, u->layer),
        .v_size = n * bt_kv_codec_v_bytes(&u->form, u->layer),
    };
    *ret_bulk = (bt_bulk){
        .type = BT_WIRE_ROWS, .stream = u->stream,
        .size = (uint32_t)bt_wire_rows_place_size(c.k_size, c.v_size),
        .fill = rows_fill, .seal = rows_seal, .drop = rows_drop,
    };
    memcpy(ret_bulk->context, &c, sizeof c);
    u->credit -= ret_bulk->size;
    u->position += n;
    u->n_queued++;
    return BT_PIECE_ROWS;
}

static bt_piece_kind mark(bt_handoff_push *u, bool commit, uint32_t position, double now_ms,
                          bt_bulk *ret_bulk)
{
    const double spent = now_ms - u->submit_ms;
    const double queue = u->queue_ms < spent ? u->queue_ms : spent;
    const mark_context c = {
        .push = u,
        .position_end = position,
        .queue_us = (uint64_t)(queue * 1000),
        .compute_us = (uint64_t)((spent - queue) * 1000),
        .n_cached = u->n_cached,
    };
    *ret_bulk = (bt_bulk){
        .type = commit ? BT_WIRE_COMMIT : BT_WIRE_CHUNK, .stream = u->stream,
        .size = (uint32_t)(commit ? bt_wire_commit_size(&(bt_wire_commit){ 0 })
                                  : bt_wire_chunk_size(&(bt_wire_chunk){ 0 })),
        .fill = commit ? commit_fill : chunk_fill, .seal = mark_seal, .drop = mark_drop,
    };
    memcpy(ret_bulk->context, &c, sizeof c);
    u->n_queued++;
    return commit ? BT_PIECE_COMMIT : BT_PIECE_CHUNK;
}

bt_piece_kind bt_handoff_push_next_chunk(bt_handoff_push *u, uint32_t position, bt_bulk *ret_bulk)
{
    return mark(u, false, position, bt_clock_ms(), ret_bulk);
}

/* CHUNK, or COMMIT where the segment was the last: it says all that a CHUNK would. */
static bt_piece_kind next_mark(bt_handoff_push *u, bt_bulk *ret_bulk)
{
    const bool last = u->segment_end == u->asked.position_end;
    if (last && u->complete < u->asked.position_end) {
        return BT_PIECE_NONE;
    }
    u->segment_first = u->segment_end;
    u->committed = last;
    return mark(u, last, u->segment_end, last ? u->complete_ms : bt_clock_ms(), ret_bulk);
}

/* The next frame of the present layer. */
static bt_piece_kind next_of_layer(bt_handoff_push *u, bt_bulk *ret_bulk)
{
    const bt_piece_kind kind = u->position < u->segment_end
                                   ? next_rows(u, ret_bulk)
                                   : bt_handoff_push_next_state(u, ret_bulk);
    if (kind != BT_PIECE_NONE && layer_is_sent(u)) {
        to_layer(u, u->layer + 1);
    }
    return kind;
}

bt_piece_kind bt_handoff_push_next(bt_handoff_push *u, bt_bulk *ret_bulk)
{
    if (u->cancelled || u->failure.status != BT_OK) {
        return BT_PIECE_NONE;
    }
    if (bt_handoff_push_owes_snapshots(u)) {
        return bt_handoff_push_next_snapshot(u, ret_bulk);
    }
    if (!u->request || u->committed) {
        return BT_PIECE_NONE;
    }
    if (u->segment_first == u->segment_end && !open_segment(u)) {
        return BT_PIECE_NONE;
    }
    if (u->layer == u->guest->worker->layout->n_layers) {
        return next_mark(u, ret_bulk);
    }
    if (u->ready[u->layer] < u->segment_end) {
        return BT_PIECE_NONE;
    }
    return next_of_layer(u, ret_bulk);
}
