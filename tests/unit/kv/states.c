/* kv/states.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kv/states.h"
#include "unit/kv/memory_device.h"

enum { LAYERS = 3, LIVE = 3, KEPT = 4, TOKENS = 40, KEY = 9 };

static const bt_state_layer layers[LAYERS] = {
    { .n_tensors = 2, .tensors = { { "conv", 1, 3, 5, 0 }, { "delta", 2, 3, 4, 0 } } },
    { 0 },                                               /* an attention layer */
    { .n_tensors = 3,
      .tensors = { { "conv", 1, 3, 7, 0 }, { "delta", 1, 2, 2, 0 }, { "x", 1, 1, 1, 0 } } },
};

typedef struct {
    memory_device  device;
    bt_state_pool *pool;
} fixture;

static bt_state_pool *create(fixture *f, uint64_t snapshot_bytes)
{
    const bt_state_pool_options o = { .n_layers = LAYERS, .layers = layers, .n_live = LIVE,
                                      .snapshot_bytes_max = snapshot_bytes };
    bt_state_pool *pool = NULL;
    f->device.device.ops = &memory_ops;
    assert_int_equal(bt_kv_state_pool_create(&f->device.device, &o, &pool, NULL), BT_OK);
    return pool;
}

static int start(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    bt_state_pool *probe = create(f, 0);
    const uint64_t slot = bt_kv_state_pool_layout(probe)->slot_bytes;
    bt_kv_state_pool_destroy(probe);
    f->pool = create(f, KEPT * slot + slot / 2);         /* room for KEPT and not for one more */
    *state = f;
    return 0;
}

static int finish(void **state)
{
    fixture *f = *state;
    bt_kv_state_pool_destroy(f->pool);
    const int left = f->device.n_buffers;
    free(f);
    return left;
}

/* A state that only `mark` has: every layer filled with values made of it. */
static void fill(bt_state_pool *p, uint32_t slot, float mark)
{
    float values[64];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const size_t n = bt_kv_state_layer_bytes(p, layer) / sizeof(float);
        for (size_t i = 0; i < n; i++) {
            values[i] = mark + (float)layer * 100 + (float)i;
        }
        /* In parts of odd sizes, as a wire brings them: some cross from the rows to the matrix. */
        for (uint64_t at = 0, all = n * sizeof(float), size; at < all; at += size) {
            size = all - at < 13 ? all - at : 13;
            bt_kv_state_import(p, slot, layer, at, size, (const char *)values + at);
        }
    }
}

static int holds(bt_state_pool *p, uint32_t slot, float mark)
{
    float values[64];
    int equal = 1;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const size_t n = bt_kv_state_layer_bytes(p, layer) / sizeof(float);
        for (uint64_t at = 0, all = n * sizeof(float), size; at < all; at += size) {
            size = all - at < 11 ? all - at : 11;
            bt_kv_state_export(p, slot, layer, at, size, (char *)values + at);
        }
        for (size_t i = 0; i < n; i++) {
            const float want = mark == 0 ? 0 : mark + (float)layer * 100 + (float)i;
            equal = equal && values[i] == want;
        }
    }
    return equal;
}

static uint32_t take(bt_state_pool *p)
{
    uint32_t slot = UINT32_MAX;
    assert_int_equal(bt_kv_state_take(p, &slot), BT_OK);
    return slot;
}

static void a_turn_continues_from_its_snapshot(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    const uint32_t tokens[4] = { 7, 8, 9, 10 };
    const uint32_t first = take(p);
    fill(p, first, 1000);
    assert_true(bt_kv_snapshot_keep(p, first, KEY, tokens, 3));
    assert_int_equal(bt_kv_snapshot_find(p, KEY + 1, tokens, 3), 0);     /* somebody else's */
    fill(p, first, 2000);                                 /* the sequence goes on */
    bt_kv_state_give(p, first);

    const uint32_t second = take(p);
    assert_int_equal(bt_kv_snapshot_restore(p, second, KEY, tokens, 4), 3);
    assert_true(holds(p, second, 1000));
    bt_kv_state_give(p, second);
}

