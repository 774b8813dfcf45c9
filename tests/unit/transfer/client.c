/* tests/unit/transfer/client.c - the server's side of a prompt: the table, cell by cell, and what
 * it guarantees along the paths that matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "transfer/client.h"
#include "unit/transfer/page.h"

#define DO(name) BT_TRANSFER_CLIENT_DO_##name
#define ON(name) BT_TRANSFER_CLIENT_ON_##name
#define MS(n) ((uint64_t)(n) * 1000000)

static const bt_transfer_frame ROWS = BT_TRANSFER_FRAME_ROWS, STATE = BT_TRANSFER_FRAME_STATE,
                               CHUNK = BT_TRANSFER_FRAME_CHUNK, COMMIT = BT_TRANSFER_FRAME_COMMIT,
                               CANCELLED = BT_TRANSFER_FRAME_CANCELLED;

static bt_transfer_client waiting(uint32_t n_checkpoints)
{
    bt_transfer_client c;
    bt_transfer_client_init(&c, n_checkpoints, BT_TRANSFER_NEVER);
    return c;
}

static bt_transfer_client sent(uint32_t n_checkpoints, uint64_t window)
{
    bt_transfer_client c = waiting(n_checkpoints);
    assert_int_equal(bt_transfer_client_posted(&c, window, MS(1000)), 0);
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_SENT);
    return c;
}

/* ---- the table ---- */

static void the_page_has_the_table(void **state)
{
    (void)state;
    char *page = page_read();
    bool right = true;
    assert_non_null(page);
    for (uint32_t i = 0; i < BT_TRANSFER_CLIENT_INPUT_COUNT; i++) {
        char line[1024];
        size_t at = (size_t)snprintf(line, sizeof line, "| %s |", bt_transfer_client_input_name(i));
        for (uint32_t s = 0; s < BT_TRANSFER_CLIENT_STATE_COUNT; s++) {
            const bt_transfer_client_cell cell = bt_transfer_client_table(s, i);
            at = page_cell(line, sizeof line, at,
                           cell.next != s ? bt_transfer_client_state_name(cell.next) : NULL,
                           cell.actions, BT_TRANSFER_CLIENT_ACTION_COUNT,
                           bt_transfer_client_action_name);
        }
        right &= page_has(page, line);
    }
    free(page);
    assert_true(right);
}

/* Of every cell, whatever it is: the rules that the header promises. */
static void every_cell_keeps_the_rules(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < BT_TRANSFER_CLIENT_STATE_COUNT; s++) {
        for (uint32_t i = 0; i < BT_TRANSFER_CLIENT_INPUT_COUNT; i++) {
            const bt_transfer_client_cell c = bt_transfer_client_table(s, i);
            const uint32_t ends = c.actions & BT_TRANSFER_CLIENT_END_ANY;
            assert_true(c.next >= s);                   /* never back */
            assert_int_equal(ends & (ends - 1), 0);     /* one end at most */
            assert_true(c.next != BT_TRANSFER_CLIENT_DONE || s == c.next || ends != 0 ||
                        s == BT_TRANSFER_CLIENT_PENDING);
            if (c.actions & DO(SEND_CANCEL)) {          /* once, while the worker has it */
                assert_true(s == BT_TRANSFER_CLIENT_SENT || s == BT_TRANSFER_CLIENT_PENDING);
                assert_true(c.next >= BT_TRANSFER_CLIENT_CANCELLING);
            }
            assert_true(!(c.actions & DO(STORE)) || s == BT_TRANSFER_CLIENT_SENT);
            assert_true(!(c.actions & DO(STORE_CHECKPOINT)) || s == BT_TRANSFER_CLIENT_PENDING);
            assert_true(!(c.actions & DO(END_COMMIT)) || s == BT_TRANSFER_CLIENT_SENT);
            assert_true(s != BT_TRANSFER_CLIENT_DONE || (c.actions & ~(uint32_t)DO(LATE)) == 0);
            assert_true(i != ON(LOST) || c.next == BT_TRANSFER_CLIENT_DONE);
        }
    }
    const bt_transfer_client_cell beyond = bt_transfer_client_table(99, 99);
    assert_int_equal(beyond.next, BT_TRANSFER_CLIENT_DONE);
    assert_int_equal(beyond.actions, 0);
}

/* ---- paths ---- */

