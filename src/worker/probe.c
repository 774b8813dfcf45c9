/* worker/probe.c - a probe client (`baton doctor`, docs/wire.md 4.7): the facts about this
 * worker, and bytes to be timed, on the reader's thread of the connection and the link's writer.
 *
 * What all probe clients together may ask for is an allowance that fills with time.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "handoff/identity.h"
#include "worker/private.h"
#include "link/tuning.h"

enum {
    PROBES_MAX = 2,
    PROBE_MS = 60000,
    SAMPLE_BYTES = 256 << 10
};

#define ALLOWANCE_BYTES    (128u << 20)
#define ALLOWANCE_PER_MS   (12u << 10)
#define PROBE_COSTS_BYTES  (64u << 10)     /* at least */

typedef struct {
    bt_worker_session *session;
    uint64_t until_ns;
    uint32_t stream_last;
    uint32_t stream, offset, total;    /* session->lock; the answer under way; stream 0: none */
} probe;

/* ---- facts ---- */

static bt_status send_facts(bt_worker_session *g, bt_error *err)
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
        .n_servers = atomic_load(&w->n_connected), .n_servers_max = w->n_clients_max,
        .draining = atomic_load(&w->draining),
        .send_buffer = socket.send_buffer, .wmem_max = system.wmem_max,
        .tcp_wmem_max = system.tcp_wmem_max, .idle_restart = system.idle_restart,
        .congestion = bt_wire_text_of(system.congestion),
        .system = bt_wire_text_of(system.system), .numerics = bt_wire_text_of(w->isa),
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

/* Marsaglia's xorshift: nothing on the way can compress it. */
static void write_sample(uint8_t *to, uint32_t offset, uint32_t total, uint32_t n)
{
    uint64_t x = UINT64_C(0x9E3779B97F4A7C15) + offset;
    const size_t size = 12 + (size_t)n;

    bt_put_le32(to, offset);
    bt_put_le32(to + 4, total);
    bt_put_le32(to + 8, n);
    for (size_t at = 12; at < size; at += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(to + at, &x, size - at < 8 ? size - at : 8);
    }
}

static bool next_sample(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    probe *p = context;
    (void)pthread_mutex_lock(&p->session->lock);
    const uint32_t stream = p->stream, offset = p->offset, total = p->total;
    const uint32_t left = total - offset, n = left < SAMPLE_BYTES ? left : SAMPLE_BYTES;
    p->offset += n;
    p->stream = p->offset < total ? stream : 0;
    (void)pthread_mutex_unlock(&p->session->lock);
    if (stream == 0) {
        return false;
    }
    BT_ASSERT(capacity >= 12 + (size_t)n);
    write_sample(body, offset, total, n);
    ret->type = BT_WIRE_SAMPLE;
    ret->stream = stream;
    ret->size = 12 + n;
    return true;
}

static bt_status refuse_probe(probe *p, uint32_t stream, bt_status status, uint32_t retry_ms,
                              const char *sentence, bt_error *err)
{
    const bt_wire_error m = {.status = (uint32_t)status, .retry_ms = retry_ms,
                             .sentence = bt_wire_text_of(sentence)};
    uint8_t body[256];
    size_t size;

    BT_TRY(bt_wire_error_encode(&m, body, sizeof body, &size, err));
    return bt_link_send(p->session->link, BT_WIRE_ERROR, stream, body, size, err);
}

static bt_status take_probe(probe *p, const bt_frame *frame, bt_error *err)
{
    bt_wire_probe m;

    if (frame->type == BT_WIRE_ERROR && frame->stream == 0) {
        return bt_fail(err, BT_E_CLOSED, "the probe client leaves");
    }
    (void)pthread_mutex_lock(&p->session->lock);
    const bool busy = p->stream != 0;
    (void)pthread_mutex_unlock(&p->session->lock);
    if (frame->type != BT_WIRE_PROBE || frame->stream <= p->stream_last || busy) {
        return bt_fail(err, BT_E_PROTOCOL, "unexpected %s on stream %u from a probe client",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    BT_TRY(bt_wire_probe_decode(frame->body, frame->size, &m, err));
    p->stream_last = frame->stream;
    if (m.n_bytes > BT_WIRE_PROBE_BYTES_MAX) {
        return refuse_probe(p, frame->stream, BT_E_BADINPUT, 0, "more bytes than one answer has",
                            err);
    }
    const uint32_t wait_ms = ask_allowance(p->session->worker, m.n_bytes);
    if (wait_ms > 0) {
        return refuse_probe(p, frame->stream, BT_E_FULL, wait_ms, "measured too often", err);
    }
    (void)pthread_mutex_lock(&p->session->lock);
    p->stream = frame->stream;
    p->offset = 0;
    p->total = m.n_bytes;
    (void)pthread_mutex_unlock(&p->session->lock);
    bt_link_pull(p->session->link);
    return BT_OK;
}

/* ---- the connection ---- */

static bt_status serve(probe *p, bt_error *err)
{
    const bt_link_source source = { .context = p, .next = next_sample };
    BT_TRY(bt_link_set_source(p->session->link, &source, err));
    for (;;) {
        bt_frame frame;
        const bt_status s = bt_link_receive(p->session->link, p->until_ns, &frame, err);
        if (s == BT_OK) {
            BT_TRY(take_probe(p, &frame, err));
        } else if (s != BT_E_AGAIN) {
            return s;
        }
        if (bt_clock_ns() >= p->until_ns) {
            return bt_fail(err, BT_E_TIMEOUT, "probing lasted longer than %d s", PROBE_MS / 1000);
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

void bt_worker_probe_serve(bt_worker_session *s, const bt_frame *frame)
{
    probe p = {.session = s, .until_ns = bt_clock_after_ms(PROBE_MS)};
    bt_wire_misfit misfit;
    bt_error err;

    bt_status status = check_visit(frame, &misfit, &err);
    if (status == BT_E_REFUSED) {
        const bt_wire_reject m = bt_wire_misfit_reject(&misfit);
        bt_worker_session_reject(s, &m);
        return;
    }
    if (status == BT_OK && atomic_fetch_add(&s->worker->n_probing, 1) >= PROBES_MAX) {
        const bt_wire_reject m = {.status = BT_E_FULL, .sentence = bt_wire_text_of(
                                          "two others are measuring the way to this worker")};
        atomic_fetch_sub(&s->worker->n_probing, 1);
        bt_worker_session_reject(s, &m);
        return;
    }
    if (status == BT_OK) {
        atomic_store(&s->probing, true);
        status = send_facts(s, &err);
        status = status == BT_OK ? serve(&p, &err) : status;
        atomic_fetch_sub(&s->worker->n_probing, 1);     /* first: the client may come again */
        bt_link_stop(s->link, err.text);                /* the source is on this stack */
    }
    bt_log(BT_LOG_DEBUG, "probe_gone", "client=%s reason=%s", s->name, err.text);
}
