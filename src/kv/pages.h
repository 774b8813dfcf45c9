/* kv/pages.h - fixed-size pages of keys and values, shared between sequences.
 *
 * A page holds BT_KV_PAGE_TOKENS consecutive positions of all layers; page i of a sequence holds
 * positions [i * BT_KV_PAGE_TOKENS, (i + 1) * BT_KV_PAGE_TOKENS). Pages are counted references:
 * sequences whose prompts begin alike hold the same pages, and the first one to write to a shared
 * page gets its own copy.
 *
 * Lifetime: create to destroy; by then every page must have been given back (asserted).
 * Threads:  a pool belongs to the engine thread. bt_kv_rows_import and _export may be called from
 *           any thread for pages that the engine has reserved for that stream and keeps until it
 *           takes them back (engine/engine.h); nothing else touches those rows meanwhile.
 * Failure:  create, take and make_writable only; a failed call changes nothing. Nothing allocates
 *           after create.
 */
#ifndef BT_KV_PAGES_H
#define BT_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

typedef struct bt_kv_pool bt_kv_pool;

enum { BT_KV_PAGE_TOKENS = 32 };

typedef struct {
    uint32_t        n_layers;
    const uint32_t *k_dims, *v_dims;   /* [n_layers] values per row; 0: the layer has none */
    bt_type         type_k, type_v;
    uint32_t        n_pages;
} bt_kv_pool_options;

/* Reserves all pages on `device`, which the pool borrows. Memory is touched only when used. */
BT_MUST_CHECK bt_status bt_kv_pool_create(bt_device *device, const bt_kv_pool_options *o,
                                          bt_kv_pool **ret_pool, bt_error *err);
void bt_kv_pool_destroy(bt_kv_pool *pool);

const bt_kv_layout *bt_kv_pool_layout(const bt_kv_pool *pool);
uint64_t bt_kv_token_bytes(const bt_kv_pool *pool);          /* K and V of one token, all layers */

/* BT_E_FULL when none is free: whom to evict is the caller's policy. */
BT_MUST_CHECK bt_status bt_kv_page_take(bt_kv_pool *pool, uint32_t *ret_page);
/* Trades the caller's hold on `page` for one it may write to: the same page if nobody else holds
 * it, else a fresh copy of its first n_tokens positions. */
BT_MUST_CHECK bt_status bt_kv_page_make_writable(bt_kv_pool *pool, uint32_t page, uint32_t n_tokens,
                                                 uint32_t *ret_page);
void     bt_kv_page_ref(bt_kv_pool *pool, uint32_t page);
void     bt_kv_page_unref(bt_kv_pool *pool, uint32_t page);
uint32_t bt_kv_page_holders(const bt_kv_pool *pool, uint32_t page);
/* Says that one of the page's holders is a cache, which gives it back when asked (kv/prefix.h). */
void     bt_kv_page_set_cached(bt_kv_pool *pool, uint32_t page, bool cached);

/* Counts in pages; any thread. Idle: held by the cache and nobody else; these count as used. */
uint32_t bt_kv_pool_used(const bt_kv_pool *pool);
uint32_t bt_kv_pool_idle(const bt_kv_pool *pool);
uint32_t bt_kv_pool_total(const bt_kv_pool *pool);

/* The canonical layout: rows by token, K apart from V, element types of the pool. Rows
 * [position, position + n) of `layer`, which the page list covers. K: n * k_row_bytes bytes. */
void bt_kv_rows_import(bt_kv_pool *pool, const uint32_t *pages, uint32_t layer, uint32_t position,
                       uint32_t n, const void *k, const void *v);
void bt_kv_rows_export(const bt_kv_pool *pool, const uint32_t *pages, uint32_t layer,
                       uint32_t position, uint32_t n, void *ret_k, void *ret_v);

#endif
