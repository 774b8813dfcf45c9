/* kv/prefix.h: what is found, what gives way, and what is forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
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

/* A sequence of consecutive numbers from `first`, its pages taken from the pool. */
typedef struct {
    uint32_t tokens[TOKENS_MAX], pages[PAGES_MAX];
    uint32_t n, n_pages;
} sequence;

static void fill_pages(bt_kv_pool *pool, sequence *s, uint32_t have)
{
    s->n_pages = (s->n + P - 1) / P;
    for (uint32_t i = have; i < s->n_pages; i++) {
        assert_int_equal(bt_kv_page_take(pool, &s->pages[i]), BT_OK);
    }
}

static sequence count_from(bt_kv_pool *pool, uint32_t first, uint32_t n)
{
    sequence s = { .n = n };
    for (uint32_t i = 0; i < n; i++) {
        s.tokens[i] = first + i;
    }
    fill_pages(pool, &s, 0);
    return s;
}

static void put(bt_kv_prefix *t, const sequence *s)
{
    bt_kv_prefix_cursor cursor = { 0 };
    bt_kv_prefix_put(t, 0, s->tokens, s->n, s->pages, &cursor);
}

static void drop(bt_kv_pool *pool, sequence *s)
{
    for (uint32_t i = 0; i < s->n_pages; i++) {
        bt_kv_page_unref(pool, s->pages[i]);
    }
    s->n_pages = 0;
}

static void close_all(bt_kv_prefix *t, bt_kv_pool *pool)
{
    bt_kv_prefix_destroy(t);
    assert_int_equal(bt_kv_pool_used(pool), 0);
    bt_kv_pool_destroy(pool);
}

static void a_prompt_is_found_again_to_its_last_token(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(8);
    bt_kv_prefix *t = tree_of(pool, 8);
    sequence s = count_from(pool, 0, 2 * P + 5);
    put(t, &s);
    drop(pool, &s);
    assert_int_equal(bt_kv_prefix_count(t), 3);
    assert_int_equal(bt_kv_pool_idle(pool), 3);
    uint32_t pages[3];
    assert_int_equal(bt_kv_prefix_take(t, 0, s.tokens, s.n, pages), 2 * P + 5);
    assert_memory_equal(pages, s.pages, sizeof pages);
    assert_int_equal(bt_kv_pool_idle(pool), 0);
    for (int i = 0; i < 3; i++) {
        bt_kv_page_unref(pool, pages[i]);
    }
    close_all(t, pool);
}

static void a_match_may_end_inside_a_page(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(8);
    bt_kv_prefix *t = tree_of(pool, 8);
    sequence s = count_from(pool, 0, 2 * P);
    put(t, &s);
    for (uint32_t same = 0; same <= 2 * P; same++) {
        uint32_t tokens[2 * P + 4], pages[3] = { 99, 99, 99 };
        for (uint32_t i = 0; i < 2 * P + 4; i++) {
            tokens[i] = i < same ? i : 1000 + i;
        }
        assert_int_equal(bt_kv_prefix_match(t, 0, tokens, 2 * P + 4), same);
        assert_int_equal(bt_kv_prefix_take(t, 0, tokens, 2 * P + 4, pages), same);
        for (uint32_t i = 0; i < (same + P - 1) / P; i++) {
            assert_int_equal(pages[i], s.pages[i]);
            bt_kv_page_unref(pool, pages[i]);
        }
        assert_int_equal(pages[(same + P - 1) / P], 99);
    }
    drop(pool, &s);
    close_all(t, pool);
}

static void keys_do_not_mix(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(8);
    bt_kv_prefix *t = tree_of(pool, 8);
    sequence a = count_from(pool, 0, P + 7), b = count_from(pool, 0, P + 7);
    bt_kv_prefix_cursor cursor = { 0 };
    bt_kv_prefix_put(t, 1, a.tokens, a.n, a.pages, &cursor);
    assert_int_equal(bt_kv_prefix_match(t, 2, a.tokens, a.n), 0);
    cursor = (bt_kv_prefix_cursor){ 0 };
    bt_kv_prefix_put(t, 2, b.tokens, b.n, b.pages, &cursor);
    assert_int_equal(bt_kv_prefix_count(t), 4);
    uint32_t pages[2];
    assert_int_equal(bt_kv_prefix_take(t, 2, a.tokens, a.n, pages), P + 7);
    assert_memory_equal(pages, b.pages, sizeof pages);
    drop(pool, &a);
    drop(pool, &b);
    for (int i = 0; i < 2; i++) {
        bt_kv_page_unref(pool, pages[i]);
    }
    close_all(t, pool);
}

