/* transfer/incoming.h - a frame of a prompt's stream as the server reads it: what it says, and
 * whether that is what the receipt expects.
 *
 * Lifetime: a message borrows the frame's body. Threads: one at a time for each prompt.
 * Failure:  BT_E_PROTOCOL with a sentence; the receipt is as it was.
 */
#ifndef BT_TRANSFER_INCOMING_H
#define BT_TRANSFER_INCOMING_H

#include "transfer/client.h"
#include "transfer/receipt.h"

typedef union {
    bt_wire_rows   rows;
    bt_wire_state  state;
    bt_wire_chunk  chunk;
    bt_wire_commit commit;
} bt_transfer_message;

bt_transfer_frame bt_transfer_incoming_kind(const bt_frame *frame);

/* Of a prompt that is sent or pending, whose state at `position` comes now (its end, or the next
 * checkpoint). CHUNK and COMMIT that hold move the receipt on; rows and states do not. Frames that
 * are none of these hold. */
BT_MUST_CHECK bt_status bt_transfer_incoming_read(const bt_transfer_client *c,
                                                  bt_transfer_receipt *r, uint32_t position,
                                                  const bt_frame *frame,
                                                  bt_transfer_message *ret_message, bt_error *err);

/* What an ERROR says, as a failure with `what` before its sentence. Never BT_OK or BT_E_AGAIN,
 * which to a caller that waits would mean that nothing has happened. */
bt_status bt_transfer_incoming_error(const bt_frame *frame, const char *what, bt_error *err);

#endif
