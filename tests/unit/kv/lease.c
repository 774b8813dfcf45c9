/* kv/lease.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kv/lease.h"
#include "unit/kv/memory_device.h"

enum { P = BT_KV_PAGE_TOKENS, PAGES = 12, POSITIONS = 5 * P, KEY = 9, LIVE = 3, KEPT = 3 };

typedef struct {
    memory_device rows, states;        /* each holds one buffer */
    bt_kv_memory  memory;
    uint32_t      tokens[POSITIONS];
    bt_kv_name    name;
} fixture;

static bt_state_pool *state_pool(fixture *f)
{
    static const bt_state_layer layer = { .n_tensors = 1, .tensors = { { "delta", 1, 1, 8, 0 } } };
    bt_state_pool *pool = NULL;
    const bt_state_pool_options o = {
        .n_layers = 1, .layers = &layer, .n_live = LIVE,
        .snapshot_bytes_max = KEPT * bt_kv_state_slot_bytes(&layer, 1),
    };
    assert_int_equal(bt_kv_state_pool_create(&f->states.device, &o, &pool, NULL), BT_OK);
    return pool;
}

static fixture *open_memory(bool recurrent)
{
    static const uint32_t dims[1] = { 1 };
    const bt_kv_pool_options o = { .n_layers = 1, .k_dims = dims, .v_dims = dims,
                                   .type_k = BT_TYPE_F32, .type_v = BT_TYPE_F32,
                                   .n_pages = PAGES };
    fixture *f = calloc(1, sizeof *f);
    f->rows.device.ops = f->states.device.ops = &memory_ops;
    assert_int_equal(bt_kv_pool_create(&f->rows.device, &o, &f->memory.pages, NULL), BT_OK);
    assert_int_equal(bt_kv_prefix_create(f->memory.pages, PAGES, &f->memory.prefixes, NULL),
                     BT_OK);
    f->memory.states = recurrent ? state_pool(f) : NULL;
    for (uint32_t i = 0; i < POSITIONS; i++) {
        f->tokens[i] = 100 + i;
    }
    f->name = (bt_kv_name){ KEY, f->tokens };
    return f;
}

/* The pools' ends assert that nothing is held. */
static int close_memory(void **state)
{
    fixture *f = *state;
    bt_kv_prefix_destroy(f->memory.prefixes);
    bt_kv_pool_destroy(f->memory.pages);
    bt_kv_state_pool_destroy(f->memory.states);
    free(f);
    return 0;
}

static int open_plain(void **state) { *state = open_memory(false); return 0; }

static int open_hybrid(void **state) { *state = open_memory(true); return 0; }

static bt_kv_lease lease_of(fixture *f)
{
    bt_kv_lease l;
    assert_int_equal(bt_kv_lease_open(&l, &f->memory, POSITIONS, NULL), BT_OK);
    assert_true(bt_kv_lease_acquire(&l));
    return l;
}

static void write_rows(fixture *f, const bt_kv_lease *l, uint32_t from, uint32_t end, float mark)
{
    for (uint32_t p = from; p < end; p++) {
        const float k = mark + (float)p, v = -k;
        bt_kv_rows_import(f->memory.pages, l->pages, 0, p, 1, &k, &v);
    }
}

static void expect_rows(const fixture *f, const bt_kv_lease *l, uint32_t from, uint32_t end,
                        float mark)
{
    for (uint32_t p = from; p < end; p++) {
        float k, v;
        bt_kv_rows_export(f->memory.pages, l->pages, 0, p, 1, &k, &v);
        assert_float_equal(k, mark + (float)p, 0);
        assert_float_equal(v, -k, 0);
    }
}

static void set_state(fixture *f, const bt_kv_lease *l, float mark)
{
    const float values[8] = { mark, 1, 2, 3, 4, 5, 6, mark };
    bt_kv_state_import(f->memory.states, l->slot, 0, 0, sizeof values, values);
}

