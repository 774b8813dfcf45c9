/* Threads and wakers: waits end by a signal, a wake or their deadline, and by nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/sync.h"
#include "base/waker.h"

/* ---- threads ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            set, signals_blocked;
    char            name[16];
} flag;

static void flag_init(flag *f)
{
    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    bt_cond_init(&f->changed);
}

static void *set_flag(void *context)
{
    flag *f = context;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    pthread_mutex_lock(&f->lock);
    f->signals_blocked = sigismember(&blocked, SIGTERM) == 1;
#ifdef __linux__
    pthread_getname_np(pthread_self(), f->name, sizeof f->name);
#endif
    f->set = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void a_thread_has_a_name_and_leaves_signals_to_others(void **state)
{
    (void)state;
    flag f;
    flag_init(&f);
    pthread_t thread;
    assert_int_equal(bt_thread_start(&thread, set_flag, &f, "link writer, long", NULL), BT_OK);
    pthread_join(thread, NULL);
    assert_true(f.set && f.signals_blocked);
#ifdef __linux__
    assert_string_equal(f.name, "link writer, lo");
#endif
}

static void a_detached_thread_runs_too(void **state)
{
    (void)state;
    flag f;
    flag_init(&f);
    assert_int_equal(bt_thread_start(NULL, set_flag, &f, "detached", NULL), BT_OK);
    pthread_mutex_lock(&f.lock);
    while (!f.set) {
        assert_true(bt_cond_wait_until(&f.changed, &f.lock, BT_NEVER_NS));
    }
    pthread_mutex_unlock(&f.lock);
}

static void without_memory_no_thread_starts(void **state)
{
    (void)state;
    flag f;
    bt_error err;
    flag_init(&f);
    bt_memory_fail_after(1);
    const bt_status status = bt_thread_start(NULL, set_flag, &f, "none", &err);
    bt_memory_fail_after(0);
    assert_int_equal(status, BT_E_NOMEM);
    assert_non_null(strstr(err.text, "bytes for a thread"));
    assert_false(f.set);
}

/* ---- deadlines ---- */

static void a_wait_ends_at_its_deadline_and_not_before(void **state)
{
    (void)state;
    flag f;
    flag_init(&f);
    pthread_mutex_lock(&f.lock);
    const uint64_t deadline = bt_clock_ns() + 3 * BT_NS_PER_MS;
    while (bt_cond_wait_until(&f.changed, &f.lock, deadline)) {
    }
    assert_true(bt_clock_ns() >= deadline);
    assert_false(bt_cond_wait_until(&f.changed, &f.lock, deadline));    /* long past */
    pthread_mutex_unlock(&f.lock);
}

static void a_test_may_be_the_clock(void **state)
{
    (void)state;
    uint64_t now = 5 * BT_NS_PER_MS;
    bt_clock_set_source(&now);
    const double first = bt_clock_ms();
    now += 2 * BT_NS_PER_MS;
    const double second = bt_clock_ms();
    bt_clock_set_source(NULL);
    assert_true(first == 5 && second == 7);
    assert_true(bt_clock_ns() > now);
}

/* ---- wakers ---- */

static bool readable(const bt_waker *w, int timeout_ms)
{
    struct pollfd p = { .fd = bt_waker_fd(w), .events = POLLIN };
    return poll(&p, 1, timeout_ms) == 1;
}

static void wakes_coalesce_until_they_are_cleared(void **state)
{
    (void)state;
    bt_waker w;
    assert_int_equal(bt_waker_open(&w, NULL), BT_OK);
    assert_false(readable(&w, 0));
    bt_waker_clear(&w);                 /* of nothing: does not block */
    for (int i = 0; i < 100000; i++) {  /* more than a pipe holds */
        bt_waker_wake(&w);
    }
    assert_true(readable(&w, 0));
    bt_waker_clear(&w);
    assert_false(readable(&w, 0));
    bt_waker_wake(&w);
    assert_true(readable(&w, 0));
    bt_waker_close(&w);
    bt_waker_close(&w);
}

static void *wake(void *context)
{
    bt_waker_wake(context);
    return NULL;
}

static void a_wake_ends_a_wait_of_another_thread(void **state)
{
    (void)state;
    bt_waker w;
    pthread_t thread;
    assert_int_equal(bt_waker_open(&w, NULL), BT_OK);
    assert_int_equal(bt_thread_start(&thread, wake, &w, "waker", NULL), BT_OK);
    assert_true(readable(&w, -1));
    pthread_join(thread, NULL);
    bt_waker_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_has_a_name_and_leaves_signals_to_others),
        cmocka_unit_test(a_detached_thread_runs_too),
        cmocka_unit_test(without_memory_no_thread_starts),
        cmocka_unit_test(a_wait_ends_at_its_deadline_and_not_before),
        cmocka_unit_test(a_test_may_be_the_clock),
        cmocka_unit_test(wakes_coalesce_until_they_are_cleared),
        cmocka_unit_test(a_wake_ends_a_wait_of_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