static void a_partly_filled_page_gives_way_to_its_continuation(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(8);
    bt_kv_prefix *t = tree_of(pool, 8);
    sequence part = count_from(pool, 0, 10), more = count_from(pool, 0, 20);
    sequence full = count_from(pool, 0, P + 1);
    put(t, &part);
    put(t, &more);
    assert_int_equal(bt_kv_prefix_count(t), 1);
    assert_int_equal(bt_kv_page_holders(pool, part.pages[0]), 1);
    put(t, &full);
    assert_int_equal(bt_kv_prefix_count(t), 2);
    put(t, &part);                                        /* known already */
    assert_int_equal(bt_kv_prefix_count(t), 2);
    assert_int_equal(bt_kv_prefix_match(t, 0, full.tokens, full.n), P + 1);
    drop(pool, &part);
    drop(pool, &more);
    drop(pool, &full);
    close_all(t, pool);
}

static void eviction_takes_the_oldest_use_and_leaves_before_their_parents(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(8);
    bt_kv_prefix *t = tree_of(pool, 8);
    sequence a = count_from(pool, 0, 2 * P), b = count_from(pool, 5000, 2 * P);
    put(t, &a);
    put(t, &b);
    drop(pool, &a);
    drop(pool, &b);
    uint32_t pages[2];
    assert_int_equal(bt_kv_prefix_take(t, 0, a.tokens, 2 * P, pages), 2 * P);   /* a is younger */
    bt_kv_page_unref(pool, pages[0]);
    bt_kv_page_unref(pool, pages[1]);
    const struct { uint32_t a, b; } left[] = { { 2 * P, P }, { 2 * P, 0 }, { P, 0 }, { 0, 0 } };
    for (int i = 0; i < 4; i++) {
        assert_true(bt_kv_prefix_evict(t));
        assert_int_equal(bt_kv_prefix_match(t, 0, a.tokens, 2 * P), left[i].a);
        assert_int_equal(bt_kv_prefix_match(t, 0, b.tokens, 2 * P), left[i].b);
    }
    assert_false(bt_kv_prefix_evict(t));
    close_all(t, pool);
}

static void pages_in_use_are_never_evicted(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(8);
    bt_kv_prefix *t = tree_of(pool, 8);
    sequence a = count_from(pool, 0, 3 * P);
    put(t, &a);
    assert_false(bt_kv_prefix_evict(t));
    bt_kv_page_unref(pool, a.pages[2]);
    assert_true(bt_kv_prefix_evict(t));
    assert_false(bt_kv_prefix_evict(t));
    assert_int_equal(bt_kv_prefix_match(t, 0, a.tokens, 3 * P), 2 * P);
    a.n_pages = 2;
    drop(pool, &a);
    close_all(t, pool);
}

/* Else the older pages hung above newer ones that are in use, and nothing could free them. */
static void a_page_computed_once_more_takes_the_older_ones_place(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(6);
    bt_kv_prefix *t = tree_of(pool, 6);
    sequence old = count_from(pool, 0, 2 * P);
    put(t, &old);
    uint32_t held[2];
    assert_int_equal(bt_kv_prefix_take(t, 0, old.tokens, P, held), P);  /* somebody reads it */
    drop(pool, &old);
    sequence again = count_from(pool, 0, 3 * P);
    put(t, &again);
    assert_int_equal(bt_kv_prefix_count(t), 3);
    assert_int_equal(bt_kv_pool_used(pool), 4);            /* three, and the one that is read */
    assert_int_equal(bt_kv_page_holders(pool, held[0]), 1);
    uint32_t pages[3];
    assert_int_equal(bt_kv_prefix_take(t, 0, again.tokens, again.n, pages), 3 * P);
    assert_memory_equal(pages, again.pages, sizeof pages);
    for (int i = 0; i < 3; i++) {
        bt_kv_page_unref(pool, pages[i]);
    }
    bt_kv_page_unref(pool, held[0]);
    drop(pool, &again);
    close_all(t, pool);
}

