/* tests/unit/handoff/fake_engine.h - an engine without a model, for tests of handoff/.
 *
 * It implements what handoff/ uses of engine/engine.h. As a worker's engine it "computes"
 * a row as a digest of the tokens up to it, the layer and the kind, one thread per request, with a
 * pause per layer; as a server's engine it stores imported rows and states and remembers how each
 * ticket ended. Rows can therefore be compared byte by byte with what they must be.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "engine/external.h"
#include "handoff/report.h"

enum { FAKE_LAYERS = 4, FAKE_CTX = 2048, FAKE_TICKETS = 512, FAKE_SNAPSHOTS = 64 };

typedef struct {
    bool      used, committed, abandoned, closed;
    atomic_bool hedged;
    uint32_t  first, end, complete;
    bt_status status;
    bt_handoff_request *request;
    bt_prefill_report report;              /* when it ended */
    double    start_ms;
    uint8_t  *rows[FAKE_LAYERS];           /* [FAKE_CTX * (k + v)] K of a position, then V */
    uint8_t   have[FAKE_LAYERS][FAKE_CTX];
    uint8_t  *state;                       /* of the layer that keeps one */
} fake_ticket;

/* Of the server's engine: `open` while it is written, then kept (at > 0) or given back. */
typedef struct {
    bool      open;
    uint32_t  at;
    uint8_t  *data;
} fake_snapshot;

struct bt_model {
    bt_model_identity identity;
    bt_model_config   config;
};

struct bt_engine {
    bt_engine_options options;
    struct bt_model   model;
    bt_kv_layout      layout;
    bt_kv_layer       layers[FAKE_LAYERS];
    bt_external       external;

    /* a worker's knobs */
    atomic_uint       layer_us;            /* "computing" a layer of a chunk */
    atomic_uint       n_cached;            /* found in the prefix cache */
    atomic_uint       fail_at;             /* position at which requests fail; 0: never */
    atomic_int        n_requests;          /* alive */
    uint32_t          n_seats;             /* requests that compute or hold pages; 0: any number */
    uint32_t          n_seated;            /* lock */
    pthread_cond_t    seat_freed;

    /* recurrent states; the server's side only */
    uint64_t          state_bytes;         /* that FAKE_STATE_LAYER keeps; 0: none keeps one */
    uint32_t          borders[4], n_borders;   /* of which snapshots are wanted; rising */
    atomic_bool       no_room;             /* for snapshots */

    pthread_mutex_t   lock;
    fake_snapshot     snapshots[FAKE_SNAPSHOTS];
    fake_ticket       tickets[FAKE_TICKETS];
    uint64_t          n_tickets;
};

struct bt_request {
    bt_engine *engine;
    uint32_t  *tokens;
    uint32_t   n_tokens, chunk;
    bt_push    push;
    bool       has_push, seated;
    void     (*on_event)(void *context);
    void      *on_event_context;
    pthread_t  thread;
    atomic_bool cancelled;
    pthread_mutex_t lock;
    int        n_events, n_read;           /* BEGIN, END */
    bt_finish  finish;
    uint8_t    prefix[FAKE_CTX][8];
};

/* ---- rows ---- */

static inline void fake_prefixes(const uint32_t *tokens, uint32_t n, uint8_t (*to)[8])
{
    uint64_t h = 99;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t id[4] = { (uint8_t)tokens[i], (uint8_t)(tokens[i] >> 8), (uint8_t)(tokens[i] >> 16),
                          (uint8_t)(tokens[i] >> 24) };
        h = bt_hash64(id, 4, h);
        memcpy(to[i], &h, 8);
    }
}

static inline void fake_row(const uint8_t prefix[8], uint32_t layer, uint32_t kind, uint8_t *to,
                            size_t size)
{
    uint8_t seed[16] = { 0 };
    memcpy(seed, prefix, 8);
    seed[8] = (uint8_t)layer;
    seed[9] = (uint8_t)kind;
    for (size_t at = 0; at < size; at += 8) {
        const uint64_t h = bt_hash64(seed, sizeof seed, at);
        memcpy(to + at, &h, size - at < 8 ? size - at : 8);
    }
}

