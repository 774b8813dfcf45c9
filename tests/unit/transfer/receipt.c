/* tests/unit/transfer/receipt.c - the server's account of rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transfer/receipt.h"

static bt_kv_layer layers[3] = {
    { .k_dim = 4, .v_dim = 4, .k_row_bytes = 8, .v_row_bytes = 8 },
    { 0 },                                              /* keeps no rows */
    { .k_dim = 2, .v_dim = 4, .k_row_bytes = 4, .v_row_bytes = 8 },
};
static const bt_kv_layout layout = { .n_layers = 3, .layers = layers };
static const bt_kv_form form = { .layout = &layout };
static const bt_wire_prefill asked = { .nonce = 77, .epoch = 5, .n_tokens = 12, .position_first = 2,
                                       .position_end = 10 };

static const uint8_t bytes[256];

/* A frame as the link would give it; only size and hash matter to the account. */
static bt_frame frame_of(uint32_t size, uint64_t hash)
{
    return (bt_frame){ .type = BT_WIRE_ROWS, .stream = 1, .size = size, .hash = hash };
}

static bt_wire_rows rows_of(uint32_t layer, uint32_t position, uint32_t n)
{
    return (bt_wire_rows){ .layer = layer, .position = position, .n = n,
                           .k = { bytes, n * (uint32_t)layers[layer].k_row_bytes },
                           .v = { bytes, n * (uint32_t)layers[layer].v_row_bytes } };
}

static void put(bt_transfer_receipt *l, bt_wire_tally *theirs, uint32_t layer,
                uint32_t position, uint32_t n)
{
    const bt_wire_rows m = rows_of(layer, position, n);
    const bt_frame f = frame_of(20 + n, 1000 + layer * 100 + position);
    assert_int_equal(bt_transfer_receipt_check(l, &m, NULL), BT_OK);
    bt_transfer_receipt_enter(l, &m, &f);
    bt_wire_tally_put(theirs, BT_WIRE_ROWS, f.size, f.hash);
}

static bt_wire_chunk chunk_of(const bt_wire_tally *t, uint32_t end)
{
    return (bt_wire_chunk){ .position_end = end, .n_frames = bt_wire_tally_frames(t),
                            .digest = bt_wire_tally_value(t) };
}

static bt_wire_commit commit_of(const bt_wire_tally *t)
{
    return (bt_wire_commit){ .nonce = asked.nonce, .epoch = asked.epoch,
                             .position_first = asked.position_first,
                             .position_end = asked.position_end,
                             .n_frames = bt_wire_tally_frames(t),
                             .n_bytes = bt_wire_tally_bytes(t), .digest = bt_wire_tally_value(t) };
}

typedef struct { bt_transfer_receipt l; bt_wire_tally *theirs; } pair;

static int open_pair(void **state)
{
    static pair p;
    assert_int_equal(bt_transfer_receipt_open(&p.l, &form, NULL, 1, &asked, NULL), BT_OK);
    assert_int_equal(bt_wire_tally_open(1, &asked, &p.theirs, NULL), BT_OK);
    *state = &p;
    return 0;
}

static int close_pair(void **state)
{
    pair *p = *state;
    bt_transfer_receipt_close(&p->l);
    bt_wire_tally_close(p->theirs);
    return 0;
}

static void whole_prompt_commits(void **state)
{
    pair *p = *state;
    put(&p->l, p->theirs, 0, 2, 4);
    put(&p->l, p->theirs, 2, 2, 4);
    const bt_wire_chunk c = chunk_of(p->theirs, 6);
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL), BT_OK);
    assert_int_equal(p->l.complete, 6);
    put(&p->l, p->theirs, 0, 6, 4);
    put(&p->l, p->theirs, 2, 6, 1);
    put(&p->l, p->theirs, 2, 7, 3);
    const bt_wire_commit m = commit_of(p->theirs);
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_OK);
    assert_int_equal(p->l.complete, 10);
}

static void rows_out_of_place_are_refused(void **state)
{
    pair *p = *state;
    const struct { uint32_t layer, position, n; } bad[] = {
        { 0, 3, 1 }, { 0, 1, 1 }, { 0, 2, 9 }, { 0, 2, 0 }, { 0, 2, UINT32_MAX },
        { 0, UINT32_MAX, 1 },
    };
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        const bt_wire_rows m = { .layer = bad[i].layer, .position = bad[i].position, .n = bad[i].n,
                                 .k = { bytes, bad[i].n * 8 }, .v = { bytes, bad[i].n * 8 } };
        assert_int_equal(bt_transfer_receipt_check(&p->l, &m, NULL), BT_E_PROTOCOL);
    }
    bt_wire_rows m = rows_of(0, 2, 2);
    m.layer = 3;
    assert_int_equal(bt_transfer_receipt_check(&p->l, &m, NULL), BT_E_PROTOCOL);
    m.layer = 1;
    m.k.size = m.v.size = 0;
    assert_int_equal(bt_transfer_receipt_check(&p->l, &m, NULL), BT_E_PROTOCOL);
    m = rows_of(2, 2, 2);
    m.k.size++;
    assert_int_equal(bt_transfer_receipt_check(&p->l, &m, NULL), BT_E_PROTOCOL);
    m = rows_of(2, 2, 2);
    m.v.size--;
    assert_int_equal(bt_transfer_receipt_check(&p->l, &m, NULL), BT_E_PROTOCOL);
}

