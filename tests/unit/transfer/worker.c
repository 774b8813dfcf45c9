/* tests/unit/transfer/worker.c - the worker's side of a prompt: the table, cell by cell, and what
 * it guarantees along the paths that matter. Which frame comes next: pieces.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "unit/transfer/page.h"
#include "unit/transfer/prompt.h"

/* ---- the table ---- */

static void the_page_has_the_table(void **state)
{
    (void)state;
    char *page = page_read();
    bool right = true;
    assert_non_null(page);
    for (uint32_t i = 0; i < BT_TRANSFER_WORKER_INPUT_COUNT; i++) {
        char line[1024];
        size_t at = (size_t)snprintf(line, sizeof line, "| %s |", bt_transfer_worker_input_name(i));
        for (uint32_t s = 0; s < BT_TRANSFER_WORKER_STATE_COUNT; s++) {
            const bt_transfer_worker_cell cell = bt_transfer_worker_table(s, i);
            at = page_cell(line, sizeof line, at,
                           cell.next != s ? bt_transfer_worker_state_name(cell.next) : NULL,
                           cell.actions, BT_TRANSFER_WORKER_ACTION_COUNT,
                           bt_transfer_worker_action_name);
        }
        right &= page_has(page, line);
    }
    free(page);
    assert_true(right);
}

/* The engine has a request of the prompt that was not released. */
static bool has_request(uint32_t s)
{
    return s != BT_TRANSFER_WORKER_TOKENS && s != BT_TRANSFER_WORKER_WAITING &&
           s != BT_TRANSFER_WORKER_CHECKPOINTS && s != BT_TRANSFER_WORKER_DONE;
}

static bool waits_for_the_engine(uint32_t s)
{
    return has_request(s) && s != BT_TRANSFER_WORKER_SENDING;
}

/* Of every cell, whatever it is: the rules that the header promises. */
static void every_cell_keeps_the_rules(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < BT_TRANSFER_WORKER_STATE_COUNT; s++) {
        for (uint32_t i = 0; i < BT_TRANSFER_WORKER_INPUT_COUNT; i++) {
            const bt_transfer_worker_cell c = bt_transfer_worker_table(s, i);
            const uint32_t words = c.actions & (DO(SAY_CANCELLED) | DO(SAY_ERROR));
            assert_true(c.next >= s || c.next == BT_TRANSFER_WORKER_CANCELLING);
            /* A request appears by submitting and goes by releasing, and by REFUSED only else. */
            assert_int_equal((c.actions & DO(SUBMIT)) != 0, !has_request(s) && has_request(c.next));
            if (i != ON(REFUSED)) {
                assert_int_equal((c.actions & DO(RELEASE)) != 0,
                                 has_request(s) && !has_request(c.next));
            }
            /* It is released only when the engine has ended, and stopped only before. */
            if (c.actions & DO(RELEASE)) {
                assert_true(s == BT_TRANSFER_WORKER_SENDING || i == ON(ENDED) || i == ON(FAILED));
            }
            if (c.actions & DO(STOP_COMPUTING)) {
                assert_true(waits_for_the_engine(s) && waits_for_the_engine(c.next));
            }
            /* Words are last, one at a time, and nobody hears any after the end of a connection. */
            assert_int_equal(words & (words - 1), 0);
            assert_true(words == 0 || c.next == BT_TRANSFER_WORKER_DONE);
            assert_true(words == 0 || (s != BT_TRANSFER_WORKER_ABANDONED && i != ON(LOST)));
            assert_true(s != BT_TRANSFER_WORKER_DONE || (c.actions == 0 && c.next == s));
            if (i == ON(LOST)) {
                assert_true(c.next == BT_TRANSFER_WORKER_DONE ||
                            c.next == BT_TRANSFER_WORKER_ABANDONED);
            }
            if (i == ON(ENDED) || i == ON(FAILED)) {
                assert_false(waits_for_the_engine(s) && waits_for_the_engine(c.next));
            }
        }
    }
    const bt_transfer_worker_cell beyond = bt_transfer_worker_table(99, 99);
    assert_int_equal(beyond.next, BT_TRANSFER_WORKER_DONE);
    assert_int_equal(beyond.actions, 0);
}

/* ---- paths ---- */

