/* link/socket.c - see socket.h. */
#include "link/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sync.h"

/* Bytes that the kernel takes but has not sent. More would only make a control frame wait behind
 * them; this much still keeps a 25 Gbit/s line busy for a third of a millisecond. */
enum { UNSENT_BYTES_MAX = 1 << 20 };

static void set_option(int fd, int level, int name, int value)
{
    /* All of these make things better where they exist; none is needed. */
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

bt_status bt_link_socket_prepare(int fd, bt_error *err)
{
    const int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        return bt_fail(err, BT_E_IO, "a socket could not be set up: %s", strerror(errno));
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef TCP_NOTSENT_LOWAT
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX);
#endif
#ifdef SO_NOSIGPIPE
    set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
    return BT_OK;
}

/* Before connect or listen: the window scale is agreed on in the first packets. */
static void set_buffers(int fd, uint32_t bytes)
{
    if (bytes > 0) {
        const int n = bytes < INT32_MAX ? (int)bytes : INT32_MAX;
        set_option(fd, SOL_SOCKET, SO_SNDBUF, n);
        set_option(fd, SOL_SOCKET, SO_RCVBUF, n);
    }
}

bool bt_link_socket_wait(int fd, short events, const bt_waker *waker, uint64_t deadline_ns)
{
    struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = -1, .events = POLLIN}};
    int timeout = -1;

    if (waker != NULL) {
        p[1].fd = bt_waker_fd(waker);
    }
    if (deadline_ns != UINT64_MAX) {
        const uint64_t now = bt_clock_ns();
        const uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
        const uint64_t ms = (ns + BT_NS_PER_MS - 1) / BT_NS_PER_MS;
        timeout = ms < INT32_MAX ? (int)ms : INT32_MAX;
    }
    return poll(p, 2, timeout) > 0 && p[0].revents != 0;
}

int bt_link_socket_await(int fd, short events, const bt_waker *cancel, uint64_t deadline_ns)
{
    while (!bt_link_socket_wait(fd, events, cancel, deadline_ns)) {
        if (cancel != NULL &&
            bt_link_socket_wait(bt_waker_fd(cancel), POLLIN, NULL, bt_clock_ns())) {
            return ECANCELED;
        }
        if (bt_clock_ns() >= deadline_ns) {
            return ETIMEDOUT;
        }
    }
    return 0;
}

bt_status bt_link_socket_open(const struct addrinfo *a, uint32_t buffer_bytes, int *ret_fd,
                              bt_error *err)
{
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);

    if (fd < 0) {
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        return bt_fail(err, full ? BT_E_FULL : BT_E_IO, "a socket could not be opened: %s",
                       strerror(errno));
    }
    const bt_status status = bt_link_socket_prepare(fd, err);
    if (status != BT_OK) {
        close(fd);
        return status;
    }
    set_buffers(fd, buffer_bytes);
    *ret_fd = fd;
    return BT_OK;
}

/* Connecting to a free port of this very machine can meet itself: the kernel may pick the same port
 * as ours, and TCP allows it. Nobody listens there. */
static bool met_itself(int fd)
{
    struct sockaddr_storage ours, theirs;
    socklen_t our_size = sizeof ours, their_size = sizeof theirs;

    return getsockname(fd, (struct sockaddr *)&ours, &our_size) == 0 &&
           getpeername(fd, (struct sockaddr *)&theirs, &their_size) == 0 &&
           our_size == their_size && memcmp(&ours, &theirs, our_size) == 0;
}

int bt_link_socket_connect(int fd, const struct addrinfo *a, uint64_t deadline_ns,
                           const bt_waker *cancel)
{
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) {
            return errno;
        }
        int error = bt_link_socket_await(fd, POLLOUT, cancel, deadline_ns);
        socklen_t size = sizeof error;
        if (error != 0) {
            return error;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
            return error != 0 ? error : errno;
        }
    }
    return met_itself(fd) ? ECONNREFUSED : 0;
}
