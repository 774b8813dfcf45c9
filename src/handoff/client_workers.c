/* handoff/client_workers.c - the list of workers, which may change while prompts are under way, and
 * a thread for each (docs/handoff.md, "A worker, as the server sees it").
 *
 * A place in the table is taken by set_workers and is free again once the thread of a worker that
 * was removed has ended and was joined: by the next set_workers, or by stop.
 */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/say.h"
#include "handoff/client_private.h"
#include "link/address.h"

enum {
    ADDRESS_MAX = 128,
    GREETING_MS = 3000,                /* HELLO to WELCOME */
    BACKOFF_FIRST_MS = 100,            /* between attempts; doubled up to: */
    BACKOFF_LOST_MS = 2000,            /* nobody there: a restart is seen soon */
    BACKOFF_REFUSED_MS = 10000         /* somebody said no: only a restart changes that */
};

/* ---- handshake ---- */

static bt_status send_hello(const bt_client_worker *w, bt_link *link, bt_error *err)
{
    const bt_wire_hello *m = &w->owner->hello;
    const size_t capacity = bt_wire_hello_size(m);
    uint8_t *body = bt_alloc(BT_MEM_handoff, capacity);
    size_t size;
    if (!body) {
        return bt_fail_nomem(err, capacity, "HELLO");
    }
    bt_status s = bt_wire_hello_encode(m, body, capacity, &size, err);
    if (s == BT_OK) {
        s = bt_link_send(link, BT_WIRE_HELLO, 0, body, size, err);
    }
    bt_free(body);
    return s;
}

static bt_status take_reject(const bt_frame *frame, bt_error *err)
{
    bt_wire_reject m;
    char field[40], ours[64], theirs[64], sentence[224];
    BT_TRY(bt_wire_reject_decode(frame->body, frame->size, &m, err));
    (void)bt_wire_text_copy(m.field, field, sizeof field);
    (void)bt_wire_text_copy(m.server_value, ours, sizeof ours);
    (void)bt_wire_text_copy(m.worker_value, theirs, sizeof theirs);
    (void)bt_wire_text_copy(m.sentence, sentence, sizeof sentence);
    const bt_status status = bt_status_from_wire(m.status);
    if (status == BT_E_FULL || status == BT_E_CLOSED) {
        return bt_fail(err, status, "the worker refused: %s", sentence);
    }
    /* What a person needs comes first: reports have room for less than all of it. */
    return bt_fail(err, BT_E_REFUSED, "%s ('%s' is %s here and %s there)", sentence, field, ours,
                   theirs);
}

static bt_status check_welcome(const bt_wire_welcome *m, bt_error *err)
{
    if (m->version_major != BT_WIRE_VERSION_MAJOR || m->version_minor != BT_WIRE_VERSION_MINOR) {
        return bt_fail(err, BT_E_PROTOCOL, "WELCOME speaks version %u.%u of the protocol, this "
                       "server asked for %d.%d", m->version_major, m->version_minor,
                       BT_WIRE_VERSION_MAJOR, BT_WIRE_VERSION_MINOR);
    }
    if (m->epoch == 0 || m->n_streams == 0 || m->n_prefill == 0) {
        return bt_fail(err, BT_E_PROTOCOL, "WELCOME with epoch %llu, %u streams, %u prompts",
                       (unsigned long long)m->epoch, m->n_streams, m->n_prefill);
    }
    return BT_OK;
}

/* Lock held. */
static void take_welcome(bt_client_worker *w, const bt_wire_welcome *m)
{
    const bt_prefill_options *o = &w->owner->options;
    bt_prefill_worker_status *st = &w->status;
    const uint32_t slots = o->n_prefill > 0 ? o->n_prefill : m->n_prefill;
    st->n_slots = slots < m->n_streams ? slots : m->n_streams;
    st->n_connects++;
    (void)bt_wire_text_copy(m->program, st->version, sizeof st->version);
    (void)bt_wire_text_copy(m->numerics, st->isa, sizeof st->isa);
    if (w->epoch != m->epoch) {        /* another process: its cache is empty */
        bt_route_cache_hint_clear(&w->known);
    }
    w->epoch = m->epoch;
    w->n_ctx = m->n_ctx;
    w->n_streams = m->n_streams;
    w->chunk = o->n_prefill_chunk > 0 ? o->n_prefill_chunk : m->chunk_tokens;
    w->stream_next = 1;
    w->others_tokens = 0;
    w->others_prompts = 0;
    w->load_ms = 0;
}

