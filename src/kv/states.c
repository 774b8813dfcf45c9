/* One device buffer of slots: the first n_live belong to sequences, the others to snapshots. A
 * snapshot's name is the digest of its key and tokens, and their number; 128 bits make a false
 * match less likely than a memory error. Looking for one hashes the prompt once per kept position,
 * which is microseconds per snapshot beside the seconds of prefill that it saves. */
#include "kv/states.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/digest.h"
#include "base/memory.h"

enum { ALIGNMENT = 64 };

typedef struct {
    bt_digest tokens;
    uint32_t  n;                       /* 0: free, or reserved */
    uint32_t  n_pins;                  /* it must stay; a reserved one has one */
    uint64_t  used_at;                 /* of `clock` */
} snapshot;

struct bt_state_pool {
    bt_device      *device;
    bt_state_layout layout;
    uint64_t        state_bytes;       /* without padding */
    uint32_t        n_live;
    bool           *taken;             /* [n_live] */
    pthread_mutex_t lock;              /* guards all below */
    snapshot       *snapshots;         /* [n_snapshots] slot n_live + index */
    uint32_t        n_snapshots, n_kept;
    uint64_t        clock;
};

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t bytes_of(const bt_state_layer *y)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < y->n_tensors; i++) {
        sum += bt_ops_state_tensor_bytes(&y->tensors[i]);
    }
    return sum;
}

uint64_t bt_kv_state_slot_bytes(const bt_state_layer *layers, uint32_t n_layers)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        for (uint32_t j = 0; j < layers[i].n_tensors; j++) {
            sum += aligned(bt_ops_state_tensor_bytes(&layers[i].tensors[j]));
        }
    }
    return sum;
}

static bt_status lay_out(bt_state_pool *p, const bt_state_pool_options *o, bt_error *err)
{
    bt_state_layout *l = &p->layout;
    l->n_layers = o->n_layers;
    l->layers = bt_alloc_zero(BT_MEM_kv, o->n_layers, sizeof *l->layers);
    if (!l->layers) {
        return bt_fail_nomem(err, o->n_layers * sizeof *l->layers, "the layout of states");
    }
    for (uint32_t i = 0; i < o->n_layers; i++) {
        bt_state_layer *y = &l->layers[i];
        *y = o->layers[i];
        for (uint32_t j = 0; j < y->n_tensors; j++) {
            y->tensors[j].offset = l->slot_bytes;
            l->slot_bytes += aligned(bt_ops_state_tensor_bytes(&y->tensors[j]));
        }
        p->state_bytes += bytes_of(y);
    }
    BT_ASSERT(l->slot_bytes > 0);
    return BT_OK;
}

static bt_status allocate(bt_state_pool *p, const bt_state_pool_options *o, bt_error *err)
{
    bt_state_layout *l = &p->layout;
    const uint64_t n_snapshots = o->snapshot_bytes_max / l->slot_bytes;
    p->n_live = o->n_live;
    p->n_snapshots = n_snapshots < BT_SNAPSHOTS_MAX ? (uint32_t)n_snapshots : BT_SNAPSHOTS_MAX;
    l->n_slots = p->n_live + p->n_snapshots;
    p->taken = bt_alloc_zero(BT_MEM_kv, p->n_live, sizeof *p->taken);
    p->snapshots = bt_alloc_zero(BT_MEM_kv, p->n_snapshots, sizeof *p->snapshots);
    if (!p->taken || !p->snapshots) {
        return bt_fail_nomem(err, l->n_slots * sizeof *p->snapshots, "the table of states");
    }
    size_t total;
    if (!bt_size_mul(l->slot_bytes, l->n_slots, &total)) {
        return bt_fail(err, BT_E_NOMEM, "%u states of %" PRIu64 " bytes do not fit an address "
                       "space", l->n_slots, l->slot_bytes);
    }
    bt_error why = { .text = "" };
    const bt_status status = bt_device_buffer_alloc(p->device, total, &l->buffer, &why);
    if (status != BT_OK) {
        return bt_fail(err, status, "recurrent states, %u for sequences and %u snapshots: %s; "
                       "--snapshot-bytes and --parallel bound them", p->n_live, p->n_snapshots,
                       why.text);
    }
    return BT_OK;
}