static void an_honest_prompt(void **state)
{
    (void)state;
    prompt p;
    prompt_open(&p, 0, 8, BT_WIRE_ORDER_PUSH, 1 << 20, 0);
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(FULL), 1), 0);
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(ADMITTED), 1), DO(SUBMIT));
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_QUEUED);
    bt_transfer_worker_layer_ready(&p.w, 0, 0, 8, 2);
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_COMPUTING);
    bt_transfer_worker_all_ready(&p.w, 8, 3);
    prompt_send_up_to(&p, BT_TRANSFER_PIECE_COMMIT);
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_COMMITTED);
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(ENDED), 4), DO(RELEASE));
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_DONE);
    bt_transfer_worker_done(&p.w);
}

static void the_end_of_the_engine_may_come_before_the_last_row_leaves(void **state)
{
    (void)state;
    prompt p;
    prompt_open(&p, 0, 8, BT_WIRE_ORDER_PUSH, 1 << 20, 2);
    prompt_begin(&p);
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(ENDED), 2), 0);
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_SENDING);
    assert_int_equal(p.w.n_cached, 8);                  /* nothing had to be computed */
    const uint32_t todo = prompt_send_up_to(&p, BT_TRANSFER_PIECE_COMMIT);
    assert_int_equal(todo, DO(RELEASE));
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_CHECKPOINTS);
    prompt_send_up_to(&p, BT_TRANSFER_PIECE_CHUNK);
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_CHECKPOINTS);
    prompt_send_up_to(&p, BT_TRANSFER_PIECE_CHUNK);
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_DONE);
    bt_transfer_worker_done(&p.w);
}

/* Brings a prompt to a state by a path that can happen. */
static void bring_to(prompt *p, bt_transfer_worker_state s)
{
    const bool owing = s == BT_TRANSFER_WORKER_OWING || s == BT_TRANSFER_WORKER_CHECKPOINTS;
    prompt_open(p, 0, 4, BT_WIRE_ORDER_PUSH, 1 << 20, owing ? 1 : 0);
    if (s == BT_TRANSFER_WORKER_WAITING) {
        (void)bt_transfer_worker_put(&p->w, ON(FULL), 1);
    } else if (s != BT_TRANSFER_WORKER_TOKENS) {
        prompt_begin(p);
    }
    if (s == BT_TRANSFER_WORKER_SENDING) {
        (void)bt_transfer_worker_put(&p->w, ON(ENDED), 2);
    } else if (s > BT_TRANSFER_WORKER_QUEUED) {
        bt_transfer_worker_layer_ready(&p->w, 0, 0, 4, 2);
    }
    if (s == BT_TRANSFER_WORKER_COMMITTED || owing) {
        bt_transfer_worker_all_ready(&p->w, 4, 2);
        prompt_send_up_to(p, BT_TRANSFER_PIECE_COMMIT);
    }
    if (s == BT_TRANSFER_WORKER_CHECKPOINTS) {
        (void)bt_transfer_worker_put(&p->w, ON(ENDED), 2);
    }
    assert_int_equal(p->w.state, s);
}

/* Cancelled in any state: CANCELLED is said once, when computing has stopped; nothing is sent. */
static void cancelled_at_any_time(void **state)
{
    (void)state;
    for (uint32_t s = 0; s <= BT_TRANSFER_WORKER_CHECKPOINTS; s++) {
        prompt p;
        bring_to(&p, s);
        uint32_t todo = bt_transfer_worker_put(&p.w, ON(CANCEL), 3);
        if (waits_for_the_engine(s)) {
            assert_int_equal(todo, DO(STOP_COMPUTING));
            assert_int_equal(bt_transfer_worker_put(&p.w, ON(CANCEL), 3), 0);
            assert_int_equal(bt_transfer_worker_next(&p.w, 3).kind, BT_TRANSFER_PIECE_NONE);
            todo = bt_transfer_worker_put(&p.w, ON(FAILED), 4);
            assert_int_equal(todo, DO(RELEASE) | DO(SAY_CANCELLED));
        }
        assert_true(todo & DO(SAY_CANCELLED));
        assert_int_equal(p.w.state, BT_TRANSFER_WORKER_DONE);
        assert_int_equal(bt_transfer_worker_next(&p.w, 5).kind, BT_TRANSFER_PIECE_NONE);
        bt_transfer_worker_done(&p.w);
    }
}

