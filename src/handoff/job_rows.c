/* handoff/job_rows.c - what a worker sends of a prompt: rows into reserved pages, the account of
 * them, and COMMIT. */
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "handoff/job_state.h"
#include "handoff/job_trace.h"
#include "base/say.h"

/* Returns credit once a quarter of the window is owed: seldom enough to cost nothing, often enough
 * that the worker does not run dry. */
void bt_handoff_job_give_credit(bt_handoff_peer *peer, bt_handoff_job *job)
{
    if (job->credit_owed == 0 || job->credit_owed < job->asked.credit / 4) {
        return;
    }
    const bt_wire_credit m = { .bytes = job->credit_owed };
    uint8_t body[16];
    size_t n;
    bt_error err;
    if (bt_wire_credit_encode(&m, body, sizeof body, &n, &err) == BT_OK &&
        bt_link_send(peer->link, BT_WIRE_CREDIT, job->stream, body, n, &err) == BT_OK) {
        job->credit_left += job->credit_owed;
        job->credit_owed = 0;
    }
}

bt_status bt_handoff_job_spend(bt_handoff_job *job, uint32_t size, bt_error *err)
{
    if (size > job->credit_left) {
        return bt_fail(err, BT_E_PROTOCOL, "%u bytes of rows or states with credit for %llu", size,
                       (unsigned long long)job->credit_left);
    }
    job->credit_left -= size;
    return BT_OK;
}

/* What a worker sent did not hold: counted, and the stream ends. */
void bt_handoff_job_fail_corrupt(bt_handoff_peer *peer, bt_handoff_job *job, const bt_error *err)
{
    (void)pthread_mutex_lock(&peer->owner->lock);
    peer->status.n_corrupt++;
    (void)pthread_mutex_unlock(&peer->owner->lock);
    bt_handoff_job_fail(peer, job, err, true);
}

/* Into the reserved pages, turned into the stored type where they come in another. */
static bt_status import_rows(bt_handoff_peer *peer, const bt_handoff_job *job,
                             const bt_wire_rows *m)
{
    bt_prefill *p = peer->owner;
    if (p->form.codec == BT_KV_CODEC_STORED) {
        return bt_engine_external_import_rows(p->engine, job->ticket, m->layer, m->position,
                                              m->n, m->k.data, m->v.data);
    }
    const size_t k = bt_kv_codec_k_bytes(&p->form, m->layer),
                 v = bt_kv_codec_v_bytes(&p->form, m->layer);
    bt_status s = BT_OK;
    for (uint32_t at = 0; s == BT_OK && at < m->n; at += BT_KV_ROWS_AT_ONCE) {
        const uint32_t n = m->n - at < BT_KV_ROWS_AT_ONCE ? m->n - at : BT_KV_ROWS_AT_ONCE;
        bt_kv_codec_decode(&p->form, &peer->room, m->layer, n, m->k.data + at * k,
                                m->v.data + at * v);
        s = bt_engine_external_import_rows(p->engine, job->ticket, m->layer, m->position + at, n,
                                           peer->room.k, peer->room.v);
    }
    return s;
}

bool bt_handoff_job_imported(bt_handoff_peer *peer, bt_handoff_job *job, bt_status status,
                             const char *what, uint32_t layer)
{
    if (status == BT_E_CANCELLED) {
        (void)pthread_mutex_lock(&peer->owner->lock);
        job->cancelled = true;          /* the tick that follows ends it */
        (void)pthread_mutex_unlock(&peer->owner->lock);
    } else if (status != BT_OK) {
        bt_error why;
        (void)bt_fail(&why, status, "%s of layer %u could not be stored: %s", what, layer,
                      bt_status_text(status));
        bt_handoff_job_fail(peer, job, &why, true);
    }
    return status == BT_OK;
}

void bt_handoff_job_received(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                             uint64_t n_bytes)
{
    if (job->rows_ms == 0) {
        job->rows_ms = job->news_ms;
        job->first_bytes = (double)bt_wire_tally_bytes(job->ledger.tally);
    }
    bt_handoff_job_mark(job);
    job->report.bytes += n_bytes;
    job->credit_owed += frame->size;
    bt_handoff_job_give_credit(peer, job);
}

bt_status bt_handoff_job_rows(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                              bt_error *err)
{
    bt_wire_rows m;
    BT_TRY(bt_wire_rows_decode(frame->body, frame->size, &m, err));
    BT_TRY(bt_transfer_receipt_check(&job->ledger, &m, err));
    BT_TRY(bt_handoff_job_spend(job, frame->size, err));
    const double begin_ms = bt_clock_ms();
    const bt_status s = import_rows(peer, job, &m);
    const double end_ms = bt_clock_ms();
    job->report.import_ms += end_ms - begin_ms;
    bt_timeline_span(peer->owner->trace, bt_handoff_trace_lane(job) + 1, "rows", begin_ms, end_ms,
                     "\"layer\":%u,\"position\":%u,\"n\":%u,\"bytes\":%u", m.layer, m.position, m.n,
                     m.k.size + m.v.size);
    if (bt_handoff_job_imported(peer, job, s, "rows", m.layer)) {
        bt_transfer_receipt_enter(&job->ledger, &m, frame);
        bt_handoff_job_received(peer, job, frame, (uint64_t)m.k.size + m.v.size);
    }
    return BT_OK;
}

