/* doctor/reach.c - see reach.h. */
#include "doctor/reach.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "link/lookup.h"
#include "link/socket.h"

#ifdef MSG_NOSIGNAL
#define NO_SIGNAL MSG_NOSIGNAL
#else
#define NO_SIGNAL 0                    /* an option of the socket instead */
#endif

static void try_one(const struct addrinfo *a, uint32_t timeout_ms, bt_reach *r)
{
    const uint64_t begun = bt_clock_ns();
    bt_error err;
    int fd;

    *r = (bt_reach){.kind = BT_REACH_OTHER};
    bt_link_address_tell(a->ai_addr, a->ai_addrlen, r->peer, sizeof r->peer);
    errno = 0;
    if (bt_link_socket_open(a, 0, &fd, &err) != BT_OK) {
        r->error = errno;
        return;
    }
    r->error = bt_link_socket_connect(fd, a, bt_clock_after_ms(timeout_ms), NULL);
    r->ms = (double)(bt_clock_ns() - begun) / BT_NS_PER_MS;
    r->kind = bt_link_reach_why(r->error, a);
    close(fd);
}

bt_status bt_doctor_reach_try(const char *address, uint32_t timeout_ms, bt_reach list[BT_REACH_MAX],
                              uint32_t *ret_n, bt_error *err)
{
    struct addrinfo *found = NULL;
    bt_link_address a;
    uint32_t n = 0;

    BT_TRY(bt_link_address_parse(address, &a, err));
    if (a.port == 0) {
        return bt_fail(err, BT_E_BADINPUT, "'%s': port 0 cannot be connected to", address);
    }
    BT_TRY(bt_link_lookup(&a, false, bt_clock_after_ms(timeout_ms), NULL, &found,
                          err));
    for (const struct addrinfo *i = found; i != NULL && n < BT_REACH_MAX; i = i->ai_next) {
        try_one(i, timeout_ms, &list[n++]);
    }
    freeaddrinfo(found);
    *ret_n = n;
    return n > 0 ? BT_OK : bt_fail(err, BT_E_NOTFOUND, "'%s': the name has no address", address);
}

/* ---- who else may listen there ---- */

bool bt_doctor_reach_speaks_http(const char *address, uint32_t timeout_ms)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static const char begins[] = "HTTP/";
    const bt_link_options o = {.connect_timeout_ms = timeout_ms};
    const uint64_t until = bt_clock_after_ms(timeout_ms);
    char peer[BT_LINK_PEER_MAX], said[sizeof begins - 1];
    size_t n = 0;
    bt_error err;
    int fd;

    if (bt_link_address_connect(address, &o, &fd, peer, &err) != BT_OK) {
        return false;
    }
    bool open = send(fd, request, sizeof request - 1, NO_SIGNAL) == (ssize_t)sizeof request - 1;
    while (open && n < sizeof said && bt_clock_ns() < until) {
        if (bt_link_socket_wait(fd, POLLIN, NULL, until)) {
            const ssize_t got = recv(fd, said + n, sizeof said - n, 0);
            open = got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
            n += got > 0 ? (size_t)got : 0;
        }
    }
    close(fd);
    return n == sizeof said && memcmp(said, begins, n) == 0;
}