bt_status bt_kv_state_pool_create(bt_device *device, const bt_state_pool_options *o,
                                  bt_state_pool **ret_pool, bt_error *err)
{
    BT_ASSERT(device && o && ret_pool);
    BT_ASSERT(o->n_live > 0 && o->n_layers > 0);
    bt_state_pool *p = bt_alloc_zero(BT_MEM_kv, 1, sizeof *p);
    if (!p) {
        return bt_fail_nomem(err, sizeof *p, "a pool of recurrent states");
    }
    p->device = device;
    pthread_mutex_init(&p->lock, NULL);
    bt_status status = lay_out(p, o, err);
    if (status == BT_OK) {
        status = allocate(p, o, err);
    }
    if (status != BT_OK) {
        bt_kv_state_pool_destroy(p);
        return status;
    }
    *ret_pool = p;
    return BT_OK;
}

void bt_kv_state_pool_destroy(bt_state_pool *p)
{
    if (!p) {
        return;
    }
    for (uint32_t i = 0; p->taken && i < p->n_live; i++) {
        BT_ASSERT(!p->taken[i]);
    }
    for (uint32_t i = 0; p->snapshots && i < p->n_snapshots; i++) {
        BT_ASSERT(p->snapshots[i].n_pins == 0);
    }
    if (p->layout.buffer.id != 0) {
        bt_device_buffer_free(p->device, p->layout.buffer);
    }
    bt_free(p->layout.layers);
    bt_free(p->taken);
    bt_free(p->snapshots);
    pthread_mutex_destroy(&p->lock);
    bt_free(p);
}

const bt_state_layout *bt_kv_state_pool_layout(const bt_state_pool *p)
{
    return &p->layout;
}

uint64_t bt_kv_state_bytes(const bt_state_pool *p)
{
    return p->state_bytes;
}

uint64_t bt_kv_state_layer_bytes(const bt_state_pool *p, uint32_t layer)
{
    BT_ASSERT(layer < p->layout.n_layers);
    return bytes_of(&p->layout.layers[layer]);
}

/* ---- slots of sequences ---- */

/* Where a slot begins in the buffer. */
static uint64_t slot_at(const bt_state_pool *p, uint32_t slot)
{
    BT_ASSERT(slot < p->layout.n_slots);
    return slot * p->layout.slot_bytes;
}

bt_status bt_kv_state_take(bt_state_pool *p, uint32_t *ret_slot)
{
    for (uint32_t i = 0; i < p->n_live; i++) {
        if (!p->taken[i]) {
            p->taken[i] = true;
            bt_kv_state_zero(p, i);
            *ret_slot = i;
            return BT_OK;
        }
    }
    return BT_E_FULL;
}

void bt_kv_state_give(bt_state_pool *p, uint32_t slot)
{
    BT_ASSERT(slot < p->n_live);
    BT_ASSERT(p->taken[slot]);
    p->taken[slot] = false;
}

void bt_kv_state_zero(bt_state_pool *p, uint32_t slot)
{
    bt_device_buffer_fill(p->device, p->layout.buffer, slot_at(p, slot), 0, p->layout.slot_bytes);
}

void bt_kv_state_copy(bt_state_pool *p, uint32_t to, uint32_t from)
{
    if (to != from) {
        bt_device_buffer_copy(p->device, p->layout.buffer, slot_at(p, to), slot_at(p, from),
                              p->layout.slot_bytes);
    }
}

/* ---- snapshots: the table, under its lock ---- */

static bt_digest digest_of(uint64_t key, const uint32_t *tokens, uint32_t n)
{
    const struct { bt_digest tokens; uint64_t key; } whose = {
        .tokens = bt_digest_of(tokens, (size_t)n * sizeof *tokens), .key = key,
    };
    _Static_assert(sizeof whose == sizeof(bt_digest) + sizeof(uint64_t), "no padding");
    return bt_digest_of(&whose, sizeof whose);
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

/* A free one, else the one used longest ago that nobody holds, emptied; NULL: none. */
static snapshot *make_room(bt_state_pool *p)
{
    snapshot *oldest = NULL;
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        snapshot *s = &p->snapshots[i];
        if (s->n_pins > 0) {
            continue;
        }
        if (s->n == 0) {
            return s;
        }
        if (!oldest || s->used_at < oldest->used_at) {
            oldest = s;
        }
    }
    if (oldest) {
        oldest->n = 0;
        p->n_kept--;
    }
    return oldest;
}

