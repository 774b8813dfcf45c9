/* link/sync.h - condition variables that wait by the monotonic clock, and threads.
 *
 * macOS has no pthread_condattr_setclock but a relative wait, which is as good.
 */
#ifndef BT_LINK_SYNC_H
#define BT_LINK_SYNC_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { BT_LINK_STOP_SLICE_MS = 50 };    /* how soon a stop flag is noticed */
#define BT_LINK_NS_PER_MS 1000000u

static inline uint64_t bt_link_ms_to_ns(uint32_t ms) { return (uint64_t)ms * BT_LINK_NS_PER_MS; }

static inline void bt_link_cond_init(pthread_cond_t *c)
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

/* May return early; callers look at their condition and the clock. */
static inline void bt_link_cond_wait_ns(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t ns)
{
    struct timespec t;
#ifdef __APPLE__
    t.tv_sec = (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait_relative_np(c, lock, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
    const uint64_t end = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + ns;
    t.tv_sec = (time_t)(end / 1000000000u);
    t.tv_nsec = (long)(end % 1000000000u);
    pthread_cond_timedwait(c, lock, &t);
#endif
}

/* What is left until the deadline, at most a slice when a flag has to be looked at. */
static inline uint64_t bt_link_slice_ns(uint64_t now_ns, uint64_t deadline_ns, bool sliced)
{
    const uint64_t left = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    const uint64_t slice = bt_link_ms_to_ns(BT_LINK_STOP_SLICE_MS);
    return sliced && left > slice ? slice : left;
}

/* A thread that leaves all signals to others; detached when ret_thread is NULL. */
static inline bool bt_link_thread_start(pthread_t *ret_thread, void *(*run)(void *), void *context)
{
    sigset_t all, old;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const bool started = pthread_create(&thread, NULL, run, context) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (started && ret_thread != NULL) {
        *ret_thread = thread;
    } else if (started) {
        pthread_detach(thread);
    }
    return started;
}

#endif
