/* worker/stream.c - one prompt of a client (docs/handoff.md, "A prompt, on the worker"):
 * what the engine computes and what leaves. What happens when is the machine's; this file gives it
 * the engine's word, and writes the frames that it names. */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/snapshots.h"
#include "worker/private.h"
#include "route/chunk_plan.h"

_Static_assert((int)BT_ROUTE_SPLITS_MAX <= (int)BT_CUTS_MAX, "the engine takes all split points");

/* ---- life ---- */

/* W-118: what was asked for, or an error; never another form. */
static bt_status read_checkpoints(const bt_worker *w, const bt_wire_prefill *asked,
                                  bt_transfer_worker_ask *ask, bt_error *err)
{
    const bt_wire_ids ids = asked->borders;
    if (ids.n > BT_WIRE_BORDERS_MAX) {
        return bt_fail(err, BT_E_PROTOCOL, "PREFILL wants %u checkpoints; at most %u", ids.n,
                       BT_WIRE_BORDERS_MAX);
    }
    for (uint32_t i = 0; i < ids.n; i++) {
        const uint32_t at = ask->checkpoints[i] = bt_wire_token(ids, i);
        if (at == 0 || at > asked->position_end || (i > 0 && at >= ask->checkpoints[i - 1])) {
            return bt_fail(err, BT_E_PROTOCOL, "PREFILL wants a checkpoint at %u of %u tokens; "
                           "they must fall and lie inside", at, asked->position_end);
        }
    }
    ask->n_checkpoints = w->state_bytes ? ids.n : 0;
    return BT_OK;
}

static bt_status open_form(bt_worker_stream *u, bt_error *err)
{
    const bt_worker *w = u->session->worker;
    const bt_wire_prefill *asked = &u->asked;
    if (asked->order >= BT_WIRE_ORDER_COUNT) {
        return bt_fail(err, BT_E_UNSUPPORTED, "rows in order %u, but only 0 to %d are known",
                       asked->order, (int)BT_WIRE_ORDER_COUNT - 1);
    }
    BT_TRY(bt_kv_codec_form_init(&u->form, w->layout, asked->codec, err));
    if (u->form.codec != BT_KV_CODEC_STORED) {
        BT_TRY(bt_kv_codec_scratch_open(&u->scratch, &u->form, err));
    }
    bt_transfer_worker_ask ask = {
        .form = &u->form, .state_bytes = w->state_bytes, .first = asked->position_first,
        .end = asked->position_end, .order = asked->order, .credit = asked->credit,
    };
    BT_TRY(read_checkpoints(w, asked, &ask, err));
    u->asked.borders = (bt_wire_ids){ 0 };         /* lay in the frame */
    return bt_transfer_worker_init(&u->machine, &ask, bt_clock_ns(), err);
}

bt_status bt_worker_stream_create(bt_worker_session *s, uint32_t stream,
                                   const bt_wire_prefill *asked, bt_worker_stream **ret_stream,
                                   bt_error *err)
{
    bt_worker_stream *u = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *u);
    if (!u) {
        return bt_fail_nomem(err, sizeof *u, "a prompt of a client");
    }
    u->session = s;
    u->stream = stream;
    u->asked = *asked;
    u->snapshot = BT_WORKER_NONE;
    u->lane = 2 * atomic_fetch_add(&s->worker->n_lanes, 1) + 2;
    bt_status status = open_form(u, err);
    u->tokens = bt_alloc_zero(BT_MEM_handoff, asked->n_tokens, sizeof *u->tokens);
    if (status == BT_OK && !u->tokens) {
        status = bt_fail_nomem(err, asked->n_tokens * sizeof *u->tokens, "the tokens of a prompt");
    }
    if (status == BT_OK) {
        status = bt_wire_tally_open(stream, asked, &u->tally, err);
    }
    if (status != BT_OK) {
        bt_worker_stream_destroy(u);
        return status;
    }
    *ret_stream = u;
    return BT_OK;
}

static void unpin(bt_worker_stream *u)
{
    if (u->snapshot != BT_WORKER_NONE) {
        bt_engine_snapshot_unpin(u->session->worker->engine, u->snapshot);
        u->snapshot = BT_WORKER_NONE;
    }
}

