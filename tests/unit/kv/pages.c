/* kv/pages.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "kv/pages.h"
#include "unit/kv/memory_device.h"

enum { LAYERS = 3, PAGES = 4 };

static const uint32_t k_dims[LAYERS] = { 32, 0, 64 }, v_dims[LAYERS] = { 64, 0, 32 };

typedef struct {
    memory_device device;
    bt_kv_pool   *pool;
} fixture;

static bt_kv_pool_options options_of(bt_type type_k, bt_type type_v)
{
    return (bt_kv_pool_options){ .n_layers = LAYERS, .k_dims = k_dims, .v_dims = v_dims,
                                 .type_k = type_k, .type_v = type_v, .n_pages = PAGES };
}

static int pool_of_4(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->device.device.ops = &memory_ops;
    const bt_kv_pool_options o = options_of(BT_TYPE_F32, BT_TYPE_F16);
    bt_error err = { 0 };
    if (bt_kv_pool_create(&f->device.device, &o, &f->pool, &err) != BT_OK) {
        return -1;
    }
    *state = f;
    return 0;
}

static int pool_done(void **state)
{
    fixture *f = *state;
    bt_kv_pool_destroy(f->pool);
    const int left = f->device.n_buffers;
    free(f);
    return left;
}

static uint32_t take(bt_kv_pool *pool)
{
    uint32_t page = UINT32_MAX;
    assert_int_equal(bt_kv_page_take(pool, &page), BT_OK);
    return page;
}

static void second_holder_copies_before_writing(void **state)
{
    bt_kv_pool *pool = ((fixture *)*state)->pool;
    const uint32_t a = take(pool);
    uint32_t b = UINT32_MAX;
    bt_kv_page_ref(pool, a);                          /* two sequences, one prompt */
    assert_int_equal(bt_kv_page_make_writable(pool, a, 5, &b), BT_OK);
    assert_int_not_equal(a, b);
    assert_int_equal(bt_kv_pool_used(pool), 2);
    bt_kv_page_unref(pool, a);
    bt_kv_page_unref(pool, b);
    assert_int_equal(bt_kv_pool_used(pool), 0);
}

static void only_holder_writes_in_place(void **state)
{
    bt_kv_pool *pool = ((fixture *)*state)->pool;
    const uint32_t a = take(pool);
    uint32_t b = UINT32_MAX;
    assert_int_equal(bt_kv_page_make_writable(pool, a, 5, &b), BT_OK);
    assert_int_equal(a, b);
    assert_int_equal(bt_kv_pool_used(pool), 1);
    bt_kv_page_unref(pool, a);
}

static void empty_pool_says_full_and_changes_nothing(void **state)
{
    bt_kv_pool *pool = ((fixture *)*state)->pool;
    uint32_t pages[PAGES], page = 77;
    for (int i = 0; i < PAGES; i++) {
        pages[i] = take(pool);
    }
    assert_int_equal(bt_kv_page_take(pool, &page), BT_E_FULL);
    bt_kv_page_ref(pool, pages[0]);
    assert_int_equal(bt_kv_page_make_writable(pool, pages[0], 1, &page), BT_E_FULL);
    assert_int_equal(page, 77);
    assert_int_equal(bt_kv_page_holders(pool, pages[0]), 2);
    bt_kv_page_unref(pool, pages[0]);
    assert_int_equal(bt_kv_pool_used(pool), PAGES);
    for (int i = 0; i < PAGES; i++) {
        bt_kv_page_unref(pool, pages[i]);
    }
}

