/* rooms: transfer wire kv ops quant base
 *
 * Whatever happens to a prompt on a worker in whatever order: no row leaves before it is computed,
 * none twice and none beyond the credit; CHUNK and COMMIT follow all rows they speak for; the
 * request is submitted once and released once, after the engine has ended; the last word is said
 * once; a prompt whose engine and connection have ended is done. Two bytes an event; a model beside
 * the machine keeps the account.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "transfer/worker.h"
#include "wire/codec.h"

#define DO(name) BT_TRANSFER_WORKER_DO_##name
#define ON(name) BT_TRANSFER_WORKER_ON_##name

enum { LAYERS = 3, STATE = 300, END_MAX = 600, EVENTS_MAX = 4096 };

typedef struct {
    bt_transfer_worker w;
    bt_transfer_worker_ask ask;
    uint64_t now_ns, credit;
    uint32_t ready[LAYERS], complete;      /* by the engine's word */
    uint32_t sent[LAYERS], state_sent;     /* rows below it; bytes of the end's state */
    uint32_t part_sent, n_closed;          /* of the present checkpoint; checkpoints closed */
    uint32_t n_submits, n_stops, n_releases, n_words;
    bool     engine_runs, engine_stopping, committed, lost, opened, kept;
} model;

static bt_kv_layer layers[LAYERS] = {
    { .k_dim = 8, .v_dim = 8, .k_row_bytes = 32, .v_row_bytes = 32 }, { 0 },
    { .k_dim = 4, .v_dim = 4, .k_row_bytes = 16, .v_row_bytes = 16 },
};
static const bt_kv_layout layout = { .page_tokens = 32, .type_k = BT_TYPE_F32,
                                     .type_v = BT_TYPE_F32, .n_layers = LAYERS, .layers = layers };
static const uint64_t state_bytes[LAYERS] = { 0, STATE, 0 };
static const uint32_t row_bytes[LAYERS] = { 64, 0, 32 };

/* ---- what there is to do ---- */

static void put(model *m, bt_transfer_worker_input i);

static void carry_out(model *m, uint32_t todo)
{
    const uint32_t words = todo & (DO(SAY_CANCELLED) | DO(SAY_ERROR));
    if (todo & DO(SUBMIT)) {
        BT_ASSERT(m->n_submits == 0);
        m->n_submits++;
        m->engine_runs = true;
    }
    if (todo & DO(STOP_COMPUTING)) {
        BT_ASSERT(m->engine_runs && m->n_stops == 0);
        m->n_stops++;
        m->engine_stopping = true;
    }
    if (todo & DO(RELEASE)) {
        BT_ASSERT(m->n_submits == 1 && m->n_releases == 0 && !m->engine_runs);
        m->n_releases++;
    }
    if (words) {
        BT_ASSERT(m->n_words == 0 && !m->lost && (words & (words - 1)) == 0);
        m->n_words++;
    }
    if (m->w.state == BT_TRANSFER_WORKER_DONE) {
        BT_ASSERT(m->n_releases == m->n_submits);
        BT_ASSERT(m->lost || m->n_words == 1 || (m->committed &&
                                                 m->n_closed == m->ask.n_checkpoints));
    }
}

static void put(model *m, bt_transfer_worker_input i)
{
    carry_out(m, bt_transfer_worker_put(&m->w, i, m->now_ns));
}

/* ---- the engine ---- */

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void compute(model *m, uint8_t layer, uint8_t n)
{
    const uint32_t end = m->ask.end;
    if (!m->engine_runs) {
        return;
    }
    if (layer >= 128) {                    /* a whole chunk */
        const uint32_t to = least(m->complete + n, end);
        bt_transfer_worker_all_ready(&m->w, to, m->now_ns);
        m->complete = to > m->complete ? to : m->complete;
        for (int i = 0; i < LAYERS; i++) {
            m->ready[i] = m->ready[i] > m->complete ? m->ready[i] : m->complete;
        }
        return;
    }
    layer %= LAYERS;
    bt_transfer_worker_layer_ready(&m->w, layer, m->complete, n, m->now_ns);
    if (m->complete < end) {
        const uint32_t to = least(m->complete + n, end);
        m->ready[layer] = m->ready[layer] > to ? m->ready[layer] : to;
    }
}

