/* link/private.h - the inside of a link, shared by the files of this room.
 *
 * link.c    life, stats, sending control, finish and close; stands on all below
 * writer.c  the writer thread
 * reader.c  receive: handshake, bytes to frames, heartbeats, silence
 * state.c   what they share: failure, control queue, send buffer
 */
#ifndef BT_LINK_PRIVATE_H
#define BT_LINK_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buffer.h"
#include "base/memory.h"
#include "base/sync.h"
#include "link/link.h"
#include "link/transport.h"
#include "wire/codec.h"

enum {
    BT_LINK_CONTROL_BYTES_MAX = 8 << 20,
    BT_LINK_BATCH_BYTES = 256 << 10,    /* as much at least goes into one system call */
    BT_LINK_FIRST_READ_BYTES = 64 << 10,    /* grows when the first large frame comes */
    BT_LINK_BATCH_CAPACITY =
            BT_WIRE_HEADER_BYTES + (int)BT_WIRE_BODY_BYTES_MAX + BT_LINK_BATCH_BYTES,
    BT_LINK_PINGS_OUT_MAX = 8,          /* unanswered ones that are remembered */
    BT_LINK_RATES = 9,
    BT_LINK_SILENT_HEARTBEATS = 4
};

/* A frame that waits in `control`: room for its header, then the body. */
typedef struct {
    uint16_t type;
    uint32_t stream, size;
} bt_link_note;
_Static_assert(sizeof(bt_link_note) <= BT_WIRE_HEADER_BYTES, "notes stand where headers go");

struct bt_link {
    /* Immutable after create. */
    bt_transport *transport;
    uint64_t      heartbeat_ns, silence_ns;
    uint64_t      first_frame_by_ns;    /* accepted links; else UINT64_MAX */
    uint32_t      handshake_timeout_ms;
    pthread_t     writer;
    bool          joined;               /* the owner's: the writer is gone */

    bt_waker      waker;                /* interrupts the reader's wait */
    atomic_bool   woken;                /* since receive last returned for it */
    atomic_bool   pulled;               /* since the writer last began to ask the source */
    atomic_bool   closed;               /* nobody waits for anything; set with the lock held */
    _Atomic uint64_t bytes_received, frames_received, frames_skipped;   /* the reader writes */
    _Atomic double   goodput;           /* the reader writes; 0: not yet */

    pthread_mutex_t lock;               /* guards all down to "reader's own" */
    pthread_cond_t  work;               /* the writer has something to do */
    pthread_cond_t  changed;            /* the writer has ended, or all is closed */

    bt_error failure;                   /* the first; BT_OK while all is well */
    bool     ready;                     /* the transport's handshake is done */
    bool     finishing;                 /* the writer ends when nothing is left */
    bool     writer_ended;

    bt_buf         control;
    bt_link_source source;              /* set once */
    uint8_t      *batch;                /* the writer's; allocated for a source */

    bool         pong_due;
    uint64_t     pong_time;             /* of the latest PING: older ones need no answer */
    uint64_t     pings[BT_LINK_PINGS_OUT_MAX];  /* their times; 0: none */
    uint32_t     ping_next;
    bt_link_load load, peer_load;
    uint64_t     peer_load_ns;          /* when it came; 0: never */
    double       round_trip_ms, round_trip_ms_min;
    uint64_t     bytes_sent, frames_sent;

    /* Reader's own. */
    uint8_t *in;
    size_t   in_capacity, in_first, in_end;
    size_t   in_held;                   /* of the frame that the owner looks at */
    uint64_t in_sequence, last_byte_ns;
    uint64_t looked_ns, silent_ns;      /* last look for bytes; silence by reader.c */
    uint64_t empty_ns;                  /* when the socket was found empty inside the frame; 0 */
    size_t   empty_have;                /* bytes of the frame that had come by then */
    double   timed_bytes, timed_ms;     /* of the next sample of what the link carries */
    double   rates[BT_LINK_RATES];      /* bytes per ms of large frames, the last ones; 0: none */
    uint32_t rate_next;
    bool     gave_way;                  /* the last receive returned because of a wake */
    bool     established;               /* a frame of the peer's owner has come */

    /* Writer's own. */
    bt_buf   out;
    uint64_t out_sequence, n_frames_out, n_bytes_out;   /* the last two of the round under way */
    uint64_t next_ping_ns, ask_ns;      /* when the source wants to be asked; 0: at once */
};

/* Takes the transport, also when it fails. `o` may be NULL; key_file is not looked at. */
BT_MUST_CHECK bt_status bt_link_create(bt_transport *transport, const bt_link_options *o,
                                       bt_link **ret_link, bt_error *err);

/* With the lock held. Copies the failure, whose status is returned. */
bt_status bt_link_fail_locked(const bt_link *l, bt_error *err);
/* Records the first failure (takes the lock), wakes everybody and ends the connection. */
void bt_link_break(bt_link *l, const bt_error *why);
/* With the lock held: a control frame to the end of the queue. */
BT_MUST_CHECK bt_status bt_link_queue_control_locked(bt_link *l, uint16_t type, uint32_t stream,
                                                     const void *body, size_t size, bt_error *err);

/* With the lock held: the memory for batches. */
BT_MUST_CHECK bt_status bt_link_reserve_batch_locked(bt_link *l, bt_error *err);

/* reader.c: until the transport's handshake is done, or the deadline. */
BT_MUST_CHECK bt_status bt_link_handshake(bt_link *l, uint64_t deadline_ns, bt_error *err);

/* writer.c */
void *bt_link_writer_run(void *link);

#endif
