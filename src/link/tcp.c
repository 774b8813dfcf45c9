/* link/tcp.c - plain TCP, and the choice between it and TLS. */
#include "link/transport.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0                  /* macOS: SO_NOSIGPIPE is set on the socket instead */
#endif

static bt_io handshake(bt_transport *t, bt_error *err)
{
    (void)t;
    (void)err;
    return BT_IO_DONE;
}

static bt_io fail(const bt_transport *t, int error, bt_error *err)
{
    if (error == ECONNRESET || error == EPIPE) {
        bt_fail(err, BT_E_LOST, "%s: connection reset; the process there has ended", t->peer);
    } else {
        bt_fail(err, BT_E_LOST, "%s: %s", t->peer, strerror(error));
    }
    return BT_IO_FAILED;
}

static bt_io receive(bt_transport *t, void *to, size_t room, size_t *ret_n, bt_error *err)
{
    for (;;) {
        const ssize_t n = recv(t->fd, to, room, 0);
        if (n > 0) {
            *ret_n = (size_t)n;
            return BT_IO_DONE;
        }
        if (n == 0) {
            return BT_IO_END;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return BT_IO_WANT_READ;
        }
        if (errno != EINTR) {
            return fail(t, errno, err);
        }
    }
}

static bt_io transmit(bt_transport *t, const struct iovec *parts, int n_parts, size_t *ret_n,
                      bt_error *err)
{
    struct msghdr message = {0};

    /* sendmsg reads the parts only, whatever its type says. */
    memcpy(&message.msg_iov, &parts, sizeof parts);
    message.msg_iovlen = (unsigned char)n_parts;
    for (;;) {
        const ssize_t n = sendmsg(t->fd, &message, MSG_NOSIGNAL);
        if (n >= 0) {
            *ret_n = (size_t)n;
            return BT_IO_DONE;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
            return BT_IO_WANT_WRITE;
        }
        if (errno != EINTR) {
            return fail(t, errno, err);
        }
    }
}

static void finish(bt_transport *t)
{
    shutdown(t->fd, SHUT_WR);
}

static void destroy(bt_transport *t)
{
    close(t->fd);
    bt_free(t);
}

static const bt_transport_ops ops = {
    .name = "tcp",
    .handshake = handshake,
    .recv = receive,
    .send = transmit,
    .finish = finish,
    .destroy = destroy,
};

bt_status bt_link_transport_tcp_open(int fd, bool accepted, const char *peer,
                                     bt_transport **ret_transport, bt_error *err)
{
    bt_transport *t = bt_alloc_zero(BT_MEM_link, 1, sizeof *t);

    if (t == NULL) {
        close(fd);
        return bt_fail(err, BT_E_NOMEM, "%s: no memory for a connection", peer);
    }
    t->ops = &ops;
    t->fd = fd;
    t->accepted = accepted;
    snprintf(t->peer, sizeof t->peer, "%s", peer);
    *ret_transport = t;
    return BT_OK;
}

bt_status bt_link_transport_open(int fd, bool accepted, const char *peer, const bt_link_key *key,
                                 bt_transport **ret_transport, bt_error *err)
{
    return key != NULL ? bt_link_transport_tls_open(fd, accepted, peer, key, ret_transport, err)
                       : bt_link_transport_tcp_open(fd, accepted, peer, ret_transport, err);
}
