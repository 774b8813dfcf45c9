/* tests/unit/route/cache_hint.c - what a worker's cache should hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "route/cache_hint.h"

enum { N = 1000 };

static void beginnings_are_known(void **state)
{
    (void)state;
    bt_cache_hint *k = calloc(1, sizeof *k);
    uint32_t a[N], b[N];
    for (uint32_t i = 0; i < N; i++) {
        a[i] = b[i] = i * 7;
    }
    assert_int_equal(bt_route_cache_hint_find(k, 7, a, N), 0);
    bt_route_cache_hint_put(k, 7, a, N);
    assert_int_equal(bt_route_cache_hint_find(k, 7, a, N),
                     N / BT_CACHE_HINT_BLOCK * BT_CACHE_HINT_BLOCK);
    assert_int_equal(bt_route_cache_hint_find(k, 7, a, 200), 192);
    assert_int_equal(bt_route_cache_hint_find(k, 7, a, 63), 0);
    b[300] ^= 1;                        /* everything behind it is another text */
    assert_int_equal(bt_route_cache_hint_find(k, 7, b, N), 256);
    assert_int_equal(bt_route_cache_hint_find(k, 7, a + 64, 128), 0); /* the same words elsewhere */
    assert_int_equal(bt_route_cache_hint_find(k, 8, a, N), 0);        /* another tenant */
    bt_route_cache_hint_clear(k);
    assert_int_equal(bt_route_cache_hint_find(k, 7, a, N), 0);
    free(k);
}

/* Blocks of one prompt fall into the same places; its beginning is known all the same. */
static void long_prompts_are_known_whole(void **state)
{
    (void)state;
    enum { MANY = 2000 * BT_CACHE_HINT_BLOCK };
    bt_cache_hint *k = calloc(1, sizeof *k);
    uint32_t *tokens = malloc(MANY * sizeof *tokens);
    for (uint32_t seed = 0; seed < 20; seed++) {
        for (uint32_t i = 0; i < MANY; i++) {
            tokens[i] = i * 31 + seed;
        }
        bt_route_cache_hint_put(k, 7, tokens, MANY);
        assert_int_equal(bt_route_cache_hint_find(k, 7, tokens, MANY), MANY);
    }
    free(tokens);
    free(k);
}

/* More than it can remember: what came last is known, and memory does not grow. */
static void the_newest_stay(void **state)
{
    (void)state;
    bt_cache_hint *k = calloc(1, sizeof *k);
    uint32_t tokens[BT_CACHE_HINT_BLOCK];
    for (uint32_t i = 0; i < 4 * BT_CACHE_HINT_SLOTS; i++) {
        for (uint32_t j = 0; j < BT_CACHE_HINT_BLOCK; j++) {
            tokens[j] = i + j;
        }
        bt_route_cache_hint_put(k, 7, tokens, BT_CACHE_HINT_BLOCK);
        assert_int_equal(bt_route_cache_hint_find(k, 7, tokens, BT_CACHE_HINT_BLOCK),
                         BT_CACHE_HINT_BLOCK);
    }
    free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beginnings_are_known),
        cmocka_unit_test(long_prompts_are_known_whole),
        cmocka_unit_test(the_newest_stay),
    };
    return cmocka_run_group_tests_name("handoff/known", tests, NULL, NULL);
}
