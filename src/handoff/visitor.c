/* handoff/visitor.c - somebody who looks at the worker and measures the way to it (docs/wire.md,
 * 4.7), on the reader's thread of the connection.
 *
 * Nothing here waits for the link: what does not fit its queue waits until a receive has looked for
 * heartbeats again. What all visitors together may ask for is an allowance that fills with time.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "handoff/identity.h"
#include "handoff/worker_private.h"
#include "link/tuning.h"

enum {
    VISITORS_MAX = 2,
    VISIT_MS = 60000,
    SAMPLE_BYTES = 256 << 10,
    SEND_AGAIN_MS = 2
};

#define ALLOWANCE_BYTES    (128u << 20)
#define ALLOWANCE_PER_MS   (12u << 10)
#define PROBE_COSTS_BYTES  (64u << 10)     /* at least */

typedef struct {
    bt_handoff_guest *guest;
    double   until_ms;
    uint32_t stream_last;
    uint32_t stream, offset, total;    /* the answer under way; stream 0: none */
} visit;

/* ---- facts ---- */

static bt_status send_facts(bt_handoff_guest *g, bt_error *err)
{
    const bt_worker *w = g->worker;
    bt_link_system system;
    bt_link_socket socket;
    uint8_t body[2048];
    size_t size;

    bt_link_system_get(&system);
    bt_link_socket_get(g->link, &socket);
    bt_wire_facts m = {
        .version_major = BT_WIRE_VERSION_MAJOR, .version_minor = BT_WIRE_VERSION_MINOR,
        .n_ctx = w->n_ctx, .n_prefill = w->n_prefill,
        .chunk_tokens = bt_engine_options_of(w->engine)->n_prefill_chunk,
        .n_servers = atomic_load(&w->n_connected), .n_servers_max = w->n_peers,
        .draining = atomic_load(&w->draining),
        .send_buffer = socket.send_buffer, .wmem_max = system.wmem_max,
        .tcp_wmem_max = system.tcp_wmem_max, .idle_restart = system.idle_restart,
        .congestion = bt_wire_text_of(system.congestion),
        .system = bt_wire_text_of(system.system), .numerics = bt_wire_text_of(w->numerics),
        .program = bt_wire_text_of(BT_WIRE_PROGRAM),
    };
    m.model = w->own.model;
    m.model.size = m.model.size < 256 ? m.model.size : 256;
#define F(type, name, doc) m.name = w->own.name;
    BT_WIRE_IDENTITY_FIELDS(F)
#undef F
    BT_TRY(bt_wire_facts_encode(&m, body, sizeof body, &size, err));
    return bt_link_send(g->link, BT_WIRE_FACTS, 0, body, size, err);
}

/* ---- samples ---- */

/* Lock free. 0: granted, and taken from the allowance; else after how many ms it is. */
static uint32_t ask_allowance(bt_worker *w, uint32_t n_bytes)
{
    const double cost = n_bytes > PROBE_COSTS_BYTES ? n_bytes : PROBE_COSTS_BYTES;
    const double now = bt_clock_ms();
    uint32_t wait_ms = 0;

    (void)pthread_mutex_lock(&w->lock);
    if (w->probe_ms > 0) {
        w->probe_used -= (now - w->probe_ms) * ALLOWANCE_PER_MS;
    }
    w->probe_used = w->probe_used > 0 ? w->probe_used : 0;
    w->probe_ms = now;
    if (w->probe_used + cost <= ALLOWANCE_BYTES) {
        w->probe_used += cost;
    } else {
        wait_ms = (uint32_t)((w->probe_used + cost - ALLOWANCE_BYTES) / ALLOWANCE_PER_MS) + 1;
    }
    (void)pthread_mutex_unlock(&w->lock);
    return wait_ms;
}

typedef struct {
    uint32_t offset, total, n;
} sample_context;

/* Marsaglia's xorshift: nothing on the way can make less of it. */
static void fill_sample(void *context, uint8_t *to, size_t size)
{
    const sample_context *c = context;
    uint64_t x = UINT64_C(0x9E3779B97F4A7C15) + c->offset;

    bt_put_le32(to, c->offset);
    bt_put_le32(to + 4, c->total);
    bt_put_le32(to + 8, c->n);
    for (size_t at = 12; at < size; at += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(to + at, &x, size - at < 8 ? size - at : 8);
    }
}

static bt_status send_samples(visit *v, bt_error *err)
{
    while (v->stream != 0) {
        const uint32_t left = v->total - v->offset;
        const sample_context c = {.offset = v->offset, .total = v->total,
                                  .n = left < SAMPLE_BYTES ? left : SAMPLE_BYTES};
        bt_bulk bulk = {.type = BT_WIRE_SAMPLE, .stream = v->stream, .size = 12 + c.n,
                        .fill = fill_sample};
        _Static_assert(sizeof c <= sizeof bulk.context, "a sample's context fits a bulk frame");
        memcpy(bulk.context, &c, sizeof c);
        const bt_status s = bt_link_send_bulk_try(v->guest->link, &bulk, err);
        if (s != BT_OK) {
            return s == BT_E_FULL ? BT_OK : s;
        }
        v->offset += c.n;
        v->stream = v->offset < v->total ? v->stream : 0;
    }
    return BT_OK;
}