void bt_worker_stream_destroy(bt_worker_stream *u)
{
    if (u) {
        unpin(u);
        bt_transfer_worker_done(&u->machine);
        bt_kv_codec_scratch_close(&u->scratch);
        bt_wire_tally_close(u->tally);
        bt_free(u->tokens);
        bt_free(u);
    }
}

/* There may be a frame for the writer: from here on the session waits for it to ask. */
void bt_worker_session_pull(bt_worker_session *s)
{
    (void)pthread_mutex_lock(&s->lock);
    if (s->idle) {
        s->idle = false;
        s->pulled_ns = bt_clock_ns();
    }
    (void)pthread_mutex_unlock(&s->lock);
    bt_link_pull(s->link);
}

/* ---- from the engine: its thread, or the device's ---- */

/* Lock held. Tokens below `position` need no computing any more. */
static void count_done_locked(bt_worker_stream *u, uint32_t position)
{
    position = position < u->asked.position_end ? position : u->asked.position_end;
    if (position > u->counted) {
        atomic_fetch_sub(&u->session->worker->queued_tokens, position - u->counted);
        u->counted = position;
    }
}

/* How long steps take, from steps that had this prompt alone: the layers after the first one tell
 * it, since no callback marks the beginning of a step. */
static void note_pace(bt_worker_stream *u, uint32_t layer, uint32_t position, uint32_t n)
{
    bt_worker *w = u->session->worker;
    const uint32_t n_layers = w->layout->n_layers;
    const double now = bt_clock_ms();
    if (layer == 0) {
        u->step_ms = now;
    } else if (layer + 1 == n_layers) {
        const double ms = (now - u->step_ms) * n_layers / (n_layers - 1);
        bt_timeline_span(w->timeline, u->lane, "step", now - ms, now, "\"position\":%u,\"n\":%u",
                         position, n);
        if (atomic_load(&w->n_in_flight) == 1) {
            (void)pthread_mutex_lock(&w->pace_lock);
            bt_cost_fit_put(&w->step_cost, 1, n,
                            bt_cost_attended(position, (double)position + n), ms);
            (void)pthread_mutex_unlock(&w->pace_lock);
        }
    }
}

/* The first word of the engine: what lies before the first computed row was in the prefix cache. */
static bool begins_locked(bt_worker_stream *u, uint32_t n_cached)
{
    const bool begins = !u->machine.started;
    if (begins) {
        count_done_locked(u, n_cached);
    }
    return begins;
}

static void layer_done(void *context, uint32_t layer, uint32_t position, uint32_t n)
{
    bt_worker_stream *u = context;
    bt_worker_session *s = u->session;
    note_pace(u, layer, position, n);
    (void)pthread_mutex_lock(&s->lock);
    const bool begins = begins_locked(u, position);
    bt_transfer_worker_layer_ready(&u->machine, layer, position, n, bt_clock_ns());
    (void)pthread_mutex_unlock(&s->lock);
    bt_worker_session_pull(s);
    if (begins) {
        bt_worker_count_unstarted(s, -1);
    }
}

static void chunk_done(void *context, uint32_t position_end)
{
    bt_worker_stream *u = context;
    bt_worker_session *s = u->session;
    (void)pthread_mutex_lock(&s->lock);
    const bool begins = begins_locked(u, position_end);
    count_done_locked(u, position_end);
    bt_transfer_worker_all_ready(&u->machine, position_end, bt_clock_ns());
    if (u->complete_ms <= 0 && u->machine.complete == u->asked.position_end) {
        u->complete_ms = bt_clock_ms();
    }
    (void)pthread_mutex_unlock(&s->lock);
    bt_worker_session_pull(s);
    bt_worker_tell_load(s->worker);
    if (begins) {
        bt_worker_count_unstarted(s, -1);
    }
}

static void on_event(void *context)
{
    bt_worker_session *s = context;
    (void)pthread_mutex_lock(&s->lock);
    s->has_event = true;
    (void)pthread_cond_signal(&s->event);
    (void)pthread_mutex_unlock(&s->lock);
    bt_link_wake(s->link);
}

/* ---- to the engine ---- */