static void a_taken_slot_is_empty_and_slots_run_out(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    uint32_t slots[LIVE], extra = 77;
    for (int i = 0; i < LIVE; i++) {
        slots[i] = take(p);
        assert_true(holds(p, slots[i], 0));
        fill(p, slots[i], 5);
    }
    assert_int_equal(bt_kv_state_take(p, &extra), BT_E_FULL);
    assert_int_equal(extra, 77);
    bt_kv_state_give(p, slots[1]);
    assert_int_equal(take(p), slots[1]);
    assert_true(holds(p, slots[1], 0));
    for (int i = 0; i < LIVE; i++) {
        bt_kv_state_give(p, slots[i]);
    }
}

static void other_tokens_find_nothing(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    const uint32_t tokens[3] = { 1, 2, 3 }, others[3] = { 1, 2, 4 };
    const uint32_t slot = take(p);
    fill(p, slot, 9);
    bt_kv_snapshot_keep(p, slot, KEY, tokens, 3);
    assert_int_equal(bt_kv_snapshot_find(p, KEY, others, 3), 0);
    assert_int_equal(bt_kv_snapshot_find(p, KEY, tokens, 2), 0);   /* too long by one */
    assert_int_equal(bt_kv_snapshot_restore(p, slot, KEY, others, 3), 0);
    assert_true(holds(p, slot, 0));
    bt_kv_state_give(p, slot);
}

/* Against a list that remembers everything: what is found is never longer than the truth, is the
 * truth whenever the pool still keeps it, and memory stays under its limit. */
static void random_turns_agree_with_a_list(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    bt_mt19937 g;
    bt_mt19937_init(&g, 11);
    struct { uint32_t tokens[TOKENS], n; float mark; } list[2000];
    uint32_t n_list = 0, found = 0;
    const uint32_t slot = take(p);
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t tokens[TOKENS];
        for (uint32_t i = 0; i < TOKENS; i++) {
            tokens[i] = bt_mt19937_next(&g) % 2;           /* prompts that often begin alike */
        }
        const uint32_t n_max = 1 + bt_mt19937_next(&g) % TOKENS;
        const uint32_t n = bt_kv_snapshot_restore(p, slot, KEY, tokens, n_max);
        float mark = 0;
        for (uint32_t i = 0; i < n_list && n > 0; i++) {
            if (list[i].n == n && memcmp(list[i].tokens, tokens, n * sizeof *tokens) == 0) {
                mark = list[i].mark;
            }
        }
        assert_true(n <= n_max);
        assert_true(holds(p, slot, n == 0 ? 0 : mark));
        found += n > 0;

        const uint32_t keep = 1 + bt_mt19937_next(&g) % 6;
        if (bt_kv_snapshot_find(p, KEY, tokens, keep) != keep) {
            fill(p, slot, (float)(round + 1) * 1000);
            assert_true(bt_kv_snapshot_keep(p, slot, KEY, tokens, keep));
            memcpy(list[n_list].tokens, tokens, sizeof tokens);
            list[n_list].n = keep;
            list[n_list++].mark = (float)(round + 1) * 1000;
        }
        assert_int_equal(bt_kv_snapshot_find(p, KEY, tokens, keep), keep);
        assert_true(bt_kv_snapshot_count(p) <= KEPT);
    }
    assert_true(found > 500);
    bt_kv_state_give(p, slot);
}

static void the_one_used_least_recently_goes_first(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    const uint32_t slot = take(p);
    for (uint32_t i = 0; i < KEPT; i++) {
        bt_kv_snapshot_keep(p, slot, KEY, &i, 1);
    }
    uint32_t token = 0;
    bt_kv_snapshot_restore(p, slot, KEY, &token, 1);               /* so 1 is the oldest now */
    token = 99;
    bt_kv_snapshot_keep(p, slot, KEY, &token, 1);
    for (token = 0; token < KEPT; token++) {
        assert_int_equal(bt_kv_snapshot_find(p, KEY, &token, 1), token == 1 ? 0 : 1);
    }
    bt_kv_state_give(p, slot);
}

