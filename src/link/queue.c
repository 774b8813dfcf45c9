/* link/queue.c - bulk frames that wait.
 *
 * A ring of descriptors. Dropping a stream marks its slots and calls their `drop`; the writer skips
 * them. Whoever runs a callback is on a list meanwhile, so that bt_link_drop_stream() can wait
 * until nobody reads the stream's pages any more. Streams that are being dropped are on a list as
 * well: of those the writer drops what it meets, since no frame behind a gone one may be sent.
 */
#include "link/private.h"

#include "base/check.h"

static bt_link_slot *slot_at(bt_link *l, uint32_t index)
{
    return &l->slots[(l->slot_first + index) % BT_LINK_BULK_FRAMES_MAX];
}

static uint64_t weight(const bt_bulk *b) { return (uint64_t)b->size + BT_WIRE_HEADER_BYTES; }

static void callback_begin_locked(bt_link *l, bt_link_callback *running, uint32_t stream)
{
    running->stream = stream;
    running->thread = pthread_self();
    running->next = l->callbacks;
    l->callbacks = running;
}

static void callback_end_locked(bt_link *l, bt_link_callback *running)
{
    bt_link_callback **at = &l->callbacks;
    while (*at != running) {
        at = &(*at)->next;
    }
    *at = running->next;
    pthread_cond_broadcast(&l->changed);
}

/* ---- in ---- */

static bt_status reserve_locked(bt_link *l, bt_error *err)
{
    if (l->slots != NULL) {
        return BT_OK;
    }
    BT_TRY(bt_link_reserve_batch_locked(l, err));
    l->slots = bt_alloc_zero(BT_MEM_link, BT_LINK_BULK_FRAMES_MAX, sizeof *l->slots);
    return l->slots != NULL ? BT_OK
                            : bt_fail(err, BT_E_NOMEM, "%s: no memory for what is to be sent",
                                      l->transport->peer);
}

/* One frame may always wait, however large. Who has had to wait goes on at half the limits only, so
 * that a fast sender is woken for many frames at once and not for each. */
static bool has_room(const bt_link *l, const bt_bulk *b, uint32_t divisor)
{
    return l->n_slots == 0 || (l->n_slots < BT_LINK_BULK_FRAMES_MAX / divisor &&
                               l->bulk_bytes + weight(b) <= l->queue_bytes_max / divisor);
}

static void wake_senders_locked(bt_link *l)
{
    for (const bt_link_waiter *w = l->waiters; w != NULL; w = w->next) {
        if (w->dropped || has_room(l, w->bulk, 2) || l->failure.status != BT_OK) {
            pthread_cond_broadcast(&l->room);
            return;
        }
    }
}

static bt_status push_locked(bt_link *l, const bt_bulk *b, bool wait, bt_error *err)
{
    bt_link_waiter waiter = {.bulk = b, .next = l->waiters};

    if (l->failure.status != BT_OK) {
        return bt_link_fail_locked(l, err);
    }
    BT_TRY(reserve_locked(l, err));
    if (!has_room(l, b, 1)) {
        if (!wait) {
            return bt_fail(err, BT_E_FULL, "%s: %u frames wait to be sent", l->transport->peer,
                           l->n_slots);
        }
        l->waiters = &waiter;
        while (!has_room(l, b, 2) && l->failure.status == BT_OK && !waiter.dropped) {
            pthread_cond_wait(&l->room, &l->lock);
        }
        bt_link_waiter **at = &l->waiters;
        while (*at != &waiter) {
            at = &(*at)->next;
        }
        *at = waiter.next;
        if (l->failure.status != BT_OK) {
            return bt_link_fail_locked(l, err);
        }
        if (waiter.dropped) {
            return bt_fail(err, BT_E_CANCELLED, "stream %u was dropped", b->stream);
        }
    }
    bt_link_slot *slot = slot_at(l, l->n_slots);
    slot->bulk = *b;
    slot->dropped = false;
    l->n_slots++;
    l->bulk_bytes += weight(b);
    pthread_cond_signal(&l->work);
    return BT_OK;
}

static bt_status push(bt_link *l, const bt_bulk *b, bool wait, bt_error *err)
{
    BT_ASSERT(b->size <= BT_WIRE_BODY_BYTES_MAX);

    pthread_mutex_lock(&l->lock);
    const bt_status status = push_locked(l, b, wait, err);
    pthread_mutex_unlock(&l->lock);
    return status;
}