/* ---- the engine ---- */

/* Layer 2 keeps nothing; K and V differ in width. */
static inline bt_engine *fake_engine_new(bool push, uint32_t chunk, uint8_t weights)
{
    bt_engine *e = calloc(1, sizeof *e);
    for (uint32_t i = 0; i < FAKE_LAYERS; i++) {
        const uint32_t k = i == 2 ? 0 : 24 + 8 * i, v = i == 2 ? 0 : 16 + 4 * i;
        e->layers[i] = (bt_kv_layer){ .k_dim = k, .v_dim = v, .k_row_bytes = k * 2,
                                      .v_row_bytes = v * 2 };
    }
    e->layout = (bt_kv_layout){ .page_tokens = 32, .type_k = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                                .n_layers = FAKE_LAYERS, .layers = e->layers };
    memset(e->model.identity.weights.bytes, weights, 16);
    memset(e->model.identity.tokenizer.bytes, 2, 16);
    memset(e->model.identity.geometry.bytes, 3, 16);
    e->model.config.n_vocab = 1000;
    snprintf(e->model.config.name, sizeof e->model.config.name, "fake");
    e->options = (bt_engine_options){ .model = &e->model, .n_parallel = 4, .n_ctx = FAKE_CTX,
                                      .n_batch = 512, .n_prefill_chunk = chunk,
                                      .type_k = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                                      .queue_max = 16, .push = push };
    e->n_tickets = 1;                      /* 0 would say that there is none */
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->seat_freed, NULL);
    return e;
}

static inline void fake_engine_free(bt_engine *e)
{
    for (int i = 0; i < FAKE_TICKETS; i++) {
        for (int l = 0; l < FAKE_LAYERS; l++) {
            free(e->tickets[i].rows[l]);
        }
        free(e->tickets[i].state);
        bt_handoff_request_unref(e->tickets[i].request);
    }
    for (int i = 0; i < FAKE_SNAPSHOTS; i++) {
        free(e->snapshots[i].data);
    }
    free(e);
}

const bt_engine_options *bt_engine_options_of(const bt_engine *e) { return &e->options; }
const bt_kv_layout *bt_engine_kv_layout(const bt_engine *e) { return &e->layout; }
const bt_model_identity *bt_model_identity_of(const bt_model *m) { return &m->identity; }
const bt_model_config *bt_model_config_of(const bt_model *m) { return &m->config; }

void bt_engine_set_external(bt_engine *e, const bt_external *external)
{
    e->external = *external;
}

void bt_engine_stats_get(const bt_engine *e, bt_engine_stats *s)
{
    (void)e;
    *s = (bt_engine_stats){ .prefill_tokens_per_second = 1000 };
}

/* ---- import ---- */

