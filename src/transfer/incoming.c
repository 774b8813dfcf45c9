/* transfer/incoming.c - see incoming.h. */
#include "transfer/incoming.h"

bt_transfer_frame bt_transfer_incoming_kind(const bt_frame *frame)
{
    switch (frame->type) {
    case BT_WIRE_ROWS:      return BT_TRANSFER_FRAME_ROWS;
    case BT_WIRE_STATE:     return BT_TRANSFER_FRAME_STATE;
    case BT_WIRE_CHUNK:     return BT_TRANSFER_FRAME_CHUNK;
    case BT_WIRE_COMMIT:    return BT_TRANSFER_FRAME_COMMIT;
    case BT_WIRE_ERROR:     return BT_TRANSFER_FRAME_ERROR;
    case BT_WIRE_CANCELLED: return BT_TRANSFER_FRAME_CANCELLED;
    default:                return BT_TRANSFER_FRAME_OTHER;
    }
}

static bt_status check_credit(const bt_transfer_client *c, uint32_t size, bt_error *err)
{
    return size <= c->credit_left
            ? BT_OK : bt_fail(err, BT_E_PROTOCOL, "%u bytes of rows or states with credit for %llu",
                              size, (unsigned long long)c->credit_left);
}

/* Of a checkpoint: all of it has come, or nothing, as the worker had not kept it. */
static bt_status check_checkpoint(const bt_transfer_receipt *r, uint32_t position,
                                  const bt_wire_chunk *m, bt_error *err)
{
    const bool whole = bt_transfer_receipt_states_whole(r);
    if (m->position_end != position || (!whole && !bt_transfer_receipt_states_none(r))) {
        return bt_fail(err, BT_E_PROTOCOL, "a chunk closes the state at %u, but that at %u is %s",
                       m->position_end, position, whole ? "whole" : "not whole");
    }
    return bt_wire_tally_check_chunk(r->tally, m, err);
}

bt_status bt_transfer_incoming_read(const bt_transfer_client *c, bt_transfer_receipt *r,
                                    uint32_t position, const bt_frame *frame,
                                    bt_transfer_message *ret_message, bt_error *err)
{
    bt_transfer_message *m = ret_message;
    switch (frame->type) {
    case BT_WIRE_ROWS:
        BT_TRY(bt_wire_rows_decode(frame->body, frame->size, &m->rows, err));
        BT_TRY(bt_transfer_receipt_check(r, &m->rows, err));
        return check_credit(c, frame->size, err);
    case BT_WIRE_STATE:
        BT_TRY(bt_wire_state_decode(frame->body, frame->size, &m->state, err));
        BT_TRY(bt_transfer_receipt_check_state(r, &m->state, position, err));
        return check_credit(c, frame->size, err);
    case BT_WIRE_CHUNK:
        BT_TRY(bt_wire_chunk_decode(frame->body, frame->size, &m->chunk, err));
        return c->state == BT_TRANSFER_CLIENT_PENDING
                ? check_checkpoint(r, position, &m->chunk, err)
                : bt_transfer_receipt_chunk(r, &m->chunk, err);
    case BT_WIRE_COMMIT:
        BT_TRY(bt_wire_commit_decode(frame->body, frame->size, &m->commit, err));
        return bt_transfer_receipt_commit(r, &m->commit, err);
    default:
        return BT_OK;
    }
}

bt_status bt_transfer_incoming_error(const bt_frame *frame, const char *what, bt_error *err)
{
    bt_wire_error m;
    char sentence[200];
    BT_TRY(bt_wire_error_decode(frame->body, frame->size, &m, err));
    (void)bt_wire_text_copy(m.sentence, sentence, sizeof sentence);
    const bt_status status = bt_status_from_wire(m.status);
    return bt_fail(err, status == BT_OK || status == BT_E_AGAIN ? BT_E_PROTOCOL : status, "%s%s",
                   what, sentence);
}