static float state_of(const fixture *f, const bt_kv_lease *l)
{
    float values[8];
    bt_kv_state_export(f->memory.states, l->slot, 0, 0, sizeof values, values);
    assert_float_equal(values[0], values[7], 0);
    return values[0];
}

/* ---- rows ---- */

static void a_lease_grows_and_is_cut_at_any_position(void **state)
{
    fixture *f = *state;
    bt_kv_lease l = lease_of(f);
    const uint32_t at[] = { POSITIONS, POSITIONS - 1, 3 * P + 7, 3 * P, 3 * P - 1, P, 1, 0 };
    assert_true(bt_kv_lease_extend(&l, 0, 1));
    assert_int_equal(l.n_pages, 1);
    assert_true(bt_kv_lease_extend(&l, 1, POSITIONS));
    write_rows(f, &l, 0, POSITIONS, 1000);
    for (size_t i = 0; i < BT_LEN(at); i++) {
        assert_int_equal(bt_kv_lease_truncate(&l, &f->name, at[i], NULL), BT_OK);
        assert_int_equal(l.n_pages, bt_kv_pages_of(at[i]));
        assert_int_equal(bt_kv_pool_used(f->memory.pages), l.n_pages);
        expect_rows(f, &l, 0, at[i], 1000);
    }
    assert_true(bt_kv_lease_extend(&l, 0, P));      /* and used again */
    bt_kv_lease_close(&l);
    assert_int_equal(bt_kv_pool_used(f->memory.pages), 0);
    bt_kv_lease_close(&l);
}

/* Cut inside pages that the tree and another lease hold, and written anew from there: they keep
 * what they had. */
static void what_is_shared_is_copied_before_it_is_written(void **state)
{
    fixture *f = *state;
    for (uint32_t cut = 1; cut <= 3 * P - 3; cut += cut < 6 ? 1 : 5) {
        bt_kv_lease a = lease_of(f), b = lease_of(f);
        bt_kv_prefix_cursor cursor = { 0 };
        assert_true(bt_kv_lease_extend(&a, 0, 3 * P - 3));
        write_rows(f, &a, 0, 3 * P - 3, 1000);
        bt_kv_lease_commit(&a, &f->name, 3 * P - 3, true, &cursor);
        assert_int_equal(bt_kv_lease_share(&b, &f->name, POSITIONS), 3 * P - 3);

        assert_int_equal(bt_kv_lease_truncate(&b, &f->name, cut, NULL), BT_OK);
        assert_true(bt_kv_lease_extend(&b, cut, 4 * P));
        write_rows(f, &b, cut, 4 * P, 5000);
        expect_rows(f, &a, 0, 3 * P - 3, 1000);
        expect_rows(f, &b, 0, cut, 1000);
        expect_rows(f, &b, cut, 4 * P, 5000);
        bt_kv_lease_close(&b);
        bt_kv_lease_close(&a);
        while (bt_kv_prefix_evict(f->memory.prefixes)) {
        }
    }
    assert_int_equal(bt_kv_pool_used(f->memory.pages), 0);
}

static void only_full_pages_are_committed_unless_it_is_the_last(void **state)
{
    fixture *f = *state;
    bt_kv_lease l = lease_of(f);
    bt_kv_prefix_cursor cursor = { 0 };
    assert_true(bt_kv_lease_extend(&l, 0, 2 * P));
    bt_kv_lease_commit(&l, &f->name, P - 1, false, &cursor);
    assert_int_equal(bt_kv_prefix_match(f->memory.prefixes, KEY, f->tokens, 2 * P), 0);
    bt_kv_lease_commit(&l, &f->name, 2 * P - 1, false, &cursor);
    assert_int_equal(bt_kv_prefix_match(f->memory.prefixes, KEY, f->tokens, 2 * P), P);
    bt_kv_lease_commit(&l, &f->name, 2 * P - 1, true, &cursor);
    assert_int_equal(bt_kv_prefix_match(f->memory.prefixes, KEY, f->tokens, 2 * P), 2 * P - 1);
    assert_int_equal(bt_kv_prefix_match(f->memory.prefixes, KEY + 1, f->tokens, 2 * P), 0);
    bt_kv_lease_close(&l);
}