static void an_honest_prompt(void **state)
{
    (void)state;
    bt_transfer_client c = sent(0, 1000);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 100, MS(1001)), DO(STORE));
        assert_int_equal(bt_transfer_client_put(&c, ON(STORED), MS(1001)), 0);
    }
    assert_int_equal(bt_transfer_client_frame(&c, CHUNK, true, 0, MS(1002)), DO(ADVANCE));
    assert_int_equal(bt_transfer_client_frame(&c, COMMIT, true, 0, MS(1003)), DO(END_COMMIT));
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_DONE);
    assert_int_equal(bt_transfer_client_deadline(&c), BT_TRANSFER_NEVER);
    assert_int_equal(bt_transfer_client_put(&c, ON(CANCEL), MS(1004)), 0);
}

static void checkpoints_follow_commit(void **state)
{
    (void)state;
    bt_transfer_client c = sent(2, 1000);
    assert_int_equal(bt_transfer_client_frame(&c, COMMIT, true, 0, MS(1)), DO(END_COMMIT));
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_PENDING);
    assert_int_equal(bt_transfer_client_frame(&c, STATE, true, 100, MS(2)), DO(STORE_CHECKPOINT));
    assert_int_equal(bt_transfer_client_put(&c, ON(STORED), MS(2)), 0);
    assert_int_equal(bt_transfer_client_frame(&c, CHUNK, true, 0, MS(3)), DO(KEEP_CHECKPOINT));
    assert_int_equal(c.checkpoint, 1);
    assert_int_equal(bt_transfer_client_frame(&c, CHUNK, true, 0, MS(4)), DO(KEEP_CHECKPOINT));
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_DONE);

    c = sent(2, 1000);                                  /* rows have no place there */
    (void)bt_transfer_client_frame(&c, COMMIT, true, 0, MS(1));
    assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 10, MS(2)),
                     DO(CORRUPT) | DO(DROP_CHECKPOINT) | DO(SEND_CANCEL));
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_CANCELLING);
    assert_int_equal(bt_transfer_client_frame(&c, CANCELLED, true, 0, MS(3)), 0);
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_DONE);
}

static void credit_is_exact(void **state)
{
    (void)state;
    bt_transfer_client c = sent(0, 1000);
    assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 249, MS(1)), DO(STORE));
    assert_int_equal(bt_transfer_client_credit_due(&c), 0);         /* not stored yet */
    (void)bt_transfer_client_put(&c, ON(STORED), MS(1));
    assert_int_equal(bt_transfer_client_credit_due(&c), 0);         /* less than a quarter */
    assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 1, MS(1)), DO(STORE));
    (void)bt_transfer_client_put(&c, ON(STORED), MS(1));
    assert_int_equal(bt_transfer_client_credit_due(&c), 250);
    assert_int_equal(c.credit_left, 750);
    bt_transfer_client over = c;
    assert_int_equal(bt_transfer_client_frame(&over, ROWS, true, 751, MS(1)), DO(DISCONNECT));
    bt_transfer_client_credit_given(&c, 250);
    assert_int_equal(c.credit_left, 1000);
    assert_int_equal(bt_transfer_client_credit_due(&c), 0);
    assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 1000, MS(1)), DO(STORE));
    assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 1, MS(1)), DO(DISCONNECT));
    bt_transfer_client_credit_given(&c, UINT64_MAX);                /* no more than is owed */
    assert_int_equal(c.credit_left, 0);
}

/* The engine has closed the ticket before it says why. */
static void the_reason_of_a_cancel_may_come_after(void **state)
{
    (void)state;
    bt_transfer_client c = sent(0, 1000);
    (void)bt_transfer_client_frame(&c, ROWS, true, 10, MS(1));
    assert_int_equal(bt_transfer_client_put(&c, ON(GONE), MS(1)), DO(SEND_CANCEL));
    assert_int_equal(bt_transfer_client_frame(&c, ROWS, true, 10, MS(1)), DO(LATE));
    bt_transfer_client silent = c;
    assert_int_equal(bt_transfer_client_put(&c, ON(CANCEL), MS(2)), DO(END_CANCEL));
    assert_int_equal(bt_transfer_client_put(&c, ON(CANCEL), MS(2)), 0);
    assert_int_equal(bt_transfer_client_frame(&c, CANCELLED, true, 0, MS(3)), 0);
    assert_int_equal(bt_transfer_client_frame(&silent, CANCELLED, true, 0, MS(3)), DO(END_CANCEL));
}

