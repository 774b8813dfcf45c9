/* wire/tally.h - the running digest of a stream, kept the same way on both ends.
 *
 * It takes in what PREFILL agreed on (nonce, epoch, stream, range) and then, in the order sent,
 * type, size and the 64-bit hash of the body of every ROWS and STATE frame: the hash that the link
 * has computed anyway (bt_frame.hash, bt_link_source.sealed), so bodies are read once. CHUNK and
 * COMMIT carry its value; rows count only when the receiver's own tally says the same, so a frame
 * lost, repeated, damaged, out of order or from another prompt is always noticed.
 *
 * Lifetime: open to close. Threads: one at a time (sender: the seal callbacks; receiver: its
 * reader). Failure: open only (BT_E_NOMEM).
 */
#ifndef BT_WIRE_TALLY_H
#define BT_WIRE_TALLY_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "wire/codec.h"

typedef struct bt_wire_tally bt_wire_tally;

BT_MUST_CHECK bt_status bt_wire_tally_open(uint32_t stream, const bt_wire_prefill *prefill,
                                           bt_wire_tally **ret_tally, bt_error *err);
void      bt_wire_tally_close(bt_wire_tally *t);                /* NULL is fine */
/* `type` is BT_WIRE_ROWS or BT_WIRE_STATE. */
void      bt_wire_tally_put(bt_wire_tally *t, uint16_t type, uint32_t size, uint64_t hash);
uint64_t  bt_wire_tally_frames(const bt_wire_tally *t);
uint64_t  bt_wire_tally_bytes(const bt_wire_tally *t);          /* bodies */
bt_digest bt_wire_tally_value(const bt_wire_tally *t);

/* The receiver's judgement. BT_E_PROTOCOL names what differs and both values. */
BT_MUST_CHECK bt_status bt_wire_tally_check_chunk(const bt_wire_tally *t, const bt_wire_chunk *m,
                                                  bt_error *err);
BT_MUST_CHECK bt_status bt_wire_tally_check_commit(const bt_wire_tally *t, const bt_wire_commit *m,
                                                   bt_error *err);

#endif
