/* link/address.c - see address.h. */
#include "link/address.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "link/lookup.h"
#include "link/reach.h"
#include "link/socket.h"

enum { CONNECT_TIMEOUT_MS = 3000 };

/* A packet dropped because the queue is full costs its sender a second. */
enum { BACKLOG = 1024 };

/* ---- text ---- */

static bt_status parse_port(const char *text, const char *port, uint16_t *ret_port, bt_error *err)
{
    uint32_t v = 0;
    size_t n = 0;

    for (; port[n] >= '0' && port[n] <= '9' && n < 6; n++) {
        v = v * 10 + (uint32_t)(port[n] - '0');
    }
    if (n == 0 || port[n] != '\0' || v > UINT16_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "'%s': '%s' is not a port, 0 to 65535", text, port);
    }
    *ret_port = (uint16_t)v;
    return BT_OK;
}

/* What a name or an IPv4 address is made of; within brackets colons too. Other bytes than ASCII are
 * left to the resolver. */
static bool is_host(const char *host, size_t n, bool bracketed)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)host[i];
        const bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        if (!letter && !(c >= '0' && c <= '9') && !strchr("-._%", c) && c < 0x80 &&
            !(bracketed && c == ':')) {
            return false;
        }
    }
    return true;
}

/* More than one colon, and no bracket at the beginning. */
static bt_status fail_colons(const char *text, bt_error *err)
{
    if (strstr(text, "://")) {
        return bt_fail(err, BT_E_BADINPUT, "'%s' is a URL; expected HOST:PORT", text);
    }
    if (strpbrk(text, ",; ")) {
        return bt_fail(err, BT_E_BADINPUT, "'%s' is more than one address; expected HOST:PORT",
                       text);
    }
    return bt_fail(err, BT_E_BADINPUT, "'%s': an IPv6 address is written [ADDRESS]:PORT", text);
}

bt_status bt_link_address_parse(const char *text, bt_link_address *ret_address, bt_error *err)
{
    bt_link_address a;
    const char *colon = strrchr(text, ':');
    const char *host = text;
    size_t n;

    if (text[0] == '[') {
        const char *close = strchr(text, ']');
        if (close == NULL || close[1] != ':') {
            return bt_fail(err, BT_E_BADINPUT, "'%s': expected [ADDRESS]:PORT", text);
        }
        host = text + 1;
        n = (size_t)(close - host);
        colon = close + 1;
    } else {
        if (colon == NULL) {
            return bt_fail(err, BT_E_BADINPUT, "'%s': no port; expected HOST:PORT", text);
        }
        if (strchr(text, ':') != colon) {
            return fail_colons(text, err);
        }
        n = (size_t)(colon - text);
    }
    if (n == 0) {
        return bt_fail(err, BT_E_BADINPUT,
                       "'%s': no host; 127.0.0.1%s is this machine only, 0.0.0.0%s all networks",
                       text, colon, colon);
    }
    if (n >= sizeof a.host) {
        return bt_fail(err, BT_E_BADINPUT, "the host of '%.40s...' has %zu characters, at most %zu",
                       text, n, sizeof a.host - 1);
    }
    if (!is_host(host, n, text[0] == '[')) {
        return bt_fail(err, BT_E_BADINPUT, "'%s': '%.*s' is not a host; expected HOST:PORT", text,
                       (int)n, host);
    }
    memcpy(a.host, host, n);
    a.host[n] = '\0';
    BT_TRY(parse_port(text, colon + 1, &a.port, err));
    *ret_address = a;
    return BT_OK;
}

