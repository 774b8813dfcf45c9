/* link/transport.h - one way of moving bytes: plain TCP, TLS over TCP, later others.
 *
 * A transport never blocks and never waits; the link polls `fd` and calls again.
 *
 * Lifetime: open to destroy, which closes fd.
 * Threads:  recv by one thread while another sends; shutdown and finish by any; destroy by the
 * last.
 * Failure:  BT_IO_FAILED with a sentence; BT_IO_END when the peer has said the end.
 */
#ifndef BT_LINK_TRANSPORT_H
#define BT_LINK_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/status.h"
#include "link/key.h"

typedef enum { BT_IO_DONE, BT_IO_WANT_READ, BT_IO_WANT_WRITE, BT_IO_END, BT_IO_FAILED } bt_io;

typedef struct bt_transport bt_transport;

typedef struct {
    const char *name;
    bool        encrypted;
    /* Repeated until it says BT_IO_DONE. */
    bt_io (*handshake)(bt_transport *t, bt_error *err);
    /* At least one byte on BT_IO_DONE. */
    bt_io (*recv)(bt_transport *t, void *to, size_t room, size_t *ret_n, bt_error *err);
    bt_io (*send)(bt_transport *t, const struct iovec *parts, int n_parts, size_t *ret_n,
                  bt_error *err);
    /* No more will be sent; the peer sees the end behind everything sent before. */
    void (*finish)(bt_transport *t);
    void (*destroy)(bt_transport *t);
} bt_transport_ops;

struct bt_transport {
    const bt_transport_ops *ops;
    int                     fd;         /* non-blocking */
    bool                    accepted;   /* the other side connected to us */
    char                    peer[128];  /* numeric address and port, for messages */
};

/* Both keep `fd` (closed also when they fail). */
BT_MUST_CHECK bt_status bt_link_transport_tcp_open(int fd, bool accepted, const char *peer,
                                                   bt_transport **ret_transport, bt_error *err);
BT_MUST_CHECK bt_status bt_link_transport_tls_open(int fd, bool accepted, const char *peer,
                                                   const bt_link_key *key,
                                                   bt_transport **ret_transport, bt_error *err);
/* TLS with a key, plain TCP with NULL. */
BT_MUST_CHECK bt_status bt_link_transport_open(int fd, bool accepted, const char *peer,
                                               const bt_link_key *key, bt_transport **ret_transport,
                                               bt_error *err);

#endif
