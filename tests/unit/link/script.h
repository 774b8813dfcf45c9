/* tests/unit/link/script.h - a source of bulk frames that counts, and waits at a gate. */
#ifndef TESTS_UNIT_LINK_SCRIPT_H
#define TESTS_UNIT_LINK_SCRIPT_H

#include "pair.h"

/* Frame i (from 1) has `size` bytes of value i. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            open;               /* next() may go on */
    bool            inside;             /* next() is at the gate or behind it */
    uint32_t        n, size, stream;    /* frames that there are */
    uint32_t        n_asked, n_given, n_sealed;
    uint64_t        again_ns;           /* said when there is none */
    uint64_t        hash;               /* last sealed */
} script;

static inline void script_init(script *s, uint32_t n, uint32_t size)
{
    *s = (script){.open = true, .n = n, .size = size, .stream = 5, .again_ns = UINT64_MAX};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
}

static inline bool script_next(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    script *s = context;

    pthread_mutex_lock(&s->lock);
    assert_true(capacity >= s->size);
    assert_true(ret->again_ns == UINT64_MAX);
    s->n_asked++;
    s->inside = true;
    pthread_cond_broadcast(&s->changed);
    while (!s->open) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    s->inside = false;
    const bool some = s->n_given < s->n;
    if (some) {
        s->n_given++;
        memset(body, (uint8_t)s->n_given, s->size);
        ret->type = BT_WIRE_ROWS;
        ret->stream = s->stream;
        ret->size = s->size;
    } else {
        ret->again_ns = s->again_ns;
    }
    pthread_mutex_unlock(&s->lock);
    return some;
}

static inline void script_sealed(void *context, uint32_t stream, uint64_t hash)
{
    script *s = context;
    pthread_mutex_lock(&s->lock);
    assert_int_equal(stream, s->stream);
    s->n_sealed++;
    s->hash = hash;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static inline void script_attach(script *s, bt_link *link)
{
    const bt_link_source source = {.context = s, .next = script_next, .sealed = script_sealed};
    assert_ok(bt_link_set_source(link, &source, &pair_err));
}

/* Shuts the gate, or opens it. */
static inline void script_gate(script *s, bool open)
{
    pthread_mutex_lock(&s->lock);
    s->open = open;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static inline void script_more(script *s, uint32_t n)
{
    pthread_mutex_lock(&s->lock);
    s->n += n;
    pthread_mutex_unlock(&s->lock);
}

static inline void script_await_inside(script *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->inside) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static inline void script_await_asked(script *s, uint32_t n)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_asked < n) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static inline void script_await_sealed(script *s, uint32_t n)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_sealed < n) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static inline uint32_t script_get(script *s, const uint32_t *what)
{
    pthread_mutex_lock(&s->lock);
    const uint32_t n = *what;
    pthread_mutex_unlock(&s->lock);
    return n;
}

#endif
