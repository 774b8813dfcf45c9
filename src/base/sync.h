/* base/sync.h - threads, and condition variables that wait by the monotonic clock.
 *
 * A wait ends because somebody signals, or at a deadline that means something; it never ends early
 * in order to look around. To wait for a signal and a socket at once: base/waker.h.
 *
 * Threads: any. Failure: start only.
 */
#ifndef BT_BASE_SYNC_H
#define BT_BASE_SYNC_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define BT_NEVER_NS UINT64_MAX         /* a deadline that does not come */
#define BT_NS_PER_MS 1000000u

/* A thread that leaves all signals to the main thread. `name` is what `ps -T` shows (15 bytes); a
 * NULL ret_thread detaches it. BT_E_FULL: the system gives no thread. */
BT_MUST_CHECK bt_status bt_thread_start(pthread_t *ret_thread, void *(*run)(void *context),
                                        void *context, const char *name, bt_error *err);

void bt_cond_init(pthread_cond_t *c);
/* False: the deadline (by bt_clock_ns) has passed. True may be spurious: look at the condition. */
bool bt_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif
