/* transfer/pieces.c - which frame of a prompt comes next (worker.h, "Order of frames"), and
 * whether one does. */
#include "transfer/worker.h"

#include "wire/codec.h"

/* A run of complete positions is cut into segments of at most so many bytes and tokens, so that
 * CHUNKs keep coming and a lost connection costs little. */
#define SEGMENT_BYTES  (4u << 20)
#define SEGMENT_TOKENS 256u

/* Parts of a state are as large as a frame allows. */
enum { PART_MAX = BT_WIRE_BODY_BYTES_MAX - 64 };
#define NO_STATES UINT32_MAX

static uint32_t n_layers_of(const bt_transfer_worker *w) { return w->ask.form->layout->n_layers; }

static size_t row_bytes(const bt_transfer_worker *w, uint32_t layer)
{
    return bt_kv_codec_layer_bytes(w->ask.form, layer);
}

static uint64_t state_bytes(const bt_transfer_worker *w, uint32_t layer)
{
    return w->ask.state_bytes ? w->ask.state_bytes[layer] : 0;
}

static bool is_last(const bt_transfer_worker *w) { return w->segment_end == w->ask.end; }

/* ---- segments ---- */

/* The first layer from `layer` on that has something in this segment, or n_layers: rows, or a
 * state where the segment is the last. */
static void to_layer(bt_transfer_worker *w, uint32_t layer)
{
    const uint32_t n_layers = n_layers_of(w);
    while (layer < n_layers && row_bytes(w, layer) == 0 &&
           !(is_last(w) && state_bytes(w, layer) > 0)) {
        layer++;
    }
    w->layer = layer;
    w->position = layer < n_layers && row_bytes(w, layer) > 0 ? w->segment_first : w->segment_end;
    w->state_offset = is_last(w) ? 0 : NO_STATES;
}

/* Where a segment that begins at segment_first would end; there when nothing is ready. */
static uint32_t next_end(const bt_transfer_worker *w)
{
    const uint64_t token_bytes = bt_kv_codec_token_bytes(w->ask.form);
    const uint64_t whole = token_bytes > 0 ? SEGMENT_BYTES / token_bytes : SEGMENT_TOKENS;
    const uint32_t most = whole > SEGMENT_TOKENS ? SEGMENT_TOKENS
                          : whole > 0            ? (uint32_t)whole
                                                 : 1;
    const bool by_layers = w->ask.order == BT_WIRE_ORDER_PUSH ||
                           w->ask.order == BT_WIRE_ORDER_LAYERS;
    if (w->ask.order == BT_WIRE_ORDER_BULK && w->complete < w->ask.end) {
        return w->segment_first;
    }
    if (w->complete > w->segment_first) {
        return w->complete - w->segment_first > most ? w->segment_first + most : w->complete;
    }
    return by_layers && w->ready[0] > w->segment_first ? w->ready[0] : w->segment_first;
}

static bool is_open(const bt_transfer_worker *w) { return w->segment_end > w->segment_first; }

static bool open_segment(bt_transfer_worker *w)
{
    const uint32_t end = next_end(w);
    if (end == w->segment_first) {
        return false;
    }
    w->segment_end = end;
    to_layer(w, 0);
    return true;
}

/* ---- pieces ---- */

static const bt_transfer_piece none = { .kind = BT_TRANSFER_PIECE_NONE };

static bt_transfer_piece spend(bt_transfer_worker *w, bt_transfer_piece p, uint64_t now_ns)
{
    w->credit -= p.size;
    w->moved_ns = now_ns;
    return p;
}

static bt_transfer_piece next_rows(bt_transfer_worker *w, uint64_t now_ns)
{
    const size_t row = row_bytes(w, w->layer), fixed = bt_wire_rows_place_size(0, 0);
    if (w->credit < fixed + row) {
        return none;
    }
    const uint64_t paid = (w->credit - fixed) / row;
    const uint32_t fit = bt_wire_rows_fit(row);
    uint32_t n = w->segment_end - w->position;
    n = n < fit ? n : fit;
    n = n < paid ? n : (uint32_t)paid;
    const bt_transfer_piece p = {
        .kind = BT_TRANSFER_PIECE_ROWS, .layer = w->layer, .position = w->position, .n = n,
        .size = (uint32_t)bt_wire_rows_place_size(
                (size_t)n * bt_kv_codec_k_bytes(w->ask.form, w->layer),
                (size_t)n * bt_kv_codec_v_bytes(w->ask.form, w->layer)),
    };
    w->position += n;
    return spend(w, p, now_ns);
}

static uint64_t state_left(const bt_transfer_worker *w)
{
    return w->layer < n_layers_of(w) && w->state_offset != NO_STATES
                   ? state_bytes(w, w->layer) - w->state_offset : 0;
}

static bt_transfer_piece next_part(bt_transfer_worker *w, bt_transfer_piece_kind kind,
                                   uint32_t position, uint64_t now_ns)
{
    const uint64_t left = state_left(w), fixed = bt_wire_state_place_size(0);
    if (w->credit <= fixed) {
        return none;
    }
    uint64_t n = left < PART_MAX ? left : PART_MAX;
    n = n < w->credit - fixed ? n : w->credit - fixed;
    const bt_transfer_piece p = {
        .kind = kind, .layer = w->layer, .position = position, .n = (uint32_t)n,
        .offset = w->state_offset, .size = (uint32_t)bt_wire_state_place_size((uint32_t)n),
        .checkpoint = w->checkpoint,
    };
    w->state_offset += p.n;
    return spend(w, p, now_ns);
}