/* What one client, and one tenant of a client, has in the cache tells nobody else what was asked
 * there: neither by n_cached nor by the time that computing took. Odd, since 0 is for requests of
 * this process itself. */
static uint64_t cache_key(const bt_worker_stream *u)
{
    const bt_worker *w = u->session->worker;
    uint8_t whose[16];
    bt_put_le64(whose, u->session->id);
    bt_put_le64(whose + 8, u->asked.tenant);
    return w->share_cache ? 0 : bt_hash64(whose, sizeof whose, w->epoch) | 1;
}

bt_status bt_worker_stream_submit(bt_worker_stream *u, bt_error *err)
{
    const bt_transfer_worker_ask *ask = &u->machine.ask;
    uint32_t splits[BT_ROUTE_SPLITS_MAX], rising[BT_WIRE_BORDERS_MAX];
    bt_worker *w = u->session->worker;
    const bt_push push = { .context = u, .layer_done = layer_done, .chunk_done = chunk_done };
    bt_request_options o = bt_engine_request_defaults();
    bt_request *request = NULL;
    o.tokens = u->tokens;
    o.n_tokens = u->asked.position_end;
    o.prefill_only = true;
    o.push = &push;
    o.on_event.fn = on_event;
    o.on_event.context = u->session;
    o.n_prefill_chunk = u->asked.chunk_tokens;
    o.n_cuts = bt_worker_plan_splits(w, &u->asked, &u->form, splits);
    o.cuts = splits;
    for (uint32_t i = 0; i < ask->n_checkpoints; i++) {
        rising[ask->n_checkpoints - 1 - i] = ask->checkpoints[i];
    }
    o.borders = rising;
    o.n_borders = ask->n_checkpoints;
    o.cache_key = cache_key(u);
    o.no_cache = (u->asked.tenant & BT_WIRE_TENANT_ALONE) != 0;

    atomic_fetch_add(&w->queued_tokens, u->asked.position_end);
    bt_worker_count_in_flight(w, 1);
    bt_timeline_name_lane(w->timeline, u->lane, "%s stream %u: steps", u->session->name,
                          u->stream);
    bt_timeline_name_lane(w->timeline, u->lane + 1, "%s stream %u: rows given to the link",
                          u->session->name, u->stream);
    u->submit_ms = bt_clock_ms();
    const bt_status status = bt_engine_submit(w->engine, &o, &request, err);
    if (status != BT_OK) {
        atomic_fetch_sub(&w->queued_tokens, u->asked.position_end);
        bt_worker_count_in_flight(w, -1);
        return status;
    }
    if (ask->n_checkpoints == 0) {
        bt_free(u->tokens);
        u->tokens = NULL;
    }
    (void)pthread_mutex_lock(&u->session->lock);
    u->request = request;
    (void)pthread_mutex_unlock(&u->session->lock);
    bt_worker_session_pull(u->session);
    return BT_OK;
}

void bt_worker_stream_release(bt_worker_stream *u, bt_request *request)
{
    bt_worker *w = u->session->worker;
    bt_engine_request_release(request);
    (void)pthread_mutex_lock(&u->session->lock);
    count_done_locked(u, u->asked.position_end);
    (void)pthread_mutex_unlock(&u->session->lock);
    bt_worker_count_in_flight(w, -1);
}

/* ---- to the link: its writer thread ---- */

static void write_rows(bt_worker_stream *u, const bt_request *request, const bt_transfer_piece *x,
                       uint8_t *body)
{
    const uint32_t k_row = bt_kv_codec_k_bytes(&u->form, x->layer),
                   v_row = bt_kv_codec_v_bytes(&u->form, x->layer);
    uint8_t *k, *v;
    bt_wire_rows_place(body, x->layer, x->position, x->n, x->n * k_row, x->n * v_row, &k, &v);
    if (u->form.codec == BT_KV_CODEC_STORED) {
        bt_engine_request_export_rows(request, x->layer, x->position, x->n, k, v);
        return;
    }
    for (uint32_t at = 0; at < x->n; at += BT_KV_ROWS_AT_ONCE) {
        const uint32_t n = x->n - at < BT_KV_ROWS_AT_ONCE ? x->n - at : BT_KV_ROWS_AT_ONCE;
        bt_engine_request_export_rows(request, x->layer, x->position + at, n, u->scratch.k,
                                      u->scratch.v);
        bt_kv_codec_encode(&u->form, &u->scratch, x->layer, n, k + (size_t)at * k_row,
                           v + (size_t)at * v_row);
    }
}

