/* tests/unit/wire/tally.c - both ends agree exactly when the same frames came in the same order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/memory.h"
#include "wire/tally.h"

static const bt_wire_prefill prompt = {
    .nonce = 0xAABBCCDD, .epoch = 42, .n_tokens = 100, .position_first = 16, .position_end = 99};

typedef struct {
    uint16_t type;
    uint32_t size;
    uint64_t hash;
} entry;

static const entry list[] = {
    {BT_WIRE_ROWS, 100, 111}, {BT_WIRE_ROWS, 100, 222}, {BT_WIRE_STATE, 50, 333}};

static bt_digest digest_of(uint32_t stream, const bt_wire_prefill *p, const entry *e, size_t n)
{
    bt_wire_tally *t;
    assert_int_equal(bt_wire_tally_open(stream, p, &t, NULL), BT_OK);
    for (size_t i = 0; i < n; i++) {
        bt_wire_tally_put(t, e[i].type, e[i].size, e[i].hash);
    }
    const bt_digest d = bt_wire_tally_value(t);
    bt_wire_tally_close(t);
    return d;
}

/* W-60, byte by byte. */
static void the_digest_is_as_written_down(void **state)
{
    (void)state;
    uint8_t bytes[28 + 3 * 16];
    bt_put_le64(bytes, prompt.nonce);
    bt_put_le64(bytes + 8, prompt.epoch);
    bt_put_le32(bytes + 16, 7);
    bt_put_le32(bytes + 20, prompt.position_first);
    bt_put_le32(bytes + 24, prompt.position_end);
    for (size_t i = 0; i < 3; i++) {
        bt_put_le32(bytes + 28 + i * 16, list[i].type);
        bt_put_le32(bytes + 32 + i * 16, list[i].size);
        bt_put_le64(bytes + 36 + i * 16, list[i].hash);
    }
    const bt_digest want = bt_digest_of(bytes, sizeof bytes), got = digest_of(7, &prompt, list, 3);
    assert_true(bt_digest_equal(&want, &got));
}

static void whatever_differs_changes_the_digest(void **state)
{
    (void)state;
    const bt_digest d = digest_of(7, &prompt, list, 3);
    bt_wire_prefill p[4] = {prompt, prompt, prompt, prompt};
    p[0].nonce++;
    p[1].epoch++;
    p[2].position_first++;
    p[3].position_end--;
    const entry swapped[] = {list[1], list[0], list[2]},
                doubled[] = {list[0], list[0], list[1], list[2]},
                damaged[] = {list[0], {BT_WIRE_ROWS, 100, 223}, list[2]},
                typed[] = {list[0], {BT_WIRE_STATE, 100, 222}, list[2]},
                sized[] = {list[0], {BT_WIRE_ROWS, 101, 222}, list[2]};
    const bt_digest others[] = {
        digest_of(8, &prompt, list, 3),    digest_of(7, &prompt, list, 2),
        digest_of(7, &p[0], list, 3),      digest_of(7, &p[1], list, 3),
        digest_of(7, &p[2], list, 3),      digest_of(7, &p[3], list, 3),
        digest_of(7, &prompt, swapped, 3), digest_of(7, &prompt, doubled, 4),
        digest_of(7, &prompt, damaged, 3), digest_of(7, &prompt, typed, 3),
        digest_of(7, &prompt, sized, 3)};
    for (size_t i = 0; i < BT_LEN(others); i++) {
        assert_false(bt_digest_equal(&d, &others[i]));
    }
}

static void a_commit_is_judged_field_by_field(void **state)
{
    (void)state;
    bt_wire_tally *t;
    bt_error err;
    assert_int_equal(bt_wire_tally_open(7, &prompt, &t, NULL), BT_OK);
    for (size_t i = 0; i < 3; i++) {
        bt_wire_tally_put(t, list[i].type, list[i].size, list[i].hash);
    }
    const bt_wire_commit good = {.nonce = prompt.nonce, .epoch = prompt.epoch, .position_first = 16,
                                 .position_end = 99, .n_frames = 3, .n_bytes = 250,
                                 .digest = bt_wire_tally_value(t)};
    assert_int_equal(bt_wire_tally_check_commit(t, &good, &err), BT_OK);

    bt_wire_commit bad[7] = {good, good, good, good, good, good, good};
    static const char *says[7] = {"'nonce'", "'epoch'", "'position_first'", "'position_end'",
                                  "'n_frames' is 4 there and 3 here", "'n_bytes'", "digest"};
    bad[0].nonce = 1;
    bad[1].epoch = 1;
    bad[2].position_first = 0;
    bad[3].position_end = 98;
    bad[4].n_frames = 4;
    bad[5].n_bytes = 1;
    bad[6].digest.bytes[15] ^= 1;
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(bt_wire_tally_check_commit(t, &bad[i], &err), BT_E_PROTOCOL);
        assert_non_null(strstr(err.text, says[i]));
    }
    bt_wire_tally_close(t);
}

static void a_chunk_is_judged_too(void **state)
{
    (void)state;
    bt_wire_tally *t;
    bt_error err;
    assert_int_equal(bt_wire_tally_open(7, &prompt, &t, NULL), BT_OK);
    bt_wire_tally_put(t, BT_WIRE_ROWS, 5, 6);
    bt_wire_chunk m = {.position_end = 17, .n_frames = 1, .digest = bt_wire_tally_value(t)};
    assert_int_equal(bt_wire_tally_check_chunk(t, &m, &err), BT_OK);
    m.position_end = 99;
    assert_int_equal(bt_wire_tally_check_chunk(t, &m, &err), BT_OK);
    m.position_end = 16;
    assert_int_equal(bt_wire_tally_check_chunk(t, &m, &err), BT_E_PROTOCOL);
    m.position_end = 100;
    assert_int_equal(bt_wire_tally_check_chunk(t, &m, &err), BT_E_PROTOCOL);
    m.position_end = 17;
    m.n_frames = 0;
    assert_int_equal(bt_wire_tally_check_chunk(t, &m, &err), BT_E_PROTOCOL);
    m.n_frames = 1;
    bt_wire_tally_put(t, BT_WIRE_ROWS, 5, 6);
    m.n_frames = 2;
    assert_int_equal(bt_wire_tally_check_chunk(t, &m, &err), BT_E_PROTOCOL);
    assert_non_null(strstr(err.text, "digest"));
    bt_wire_tally_close(t);
    bt_wire_tally_close(NULL);
}

static void no_memory_is_said(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        bt_wire_tally *t = NULL;
        bt_memory_fail_after(n);
        assert_int_equal(bt_wire_tally_open(7, &prompt, &t, NULL), BT_E_NOMEM);
        bt_memory_fail_after(0);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_digest_is_as_written_down),
        cmocka_unit_test(whatever_differs_changes_the_digest),
        cmocka_unit_test(a_commit_is_judged_field_by_field),
        cmocka_unit_test(a_chunk_is_judged_too),
        cmocka_unit_test(no_memory_is_said),
    };
    return cmocka_run_group_tests_name("wire/tally", tests, NULL, NULL);
}
