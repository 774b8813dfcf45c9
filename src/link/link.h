/* link/link.h - a connection to a peer that carries frames of docs/wire.md.
 *
 * One writer thread per connection sends: control frames before bulk frames, vectored, at least
 * 256 KiB at a time when there is as much; the owner's reader calls bt_link_receive(). Reads and
 * writes have no deadline of their own: heartbeats (PING/PONG, sent by the writer when idle) say
 * whether the peer is alive, and deadlines belong to those who wait.
 *
 * Lifetime: connect or accept to destroy. close() may be called from any thread, wakes reader and
 *           writer, and may be called twice.
 * Threads:  receive: one thread. send, close, stats: any.
 * Failure:  BT_E_LOST with a sentence (reset, closed by peer, silent for N ms), BT_E_PROTOCOL for
 *           frames that break the rules, BT_E_TIMEOUT on connect.
 */
#ifndef BT_LINK_LINK_H
#define BT_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"

typedef struct bt_link     bt_link;
typedef struct bt_listener bt_listener;

typedef struct {
    uint32_t    connect_timeout_ms;    /* 0: 3000 */
    uint32_t    heartbeat_ms;          /* 0: 500; silence of 4 of these is "lost" */
    uint32_t    buffer_bytes;          /* SO_SNDBUF and SO_RCVBUF; 0: the kernel's tuning */
    uint64_t    queue_bytes_max;       /* bulk waiting to be sent; 0: 8 MiB */
    const char *key_file;              /* TLS-PSK; NULL: plain */
} bt_link_options;

typedef struct {
    uint16_t       type, flags;
    uint32_t       stream;
    uint64_t       sequence;
    uint32_t       size;               /* of body */
    const uint8_t *body;               /* valid until the next receive */
} bt_frame;

/* "host:port", "[v6]:port". Blocks up to the timeout; the sentence says refused, no route, ... */
BT_MUST_CHECK bt_status bt_link_connect(const char *address, const bt_link_options *o,
                                        bt_link **ret_link, bt_error *err);
BT_MUST_CHECK bt_status bt_listener_open(const char *address, const bt_link_options *o,
                                         bt_listener **ret_listener, bt_error *err);
/* BT_E_AGAIN after timeout_ms; BT_E_CLOSED after bt_listener_stop. */
BT_MUST_CHECK bt_status bt_listener_accept(bt_listener *l, uint32_t timeout_ms, bt_link **ret_link,
                                           bt_error *err);
const char *bt_listener_address(const bt_listener *l);      /* with the real port */
void bt_listener_stop(bt_listener *l);                      /* any thread */
void bt_listener_close(bt_listener *l);

/* Waits for the next frame; PING and PONG are handled inside. BT_E_AGAIN after timeout_ms. */
BT_MUST_CHECK bt_status bt_link_receive(bt_link *link, uint32_t timeout_ms, bt_frame *ret_frame,
                                        bt_error *err);
/* Copies the body; goes before bulk. */
BT_MUST_CHECK bt_status bt_link_send(bt_link *link, uint16_t type, uint32_t stream, const void *body,
                                     size_t size, bt_error *err);
/* Bulk: `fill` is called later on the writer thread to write exactly `size` bytes of body into the
 * send buffer, so rows go from pages to the socket with one copy. `drop` (may be NULL) is called
 * instead when the link dies first or the stream is dropped. Blocks while queue_bytes_max wait. */
typedef void bt_bulk_fill(void *context, uint8_t *to, size_t size);
typedef void bt_bulk_drop(void *context);
typedef struct {
    uint16_t type;
    uint32_t stream;
    uint32_t size;                     /* <= BT_WIRE_BODY_BYTES_MAX */
    bt_bulk_fill *fill;
    bt_bulk_drop *drop;
    uint8_t  context[64];              /* copied; passed by address */
} bt_bulk;
BT_MUST_CHECK bt_status bt_link_send_bulk(bt_link *link, const bt_bulk *bulk, bt_error *err);
/* Forgets bulk frames of a stream that were not begun (cancel). */
void bt_link_drop_stream(bt_link *link, uint32_t stream);

void bt_link_close(bt_link *link, const char *reason);
void bt_link_destroy(bt_link *link);

typedef struct {
    char     peer[128];
    uint64_t bytes_sent, bytes_received, frames_sent, frames_received;
    double   round_trip_ms;            /* smoothed; 0: not yet */
    uint64_t bulk_queued_bytes;
    bool     alive, encrypted;
} bt_link_stats;
void bt_link_stats_get(const bt_link *link, bt_link_stats *ret_stats);

#endif
