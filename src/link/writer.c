/* link/writer.c - one thread: headers, heartbeats, batches, system calls.
 *
 * A round takes all control frames that wait and as many bulk frames as make a batch, and hands
 * both to the kernel in one vectored call. A control frame that comes meanwhile waits for one batch
 * at most: 1 MiB and a bit.
 */
#include "link/private.h"

#include <poll.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "link/address.h"

enum {
    OUT_KEPT_BYTES = 256 << 10          /* a larger control buffer is given back when empty */
};

/* ---- heartbeats ---- */

static bt_status queue_load_locked(bt_link *l, uint16_t type, uint64_t time, bt_error *err)
{
    const bt_wire_ping m = {
        .time = time,
        .running = l->load.running,
        .waiting = l->load.waiting,
        .queued_tokens = l->load.queued_tokens,
        .token_ns = l->load.token_ns,
    };
    uint8_t body[64];
    size_t size;

    BT_TRY(bt_wire_ping_encode(&m, body, sizeof body, &size, err));
    return bt_link_queue_control_locked(l, type, 0, body, size, err);
}

/* Full queues are no reason to stop: the frames in them say "alive" as well. */
static void beat_locked(bt_link *l, uint64_t now_ns, uint64_t *next_ping_ns)
{
    if (l->pong_due && queue_load_locked(l, BT_WIRE_PONG, l->pong_time, NULL) == BT_OK) {
        l->pong_due = false;
    }
    if (now_ns >= *next_ping_ns) {
        if (queue_load_locked(l, BT_WIRE_PING, now_ns, NULL) == BT_OK) {
            l->pings[l->ping_next] = now_ns;
            l->ping_next = (l->ping_next + 1) % BT_LINK_PINGS_OUT_MAX;
        }
        *next_ping_ns = now_ns + l->heartbeat_ns;
    }
}

/* ---- a batch ---- */

/* Notes become headers. */
static uint64_t stamp_control(bt_link *l)
{
    uint64_t n = 0;

    for (size_t at = 0; at < l->out.size; n++) {
        uint8_t *header = (uint8_t *)l->out.data + at;
        bt_link_note note;
        memcpy(&note, header, sizeof note);
        bt_frame f = {.type = note.type,
                      .stream = note.stream,
                      .sequence = l->out_sequence++,
                      .size = note.size,
                      .body = header + BT_WIRE_HEADER_BYTES};
        bt_wire_header_encode(&f, header);
        at += BT_WIRE_HEADER_BYTES + (size_t)note.size;
    }
    return n;
}

static void fill_one(bt_link *l, bt_bulk *b, uint8_t *to)
{
    uint8_t *body = to + BT_WIRE_HEADER_BYTES;

    if (b->fill != NULL) {
        b->fill(b->context, body, b->size);
    } else {
        memset(body, 0, b->size);
    }
    bt_frame f = {.type = b->type,
                  .stream = b->stream,
                  .sequence = l->out_sequence++,
                  .size = b->size,
                  .body = body};
    bt_wire_header_encode(&f, to);
    if (b->seal != NULL) {
        b->seal(b->context, f.hash);
    }
}

static uint64_t fill_batch(bt_link *l, size_t *ret_size)
{
    uint64_t n = 0;
    size_t used = 0;
    bt_bulk bulk;
    bt_link_callback running;

    while (used < BT_LINK_BATCH_BYTES &&
           bt_link_bulk_begin(l, BT_LINK_BATCH_CAPACITY - used, &bulk, &running)) {
        fill_one(l, &bulk, l->batch + used);
        bt_link_bulk_end(l, &running);
        used += BT_WIRE_HEADER_BYTES + (size_t)bulk.size;
        n++;
    }
    *ret_size = used;
    return n;
}

/* All of it, or the connection is over. */
static bt_status send_parts(bt_link *l, struct iovec *parts, int n_parts, bt_error *err)
{
    bt_transport *t = l->transport;

    while (n_parts > 0) {
        size_t n = 0;
        const bt_io io = t->ops->send(t, parts, n_parts, &n, err);
        if (io == BT_IO_WANT_READ || io == BT_IO_WANT_WRITE) {
            /* close() shuts the socket down, which ends this wait. */
            bt_link_socket_wait(t->fd, io == BT_IO_WANT_READ ? POLLIN : POLLOUT,
                                (uint32_t)(l->heartbeat_ns / BT_LINK_NS_PER_MS) + 1);
            continue;
        }
        if (io != BT_IO_DONE) {
            return io == BT_IO_END ? bt_fail(err, BT_E_LOST, "%s: closed the connection", t->peer)
                                   : BT_E_LOST;
        }
        while (n_parts > 0 && n >= parts->iov_len) {
            n -= parts->iov_len;
            parts++;
            n_parts--;
        }
        if (n_parts > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + n;
            parts->iov_len -= n;
        }
    }
    return BT_OK;
}

static bt_status send_round(bt_link *l, bt_error *err)
{
    struct iovec parts[2];
    size_t bulk_size;
    int n_parts = 0;

    uint64_t n_frames = stamp_control(l);
    n_frames += fill_batch(l, &bulk_size);
    if (l->out.size > 0) {
        parts[n_parts++] = (struct iovec){.iov_base = l->out.data, .iov_len = l->out.size};
    }
    if (bulk_size > 0) {
        parts[n_parts++] = (struct iovec){.iov_base = l->batch, .iov_len = bulk_size};
    }
    BT_TRY(send_parts(l, parts, n_parts, err));

    pthread_mutex_lock(&l->lock);
    l->bytes_sent += l->out.size + bulk_size;
    l->frames_sent += n_frames;
    pthread_mutex_unlock(&l->lock);
    if (l->out.capacity > OUT_KEPT_BYTES) {
        bt_buf_done(&l->out);
    }
    bt_buf_clear(&l->out);
    return BT_OK;
}

/* ---- the thread ---- */

/* With the lock held. False: end. */
static bool wait_for_work(bt_link *l, uint64_t *next_ping_ns)
{
    while (!l->closed) {
        if (!l->ready) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        const uint64_t now = bt_clock_ns();
        if (!l->finishing) {
            beat_locked(l, now, next_ping_ns);
        }
        if (l->control.size > 0 || l->n_slots > 0) {
            return true;
        }
        if (l->finishing) {
            return false;
        }
        bt_link_cond_wait_ns(&l->work, &l->lock, *next_ping_ns > now ? *next_ping_ns - now : 0);
    }
    return false;
}

void *bt_link_writer_run(void *link)
{
    bt_link *l = link;
    bt_error err = {.status = BT_OK};
    uint64_t next_ping_ns = 0;

    pthread_mutex_lock(&l->lock);
    while (wait_for_work(l, &next_ping_ns)) {
        const bt_buf empty = l->out;
        l->out = l->control;
        l->control = empty;
        pthread_mutex_unlock(&l->lock);
        const bt_status status = send_round(l, &err);
        pthread_mutex_lock(&l->lock);
        if (status != BT_OK) {
            /* Not closed: what the peer said before it went is still to be read. */
            if (l->failure.status == BT_OK) {
                l->failure = err;
            }
            break;
        }
    }
    pthread_mutex_unlock(&l->lock);

    bt_link_bulk_drop_all(l);
    pthread_mutex_lock(&l->lock);
    l->writer_ended = true;
    pthread_cond_broadcast(&l->room);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}
