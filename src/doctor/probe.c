/* doctor/probe.c - see probe.h. */
#include "doctor/probe.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/memory.h"

enum { ANSWER_MS = 3000, AGAIN_MS_MAX = 12000 };

struct bt_probe {
    bt_link       *link;
    bt_probe_facts facts;
    uint32_t       stream_last;
};

/* ---- opening ---- */

static bt_status send_visit(bt_link *link, bt_error *err)
{
    const bt_wire_visit m = {.version_major = BT_WIRE_VERSION_MAJOR,
                             .version_minor = BT_WIRE_VERSION_MINOR,
                             .program = bt_wire_text_of(BT_WIRE_PROGRAM)};
    uint8_t body[256];
    size_t size;
    BT_TRY(bt_wire_visit_encode(&m, body, sizeof body, &size, err));
    return bt_link_send(link, BT_WIRE_VISIT, 0, body, size, err);
}

static bt_status take_facts(bt_probe *v, const bt_frame *frame, bt_error *err)
{
    bt_probe_facts *f = &v->facts;
    bt_link_stats link;
    bt_wire_facts m;

    BT_TRY(bt_wire_facts_decode(frame->body, frame->size, &m, err));
    bt_link_stats_get(v->link, &link);
    *f = (bt_probe_facts){
        .own = {.version_major = m.version_major, .version_minor = m.version_minor},
        .n_ctx = m.n_ctx, .n_prefill = m.n_prefill, .chunk_tokens = m.chunk_tokens,
        .n_servers = m.n_servers, .n_servers_max = m.n_servers_max,
        .draining = m.draining != 0, .encrypted = link.encrypted,
        .send_buffer = m.send_buffer, .wmem_max = m.wmem_max, .tcp_wmem_max = m.tcp_wmem_max,
        .idle_restart = m.idle_restart,
    };
#define F(type, name, doc) f->own.name = m.name;
    BT_WIRE_IDENTITY_FIELDS(F)
#undef F
    (void)bt_wire_text_copy(m.congestion, f->congestion, sizeof f->congestion);
    (void)bt_wire_text_copy(m.system, f->system, sizeof f->system);
    (void)bt_wire_text_copy(m.numerics, f->numerics, sizeof f->numerics);
    (void)bt_wire_text_copy(m.model, f->model, sizeof f->model);
    (void)bt_wire_text_copy(m.program, f->program, sizeof f->program);
    memcpy(f->peer, link.peer, sizeof f->peer);
    return BT_OK;
}

static bt_status take_reject(const bt_frame *frame, bt_error *err)
{
    bt_wire_reject m;
    char sentence[224];

    BT_TRY(bt_wire_reject_decode(frame->body, frame->size, &m, err));
    const bt_status status = bt_status_from_wire(m.status);
    return bt_fail(err, status == BT_OK ? BT_E_PROTOCOL : status, "%s",
                   bt_wire_text_copy(m.sentence, sentence, sizeof sentence));
}

static bt_status wait_facts(bt_probe *v, bt_error *err)
{
    bt_frame frame;

    const bt_status s = bt_link_receive(v->link, bt_clock_after_ms(ANSWER_MS), &frame, err);
    if (s == BT_E_AGAIN) {
        return bt_fail(err, BT_E_TIMEOUT, "connected, but no answer within %d ms: the worker is of "
                       "a version before 1.1 of the protocol, or it hangs", ANSWER_MS);
    }
    BT_TRY(s);
    if (frame.type == BT_WIRE_REJECT) {
        return take_reject(&frame, err);
    }
    if (frame.type != BT_WIRE_FACTS) {
        return bt_fail(err, BT_E_PROTOCOL, "the worker answers VISIT with %s",
                       bt_wire_type_name(frame.type));
    }
    return take_facts(v, &frame, err);
}

bt_status bt_doctor_probe_open(const char *address, const bt_link_options *o, bt_probe **ret_visit,
                               bt_error *err)
{
    bt_probe *v = bt_alloc_zero(BT_MEM_link, 1, sizeof *v);

    if (v == NULL) {
        return bt_fail_nomem(err, sizeof *v, "a probe client");
    }
    bt_status s = bt_link_connect(address, o, &v->link, err);
    if (s == BT_OK) {
        s = send_visit(v->link, err);
    }
    if (s == BT_OK) {
        s = wait_facts(v, err);
    }
    if (s != BT_OK) {
        bt_doctor_probe_close(v);
        return s;
    }
    *ret_visit = v;
    return BT_OK;
}