static void a_worker_without_a_last_word_is_not_waited_for(void **state)
{
    (void)state;
    bt_transfer_client c = sent(0, 1000);
    assert_int_equal(bt_transfer_client_put(&c, ON(CANCEL), MS(9000)),
                     DO(SEND_CANCEL) | DO(END_CANCEL));
    assert_int_equal(bt_transfer_client_deadline(&c), MS(14000));
    (void)bt_transfer_client_frame(&c, ROWS, true, 10, MS(13000));  /* does not lengthen it */
    assert_int_equal(bt_transfer_client_tick(&c, MS(13999)), 0);
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_CANCELLING);
    (void)bt_transfer_client_tick(&c, MS(14000));
    assert_int_equal(c.state, BT_TRANSFER_CLIENT_DONE);
}

static void late_prompts_are_hedged_once(void **state)
{
    (void)state;
    bt_transfer_client c;
    bt_transfer_client_init(&c, 0, MS(50));
    assert_int_equal(bt_transfer_client_deadline(&c), MS(50));
    assert_int_equal(bt_transfer_client_tick(&c, MS(49)), 0);
    assert_int_equal(bt_transfer_client_tick(&c, MS(60)), DO(PREFILL_HERE));
    assert_int_equal(bt_transfer_client_tick(&c, MS(70)), 0);
    (void)bt_transfer_client_posted(&c, 10, MS(80));
    assert_int_equal(bt_transfer_client_tick(&c, MS(90)), 0);
    assert_int_equal(bt_transfer_client_put(&c, ON(CANCEL), MS(91)),
                     DO(SEND_CANCEL) | DO(END_CANCEL));
}

/* ---- patience: what a worker announces is not what decides ---- */

static void patience_has_a_ceiling_of_our_own(void **state)
{
    (void)state;
    static const struct { bt_transfer_forecast f; uint64_t pause_ms, limit_ms; } cases[] = {
        { { 0, 0, 0 }, 30000, 600000 },                 /* nothing is known */
        { { 0, 0, 1e18 }, 30000, 600000 },              /* but for the worker's word */
        { { 0, 1e18, 0 }, 30000, 600000 },
        { { 1000, 0, 0 }, 14000, 140000 },
        { { 1000, 1200, 0 }, 14800, 140000 },
        { { 1000, 1200, 100 }, 15200, 140000 },
        { { 1000, 1e18, 1e18 }, 20000, 140000 },        /* hours */
        { { 500, 1000, 7.2e6 }, 15000, 130000 },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        bt_transfer_client c = sent(0, 1000);
        bt_transfer_client_set_patience(&c, &cases[i].f);
        assert_int_equal(c.pause_ns, MS(cases[i].pause_ms));
        assert_int_equal(c.limit_ns, MS(cases[i].limit_ms));
        bt_transfer_client quiet = c;
        assert_int_equal(bt_transfer_client_tick(&quiet, MS(1000 + cases[i].pause_ms)),
                         DO(SEND_CANCEL) | DO(END_FAIL));
        /* A row now and then does not hold a prompt for ever. */
        uint64_t now = MS(1000);
        uint32_t todo = 0;
        while (c.state == BT_TRANSFER_CLIENT_SENT) {
            now += MS(900);
            (void)bt_transfer_client_frame(&c, CHUNK, true, 0, now);
            todo = bt_transfer_client_tick(&c, now);
        }
        assert_int_equal(todo, DO(SEND_CANCEL) | DO(END_FAIL));
        assert_in_range(now / MS(1), 1000 + cases[i].limit_ms, 1900 + cases[i].limit_ms);
    }
}

static void a_fixed_pause_is_what_was_asked_for(void **state)
{
    (void)state;
    bt_transfer_client c = sent(0, 1000);
    bt_transfer_client_set_pause(&c, MS(400));
    assert_int_equal(bt_transfer_client_deadline(&c), MS(1400));
    (void)bt_transfer_client_frame(&c, CHUNK, true, 0, MS(1300));
    assert_int_equal(bt_transfer_client_deadline(&c), MS(1700));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_has_the_table),
        cmocka_unit_test(every_cell_keeps_the_rules),
        cmocka_unit_test(an_honest_prompt),
        cmocka_unit_test(checkpoints_follow_commit),
        cmocka_unit_test(credit_is_exact),
        cmocka_unit_test(the_reason_of_a_cancel_may_come_after),
        cmocka_unit_test(a_worker_without_a_last_word_is_not_waited_for),
        cmocka_unit_test(late_prompts_are_hedged_once),
        cmocka_unit_test(patience_has_a_ceiling_of_our_own),
        cmocka_unit_test(a_fixed_pause_is_what_was_asked_for),
    };
    return cmocka_run_group_tests_name("transfer/client", tests, NULL, NULL);
}
