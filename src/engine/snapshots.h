/* engine/snapshots.h - snapshots of recurrent states, to and from elsewhere.
 *
 * A second turn begins where a snapshot is, so whoever takes over a prompt's rows wants the
 * snapshots too. One side pins a snapshot and exports it; the other opens one, writes all layers
 * and closes it. The cache key says who may find it, as for requests. Layers are numbered as in the
 * model; a layer's bytes are those of kv/states.h.
 *
 * Lifetime: pinned ones are unpinned and open ones are closed before the engine's end.
 * Threads:  any; a snapshot that is pinned or open belongs to who did it.
 * Failure:  none but "there is none" and "there is no room".
 */
#ifndef BT_ENGINE_SNAPSHOTS_H
#define BT_ENGINE_SNAPSHOTS_H

#include "engine/engine.h"

/* Bytes of the state that `layer` keeps per sequence (0: none), and of all layers. */
uint64_t bt_engine_state_layer_bytes(const bt_engine *e, uint32_t layer);
uint64_t bt_engine_state_bytes(const bt_engine *e);

/* The state after tokens[0, n), which stays until it is unpinned; false: it is not kept. */
bool bt_engine_snapshot_pin(bt_engine *e, uint64_t cache_key, const uint32_t *tokens, uint32_t n,
                            uint32_t *ret_snapshot);
void bt_engine_snapshot_export(const bt_engine *e, uint32_t snapshot, uint32_t layer,
                               uint64_t offset, uint64_t size, void *ret_data);
void bt_engine_snapshot_unpin(bt_engine *e, uint32_t snapshot);

/* Room for one from elsewhere; false: none. Closing makes it the state after tokens[0, n); with
 * n = 0 it is given up. */
bool bt_engine_snapshot_open(bt_engine *e, uint32_t *ret_snapshot);
void bt_engine_snapshot_write(bt_engine *e, uint32_t snapshot, uint32_t layer, uint64_t offset,
                              uint64_t size, const void *data);
void bt_engine_snapshot_close(bt_engine *e, uint32_t snapshot, uint64_t cache_key,
                              const uint32_t *tokens, uint32_t n);

#endif
