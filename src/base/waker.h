/* base/waker.h - wakes a thread that waits for descriptors: an eventfd, or a pipe elsewhere.
 *
 * The waiting thread polls bt_waker_fd() for POLLIN beside its sockets, clears the waker and then
 * looks at everything that may have changed, in this order: no wake is lost.
 * Wakes coalesce: any number of them before a clear are one.
 *
 * Lifetime: open to close; nobody wakes a closed waker.
 * Threads:  wake: any, and from signal handlers; it never blocks. All else: the owner.
 * Failure:  open only: BT_E_FULL when the process has no descriptors left.
 */
#ifndef BT_BASE_WAKER_H
#define BT_BASE_WAKER_H

#include "base/status.h"

typedef struct {
    int read_fd, write_fd;             /* the same for an eventfd; { -1, -1 }: closed */
} bt_waker;

BT_MUST_CHECK bt_status bt_waker_open(bt_waker *ret_waker, bt_error *err);
void bt_waker_close(bt_waker *w);      /* twice is fine */
void bt_waker_wake(const bt_waker *w);
void bt_waker_clear(const bt_waker *w);
static inline int bt_waker_fd(const bt_waker *w) { return w->read_fd; }

#endif