void bt_doctor_probe_close(bt_probe *v)
{
    if (v != NULL) {
        bt_link_destroy(v->link);
        bt_free(v);
    }
}

const bt_probe_facts *bt_doctor_probe_facts_of(const bt_probe *v) { return &v->facts; }

void bt_doctor_probe_socket_get(const bt_probe *v, bt_link_socket *ret_socket)
{
    bt_link_socket_get(v->link, ret_socket);
}

/* ---- probes ---- */

static bt_status take_error(const bt_frame *frame, uint32_t *ret_again_ms, bt_error *err)
{
    bt_wire_error m;
    char sentence[200];

    BT_TRY(bt_wire_error_decode(frame->body, frame->size, &m, err));
    const bt_status status = bt_status_from_wire(m.status);
    *ret_again_ms = status == BT_E_FULL && m.retry_ms <= AGAIN_MS_MAX ? m.retry_ms : 0;
    return bt_fail(err, status == BT_OK ? BT_E_PROTOCOL : status, "the worker: %s",
                   bt_wire_text_copy(m.sentence, sentence, sizeof sentence));
}

/* The next part; *ret_offset moves on. */
static bt_status take_sample(const bt_frame *frame, uint32_t stream, uint32_t n_bytes,
                             uint32_t *ret_offset, bt_error *err)
{
    bt_wire_sample m;

    if (frame->type != BT_WIRE_SAMPLE || frame->stream != stream) {
        return bt_fail(err, BT_E_PROTOCOL, "the worker answers PROBE with %s on stream %u",
                       bt_wire_type_name(frame->type), frame->stream);
    }
    BT_TRY(bt_wire_sample_decode(frame->body, frame->size, &m, err));
    if (m.total != n_bytes || m.offset != *ret_offset || m.data.size > n_bytes - m.offset ||
        (m.data.size == 0 && n_bytes > 0)) {
        return bt_fail(err, BT_E_PROTOCOL, "bytes %" PRIu32 "..%" PRIu64 " of %" PRIu32
                       " where %" PRIu32 " of %" PRIu32 " was next", m.offset,
                       (uint64_t)m.offset + m.data.size, m.total, *ret_offset, n_bytes);
    }
    *ret_offset += m.data.size;
    return BT_OK;
}

static bt_status probe_once(bt_probe *v, uint32_t n_bytes, double *ret_ms, uint32_t *ret_again_ms,
                            bt_error *err)
{
    const bt_wire_probe m = {.n_bytes = n_bytes};
    const uint32_t stream = ++v->stream_last;
    uint32_t offset = 0;
    uint8_t body[16];
    size_t size;

    BT_TRY(bt_wire_probe_encode(&m, body, sizeof body, &size, err));
    const double begun = bt_clock_ms();
    BT_TRY(bt_link_send(v->link, BT_WIRE_PROBE, stream, body, size, err));
    do {
        bt_frame frame;
        const bt_status s = bt_link_receive(v->link, bt_clock_after_ms(ANSWER_MS), &frame, err);
        if (s == BT_E_AGAIN) {
            return bt_fail(err, BT_E_TIMEOUT, "%" PRIu32 " of %" PRIu32 " bytes came, then none "
                           "for %d ms", offset, n_bytes, ANSWER_MS);
        }
        BT_TRY(s);
        if (frame.type == BT_WIRE_ERROR) {
            return take_error(&frame, ret_again_ms, err);
        }
        BT_TRY(take_sample(&frame, stream, n_bytes, &offset, err));
    } while (offset < n_bytes);
    *ret_ms = bt_clock_ms() - begun;
    return BT_OK;
}

bt_status bt_doctor_probe_measure(bt_probe *v, uint32_t n_bytes, double *ret_ms, bt_error *err)
{
    uint32_t again_ms = 0;
    bt_status s = probe_once(v, n_bytes, ret_ms, &again_ms, err);
    if (s != BT_OK && again_ms > 0) {
        BT_TRY(bt_doctor_probe_rest(v, again_ms, err));
        s = probe_once(v, n_bytes, ret_ms, &again_ms, err);
    }
    return s;
}

bt_status bt_doctor_probe_rest(bt_probe *v, uint32_t ms, bt_error *err)
{
    bt_frame frame;
    const bt_status s = bt_link_receive(v->link, bt_clock_after_ms(ms), &frame, err);
    if (s == BT_E_AGAIN) {
        return BT_OK;
    }
    return s != BT_OK ? s : bt_fail(err, BT_E_PROTOCOL, "unexpected %s from the worker",
                                    bt_wire_type_name(frame.type));
}