static void end_engine(model *m, uint8_t how)
{
    if (!m->engine_runs) {
        return;
    }
    m->engine_runs = false;
    if (how % 2 == 0 && !m->engine_stopping) {
        m->complete = m->ask.end;
        for (int i = 0; i < LAYERS; i++) {
            m->ready[i] = m->ask.end;
        }
        put(m, ON(ENDED));
    } else {
        put(m, ON(FAILED));
    }
}

/* ---- frames ---- */

static void spend(model *m, uint32_t size)
{
    BT_ASSERT(size <= m->credit);
    m->credit -= size;
    BT_ASSERT(m->credit == m->w.credit);
}

static void check_rows(model *m, const bt_transfer_piece *x)
{
    BT_ASSERT(x->layer < LAYERS && row_bytes[x->layer] > 0 && x->n > 0 && !m->committed);
    BT_ASSERT(x->position == m->sent[x->layer] && x->position + x->n <= m->ready[x->layer]);
    BT_ASSERT(x->size == bt_wire_rows_place_size(0, 0) + x->n * row_bytes[x->layer]);
    m->sent[x->layer] += x->n;
    spend(m, x->size);
}

static void check_part(model *m, const bt_transfer_piece *x, uint32_t *sent)
{
    BT_ASSERT(x->layer == 1 && x->offset == *sent && x->n > 0 && x->offset + x->n <= STATE);
    *sent += x->n;
    spend(m, x->size);
}

static void check_mark(model *m, const bt_transfer_piece *x)
{
    if (m->committed) {
        BT_ASSERT(x->kind == BT_TRANSFER_PIECE_CHUNK && m->n_closed < m->ask.n_checkpoints);
        BT_ASSERT(x->position == m->ask.checkpoints[m->n_closed] && m->opened);
        BT_ASSERT(!m->kept || m->part_sent == STATE);
        m->n_closed++;
        m->part_sent = 0;
        m->opened = false;
        return;
    }
    BT_ASSERT(m->sent[0] == x->position && m->sent[2] == x->position);
    if (x->kind == BT_TRANSFER_PIECE_COMMIT) {
        BT_ASSERT(x->position == m->ask.end && m->complete == m->ask.end);
        BT_ASSERT(!m->ask.state_bytes || m->state_sent == STATE);
        m->committed = true;
    }
}

static void send(model *m, uint8_t kept)
{
    const bt_transfer_worker_state was = m->w.state;
    const bt_transfer_piece x = bt_transfer_worker_next(&m->w, m->now_ns);
    if (x.kind != BT_TRANSFER_PIECE_NONE) {
        BT_ASSERT(!m->lost && m->n_words == 0 && m->n_stops == 0);
        BT_ASSERT(x.size <= BT_WIRE_BODY_BYTES_MAX);
    }
    switch (x.kind) {
    case BT_TRANSFER_PIECE_NONE:
        return;
    case BT_TRANSFER_PIECE_FIND:
        BT_ASSERT(m->committed && !m->opened && was == BT_TRANSFER_WORKER_CHECKPOINTS);
        m->opened = true;
        m->kept = kept % 3 != 0;
        bt_transfer_worker_found(&m->w, m->kept);
        return;
    case BT_TRANSFER_PIECE_ROWS:
        check_rows(m, &x);
        break;
    case BT_TRANSFER_PIECE_STATE:
        BT_ASSERT(m->ready[1] == m->ask.end && !m->committed);
        check_part(m, &x, &m->state_sent);
        break;
    case BT_TRANSFER_PIECE_CHECKPOINT:
        BT_ASSERT(m->opened && m->kept);
        check_part(m, &x, &m->part_sent);
        break;
    case BT_TRANSFER_PIECE_CHUNK:
    case BT_TRANSFER_PIECE_COMMIT:
        check_mark(m, &x);
        break;
    }
    carry_out(m, bt_transfer_worker_written(&m->w, &x, m->now_ns));
}

