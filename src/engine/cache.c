/* The prefix tree, as sequences use it. */
#include "base/check.h"
#include "engine/private.h"
#include "engine/state.h"

bool bt_engine_cache_take_page(bt_engine *e, uint32_t *ret_page)
{
    while (bt_kv_page_take(e->pool, ret_page) != BT_OK) {
        if (!bt_kv_prefix_evict(e->prefixes)) {
            return false;
        }
    }
    return true;
}

bool bt_engine_cache_own_page(bt_engine *e, uint32_t *page, uint32_t n_rows)
{
    while (bt_kv_page_make_writable(e->pool, *page, n_rows, page) != BT_OK) {
        if (!bt_kv_prefix_evict(e->prefixes)) {
            return false;
        }
    }
    return true;
}

/* What may be taken from the cache: a token must be left to evaluate when logits are wanted. */
static uint32_t usable(const bt_request *r)
{
    return r->no_cache ? 0 : r->prefill_only ? r->n_prefill : r->n_prefill - 1;
}

uint32_t bt_engine_cache_match(const bt_engine *e, const bt_request *r)
{
    const uint32_t n = bt_kv_prefix_match(e->prefixes, r->cache_key, r->tokens, usable(r));
    return bt_engine_state_usable(e, r, n);
}

void bt_engine_cache_share(bt_engine *e, bt_request *r)
{
    BT_ASSERT(r->n_pages == 0);
    const uint32_t n = e->states ? bt_engine_cache_match(e, r) : usable(r);
    r->n_done = bt_kv_prefix_take(e->prefixes, r->cache_key, r->tokens, n, r->pages);
    r->n_pages = (r->n_done + BT_KV_PAGE_TOKENS - 1) / BT_KV_PAGE_TOKENS;
    r->n_entered = r->n_done / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS;
}

void bt_engine_cache_enter(bt_engine *e, bt_request *r)
{
    const uint32_t n = r->n_done / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS;
    if (!r->no_cache && !r->other_pages && n > r->n_entered) {
        bt_kv_prefix_put(e->prefixes, r->cache_key, r->tokens, n, r->pages, &r->cursor);
        r->n_entered = n;
    }
}

void bt_engine_cache_enter_last(bt_engine *e, bt_request *r)
{
    if (!r->no_cache && r->n_done > 0) {
        bt_kv_prefix_put(e->prefixes, r->cache_key, r->tokens, r->n_done, r->pages, &r->cursor);
    }
}

void bt_engine_cache_forget(bt_engine *e, bt_request *r)
{
    bt_kv_prefix_forget(e->prefixes, r->cache_key, r->tokens, r->n_done);
    if (e->states) {
        bt_kv_snapshot_drop_all(e->states);     /* which of them are sound, nobody can tell */
    }
}