void bt_link_address_tell(const struct sockaddr *a, socklen_t size, char *to, size_t room)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getnameinfo(a, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(to, room, "unknown address");
        return;
    }
    snprintf(to, room, a->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* ---- connect ---- */

static uint32_t count(const struct addrinfo *list)
{
    uint32_t n = 0;
    for (; list != NULL; list = list->ai_next) {
        n++;
    }
    return n;
}

/* Every address gets an equal share of what time is left, so that a dead one (IPv6 that leads
 * nowhere) does not eat the turn of the next. */
static bt_status connect_list(const char *text, const struct addrinfo *list,
                              const bt_link_options *o, uint64_t deadline_ns, int *ret_fd,
                              char peer[BT_LINK_PEER_MAX], bt_error *err)
{
    bt_status status = bt_fail(err, BT_E_NOTFOUND, "'%s': the name has no address", text);

    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        const uint64_t now = bt_clock_ns();
        const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        const uint64_t share = left / count(a);
        int fd;

        status = bt_link_socket_open(a, o->buffer_bytes, &fd, err);
        if (status != BT_OK) {
            continue;                   /* a family this machine does not have */
        }
        bt_link_address_tell(a->ai_addr, a->ai_addrlen, peer, BT_LINK_PEER_MAX);
        const int error = bt_link_socket_connect(fd, a, now + share, o->cancel);
        if (error == 0) {
            *ret_fd = fd;
            return BT_OK;
        }
        close(fd);
        const uint64_t share_ms = (share + BT_NS_PER_MS / 2) / BT_NS_PER_MS;
        status = bt_link_reach_explain(bt_link_reach_why(error, a), error, text, peer,
                                         (uint32_t)share_ms, err);
    }
    return status;
}

bt_status bt_link_address_connect(const char *text, const bt_link_options *o, int *ret_fd,
                                  char peer[BT_LINK_PEER_MAX], bt_error *err)
{
    const uint32_t timeout_ms = o->connect_timeout_ms ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    const uint64_t deadline_ns = bt_clock_after_ms(timeout_ms);
    struct addrinfo *list = NULL;
    bt_link_address a;

    BT_TRY(bt_link_address_parse(text, &a, err));
    if (a.port == 0) {
        return bt_fail(err, BT_E_BADINPUT, "'%s': port 0 cannot be connected to", text);
    }
    BT_TRY(bt_link_lookup(&a, false, deadline_ns, o->cancel, &list, err));
    const bt_status status = connect_list(text, list, o, deadline_ns, ret_fd, peer, err);
    freeaddrinfo(list);
    return status;
}

/* ---- listen ---- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, a, sizeof in6);
        static const uint8_t mapped[13] = {[10] = 0xFF, 0xFF, 127};
        return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
               memcmp(&in6.sin6_addr, mapped, sizeof mapped) == 0;
    }
    return false;
}

static bt_status listen_on(const char *text, const struct addrinfo *a, const bt_link_options *o,
                           int *ret_fd, bt_error *err)
{
    int fd;

    if (o->key_file == NULL && !o->allow_insecure && !is_loopback(a->ai_addr)) {
        return bt_fail(err, BT_E_REFUSED,
                       "'%s' can be reached from other machines, and without a key anybody could "
                       "use it: give both sides the same --key-file FILE (32 random bytes will "
                       "do), or listen on 127.0.0.1",
                       text);
    }
    BT_TRY(bt_link_socket_open(a, o->buffer_bytes, &fd, err));
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        const int error = errno;
        close(fd);
        return bt_fail(err, BT_E_IO, "'%s' cannot be listened on: %s%s", text, strerror(error),
                       error == EADDRINUSE      ? "; another program has the port"
                       : error == EADDRNOTAVAIL ? "; it is not an address of this machine"
                       : error == EACCES        ? "; ports below 1024 need rights"
                                                : "");
    }
    *ret_fd = fd;
    return BT_OK;
}

bt_status bt_link_address_listen(const char *text, const bt_link_options *o, int *ret_fd,
                                 bt_error *err)
{
    const uint64_t deadline_ns = bt_clock_after_ms(CONNECT_TIMEOUT_MS);
    struct addrinfo *list = NULL;
    bt_link_address a;

    BT_TRY(bt_link_address_parse(text, &a, err));
    BT_TRY(bt_link_lookup(&a, true, deadline_ns, NULL, &list, err));
    bt_status status = bt_fail(err, BT_E_NOTFOUND, "'%s': the name has no address", text);
    for (const struct addrinfo *i = list; i != NULL && status != BT_OK && status != BT_E_REFUSED;
         i = i->ai_next) {
        status = listen_on(text, i, o, ret_fd, err);
    }
    freeaddrinfo(list);
    return status;
}