static void a_lease_that_cannot_grow_is_as_before(void **state)
{
    fixture *f = *state;
    bt_kv_lease a = lease_of(f), b = lease_of(f), c = lease_of(f);
    bt_kv_prefix_cursor cursor = { 0 };
    assert_true(bt_kv_lease_extend(&a, 0, 5 * P));
    assert_true(bt_kv_lease_extend(&b, 0, 5 * P));
    assert_true(bt_kv_lease_extend(&c, 0, P + 1));
    write_rows(f, &c, 0, P + 1, 1000);
    assert_false(bt_kv_lease_extend(&c, P + 1, 3 * P));          /* 12 pages are in use */
    assert_int_equal(c.n_pages, 2);
    expect_rows(f, &c, 0, P + 1, 1000);
    bt_kv_lease_commit(&a, &f->name, 5 * P, false, &cursor);
    assert_false(bt_kv_lease_extend(&c, P + 1, 3 * P));          /* cached, and in use as well */
    bt_kv_lease_close(&a);
    assert_true(bt_kv_lease_extend(&c, P + 1, 3 * P));           /* the tree gives way */
    expect_rows(f, &c, 0, P + 1, 1000);
    bt_kv_lease_close(&b);
    bt_kv_lease_close(&c);
}

static void a_fork_shares_and_then_goes_its_own_way(void **state)
{
    fixture *f = *state;
    bt_kv_lease a = lease_of(f), b = lease_of(f);
    assert_true(bt_kv_lease_extend(&a, 0, 2 * P + 9));
    write_rows(f, &a, 0, 2 * P + 9, 1000);
    bt_kv_lease_fork(&b, &a, 2 * P + 4);
    assert_int_equal(bt_kv_pool_used(f->memory.pages), 3);
    assert_true(bt_kv_lease_extend(&b, 2 * P + 4, 3 * P));
    assert_int_equal(bt_kv_pool_used(f->memory.pages), 4);
    write_rows(f, &b, 2 * P + 4, 3 * P, 5000);
    expect_rows(f, &a, 0, 2 * P + 9, 1000);
    expect_rows(f, &b, 0, 2 * P + 4, 1000);
    expect_rows(f, &b, 2 * P + 4, 3 * P, 5000);
    bt_kv_lease_swap_pages(&a, &b);
    expect_rows(f, &a, 2 * P + 4, 3 * P, 5000);
    expect_rows(f, &b, 0, 2 * P + 9, 1000);
    bt_kv_lease_close(&a);
    expect_rows(f, &b, 0, 2 * P + 9, 1000);
    bt_kv_lease_close(&b);
}

/* ---- recurrent states ---- */

static void a_state_goes_back_to_checkpoints_only(void **state)
{
    fixture *f = *state;
    bt_kv_lease l = lease_of(f);
    bt_error err;
    assert_float_equal(state_of(f, &l), 0, 0);
    assert_true(bt_kv_lease_extend(&l, 0, 3 * P));
    write_rows(f, &l, 0, 3 * P, 1000);
    set_state(f, &l, 40);
    assert_true(bt_kv_snapshot_keep(f->memory.states, l.slot, KEY, f->tokens, 40));
    set_state(f, &l, 96);

    assert_int_equal(bt_kv_lease_truncate(&l, &f->name, 41, &err), BT_E_BADINPUT);
    assert_non_null(strstr(err.text, "position 41"));
    assert_non_null(strstr(err.text, "at 40"));
    assert_int_equal(l.n_pages, 3);                              /* nothing has changed */
    assert_float_equal(state_of(f, &l), 96, 0);

    const bt_kv_name other = { KEY + 1, f->tokens };             /* checkpoints of others */
    assert_int_equal(bt_kv_lease_truncate(&l, &other, 40, &err), BT_E_BADINPUT);

    assert_int_equal(bt_kv_lease_truncate(&l, &f->name, 40, &err), BT_OK);
    assert_float_equal(state_of(f, &l), 40, 0);
    assert_int_equal(l.n_pages, 2);
    expect_rows(f, &l, 0, 40, 1000);
    assert_int_equal(bt_kv_lease_truncate(&l, &f->name, 0, &err), BT_OK);
    assert_float_equal(state_of(f, &l), 0, 0);
    assert_int_equal(l.n_pages, 0);
    bt_kv_lease_close(&l);
}

