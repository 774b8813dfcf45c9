/* Events go from the engine's thread to one consumer through a ring of slots that own the memory of
 * their texts. The engine fills the slot behind the last one without the lock (nobody else looks at
 * it), then counts it in. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/memory.h"
#include "engine/private.h"

/* Room for 64 tokens of a slow reader, less where single pieces of text are huge. */
enum { SLOTS_MAX = 64, SLOTS_MIN = 8, TEXTS_MAX_BYTES = 1 << 20 };

static void init_condition(pthread_cond_t *c)
{
#if defined(__APPLE__)
    pthread_cond_init(c, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

/* The lock is held. `until` is in the clock of time_after(). */
static struct timespec time_after(uint32_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000L;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

static bool wait_until(pthread_cond_t *c, pthread_mutex_t *lock, const struct timespec *until)
{
#if defined(__APPLE__)
    struct timespec now = time_after(0);
    struct timespec left = { until->tv_sec - now.tv_sec, until->tv_nsec - now.tv_nsec };
    if (left.tv_nsec < 0) {
        left.tv_sec--;
        left.tv_nsec += 1000000000L;
    }
    return left.tv_sec >= 0 && pthread_cond_timedwait_relative_np(c, lock, &left) != ETIMEDOUT;
#else
    return pthread_cond_timedwait(c, lock, until) != ETIMEDOUT;
#endif
}

bt_status bt_engine_ring_init(bt_request *r)
{
    size_t n = r->text_max > 0 ? TEXTS_MAX_BYTES / r->text_max : SLOTS_MAX;
    n = n < SLOTS_MIN ? SLOTS_MIN : n > SLOTS_MAX ? SLOTS_MAX : n;
    size_t text_bytes;
    if (!bt_size_mul(n, r->text_max, &text_bytes)) {
        return BT_E_NOMEM;
    }
    r->n_slots = (uint32_t)n;
    r->slots = bt_alloc_zero(BT_MEM_engine, n, sizeof *r->slots);
    r->texts = bt_alloc(BT_MEM_engine, text_bytes);
    r->tops = bt_alloc_zero(BT_MEM_engine, n * r->n_logprobs, sizeof *r->tops);
    if (!r->slots || !r->texts || !r->tops) {
        return BT_E_NOMEM;
    }
    pthread_mutex_init(&r->lock, NULL);
    init_condition(&r->arrived);
    return BT_OK;
}

void bt_engine_ring_done(bt_request *r)
{
    if (r->slots && r->texts && r->tops) {
        pthread_mutex_destroy(&r->lock);
        pthread_cond_destroy(&r->arrived);
    }
    bt_free(r->slots);
    bt_free(r->texts);
    bt_free(r->tops);
}

bool bt_engine_ring_has_room(bt_request *r)
{
    pthread_mutex_lock(&r->lock);
    const bool room = r->count + 2 <= r->n_slots;
    r->paused = !room;
    pthread_mutex_unlock(&r->lock);
    return room;
}

/* head + count: the lock is taken because the consumer moves them. */
static uint32_t slot_behind_last(bt_request *r)
{
    pthread_mutex_lock(&r->lock);
    BT_ASSERT(r->count < r->n_slots);
    BT_ASSERT(!r->ended);
    const uint32_t at = (r->head + r->count) % r->n_slots;
    pthread_mutex_unlock(&r->lock);
    return at;
}

bt_event *bt_engine_ring_slot(bt_request *r, char **ret_text, bt_token_logprob **ret_top)
{
    const uint32_t at = slot_behind_last(r);
    bt_event *event = &r->slots[at];
    *event = (bt_event){ .stop_index = -1, .text = "", .message = "" };
    *ret_text = r->texts + at * r->text_max;
    *ret_top = r->tops + (size_t)at * r->n_logprobs;
    return event;
}

void bt_engine_ring_put(bt_request *r)
{
    pthread_mutex_lock(&r->lock);
    const bt_event *event = &r->slots[(r->head + r->count) % r->n_slots];
    r->count++;
    r->ended = event->kind == BT_EVENT_END;
    r->calling = r->on_event != NULL;
    void (*const call)(void *) = r->on_event;
    pthread_cond_broadcast(&r->arrived);
    pthread_mutex_unlock(&r->lock);
    if (call) {
        call(r->on_event_context);
        pthread_mutex_lock(&r->lock);
        r->calling = false;
        pthread_cond_broadcast(&r->arrived);
        pthread_mutex_unlock(&r->lock);
    }
}

void bt_engine_ring_mute(bt_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->on_event = NULL;
    while (r->calling) {
        pthread_cond_wait(&r->arrived, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

void bt_engine_ring_put_progress(bt_request *r, uint32_t n_done)
{
    pthread_mutex_lock(&r->lock);
    const bool room = r->count < r->n_slots / 2;
    pthread_mutex_unlock(&r->lock);
    if (room) {
        char *text;
        bt_token_logprob *top;
        bt_event *event = bt_engine_ring_slot(r, &text, &top);
        event->kind = BT_EVENT_PROGRESS;
        event->n_done = n_done;
        bt_engine_ring_put(r);
    }
}

/* The lock is held. Gives back what the consumer had; true when the engine waits for that. */
static bool give_back(bt_request *r)
{
    if (!r->lent || r->slots[r->head].kind == BT_EVENT_END) {
        return false;
    }
    r->lent = false;
    r->head = (r->head + 1) % r->n_slots;
    r->count--;
    const bool wake = r->paused && r->count + 2 <= r->n_slots;
    r->paused = r->paused && !wake;
    return wake;
}

bt_status bt_engine_request_wait(bt_request *r, uint32_t timeout_ms, bt_event *ret_event)
{
    const struct timespec until = time_after(timeout_ms);
    pthread_mutex_lock(&r->lock);
    if (give_back(r)) {
        pthread_mutex_unlock(&r->lock);
        bt_engine_wake(r->engine);
        pthread_mutex_lock(&r->lock);
    }
    bool in_time = timeout_ms > 0;
    while (r->count == 0 && in_time) {
        in_time = wait_until(&r->arrived, &r->lock, &until);
    }
    const bool any = r->count > 0;
    if (any) {
        r->lent = true;
        *ret_event = r->slots[r->head];
    }
    pthread_mutex_unlock(&r->lock);
    return any ? BT_OK : BT_E_AGAIN;
}
