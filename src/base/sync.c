/* base/sync.c - see sync.h. macOS has no clock attribute but a relative wait, which is as good. */
#include "base/sync.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"

typedef struct {
    void *(*run)(void *context);
    void *context;
    char  name[16];
} thread_start;

static void name_thread(const char *name)
{
#ifdef __APPLE__
    pthread_setname_np(name);
#elif defined(__linux__)
    (void)pthread_setname_np(pthread_self(), name);
#else
    (void)name;
#endif
}

static void *begin(void *context)
{
    const thread_start s = *(thread_start *)context;
    bt_free(context);
    name_thread(s.name);
    return s.run(s.context);
}

bt_status bt_thread_start(pthread_t *ret_thread, void *(*run)(void *context), void *context,
                          const char *name, bt_error *err)
{
    thread_start *start = bt_alloc_zero(BT_MEM_base, 1, sizeof *start);
    sigset_t all, old;
    pthread_t thread;

    if (!start) {
        return bt_fail_nomem(err, sizeof *start, "a thread");
    }
    start->run = run;
    start->context = context;
    memcpy(start->name, name, strnlen(name, sizeof start->name - 1));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failure = pthread_create(&thread, NULL, begin, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failure != 0) {
        bt_free(start);
        return bt_fail(err, BT_E_FULL, "cannot create a thread: %s", strerror(failure));
    }
    if (ret_thread) {
        *ret_thread = thread;
    } else {
        pthread_detach(thread);
    }
    return BT_OK;
}

void bt_cond_init(pthread_cond_t *c)
{
#ifdef __APPLE__
    pthread_cond_init(c, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

bool bt_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    if (deadline_ns == BT_NEVER_NS) {
        (void)pthread_cond_wait(c, lock);
        return true;
    }
#ifdef __APPLE__
    const uint64_t now = bt_clock_ns();
    if (now >= deadline_ns) {
        return false;
    }
    const struct timespec t = { .tv_sec = (time_t)((deadline_ns - now) / 1000000000u),
                                .tv_nsec = (long)((deadline_ns - now) % 1000000000u) };
    return pthread_cond_timedwait_relative_np(c, lock, &t) != ETIMEDOUT;
#else
    const struct timespec t = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
                                .tv_nsec = (long)(deadline_ns % 1000000000u) };
    return pthread_cond_timedwait(c, lock, &t) != ETIMEDOUT;
#endif
}
