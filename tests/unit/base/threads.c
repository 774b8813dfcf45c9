/* The thread team: every thread runs, barriers order writes, teams of any size end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/threads.h"

enum { THREADS = 4, ROUNDS = 2000 };

typedef struct {
    bt_team *team;
    uint32_t seen[THREADS];
    uint32_t errors[THREADS];
} meeting;

/* Each round every thread writes its cell; after the barrier it must see all the others'. */
static void meet(void *context, uint32_t index, uint32_t n)
{
    meeting *m = context;
    for (uint32_t round = 1; round <= 20; round++) {
        m->seen[index] = round;
        bt_team_barrier(m->team);
        for (uint32_t i = 0; i < n; i++) {
            m->errors[index] += m->seen[i] != round;
        }
        bt_team_barrier(m->team);
    }
}

static void writes_before_a_barrier_are_seen_after_it(void **state)
{
    (void)state;
    meeting m = { 0 };
    assert_int_equal(bt_team_create(THREADS, &m.team, NULL), BT_OK);
    for (uint32_t round = 0; round < ROUNDS / 20; round++) {
        bt_team_run(m.team, 1 + round % THREADS, meet, &m);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(m.errors[i], 0);
    }
    bt_team_destroy(m.team);
}

static void count_up(void *context, uint32_t index, uint32_t n)
{
    (void)n;
    ((uint32_t *)context)[index]++;
}

static void runs_of_changing_size_start_exactly_their_threads(void **state)
{
    (void)state;
    bt_team *team;
    uint32_t counts[THREADS] = { 0 }, want[THREADS] = { 0 };
    assert_int_equal(bt_team_create(THREADS, &team, NULL), BT_OK);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t n = 1 + round % (THREADS + 2);     /* beyond the size: clamped */
        bt_team_run(team, n, count_up, counts);
        for (uint32_t i = 0; i < n && i < THREADS; i++) {
            want[i]++;
        }
    }
    assert_memory_equal(counts, want, sizeof want);
    bt_team_destroy(team);
}

static void an_absurd_size_is_refused(void **state)
{
    (void)state;
    bt_team *team = NULL;
    bt_error err;
    assert_int_equal(bt_team_create(1u << 20, &team, &err), BT_E_BADINPUT);
    assert_null(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_before_a_barrier_are_seen_after_it),
        cmocka_unit_test(runs_of_changing_size_start_exactly_their_threads),
        cmocka_unit_test(an_absurd_size_is_refused),
    };
    return cmocka_run_group_tests_name("base/threads", tests, NULL, NULL);
}
