/* link/writer.c - one thread: headers, heartbeats, batches, system calls.
 *
 * A round takes all control frames that wait, pulls as many bulk frames as make a batch, and hands
 * both to the kernel in one vectored call. A control frame that comes meanwhile waits for one batch
 * at most: 1 MiB and a bit. The lock is taken once a round. What ends a wait without a signal is
 * the time of the next PING or the one that the source gave.
 */
#include "link/private.h"

#include <poll.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "link/address.h"
#include "link/socket.h"

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
static void beat_locked(bt_link *l, uint64_t now_ns)
{
    if (l->pong_due && queue_load_locked(l, BT_WIRE_PONG, l->pong_time, NULL) == BT_OK) {
        l->pong_due = false;
    }
    if (now_ns >= l->next_ping_ns) {
        if (queue_load_locked(l, BT_WIRE_PING, now_ns, NULL) == BT_OK) {
            l->pings[l->ping_next] = now_ns;
            l->ping_next = (l->ping_next + 1) % BT_LINK_PINGS_OUT_MAX;
        }
        l->next_ping_ns = now_ns + l->heartbeat_ns;
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

/* Whether one more frame was put to `to`. */
static bool pull_one(bt_link *l, uint8_t *to, size_t *ret_size)
{
    const bt_link_source *s = &l->source;
    uint8_t *body = to + BT_WIRE_HEADER_BYTES;
    bt_link_out out = {.again_ns = UINT64_MAX};

    if (!s->next(s->context, body, BT_WIRE_BODY_BYTES_MAX, &out)) {
        l->ask_ns = out.again_ns;
        return false;
    }
    BT_ASSERT(out.size <= BT_WIRE_BODY_BYTES_MAX);
    bt_frame f = {.type = out.type,
                  .stream = out.stream,
                  .sequence = l->out_sequence++,
                  .size = out.size,
                  .body = body};
    bt_wire_header_encode(&f, to);
    if (s->sealed != NULL) {
        s->sealed(s->context, out.stream, f.hash);
    }
    *ret_size = BT_WIRE_HEADER_BYTES + (size_t)out.size;
    return true;
}

/* A batch is asked for frame by frame until it is large enough; then again after it was sent. */
static size_t pull_batch(bt_link *l)
{
    size_t used = 0;

    _Static_assert(BT_LINK_BATCH_CAPACITY - BT_LINK_BATCH_BYTES >=
                           BT_WIRE_HEADER_BYTES + (int)BT_WIRE_BODY_BYTES_MAX,
                   "the largest frame fits a batch that is not yet full");
    l->ask_ns = 0;
    while (used < BT_LINK_BATCH_BYTES && !atomic_load(&l->closed)) {
        size_t size;
        if (!pull_one(l, l->batch + used, &size)) {
            break;
        }
        used += size;
        l->n_frames_out++;
    }
    return used;
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
            bt_link_socket_wait(t->fd, io == BT_IO_WANT_READ ? POLLIN : POLLOUT, NULL, UINT64_MAX);
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

/* `ask`: the source as well. */
static bt_status send_round(bt_link *l, bool ask, bt_error *err)
{
    struct iovec parts[2];
    int n_parts = 0;

    l->n_frames_out = stamp_control(l);
    const size_t bulk_size = ask ? pull_batch(l) : 0;
    if (l->out.size > 0) {
        parts[n_parts++] = (struct iovec){.iov_base = l->out.data, .iov_len = l->out.size};
    }
    if (bulk_size > 0) {
        parts[n_parts++] = (struct iovec){.iov_base = l->batch, .iov_len = bulk_size};
    }
    BT_TRY(send_parts(l, parts, n_parts, err));
    l->n_bytes_out = l->out.size + bulk_size;
    if (l->out.capacity > OUT_KEPT_BYTES) {
        bt_buf_done(&l->out);
    }
    bt_buf_clear(&l->out);
    return BT_OK;
}

/* ---- the thread ---- */

typedef enum { END, SEND, SEND_AND_ASK } work;

/* With the lock held. */
static work wait_for_work_locked(bt_link *l)
{
    while (!l->closed) {
        if (!l->ready) {
            (void)bt_cond_wait_until(&l->work, &l->lock, UINT64_MAX);
            continue;
        }
        const uint64_t now = bt_clock_ns();
        if (!l->finishing) {
            beat_locked(l, now);
        }
        if (l->source.next != NULL && (atomic_exchange(&l->pulled, false) || now >= l->ask_ns)) {
            return SEND_AND_ASK;
        }
        if (l->control.size > 0) {
            return SEND;
        }
        if (l->finishing) {
            return END;
        }
        const uint64_t until = l->ask_ns < l->next_ping_ns ? l->ask_ns : l->next_ping_ns;
        (void)bt_cond_wait_until(&l->work, &l->lock, until);
    }
    return END;
}

static void run_locked(bt_link *l)
{
    work todo;

    while ((todo = wait_for_work_locked(l)) != END) {
        const bt_buf empty = l->out;
        bt_error err = {.status = BT_OK};
        l->out = l->control;
        l->control = empty;
        pthread_mutex_unlock(&l->lock);
        const bt_status status = send_round(l, todo == SEND_AND_ASK, &err);
        pthread_mutex_lock(&l->lock);
        if (status != BT_OK) {
            /* Not closed: what the remote said before it went is still to be read. */
            if (l->failure.status == BT_OK) {
                l->failure = err;
            }
            return;
        }
        l->bytes_sent += l->n_bytes_out;
        l->frames_sent += l->n_frames_out;
    }
}

void *bt_link_writer_run(void *link)
{
    bt_link *l = link;

    pthread_mutex_lock(&l->lock);
    run_locked(l);
    l->writer_ended = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}
