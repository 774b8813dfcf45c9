/* kv/prefix.h, random operations against a list of everything that was ever entered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kv/prefix.h"
#include "unit/kv/memory_device.h"

enum { P = BT_KV_PAGE_TOKENS, TOKENS_MAX = 8 * P, PAGES_MAX = 8 };

static memory_device device = { .device.ops = &memory_ops };

static bt_kv_pool *pool_of(uint32_t n_pages)
{
    static const uint32_t dims[1] = { 2 };
    const bt_kv_pool_options o = { .n_layers = 1, .k_dims = dims, .v_dims = dims,
                                   .type_k = BT_TYPE_F32, .type_v = BT_TYPE_F32,
                                   .n_pages = n_pages };
    bt_kv_pool *pool = NULL;
    bt_error err = { 0 };
    assert_int_equal(bt_kv_pool_create(&device.device, &o, &pool, &err), BT_OK);
    return pool;
}

static bt_kv_prefix *tree_of(bt_kv_pool *pool, uint32_t n_max)
{
    bt_kv_prefix *t = NULL;
    bt_error err = { 0 };
    assert_int_equal(bt_kv_prefix_create(pool, n_max, &t, &err), BT_OK);
    return t;
}

static void close_all(bt_kv_prefix *t, bt_kv_pool *pool)
{
    bt_kv_prefix_destroy(t);
    assert_int_equal(bt_kv_pool_used(pool), 0);
    bt_kv_pool_destroy(pool);
}

/* ---- property: the longest known beginning, whatever was entered in whatever order ---- */

enum { KNOWN_MAX = 4096, HELD_MAX = 6 };

typedef struct { uint32_t tokens[TOKENS_MAX]; uint32_t n; } prompt;

static prompt known[KNOWN_MAX];
static size_t n_known;

