/* link/state.c - what reader, writer and owner of a link share: its failure, its queue, its buffer.
 */
#include <string.h>
#include <sys/socket.h>

#include "link/private.h"

bt_status bt_link_fail_locked(const bt_link *l, bt_error *err)
{
    if (err != NULL) {
        *err = l->failure;
    }
    return l->failure.status;
}

void bt_link_break(bt_link *l, const bt_error *why)
{
    pthread_mutex_lock(&l->lock);
    /* A damaged byte makes the peer hang up or TLS say so, and then our writer may be the first to
     * fail; what the reader has found is the cause. */
    const bool cause = l->failure.status == BT_E_LOST && why->status == BT_E_PROTOCOL;
    if (l->failure.status == BT_OK || cause) {
        l->failure = *why;
    }
    if (!atomic_exchange(&l->closed, true)) {
        /* Ends every wait on the socket, here and there. The descriptor itself lives until destroy,
         * so nobody can meet another file under its number. */
        shutdown(l->transport->fd, SHUT_RDWR);
    }
    pthread_cond_broadcast(&l->work);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

bt_status bt_link_queue_control_locked(bt_link *l, uint16_t type, uint32_t stream, const void *body,
                                       size_t size, bt_error *err)
{
    const bt_link_note note = {.type = type, .stream = stream, .size = (uint32_t)size};
    uint8_t *to = bt_buf_grow(&l->control, BT_WIRE_HEADER_BYTES + size);

    if (to == NULL) {
        const bt_status status = l->control.status;
        l->control.status = BT_OK;      /* this frame failed, not the queue */
        return status == BT_E_FULL
                       ? bt_fail(err, status, "%s: %zu bytes of control frames wait to be sent",
                                 l->transport->peer, l->control.size)
                       : bt_fail(err, status, "%s: no memory for a frame of %zu bytes",
                                 l->transport->peer, size);
    }
    memcpy(to, &note, sizeof note);
    if (size > 0) {
        memcpy(to + BT_WIRE_HEADER_BYTES, body, size);
    }
    return BT_OK;
}

bt_status bt_link_reserve_batch_locked(bt_link *l, bt_error *err)
{
    if (l->batch == NULL) {
        l->batch = bt_alloc(BT_MEM_link, BT_LINK_BATCH_CAPACITY);
    }
    return l->batch != NULL ? BT_OK
                            : bt_fail(err, BT_E_NOMEM, "out of memory: %d bytes for a send buffer",
                                      BT_LINK_BATCH_CAPACITY);
}
