/* kv/states.h - recurrent states: a slot per sequence, and copies kept at chosen positions.
 *
 * A layer that does not keep rows keeps a state: a list of tensors (ops/step.h), always f32. It
 * sums up all tokens up to the last one evaluated and cannot be rolled back, so to continue
 * anywhere else one needs a copy that was taken there: a snapshot. A slot holds all layers of one
 * sequence; a snapshot is a slot that belongs to this pool and is known by the tokens that led to
 * it.
 *
 * Lifetime: create to destroy; borrows the device.
 * Threads:  slots belong to the engine thread, and so does what a sequence does with snapshots
 *           (keep, find, restore, drop_all). A slot that was reserved or pinned, or that the engine
 *           has set aside for a stream, may be imported to and exported from by one other thread;
 *           reserve, publish, pin, unpin and the counts may be called from any.
 * Failure:  create and take. Nothing allocates after create.
 */
#ifndef BT_KV_STATES_H
#define BT_KV_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

typedef struct bt_state_pool bt_state_pool;

typedef struct {
    uint32_t               n_layers;
    const bt_state_layer  *layers;     /* [n_layers] shapes; offsets are filled in by the pool */
    uint32_t               n_live;     /* sequences at once */
    uint64_t               snapshot_bytes_max;
} bt_state_pool_options;

enum { BT_SNAPSHOTS_MAX = UINT16_MAX };     /* whatever snapshot_bytes_max allows */

/* Memory of one state of these layers, with padding: what snapshot_bytes_max is divided by. */
uint64_t bt_kv_state_slot_bytes(const bt_state_layer *layers, uint32_t n_layers);

BT_MUST_CHECK bt_status bt_kv_state_pool_create(bt_device *device, const bt_state_pool_options *o,
                                                bt_state_pool **ret_pool, bt_error *err);
void bt_kv_state_pool_destroy(bt_state_pool *p);           /* NULL is fine */

const bt_state_layout *bt_kv_state_pool_layout(const bt_state_pool *p);
uint64_t bt_kv_state_bytes(const bt_state_pool *p);        /* of one sequence, all layers */
uint64_t bt_kv_state_layer_bytes(const bt_state_pool *p, uint32_t layer);   /* 0: keeps none */

/* A zeroed slot; BT_E_FULL when n_live are taken. */
BT_MUST_CHECK bt_status bt_kv_state_take(bt_state_pool *p, uint32_t *ret_slot);
void bt_kv_state_give(bt_state_pool *p, uint32_t slot);
void bt_kv_state_zero(bt_state_pool *p, uint32_t slot);    /* as before the first token */

/* `to` becomes what `from` is. */
void bt_kv_state_copy(bt_state_pool *p, uint32_t to, uint32_t from);

/* As in kv/prefix.h, only equal keys share what is kept. */

/* Keeps a copy of `slot` as the state after tokens[0, n), in place of the one used least recently
 * when room is short. False when there is no room at all. */
bool bt_kv_snapshot_keep(bt_state_pool *p, uint32_t slot, uint64_t key, const uint32_t *tokens,
                         uint32_t n);
/* The largest n <= n_max at which a snapshot of these tokens is kept; 0: none. */
uint32_t bt_kv_snapshot_find(bt_state_pool *p, uint64_t key, const uint32_t *tokens,
                             uint32_t n_max);
/* Puts that snapshot's state into `slot` and returns its n; 0: none, and `slot` is zeroed. */
uint32_t bt_kv_snapshot_restore(bt_state_pool *p, uint32_t slot, uint64_t key,
                                const uint32_t *tokens, uint32_t n_max);
void     bt_kv_snapshot_drop_all(bt_state_pool *p);        /* but those reserved or pinned */
uint32_t bt_kv_snapshot_count(bt_state_pool *p);
uint64_t bt_kv_snapshot_bytes(bt_state_pool *p);           /* in use; at most snapshot_bytes_max */

/* A snapshot from elsewhere: reserve its slot, import all layers, publish it as the state after
 * tokens[0, n); n = 0 gives the slot back. False when there is no room. */
bool bt_kv_snapshot_reserve(bt_state_pool *p, uint32_t *ret_slot);
void bt_kv_snapshot_publish(bt_state_pool *p, uint32_t slot, uint64_t key, const uint32_t *tokens,
                            uint32_t n);
/* A snapshot to be exported: pinned, it stays until it is unpinned. False when there is none at
 * exactly n. */
bool bt_kv_snapshot_pin(bt_state_pool *p, uint64_t key, const uint32_t *tokens, uint32_t n,
                        uint32_t *ret_slot);
void bt_kv_snapshot_unpin(bt_state_pool *p, uint32_t slot);

/* Bytes [offset, offset + size) of one layer's state in the canonical layout: its tensors one after
 * the other, without padding; bt_kv_state_layer_bytes() bytes in all. */
void bt_kv_state_import(bt_state_pool *p, uint32_t slot, uint32_t layer, uint64_t offset,
                        uint64_t size, const void *from);
void bt_kv_state_export(const bt_state_pool *p, uint32_t slot, uint32_t layer, uint64_t offset,
                        uint64_t size, void *to);

#endif