static void enter(bt_state_pool *p, snapshot *s, const bt_digest *tokens, uint32_t n)
{
    s->tokens = *tokens;
    s->n = n;
    s->used_at = ++p->clock;
    p->n_kept++;
}

static uint32_t slot_of(const bt_state_pool *p, const snapshot *s)
{
    return p->n_live + (uint32_t)(s - p->snapshots);
}

static snapshot *snapshot_at(const bt_state_pool *p, uint32_t slot)
{
    BT_ASSERT(slot >= p->n_live && slot < p->layout.n_slots);
    return &p->snapshots[slot - p->n_live];
}

/* Every kept position at or below n_max is tried, the largest first. */
static snapshot *longest(const bt_state_pool *p, uint64_t key, const uint32_t *tokens,
                         uint32_t n_max)
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
        const bt_digest digest = digest_of(key, tokens, n);
        snapshot *s = exact(p, &digest, n);
        if (s) {
            return s;
        }
        below = n - 1;
    }
    return NULL;
}

/* ---- snapshots: what others call. States are copied without the lock, under a pin. ---- */

static void unpin(bt_state_pool *p, snapshot *s)
{
    pthread_mutex_lock(&p->lock);
    BT_ASSERT(s->n_pins > 0);
    s->n_pins--;
    pthread_mutex_unlock(&p->lock);
}

bool bt_kv_snapshot_keep(bt_state_pool *p, uint32_t slot, uint64_t key, const uint32_t *tokens,
                         uint32_t n)
{
    BT_ASSERT(slot < p->n_live);
    if (p->n_snapshots == 0 || n == 0) {
        return false;
    }
    const bt_digest digest = digest_of(key, tokens, n);
    pthread_mutex_lock(&p->lock);
    snapshot *s = exact(p, &digest, n);
    if (s) {
        s->used_at = ++p->clock;
        pthread_mutex_unlock(&p->lock);
        return true;
    }
    s = make_room(p);
    if (s) {
        s->n_pins = 1;
    }
    pthread_mutex_unlock(&p->lock);
    if (s) {
        bt_kv_state_copy(p, slot_of(p, s), slot);
        bt_kv_snapshot_publish(p, slot_of(p, s), key, tokens, n);
    }
    return s != NULL;
}

