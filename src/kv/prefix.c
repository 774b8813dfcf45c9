/* Nodes live in one array; number 0 is the root and holds no page. Full pages are found by a hash
 * table over (parent, tokens); a match that ends inside a page looks at all children of one node.
 *
 * All nodes stand in one list by time of use. A use touches the path from its end to the root, so
 * that parents are younger than their children and the old end of the list is made of leaves. */
#include "kv/prefix.h"

#include <string.h>

#include "base/check.h"
#include "base/digest.h"
#include "base/memory.h"

enum { ROOT = 0 };

#define NONE UINT32_MAX

typedef struct {
    uint64_t key;
    uint32_t page;
    uint32_t n_tokens;                    /* 1 .. BT_KV_PAGE_TOKENS; less than that: a leaf */
    uint32_t generation;                  /* counts the lives of this slot */
    uint32_t parent, first_child;
    uint32_t next, previous;              /* siblings; `next` also links free slots */
    uint32_t younger, older;              /* by time of use */
    uint32_t same_hash;
    uint32_t tokens[BT_KV_PAGE_TOKENS];
} node;

struct bt_kv_prefix {
    bt_kv_pool *pool;
    node     *nodes;                      /* [n_max + 1] */
    uint32_t  n_max, count;
    uint32_t  free_node;                  /* slots that were used before */
    uint32_t  n_fresh;                    /* slots never used start here */
    uint32_t  youngest, oldest;
    uint32_t *buckets;                    /* [n_buckets] first node, full pages only */
    uint32_t  n_buckets;                  /* a power of two */
};

bt_status bt_kv_prefix_create(bt_kv_pool *pool, uint32_t n_pages_max, bt_kv_prefix **ret_tree,
                              bt_error *err)
{
    BT_ASSERT(pool);
    BT_ASSERT(n_pages_max >= 1 && n_pages_max < NONE / 4);
    bt_kv_prefix *t = bt_alloc_zero(BT_MEM_kv, 1, sizeof *t);
    if (!t) {
        return bt_fail_nomem(err, sizeof *t, "a prefix tree");
    }
    *t = (bt_kv_prefix){ .pool = pool, .n_max = n_pages_max, .free_node = NONE, .n_fresh = 1,
                         .youngest = NONE, .oldest = NONE, .n_buckets = 16 };
    while (t->n_buckets < 2 * n_pages_max) {
        t->n_buckets *= 2;
    }
    t->nodes = bt_alloc_zero(BT_MEM_kv, (size_t)n_pages_max + 1, sizeof *t->nodes);
    t->buckets = bt_alloc(BT_MEM_kv, t->n_buckets * sizeof *t->buckets);
    if (!t->nodes || !t->buckets) {
        bt_free(t->nodes);
        bt_free(t->buckets);
        bt_free(t);
        return bt_fail_nomem(err, n_pages_max * sizeof(node), "a prefix tree");
    }
    memset(t->buckets, 0xFF, t->n_buckets * sizeof *t->buckets);
    t->nodes[ROOT].first_child = NONE;
    *ret_tree = t;
    return BT_OK;
}

uint32_t bt_kv_prefix_count(const bt_kv_prefix *t)
{
    return t->count;
}

/* ---- time of use ---- */

static void age_unlink(bt_kv_prefix *t, uint32_t n)
{
    node *x = &t->nodes[n];
    *(x->younger == NONE ? &t->youngest : &t->nodes[x->younger].older) = x->older;
    *(x->older == NONE ? &t->oldest : &t->nodes[x->older].younger) = x->younger;
}

static void age_link(bt_kv_prefix *t, uint32_t n)
{
    node *x = &t->nodes[n];
    x->younger = NONE;
    x->older = t->youngest;
    *(t->youngest == NONE ? &t->oldest : &t->nodes[t->youngest].younger) = n;
    t->youngest = n;
}

static void touch_path(bt_kv_prefix *t, uint32_t n)
{
    for (; n != ROOT; n = t->nodes[n].parent) {
        age_unlink(t, n);
        age_link(t, n);
    }
}

/* ---- finding ---- */

static uint32_t *bucket_of(const bt_kv_prefix *t, uint32_t parent, uint64_t key,
                           const uint32_t *tokens)
{
    const uint64_t seed = parent == ROOT ? key : (uint64_t)parent << 32;
    const uint64_t h = bt_hash64(tokens, BT_KV_PAGE_TOKENS * sizeof *tokens, seed);
    return &t->buckets[h & (t->n_buckets - 1)];
}

static bool is_child(const bt_kv_prefix *t, uint32_t n, uint32_t parent, uint64_t key)
{
    return t->nodes[n].parent == parent && t->nodes[n].key == key;
}

/* The child of `parent` that holds exactly these tokens of a full page. */
static uint32_t find_full(const bt_kv_prefix *t, uint32_t parent, uint64_t key,
                          const uint32_t *tokens)
{
    uint32_t n = *bucket_of(t, parent, key, tokens);
    while (n != NONE && !(is_child(t, n, parent, key) &&
                          memcmp(t->nodes[n].tokens, tokens, sizeof t->nodes[n].tokens) == 0)) {
        n = t->nodes[n].same_hash;
    }
    return n;
}

