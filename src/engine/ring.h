/* engine/ring.h - events on their way from the engine's thread to one consumer. Private to engine/.
 *
 * Slots own the memory of their texts. The consumer reads slots [head, head + count); the slot that
 * it was given last stays its own until the next wait.
 *
 * Lifetime: open to close. Threads: the engine's puts, one consumer waits; mute and wait as said.
 * Failure:  open (memory).
 */
#ifndef BT_ENGINE_RING_H
#define BT_ENGINE_RING_H

#include <pthread.h>

#include "engine/engine.h"

typedef struct {
    pthread_mutex_t lock;              /* guards all below but what open fixes */
    pthread_cond_t  arrived;
    bool       opened;
    bt_event  *slots;                  /* [n_slots] */
    uint32_t   n_slots, head, count;
    bool       lent;                   /* slot `head` is with the consumer */
    bool       ended;                  /* END was put */
    bool       paused;                 /* the engine waits for a free slot */
    bool       calling;                /* on_event, just now */
    void     (*on_event)(void *context);   /* NULL: none, or none any more */
    void      *on_event_context;
    char      *texts;                  /* [n_slots * text_max] of the slots */
    size_t     text_max;
    bt_token_logprob *tops;            /* [n_slots * n_tops] of the slots */
    uint32_t   n_tops;
} bt_event_ring;

/* on_event is the caller's to set before the first event. */
bt_status bt_engine_ring_open(bt_event_ring *ring, size_t text_max, uint32_t n_tops, bt_error *err);
void bt_engine_ring_close(bt_event_ring *ring);

/* ---- the engine's thread ---- */

/* Whether a token's event and an END fit; if not, the consumer's next give_back says so. */
bool bt_engine_ring_has_room(bt_event_ring *ring);
/* A slot to fill and then to put. Its text takes text_max bytes, its top n_tops entries. */
bt_event *bt_engine_ring_slot(bt_event_ring *ring, char **ret_text, bt_token_logprob **ret_top);
void bt_engine_ring_put(bt_event_ring *ring);
/* Dropped when the ring is half full. */
void bt_engine_ring_put_progress(bt_event_ring *ring, uint32_t n_done);

/* ---- the consumer's ---- */

/* The event that it was given last; true: the engine waits for that and is to be woken. */
bool bt_engine_ring_give_back(bt_event_ring *ring);
/* BT_E_AGAIN after timeout_ms without an event. */
bt_status bt_engine_ring_wait(bt_event_ring *ring, uint32_t timeout_ms, bt_event *ret_event);
/* on_event is not called after this, and no call of it is under way. */
void bt_engine_ring_mute(bt_event_ring *ring);

#endif