static bt_status wait_welcome(bt_client_worker *w, bt_link *link, bt_error *err)
{
    const uint64_t until = bt_clock_ns() + (uint64_t)GREETING_MS * BT_NS_PER_MS;
    bt_frame frame;
    bt_status s = BT_E_AGAIN;
    while (s == BT_E_AGAIN && bt_clock_ns() < until) {
        s = bt_link_receive(link, until, &frame, err);
    }
    if (s == BT_E_AGAIN) {
        return bt_fail(err, BT_E_TIMEOUT, "connected, but no WELCOME after %d ms",
                       (int)GREETING_MS);
    }
    BT_TRY(s);
    if (frame.type == BT_WIRE_REJECT) {
        return take_reject(&frame, err);
    }
    if (frame.type != BT_WIRE_WELCOME) {
        return bt_fail(err, BT_E_PROTOCOL, "the worker answers HELLO with %s",
                       bt_wire_type_name(frame.type));
    }
    bt_wire_welcome m;
    BT_TRY(bt_wire_welcome_decode(frame.body, frame.size, &m, err));
    BT_TRY(check_welcome(&m, err));
    (void)pthread_mutex_lock(&w->owner->lock);
    take_welcome(w, &m);
    (void)pthread_mutex_unlock(&w->owner->lock);
    return BT_OK;
}

static void compare_isa(const bt_client_worker *w)
{
    const char *ours = w->owner->numerics, *theirs = w->status.isa;
    if (ours[0] && theirs[0] && strcmp(ours, theirs) != 0) {
        bt_log(BT_LOG_WARN, "isa_differs", "worker=%s isa=%s here=%s effect=%s", w->address,
               theirs, ours, "remote and local prefill agree closely, but not bit for bit");
    }
}

/* ---- the thread ---- */

/* Ends early when stop() says so. A quarter of jitter keeps servers that lost the same worker from
 * coming back in step. */
static void back_off(bt_client_worker *w, uint32_t ms)
{
    bt_prefill *p = w->owner;
    uint64_t random;
    const double jitter = bt_random_u64(&random) == BT_OK ? (double)(random % 512) / 512 : 0.5;
    const uint64_t until = bt_clock_ns() + (uint64_t)(ms * (0.75 + 0.5 * jitter) * BT_NS_PER_MS);
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stopping && !w->leaving && bt_cond_wait_until(&p->wake, &p->lock, until)) {
    }
    (void)pthread_mutex_unlock(&p->lock);
}

/* From here on others may wake and close it; false: the server stops. NULL: it is gone. */
static bool show_link(bt_client_worker *w, bt_link *link)
{
    (void)pthread_mutex_lock(&w->owner->lock);
    w->link = link;
    const bool go_on = !w->owner->stopping;
    (void)pthread_mutex_unlock(&w->owner->lock);
    return go_on;
}

/* One connection from begin to end. True if it was ready for a while. */
static bool connect_once(bt_client_worker *w, bt_error *err)
{
    bt_link *link = NULL;
    if (bt_link_connect(w->address, &w->owner->options.link, &link, err) != BT_OK) {
        return false;
    }
    bt_status s = show_link(w, link) ? BT_OK
                                     : bt_fail(err, BT_E_CLOSED, "the server is shutting down");
    s = s == BT_OK ? send_hello(w, link, err) : s;
    s = s == BT_OK ? wait_welcome(w, link, err) : s;
    if (s == BT_OK) {
        bt_handoff_session_set_state(w, BT_PREFILL_READY, "");
        compare_isa(w);
        bt_handoff_session_run(w, link, err);
    }
    (void)show_link(w, NULL);
    bt_link_destroy(link);
    return s == BT_OK;
}

/* Whether the thread is to return; then nobody puts the worker back on the list. */
static bool is_over(bt_client_worker *w)
{
    (void)pthread_mutex_lock(&w->owner->lock);
    w->ended = w->leaving || w->owner->stopping;
    const bool ended = w->ended;
    (void)pthread_mutex_unlock(&w->owner->lock);
    return ended;
}