static void idle_pages_are_those_only_the_cache_holds(void **state)
{
    bt_kv_pool *pool = ((fixture *)*state)->pool;
    const uint32_t a = take(pool);
    assert_int_equal(bt_kv_pool_idle(pool), 0);
    bt_kv_page_ref(pool, a);
    bt_kv_page_set_cached(pool, a, true);
    assert_int_equal(bt_kv_pool_idle(pool), 0);
    bt_kv_page_unref(pool, a);
    assert_int_equal(bt_kv_pool_idle(pool), 1);
    bt_kv_page_ref(pool, a);
    assert_int_equal(bt_kv_pool_idle(pool), 0);
    bt_kv_page_unref(pool, a);
    bt_kv_page_set_cached(pool, a, false);
    assert_int_equal(bt_kv_pool_idle(pool), 0);
    bt_kv_page_unref(pool, a);
}

/* The layout as written down: layers one after the other, K before V, rows by token. */
static void the_layout_leaves_no_row_overlapping(void **state)
{
    const bt_kv_pool *pool = ((fixture *)*state)->pool;
    const bt_kv_layout *l = bt_kv_pool_layout(pool);
    uint64_t end = 0, token_bytes = 0;
    assert_int_equal(l->page_tokens, BT_KV_PAGE_TOKENS);
    assert_int_equal(l->n_layers, LAYERS);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(l->layers[i].k_row_bytes, k_dims[i] * 4);
        assert_int_equal(l->layers[i].v_row_bytes, v_dims[i] * 2);
        assert_true(l->layers[i].k_offset >= end);
        end = l->layers[i].k_offset + BT_KV_PAGE_TOKENS * l->layers[i].k_row_bytes;
        assert_true(l->layers[i].v_offset >= end);
        end = l->layers[i].v_offset + BT_KV_PAGE_TOKENS * l->layers[i].v_row_bytes;
        token_bytes += l->layers[i].k_row_bytes + l->layers[i].v_row_bytes;
    }
    assert_true(l->page_bytes >= end);
    assert_int_equal(bt_kv_token_bytes(pool), token_bytes);
}

/* Rows of every layer, cut at every place, come out as they went in and nowhere else. */
static void rows_go_in_and_out_across_pages(void **state)
{
    bt_kv_pool *pool = ((fixture *)*state)->pool;
    enum { N = 3 * BT_KV_PAGE_TOKENS };
    uint32_t pages[PAGES];
    static uint8_t k[LAYERS][N * 256], v[LAYERS][N * 128], got_k[N * 256], got_v[N * 128];
    bt_mt19937 g;
    bt_mt19937_init(&g, 5);
    for (int i = 0; i < PAGES; i++) {
        pages[i] = take(pool);
    }
    const uint32_t order[3] = { pages[2], pages[0], pages[3] };
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const size_t kb = k_dims[layer] * 4, vb = v_dims[layer] * 2;
        for (size_t i = 0; i < sizeof k[layer]; i++) {
            k[layer][i] = (uint8_t)bt_mt19937_next(&g);
        }
        for (size_t i = 0; i < sizeof v[layer]; i++) {
            v[layer][i] = (uint8_t)bt_mt19937_next(&g);
        }
        for (uint32_t at = 0; at < N;) {
            uint32_t n = 1 + bt_mt19937_next(&g) % 50;
            n = n > N - at ? N - at : n;
            bt_kv_rows_import(pool, order, layer, at, n, k[layer] + at * kb, v[layer] + at * vb);
            at += n;
        }
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const size_t kb = k_dims[layer] * 4, vb = v_dims[layer] * 2;
        for (uint32_t at = 0; at < N; at++) {
            const uint32_t n = 1 + bt_mt19937_next(&g) % (N - at);
            memset(got_k, 0, sizeof got_k);
            memset(got_v, 0, sizeof got_v);
            bt_kv_rows_export(pool, order, layer, at, n, got_k, got_v);
            assert_memory_equal(got_k, k[layer] + at * kb, n * kb);
            assert_memory_equal(got_v, v[layer] + at * vb, n * vb);
        }
    }
    for (int i = 0; i < PAGES; i++) {
        bt_kv_page_unref(pool, pages[i]);
    }
}

