/* link/reach.c - see reach.h. */
#include "link/reach.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __APPLE__
static const bool on_macos = true;
#else
static const bool on_macos = false;
#endif

const char *bt_link_reach_kind_name(bt_reach_kind kind)
{
    static const char *const names[] = {
#define X(kind, name) name,
        BT_REACH_LIST(X)
#undef X
    };
    return (unsigned)kind < BT_REACH_COUNT ? names[kind] : "unknown";
}

bt_reach_kind bt_link_reach_kind_of(int error, bool has_route, bool macos)
{
    switch (error) {
    case 0:
        return BT_REACH_CONNECTED;
    case ECONNREFUSED:
        return BT_REACH_REFUSED;
    case EHOSTUNREACH:
        return macos && has_route ? BT_REACH_LOCAL_NETWORK : BT_REACH_NO_ROUTE;
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
        return BT_REACH_NO_ROUTE;
    case ETIMEDOUT:
        return BT_REACH_NO_ANSWER;
    case EACCES:
    case EPERM:
        return BT_REACH_NOT_PERMITTED;
    case ECANCELED:
        return BT_REACH_STOPPED;
    default:
        return BT_REACH_OTHER;
    }
}

/* "'spark:7070' (10.0.0.2:7070)"; once, when it was given as looked up. */
static void name(const char *address, const char *peer, char *to, size_t room)
{
    if (strcmp(address, peer) == 0) {
        snprintf(to, room, "'%s'", address);
    } else {
        snprintf(to, room, "'%s' (%s)", address, peer);
    }
}

bt_status bt_link_reach_explain(bt_reach_kind kind, int error, const char *address,
                                  const char *peer, uint32_t waited_ms, bt_error *err)
{
    char who[BT_LINK_HOST_MAX + BT_LINK_PEER_MAX + 16];
    name(address, peer, who, sizeof who);
    switch (kind) {
    case BT_REACH_CONNECTED:
        return BT_OK;
    case BT_REACH_REFUSED:
        return bt_fail(err, BT_E_LOST,
                       "%s: refused: the machine answers, but nothing listens on that port there; "
                       "is the worker running, and does it --listen on this network?", who);
    case BT_REACH_NO_ROUTE:
        return bt_fail(err, BT_E_LOST,
                       "%s: no route: %s; is the machine on, and the cable or network up?", who,
                       strerror(error));
    case BT_REACH_NO_ANSWER:
        return bt_fail(err, BT_E_TIMEOUT,
                       "%s: no answer within %" PRIu32 " ms: the machine is off, or a firewall "
                       "drops the packets", who, waited_ms);
    case BT_REACH_NOT_PERMITTED:
        return bt_fail(err, BT_E_LOST,
                       "%s: not permitted: a firewall or a rule for routes on this machine forbids "
                       "it", who);
    case BT_REACH_LOCAL_NETWORK:
        return bt_fail(err, BT_E_LOST,
                       "%s: not permitted: there is a route, but macOS keeps this program from the "
                       "local network; allow it (or the terminal that runs it) under System "
                       "Settings, Privacy & Security, Local Network", who);
    case BT_REACH_STOPPED:
        return bt_fail(err, BT_E_TIMEOUT, "%s: given up: this side is stopping", who);
    default:
        return bt_fail(err, BT_E_LOST, "%s: %s", who, strerror(error));
    }
}

/* Connecting a datagram socket only looks the route up. */
bool bt_link_reach_has_route(const struct sockaddr *address, socklen_t size)
{
    const int fd = socket(address->sa_family, SOCK_DGRAM, 0);
    if (fd < 0) {
        return false;
    }
    const bool found = connect(fd, address, size) == 0;
    close(fd);
    return found;
}

bt_reach_kind bt_link_reach_why(int error, const struct addrinfo *a)
{
    const bool route =
            error == EHOSTUNREACH && bt_link_reach_has_route(a->ai_addr, a->ai_addrlen);
    return bt_link_reach_kind_of(error, route, on_macos);
}
