/* base/waker.c - see waker.h. */
#include "base/waker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/eventfd.h>
#endif

bt_status bt_waker_open(bt_waker *ret_waker, bt_error *err)
{
    int fds[2];
#ifdef __linux__
    fds[0] = fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const bool failed = fds[0] < 0;
#else
    bool failed = pipe(fds) != 0;
    for (int i = 0; i < 2 && !failed; i++) {
        (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(fds[i], F_SETFL, O_NONBLOCK);
    }
#endif
    if (failed) {
        return bt_fail(err, BT_E_FULL, "cannot open a descriptor to wake a thread: %s",
                       strerror(errno));
    }
    *ret_waker = (bt_waker){ .read_fd = fds[0], .write_fd = fds[1] };
    return BT_OK;
}

void bt_waker_close(bt_waker *w)
{
    if (w->read_fd >= 0) {
        (void)close(w->read_fd);
    }
    if (w->write_fd >= 0 && w->write_fd != w->read_fd) {
        (void)close(w->write_fd);
    }
    w->read_fd = w->write_fd = -1;
}

/* A full pipe or counter is a wake that has not been cleared yet: nothing more is needed. */
void bt_waker_wake(const bt_waker *w)
{
    const uint64_t one = 1;
    const int before = errno;
    while (write(w->write_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    errno = before;
}

void bt_waker_clear(const bt_waker *w)
{
    uint64_t ignored[8];
    ssize_t n;
    do {
        n = read(w->read_fd, ignored, sizeof ignored);
    } while (n == (ssize_t)sizeof ignored || (n < 0 && errno == EINTR));
}