bt_status bt_link_send_bulk(bt_link *l, const bt_bulk *b, bt_error *err)
{
    return push(l, b, true, err);
}

bt_status bt_link_send_bulk_try(bt_link *l, const bt_bulk *b, bt_error *err)
{
    return push(l, b, false, err);
}

/* ---- out ---- */

static void pop_locked(bt_link *l)
{
    l->slot_first = (l->slot_first + 1) % BT_LINK_BULK_FRAMES_MAX;
    l->n_slots--;
}

static bool is_dropping_locked(const bt_link *l, uint32_t stream)
{
    for (const bt_link_dropping *d = l->dropping; d != NULL; d = d->next) {
        if (d->stream == stream) {
            return true;
        }
    }
    return false;
}

/* With the lock held, which is given up while `drop` runs. */
static void drop_one_locked(bt_link *l, bt_link_slot *slot)
{
    bt_bulk bulk = slot->bulk;
    bt_link_callback running;

    slot->dropped = true;
    l->bulk_bytes -= weight(&bulk);
    callback_begin_locked(l, &running, bulk.stream);
    if (bulk.drop != NULL) {
        pthread_mutex_unlock(&l->lock);
        bulk.drop(bulk.context);
        pthread_mutex_lock(&l->lock);
    }
    callback_end_locked(l, &running);
}

bool bt_link_bulk_begin(bt_link *l, size_t room, bt_bulk *ret_bulk, bt_link_callback *running)
{
    bool found = false;

    pthread_mutex_lock(&l->lock);
    while (l->n_slots > 0 && !l->closed) {
        bt_link_slot *slot = slot_at(l, 0);     /* nobody else moves the ring's beginning */
        if (!slot->dropped && is_dropping_locked(l, slot->bulk.stream)) {
            drop_one_locked(l, slot);
        }
        if (!slot->dropped) {
            if (weight(&slot->bulk) <= room) {
                *ret_bulk = slot->bulk;
                l->bulk_bytes -= weight(&slot->bulk);
                callback_begin_locked(l, running, slot->bulk.stream);
                pop_locked(l);
                found = true;
            }
            break;
        }
        pop_locked(l);
    }
    wake_senders_locked(l);
    pthread_mutex_unlock(&l->lock);
    return found;
}

void bt_link_bulk_end(bt_link *l, bt_link_callback *running)
{
    pthread_mutex_lock(&l->lock);
    callback_end_locked(l, running);
    pthread_mutex_unlock(&l->lock);
}

/* ---- dropping ---- */

/* The writer's last act, when no more can be added. */
void bt_link_bulk_drop_all(bt_link *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->n_slots > 0) {
        bt_link_slot *slot = slot_at(l, 0);
        if (!slot->dropped) {
            drop_one_locked(l, slot);
        }
        pop_locked(l);
    }
    pthread_mutex_unlock(&l->lock);
}

static bool others_run_locked(const bt_link *l, uint32_t stream)
{
    for (const bt_link_callback *c = l->callbacks; c != NULL; c = c->next) {
        if (c->stream == stream && !pthread_equal(c->thread, pthread_self())) {
            return true;
        }
    }
    return false;
}

void bt_link_drop_stream(bt_link *l, uint32_t stream)
{
    bt_link_dropping mine = {.stream = stream};

    pthread_mutex_lock(&l->lock);
    mine.next = l->dropping;
    l->dropping = &mine;
    for (bt_link_waiter *w = l->waiters; w != NULL; w = w->next) {
        if (w->bulk->stream == stream) {
            w->dropped = true;
        }
    }
    /* From the front each time: the ring moves while a callback runs. */
    for (uint32_t i = 0; i < l->n_slots;) {
        bt_link_slot *slot = slot_at(l, i);
        if (!slot->dropped && slot->bulk.stream == stream) {
            drop_one_locked(l, slot);
            i = 0;
        } else {
            i++;
        }
    }
    bt_link_dropping **at = &l->dropping;
    while (*at != &mine) {
        at = &(*at)->next;
    }
    *at = mine.next;
    wake_senders_locked(l);
    while (others_run_locked(l, stream)) {
        pthread_cond_wait(&l->changed, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
}
