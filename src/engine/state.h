/* engine/state.h - recurrent states, as the files of the engine use them.
 *
 * state.c says where snapshots are taken. Where the model keeps no states, all of it does nothing
 * and says yes.
 *
 * Threads: the engine's. Failure: create only.
 */
#ifndef BT_ENGINE_STATE_H
#define BT_ENGINE_STATE_H

#include "engine/private.h"
#include "engine/snapshots.h"

bt_status bt_engine_states_create(bt_engine *e, bt_error *err);
/* How much of a known beginning of n tokens can be used. */
uint32_t bt_engine_state_usable(const bt_engine *e, const bt_request *r, uint32_t n);
/* Where r's next step has to end at the latest: at most n_prefill. */
uint32_t bt_engine_state_next_cut(const bt_engine *e, const bt_request *r);
/* The last positions below `end` at which r would leave snapshots were it prefilled here from where
 * it is, ascending; at most n_max, and no more than there is room for. Gives how many. */
uint32_t bt_engine_state_planned(const bt_engine *e, const bt_request *r, uint32_t end,
                                 uint32_t n_max, uint32_t *ret_positions);
/* How much of its first n tokens r, which is being prefilled, will leave for others; r is cut
 * there for them. */
uint32_t bt_engine_state_shared_up_to(const bt_engine *e, bt_request *r, uint32_t n);
/* r came from position `from` to n_done: a snapshot, if one is due there. */
void bt_engine_state_advanced(bt_engine *e, bt_request *r, uint32_t from);
void bt_engine_state_keep(bt_engine *e, bt_request *r);       /* a snapshot at n_done */

#endif
