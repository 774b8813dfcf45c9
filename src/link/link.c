/* link/link.c - life, control frames, the end of a link. */
#include "link/link.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "link/address.h"
#include "link/private.h"
#include "link/socket.h"

enum {
    HEARTBEAT_MS = 500,
    HANDSHAKE_TIMEOUT_MS = 5000,
    QUEUE_BYTES_MAX = 8 << 20
};

/* ---- life ---- */

static bt_link *allocate(bt_transport *transport, const bt_link_options *o)
{
    bt_link *l = bt_alloc_zero(BT_MEM_link, 1, sizeof *l);
    uint8_t *in = bt_alloc(BT_MEM_link, BT_LINK_FIRST_READ_BYTES);

    if (l == NULL || in == NULL) {
        bt_free(l);
        bt_free(in);
        return NULL;
    }
    const uint64_t now = bt_clock_ns();
    l->transport = transport;
    l->waker = (bt_waker){-1, -1};
    l->heartbeat_ns = (uint64_t)(o->heartbeat_ms ? o->heartbeat_ms : HEARTBEAT_MS) * BT_NS_PER_MS;
    l->silence_ns = l->heartbeat_ns * BT_LINK_SILENT_HEARTBEATS;
    l->handshake_timeout_ms = o->handshake_timeout_ms ? o->handshake_timeout_ms
                                                      : HANDSHAKE_TIMEOUT_MS;
    l->first_frame_by_ns = transport->accepted ? bt_clock_after_ms(l->handshake_timeout_ms)
                                               : UINT64_MAX;
    l->established = !transport->accepted;  /* we chose whom to call */
    l->in = in;
    l->in_capacity = BT_LINK_FIRST_READ_BYTES;
    l->last_byte_ns = l->looked_ns = now;
    bt_buf_init(&l->control, BT_MEM_link, BT_LINK_CONTROL_BYTES_MAX);
    bt_buf_init(&l->out, BT_MEM_link, BT_LINK_CONTROL_BYTES_MAX);
    pthread_mutex_init(&l->lock, NULL);
    bt_cond_init(&l->work);
    bt_cond_init(&l->changed);
    l->ask_ns = UINT64_MAX;
    return l;
}

static void release(bt_link *l)
{
    l->transport->ops->destroy(l->transport);
    bt_waker_close(&l->waker);
    bt_buf_done(&l->control);
    bt_buf_done(&l->out);
    bt_free(l->batch);
    bt_free(l->in);
    pthread_cond_destroy(&l->changed);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    bt_free(l);
}

bt_status bt_link_create(bt_transport *transport, const bt_link_options *o, bt_link **ret_link,
                         bt_error *err)
{
    const bt_link_options defaults = {0};
    bt_link *l = allocate(transport, o != NULL ? o : &defaults);

    if (l == NULL) {
        bt_fail(err, BT_E_NOMEM, "%s: no memory for a connection", transport->peer);
        transport->ops->destroy(transport);
        return BT_E_NOMEM;
    }
    bt_status status = bt_waker_open(&l->waker, err);
    if (status == BT_OK) {
        status = bt_thread_start(&l->writer, bt_link_writer_run, l, "bt-link-writer", err);
    }
    if (status != BT_OK) {
        release(l);
        return status;
    }
    *ret_link = l;
    return BT_OK;
}

bt_status bt_link_connect(const char *address, const bt_link_options *o, bt_link **ret_link,
                          bt_error *err)
{
    const bt_link_options defaults = {0};
    char peer[BT_LINK_PEER_MAX];
    bt_transport *transport;
    bt_link_key key;
    bt_link *l;
    int fd;

    o = o != NULL ? o : &defaults;
    if (o->key_file != NULL) {          /* each time: it may have been replaced */
        BT_TRY(bt_link_key_load(o->key_file, &key, err));
    }
    bt_status status = bt_link_address_connect(address, o, &fd, peer, err);
    if (status == BT_OK) {
        status = bt_link_transport_open(fd, false, peer, o->key_file != NULL ? &key : NULL,
                                        &transport, err);
    }
    bt_link_key_forget(&key);
    BT_TRY(status);
    BT_TRY(bt_link_create(transport, o, &l, err));
    status = bt_link_handshake(l, UINT64_MAX, err);
    if (status != BT_OK) {
        bt_link_destroy(l);
        return status;
    }
    *ret_link = l;
    return BT_OK;
}

void bt_link_destroy(bt_link *l)
{
    if (l != NULL) {
        bt_link_stop(l, "closed");
        release(l);
    }
}

/* ---- control ---- */