/* The next frame of the present layer: its rows, then its state. */
static bt_transfer_piece next_of_layer(bt_transfer_worker *w, uint64_t now_ns)
{
    if (w->ready[w->layer] < w->segment_end) {
        return none;
    }
    const bt_transfer_piece p = w->position < w->segment_end
            ? next_rows(w, now_ns)
            : next_part(w, BT_TRANSFER_PIECE_STATE, w->ask.end, now_ns);
    if (p.kind != BT_TRANSFER_PIECE_NONE && w->position == w->segment_end && state_left(w) == 0) {
        to_layer(w, w->layer + 1);
    }
    return p;
}

static bt_transfer_piece chunk_at(uint32_t position, uint32_t checkpoint)
{
    const size_t size = bt_wire_chunk_size(&(bt_wire_chunk){ 0 });
    return (bt_transfer_piece){ .kind = BT_TRANSFER_PIECE_CHUNK, .position = position,
                                .size = (uint32_t)size, .checkpoint = checkpoint };
}

/* CHUNK, or COMMIT where the segment was the last: it says all that a CHUNK would. */
static bt_transfer_piece next_mark(bt_transfer_worker *w)
{
    if (!is_last(w)) {
        return chunk_at(w->segment_end, BT_WIRE_BORDERS_MAX);
    }
    if (w->complete < w->ask.end) {
        return none;
    }
    return (bt_transfer_piece){ .kind = BT_TRANSFER_PIECE_COMMIT, .position = w->ask.end,
                                .size = (uint32_t)bt_wire_commit_size(&(bt_wire_commit){ 0 }) };
}

/* ---- checkpoints ---- */

static void to_state(bt_transfer_worker *w, uint32_t layer)
{
    w->layer = layer;
    w->state_offset = 0;
    while (w->layer < n_layers_of(w) && state_left(w) == 0) {
        w->layer++;
    }
}

void bt_transfer_worker_found(bt_transfer_worker *w, bool kept)
{
    w->checkpoint_open = true;
    w->checkpoint_kept = kept;
    to_state(w, 0);
}

static bt_transfer_piece next_checkpoint(bt_transfer_worker *w, uint64_t now_ns)
{
    const uint32_t position = w->ask.checkpoints[w->checkpoint];
    if (!w->checkpoint_open) {
        return (bt_transfer_piece){ .kind = BT_TRANSFER_PIECE_FIND, .position = position,
                                    .checkpoint = w->checkpoint };
    }
    if (!w->checkpoint_kept || w->layer == n_layers_of(w)) {
        return chunk_at(position, w->checkpoint);
    }
    const bt_transfer_piece p = next_part(w, BT_TRANSFER_PIECE_CHECKPOINT, position, now_ns);
    if (p.kind != BT_TRANSFER_PIECE_NONE && state_left(w) == 0) {
        to_state(w, w->layer + 1);
    }
    return p;
}

/* ---- what the driver asks ---- */

bt_transfer_piece bt_transfer_worker_next(bt_transfer_worker *w, uint64_t now_ns)
{
    if (w->state == BT_TRANSFER_WORKER_CHECKPOINTS) {
        return next_checkpoint(w, now_ns);
    }
    if (w->state != BT_TRANSFER_WORKER_COMPUTING && w->state != BT_TRANSFER_WORKER_SENDING) {
        return none;
    }
    if (!is_open(w) && !open_segment(w)) {
        return none;
    }
    return w->layer < n_layers_of(w) ? next_of_layer(w, now_ns) : next_mark(w);
}

uint32_t bt_transfer_worker_written(bt_transfer_worker *w, const bt_transfer_piece *piece,
                                    uint64_t now_ns)
{
    w->moved_ns = now_ns;
    if (piece->kind == BT_TRANSFER_PIECE_COMMIT) {
        w->segment_first = w->segment_end;
        return bt_transfer_worker_put(w, w->ask.n_checkpoints > 0
                                                 ? BT_TRANSFER_WORKER_ON_COMMIT_OWING
                                                 : BT_TRANSFER_WORKER_ON_COMMIT, now_ns);
    }
    if (piece->kind == BT_TRANSFER_PIECE_CHUNK && piece->checkpoint < w->ask.n_checkpoints) {
        w->checkpoint++;
        w->checkpoint_open = false;
        return w->checkpoint == w->ask.n_checkpoints
                       ? bt_transfer_worker_put(w, BT_TRANSFER_WORKER_ON_LAST_CLOSED, now_ns) : 0;
    }
    if (piece->kind == BT_TRANSFER_PIECE_CHUNK) {
        w->segment_first = w->segment_end;
    }
    return 0;
}

/* ---- patience ---- */

/* Whether a frame is ready and nothing but credit is missing. A copy is asked: looking changes
 * nothing. */
static bool lacks_credit(const bt_transfer_worker *w)
{
    bt_transfer_worker copy = *w;
    if (bt_transfer_worker_next(&copy, 0).kind != BT_TRANSFER_PIECE_NONE) {
        return false;
    }
    copy.credit = BT_TRANSFER_CREDIT_MAX;
    return bt_transfer_worker_next(&copy, 0).kind != BT_TRANSFER_PIECE_NONE;
}

bool bt_transfer_worker_is_held_up(const bt_transfer_worker *w)
{
    return w->state == BT_TRANSFER_WORKER_TOKENS || lacks_credit(w);
}

uint64_t bt_transfer_worker_deadline(const bt_transfer_worker *w, uint64_t patience_ns)
{
    return bt_transfer_worker_is_held_up(w) && patience_ns < BT_TRANSFER_WORKER_NEVER - w->moved_ns
                   ? w->moved_ns + patience_ns : BT_TRANSFER_WORKER_NEVER;
}