static void the_end_of_the_connection_stops_computing_and_says_nothing(void **state)
{
    (void)state;
    for (uint32_t s = 0; s <= BT_TRANSFER_WORKER_CHECKPOINTS; s++) {
        prompt p;
        bring_to(&p, s);
        uint32_t todo = bt_transfer_worker_put(&p.w, ON(LOST), 3);
        todo |= bt_transfer_worker_put(&p.w, ON(FAILED), 4);
        assert_int_equal(todo & (DO(SAY_CANCELLED) | DO(SAY_ERROR)), 0);
        assert_int_equal((todo & DO(RELEASE)) != 0, has_request(s));
        assert_int_equal(p.w.state, BT_TRANSFER_WORKER_DONE);
        bt_transfer_worker_done(&p.w);
    }
}

static void an_error_of_the_engine_is_said_once(void **state)
{
    (void)state;
    prompt p;
    bring_to(&p, BT_TRANSFER_WORKER_COMPUTING);
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(FAILED), 3), DO(RELEASE) | DO(SAY_ERROR));
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(FAILED), 3), 0);
    bt_transfer_worker_done(&p.w);

    bring_to(&p, BT_TRANSFER_WORKER_QUEUED);            /* there was no request after all */
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(REFUSED), 3), DO(SAY_ERROR));
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_DONE);
    bt_transfer_worker_done(&p.w);
}

/* ---- credit and patience ---- */

static void credit_never_wraps(void **state)
{
    (void)state;
    prompt p;
    prompt_open(&p, 0, 4, BT_WIRE_ORDER_PUSH, 0, 0);
    assert_false(bt_transfer_worker_credit(&p.w, 0, 1));
    assert_false(bt_transfer_worker_credit(&p.w, BT_TRANSFER_CREDIT_MAX + 1, 1));
    assert_true(bt_transfer_worker_credit(&p.w, BT_TRANSFER_CREDIT_MAX, 1));
    assert_false(bt_transfer_worker_credit(&p.w, BT_TRANSFER_CREDIT_MAX, 1));
    assert_false(bt_transfer_worker_credit(&p.w, 1, 1));
    assert_true(p.w.credit == BT_TRANSFER_CREDIT_MAX);
    bt_transfer_worker_done(&p.w);
}

static void a_prompt_without_credit_has_a_deadline(void **state)
{
    (void)state;
    prompt p;
    prompt_open(&p, 0, 4, BT_WIRE_ORDER_PUSH, 0, 0);
    assert_true(bt_transfer_worker_is_held_up(&p.w));   /* by tokens that do not come */
    assert_true(bt_transfer_worker_deadline(&p.w, 100) == 100);
    prompt_begin(&p);
    assert_false(bt_transfer_worker_is_held_up(&p.w));  /* by this worker, if by anybody */
    assert_true(bt_transfer_worker_deadline(&p.w, 100) == BT_TRANSFER_WORKER_NEVER);
    bt_transfer_worker_layer_ready(&p.w, 0, 0, 4, 50);
    assert_true(bt_transfer_worker_is_held_up(&p.w));
    assert_true(bt_transfer_worker_deadline(&p.w, 100) == 150);
    assert_true(bt_transfer_worker_deadline(&p.w, UINT64_MAX) == BT_TRANSFER_WORKER_NEVER);
    assert_true(bt_transfer_worker_credit(&p.w, 1, 70));    /* less than a row */
    assert_true(bt_transfer_worker_deadline(&p.w, 100) == 170);
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(STALLED), 170), DO(STOP_COMPUTING));
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(FAILED), 171), DO(RELEASE) | DO(SAY_ERROR));
    bt_transfer_worker_done(&p.w);
}

static void without_memory_nothing_begins(void **state)
{
    (void)state;
    prompt p;
    prompt_open(&p, 0, 4, BT_WIRE_ORDER_PUSH, 0, 0);
    bt_transfer_worker_done(&p.w);
    bt_error err;
    bt_memory_fail_after(1);
    assert_int_equal(bt_transfer_worker_init(&p.w, &p.ask, 0, &err), BT_E_NOMEM);
    bt_memory_fail_after(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_has_the_table),
        cmocka_unit_test(every_cell_keeps_the_rules),
        cmocka_unit_test(an_honest_prompt),
        cmocka_unit_test(the_end_of_the_engine_may_come_before_the_last_row_leaves),
        cmocka_unit_test(cancelled_at_any_time),
        cmocka_unit_test(the_end_of_the_connection_stops_computing_and_says_nothing),
        cmocka_unit_test(an_error_of_the_engine_is_said_once),
        cmocka_unit_test(credit_never_wraps),
        cmocka_unit_test(a_prompt_without_credit_has_a_deadline),
        cmocka_unit_test(without_memory_nothing_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
