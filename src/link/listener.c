/* link/listener.c - a listening socket and a pipe that wakes whoever waits on it.
 *
 * The pipe, because shutting a listening socket down wakes its waiters on Linux only.
 */
#include "link/private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "link/address.h"

enum { FULL_PAUSE_MS = 50 };            /* out of descriptors: do not spin */

struct bt_listener {
    int              fd;
    int              wake[2];           /* [0] becomes readable on stop and stays so */
    atomic_bool      stopped;
    bt_link_options  options;
    bool             encrypted;
    bt_link_key      key;               /* if encrypted; read once, at open */
    char             address[BT_LINK_PEER_MAX];
};

static bt_status prepare(bt_listener *l, bt_error *err)
{
    struct sockaddr_storage a;
    socklen_t size = sizeof a;

    if (pipe(l->wake) != 0) {
        l->wake[0] = l->wake[1] = -1;
        return bt_fail(err, BT_E_FULL, "no descriptors left to listen: %s", strerror(errno));
    }
    if (fcntl(l->wake[0], F_SETFD, FD_CLOEXEC) < 0 || fcntl(l->wake[1], F_SETFD, FD_CLOEXEC) < 0 ||
        getsockname(l->fd, (struct sockaddr *)&a, &size) != 0) {
        return bt_fail(err, BT_E_IO, "a listening socket could not be set up: %s", strerror(errno));
    }
    bt_link_address_tell((struct sockaddr *)&a, size, l->address, sizeof l->address);
    return BT_OK;
}

bt_status bt_link_listener_open(const char *address, const bt_link_options *o,
                                bt_listener **ret_listener, bt_error *err)
{
    bt_listener *l = bt_alloc_zero(BT_MEM_link, 1, sizeof *l);

    if (l == NULL) {
        return bt_fail(err, BT_E_NOMEM, "no memory to listen on '%s'", address);
    }
    l->fd = l->wake[0] = l->wake[1] = -1;
    if (o != NULL) {
        l->options = *o;
    }
    bt_status status = BT_OK;
    if (l->options.key_file != NULL) {
        status = bt_link_key_load(l->options.key_file, &l->key, err);
    }
    if (status == BT_OK) {
        status = bt_link_address_listen(address, &l->options, &l->fd, err);
    }
    if (status == BT_OK) {
        status = prepare(l, err);
    }
    l->encrypted = l->options.key_file != NULL;
    l->options.key_file = NULL;         /* both pointers are the caller's */
    l->options.stop = NULL;
    if (status != BT_OK) {
        bt_link_listener_close(l);
        return status;
    }
    *ret_listener = l;
    return BT_OK;
}

static bt_status take(bt_listener *l, bt_link **ret_link, bt_error *err)
{
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    char peer[BT_LINK_PEER_MAX];
    bt_transport *transport;

    const int fd = accept(l->fd, (struct sockaddr *)&a, &size);
    if (fd < 0) {
        const int error = errno;
        if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
            bt_clock_sleep_ms(FULL_PAUSE_MS);
            return bt_fail(err, BT_E_FULL, "a connection could not be accepted: %s",
                           strerror(error));
        }
        return BT_E_AGAIN;              /* it was gone already, or a signal came */
    }
    const bt_status status = bt_link_socket_prepare(fd, err);
    if (status != BT_OK) {
        close(fd);
        return status;
    }
    bt_link_address_tell((struct sockaddr *)&a, size, peer, sizeof peer);
    BT_TRY(bt_link_transport_open(fd, true, peer, l->encrypted ? &l->key : NULL, &transport, err));
    return bt_link_create(transport, &l->options, ret_link, err);
}

bt_status bt_link_listener_accept(bt_listener *l, uint32_t timeout_ms, bt_link **ret_link,
                                  bt_error *err)
{
    const uint64_t end = bt_clock_ns() + bt_link_ms_to_ns(timeout_ms);

    for (;;) {
        struct pollfd p[2] = {{.fd = l->fd, .events = POLLIN},
                              {.fd = l->wake[0], .events = POLLIN}};
        const uint64_t now = bt_clock_ns();
        const uint64_t left_ms = end > now ? (end - now) / BT_LINK_NS_PER_MS + 1 : 0;
        const bool forever = timeout_ms == BT_LINK_WAIT_FOREVER;
        const int ready = poll(p, 2, forever ? -1 : left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
        if (atomic_load(&l->stopped)) {
            return bt_fail(err, BT_E_CLOSED, "no longer listening on %s", l->address);
        }
        if (ready > 0) {
            const bt_status status = take(l, ret_link, err);
            if (status != BT_E_AGAIN) {
                return status;
            }
        }
        if (!forever && bt_clock_ns() >= end) {
            return BT_E_AGAIN;
        }
    }
}

const char *bt_link_listener_address(const bt_listener *l) { return l->address; }

void bt_link_listener_stop(bt_listener *l)
{
    if (!atomic_exchange(&l->stopped, true)) {
        /* One byte into an empty pipe cannot fail. */
        const ssize_t n = write(l->wake[1], "", 1);
        (void)n;
    }
}

void bt_link_listener_close(bt_listener *l)
{
    if (l == NULL) {
        return;
    }
    const int list[] = {l->fd, l->wake[0], l->wake[1]};
    for (size_t i = 0; i < BT_LEN(list); i++) {
        if (list[i] >= 0) {
            close(list[i]);
        }
    }
    bt_link_key_forget(&l->key);
    bt_free(l);
}
