/* handoff/job_state.c - recurrent states on the server: the one at the prompt's end, which COMMIT
 * makes the sequence's, and those of borders, which follow COMMIT and become snapshots.
 *
 * Behind COMMIT nothing is owed to anybody: whatever does not hold there ends the stream, the
 * answer goes on, and all that is lost is that a later prompt computes more.
 */
#include <string.h>

#include "base/check.h"
#include "engine/snapshots.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "handoff/job_state.h"

bt_status bt_handoff_job_state(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                               bt_error *err)
{
    bt_wire_state m;
    BT_TRY(bt_wire_state_decode(frame->body, frame->size, &m, err));
    BT_TRY(bt_transfer_receipt_check_state(&job->ledger, &m, job->end, err));
    BT_TRY(bt_handoff_job_spend(job, frame->size, err));
    const double begin_ms = bt_clock_ms();
    const bt_status s = bt_engine_external_import_state(peer->owner->engine, job->ticket, m.layer,
                                                        m.offset, m.data.size, m.data.data);
    job->report.import_ms += bt_clock_ms() - begin_ms;
    if (bt_handoff_job_imported(peer, job, s, "the state", m.layer)) {
        bt_transfer_receipt_enter_state(&job->ledger, &m, frame);
        bt_handoff_job_received(peer, job, frame, m.data.size);
    }
    return BT_OK;
}

/* ---- behind COMMIT ---- */

/* The last ones first: an edited message and the next turn part from a prompt near its end. */
void bt_handoff_job_set_borders(bt_handoff_job *job, const bt_prefill_job *from)
{
    for (uint32_t i = from->n_borders; i > 0 && job->n_borders < BT_WIRE_BORDERS_MAX; i--) {
        job->borders[job->n_borders++] = from->borders[i - 1];
    }
    job->snapshot = BT_HANDOFF_NONE;
}

static void close_snapshot(bt_handoff_peer *peer, bt_handoff_job *job, uint32_t n)
{
    if (job->snapshot != BT_HANDOFF_NONE) {
        bt_engine_snapshot_close(peer->owner->engine, job->snapshot, job->tenant, job->tokens,
                                 n);
        job->snapshot = BT_HANDOFF_NONE;
    }
}

static void end_keeper(bt_handoff_peer *peer, bt_handoff_job *job)
{
    bt_handoff_job **at = &peer->committed;
    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
    peer->n_committed--;
    close_snapshot(peer, job, 0);
    bt_handoff_job_destroy(job);
}

static void cancel_keeper(bt_handoff_peer *peer, bt_handoff_job *job, bt_status why)
{
    (void)pthread_mutex_lock(&peer->owner->lock);
    bt_handoff_job_send_cancel(peer, job->stream, why);
    (void)pthread_mutex_unlock(&peer->owner->lock);
    end_keeper(peer, job);
}

/* A keeper holds its prompt's tokens, an account and maybe a reserved snapshot, and nothing makes a
 * worker send what it owes. An honest one may be busy with later prompts for as long as there are
 * any, so what bounds keepers is a number and no deadline. The oldest gives way: it has had the
 * longest time. */
bool bt_handoff_keeper_take(bt_handoff_peer *peer, bt_handoff_job *job)
{
    if (job->n_borders == 0 || !peer->owner->state_bytes) {
        return false;
    }
    bt_transfer_receipt_next_states(&job->ledger);
    job->next = peer->committed;
    peer->committed = job;
    peer->n_committed++;
    if (peer->n_committed > BT_HANDOFF_KEEPERS_MAX) {
        bt_handoff_job *oldest = job;
        while (oldest->next) {
            oldest = oldest->next;
        }
        bt_log(BT_LOG_DEBUG, "checkpoints_abandoned", "worker=%s stream=%u done=%u/%u "
               "pending_max=%d", peer->address, oldest->stream,
               oldest->border, oldest->n_borders, (int)BT_HANDOFF_KEEPERS_MAX);
        cancel_keeper(peer, oldest, BT_E_FULL);
    }
    return true;
}

void bt_handoff_keepers_drop(bt_handoff_peer *peer)
{
    while (peer->committed) {
        end_keeper(peer, peer->committed);
    }
}

static bt_status take_part(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                           bt_error *err)
{
    bt_engine *engine = peer->owner->engine;
    bt_wire_state m;
    BT_TRY(bt_wire_state_decode(frame->body, frame->size, &m, err));
    BT_TRY(bt_transfer_receipt_check_state(&job->ledger, &m, job->borders[job->border], err));
    BT_TRY(bt_handoff_job_spend(job, frame->size, err));
    if (bt_transfer_receipt_states_none(&job->ledger) &&
        !bt_engine_snapshot_open(engine, &job->snapshot)) {
        job->snapshot = BT_HANDOFF_NONE;         /* no room: the bytes go nowhere */
    }
    if (job->snapshot != BT_HANDOFF_NONE) {
        bt_engine_snapshot_write(engine, job->snapshot, m.layer, m.offset, m.data.size,
                                 m.data.data);
    }
    bt_transfer_receipt_enter_state(&job->ledger, &m, frame);
    job->credit_owed += frame->size;
    bt_handoff_job_give_credit(peer, job);
    return BT_OK;
}

/* Closes a border: with all layers it is kept, with none the worker had not kept it. */
static bt_status take_chunk(bt_handoff_peer *peer, bt_handoff_job *job, const bt_frame *frame,
                            bt_error *err)
{
    bt_wire_chunk m;
    const uint32_t border = job->borders[job->border];
    BT_TRY(bt_wire_chunk_decode(frame->body, frame->size, &m, err));
    const bool whole = bt_transfer_receipt_states_whole(&job->ledger);
    if (m.position_end != border || (!whole && !bt_transfer_receipt_states_none(&job->ledger))) {
        return bt_fail(err, BT_E_PROTOCOL, "a chunk closes the state at %u, but that at %u is %s",
                       m.position_end, border, whole ? "whole" : "not whole");
    }
    BT_TRY(bt_wire_tally_check_chunk(job->ledger.tally, &m, err));
    close_snapshot(peer, job, whole ? border : 0);
    bt_transfer_receipt_next_states(&job->ledger);
    job->border++;
    return BT_OK;
}

bool bt_handoff_keeper_frame(bt_handoff_peer *peer, const bt_frame *frame)
{
    bt_handoff_job *job = peer->committed;
    while (job && job->stream != frame->stream) {
        job = job->next;
    }
    if (!job) {
        return false;
    }
    bt_error err = { 0 };
    bt_status s = BT_E_PROTOCOL;
    if (frame->type == BT_WIRE_STATE) {
        s = take_part(peer, job, frame, &err);
    } else if (frame->type == BT_WIRE_CHUNK) {
        s = take_chunk(peer, job, frame, &err);
    } else {
        (void)bt_fail(&err, s, "unexpected %s behind COMMIT", bt_wire_type_name(frame->type));
    }
    if (s != BT_OK) {
        (void)pthread_mutex_lock(&peer->owner->lock);
        peer->status.n_corrupt++;
        (void)pthread_mutex_unlock(&peer->owner->lock);
        bt_log(BT_LOG_WARN, "checkpoint_dropped", "worker=%s status=%s reason=%s",
               peer->address, bt_status_name(s), err.text);
        cancel_keeper(peer, job, s);
    } else if (job->border == job->n_borders) {
        end_keeper(peer, job);
    }
    return true;
}