static void write_state(bt_worker_stream *u, const bt_request *request, const bt_transfer_piece *x,
                        uint8_t *body)
{
    const bt_worker *w = u->session->worker;
    const bt_wire_state m = { .layer = x->layer, .position = x->position, .offset = x->offset,
                              .total = (uint32_t)w->state_bytes[x->layer] };
    uint8_t *data = bt_wire_state_place(body, &m, x->n);
    if (x->kind == BT_TRANSFER_PIECE_STATE) {
        bt_engine_request_export_state(request, x->layer, x->offset, x->n, data);
    } else {
        bt_engine_snapshot_export(w->engine, u->snapshot, x->layer, x->offset, x->n, data);
    }
}

static void write_mark(bt_worker_stream *u, const bt_transfer_piece *x, uint8_t *body)
{
    const bt_wire_prefill *asked = &u->asked;
    size_t size = 0;
    bt_status status;
    if (x->kind == BT_TRANSFER_PIECE_COMMIT) {
        const bt_wire_commit m = {
            .nonce = asked->nonce, .epoch = asked->epoch,
            .position_first = asked->position_first, .position_end = asked->position_end,
            .n_frames = bt_wire_tally_frames(u->tally), .n_bytes = bt_wire_tally_bytes(u->tally),
            .digest = bt_wire_tally_value(u->tally), .n_cached = u->machine.n_cached,
            .queue_us = u->queue_us, .compute_us = u->compute_us,
        };
        status = bt_wire_commit_encode(&m, body, x->size, &size, NULL);
    } else {
        const bt_wire_chunk m = {
            .position_end = x->position, .n_frames = bt_wire_tally_frames(u->tally),
            .digest = bt_wire_tally_value(u->tally), .compute_us = u->compute_us,
        };
        status = bt_wire_chunk_encode(&m, body, x->size, &size, NULL);
    }
    BT_ASSERT(status == BT_OK && size == x->size);
}

static uint16_t write_piece(bt_worker_stream *u, const bt_request *request,
                            const bt_transfer_piece *x, uint8_t *body)
{
    switch (x->kind) {
    case BT_TRANSFER_PIECE_ROWS:
        write_rows(u, request, x, body);
        return BT_WIRE_ROWS;
    case BT_TRANSFER_PIECE_STATE:
    case BT_TRANSFER_PIECE_CHECKPOINT:
        write_state(u, request, x, body);
        return BT_WIRE_STATE;
    case BT_TRANSFER_PIECE_COMMIT:
        write_mark(u, x, body);
        return BT_WIRE_COMMIT;
    case BT_TRANSFER_PIECE_CHUNK:
    case BT_TRANSFER_PIECE_FIND:
    case BT_TRANSFER_PIECE_NONE:
        break;
    }
    write_mark(u, x, body);
    return BT_WIRE_CHUNK;
}

/* A look ahead, on a copy. */
static bool has_frame(const bt_worker_stream *u)
{
    bt_transfer_worker ahead = u->machine;
    return bt_transfer_worker_next(&ahead, 0).kind != BT_TRANSFER_PIECE_NONE;
}

/* The next prompt with a frame, in turns. The list rises by stream number. */
static bt_worker_stream *choose_locked(bt_worker_session *s, bool checkpoints)
{
    bt_worker_stream *first = NULL;
    for (bt_worker_stream *u = s->streams; u; u = u->next) {
        const bool owes = u->machine.state == BT_TRANSFER_WORKER_CHECKPOINTS;
        if (owes != checkpoints || (!owes && !u->request) || !has_frame(u)) {
            continue;
        }
        if (u->stream > s->stream_turn) {
            return u;
        }
        first = first ? first : u;
    }
    return first;
}

