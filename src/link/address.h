/* link/address.h - "host:port" to sockets, and sentences about what went wrong.
 *
 * Threads: any. Sockets are non-blocking, close-on-exec, never raise SIGPIPE, and send at once.
 */
#ifndef BT_LINK_ADDRESS_H
#define BT_LINK_ADDRESS_H

#include <netdb.h>
#include <sys/socket.h>

#include "base/status.h"
#include "base/sync.h"
#include "base/waker.h"
#include "link/link.h"

enum { BT_LINK_HOST_MAX = 256, BT_LINK_PEER_MAX = 128 };

typedef struct {
    char     host[BT_LINK_HOST_MAX];
    uint16_t port;
} bt_link_address;

/* "host:port" or "[v6]:port". BT_E_BADINPUT. */
BT_MUST_CHECK bt_status bt_link_address_parse(const char *text, bt_link_address *ret_address,
                                              bt_error *err);
/* "1.2.3.4:5" or "[::1]:5". */
void bt_link_address_tell(const struct sockaddr *a, socklen_t size, char *to, size_t room);

BT_MUST_CHECK bt_status bt_link_address_connect(const char *text, const bt_link_options *o,
                                                int *ret_fd, char peer[BT_LINK_PEER_MAX],
                                                bt_error *err);
BT_MUST_CHECK bt_status bt_link_address_listen(const char *text, const bt_link_options *o,
                                               int *ret_fd, bt_error *err);
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