/* The connection did not come about: what is said of it, and how long to wait at most. */
static uint32_t note_failure(bt_client_worker *w, const bt_error *err)
{
    /* A refusal needs a person; anything else may heal by itself at any moment. */
    const bool person = err->status == BT_E_REFUSED || err->status == BT_E_AUTH ||
                        err->status == BT_E_PROTOCOL || err->status == BT_E_BADINPUT;
    const bool refused = person || err->status == BT_E_FULL || err->status == BT_E_CLOSED;
    (void)pthread_mutex_lock(&w->owner->lock);
    w->status.n_corrupt += err->status == BT_E_PROTOCOL;
    const bool quiet = w->owner->stopping;
    (void)pthread_mutex_unlock(&w->owner->lock);
    if (!quiet) {
        bt_handoff_session_set_state(w, refused ? BT_PREFILL_REFUSED : BT_PREFILL_CONNECTING,
                                     err->text);
    }
    return person ? BACKOFF_REFUSED_MS : BACKOFF_LOST_MS;
}

static void *worker_main(void *context)
{
    bt_client_worker *w = context;
    uint32_t pause_ms = BACKOFF_FIRST_MS;
    while (!is_over(w)) {
        bt_error err = { 0 };
        if (connect_once(w, &err)) {
            pause_ms = BACKOFF_FIRST_MS;
        } else {
            const uint32_t most = note_failure(w, &err);
            pause_ms = pause_ms * 2 < most ? pause_ms * 2 : most;
        }
        back_off(w, pause_ms);
    }
    return NULL;
}

/* ---- a list as text ---- */

typedef struct { uint32_t n; char addresses[BT_WORKERS_MAX][ADDRESS_MAX]; } list;

static bool has(const list *l, const char *address)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (strcmp(l->addresses[i], address) == 0) {
            return true;
        }
    }
    return false;
}

static bt_status check_address(const char *address, bt_error *err)
{
    bt_link_address a;
    BT_TRY(bt_link_address_parse(address, &a, err));
    return a.port > 0 ? BT_OK : bt_fail(err, BT_E_BADINPUT, "'%s': a worker has a port from 1 to "
                                        "65535", address);
}

/* "a:1, b:2; c:3"; empty parts are skipped, and so is a worker named twice. */
static bt_status parse(const char *text, list *l, bt_error *err)
{
    static const char between[] = ",; \t\r\n";
    l->n = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        const size_t size = strcspn(text, between);
        char address[ADDRESS_MAX];
        if (size >= sizeof address) {
            return bt_fail(err, BT_E_BADINPUT, "worker '%.100s...': more than %d bytes", text,
                           ADDRESS_MAX - 1);
        }
        bt_say(address, sizeof address, "%.*s", (int)size, text);
        BT_TRY(check_address(address, err));
        if (l->n == BT_WORKERS_MAX) {
            return bt_fail(err, BT_E_BADINPUT, "more than %u workers", BT_WORKERS_MAX);
        }
        if (!has(l, address)) {
            memcpy(l->addresses[l->n++], address, sizeof address);
        }
        text += size;
    }
    return BT_OK;
}

bt_status bt_handoff_client_check_workers(const char *addresses, uint32_t *ret_n, bt_error *err)
{
    list l;
    BT_TRY(parse(addresses, &l, err));
    *ret_n = l.n;
    return BT_OK;
}

/* ---- the list in force ---- */

static bool listed(const bt_client_worker *w) { return w->used && !w->leaving; }

uint32_t bt_handoff_workers_count(const bt_prefill *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        n += listed(&p->workers[i]);
    }
    return n;
}

const bt_client_worker *bt_handoff_workers_typical(const bt_prefill *p)
{
    const bt_client_worker *found = NULL;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_client_worker *w = &p->workers[i];
        if (listed(w) && (!found || w->status.phase == BT_PREFILL_READY)) {
            found = w;
        }
    }
    return found;
}

const bt_client_worker *bt_handoff_workers_largest(const bt_prefill *p)
{
    const bt_client_worker *found = NULL;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_client_worker *w = &p->workers[i];
        if (listed(w) && w->n_ctx == 0) {     /* never was ready */
            return NULL;
        }
        if (listed(w) && (!found || w->n_ctx > found->n_ctx)) {
            found = w;
        }
    }
    return found;
}

static bt_client_worker *find_listed(bt_prefill *p, const char *address)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (listed(&p->workers[i]) && strcmp(p->workers[i].address, address) == 0) {
            return &p->workers[i];
        }
    }
    return NULL;
}

static bt_client_worker *find_free(bt_prefill *p)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (!p->workers[i].used) {
            return &p->workers[i];
        }
    }
    return NULL;
}

static const char off_the_list[] = "removed from the list of workers";

