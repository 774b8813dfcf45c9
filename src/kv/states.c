/* One device buffer of slots: the first n_live belong to sequences, the others to snapshots. A
 * snapshot's key is the digest of its tokens and their number; 128 bits make a false match less
 * likely than a memory error. Looking for one hashes the prompt once per kept position, which is
 * microseconds per snapshot beside the seconds of prefill that it saves. */
#include "kv/states.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/digest.h"
#include "base/memory.h"

enum { ALIGNMENT = 64 };

typedef struct {
    bt_digest tokens;
    uint32_t  n;                       /* 0: free */
    uint64_t  used_at;                 /* of `clock` */
} snapshot;

struct bt_state_pool {
    bt_device      *device;
    bt_state_layout layout;
    uint8_t        *base;              /* host address of slot 0 */
    uint64_t        state_bytes;       /* without padding */
    uint32_t        n_live;
    bool           *taken;             /* [n_live] */
    snapshot       *snapshots;         /* [n_snapshots] slot n_live + index */
    uint32_t        n_snapshots, n_kept;
    uint64_t        clock;
};

static uint64_t conv_bytes(const bt_state_layer *y)
{
    return (uint64_t)y->conv_rows * y->conv_cols * sizeof(float);
}

static uint64_t delta_bytes(const bt_state_layer *y)
{
    return (uint64_t)y->n_heads * y->dk * y->dv * sizeof(float);
}

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bt_status lay_out(bt_state_pool *p, const bt_state_pool_options *o, bt_error *err)
{
    bt_state_layout *l = &p->layout;
    l->n_layers = o->n_layers;
    l->layers = bt_alloc_zero(BT_MEM_kv, o->n_layers, sizeof *l->layers);
    if (!l->layers) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the states of %u layers", o->n_layers);
    }
    for (uint32_t i = 0; i < o->n_layers; i++) {
        bt_state_layer *y = &l->layers[i];
        *y = o->layers[i];
        y->conv_offset = l->slot_bytes;
        y->delta_offset = y->conv_offset + aligned(conv_bytes(y));
        l->slot_bytes = y->delta_offset + aligned(delta_bytes(y));
        p->state_bytes += conv_bytes(y) + delta_bytes(y);
    }
    BT_ASSERT(l->slot_bytes > 0);
    return BT_OK;
}

static bt_status allocate(bt_state_pool *p, const bt_state_pool_options *o, bt_error *err)
{
    bt_state_layout *l = &p->layout;
    const uint64_t n_snapshots = o->snapshot_bytes_max / l->slot_bytes;
    p->n_live = o->n_live;
    p->n_snapshots = n_snapshots < UINT16_MAX ? (uint32_t)n_snapshots : UINT16_MAX;
    l->n_slots = p->n_live + p->n_snapshots;
    p->taken = bt_alloc_zero(BT_MEM_kv, p->n_live, sizeof *p->taken);
    p->snapshots = bt_alloc_zero(BT_MEM_kv, p->n_snapshots, sizeof *p->snapshots);
    if (!p->taken || !p->snapshots) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the table of %u states", l->n_slots);
    }
    size_t total;
    if (!bt_size_mul(l->slot_bytes, l->n_slots, &total)) {
        return bt_fail(err, BT_E_NOMEM, "%u states of %" PRIu64 " bytes do not fit an address "
                       "space", l->n_slots, l->slot_bytes);
    }
    BT_TRY(bt_device_buffer_alloc(p->device, total, &l->buffer, err));
    p->base = bt_device_map(p->device, l->buffer);
    if (!p->base) {
        return bt_fail(err, BT_E_UNSUPPORTED, "device %s keeps recurrent states out of reach",
                       bt_device_name(p->device));
    }
    return BT_OK;
}

bt_status bt_state_pool_create(bt_device *device, const bt_state_pool_options *o,
                               bt_state_pool **ret_pool, bt_error *err)
{
    BT_ASSERT(device && o && ret_pool);
    BT_ASSERT(o->n_live > 0 && o->n_layers > 0);
    bt_state_pool *p = bt_alloc_zero(BT_MEM_kv, 1, sizeof *p);
    if (!p) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the pool of recurrent states");
    }
    p->device = device;
    bt_status status = lay_out(p, o, err);
    if (status == BT_OK) {
        status = allocate(p, o, err);
    }
    if (status != BT_OK) {
        bt_state_pool_destroy(p);
        return status;
    }
    *ret_pool = p;
    return BT_OK;
}

void bt_state_pool_destroy(bt_state_pool *p)
{
    if (!p) {
        return;
    }
    for (uint32_t i = 0; p->taken && i < p->n_live; i++) {
        BT_ASSERT(!p->taken[i]);
    }
    if (p->layout.buffer.id != 0) {
        bt_device_buffer_free(p->device, p->layout.buffer);
    }
    bt_free(p->layout.layers);
    bt_free(p->taken);
    bt_free(p->snapshots);
    bt_free(p);
}

const bt_state_layout *bt_state_pool_layout(const bt_state_pool *p)
{
    return &p->layout;
}

uint64_t bt_state_bytes(const bt_state_pool *p)
{
    return p->state_bytes;
}

uint64_t bt_state_layer_bytes(const bt_state_pool *p, uint32_t layer)
{
    BT_ASSERT(layer < p->layout.n_layers);
    const bt_state_layer *y = &p->layout.layers[layer];
    return conv_bytes(y) + delta_bytes(y);
}