static uint32_t common(const node *x, const uint32_t *tokens, uint32_t n_tokens)
{
    const uint32_t n = x->n_tokens < n_tokens ? x->n_tokens : n_tokens;
    uint32_t i = 0;
    while (i < n && x->tokens[i] == tokens[i]) {
        i++;
    }
    return i;
}

/* The child that shares most of the tokens, NONE if none shares any. */
static uint32_t find_part(const bt_kv_prefix *t, uint32_t parent, uint64_t key,
                          const uint32_t *tokens, uint32_t n_tokens, uint32_t *ret_common)
{
    uint32_t best = NONE, best_common = 0;
    for (uint32_t n = t->nodes[parent].first_child; n != NONE; n = t->nodes[n].next) {
        const uint32_t c = is_child(t, n, parent, key) ? common(&t->nodes[n], tokens, n_tokens) : 0;
        if (c > best_common) {
            best = n;
            best_common = c;
        }
    }
    *ret_common = best_common;
    return best;
}

/* Walks as far as the tokens are known. With `pages`, the caller gets a hold on each. */
static uint32_t walk(const bt_kv_prefix *t, uint64_t key, const uint32_t *tokens,
                     uint32_t n_tokens, uint32_t *pages, uint32_t *ret_node)
{
    uint32_t at = ROOT, matched = 0;
    while (matched < n_tokens) {
        const uint32_t left = n_tokens - matched;
        uint32_t n = NONE, c = BT_KV_PAGE_TOKENS;
        if (left >= BT_KV_PAGE_TOKENS) {
            n = find_full(t, at, key, tokens + matched);
        }
        if (n == NONE) {
            n = find_part(t, at, key, tokens + matched, left, &c);
        }
        if (n == NONE) {
            break;
        }
        if (pages) {
            bt_kv_page_ref(t->pool, t->nodes[n].page);
            pages[matched / BT_KV_PAGE_TOKENS] = t->nodes[n].page;
        }
        at = n;
        matched += c;
        if (c < BT_KV_PAGE_TOKENS) {
            break;
        }
    }
    *ret_node = at;
    return matched;
}

uint32_t bt_kv_prefix_match(const bt_kv_prefix *t, uint64_t key, const uint32_t *tokens,
                            uint32_t n_tokens)
{
    uint32_t at;
    return walk(t, key, tokens, n_tokens, NULL, &at);
}

uint32_t bt_kv_prefix_take(bt_kv_prefix *t, uint64_t key, const uint32_t *tokens,
                           uint32_t n_tokens, uint32_t *pages)
{
    BT_ASSERT(pages);
    uint32_t at;
    const uint32_t matched = walk(t, key, tokens, n_tokens, pages, &at);
    touch_path(t, at);
    return matched;
}

/* ---- entering and leaving ---- */

static void hold_page(bt_kv_prefix *t, uint32_t page)
{
    bt_kv_page_ref(t->pool, page);
    bt_kv_page_set_cached(t->pool, page, true);
}

static void drop_page(bt_kv_prefix *t, uint32_t page)
{
    bt_kv_page_set_cached(t->pool, page, false);
    bt_kv_page_unref(t->pool, page);
}

static void hash_link(bt_kv_prefix *t, uint32_t n)
{
    node *x = &t->nodes[n];
    uint32_t *bucket = bucket_of(t, x->parent, x->key, x->tokens);
    x->same_hash = *bucket;
    *bucket = n;
}

static void hash_unlink(bt_kv_prefix *t, uint32_t n)
{
    node *x = &t->nodes[n];
    uint32_t *link = bucket_of(t, x->parent, x->key, x->tokens);
    while (*link != n) {
        BT_ASSERT(*link != NONE);
        link = &t->nodes[*link].same_hash;
    }
    *link = x->same_hash;
}

static void remove_leaf(bt_kv_prefix *t, uint32_t n)
{
    node *x = &t->nodes[n];
    BT_ASSERT(n != ROOT);
    BT_ASSERT(x->first_child == NONE);
    if (x->n_tokens == BT_KV_PAGE_TOKENS) {
        hash_unlink(t, n);
    }
    age_unlink(t, n);
    *(x->previous == NONE ? &t->nodes[x->parent].first_child
                          : &t->nodes[x->previous].next) = x->next;
    if (x->next != NONE) {
        t->nodes[x->next].previous = x->previous;
    }
    drop_page(t, x->page);
    x->generation++;
    x->next = t->free_node;
    t->free_node = n;
    t->count--;
}

/* `keep` is a node that must stay though nobody holds it: something is about to hang on it. */
static bool evict(bt_kv_prefix *t, uint32_t keep)
{
    for (uint32_t n = t->oldest; n != NONE; n = t->nodes[n].younger) {
        const node *x = &t->nodes[n];
        if (x->first_child == NONE && n != keep && bt_kv_page_holders(t->pool, x->page) == 1) {
            remove_leaf(t, n);
            return true;
        }
    }
    return false;
}

