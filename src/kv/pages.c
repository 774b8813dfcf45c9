/* One buffer on the device holds all pages. Inside a page each layer has its K rows, then its V
 * rows, both aligned to cache lines, so that the rows of a layer lie together for attention and a
 * run of rows is one copy for import and export.
 *
 * In debug builds a page that is given back is filled with a pattern that reads as NaN in every
 * float type, and taking it again checks that nobody wrote to it meanwhile. */
#include "kv/pages.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"

enum { ALIGNMENT = 64, POISON = 0xFF };

struct bt_kv_pool {
    bt_device   *device;
    bt_kv_layout layout;
    uint64_t     token_bytes;
    uint32_t     n_pages;
    uint32_t    *holders;              /* [n_pages] 0: free */
    bool        *cached;               /* [n_pages] one of the holders is a cache */
    bool        *poisoned;             /* [n_pages] debug: was given back before */
    uint32_t    *free_pages;           /* [n_free] a stack: pages used last are warm */
    uint32_t     n_free;
    atomic_uint  used, idle;           /* written by the engine thread, read by any */
};

/* ---- create ---- */

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bt_status row_bytes(const char *what, uint32_t layer, bt_type type, uint32_t dim,
                           uint64_t *ret_bytes, bt_error *err)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);
    if (!info || !info->can_decode || !info->can_encode) {
        return bt_fail(err, BT_E_UNSUPPORTED, "a KV cache of type %s is not supported",
                       info ? info->name : "(unknown)");
    }
    if (!bt_quant_type_row_bytes(info, dim, ret_bytes)) {
        return bt_fail(err, BT_E_UNSUPPORTED, "layer %u: %s rows have %u values, which is not a "
                       "multiple of the %u that a block of %s holds; use another cache type",
                       layer, what, dim, info->block_elems, info->name);
    }
    return BT_OK;
}

static bt_status lay_out(bt_kv_pool *pool, const bt_kv_pool_options *o, bt_error *err)
{
    bt_kv_layout *l = &pool->layout;
    *l = (bt_kv_layout){ .page_tokens = BT_KV_PAGE_TOKENS, .type_k = o->type_k,
                         .type_v = o->type_v, .n_layers = o->n_layers };
    l->layers = bt_alloc_zero(BT_MEM_kv, o->n_layers, sizeof *l->layers);
    if (!l->layers) {
        return bt_fail_nomem(err, o->n_layers * sizeof *l->layers, "the layout of KV pages");
    }
    for (uint32_t i = 0; i < o->n_layers; i++) {
        bt_kv_layer *y = &l->layers[i];
        y->k_dim = o->k_dims[i];
        y->v_dim = o->v_dims[i];
        BT_TRY(row_bytes("K", i, o->type_k, y->k_dim, &y->k_row_bytes, err));
        BT_TRY(row_bytes("V", i, o->type_v, y->v_dim, &y->v_row_bytes, err));
        y->k_offset = l->page_bytes;
        y->v_offset = y->k_offset + aligned(BT_KV_PAGE_TOKENS * y->k_row_bytes);
        l->page_bytes = y->v_offset + aligned(BT_KV_PAGE_TOKENS * y->v_row_bytes);
        pool->token_bytes += y->k_row_bytes + y->v_row_bytes;
    }
    if (l->page_bytes == 0) {
        return bt_fail(err, BT_E_UNSUPPORTED, "no layer of the model keeps K and V rows");
    }
    return BT_OK;
}

static bt_status reserve(bt_kv_pool *pool, bt_error *err)
{
    size_t total;
    if (!bt_size_mul(pool->n_pages, pool->layout.page_bytes, &total)) {
        return bt_fail(err, BT_E_NOMEM, "%u KV pages of %" PRIu64 " bytes are more than this "
                       "machine can address; use a smaller context", pool->n_pages,
                       pool->layout.page_bytes);
    }
    return bt_device_buffer_alloc(pool->device, total, &pool->layout.buffer, err);
}

static bt_status make_tables(bt_kv_pool *pool, bt_error *err)
{
    const uint32_t n = pool->n_pages;
    pool->holders = bt_alloc_zero(BT_MEM_kv, n, sizeof *pool->holders);
    pool->cached = bt_alloc_zero(BT_MEM_kv, n, sizeof *pool->cached);
    pool->poisoned = bt_alloc_zero(BT_MEM_kv, n, sizeof *pool->poisoned);
    pool->free_pages = bt_alloc_zero(BT_MEM_kv, n, sizeof *pool->free_pages);
    if (!pool->holders || !pool->cached || !pool->poisoned || !pool->free_pages) {
        return bt_fail_nomem(err, n * sizeof *pool->holders, "the tables of KV pages");
    }
    for (uint32_t i = 0; i < n; i++) {
        pool->free_pages[i] = n - 1 - i;
    }
    pool->n_free = n;
    return BT_OK;
}

static void release(bt_kv_pool *pool)
{
    bt_device_buffer_free(pool->device, pool->layout.buffer);
    bt_free(pool->layout.layers);
    bt_free(pool->holders);
    bt_free(pool->cached);
    bt_free(pool->poisoned);
    bt_free(pool->free_pages);
    bt_free(pool);
}

