/* route/cache_hint.c - see cache_hint.h. A table without collision lists: the newest stays. */
#include "route/cache_hint.h"

#include <string.h>

#include "base/digest.h"

static uint64_t chain(const uint32_t *block, uint64_t before)
{
    const uint64_t h = bt_hash64(block, BT_CACHE_HINT_BLOCK * sizeof *block, before);
    return h != 0 ? h : 1;             /* 0 is an empty slot */
}

void bt_route_cache_hint_put(bt_cache_hint *k, uint64_t tenant, const uint32_t *tokens, uint32_t n)
{
    uint64_t h = tenant;
    for (uint32_t at = 0; n - at >= BT_CACHE_HINT_BLOCK; at += BT_CACHE_HINT_BLOCK) {
        h = chain(tokens + at, h);
        k->slots[h % BT_CACHE_HINT_SLOTS] = h;
    }
}

/* The last block that is there stands for all before it, since its hash does; so it does no harm
 * that blocks of one prompt push each other out. */
uint32_t bt_route_cache_hint_find(const bt_cache_hint *k, uint64_t tenant, const uint32_t *tokens,
                                  uint32_t n)
{
    uint64_t h = tenant;
    uint32_t known = 0;
    for (uint32_t at = 0; n - at >= BT_CACHE_HINT_BLOCK; at += BT_CACHE_HINT_BLOCK) {
        h = chain(tokens + at, h);
        known = k->slots[h % BT_CACHE_HINT_SLOTS] == h ? at + BT_CACHE_HINT_BLOCK : known;
    }
    return known;
}

void bt_route_cache_hint_clear(bt_cache_hint *k)
{
    memset(k, 0, sizeof *k);
}
