/* The prefix tree, as sequences use it. */
#include "base/check.h"
#include "engine/private.h"
#include "engine/state.h"

/* Pages that decoding sequences will ask for before long: one each. */
static uint32_t headroom(const bt_engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->options.n_parallel; i++) {
        n += e->active[i] && e->active[i]->phase == BT_PHASE_DECODE;
    }
    return n;
}

static uint32_t pages_available(const bt_engine *e)
{
    const bt_kv_pool *pool = e->memory.pages;
    return bt_kv_pool_total(pool) - bt_kv_pool_used(pool) + bt_kv_pool_idle(pool);
}

bool bt_engine_cache_fits(const bt_engine *e, uint32_t n_pages)
{
    return n_pages + headroom(e) <= pages_available(e);
}

/* What may be taken from the cache: a token must be left to evaluate when logits are wanted. */
static uint32_t usable(const bt_request *r)
{
    return r->no_cache ? 0 : r->prefill_only ? r->n_prefill : r->n_prefill - 1;
}

uint32_t bt_engine_cache_match(const bt_engine *e, const bt_request *r)
{
    const uint32_t n = bt_kv_prefix_match(e->memory.prefixes, r->cache_key, r->tokens, usable(r));
    return bt_engine_state_usable(e, r, n);
}

void bt_engine_cache_share(bt_engine *e, bt_request *r)
{
    const bt_kv_name name = bt_engine_name_of(r);
    const uint32_t n = e->memory.states ? bt_engine_cache_match(e, r) : usable(r);
    r->n_done = bt_kv_lease_share(&r->lease, &name, n);
    r->n_entered = r->n_done / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS;
}

void bt_engine_cache_enter(bt_request *r)
{
    const bt_kv_name name = bt_engine_name_of(r);
    const uint32_t n = r->n_done / BT_KV_PAGE_TOKENS * BT_KV_PAGE_TOKENS;
    if (!r->no_cache && r->ticket == 0 && n > r->n_entered) {
        bt_kv_lease_commit(&r->lease, &name, n, false, &r->cursor);
        r->n_entered = n;
    }
}

void bt_engine_cache_enter_last(bt_request *r)
{
    const bt_kv_name name = bt_engine_name_of(r);
    if (!r->no_cache) {
        bt_kv_lease_commit(&r->lease, &name, r->n_done, true, &r->cursor);
    }
}

void bt_engine_cache_forget(bt_engine *e, bt_request *r)
{
    bt_kv_prefix_forget(e->memory.prefixes, r->cache_key, r->tokens, r->n_done);
    if (e->memory.states) {
        bt_kv_snapshot_drop_all(e->memory.states);  /* nobody can tell which are sound */
    }
}
