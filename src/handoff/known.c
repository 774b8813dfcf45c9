/* handoff/known.c - see known.h. A table without collisions lists: whoever comes last stays. */
#include "handoff/known.h"

#include <string.h>

#include "base/digest.h"

static uint64_t chain(const uint32_t *block, uint64_t before)
{
    const uint64_t h = bt_hash64(block, BT_KNOWN_BLOCK * sizeof *block, before);
    return h != 0 ? h : 1;             /* 0 is an empty slot */
}

void bt_route_cache_hint_put(bt_known *k, uint64_t tenant, const uint32_t *tokens, uint32_t n)
{
    uint64_t h = tenant;
    for (uint32_t at = 0; n - at >= BT_KNOWN_BLOCK; at += BT_KNOWN_BLOCK) {
        h = chain(tokens + at, h);
        k->slots[h % BT_KNOWN_SLOTS] = h;
    }
}

/* The last block that is there stands for all before it, since its hash does; so it does no harm
 * that blocks of one prompt push each other out. */
uint32_t bt_route_cache_hint_find(const bt_known *k, uint64_t tenant, const uint32_t *tokens,
                                  uint32_t n)
{
    uint64_t h = tenant;
    uint32_t known = 0;
    for (uint32_t at = 0; n - at >= BT_KNOWN_BLOCK; at += BT_KNOWN_BLOCK) {
        h = chain(tokens + at, h);
        known = k->slots[h % BT_KNOWN_SLOTS] == h ? at + BT_KNOWN_BLOCK : known;
    }
    return known;
}

void bt_route_cache_hint_clear(bt_known *k)
{
    memset(k, 0, sizeof *k);
}
