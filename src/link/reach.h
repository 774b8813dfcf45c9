/* link/reach.h - what stands in the way of connecting, in kinds and sentences.
 *
 * The kinds are what a person can do something about. bt_link_reach_kind_of() and
 * bt_link_reach_explain() are pure, so that every kind can be tested on any system.
 * Threads: any. Failure: kinds and sentences; nothing is kept open.
 */
#ifndef BT_LINK_REACH_H
#define BT_LINK_REACH_H

#include <sys/socket.h>

#include "link/address.h"

/*    kind           name             */
#define BT_REACH_LIST(X)                                                                    \
    X(CONNECTED,     "connected")                                                           \
    X(REFUSED,       "refused")         /* the machine answers, nothing listens there */    \
    X(NO_ROUTE,      "no route")        /* or the machine is off, or rejects */             \
    X(NO_ANSWER,     "no answer")       /* packets vanish */                                \
    X(NOT_PERMITTED, "not permitted")   /* by a firewall of this machine */                 \
    X(LOCAL_NETWORK, "local network")   /* by macOS, which asks the user once */            \
    X(STOPPED,       "stopped")         /* given up on our own wish */                      \
    X(OTHER,         "other")

typedef enum {
#define X(kind, name) BT_REACH_##kind,
    BT_REACH_LIST(X)
#undef X
    BT_REACH_COUNT
} bt_reach_kind;

const char *bt_link_reach_kind_name(bt_reach_kind kind);             /* static */

/* What an errno of connect() means (0: connected). `has_route`: the system knows a way to the
 * address all the same. On macOS that together is the permission for the local network. */
bt_reach_kind bt_link_reach_kind_of(int error, bool has_route, bool macos);
/* The sentence for it, naming the address as given and as looked up. */
bt_status bt_link_reach_explain(bt_reach_kind kind, int error, const char *address,
                                  const char *peer, uint32_t waited_ms, bt_error *err);
/* Whether this system has a way to the address; sends nothing. */
bool bt_link_reach_has_route(const struct sockaddr *address, socklen_t size);

/* Of the errno that bt_link_socket_connect gave, on this system. */
bt_reach_kind bt_link_reach_why(int error, const struct addrinfo *a);

#endif