static void without_room_nothing_is_kept(void **state)
{
    fixture other = { 0 };                                /* its device has room for one buffer */
    bt_state_pool *p = create(&other, 10);
    (void)state;
    const uint32_t slot = take(p), token = 5;
    assert_false(bt_kv_snapshot_keep(p, slot, KEY, &token, 1));
    assert_int_equal(bt_kv_snapshot_find(p, KEY, &token, 1), 0);
    bt_kv_state_give(p, slot);
    bt_kv_state_pool_destroy(p);
}

static void one_from_elsewhere_counts_when_it_is_published(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    const uint32_t tokens[3] = { 1, 2, 3 };
    uint32_t slot = UINT32_MAX, mine = take(p);
    assert_true(bt_kv_snapshot_reserve(p, &slot));
    fill(p, slot, 3000);
    assert_int_equal(bt_kv_snapshot_find(p, KEY, tokens, 3), 0);
    bt_kv_snapshot_drop_all(p);                              /* leaves what is being written */
    bt_kv_snapshot_publish(p, slot, KEY, tokens, 3);
    assert_int_equal(bt_kv_snapshot_restore(p, mine, KEY, tokens, 3), 3);
    assert_true(holds(p, mine, 3000));

    assert_true(bt_kv_snapshot_reserve(p, &slot));           /* given up: nothing is known of it */
    bt_kv_snapshot_publish(p, slot, KEY, tokens, 0);
    assert_int_equal(bt_kv_snapshot_count(p), 1);
    bt_kv_state_give(p, mine);
}

static void a_pinned_one_stays(void **state)
{
    bt_state_pool *p = ((fixture *)*state)->pool;
    const uint32_t mine = take(p);
    uint32_t pinned = UINT32_MAX, other, slots[KEPT], zero = 0;
    fill(p, mine, 500);
    assert_true(bt_kv_snapshot_keep(p, mine, KEY, &zero, 1));
    assert_false(bt_kv_snapshot_pin(p, KEY, &zero, 0, &other));
    assert_true(bt_kv_snapshot_pin(p, KEY, &zero, 1, &pinned));
    fill(p, mine, 600);
    for (uint32_t token = 1; token < 3 * KEPT; token++) {
        assert_true(bt_kv_snapshot_keep(p, mine, KEY, &token, 1));
    }
    assert_int_equal(bt_kv_snapshot_find(p, KEY, &zero, 1), 1);
    assert_true(holds(p, pinned, 500));
    for (uint32_t i = 0; i < KEPT - 1; i++) {             /* all others reserved: no room is left */
        assert_true(bt_kv_snapshot_reserve(p, &slots[i]));
    }
    assert_false(bt_kv_snapshot_reserve(p, &other));
    assert_false(bt_kv_snapshot_keep(p, mine, KEY, (const uint32_t[]){ 99 }, 1));
    for (uint32_t i = 0; i < KEPT - 1; i++) {
        bt_kv_snapshot_publish(p, slots[i], KEY, &zero, 0);
    }
    bt_kv_snapshot_unpin(p, pinned);
    bt_kv_snapshot_drop_all(p);
    assert_int_equal(bt_kv_snapshot_count(p), 0);
    bt_kv_state_give(p, mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_turn_continues_from_its_snapshot, start, finish),
        cmocka_unit_test_setup_teardown(a_taken_slot_is_empty_and_slots_run_out, start, finish),
        cmocka_unit_test_setup_teardown(other_tokens_find_nothing, start, finish),
        cmocka_unit_test_setup_teardown(random_turns_agree_with_a_list, start, finish),
        cmocka_unit_test_setup_teardown(the_one_used_least_recently_goes_first, start, finish),
        cmocka_unit_test_setup_teardown(one_from_elsewhere_counts_when_it_is_published, start,
                                        finish),
        cmocka_unit_test_setup_teardown(a_pinned_one_stays, start, finish),
        cmocka_unit_test_setup_teardown(without_room_nothing_is_kept, start, finish),
    };
    return cmocka_run_group_tests_name("kv/states", tests, NULL, NULL);
}
