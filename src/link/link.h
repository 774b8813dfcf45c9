/* link/link.h - a connection to a remote that carries frames of docs/wire.md.
 *
 * One writer thread per connection: it sends the control frames that are queued, then pulls bulk
 * frames from the owner's source until it has a batch of at least 256 KiB or the source has
 * nothing, and hands both to the kernel in one call. The owner's reader calls bt_link_receive().
 * Reads and writes have no deadline of their own: PING goes out every heartbeat_ms and is answered
 * by the remote's link, whatever its owner does, so silence of four heartbeats means "lost"; "too
 * slow" is for those who wait to decide.
 *
 * Lifetime: connect or accept to destroy, with no call in progress by then. close() may be called
 *           from any thread, wakes reader and writer, and may be called twice. After stop() the
 *           source is not called any more.
 * Threads:  receive and finish: one thread, the reader. set_source, stop and destroy: the owner's.
 *           All else: any. The source runs on the writer thread without a lock held; it may call
 *           bt_link_send, bt_link_pull and bt_link_wake, nothing that blocks.
 * Failure:  BT_E_LOST with a sentence (reset, closed by peer, silent for N ms), BT_E_PROTOCOL for
 *           frames that break the rules and bytes that TLS finds damaged, BT_E_CLOSED after our own
 *           close (the sentence is its reason). The first failure stays (PROTOCOL over LOST).
 *           Connecting: BT_E_BADINPUT (the address or key file), BT_E_NOTFOUND (the name),
 *           BT_E_LOST (refused, no route, reset), BT_E_TIMEOUT (no answer), BT_E_AUTH (the key).
 */
#ifndef BT_LINK_LINK_H
#define BT_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "base/waker.h"
#include "wire/frame.h"                /* bt_frame */

typedef struct bt_link     bt_link;
typedef struct bt_listener bt_listener;

typedef struct {
    uint32_t    connect_timeout_ms;    /* 0: 3000 */
    uint32_t    handshake_timeout_ms;  /* accepted links: for the first frame; 0: 5000 */
    uint32_t    heartbeat_ms;          /* 0: 500; silence of 4 of these is "lost" */
    uint32_t    buffer_bytes;          /* SO_SNDBUF and SO_RCVBUF; 0: the kernel's tuning */
    const char *key_file;              /* TLS 1.3 with this pre-shared key; NULL: plain */
    bool        allow_insecure;        /* listen beyond loopback without a key */
    const bt_waker *cancel;            /* connect gives up once it is woken; may be NULL */
} bt_link_options;

/* "host:port", "[v6]:port". Blocks up to the timeout; the sentence says refused, no route, ... */
BT_MUST_CHECK bt_status bt_link_connect(const char *address, const bt_link_options *o,
                                        bt_link **ret_link, bt_error *err);
/* Without key_file only loopback addresses, or BT_E_REFUSED with what to do. Port 0: any free. */
BT_MUST_CHECK bt_status bt_link_listener_open(const char *address, const bt_link_options *o,
                                              bt_listener **ret_listener, bt_error *err);
/* BT_E_AGAIN at deadline_ns (bt_clock_ns; UINT64_MAX: never) or after bt_link_listener_wake;
 * BT_E_CLOSED after bt_link_listener_stop; BT_E_FULL when the process has no descriptors or memory
 * left for one more, 50 ms later (accept again). Never waits for the new connection: its TLS
 * handshake and first frame happen in bt_link_receive, which says BT_E_TIMEOUT (BT_E_AUTH for a
 * wrong key) when they are not there handshake_timeout_ms after accept, however the bytes trickle.
 * How many connections to keep is the owner's limit. */
BT_MUST_CHECK bt_status bt_link_listener_accept(bt_listener *l, uint64_t deadline_ns,
                                                bt_link **ret_link, bt_error *err);
const char *bt_link_listener_address(const bt_listener *l);      /* with the real port */
void bt_link_listener_wake(bt_listener *l);                      /* any thread; remembered */
void bt_link_listener_stop(bt_listener *l);                      /* any thread */
void bt_link_listener_close(bt_listener *l);                     /* NULL is fine */