static uint32_t common(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b)
{
    uint32_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* What the tree promises without eviction: it knows all prefixes of all that was entered. */
static uint32_t longest_known(const uint32_t *tokens, uint32_t n)
{
    uint32_t best = 0;
    for (size_t i = 0; i < n_known; i++) {
        const uint32_t c = common(tokens, n, known[i].tokens, known[i].n);
        best = c > best ? c : best;
    }
    return best;
}

/* Few tokens, so that prompts share beginnings; often the beginning of a known one. */
static void random_prompt(bt_mt19937 *g, prompt *p)
{
    p->n = 1 + bt_mt19937_next(g) % TOKENS_MAX;
    uint32_t i = 0;
    if (n_known > 0 && bt_mt19937_next(g) % 4 != 0) {
        const prompt *from = &known[bt_mt19937_next(g) % n_known];
        i = bt_mt19937_next(g) % (from->n + 1);
        i = i > p->n ? p->n : i;
        memcpy(p->tokens, from->tokens, i * sizeof *p->tokens);
    }
    for (; i < p->n; i++) {
        p->tokens[i] = bt_mt19937_next(g) % 3;
    }
}

/* Runs a sequence as the engine does: shares what is known, copies the page it writes to, enters
 * full pages on the way and the rest at the end. Pages carry their tokens as rows, so that shared
 * rows are proved to be the right ones. */
typedef struct { prompt p; uint32_t pages[PAGES_MAX], n_pages; bool live; } runner;

static void write_rows(bt_kv_pool *pool, runner *r, uint32_t from)
{
    for (uint32_t i = from; i < r->p.n; i++) {
        const uint32_t k[2] = { r->p.tokens[i], i }, v[2] = { i, r->p.tokens[i] };
        bt_kv_rows_import(pool, r->pages, 0, i, 1, k, v);
    }
}

static void check_rows(const bt_kv_pool *pool, const runner *r)
{
    for (uint32_t i = 0; i < r->p.n; i++) {
        uint32_t k[2], v[2];
        bt_kv_rows_export(pool, r->pages, 0, i, 1, k, v);
        assert_int_equal(k[0], r->p.tokens[i]);
        assert_int_equal(k[1], i);
        assert_int_equal(v[0], i);
        assert_int_equal(v[1], r->p.tokens[i]);
    }
}

static bool take_page(bt_kv_pool *pool, bt_kv_prefix *t, uint32_t *page)
{
    while (bt_kv_page_take(pool, page) != BT_OK) {
        if (!bt_kv_prefix_evict(t)) {
            return false;
        }
    }
    return true;
}

static bool start(bt_kv_pool *pool, bt_kv_prefix *t, runner *r, uint32_t *ret_matched)
{
    const uint32_t matched = bt_kv_prefix_take(t, 0, r->p.tokens, r->p.n, r->pages);
    r->n_pages = (matched + P - 1) / P;
    r->live = true;
    *ret_matched = matched;
    if (matched % P != 0 && matched < r->p.n) {
        uint32_t *last = &r->pages[r->n_pages - 1];
        while (bt_kv_page_make_writable(pool, *last, matched % P, last) != BT_OK) {
            if (!bt_kv_prefix_evict(t)) {
                return false;
            }
        }
    }
    while (r->n_pages < (r->p.n + P - 1) / P) {
        if (!take_page(pool, t, &r->pages[r->n_pages])) {
            return false;
        }
        r->n_pages++;
    }
    write_rows(pool, r, matched);
    return true;
}

static void stop(bt_kv_pool *pool, runner *r)
{
    for (uint32_t i = 0; i < r->n_pages; i++) {
        bt_kv_page_unref(pool, r->pages[i]);
    }
    r->live = false;
}

static void random_operations(uint32_t seed, uint32_t n_pages, uint32_t n_tree, int n_steps)
{
    static runner held[HELD_MAX];
    memset(held, 0, sizeof held);
    bt_kv_pool *pool = pool_of(n_pages);
    bt_kv_prefix *t = tree_of(pool, n_tree);
    const bool never_evicts = n_tree >= 100000;
    bt_mt19937 g;
    bt_mt19937_init(&g, seed);
    n_known = 0;
    for (int step = 0; step < n_steps; step++) {
        runner *r = &held[bt_mt19937_next(&g) % HELD_MAX];
        if (r->live) {
            check_rows(pool, r);
            stop(pool, r);
            continue;
        }
        random_prompt(&g, &r->p);
        uint32_t matched = 0;
        const uint32_t expected = longest_known(r->p.tokens, r->p.n);
        const bool room = start(pool, t, r, &matched);
        assert_true(never_evicts ? matched == expected : matched <= expected);
        if (!room) {
            stop(pool, r);
            continue;
        }
        bt_kv_prefix_cursor cursor = { 0 };
        const uint32_t n_cuts = bt_mt19937_next(&g) % 4;
        for (uint32_t i = 0; i < n_cuts; i++) {           /* in any number of growing steps */
            const uint32_t part = (uint32_t)((uint64_t)r->p.n * (i + 1) / (n_cuts + 1)) / P * P;
            bt_kv_prefix_put(t, 0, r->p.tokens, part, r->pages, &cursor);
        }
        bt_kv_prefix_put(t, 0, r->p.tokens, r->p.n, r->pages, &cursor);
        assert_true(n_known < KNOWN_MAX);
        known[n_known++] = r->p;
        assert_true(bt_kv_prefix_count(t) <= n_tree);
    }
    for (int i = 0; i < HELD_MAX; i++) {
        if (held[i].live) {
            check_rows(pool, &held[i]);
            stop(pool, &held[i]);
        }
    }
    assert_int_equal(bt_kv_pool_used(pool), bt_kv_prefix_count(t));
    assert_int_equal(bt_kv_pool_idle(pool), bt_kv_prefix_count(t));
    close_all(t, pool);
}

static void equals_brute_force_without_eviction(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 6; seed++) {
        random_operations(seed, 20000, 100000, 1200);
    }
}

static void shares_only_right_rows_under_eviction(void **state)
{
    (void)state;
    for (uint32_t seed = 11; seed <= 18; seed++) {
        random_operations(seed, 24 + seed, 1000, 1500);
        random_operations(seed, 60, 8, 1500);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_brute_force_without_eviction),
        cmocka_unit_test(shares_only_right_rows_under_eviction),
    };
    return cmocka_run_group_tests_name("kv/prefix_random", tests, NULL, NULL);
}
