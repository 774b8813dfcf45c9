/* See lease.h. */
#include "kv/lease.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

/* ---- life ---- */

bt_status bt_kv_lease_open(bt_kv_lease *l, const bt_kv_memory *memory, uint32_t n_positions_max,
                           bt_error *err)
{
    const uint32_t n = bt_kv_pages_of(n_positions_max);
    *l = (bt_kv_lease){ .memory = memory, .n_pages_max = n, .slot = BT_KV_NO_SLOT };
    l->pages = bt_alloc_zero(BT_MEM_kv, n, sizeof *l->pages);
    return l->pages ? BT_OK : bt_fail_nomem(err, n * sizeof *l->pages, "the pages of a sequence");
}

static void drop_pages(bt_kv_lease *l, uint32_t n_left)
{
    while (l->n_pages > n_left) {
        bt_kv_page_unref(l->memory->pages, l->pages[--l->n_pages]);
    }
}

void bt_kv_lease_release(bt_kv_lease *l)
{
    drop_pages(l, 0);
    if (l->memory && l->slot != BT_KV_NO_SLOT) {
        bt_kv_state_give(l->memory->states, l->slot);
        l->slot = BT_KV_NO_SLOT;
    }
}

void bt_kv_lease_close(bt_kv_lease *l)
{
    bt_kv_lease_release(l);
    bt_free(l->pages);
    *l = (bt_kv_lease){ .slot = BT_KV_NO_SLOT };
}

/* ---- taking ---- */

bool bt_kv_lease_acquire(bt_kv_lease *l)
{
    BT_ASSERT(l->slot == BT_KV_NO_SLOT);
    return !l->memory->states || bt_kv_state_take(l->memory->states, &l->slot) == BT_OK;
}

uint32_t bt_kv_lease_share(bt_kv_lease *l, const bt_kv_name *name, uint32_t n)
{
    BT_ASSERT(l->n_pages == 0);
    n = bt_kv_prefix_take(l->memory->prefixes, name->key, name->tokens, n, l->pages);
    l->n_pages = bt_kv_pages_of(n);
    return n;
}

static bool take_page(const bt_kv_memory *m, uint32_t *ret_page)
{
    while (bt_kv_page_take(m->pages, ret_page) != BT_OK) {
        if (!bt_kv_prefix_evict(m->prefixes)) {
            return false;
        }
    }
    return true;
}

static bool own_page(const bt_kv_memory *m, uint32_t *page, uint32_t n_rows)
{
    while (bt_kv_page_make_writable(m->pages, *page, n_rows, page) != BT_OK) {
        if (!bt_kv_prefix_evict(m->prefixes)) {
            return false;
        }
    }
    return true;
}

bool bt_kv_lease_extend(bt_kv_lease *l, uint32_t from, uint32_t end)
{
    const uint32_t n_before = l->n_pages, n_rows = from % BT_KV_PAGE_TOKENS;
    BT_ASSERT(bt_kv_pages_of(from) <= l->n_pages && bt_kv_pages_of(end) <= l->n_pages_max);
    bool fits = true;
    while (fits && l->n_pages < bt_kv_pages_of(end)) {
        fits = take_page(l->memory, &l->pages[l->n_pages]);
        l->n_pages += fits;
    }
    if (fits && n_rows > 0 && from < end) {
        fits = own_page(l->memory, &l->pages[from / BT_KV_PAGE_TOKENS], n_rows);
    }
    if (!fits) {
        drop_pages(l, n_before);
    }
    return fits;
}

void bt_kv_lease_share_pages(bt_kv_lease *to, const bt_kv_lease *from, uint32_t n)
{
    BT_ASSERT(to->n_pages == 0 && bt_kv_pages_of(n) <= from->n_pages);
    BT_ASSERT(bt_kv_pages_of(n) <= to->n_pages_max);
    for (; to->n_pages < bt_kv_pages_of(n); to->n_pages++) {
        bt_kv_page_ref(from->memory->pages, from->pages[to->n_pages]);
        to->pages[to->n_pages] = from->pages[to->n_pages];
    }
}

void bt_kv_lease_fork(bt_kv_lease *to, const bt_kv_lease *from, uint32_t n)
{
    bt_kv_lease_share_pages(to, from, n);
    if (from->memory->states) {
        bt_kv_state_copy(from->memory->states, to->slot, from->slot);
    }
}

void bt_kv_lease_swap_pages(bt_kv_lease *a, bt_kv_lease *b)
{
    BT_ASSERT(a->memory == b->memory);
    const bt_kv_lease was = *a;
    a->pages = b->pages;
    a->n_pages = b->n_pages;
    a->n_pages_max = b->n_pages_max;
    b->pages = was.pages;
    b->n_pages = was.n_pages;
    b->n_pages_max = was.n_pages_max;
}

void bt_kv_lease_swap_slots(bt_kv_lease *a, bt_kv_lease *b)
{
    const uint32_t was = a->slot;
    a->slot = b->slot;
    b->slot = was;
}

/* ---- giving up positions ---- */

uint32_t bt_kv_lease_restore(bt_kv_lease *l, const bt_kv_name *name, uint32_t n)
{
    if (l->memory->states) {
        n = bt_kv_snapshot_restore(l->memory->states, l->slot, name->key, name->tokens, n);
    }
    drop_pages(l, bt_kv_pages_of(n));
    return n;
}

/* The snapshot is pinned: other threads make room for theirs at any time. */
static bt_status restore_exactly(bt_kv_lease *l, const bt_kv_name *name, uint32_t n, bt_error *err)
{
    bt_state_pool *states = l->memory->states;
    uint32_t kept;
    if (n == 0) {
        bt_kv_state_zero(states, l->slot);
        return BT_OK;
    }
    if (!bt_kv_snapshot_pin(states, name->key, name->tokens, n, &kept)) {
        return bt_fail(err, BT_E_BADINPUT, "a sequence with a recurrent state cannot go back to "
                       "position %u: the last snapshot before it is at %u", n,
                       bt_kv_snapshot_find(states, name->key, name->tokens, n));
    }
    bt_kv_state_copy(states, l->slot, kept);
    bt_kv_snapshot_unpin(states, kept);
    return BT_OK;
}

bt_status bt_kv_lease_truncate(bt_kv_lease *l, const bt_kv_name *name, uint32_t n, bt_error *err)
{
    BT_ASSERT(bt_kv_pages_of(n) <= l->n_pages);
    if (l->memory->states) {
        BT_TRY(restore_exactly(l, name, n, err));
    }
    drop_pages(l, bt_kv_pages_of(n));
    return BT_OK;
}

void bt_kv_lease_commit(const bt_kv_lease *l, const bt_kv_name *name, uint32_t n, bool last,
                        bt_kv_prefix_cursor *cursor)
{
    n = last ? n : n / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS;
    BT_ASSERT(bt_kv_pages_of(n) <= l->n_pages);
    if (n > 0) {
        bt_kv_prefix_put(l->memory->prefixes, name->key, name->tokens, n, l->pages, cursor);
    }
}