bt_status bt_link_send(bt_link *l, uint16_t type, uint32_t stream, const void *body, size_t size,
                       bt_error *err)
{
    BT_ASSERT(size <= BT_WIRE_BODY_BYTES_MAX);

    pthread_mutex_lock(&l->lock);
    bt_status status;
    if (l->failure.status != BT_OK) {
        status = bt_link_fail_locked(l, err);
    } else {
        status = bt_link_queue_control_locked(l, type, stream, body, size, err);
        pthread_cond_signal(&l->work);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* ---- the source ---- */

bt_status bt_link_set_source(bt_link *l, const bt_link_source *source, bt_error *err)
{
    pthread_mutex_lock(&l->lock);
    BT_ASSERT(l->source.next == NULL);
    const bt_status status = bt_link_reserve_batch_locked(l, err);
    if (status == BT_OK) {
        l->source = *source;
        atomic_store(&l->pulled, true);
        pthread_cond_signal(&l->work);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* The writer takes the mark before it asks, so a pull is either seen by the asking that follows or
 * finds the mark gone and signals. */
void bt_link_pull(bt_link *l)
{
    if (!atomic_exchange(&l->pulled, true)) {
        pthread_mutex_lock(&l->lock);
        pthread_cond_signal(&l->work);
        pthread_mutex_unlock(&l->lock);
    }
}

void bt_link_wake(bt_link *l)
{
    if (!atomic_exchange(&l->woken, true)) {
        bt_waker_wake(&l->waker);
    }
}

/* ---- the end ---- */

void bt_link_close(bt_link *l, const char *reason)
{
    bt_error why;
    bt_fail(&why, BT_E_CLOSED, "%s", reason);
    bt_link_break(l, &why);
}

void bt_link_stop(bt_link *l, const char *reason)
{
    bt_link_close(l, reason);
    if (!l->joined) {
        pthread_join(l->writer, NULL);
        l->joined = true;
    }
}

/* Reads and forgets until the peer has nothing more to say: closing with unread bytes would reset
 * the connection and could destroy our last frame on its way. */
static void read_out(bt_link *l, uint64_t end_ns)
{
    bt_transport *t = l->transport;
    bt_error ignored;
    size_t n;

    for (;;) {
        const bt_io io = t->ops->recv(t, l->in, l->in_capacity, &n, &ignored);
        const uint64_t now = bt_clock_ns();
        if (io == BT_IO_END || io == BT_IO_FAILED || now >= end_ns) {
            return;
        }
        if (io != BT_IO_DONE) {
            bt_link_socket_wait(t->fd, io == BT_IO_WANT_WRITE ? POLLOUT : POLLIN, NULL, end_ns);
        }
    }
}

void bt_link_finish(bt_link *l, uint32_t timeout_ms, const char *reason)
{
    const uint64_t end_ns = bt_clock_after_ms(timeout_ms);

    pthread_mutex_lock(&l->lock);
    if (l->failure.status == BT_OK) {
        bt_fail(&l->failure, BT_E_CLOSED, "%s", reason);
        l->finishing = true;
    }
    pthread_cond_broadcast(&l->work);
    while (!l->writer_ended && !l->closed &&
           bt_cond_wait_until(&l->changed, &l->lock, end_ns)) {
    }
    const bool sent = l->writer_ended && l->ready && !l->closed;
    pthread_mutex_unlock(&l->lock);
    if (sent) {
        l->transport->ops->finish(l->transport);
        read_out(l, end_ns);
    }
    bt_link_close(l, reason);
}

/* ---- looking in ---- */

void bt_link_set_load(bt_link *l, const bt_link_load *load)
{
    pthread_mutex_lock(&l->lock);
    l->load = *load;
    pthread_mutex_unlock(&l->lock);
}

void bt_link_stats_get(const bt_link *link, bt_link_stats *ret_stats)
{
    bt_link *l = (bt_link *)(uintptr_t)link;    /* only its lock is touched */
    const uint64_t now = bt_clock_ns();

    pthread_mutex_lock(&l->lock);
    *ret_stats = (bt_link_stats){
        .bytes_sent = l->bytes_sent,
        .bytes_received = atomic_load(&l->bytes_received),
        .frames_sent = l->frames_sent,
        .frames_received = atomic_load(&l->frames_received),
        .frames_skipped = atomic_load(&l->frames_skipped),
        .round_trip_ms = l->round_trip_ms,
        .round_trip_ms_min = l->round_trip_ms_min,
        .goodput_bytes_per_ms = atomic_load(&l->goodput),
        .alive = !l->closed && l->failure.status == BT_OK,
        .encrypted = l->transport->ops->encrypted,
        .peer_load = l->peer_load,
        .peer_load_age_ms = l->peer_load_ns == 0 ? -1.0
                            : now > l->peer_load_ns
                                    ? (double)(now - l->peer_load_ns) / BT_NS_PER_MS
                                    : 0.0,
    };
    pthread_mutex_unlock(&l->lock);
    memcpy(ret_stats->peer, l->transport->peer, sizeof ret_stats->peer);
}
