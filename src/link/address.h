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

#endif
