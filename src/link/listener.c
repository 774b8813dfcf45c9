/* link/listener.c - a listening socket and a waker for whoever waits on it.
 *
 * The waker, because shutting a listening socket down wakes its waiters on Linux only.
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
#include "link/socket.h"

enum { FULL_PAUSE_MS = 50 };            /* out of descriptors: do not spin */

struct bt_listener {
    int              fd;
    bt_waker         waker;
    atomic_bool      stopped, woken;
    bt_link_options  options;
    bool             encrypted;
    bt_link_key      key;               /* if encrypted; read once, at open */
    char             address[BT_LINK_PEER_MAX];
};

static bt_status prepare(bt_listener *l, bt_error *err)
{
    struct sockaddr_storage a;
    socklen_t size = sizeof a;

    if (getsockname(l->fd, (struct sockaddr *)&a, &size) != 0) {
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
    l->fd = -1;
    l->waker = (bt_waker){-1, -1};
    if (o != NULL) {
        l->options = *o;
    }
    bt_status status = bt_waker_open(&l->waker, err);
    if (status == BT_OK && l->options.key_file != NULL) {
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
    l->options.cancel = NULL;
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
            const uint64_t until = bt_clock_after_ms(FULL_PAUSE_MS);
            bt_link_socket_wait(bt_waker_fd(&l->waker), POLLIN, NULL, until);
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

bt_status bt_link_listener_accept(bt_listener *l, uint64_t deadline_ns, bt_link **ret_link,
                                  bt_error *err)
{
    for (;;) {
        if (atomic_load(&l->stopped)) {     /* first: its wake may have been cleared below */
            return bt_fail(err, BT_E_CLOSED, "no longer listening on %s", l->address);
        }
        if (atomic_load(&l->woken)) {
            bt_waker_clear(&l->waker);
            (void)atomic_exchange(&l->woken, false);
            return BT_E_AGAIN;
        }
        if (bt_link_socket_wait(l->fd, POLLIN, &l->waker, deadline_ns)) {
            const bt_status status = take(l, ret_link, err);
            if (status != BT_E_AGAIN) {
                return status;
            }
        }
        if (bt_clock_ns() >= deadline_ns && !atomic_load(&l->stopped)) {
            return BT_E_AGAIN;
        }
    }
}

const char *bt_link_listener_address(const bt_listener *l) { return l->address; }

void bt_link_listener_wake(bt_listener *l)
{
    if (!atomic_exchange(&l->woken, true)) {
        bt_waker_wake(&l->waker);
    }
}

void bt_link_listener_stop(bt_listener *l)
{
    atomic_store(&l->stopped, true);
    bt_waker_wake(&l->waker);
}

void bt_link_listener_close(bt_listener *l)
{
    if (l == NULL) {
        return;
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    bt_waker_close(&l->waker);
    bt_link_key_forget(&l->key);
    bt_free(l);
}