uint32_t bt_kv_snapshot_find(bt_state_pool *p, uint64_t key, const uint32_t *tokens, uint32_t n_max)
{
    pthread_mutex_lock(&p->lock);
    const snapshot *s = longest(p, key, tokens, n_max);
    const uint32_t n = s ? s->n : 0;
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint32_t bt_kv_snapshot_restore(bt_state_pool *p, uint32_t slot, uint64_t key,
                                const uint32_t *tokens, uint32_t n_max)
{
    BT_ASSERT(slot < p->n_live);
    pthread_mutex_lock(&p->lock);
    snapshot *s = longest(p, key, tokens, n_max);
    const uint32_t n = s ? s->n : 0;
    if (s) {
        s->used_at = ++p->clock;
        s->n_pins++;
    }
    pthread_mutex_unlock(&p->lock);
    if (!s) {
        bt_kv_state_zero(p, slot);
        return 0;
    }
    bt_kv_state_copy(p, slot, slot_of(p, s));
    unpin(p, s);
    return n;
}

bool bt_kv_snapshot_reserve(bt_state_pool *p, uint32_t *ret_slot)
{
    pthread_mutex_lock(&p->lock);
    snapshot *s = make_room(p);
    if (s) {
        s->n_pins = 1;
        *ret_slot = slot_of(p, s);
    }
    pthread_mutex_unlock(&p->lock);
    return s != NULL;
}

void bt_kv_snapshot_publish(bt_state_pool *p, uint32_t slot, uint64_t key, const uint32_t *tokens,
                            uint32_t n)
{
    snapshot *s = snapshot_at(p, slot);
    const bt_digest digest = digest_of(key, tokens, n);
    pthread_mutex_lock(&p->lock);
    BT_ASSERT(s->n == 0 && s->n_pins == 1);
    s->n_pins = 0;
    if (n > 0 && !exact(p, &digest, n)) {
        enter(p, s, &digest, n);
    }
    pthread_mutex_unlock(&p->lock);
}

bool bt_kv_snapshot_pin(bt_state_pool *p, uint64_t key, const uint32_t *tokens, uint32_t n,
                        uint32_t *ret_slot)
{
    const bt_digest digest = digest_of(key, tokens, n);
    pthread_mutex_lock(&p->lock);
    snapshot *s = n > 0 ? exact(p, &digest, n) : NULL;
    if (s) {
        s->n_pins++;
        s->used_at = ++p->clock;
        *ret_slot = slot_of(p, s);
    }
    pthread_mutex_unlock(&p->lock);
    return s != NULL;
}

void bt_kv_snapshot_unpin(bt_state_pool *p, uint32_t slot)
{
    unpin(p, snapshot_at(p, slot));
}

void bt_kv_snapshot_drop_all(bt_state_pool *p)
{
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n_snapshots; i++) {
        snapshot *s = &p->snapshots[i];
        if (s->n > 0 && s->n_pins == 0) {
            *s = (snapshot){ 0 };
            p->n_kept--;
        }
    }
    pthread_mutex_unlock(&p->lock);
}

uint32_t bt_kv_snapshot_count(bt_state_pool *p)
{
    pthread_mutex_lock(&p->lock);
    const uint32_t n = p->n_kept;
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint64_t bt_kv_snapshot_bytes(bt_state_pool *p)
{
    return bt_kv_snapshot_count(p) * p->layout.slot_bytes;
}

/* ---- canonical layout ---- */

/* Where a range of the canonical layout lies in a slot: one part for each tensor that it touches,
 * since tensors are aligned there. */
typedef struct { uint64_t at, from, size; } part;

static uint32_t split(const bt_state_layer *y, uint64_t offset, uint64_t size,
                      part ret[BT_STATE_TENSORS_MAX])
{
    uint64_t begin = 0;                /* of the tensor, in the canonical layout */
    uint32_t n = 0;
    BT_ASSERT(size <= bytes_of(y) && offset <= bytes_of(y) - size);
    for (uint32_t i = 0; i < y->n_tensors; i++) {
        const uint64_t end = begin + bt_ops_state_tensor_bytes(&y->tensors[i]);
        const uint64_t first = offset > begin ? offset : begin;
        const uint64_t last = offset + size < end ? offset + size : end;
        if (first < last) {
            ret[n++] = (part){ .at = y->tensors[i].offset + (first - begin),
                               .from = first - offset, .size = last - first };
        }
        begin = end;
    }
    return n;
}

void bt_kv_state_import(bt_state_pool *p, uint32_t slot, uint32_t layer, uint64_t offset,
                        uint64_t size, const void *from)
{
    part parts[BT_STATE_TENSORS_MAX];
    BT_ASSERT(layer < p->layout.n_layers);
    const uint32_t n = split(&p->layout.layers[layer], offset, size, parts);
    for (uint32_t i = 0; i < n; i++) {
        bt_device_buffer_write(p->device, p->layout.buffer, slot_at(p, slot) + parts[i].at,
                               (const uint8_t *)from + parts[i].from, parts[i].size);
    }
}

void bt_kv_state_export(const bt_state_pool *p, uint32_t slot, uint32_t layer, uint64_t offset,
                        uint64_t size, void *to)
{
    part parts[BT_STATE_TENSORS_MAX];
    BT_ASSERT(layer < p->layout.n_layers);
    const uint32_t n = split(&p->layout.layers[layer], offset, size, parts);
    for (uint32_t i = 0; i < n; i++) {
        bt_device_buffer_read(p->device, p->layout.buffer, slot_at(p, slot) + parts[i].at,
                              (uint8_t *)to + parts[i].from, parts[i].size);
    }
}