void bt_handoff_job_chunk(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame)
{
    bt_wire_chunk m;
    bt_error err;
    if (bt_wire_chunk_decode(frame->body, frame->size, &m, &err) != BT_OK ||
        bt_transfer_receipt_chunk(&job->ledger, &m, &err) != BT_OK) {
        bt_handoff_job_fail_corrupt(peer, job, &err);
        return;
    }
    (void)pthread_mutex_lock(&peer->owner->lock);
    job->complete = job->ledger.complete;       /* others add up what is left of all jobs */
    job->told_compute_ms = (double)m.compute_us / 1000;
    (void)pthread_mutex_unlock(&peer->owner->lock);
}

void bt_handoff_job_tell_wire_type(const bt_prefill *p, bt_handoff_job *job)
{
    if (job->report.bytes > 0) {
        (void)bt_kv_codec_form_name(&p->form, job->report.wire_type,
                                         sizeof job->report.wire_type);
    }
}

/* What sending the bytes takes by itself, less what was left of it when computing was done. The way
 * of the last byte is not part of sending. */
static double hidden_share(const bt_handoff_job *job, const bt_link_stats *link, double late_ms)
{
    const bt_prefill_report *r = &job->report;
    /* The link carries at least what it has just carried. */
    const double rate = link->goodput_bytes_per_ms;
    const double bytes = (double)bt_wire_tally_bytes(job->ledger.tally);
    const double told_ms = rate > 0 ? bytes / rate : r->transfer_ms;
    const double alone_ms = told_ms < r->transfer_ms ? told_ms : r->transfer_ms;
    const double left_ms = late_ms - link->round_trip_ms_min / 2;
    return alone_ms <= 0 || left_ms >= alone_ms ? 0 : left_ms <= 0 ? 1 : 1 - left_ms / alone_ms;
}

/* The worker says how long it waited and computed; its clock started when PREFILL arrived, half a
 * round trip after we sent it. What of the transfer passed after that end was hidden by nothing;
 * where COMMIT is later than the transfer is long, the rest went by before the first rows came, and
 * shows in total_ms only. */
static void measure(bt_handoff_job *job, const bt_wire_commit *m, const bt_link_stats *link)
{
    const double round_trip_ms = link->round_trip_ms_min;
    bt_prefill_report *r = &job->report;
    const double now = bt_clock_ms();
    r->queue_ms = (double)m->queue_us / 1000 + job->waited_ms;
    r->compute_ms += (double)m->compute_us / 1000;      /* to that of those who were lost */
    r->transfer_ms = job->rows_ms > 0 ? now - job->rows_ms : 0;
    const double done = job->sent_ms + round_trip_ms / 2 +
                        (double)(m->queue_us + m->compute_us) / 1000;
    const double late_ms = now > done ? now - done : 0;
    r->exposed_ms = late_ms < r->transfer_ms ? late_ms : r->transfer_ms;
    r->total_ms = now - job->start_ms;
    r->hidden = hidden_share(job, link, late_ms);
    r->n_remote = job->end - job->first;
    r->place = BT_PREFILL_REMOTE;
    if (job->lost[0]) {
        bt_say(r->reason, sizeof r->reason, "%s; worker %s did the rest", job->lost, r->worker);
    }
}

void bt_handoff_job_commit(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame)
{
    bt_prefill *p = peer->owner;
    bt_wire_commit m;
    bt_error err;
    bt_link_stats link;
    if (bt_wire_commit_decode(frame->body, frame->size, &m, &err) != BT_OK ||
        bt_transfer_receipt_commit(&job->ledger, &m, &err) != BT_OK) {
        bt_handoff_job_fail_corrupt(peer, job, &err);
        return;
    }
    bt_link_stats_get(peer->link, &link);
    measure(job, &m, &link);
    bt_handoff_trace_committed(p->trace, job, &m, link.round_trip_ms_min);
    bt_handoff_job_tell_wire_type(p, job);
    (void)pthread_mutex_lock(&p->lock);
    bt_handoff_job_take_off(peer, job);
    job->complete = job->end;
    bt_handoff_peer_learn(peer, job, &m, &link);
    bt_handoff_decided(p, job->ticket, BT_PREFILL_OUTCOME_REMOTE, job->report.total_ms);
    bt_handoff_jobs_send(peer);
    (void)pthread_mutex_unlock(&p->lock);
    bt_log(BT_LOG_DEBUG, "prefill_committed", "worker=%s tokens=%u bytes=%llu compute_ms=%.1f "
           "transfer_ms=%.1f exposed_ms=%.2f", peer->address, job->report.n_remote,
           (unsigned long long)job->report.bytes, job->report.compute_ms, job->report.transfer_ms,
           job->report.exposed_ms);
    bt_handoff_request_end(job->request, job->ticket, &job->report);
    if (bt_engine_external_commit(p->engine, job->ticket, &err) == BT_E_PROTOCOL) {
        bt_log(BT_LOG_WARN, "commit_refused", "worker=%s reason=%s", peer->address,
               err.text);
        job->report.fallback = !job->policy_fail;
        bt_say(job->report.reason, sizeof job->report.reason, "worker %s: %s", peer->address,
               err.text);
        bt_handoff_job_give_back(p, job, job->first, BT_E_PROTOCOL);
    }
    if (!bt_handoff_keeper_take(peer, job)) {
        bt_handoff_job_destroy(job);
    }
}