bool bt_kv_prefix_evict(bt_kv_prefix *t)
{
    return evict(t, NONE);
}

static uint32_t take_slot(bt_kv_prefix *t, uint32_t parent)
{
    if (t->count == t->n_max && !evict(t, parent)) {
        return NONE;
    }
    t->count++;
    const uint32_t n = t->free_node;
    if (n != NONE) {
        t->free_node = t->nodes[n].next;
        return n;
    }
    return t->n_fresh++;
}

static void set_tokens(bt_kv_prefix *t, uint32_t n, const uint32_t *tokens, uint32_t n_tokens,
                       uint32_t page)
{
    node *x = &t->nodes[n];
    hold_page(t, page);
    x->page = page;
    x->n_tokens = n_tokens;
    memcpy(x->tokens, tokens, n_tokens * sizeof *tokens);
    if (n_tokens == BT_KV_PAGE_TOKENS) {
        hash_link(t, n);
    }
}

static uint32_t add_child(bt_kv_prefix *t, uint32_t parent, uint64_t key, const uint32_t *tokens,
                          uint32_t n_tokens, uint32_t page)
{
    const uint32_t n = take_slot(t, parent);
    if (n == NONE) {
        return NONE;
    }
    node *x = &t->nodes[n];
    x->key = key;
    x->parent = parent;
    x->first_child = NONE;
    x->previous = NONE;
    x->next = t->nodes[parent].first_child;
    if (x->next != NONE) {
        t->nodes[x->next].previous = n;
    }
    t->nodes[parent].first_child = n;
    age_link(t, n);
    set_tokens(t, n, tokens, n_tokens, page);
    return n;
}

/* A page that somebody computed once more takes the place of the node's: the older one would hang
 * above the newer ones after it, and could not be given back for as long as those are in use. */
static void renew_page(bt_kv_prefix *t, uint32_t n, uint32_t page)
{
    if (t->nodes[n].page != page) {
        hold_page(t, page);
        drop_page(t, t->nodes[n].page);
        t->nodes[n].page = page;
    }
}

/* The node of these tokens under `parent`: known, grown from a partly filled page that they
 * continue, or new. NONE when there is no room. */
static uint32_t enter(bt_kv_prefix *t, uint32_t parent, uint64_t key, const uint32_t *tokens,
                      uint32_t n_tokens, uint32_t page)
{
    uint32_t c = 0;
    uint32_t n = n_tokens == BT_KV_PAGE_TOKENS ? find_full(t, parent, key, tokens) : NONE;
    if (n != NONE) {
        renew_page(t, n, page);
        return n;
    }
    n = find_part(t, parent, key, tokens, n_tokens, &c);
    if (n != NONE && c == n_tokens) {
        return n;
    }
    if (n != NONE && c == t->nodes[n].n_tokens) {
        BT_ASSERT(t->nodes[n].first_child == NONE);
        drop_page(t, t->nodes[n].page);
        set_tokens(t, n, tokens, n_tokens, page);
        return n;
    }
    return add_child(t, parent, key, tokens, n_tokens, page);
}

void bt_kv_prefix_put(bt_kv_prefix *t, uint64_t key, const uint32_t *tokens, uint32_t n_tokens,
                      const uint32_t *pages, bt_kv_prefix_cursor *cursor)
{
    const bool known = cursor->n_pages > 0 &&
                       t->nodes[cursor->node].generation == cursor->generation;
    uint32_t at = known ? cursor->node : ROOT;
    uint32_t i = known ? cursor->n_pages : 0;
    for (; i * BT_KV_PAGE_TOKENS < n_tokens; i++) {
        const uint32_t left = n_tokens - i * BT_KV_PAGE_TOKENS;
        const uint32_t m = left < BT_KV_PAGE_TOKENS ? left : BT_KV_PAGE_TOKENS;
        const uint32_t n = enter(t, at, key, tokens + i * BT_KV_PAGE_TOKENS, m, pages[i]);
        if (n == NONE) {
            break;
        }
        at = n;
        if (m == BT_KV_PAGE_TOKENS) {
            *cursor = (bt_kv_prefix_cursor){ n, t->nodes[n].generation, i + 1 };
        }
    }
    touch_path(t, at);
}

void bt_kv_prefix_forget(bt_kv_prefix *t, uint64_t key, const uint32_t *tokens, uint32_t n_tokens)
{
    uint32_t at;
    (void)walk(t, key, tokens, n_tokens, NULL, &at);
    while (at != ROOT && t->nodes[at].first_child == NONE) {
        const uint32_t parent = t->nodes[at].parent;
        remove_leaf(t, at);
        at = parent;
    }
}

void bt_kv_prefix_destroy(bt_kv_prefix *t)
{
    if (!t) {
        return;
    }
    for (uint32_t n = t->youngest; n != NONE; n = t->nodes[n].older) {
        drop_page(t, t->nodes[n].page);
    }
    bt_free(t->nodes);
    bt_free(t->buckets);
    bt_free(t);
}