bt_status bt_engine_external_import_rows(bt_engine *e, uint64_t ticket, uint32_t layer,
                                         uint32_t position, uint32_t n, const void *k,
                                         const void *v)
{
    pthread_mutex_lock(&e->lock);
    fake_ticket *t = &e->tickets[ticket];
    bt_status s = BT_OK;
    if (t->closed || t->committed || t->abandoned) {
        s = BT_E_CANCELLED;
    } else if (position < t->first || position + n > t->end) {
        s = BT_E_BADINPUT;
    } else {
        const size_t kb = (size_t)e->layers[layer].k_row_bytes;
        const size_t vb = (size_t)e->layers[layer].v_row_bytes;
        for (uint32_t i = 0; i < n; i++) {
            uint8_t *to = t->rows[layer] + (position + i) * (kb + vb);
            memcpy(to, (const uint8_t *)k + i * kb, kb);
            memcpy(to + kb, (const uint8_t *)v + i * vb, vb);
            t->have[layer][position + i] = 1;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return s;
}

/* The report as whoever asked would read it. */
static inline void fake_report(fake_ticket *t, uint32_t complete)
{
    const bt_request_stats stats = { .n_prompt = t->end + 1, .n_cached = t->first,
                                     .n_external = complete - t->first,
                                     .n_local = t->end + 1 - complete,
                                     .prompt_ms = bt_clock_ms() - t->start_ms };
    bt_handoff_request_report(t->request, &stats, &t->report);
}

static inline void fake_end(bt_engine *e, uint64_t ticket, bool committed, uint32_t complete,
                            bt_status status)
{
    pthread_mutex_lock(&e->lock);
    fake_ticket *t = &e->tickets[ticket];
    if (t->committed || t->abandoned) {
        fprintf(stderr, "ticket %llu ended twice\n", (unsigned long long)ticket);
        abort();
    }
    t->committed = committed;
    t->abandoned = !committed;
    t->complete = complete;
    fake_report(t, complete);
    t->status = status;
    pthread_mutex_unlock(&e->lock);
}

bt_status bt_engine_external_commit(bt_engine *e, uint64_t ticket, bt_error *err)
{
    (void)err;
    fake_end(e, ticket, true, e->tickets[ticket].end, BT_OK);
    return BT_OK;
}

void bt_engine_external_abandon(bt_engine *e, uint64_t ticket, const bt_external_end *end)
{
    fake_end(e, ticket, false, end->position_complete, end->status);
}

/* ---- recurrent states: taken in, never given ---- */

enum { FAKE_STATE_LAYER = 2 };             /* which keeps no rows */

uint64_t bt_engine_state_bytes(const bt_engine *e) { return e->state_bytes; }
uint64_t bt_engine_state_layer_bytes(const bt_engine *e, uint32_t layer)
{
    return layer == FAKE_STATE_LAYER ? e->state_bytes : 0;
}

/* What handoff/ has to have checked before it writes. */
static inline void fake_state_put(const bt_engine *e, uint8_t *to, uint32_t layer, uint64_t offset,
                                  uint64_t size, const void *data)
{
    if (layer != FAKE_STATE_LAYER || offset > e->state_bytes || size > e->state_bytes - offset) {
        fprintf(stderr, "state of layer %u written outside\n", layer);
        abort();
    }
    memcpy(to + offset, data, size);
}

bt_status bt_engine_external_import_state(bt_engine *e, uint64_t ticket, uint32_t layer,
                                          uint64_t offset, uint64_t size, const void *data)
{
    pthread_mutex_lock(&e->lock);
    fake_ticket *t = &e->tickets[ticket];
    const bool over = t->closed || t->committed || t->abandoned;
    if (!over) {
        fake_state_put(e, t->state, layer, offset, size, data);
    }
    pthread_mutex_unlock(&e->lock);
    return over ? BT_E_CANCELLED : BT_OK;
}
void bt_engine_request_export_state(const bt_request *r, uint32_t layer, uint64_t offset,
                                    uint64_t size, void *to)
{
    (void)r, (void)layer, (void)offset, (void)size, (void)to;
    abort();
}
bool bt_engine_snapshot_pin(bt_engine *e, uint64_t cache_key, const uint32_t *tokens, uint32_t n,
                            uint32_t *ret)
{
    (void)cache_key, (void)e, (void)tokens, (void)n, (void)ret;
    return false;
}
void bt_engine_snapshot_unpin(bt_engine *e, uint32_t snapshot) { (void)e, (void)snapshot; abort(); }
void bt_engine_snapshot_export(const bt_engine *e, uint32_t snapshot, uint32_t layer,
                               uint64_t offset, uint64_t size, void *to)
{
    (void)e, (void)snapshot, (void)layer, (void)offset, (void)size, (void)to;
    abort();
}
bool bt_engine_snapshot_open(bt_engine *e, uint32_t *ret)
{
    bool found = false;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < FAKE_SNAPSHOTS && !found && !atomic_load(&e->no_room); i++) {
        fake_snapshot *s = &e->snapshots[i];
        if (!s->open && s->at == 0) {
            s->open = found = true;
            s->data = s->data ? s->data : calloc(1, (size_t)e->state_bytes);
            *ret = i;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}
void bt_engine_snapshot_write(bt_engine *e, uint32_t snapshot, uint32_t layer, uint64_t offset,
                              uint64_t size, const void *data)
{
    if (!e->snapshots[snapshot].open) {
        abort();
    }
    fake_state_put(e, e->snapshots[snapshot].data, layer, offset, size, data);
}
void bt_engine_snapshot_close(bt_engine *e, uint32_t snapshot, uint64_t cache_key,
                              const uint32_t *tokens, uint32_t n)
{
    (void)cache_key, (void)tokens;
    pthread_mutex_lock(&e->lock);
    if (!e->snapshots[snapshot].open) {
        abort();
    }
    e->snapshots[snapshot].open = false;
    e->snapshots[snapshot].at = n;
    pthread_mutex_unlock(&e->lock);
}

void bt_engine_external_hedge(bt_engine *e, uint64_t ticket)
{
    atomic_store(&e->tickets[ticket].hedged, true);
}

/* ---- requests of a worker ---- */

bt_request_options bt_engine_request_defaults(void) { return (bt_request_options){ 0 }; }

static inline void fake_put_event(bt_request *r, int n_events, bt_finish finish)
{
    pthread_mutex_lock(&r->lock);
    r->finish = finish;
    r->n_events = n_events;
    pthread_mutex_unlock(&r->lock);
    if (r->on_event) {
        r->on_event(r->on_event_context);
    }
}

/* Waits for room; false: cancelled meanwhile. */
static inline bool fake_take_seat(bt_request *r)
{
    bt_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    while (e->n_seats > 0 && e->n_seated >= e->n_seats && !atomic_load(&r->cancelled)) {
        pthread_cond_wait(&e->seat_freed, &e->lock);
    }
    r->seated = !atomic_load(&r->cancelled);
    e->n_seated += r->seated;
    pthread_mutex_unlock(&e->lock);
    return r->seated;
}

static inline void fake_leave_seat(bt_request *r)
{
    pthread_mutex_lock(&r->engine->lock);
    r->engine->n_seated -= r->seated;
    r->seated = false;
    pthread_cond_broadcast(&r->engine->seat_freed);
    pthread_mutex_unlock(&r->engine->lock);
}

static void *fake_compute(void *context)
{
    bt_request *r = context;
    bt_engine *e = r->engine;
    const uint32_t fail_at = atomic_load(&e->fail_at);
    uint32_t at = atomic_load(&e->n_cached);
    bt_finish finish = fake_take_seat(r) ? BT_FINISH_LENGTH : BT_FINISH_CANCELLED;
    at = finish == BT_FINISH_LENGTH && at < r->n_tokens ? at : r->n_tokens;
    fake_put_event(r, 1, finish);
    if (r->has_push && at > 0 && finish == BT_FINISH_LENGTH) {
        r->push.chunk_done(r->push.context, at);
    }
    while (at < r->n_tokens && finish == BT_FINISH_LENGTH) {
        const uint32_t n = r->n_tokens - at < r->chunk ? r->n_tokens - at : r->chunk;
        for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
            const uint32_t us = atomic_load(&e->layer_us);
            if (us > 0) {
                const struct timespec t = { us / 1000000, (long)(us % 1000000) * 1000 };
                nanosleep(&t, NULL);
            }
            if (r->has_push && e->layers[layer].k_dim > 0) {
                r->push.layer_done(r->push.context, layer, at, n);
            }
        }
        at += n;
        if (r->has_push) {
            r->push.chunk_done(r->push.context, at);
        }
        if (atomic_load(&r->cancelled)) {
            finish = BT_FINISH_CANCELLED;
        } else if (fail_at > 0 && at >= fail_at) {
            finish = BT_FINISH_ERROR;
        }
    }
    fake_put_event(r, 2, finish);
    return NULL;
}

bt_status bt_engine_submit(bt_engine *e, const bt_request_options *o, bt_request **ret_request,
                           bt_error *err)
{
    if (o->n_tokens >= e->options.n_ctx) {
        return bt_fail(err, BT_E_CONTEXT, "%u tokens do not fit %u", o->n_tokens, e->options.n_ctx);
    }
    bt_request *r = calloc(1, sizeof *r);
    r->engine = e;
    r->n_tokens = o->n_tokens;
    r->chunk = o->n_prefill_chunk ? o->n_prefill_chunk : e->options.n_prefill_chunk;
    r->tokens = malloc(o->n_tokens * sizeof *r->tokens);
    memcpy(r->tokens, o->tokens, o->n_tokens * sizeof *r->tokens);
    fake_prefixes(r->tokens, r->n_tokens, r->prefix);
    r->has_push = o->push != NULL;
    if (o->push) {
        r->push = *o->push;
    }
    r->on_event = o->on_event.fn;
    r->on_event_context = o->on_event.context;
    pthread_mutex_init(&r->lock, NULL);
    r->n_events = 0;
    atomic_fetch_add(&e->n_requests, 1);
    *ret_request = r;
    pthread_create(&r->thread, NULL, fake_compute, r);
    return BT_OK;
}

bt_status bt_engine_request_wait(bt_request *r, uint32_t timeout_ms, bt_event *ret)
{
    (void)timeout_ms;
    bt_status s = BT_E_AGAIN;
    pthread_mutex_lock(&r->lock);
    if (r->n_read == 0 && r->n_events > 0) {
        *ret = (bt_event){ .kind = BT_EVENT_BEGIN };
        r->n_read = 1;
        s = BT_OK;
    } else if (r->n_read == 1 && r->n_events == 2) {
        r->n_read = 2;
        *ret = (bt_event){ .kind = BT_EVENT_END, .finish = r->finish,
                           .status = r->finish == BT_FINISH_ERROR ? BT_E_DEVICE : BT_OK,
                           .message = r->finish == BT_FINISH_ERROR ? "the device is on fire" : "" };
        s = BT_OK;
    }
    pthread_mutex_unlock(&r->lock);
    return s;
}

void bt_engine_request_cancel(bt_request *r)
{
    pthread_mutex_lock(&r->engine->lock);
    atomic_store(&r->cancelled, true);
    pthread_cond_broadcast(&r->engine->seat_freed);
    pthread_mutex_unlock(&r->engine->lock);
}

void bt_engine_request_release(bt_request *r)
{
    if (r) {
        bt_engine_request_cancel(r);
        pthread_join(r->thread, NULL);
        fake_leave_seat(r);
        atomic_fetch_sub(&r->engine->n_requests, 1);
        free(r->tokens);
        free(r);
    }
}

void bt_engine_request_stats_get(const bt_request *r, bt_request_stats *s)
{
    (void)r;
    *s = (bt_request_stats){ .queue_ms = 0 };
}

void bt_engine_request_export_rows(const bt_request *r, uint32_t layer, uint32_t position,
                                   uint32_t n, void *ret_k, void *ret_v)
{
    const size_t kb = (size_t)r->engine->layers[layer].k_row_bytes;
    const size_t vb = (size_t)r->engine->layers[layer].v_row_bytes;
    for (uint32_t i = 0; i < n; i++) {
        fake_row(r->prefix[position + i], layer, 0, (uint8_t *)ret_k + i * kb, kb);
        fake_row(r->prefix[position + i], layer, 1, (uint8_t *)ret_v + i * vb, vb);
    }
}

#endif
