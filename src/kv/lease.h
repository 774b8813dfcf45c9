/* kv/lease.h - the memory of a sequence: its pages and the slot of its recurrent state, as one.
 *
 * A lease holds pages [0, n_pages) of a sequence's positions and, where the model keeps recurrent
 * states, one slot. Pages may be shared with other leases and with the prefix tree; extend makes
 * sure that nobody else holds the page that is written next.
 *
 * Rows can be given up position by position. A recurrent state cannot be rolled back, so a sequence
 * with one stands again only where a snapshot of it is kept (kv/states.h).
 *
 * Lifetime: open to close; a zeroed lease may be closed. The memory outlives its leases.
 * Threads:  the engine thread; pages of a lease that is lent to a writer: kv/pages.h.
 * Failure:  open (memory), acquire, extend, fork (nothing is left, nothing has changed), truncate.
 */
#ifndef BT_KV_LEASE_H
#define BT_KV_LEASE_H

#include "kv/prefix.h"
#include "kv/states.h"

#define BT_KV_NO_SLOT UINT32_MAX

typedef struct {
    bt_kv_pool    *pages;
    bt_kv_prefix  *prefixes;           /* evicted from when pages run out */
    bt_state_pool *states;             /* NULL: no layer keeps a state */
} bt_kv_memory;

/* To be read; changed by the functions below. */
typedef struct {
    const bt_kv_memory *memory;
    uint32_t *pages;                   /* [n_pages <= n_pages_max] */
    uint32_t  n_pages, n_pages_max;
    uint32_t  slot;                    /* BT_KV_NO_SLOT: none */
} bt_kv_lease;

/* What a prefix is known by: as in kv/prefix.h. */
typedef struct {
    uint64_t        key;
    const uint32_t *tokens;
} bt_kv_name;

static inline uint32_t bt_kv_pages_of(uint32_t n_positions)
{
    return n_positions / BT_KV_PAGE_TOKENS + (n_positions % BT_KV_PAGE_TOKENS > 0);
}

/* Holds nothing yet. */
BT_MUST_CHECK bt_status bt_kv_lease_open(bt_kv_lease *l, const bt_kv_memory *memory,
                                         uint32_t n_positions_max, bt_error *err);
void bt_kv_lease_release(bt_kv_lease *l);      /* holds nothing again */
void bt_kv_lease_close(bt_kv_lease *l);

/* A slot, zeroed; true where no layer keeps a state. */
bool bt_kv_lease_acquire(bt_kv_lease *l);
/* Shares the pages of the longest known beginning of at most n tokens; gives its length. The lease
 * holds no page before. */
uint32_t bt_kv_lease_share(bt_kv_lease *l, const bt_kv_name *name, uint32_t n);
/* Positions [from, end) may be written afterwards: pages for them, and where `from` lies inside a
 * page that others hold, a copy of the rows before it. Evicts if it must. */
bool bt_kv_lease_extend(bt_kv_lease *l, uint32_t from, uint32_t end);
/* `to` holds no page; it shares positions [0, n) of `from`. */
void bt_kv_lease_share_pages(bt_kv_lease *to, const bt_kv_lease *from, uint32_t n);
/* The same, and its slot, which it has acquired, becomes what from's is: the state at n. */
void bt_kv_lease_fork(bt_kv_lease *to, const bt_kv_lease *from, uint32_t n);
void bt_kv_lease_swap_pages(bt_kv_lease *a, bt_kv_lease *b);
void bt_kv_lease_swap_slots(bt_kv_lease *a, bt_kv_lease *b);

/* The sequence stands at the largest position up to n at which it can, which is given: n itself,
 * or with a recurrent state that of the last snapshot, 0 if there is none. */
uint32_t bt_kv_lease_restore(bt_kv_lease *l, const bt_kv_name *name, uint32_t n);
/* The sequence stands at exactly n; BT_E_BADINPUT, with nothing changed, when it keeps a recurrent
 * state of which there is no snapshot there. */
BT_MUST_CHECK bt_status bt_kv_lease_truncate(bt_kv_lease *l, const bt_kv_name *name, uint32_t n,
                                             bt_error *err);
/* Enters the pages of positions [0, n) into the prefix tree: the full ones, and with `last` the
 * partly filled one, which must not be written to any more. */
void bt_kv_lease_commit(const bt_kv_lease *l, const bt_kv_name *name, uint32_t n, bool last,
                        bt_kv_prefix_cursor *cursor);

#endif
