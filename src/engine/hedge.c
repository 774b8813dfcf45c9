/* See hedge.h. The rows that come in go on into the pages that they were promised, so it is the
 * side here that gets new ones: what both have in common is shared, of a page that both would write
 * to the common rows are copied. */
#include "engine/hedge.h"

#include "base/check.h"
#include "base/memory.h"

static void unref_all(bt_engine *e, const uint32_t *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bt_kv_page_unref(e->pool, pages[i]);
    }
}

/* Shares pages up to n_done; how many. */
static uint32_t share(bt_engine *e, const bt_request *r, uint32_t *pages)
{
    const uint32_t n = (r->n_done + BT_KV_PAGE_TOKENS - 1) / BT_KV_PAGE_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        bt_kv_page_ref(e->pool, r->pages[i]);
        pages[i] = r->pages[i];
    }
    return n;
}

static bool take_pages(bt_engine *e, const bt_request *r, uint32_t *pages)
{
    uint32_t n = share(e, r, pages);
    bool fits = r->n_done % BT_KV_PAGE_TOKENS == 0 ||
                bt_engine_cache_own_page(e, &pages[n - 1], r->n_done % BT_KV_PAGE_TOKENS);
    while (fits && n < r->n_pages) {
        fits = bt_engine_cache_take_page(e, &pages[n]);
        n += fits;
    }
    if (!fits) {
        unref_all(e, pages, n);
    }
    return fits;
}

bool bt_engine_hedge_begin(bt_engine *e, bt_request *r)
{
    BT_ASSERT(r->phase == BT_PHASE_EXTERNAL && !r->other_pages);
    if (!bt_engine_sequence_fits(e, r->n_pages - r->n_done / BT_KV_PAGE_TOKENS)) {
        return false;
    }
    uint32_t *pages = bt_alloc_zero(BT_MEM_engine, r->n_pages_max, sizeof *pages);
    if (!pages || !take_pages(e, r, pages)) {
        bt_free(pages);
        return false;
    }
    r->other_pages = r->pages;
    r->n_other_pages = r->n_pages;
    r->pages = pages;
    r->hedged = true;
    r->phase = BT_PHASE_PREFILL;
    return true;
}

void bt_engine_hedge_end(bt_engine *e, bt_request *r, bool elsewhere)
{
    if (elsewhere) {
        uint32_t *pages = r->other_pages;
        const uint32_t n = r->n_other_pages;
        r->other_pages = r->pages;
        r->n_other_pages = r->n_pages;
        r->pages = pages;
        r->n_pages = n;
    }
    unref_all(e, r->other_pages, r->n_other_pages);
    bt_free(r->other_pages);
    r->other_pages = NULL;
    r->n_other_pages = 0;
}