static void the_bound_holds_and_new_pages_push_old_ones_out(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(16);
    bt_kv_prefix *t = tree_of(pool, 3);
    sequence a = count_from(pool, 0, 2 * P), b = count_from(pool, 5000, 2 * P);
    put(t, &a);
    drop(pool, &a);
    put(t, &b);
    assert_int_equal(bt_kv_prefix_count(t), 3);
    assert_int_equal(bt_kv_prefix_match(t, 0, b.tokens, 2 * P), 2 * P);
    assert_int_equal(bt_kv_prefix_match(t, 0, a.tokens, 2 * P), P);
    sequence c = count_from(pool, 9000, 4 * P);           /* more than there is room for */
    put(t, &c);
    assert_int_equal(bt_kv_prefix_count(t), 3);
    assert_int_equal(bt_kv_prefix_match(t, 0, c.tokens, 4 * P), P);
    drop(pool, &b);
    drop(pool, &c);
    close_all(t, pool);
}

static void a_forgotten_path_goes_up_to_the_next_branch(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(16);
    bt_kv_prefix *t = tree_of(pool, 16);
    sequence a = count_from(pool, 0, 3 * P + 4), b = count_from(pool, 0, 2 * P);
    for (uint32_t i = P; i < 2 * P; i++) {
        b.tokens[i] += 1000;                              /* shares the first page */
    }
    put(t, &a);
    put(t, &b);
    bt_kv_prefix_forget(t, 0, a.tokens, a.n);
    assert_int_equal(bt_kv_prefix_match(t, 0, a.tokens, a.n), P);
    assert_int_equal(bt_kv_prefix_match(t, 0, b.tokens, b.n), 2 * P);
    bt_kv_prefix_forget(t, 0, b.tokens, b.n);
    assert_int_equal(bt_kv_prefix_count(t), 0);
    bt_kv_prefix_forget(t, 0, b.tokens, b.n);             /* nothing to forget */
    drop(pool, &a);
    drop(pool, &b);
    close_all(t, pool);
}

/* A cursor whose node was evicted and whose slot lives again as another node is noticed. */
static void a_stale_cursor_is_noticed(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(16);
    bt_kv_prefix *t = tree_of(pool, 1);
    sequence mine = count_from(pool, 0, 2 * P), copy = count_from(pool, 0, P);
    bt_kv_prefix_cursor cursor = { 0 };
    put(t, &copy);
    bt_kv_prefix_put(t, 0, mine.tokens, P, mine.pages, &cursor);   /* known: the copy's node */
    drop(pool, &copy);
    sequence other = count_from(pool, 7000, P);
    put(t, &other);                                                /* evicts it, same slot */
    drop(pool, &other);
    bt_kv_prefix_put(t, 0, mine.tokens, 2 * P, mine.pages, &cursor);
    assert_int_equal(bt_kv_prefix_match(t, 0, mine.tokens, 2 * P), P);
    uint32_t wrong[2 * P];
    for (uint32_t i = 0; i < 2 * P; i++) {
        wrong[i] = i < P ? 7000 + i : i;
    }
    assert_int_equal(bt_kv_prefix_match(t, 0, wrong, 2 * P), 0);
    drop(pool, &mine);
    close_all(t, pool);
}

static void nothing_allocates_after_create(void **state)
{
    (void)state;
    bt_kv_pool *pool = pool_of(16);
    bt_kv_prefix *t = tree_of(pool, 8);
    const uint64_t before = bt_memory_calls();
    for (uint32_t i = 0; i < 50; i++) {
        sequence s = count_from(pool, i * 3, 3 * P + i % P);
        put(t, &s);
        drop(pool, &s);
    }
    assert_int_equal(bt_memory_calls(), before);
    close_all(t, pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_found_again_to_its_last_token),
        cmocka_unit_test(a_match_may_end_inside_a_page),
        cmocka_unit_test(keys_do_not_mix),
        cmocka_unit_test(a_partly_filled_page_gives_way_to_its_continuation),
        cmocka_unit_test(eviction_takes_the_oldest_use_and_leaves_before_their_parents),
        cmocka_unit_test(pages_in_use_are_never_evicted),
        cmocka_unit_test(a_page_computed_once_more_takes_the_older_ones_place),
        cmocka_unit_test(the_bound_holds_and_new_pages_push_old_ones_out),
        cmocka_unit_test(a_forgotten_path_goes_up_to_the_next_branch),
        cmocka_unit_test(a_stale_cursor_is_noticed),
        cmocka_unit_test(nothing_allocates_after_create),
    };
    return cmocka_run_group_tests_name("kv/prefix", tests, NULL, NULL);
}
