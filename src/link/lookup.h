/* link/lookup.h - names to addresses, with an end to the waiting. Threads: any. */
#ifndef BT_LINK_LOOKUP_H
#define BT_LINK_LOOKUP_H

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "link/address.h"

/* BT_E_NOTFOUND, BT_E_TIMEOUT (also when `cancel` is woken), BT_E_LOST for a resolver that fails.
 * The list is freed with freeaddrinfo. */
BT_MUST_CHECK bt_status bt_link_lookup(const bt_link_address *a, bool passive, uint64_t deadline_ns,
                                       const bt_waker *cancel, struct addrinfo **ret_list,
                                       bt_error *err);

#endif
