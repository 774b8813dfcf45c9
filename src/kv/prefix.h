/* kv/prefix.h - a tree over token ids: which pages hold the beginning of a prompt already.
 *
 * A node is a page: its tokens, and the page whose rows they made. A page is entered when all of
 * its positions are computed, or at the end of a sequence with as many as there are. The match may
 * end inside a page: the caller then shares it too and copies what it needs before it writes there
 * (bt_kv_page_make_writable).
 *
 * Rows depend on everything before them, so a node's identity is the whole path to it, under a
 * `key` that stands for what else the rows depend on (adapters, media); with equal keys, equal
 * tokens give equal rows. Node and path are compared token by token, never by hash alone.
 *
 * Lifetime: create to destroy, before the pool's end. Threads: the engine thread.
 * Failure:  create only. When the tree is full, or nothing can be evicted, put enters less.
 *           Nothing allocates after create.
 */
#ifndef BT_KV_PREFIX_H
#define BT_KV_PREFIX_H

#include "kv/pages.h"

typedef struct bt_kv_prefix bt_kv_prefix;

/* Where a growing sequence was last entered, so that its next page is found at once. Zero it for
 * a new sequence. It may go stale (eviction); put notices. */
typedef struct { uint32_t node, generation, n_pages; } bt_kv_prefix_cursor;

/* Holds at most n_pages_max pages of the pool, which it borrows. */
BT_MUST_CHECK bt_status bt_kv_prefix_create(bt_kv_pool *pool, uint32_t n_pages_max,
                                            bt_kv_prefix **ret_tree, bt_error *err);
void bt_kv_prefix_destroy(bt_kv_prefix *t);                      /* gives its pages back */

/* The longest known beginning of the tokens, in tokens. */
uint32_t bt_kv_prefix_match(const bt_kv_prefix *t, uint64_t key, const uint32_t *tokens,
                            uint32_t n_tokens);
/* The same, and its pages, each with a hold for the caller; the last may match in part. `pages`
 * has room for all pages of n_tokens. Counts as a use. */
uint32_t bt_kv_prefix_take(bt_kv_prefix *t, uint64_t key, const uint32_t *tokens,
                           uint32_t n_tokens, uint32_t *pages);
/* Enters pages of a sequence whose first n_tokens positions are computed; the tree takes its own
 * hold on them, and lets go of other pages that it had for the same tokens. A partly filled last
 * page may be entered only by a sequence that will not write to it any more. */
void bt_kv_prefix_put(bt_kv_prefix *t, uint64_t key, const uint32_t *tokens, uint32_t n_tokens,
                      const uint32_t *pages, bt_kv_prefix_cursor *cursor);
/* Gives back the page that was used longest ago of those that nobody else holds and no longer
 * prefix needs; false when there is none. */
bool bt_kv_prefix_evict(bt_kv_prefix *t);
/* Takes the path of these tokens out of the tree, as far as nothing else hangs on it: its rows
 * proved to be damaged. */
void bt_kv_prefix_forget(bt_kv_prefix *t, uint64_t key, const uint32_t *tokens, uint32_t n_tokens);
uint32_t bt_kv_prefix_count(const bt_kv_prefix *t);              /* pages held */

#endif
