/* base/threads.h - a team of threads that run one function together.
 *
 * The CPU device's workers: bt_team_run() calls fn(context, index, n) on n threads, of which the
 * caller is number 0, and returns when all have returned. Inside, bt_team_barrier() lets all n
 * meet. Waiters spin for a few microseconds and then sleep, so an idle team costs nothing and two
 * processes may share two cores.
 *
 * Lifetime: create to destroy, on the owner's thread. Threads: run() from one thread at a time.
 * Failure:  create only.
 */
#ifndef BT_BASE_THREADS_H
#define BT_BASE_THREADS_H

#include <stdint.h>

#include "base/status.h"

typedef struct bt_team bt_team;
typedef void bt_team_fn(void *context, uint32_t index, uint32_t n_threads);

BT_MUST_CHECK bt_status bt_team_create(uint32_t n_threads_max, bt_team **ret_team, bt_error *err);
void     bt_team_destroy(bt_team *team);                         /* NULL is fine */
uint32_t bt_team_size(const bt_team *team);
/* n_threads is clamped to 1 .. size. */
void     bt_team_run(bt_team *team, uint32_t n_threads, bt_team_fn *fn, void *context);
/* Only inside fn, by all of its threads. Writes before it are seen by all after it. */
void     bt_team_barrier(bt_team *team);

/* Cores this process may use. */
uint32_t bt_cpu_count(void);

#endif