bt_status bt_kv_pool_create(bt_device *device, const bt_kv_pool_options *o, bt_kv_pool **ret_pool,
                            bt_error *err)
{
    BT_ASSERT(device);
    BT_ASSERT(o->n_layers >= 1);
    BT_ASSERT(o->n_pages >= 1);
    bt_kv_pool *pool = bt_alloc_zero(BT_MEM_kv, 1, sizeof *pool);
    if (!pool) {
        return bt_fail_nomem(err, sizeof *pool, "a pool of KV pages");
    }
    pool->device = device;
    pool->n_pages = o->n_pages;
    bt_status status = lay_out(pool, o, err);
    status = status != BT_OK ? status : reserve(pool, err);
    status = status != BT_OK ? status : make_tables(pool, err);
    if (status != BT_OK) {
        release(pool);
        return status;
    }
    *ret_pool = pool;
    return BT_OK;
}

void bt_kv_pool_destroy(bt_kv_pool *pool)
{
    if (pool) {
        BT_ASSERT(pool->n_free == pool->n_pages);
        release(pool);
    }
}

const bt_kv_layout *bt_kv_pool_layout(const bt_kv_pool *pool)
{
    return &pool->layout;
}

uint64_t bt_kv_token_bytes(const bt_kv_pool *pool)
{
    return pool->token_bytes;
}

/* ---- holding pages ---- */

/* Where a page begins in the buffer. */
static uint64_t page_at(const bt_kv_pool *pool, uint32_t page)
{
    return page * pool->layout.page_bytes;
}

static void poison(bt_kv_pool *pool, uint32_t page)
{
#ifndef NDEBUG
    bt_device_buffer_fill(pool->device, pool->layout.buffer, page_at(pool, page), POISON,
                          pool->layout.page_bytes);
    pool->poisoned[page] = true;
#else
    (void)pool;
    (void)page;
#endif
}

/* Whoever wrote to a page that nobody held would have spoilt somebody's rows. */
static void check_poison(const bt_kv_pool *pool, uint32_t page)
{
#ifndef NDEBUG
    const uint64_t size = pool->layout.page_bytes;
    uint8_t bytes[ALIGNMENT];          /* which page_bytes is a multiple of */
    for (uint64_t at = 0; pool->poisoned[page] && at < size; at += sizeof bytes) {
        bt_device_buffer_read(pool->device, pool->layout.buffer, page_at(pool, page) + at, bytes,
                              sizeof bytes);
        BT_ASSERT(bytes[0] == POISON);
        BT_ASSERT(memcmp(bytes, bytes + 1, sizeof bytes - 1) == 0);
    }
#else
    (void)pool;
    (void)page;
#endif
}

static void count_used(bt_kv_pool *pool)
{
    atomic_store_explicit(&pool->used, pool->n_pages - pool->n_free, memory_order_relaxed);
}

static bool is_idle(const bt_kv_pool *pool, uint32_t page)
{
    return pool->cached[page] && pool->holders[page] == 1;
}

/* After a change of holders or of the mark: `was` is what is_idle() said before. */
static void count_idle(bt_kv_pool *pool, uint32_t page, bool was)
{
    const bool is = is_idle(pool, page);
    if (is && !was) {
        atomic_fetch_add_explicit(&pool->idle, 1, memory_order_relaxed);
    } else if (was && !is) {
        atomic_fetch_sub_explicit(&pool->idle, 1, memory_order_relaxed);
    }
}

bt_status bt_kv_page_take(bt_kv_pool *pool, uint32_t *ret_page)
{
    if (pool->n_free == 0) {
        return BT_E_FULL;
    }
    const uint32_t page = pool->free_pages[--pool->n_free];
    BT_ASSERT(pool->holders[page] == 0);
    check_poison(pool, page);
    pool->holders[page] = 1;
    count_used(pool);
    *ret_page = page;
    return BT_OK;
}

void bt_kv_page_ref(bt_kv_pool *pool, uint32_t page)
{
    BT_ASSERT(page < pool->n_pages);
    BT_ASSERT(pool->holders[page] >= 1);
    const bool was = is_idle(pool, page);
    pool->holders[page]++;
    count_idle(pool, page, was);
}

void bt_kv_page_unref(bt_kv_pool *pool, uint32_t page)
{
    BT_ASSERT(page < pool->n_pages);
    BT_ASSERT(pool->holders[page] >= 1);
    const bool was = is_idle(pool, page);
    pool->holders[page]--;
    count_idle(pool, page, was);
    if (pool->holders[page] == 0) {
        BT_ASSERT(!pool->cached[page]);        /* the cache takes its mark off first */
        poison(pool, page);
        pool->free_pages[pool->n_free++] = page;
        count_used(pool);
    }
}

uint32_t bt_kv_page_holders(const bt_kv_pool *pool, uint32_t page)
{
    BT_ASSERT(page < pool->n_pages);
    return pool->holders[page];
}

void bt_kv_page_set_cached(bt_kv_pool *pool, uint32_t page, bool cached)
{
    BT_ASSERT(page < pool->n_pages);
    BT_ASSERT(pool->holders[page] >= 1);
    const bool was = is_idle(pool, page);
    pool->cached[page] = cached;
    count_idle(pool, page, was);
}

static void copy_tokens(bt_kv_pool *pool, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    const bt_buffer b = pool->layout.buffer;
    const uint64_t source = page_at(pool, from), target = page_at(pool, to);
    for (uint32_t i = 0; i < pool->layout.n_layers; i++) {
        const bt_kv_layer *y = &pool->layout.layers[i];
        bt_device_buffer_copy(pool->device, b, target + y->k_offset, source + y->k_offset,
                              n_tokens * y->k_row_bytes);
        bt_device_buffer_copy(pool->device, b, target + y->v_offset, source + y->v_offset,
                              n_tokens * y->v_row_bytes);
    }
}

bt_status bt_kv_page_make_writable(bt_kv_pool *pool, uint32_t page, uint32_t n_tokens,
                                   uint32_t *ret_page)
{
    BT_ASSERT(page < pool->n_pages);
    BT_ASSERT(pool->holders[page] >= 1);
    BT_ASSERT(n_tokens <= BT_KV_PAGE_TOKENS);
    if (pool->holders[page] == 1) {
        BT_ASSERT(!pool->cached[page]);        /* the caller's hold is not the cache's */
        *ret_page = page;
        return BT_OK;
    }
    uint32_t copy;
    BT_TRY(bt_kv_page_take(pool, &copy));
    copy_tokens(pool, page, copy, n_tokens);
    bt_kv_page_unref(pool, page);
    *ret_page = copy;
    return BT_OK;
}

uint32_t bt_kv_pool_used(const bt_kv_pool *pool)
{
    return atomic_load_explicit(&pool->used, memory_order_relaxed);
}

uint32_t bt_kv_pool_idle(const bt_kv_pool *pool)
{
    return atomic_load_explicit(&pool->idle, memory_order_relaxed);
}

uint32_t bt_kv_pool_total(const bt_kv_pool *pool)
{
    return pool->n_pages;
}

/* ---- rows in and out ---- */

/* A run of rows inside one page, and where it lies in the buffer. */
typedef struct {
    uint64_t k, v;
    uint32_t n;
} run_of_rows;

static run_of_rows run_at(const bt_kv_pool *pool, const uint32_t *pages, const bt_kv_layer *y,
                          uint32_t position, uint32_t n)
{
    const uint32_t slot = position % BT_KV_PAGE_TOKENS;
    const uint32_t room = BT_KV_PAGE_TOKENS - slot;
    const uint64_t page = page_at(pool, pages[position / BT_KV_PAGE_TOKENS]);
    return (run_of_rows){ .k = page + y->k_offset + slot * y->k_row_bytes,
                          .v = page + y->v_offset + slot * y->v_row_bytes,
                          .n = n < room ? n : room };
}

void bt_kv_rows_import(bt_kv_pool *pool, const uint32_t *pages, uint32_t layer, uint32_t position,
                       uint32_t n, const void *k, const void *v)
{
    BT_ASSERT(layer < pool->layout.n_layers);
    const bt_kv_layer *y = &pool->layout.layers[layer];
    const bt_buffer b = pool->layout.buffer;
    const uint8_t *from_k = k, *from_v = v;
    while (n > 0) {
        const run_of_rows run = run_at(pool, pages, y, position, n);
        if (y->k_row_bytes > 0) {
            bt_device_buffer_write(pool->device, b, run.k, from_k, run.n * y->k_row_bytes);
            from_k += run.n * y->k_row_bytes;
        }
        if (y->v_row_bytes > 0) {
            bt_device_buffer_write(pool->device, b, run.v, from_v, run.n * y->v_row_bytes);
            from_v += run.n * y->v_row_bytes;
        }
        position += run.n;
        n -= run.n;
    }
}

void bt_kv_rows_export(const bt_kv_pool *pool, const uint32_t *pages, uint32_t layer,
                       uint32_t position, uint32_t n, void *ret_k, void *ret_v)
{
    BT_ASSERT(layer < pool->layout.n_layers);
    const bt_kv_layer *y = &pool->layout.layers[layer];
    const bt_buffer b = pool->layout.buffer;
    uint8_t *to_k = ret_k, *to_v = ret_v;
    while (n > 0) {
        const run_of_rows run = run_at(pool, pages, y, position, n);
        if (y->k_row_bytes > 0) {
            bt_device_buffer_read(pool->device, b, run.k, to_k, run.n * y->k_row_bytes);
            to_k += run.n * y->k_row_bytes;
        }
        if (y->v_row_bytes > 0) {
            bt_device_buffer_read(pool->device, b, run.v, to_v, run.n * y->v_row_bytes);
            to_v += run.n * y->v_row_bytes;
        }
        position += run.n;
        n -= run.n;
    }
}
