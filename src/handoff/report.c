/* See report.h. The report is written by the engine's thread and by the thread of a worker's
 * connection, for the same ticket at the same time: what came of the ticket stands, and once the
 * engine has closed it only the engine's word does. */
#include "handoff/report.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/memory.h"
#include "base/say.h"

struct bt_handoff_request {
    bt_handoff_wish   wish;            /* fixed */
    atomic_uint       refs;
    pthread_mutex_t   lock;            /* guards all below */
    uint64_t          ticket;          /* 0: none */
    bool              ended;           /* what came of the ticket is in the report */
    bt_prefill_report report;
};

const char *bt_handoff_place_name(bt_prefill_place place)
{
    static const char *const names[] = { "local", "remote", "mixed", "cache" };
    return (unsigned)place < BT_LEN(names) ? names[place] : "unknown";
}

/* ---- life ---- */

bt_status bt_handoff_request_create(const bt_handoff_wish *wish, bt_handoff_request **ret_request,
                                    bt_error *err)
{
    bt_handoff_request *r = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *r);
    if (!r) {
        return bt_fail(err, BT_E_NOMEM, "out of memory: %zu bytes for the report of a request",
                       sizeof *r);
    }
    r->wish = *wish;
    atomic_init(&r->refs, 1);
    (void)pthread_mutex_init(&r->lock, NULL);
    *ret_request = r;
    return BT_OK;
}

void bt_handoff_request_ref(bt_handoff_request *r)
{
    if (r) {
        (void)atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    }
}

void bt_handoff_request_unref(bt_handoff_request *r)
{
    if (r && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) {
        (void)pthread_mutex_destroy(&r->lock);
        bt_free(r);
    }
}

static void ref(void *data) { bt_handoff_request_ref(data); }

static void unref(void *data) { bt_handoff_request_unref(data); }

bt_tag bt_handoff_request_tag(bt_handoff_request *r)
{
    return (bt_tag){ .data = r, .ref = ref, .unref = unref };
}

bt_handoff_wish bt_handoff_request_wish(const bt_handoff_request *r)
{
    return r ? r->wish : (bt_handoff_wish){ .has_workers = true };
}

/* ---- writing ---- */

void bt_handoff_request_begin(bt_handoff_request *r, uint64_t ticket)
{
    if (r) {
        (void)pthread_mutex_lock(&r->lock);
        r->ticket = ticket;
        r->ended = false;
        r->report = (bt_prefill_report){ .place = BT_PREFILL_LOCAL };
        (void)pthread_mutex_unlock(&r->lock);
    }
}

static void put(bt_handoff_request *r, uint64_t ticket, const bt_prefill_report *p, bool end)
{
    if (r) {
        (void)pthread_mutex_lock(&r->lock);
        if (r->ticket == ticket && (end || !r->ended)) {
            r->report = *p;
            r->ended = end;
        }
        (void)pthread_mutex_unlock(&r->lock);
    }
}

void bt_handoff_request_note(bt_handoff_request *r, uint64_t ticket, const bt_prefill_report *p)
{
    put(r, ticket, p, false);
}

void bt_handoff_request_end(bt_handoff_request *r, uint64_t ticket, const bt_prefill_report *p)
{
    put(r, ticket, p, true);
}

void bt_handoff_request_cancel(bt_handoff_request *r, uint64_t ticket, bt_external_reason reason)
{
    if (!r) {
        return;
    }
    (void)pthread_mutex_lock(&r->lock);
    if (r->ticket == ticket) {
        r->ticket = UINT64_MAX;
        if (reason != BT_EXTERNAL_GONE) {
            r->report.fallback = false;
            bt_say(r->report.reason, sizeof r->report.reason, "%s",
                   reason == BT_EXTERNAL_LOCAL_FIRST
                       ? "it was prefilled here as well as on the worker, and here it was complete "
                         "first"
                       : "pages were too few to go on here as well as on the worker");
        }
    }
    (void)pthread_mutex_unlock(&r->lock);
}

/* ---- reading ---- */

/* Why a prompt stayed here that was never offered to anybody. */
static const char *reason_unoffered(const bt_handoff_wish *w, const bt_request_stats *s,
                                    bool cached)
{
    return cached            ? "the prompt was in the prefix cache"
           : s->n_prompt < 2 ? "a prompt of one token is evaluated here"
           : w->has_workers  ? ""
           : w->where == BT_WHERE_REMOTE
               ? "the request asks for a prefill worker, and this server has none"
               : "this server has no prefill workers";
}

/* Where the rows came from, by what was really used. */
static bt_prefill_place place_of(const bt_request_stats *s, bool cached)
{
    if (s->n_external > 0) {
        return s->n_local > 1 ? BT_PREFILL_MIXED : BT_PREFILL_REMOTE;
    }
    return cached ? BT_PREFILL_CACHE : BT_PREFILL_LOCAL;
}

void bt_handoff_request_report(const bt_handoff_request *r, const bt_request_stats *stats,
                               bt_prefill_report *ret_report)
{
    /* The lock guards; it is no part of what a reader calls the request's value. */
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&r->lock;
    bt_prefill_report *p = ret_report;
    const bool cached = stats->n_cached > 0 && stats->n_cached + 1 >= stats->n_prompt;
    (void)pthread_mutex_lock(lock);
    *p = r->report;
    (void)pthread_mutex_unlock(lock);
    p->place = place_of(stats, cached);
    p->hedged = stats->hedged;
    p->n_cached = stats->n_cached;
    p->n_remote = stats->n_external;
    p->n_local = stats->n_local;
    p->queue_ms += stats->queue_ms;
    /* The prefix was usable when all of it was: what was prefilled here counts too. */
    if (p->n_local > 1 || p->total_ms <= 0) {
        p->total_ms = stats->prompt_ms;
    }
    if (p->reason[0] == '\0') {
        bt_say(p->reason, sizeof p->reason, "%s", reason_unoffered(&r->wish, stats, cached));
        p->fallback = !r->wish.has_workers && !cached && stats->n_prompt >= 2 &&
                      r->wish.where == BT_WHERE_REMOTE && r->wish.policy != BT_POLICY_FAIL;
    }
}