/* Waits for the next frame; PING and PONG are handled inside, types not in the table skipped.
 * BT_E_AGAIN at deadline_ns (bt_clock_ns; UINT64_MAX: never; one that has passed: only looks) or
 * after bt_link_wake. The body is valid until the next receive. Frames that came before a loss are
 * still delivered. */
BT_MUST_CHECK bt_status bt_link_receive(bt_link *link, uint64_t deadline_ns, bt_frame *ret_frame,
                                        bt_error *err);
/* Makes the receive that waits, or else the next one, return BT_E_AGAIN at once, also where frames
 * have come; several before it returns count as one. Frames still have their turn: of two receives
 * in a row at most one returns because of this while there are frames. */
void bt_link_wake(bt_link *link);
/* Control: copies the body, goes before bulk, never blocks. BT_E_FULL when 8 MiB of control frames
 * wait already. Long prompts (TOKENS) are better sent as bulk. */
BT_MUST_CHECK bt_status bt_link_send(bt_link *link, uint16_t type, uint32_t stream,
                                     const void *body, size_t size, bt_error *err);

/* Bulk: the writer asks, once the kernel has taken what came before, so that nothing is prepared
 * earlier than it can leave and one thread touches what is sent.
 *
 * next: writes the body of the next frame to `body` (room for BT_WIRE_BODY_BYTES_MAX), says its
 *       type, stream and size, and returns true; or false: nothing now. Then it is asked again
 *       after bt_link_pull, or at again_ns (bt_clock_ns) at the latest.
 * sealed: right after each frame, with the hash that bt_frame.hash will be at the remote; may be
 *       NULL.
 *
 * What either of them gives to bt_link_send leaves after the frames pulled until then. */
typedef struct {
    uint16_t type;
    uint32_t stream, size;
    uint64_t again_ns;                 /* UINT64_MAX, unless next() sets it */
} bt_link_out;
typedef struct {
    void *context;
    bool (*next)(void *context, uint8_t *body, size_t capacity, bt_link_out *ret);
    void (*sealed)(void *context, uint32_t stream, uint64_t hash);
} bt_link_source;
/* Once, before the first frame of bulk. Asks at once. BT_E_NOMEM. */
BT_MUST_CHECK bt_status bt_link_set_source(bt_link *link, const bt_link_source *source,
                                           bt_error *err);
/* The source may have something now. Cheap when it was pulled already. */
void bt_link_pull(bt_link *link);

/* Reader thread: sends what is queued and what the source has now, says the end, and reads on until
 * the remote has closed too, at most timeout_ms; so that a last REJECT or ERROR arrives. Closes. */
void bt_link_finish(bt_link *link, uint32_t timeout_ms, const char *reason);
void bt_link_close(bt_link *link, const char *reason);
/* Closes and waits for the writer: when it returns, the source is not running and never will. Not
 * from the source. */
void bt_link_stop(bt_link *link, const char *reason);
void bt_link_destroy(bt_link *link);                         /* closes; NULL is fine */

/* Numbers that travel with every PING and PONG. */
typedef struct {
    uint32_t running, waiting;         /* prompts */
    uint64_t queued_tokens;            /* not yet computed, of all of them */
    uint64_t token_ns;                 /* time to prefill one; 0: not yet known */
} bt_link_load;
void bt_link_set_load(bt_link *link, const bt_link_load *load);

typedef struct {
    char     peer[128];                /* numeric address and port */
    uint64_t bytes_sent, bytes_received, frames_sent, frames_received, frames_skipped;
    double   round_trip_ms;            /* smoothed; 0: not yet */
    double   round_trip_ms_min;        /* smallest seen: the path without queues; 0: not yet */
    double   goodput_bytes_per_ms;     /* of large frames that came in, pauses between them left
                                          out; 0: not yet, or faster than we read */
    bool     alive, encrypted;
    bt_link_load peer_load;            /* as last told */
    double   peer_load_age_ms;         /* < 0: never told */
} bt_link_stats;
void bt_link_stats_get(const bt_link *link, bt_link_stats *ret_stats);

#endif