static void chunk_needs_all_layers_and_digest(void **state)
{
    pair *p = *state;
    put(&p->l, p->theirs, 0, 2, 4);
    bt_wire_chunk c = chunk_of(p->theirs, 6);
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL),
                     BT_E_PROTOCOL); /* layer 2 is missing */
    put(&p->l, p->theirs, 2, 2, 4);
    c = chunk_of(p->theirs, 6);
    c.digest.bytes[3] ^= 1;
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL), BT_E_PROTOCOL);
    c = chunk_of(p->theirs, 6);
    c.n_frames++;
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL), BT_E_PROTOCOL);
    c = chunk_of(p->theirs, 5);
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL), BT_E_PROTOCOL);
    c = chunk_of(p->theirs, 11);
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL), BT_E_PROTOCOL);
    assert_int_equal(p->l.complete, 2);
}

static void commit_needs_every_field(void **state)
{
    pair *p = *state;
    put(&p->l, p->theirs, 0, 2, 8);
    bt_wire_commit m = commit_of(p->theirs);
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_E_PROTOCOL);
    put(&p->l, p->theirs, 2, 2, 8);
    m = commit_of(p->theirs);
    m.nonce++;
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_E_PROTOCOL);
    m = commit_of(p->theirs);
    m.epoch++;
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_E_PROTOCOL);
    m = commit_of(p->theirs);
    m.n_bytes--;
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_E_PROTOCOL);
    m = commit_of(p->theirs);
    m.digest.bytes[0] ^= 0x80;
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_E_PROTOCOL);
    assert_int_equal(p->l.complete, 2);
    m = commit_of(p->theirs);
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_OK);
}

static void rows_of_another_nonce_never_agree(void **state)
{
    pair *p = *state;
    bt_wire_prefill other = asked;
    bt_wire_tally *theirs;
    other.nonce = 78;
    assert_int_equal(bt_wire_tally_open(1, &other, &theirs, NULL), BT_OK);
    put(&p->l, theirs, 0, 2, 4);
    put(&p->l, theirs, 2, 2, 4);
    const bt_wire_chunk c = chunk_of(theirs, 6);
    assert_int_equal(bt_transfer_receipt_chunk(&p->l, &c, NULL), BT_E_PROTOCOL);
    bt_wire_tally_close(theirs);
}

/* ---- states: layer 1 keeps 100 bytes ---- */

static const uint64_t state_bytes[3] = { 0, 100, 0 };

static bt_wire_state part_of(uint32_t position, uint32_t offset, uint32_t n)
{
    return (bt_wire_state){ .layer = 1, .position = position, .offset = offset, .total = 100,
                            .data = { bytes, n } };
}

static void put_part(pair *p, uint32_t position, uint32_t offset, uint32_t n)
{
    const bt_wire_state m = part_of(position, offset, n);
    const bt_frame f = frame_of(24 + n, 5000 + offset);
    assert_int_equal(bt_transfer_receipt_check_state(&p->l, &m, position, NULL), BT_OK);
    bt_transfer_receipt_enter_state(&p->l, &m, &f);
    bt_wire_tally_put(p->theirs, BT_WIRE_STATE, f.size, f.hash);
}

static int open_hybrid(void **state)
{
    static pair p;
    assert_int_equal(bt_transfer_receipt_open(&p.l, &form, state_bytes, 1, &asked, NULL), BT_OK);
    assert_int_equal(bt_wire_tally_open(1, &asked, &p.theirs, NULL), BT_OK);
    *state = &p;
    return 0;
}

static void a_commit_needs_the_whole_state(void **state)
{
    pair *p = *state;
    put(&p->l, p->theirs, 0, 2, 8);
    put_part(p, 10, 0, 60);
    put(&p->l, p->theirs, 2, 2, 8);
    bt_wire_commit m = commit_of(p->theirs);
    assert_false(bt_transfer_receipt_states_none(&p->l));
    assert_false(bt_transfer_receipt_states_whole(&p->l));
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_E_PROTOCOL);
    put_part(p, 10, 60, 40);
    m = commit_of(p->theirs);
    assert_int_equal(bt_transfer_receipt_commit(&p->l, &m, NULL), BT_OK);
    bt_transfer_receipt_next_states(&p->l);                       /* those of a border may follow */
    assert_true(bt_transfer_receipt_states_none(&p->l));
    put_part(p, 5, 0, 100);
    assert_true(bt_transfer_receipt_states_whole(&p->l));
}

static void states_out_of_place_are_refused(void **state)
{
    pair *p = *state;
    put_part(p, 10, 0, 60);
    bt_wire_state bad[] = {
        part_of(10, 0, 10), part_of(10, 61, 10), part_of(10, 60, 41), part_of(10, 60, 0),
        part_of(9, 60, 10), part_of(10, UINT32_MAX, 10), part_of(10, 60, UINT32_MAX),
        part_of(10, 60, 10), part_of(10, 60, 10), part_of(10, 60, 10), part_of(10, 60, 10),
    };
    bad[7].layer = 0;                                    /* keeps none */
    bad[8].layer = 3;
    bad[9].total = 101;
    bad[10].kind = 1;
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        assert_int_equal(bt_transfer_receipt_check_state(&p->l, &bad[i], 10, NULL), BT_E_PROTOCOL);
    }
    put_part(p, 10, 60, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_prompt_commits, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(rows_out_of_place_are_refused, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(chunk_needs_all_layers_and_digest, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(commit_needs_every_field, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(a_commit_needs_the_whole_state, open_hybrid, close_pair),
        cmocka_unit_test_setup_teardown(states_out_of_place_are_refused, open_hybrid, close_pair),
        cmocka_unit_test_setup_teardown(rows_of_another_nonce_never_agree, open_pair, close_pair),
    };
    return cmocka_run_group_tests_name("transfer/receipt", tests, NULL, NULL);
}
