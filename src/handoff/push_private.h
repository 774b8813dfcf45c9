/* handoff/push_private.h - what push.c and push_state.c share.
 *
 * The guest's lock is held for all but unqueue, take_borders and unpin. */
#ifndef BT_HANDOFF_PUSH_PRIVATE_H
#define BT_HANDOFF_PUSH_PRIVATE_H

#include "handoff/worker_private.h"

/* ---- push.c ---- */
void bt_handoff_push_unqueue(bt_handoff_push *u);      /* a bulk frame of it was sent or dropped */
uint64_t bt_handoff_push_cache_key(const bt_handoff_push *u);
/* A CHUNK for `position`, entered as queued. */
bt_piece_kind bt_handoff_push_next_chunk(bt_handoff_push *u, uint32_t position, bt_bulk *ret_bulk);

/* ---- push_state.c ---- */
bt_status bt_handoff_push_take_borders(bt_handoff_push *u, bt_wire_ids borders, bt_error *err);
void bt_handoff_push_unpin(bt_handoff_push *u);        /* no bulk frame is queued any more */
/* Bytes of the present layer's state that are still to be sent. */
uint64_t bt_handoff_push_state_left(const bt_handoff_push *u);
bt_piece_kind bt_handoff_push_next_state(bt_handoff_push *u, bt_bulk *ret_bulk);
bt_piece_kind bt_handoff_push_next_snapshot(bt_handoff_push *u, bt_bulk *ret_bulk);

#endif