/* Prompts that are committed and owe checkpoints come last. */
/* Times since the prompt was given to the engine, until now or until all was computed. */
static void note_times_locked(bt_worker_stream *u)
{
    const bool commit = u->piece.kind == BT_TRANSFER_PIECE_COMMIT;
    const double until = commit && u->complete_ms > 0 ? u->complete_ms : bt_clock_ms();
    const double all = until - u->submit_ms;
    const double queue = u->queue_ms < all ? u->queue_ms : all;
    u->queue_us = (uint64_t)(queue * 1000);
    u->compute_us = (uint64_t)((all - queue) * 1000);
}

static bt_worker_stream *take_locked(bt_worker_session *s)
{
    bt_worker_stream *u = choose_locked(s, false);
    u = u ? u : choose_locked(s, true);
    s->pulled_ns = bt_clock_ns();
    s->idle = u == NULL;
    s->filling = u;
    if (u) {
        s->stream_turn = u->stream;
        u->filling = true;
        u->piece = bt_transfer_worker_next(&u->machine, s->pulled_ns);
        note_times_locked(u);
    }
    return u;
}

/* Lock free; `filling` keeps the prompt. */
static void find_checkpoint(bt_worker_stream *u)
{
    unpin(u);
    const bool kept = bt_engine_snapshot_pin(u->session->worker->engine, cache_key(u), u->tokens,
                                             u->piece.position, &u->snapshot);
    u->snapshot = kept ? u->snapshot : BT_WORKER_NONE;
    (void)pthread_mutex_lock(&u->session->lock);
    bt_transfer_worker_found(&u->machine, kept);
    u->filling = false;
    u->session->filling = NULL;
    (void)pthread_mutex_unlock(&u->session->lock);
    bt_link_wake(u->session->link);        /* it may have been given up meanwhile */
}

bool bt_worker_stream_next(void *session, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    bt_worker_session *s = session;
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        bt_worker_stream *u = take_locked(s);
        const bt_request *request = u ? u->request : NULL;
        (void)pthread_mutex_unlock(&s->lock);
        if (!u) {
            return false;
        }
        if (u->piece.kind == BT_TRANSFER_PIECE_FIND) {
            find_checkpoint(u);
            continue;
        }
        BT_ASSERT(u->piece.size <= capacity);
        u->fill_ms = bt_clock_ms();
        ret->type = write_piece(u, request, &u->piece, body);
        ret->stream = u->stream;
        ret->size = u->piece.size;
        return true;
    }
}

/* The account is of ROWS and STATE; what counts as sent are their rows and states. */
static void count_sent(bt_worker_stream *u, const bt_transfer_piece *x, uint64_t hash)
{
    bt_worker *w = u->session->worker;
    const bool rows = x->kind == BT_TRANSFER_PIECE_ROWS;
    if (!rows && x->kind != BT_TRANSFER_PIECE_STATE && x->kind != BT_TRANSFER_PIECE_CHECKPOINT) {
        return;
    }
    const size_t fixed = rows ? bt_wire_rows_place_size(0, 0) : bt_wire_state_place_size(0);
    bt_wire_tally_put(u->tally, rows ? BT_WIRE_ROWS : BT_WIRE_STATE, x->size, hash);
    atomic_fetch_add(&w->n_bytes, x->size - fixed);
    if (rows) {
        bt_timeline_span(w->timeline, u->lane + 1, "rows", u->fill_ms, bt_clock_ms(),
                         "\"layer\":%u,\"position\":%u,\"n\":%u,\"bytes\":%u", x->layer,
                         x->position, x->n, (uint32_t)(x->size - fixed));
    }
}

void bt_worker_stream_sealed(void *session, uint32_t stream, uint64_t hash)
{
    bt_worker_session *s = session;
    bt_worker_stream *u = s->filling;      /* the writer's own until it is cleared here */
    BT_ASSERT(u && u->stream == stream);
    count_sent(u, &u->piece, hash);
    (void)pthread_mutex_lock(&s->lock);
    u->todo |= bt_transfer_worker_written(&u->machine, &u->piece, bt_clock_ns());
    u->committed |= u->piece.kind == BT_TRANSFER_PIECE_COMMIT;
    u->filling = false;
    s->filling = NULL;
    const bool wake = u->todo != 0 || u->machine.state == BT_TRANSFER_WORKER_DONE;
    (void)pthread_mutex_unlock(&s->lock);
    if (wake) {
        bt_link_wake(s->link);
    }
}
