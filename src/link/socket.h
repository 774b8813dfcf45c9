/* link/socket.h - sockets: opened, connected, waited for.
 *
 * Threads: any. Sockets are non-blocking, close-on-exec, never raise SIGPIPE, and send at once.
 */
#ifndef BT_LINK_SOCKET_H
#define BT_LINK_SOCKET_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"
#include "base/waker.h"

/* Every socket that is to carry a link. */
BT_MUST_CHECK bt_status bt_link_socket_prepare(int fd, bt_error *err);
/* For one of the addresses that a name has: a socket, prepared; and connected, 0 or an errno. */
BT_MUST_CHECK bt_status bt_link_socket_open(const struct addrinfo *a, uint32_t buffer_bytes,
                                            int *ret_fd, bt_error *err);
int bt_link_socket_connect(int fd, const struct addrinfo *a, uint64_t deadline_ns,
                           const bt_waker *cancel);
/* Waits until `fd` is ready for `events` (or broken), the waker (may be NULL) has been woken, or
 * deadline_ns (UINT64_MAX: none), rounded up to milliseconds. True when `fd` is ready. */
bool bt_link_socket_wait(int fd, short events, const bt_waker *waker, uint64_t deadline_ns);
/* The same until it is one of the three: 0, ECANCELED or ETIMEDOUT. */
int bt_link_socket_await(int fd, short events, const bt_waker *cancel, uint64_t deadline_ns);

#endif
