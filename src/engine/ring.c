/* See ring.h. The engine fills the slot after the last one without the lock (nobody else looks at
 * it), then counts it in. */
#include "engine/ring.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/sync.h"

/* 64 tokens for a slow reader, fewer where single pieces of text are huge. */
enum { SLOTS_MAX = 64, SLOTS_MIN = 8, TEXTS_MAX_BYTES = 1 << 20 };

bt_status bt_engine_ring_open(bt_event_ring *ring, size_t text_max, uint32_t n_tops, bt_error *err)
{
    size_t n = text_max > 0 ? TEXTS_MAX_BYTES / text_max : SLOTS_MAX;
    n = n < SLOTS_MIN ? SLOTS_MIN : n > SLOTS_MAX ? SLOTS_MAX : n;
    size_t text_bytes;
    if (!bt_size_mul(n, text_max, &text_bytes)) {
        return bt_fail_nomem(err, SIZE_MAX, "a request's events");
    }
    ring->n_slots = (uint32_t)n;
    ring->text_max = text_max;
    ring->n_tops = n_tops;
    ring->slots = bt_alloc_zero(BT_MEM_engine, n, sizeof *ring->slots);
    ring->texts = bt_alloc(BT_MEM_engine, text_bytes);
    ring->tops = bt_alloc_zero(BT_MEM_engine, n * n_tops, sizeof *ring->tops);
    if (!ring->slots || !ring->texts || !ring->tops) {
        return bt_fail_nomem(err, n * sizeof *ring->slots + text_bytes, "a request's events");
    }
    pthread_mutex_init(&ring->lock, NULL);
    bt_cond_init(&ring->arrived);
    ring->opened = true;
    return BT_OK;
}

void bt_engine_ring_close(bt_event_ring *ring)
{
    if (ring->opened) {
        pthread_mutex_destroy(&ring->lock);
        pthread_cond_destroy(&ring->arrived);
    }
    bt_free(ring->slots);
    bt_free(ring->texts);
    bt_free(ring->tops);
}

/* ---- the engine's thread ---- */

bool bt_engine_ring_has_room(bt_event_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    const bool fits = ring->count + 2 <= ring->n_slots;
    ring->paused = !fits;
    pthread_mutex_unlock(&ring->lock);
    return fits;
}

/* head + count: the lock is taken because the consumer moves them. */
static uint32_t slot_after_last(bt_event_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    BT_ASSERT(ring->count < ring->n_slots);
    BT_ASSERT(!ring->ended);
    const uint32_t at = (ring->head + ring->count) % ring->n_slots;
    pthread_mutex_unlock(&ring->lock);
    return at;
}

bt_event *bt_engine_ring_slot(bt_event_ring *ring, char **ret_text, bt_token_logprob **ret_top)
{
    const uint32_t at = slot_after_last(ring);
    bt_event *event = &ring->slots[at];
    *event = (bt_event){ .stop_index = -1, .text = "", .message = "" };
    *ret_text = ring->texts + at * ring->text_max;
    *ret_top = ring->tops + (size_t)at * ring->n_tops;
    return event;
}

/* The callback is called without the lock; who mutes the ring meanwhile waits for its end. */
void bt_engine_ring_put(bt_event_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    const bt_event *event = &ring->slots[(ring->head + ring->count) % ring->n_slots];
    ring->count++;
    ring->ended = event->kind == BT_EVENT_END;
    ring->calling = ring->on_event != NULL;
    void (*const call)(void *) = ring->on_event;
    pthread_cond_broadcast(&ring->arrived);
    pthread_mutex_unlock(&ring->lock);
    if (call) {
        call(ring->on_event_context);
        pthread_mutex_lock(&ring->lock);
        ring->calling = false;
        pthread_cond_broadcast(&ring->arrived);
        pthread_mutex_unlock(&ring->lock);
    }
}

void bt_engine_ring_put_progress(bt_event_ring *ring, uint32_t n_done)
{
    pthread_mutex_lock(&ring->lock);
    const bool fits = ring->count < ring->n_slots / 2;
    pthread_mutex_unlock(&ring->lock);
    if (fits) {
        char *text;
        bt_token_logprob *top;
        bt_event *event = bt_engine_ring_slot(ring, &text, &top);
        event->kind = BT_EVENT_PROGRESS;
        event->n_done = n_done;
        bt_engine_ring_put(ring);
    }
}

/* ---- the consumer's ---- */

bool bt_engine_ring_give_back(bt_event_ring *ring)
{
    bool wake = false;
    pthread_mutex_lock(&ring->lock);
    if (ring->lent && ring->slots[ring->head].kind != BT_EVENT_END) {
        ring->lent = false;
        ring->head = (ring->head + 1) % ring->n_slots;
        ring->count--;
        wake = ring->paused && ring->count + 2 <= ring->n_slots;
        ring->paused = ring->paused && !wake;
    }
    pthread_mutex_unlock(&ring->lock);
    return wake;
}

bt_status bt_engine_ring_wait(bt_event_ring *ring, uint32_t timeout_ms, bt_event *ret_event)
{
    const uint64_t until = bt_clock_ns() + (uint64_t)timeout_ms * BT_NS_PER_MS;
    bool in_time = timeout_ms > 0;
    pthread_mutex_lock(&ring->lock);
    while (ring->count == 0 && in_time) {
        in_time = bt_cond_wait_until(&ring->arrived, &ring->lock, until);
    }
    const bool any = ring->count > 0;
    if (any) {
        ring->lent = true;
        *ret_event = ring->slots[ring->head];
    }
    pthread_mutex_unlock(&ring->lock);
    return any ? BT_OK : BT_E_AGAIN;
}

void bt_engine_ring_mute(bt_event_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->on_event = NULL;
    while (ring->calling) {
        pthread_cond_wait(&ring->arrived, &ring->lock);
    }
    pthread_mutex_unlock(&ring->lock);
}