/* Lock held. Back on the list before it was gone. */
static bool take_back(bt_prefill *p, const char *address)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_client_worker *w = &p->workers[i];
        if (!w->used || w->ended || strcmp(w->address, address) != 0) {
            continue;
        }
        bt_prefill_worker_status *st = &w->status;
        w->leaving = false;
        if (st->phase == BT_PREFILL_DRAINING && strcmp(st->reason, off_the_list) == 0) {
            st->phase = BT_PREFILL_READY;
            st->reason[0] = '\0';
        }
        return true;
    }
    return false;
}

/* Lock held. Joins the threads of workers that have left; they have let go of the lock for good. */
static void reap(bt_prefill *p)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_client_worker *w = &p->workers[i];
        if (w->used && w->ended) {
            (void)pthread_join(w->thread, NULL);
            bt_handoff_stats_retire(p, w);
            bt_kv_codec_scratch_close(&w->scratch);
            w->used = false;
        }
    }
}

/* Lock held. */
static bt_status add(bt_prefill *p, const char *address, bt_error *err)
{
    if (take_back(p, address)) {
        return BT_OK;
    }
    bt_client_worker *w = find_free(p);
    if (!w) {
        return bt_fail(err, BT_E_FULL, "worker %s: workers that were removed from the list still "
                       "finish prompts; try again later", address);
    }
    memset(w, 0, sizeof *w);
    w->owner = p;
    w->index = (uint32_t)(w - p->workers);
    bt_say(w->address, sizeof w->address, "%s", address);
    bt_say(w->status.address, sizeof w->status.address, "%s", address);
    if (p->form.codec != BT_KV_CODEC_STORED) {
        BT_TRY(bt_kv_codec_scratch_open(&w->scratch, &p->form, err));
    }
    const bt_status s = bt_thread_start(&w->thread, worker_main, w, "remote-prefill", err);
    if (s != BT_OK) {
        bt_kv_codec_scratch_close(&w->scratch);
        return s;
    }
    w->used = true;
    return BT_OK;
}

/* Lock held. Its own thread sees to the rest. */
static void remove_worker(bt_client_worker *w)
{
    w->leaving = true;
    if (w->status.phase == BT_PREFILL_READY) {
        w->status.phase = BT_PREFILL_DRAINING;
        bt_say(w->status.reason, sizeof w->status.reason, "%s", off_the_list);
    }
    if (w->link) {
        bt_link_wake(w->link);
    }
}

/* Lock held. All of the list, or nothing of it. */
static bt_status set_list(bt_prefill *p, const list *l, bt_error *err)
{
    bool added[BT_WORKERS_MAX] = { false };
    bt_status s = BT_OK;
    reap(p);
    for (uint32_t i = 0; s == BT_OK && i < l->n && !p->stopping; i++) {
        added[i] = !find_listed(p, l->addresses[i]);
        s = added[i] ? add(p, l->addresses[i], err) : BT_OK;
        added[i] &= s == BT_OK;
    }
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_client_worker *w = &p->workers[i];
        if (s == BT_OK && listed(w) && !has(l, w->address)) {
            remove_worker(w);
        } else if (s != BT_OK && added[i]) {
            remove_worker(find_listed(p, l->addresses[i]));
        }
    }
    (void)pthread_cond_broadcast(&p->wake);
    return s;
}

bt_status bt_handoff_client_set_workers(bt_prefill *p, const char *addresses, bt_error *err)
{
    list *l = bt_alloc(BT_MEM_handoff, sizeof *l);
    if (!l) {
        return bt_fail_nomem(err, sizeof *l, "the list of workers");
    }
    bt_status s = parse(addresses, l, err);
    if (s == BT_OK) {
        (void)pthread_mutex_lock(&p->lock);
        s = set_list(p, l, err);
        (void)pthread_mutex_unlock(&p->lock);
    }
    bt_free(l);
    return s;
}

void bt_handoff_workers_stop(bt_prefill *p)
{
    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (p->workers[i].link) {
            bt_link_close(p->workers[i].link, "the server is shutting down");
        }
    }
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_client_worker *w = &p->workers[i];
        if (w->used) {                 /* nobody else joins once the pool is stopping */
            (void)pthread_join(w->thread, NULL);
            (void)pthread_mutex_lock(&p->lock);
            bt_handoff_stats_retire(p, w);
            bt_kv_codec_scratch_close(&w->scratch);
            w->used = false;
            (void)pthread_mutex_unlock(&p->lock);
        }
    }
}