/* ---- events ---- */

static void give_credit(model *m, uint8_t how)
{
    const uint64_t bytes = how == 255 ? BT_TRANSFER_CREDIT_MAX : (uint64_t)how * 17;
    if (bt_transfer_worker_credit(&m->w, bytes, m->now_ns)) {
        m->credit += bytes;
    }
    BT_ASSERT(m->w.credit == m->credit && m->credit <= BT_TRANSFER_CREDIT_MAX);
}

static void lose(model *m)
{
    if (!m->lost) {
        m->lost = true;
        put(m, ON(LOST));
    }
}

static void stall(model *m, uint8_t by)
{
    m->now_ns += by;
    if (bt_transfer_worker_deadline(&m->w, 100) <= m->now_ns) {
        put(m, ON(STALLED));
        BT_ASSERT(m->w.state == BT_TRANSFER_WORKER_FAILING ||
                  m->w.state == BT_TRANSFER_WORKER_DONE);
    }
}

static void one(model *m, uint8_t kind, uint8_t with)
{
    if (m->lost) {                         /* what the client says is heard no more */
        kind = kind % 16 < 8 ? 7 : 3;
    }
    switch (kind % 16) {
    case 0: put(m, m->w.state == BT_TRANSFER_WORKER_TOKENS && with > 240 ? ON(UNFIT) : ON(FULL));
        break;
    case 1: put(m, ON(ADMITTED)); break;
    case 2: give_credit(m, with); break;
    case 3: end_engine(m, with); break;
    case 4: if (with > 250) { put(m, ON(CANCEL)); } break;
    case 5: if (with > 252) { lose(m); } break;
    case 6: stall(m, with); break;
    case 7: compute(m, kind, with); break;
    case 8: case 9: compute(m, kind, with); break;
    default: send(m, with); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const bt_kv_form form = bt_kv_codec_stored(&layout);
    model m = { .now_ns = 1 };
    if (size < 4) {
        return 0;
    }
    m.ask = (bt_transfer_worker_ask){
        .form = &form, .state_bytes = data[0] % 2 ? state_bytes : NULL, .first = data[1] % 64,
        .end = (uint32_t)data[1] % 64 + 1 + (uint32_t)data[2] * 2,
        .order = data[0] / 2 % BT_WIRE_ORDER_COUNT, .credit = (uint64_t)data[3] * 64,
        .n_checkpoints = data[0] % 2 ? data[0] / 16 % 4 : 0,
    };
    for (uint32_t i = 0; i < m.ask.n_checkpoints; i++) {
        m.ask.checkpoints[i] = m.ask.end > i ? m.ask.end - i : 1;
    }
    m.credit = m.ask.credit;
    m.complete = m.ask.first;
    for (int i = 0; i < LAYERS; i++) {
        m.ready[i] = m.sent[i] = m.ask.first;
    }
    if (bt_transfer_worker_init(&m.w, &m.ask, m.now_ns, NULL) != BT_OK) {
        return 0;
    }
    for (size_t at = 4; at + 1 < size && at < 2 * EVENTS_MAX; at += 2) {
        one(&m, data[at], data[at + 1]);
    }
    lose(&m);                              /* in the end every connection and every engine ends */
    end_engine(&m, 1);
    BT_ASSERT(m.w.state == BT_TRANSFER_WORKER_DONE && m.n_releases == m.n_submits);
    bt_transfer_worker_done(&m.w);
    return 0;
}