static bt_status refuse_probe(visit *v, uint32_t stream, bt_status status, uint32_t retry_ms,
                              const char *sentence, bt_error *err)
{
    const bt_wire_error m = {.status = (uint32_t)status, .retry_ms = retry_ms,
                             .sentence = bt_wire_text_of(sentence)};
    uint8_t body[256];
    size_t size;

    BT_TRY(bt_wire_error_encode(&m, body, sizeof body, &size, err));
    return bt_link_send(v->guest->link, BT_WIRE_ERROR, stream, body, size, err);
}

static bt_status take_probe(visit *v, const bt_frame *frame, bt_error *err)
{
    bt_wire_probe m;

    if (frame->type == BT_WIRE_ERROR && frame->stream == 0) {
        return bt_fail(err, BT_E_CLOSED, "the visitor leaves");
    }
    if (frame->type != BT_WIRE_PROBE || frame->stream <= v->stream_last || v->stream != 0) {
        return bt_fail(err, BT_E_PROTOCOL, "unexpected %s on stream %u from a visitor",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    BT_TRY(bt_wire_probe_decode(frame->body, frame->size, &m, err));
    v->stream_last = frame->stream;
    if (m.n_bytes > BT_WIRE_PROBE_BYTES_MAX) {
        return refuse_probe(v, frame->stream, BT_E_BADINPUT, 0, "more bytes than one answer has",
                            err);
    }
    const uint32_t wait_ms = ask_allowance(v->guest->worker, m.n_bytes);
    if (wait_ms > 0) {
        return refuse_probe(v, frame->stream, BT_E_FULL, wait_ms, "measured too often", err);
    }
    v->stream = frame->stream;
    v->offset = 0;
    v->total = m.n_bytes;
    return BT_OK;
}

/* ---- the visit ---- */

static bt_status serve(visit *v, bt_error *err)
{
    for (;;) {
        bt_frame frame;
        BT_TRY(send_samples(v, err));
        const uint32_t ms = v->stream != 0 ? SEND_AGAIN_MS : BT_HANDOFF_LISTEN_MS;
        const bt_status s = bt_link_receive(v->guest->link, bt_clock_after_ms(ms), &frame, err);
        if (s == BT_OK) {
            BT_TRY(take_probe(v, &frame, err));
        } else if (s != BT_E_AGAIN) {
            return s;
        }
        if (bt_clock_ms() > v->until_ms) {
            return bt_fail(err, BT_E_TIMEOUT, "the visit lasted longer than %d s",
                           VISIT_MS / 1000);
        }
    }
}

/* BT_E_REFUSED with *ret_misfit for another version. */
static bt_status check_visit(const bt_frame *frame, bt_wire_misfit *ret_misfit, bt_error *err)
{
    bt_wire_visit m;
    char program[64];

    BT_TRY(bt_wire_visit_decode(frame->body, frame->size, &m, err));
    const bt_wire_hello theirs = {.version_major = m.version_major,
                                  .version_minor = m.version_minor};
    const bt_wire_hello ours = {.version_major = BT_WIRE_VERSION_MAJOR,
                                .version_minor = BT_WIRE_VERSION_MINOR};
    if (!bt_wire_identity_fits(&theirs, &ours, ret_misfit)) {
        return BT_E_REFUSED;
    }
    bt_log(BT_LOG_DEBUG, "probe_connected", "program=%s",
           bt_wire_text_copy(m.program, program, sizeof program));
    return BT_OK;
}

void bt_handoff_visitor_serve(bt_handoff_guest *g, const bt_frame *frame)
{
    visit v = {.guest = g, .until_ms = bt_clock_ms() + VISIT_MS};
    bt_wire_misfit misfit;
    bt_error err;

    bt_status s = check_visit(frame, &misfit, &err);
    if (s == BT_E_REFUSED) {
        const bt_wire_reject m = bt_wire_misfit_reject(&misfit);
        bt_handoff_guest_reject(g, &m);
        return;
    }
    if (s == BT_OK && atomic_fetch_add(&g->worker->n_visitors, 1) >= VISITORS_MAX) {
        const bt_wire_reject m = {.status = BT_E_FULL, .sentence = bt_wire_text_of(
                                          "two others are measuring the way to this worker")};
        atomic_fetch_sub(&g->worker->n_visitors, 1);
        bt_handoff_guest_reject(g, &m);
        return;
    }
    if (s == BT_OK) {
        atomic_store(&g->visiting, true);
        s = send_facts(g, &err);
        s = s == BT_OK ? serve(&v, &err) : s;
        atomic_fetch_sub(&g->worker->n_visitors, 1);
    }
    bt_log(BT_LOG_DEBUG, "probe_gone", "client=%s reason=%s", g->name, err.text);
}