/* ---- slots of sequences ---- */

static uint8_t *slot_at(const bt_state_pool *p, uint32_t slot)
{
    BT_ASSERT(slot < p->layout.n_slots);
    return p->base + slot * p->layout.slot_bytes;
}

bt_status bt_state_take(bt_state_pool *p, uint32_t *ret_slot)
{
    for (uint32_t i = 0; i < p->n_live; i++) {
        if (!p->taken[i]) {
            p->taken[i] = true;
            bt_state_zero(p, i);
            *ret_slot = i;
            return BT_OK;
        }
    }
    return BT_E_FULL;
}

void bt_state_give(bt_state_pool *p, uint32_t slot)
{
    BT_ASSERT(slot < p->n_live);
    BT_ASSERT(p->taken[slot]);
    p->taken[slot] = false;
}

void bt_state_zero(bt_state_pool *p, uint32_t slot)
{
    memset(slot_at(p, slot), 0, p->layout.slot_bytes);
}

/* ---- snapshots ---- */

static bt_digest digest_of(const uint32_t *tokens, uint32_t n)
{
    return bt_digest_of(tokens, (size_t)n * sizeof *tokens);
}

static snapshot *exact(const bt_state_pool *p, const bt_digest *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        snapshot *s = &p->snapshots[i];
        if (s->n == n && bt_digest_equal(&s->tokens, tokens)) {
            return s;
        }
    }
    return NULL;
}

static snapshot *least_recent(const bt_state_pool *p)
{
    snapshot *oldest = NULL;
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        snapshot *s = &p->snapshots[i];
        if (s->n == 0) {
            return s;
        }
        if (!oldest || s->used_at < oldest->used_at) {
            oldest = s;
        }
    }
    return oldest;
}

static uint32_t slot_of(const bt_state_pool *p, const snapshot *s)
{
    return p->n_live + (uint32_t)(s - p->snapshots);
}

bool bt_snapshot_keep(bt_state_pool *p, uint32_t slot, const uint32_t *tokens, uint32_t n)
{
    BT_ASSERT(slot < p->n_live);
    if (p->n_snapshots == 0 || n == 0) {
        return false;
    }
    const bt_digest digest = digest_of(tokens, n);
    snapshot *s = exact(p, &digest, n);
    if (!s) {
        s = least_recent(p);
        p->n_kept += s->n == 0;
        s->tokens = digest;
        s->n = n;
        memcpy(slot_at(p, slot_of(p, s)), slot_at(p, slot), p->layout.slot_bytes);
    }
    s->used_at = ++p->clock;
    return true;
}

/* Every kept position at or below n_max is tried, the largest first. */
static snapshot *longest(const bt_state_pool *p, const uint32_t *tokens, uint32_t n_max)
{
    uint32_t below = n_max;
    while (below > 0) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->n_snapshots; i++) {
            if (p->snapshots[i].n <= below && p->snapshots[i].n > n) {
                n = p->snapshots[i].n;
            }
        }
        if (n == 0) {
            return NULL;
        }
        const bt_digest digest = digest_of(tokens, n);
        snapshot *s = exact(p, &digest, n);
        if (s) {
            return s;
        }
        below = n - 1;
    }
    return NULL;
}

uint32_t bt_snapshot_find(const bt_state_pool *p, const uint32_t *tokens, uint32_t n_max)
{
    const snapshot *s = longest(p, tokens, n_max);
    return s ? s->n : 0;
}

uint32_t bt_snapshot_restore(bt_state_pool *p, uint32_t slot, const uint32_t *tokens,
                             uint32_t n_max)
{
    BT_ASSERT(slot < p->n_live);
    snapshot *s = longest(p, tokens, n_max);
    if (!s) {
        bt_state_zero(p, slot);
        return 0;
    }
    memcpy(slot_at(p, slot), slot_at(p, slot_of(p, s)), p->layout.slot_bytes);
    s->used_at = ++p->clock;
    return s->n;
}

void bt_snapshot_drop_all(bt_state_pool *p)
{
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        p->snapshots[i] = (snapshot){ 0 };
    }
    p->n_kept = 0;
}

uint32_t bt_snapshot_count(const bt_state_pool *p)
{
    return p->n_kept;
}

uint64_t bt_snapshot_bytes(const bt_state_pool *p)
{
    return p->n_kept * p->layout.slot_bytes;
}

/* ---- canonical layout ---- */

void bt_state_import(bt_state_pool *p, uint32_t slot, uint32_t layer, const void *from)
{
    const bt_state_layer *y = &p->layout.layers[layer];
    const uint8_t *bytes = from;
    BT_ASSERT(layer < p->layout.n_layers);
    memcpy(slot_at(p, slot) + y->conv_offset, bytes, conv_bytes(y));
    memcpy(slot_at(p, slot) + y->delta_offset, bytes + conv_bytes(y), delta_bytes(y));
}

void bt_state_export(const bt_state_pool *p, uint32_t slot, uint32_t layer, void *to)
{
    const bt_state_layer *y = &p->layout.layers[layer];
    uint8_t *bytes = to;
    BT_ASSERT(layer < p->layout.n_layers);
    memcpy(bytes, slot_at(p, slot) + y->conv_offset, conv_bytes(y));
    memcpy(bytes + conv_bytes(y), slot_at(p, slot) + y->delta_offset, delta_bytes(y));
}