static void a_copy_holds_the_positions_that_were_asked_for(void **state)
{
    bt_kv_pool *pool = ((fixture *)*state)->pool;
    const uint32_t a = take(pool);
    uint8_t k[8 * 256], v[8 * 64], got_k[8 * 256], got_v[8 * 64];
    memset(k, 0x5A, sizeof k);
    memset(v, 0xA5, sizeof v);
    bt_kv_rows_import(pool, &a, 2, 0, 8, k, v);
    bt_kv_page_ref(pool, a);
    uint32_t b;
    assert_int_equal(bt_kv_page_make_writable(pool, a, 7, &b), BT_OK);
    memset(k, 0, 256);
    memset(v, 0, 64);
    bt_kv_rows_import(pool, &b, 2, 7, 1, k, v);
    memset(k, 0x5A, 256);
    memset(v, 0xA5, 64);
    bt_kv_rows_export(pool, &b, 2, 0, 7, got_k, got_v);
    assert_memory_equal(got_k, k, 7 * 256);
    assert_memory_equal(got_v, v, 7 * 64);
    bt_kv_rows_export(pool, &a, 2, 7, 1, got_k, got_v);       /* the other holder's row stays */
    assert_memory_equal(got_k, k, 256);
    assert_memory_equal(got_v, v, 64);
    bt_kv_page_unref(pool, a);
    bt_kv_page_unref(pool, b);
}

static void types_that_cannot_hold_a_row_are_refused_by_name(void **state)
{
    (void)state;
    const struct { bt_type k, v; const char *says; } cases[] = {
        { BT_TYPE_Q4_K, BT_TYPE_F16, "multiple" },
        { BT_TYPE_F16, BT_TYPE_I32, "I32" },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        memory_device d = { .device.ops = &memory_ops };
        const bt_kv_pool_options o = options_of(cases[i].k, cases[i].v);
        bt_kv_pool *pool = NULL;
        bt_error err = { 0 };
        assert_int_equal(bt_kv_pool_create(&d.device, &o, &pool, &err), BT_E_UNSUPPORTED);
        assert_null(pool);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_int_equal(d.n_buffers, 0);
    }
}

static void create_survives_every_failure(void **state)
{
    (void)state;
    const bt_kv_pool_options o = options_of(BT_TYPE_F32, BT_TYPE_F32);
    memory_device d = { .device.ops = &memory_ops, .refuse = true };
    bt_kv_pool *pool = NULL;
    bt_error err = { 0 };
    assert_int_equal(bt_kv_pool_create(&d.device, &o, &pool, &err), BT_E_NOMEM);
    d.refuse = false;
    for (uint64_t n = 1;; n++) {
        bt_memory_fail_after(n);
        const bt_status status = bt_kv_pool_create(&d.device, &o, &pool, &err);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            assert_true(n > 4);
            bt_kv_pool_destroy(pool);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_int_equal(d.n_buffers, 0);
    }
    assert_int_equal(d.n_buffers, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(second_holder_copies_before_writing, pool_of_4, pool_done),
        cmocka_unit_test_setup_teardown(only_holder_writes_in_place, pool_of_4, pool_done),
        cmocka_unit_test_setup_teardown(empty_pool_says_full_and_changes_nothing, pool_of_4,
                                        pool_done),
        cmocka_unit_test_setup_teardown(idle_pages_are_those_only_the_cache_holds, pool_of_4,
                                        pool_done),
        cmocka_unit_test_setup_teardown(the_layout_leaves_no_row_overlapping, pool_of_4, pool_done),
        cmocka_unit_test_setup_teardown(rows_go_in_and_out_across_pages, pool_of_4, pool_done),
        cmocka_unit_test_setup_teardown(a_copy_holds_the_positions_that_were_asked_for, pool_of_4,
                                        pool_done),
        cmocka_unit_test(types_that_cannot_hold_a_row_are_refused_by_name),
        cmocka_unit_test(create_survives_every_failure),
    };
    return cmocka_run_group_tests_name("kv/pages", tests, NULL, NULL);
}