static void restore_takes_the_last_checkpoint_there_is(void **state)
{
    fixture *f = *state;
    bt_kv_lease l = lease_of(f);
    const uint32_t at[] = { 10, 40, 70 };
    assert_true(bt_kv_lease_extend(&l, 0, 3 * P));
    for (size_t i = 0; i < BT_LEN(at); i++) {
        set_state(f, &l, (float)at[i]);
        assert_true(bt_kv_snapshot_keep(f->memory.states, l.slot, KEY, f->tokens, at[i]));
    }
    const struct { uint32_t from, to; } cases[] = { { 96, 70 }, { 69, 40 }, { 40, 40 }, { 9, 0 } };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        assert_int_equal(bt_kv_lease_restore(&l, &f->name, cases[i].from), cases[i].to);
        assert_float_equal(state_of(f, &l), (float)cases[i].to, 0);
        assert_int_equal(l.n_pages, bt_kv_pages_of(cases[i].to));
    }
    bt_kv_lease_close(&l);
}

static void slots_are_forked_swapped_and_given_back(void **state)
{
    fixture *f = *state;
    bt_kv_lease a = lease_of(f), b = lease_of(f), c = lease_of(f), d;
    assert_int_equal(bt_kv_lease_open(&d, &f->memory, POSITIONS, NULL), BT_OK);
    assert_false(bt_kv_lease_acquire(&d));                       /* all LIVE are taken */
    bt_kv_lease_close(&d);
    set_state(f, &a, 7);
    bt_kv_lease_fork(&b, &a, 0);
    set_state(f, &a, 8);
    assert_float_equal(state_of(f, &b), 7, 0);
    bt_kv_lease_swap_slots(&a, &b);
    assert_float_equal(state_of(f, &a), 7, 0);
    assert_float_equal(state_of(f, &b), 8, 0);
    bt_kv_lease_close(&c);
    d = lease_of(f);
    assert_float_equal(state_of(f, &d), 0, 0);
    bt_kv_lease_release(&d);
    bt_kv_lease_close(&d);
    bt_kv_lease_close(&a);
    bt_kv_lease_close(&b);
}

int main(void)
{
#define PLAIN(name) cmocka_unit_test_setup_teardown(name, open_plain, close_memory)
#define HYBRID(name) cmocka_unit_test_setup_teardown(name, open_hybrid, close_memory)
    const struct CMUnitTest tests[] = {
        PLAIN(a_lease_grows_and_is_cut_at_any_position),
        PLAIN(what_is_shared_is_copied_before_it_is_written),
        PLAIN(only_full_pages_are_committed_unless_it_is_the_last),
        PLAIN(a_lease_that_cannot_grow_is_as_before),
        PLAIN(a_fork_shares_and_then_goes_its_own_way),
        HYBRID(a_state_goes_back_to_checkpoints_only),
        HYBRID(restore_takes_the_last_checkpoint_there_is),
        HYBRID(slots_are_forked_swapped_and_given_back),
    };
    return cmocka_run_group_tests_name("kv/lease", tests, NULL, NULL);
}
