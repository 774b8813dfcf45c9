/* transfer/receipt.h - what has come of one prompt: the server's account of rows and states.
 *
 * Rows of a layer come in order and without gaps, and so do the parts of its state. When all
 * layers have reached a position and the running digests of both sides agree there (CHUNK, COMMIT),
 * everything below it is complete. Only complete positions may become part of a prefix.
 *
 * Lifetime: open to close; borrows the form. Threads: one at a time.
 * Failure:  open (memory); all others say BT_E_PROTOCOL with a sentence and change nothing.
 */
#ifndef BT_TRANSFER_RECEIPT_H
#define BT_TRANSFER_RECEIPT_H

#include "kv/codec.h"
#include "wire/frame.h"
#include "wire/tally.h"

typedef struct {
    const bt_kv_layout *layout;        /* borrowed, as is the form */
    const bt_kv_form *form;
    uint32_t       first, end;         /* positions of the prompt that are handed over */
    uint32_t       complete;           /* all layers below it are in and were agreed on */
    uint32_t      *next;               /* [n_layers] the position that the next rows must have */
    const uint64_t *state_bytes;       /* [n_layers] borrowed; NULL: no layer keeps a state */
    uint64_t      *state_next;         /* [n_layers] the offset that the next part must have */
    bt_wire_tally *tally;
} bt_transfer_receipt;

BT_MUST_CHECK bt_status bt_transfer_receipt_open(bt_transfer_receipt *r, const bt_kv_form *form,
                                                 const uint64_t *state_bytes, uint32_t stream,
                                                 const bt_wire_prefill *asked, bt_error *err);
void bt_transfer_receipt_close(bt_transfer_receipt *r);         /* a zeroed one is fine */

/* Whether these are the next rows of their layer, with the right sizes. */
BT_MUST_CHECK bt_status bt_transfer_receipt_check(const bt_transfer_receipt *r,
                                                  const bt_wire_rows *m, bt_error *err);
/* Enters rows that bt_transfer_receipt_check() allowed, and the frame that they came in. */
void bt_transfer_receipt_enter(bt_transfer_receipt *r, const bt_wire_rows *m,
                               const bt_frame *frame);
/* The same for a part of the state at `position`. */
BT_MUST_CHECK bt_status bt_transfer_receipt_check_state(const bt_transfer_receipt *r,
                                                        const bt_wire_state *m, uint32_t position,
                                                        bt_error *err);
void bt_transfer_receipt_enter_state(bt_transfer_receipt *r, const bt_wire_state *m,
                                     const bt_frame *frame);
/* Whether all states are whole, or (`none`) nothing of any has come. */
bool bt_transfer_receipt_states_whole(const bt_transfer_receipt *r);
bool bt_transfer_receipt_states_none(const bt_transfer_receipt *r);
/* From here on those of another position come. */
void bt_transfer_receipt_next_states(bt_transfer_receipt *r);
/* The worker's word for all rows below a position; moves `complete`. */
BT_MUST_CHECK bt_status bt_transfer_receipt_chunk(bt_transfer_receipt *r, const bt_wire_chunk *m,
                                                  bt_error *err);
/* The worker's last word. After BT_OK the prefix may be used. */
BT_MUST_CHECK bt_status bt_transfer_receipt_commit(bt_transfer_receipt *r, const bt_wire_commit *m,
                                                   bt_error *err);

#endif
