/* handoff/prefill.c - see prefill.h; placement, life cycle and status of the server's side. */
#include "handoff/prefill.h"

#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/greeting.h"
#include "handoff/prefill_private.h"
#include "handoff/say.h"
#include "link/sync.h"

const char *bt_prefill_state_name(bt_prefill_state s)
{
    static const char *const names[] = {
#define X(name, text) text,
        BT_PREFILL_STATE_LIST(X)
#undef X
    };
    return (size_t)s < BT_LEN(names) ? names[s] : "unknown";
}

/* ---- placement: the engine's thread ---- */

static bt_router_question question_of(const bt_prefill *p, const bt_prefill_job *job)
{
    const bool automatic = p->options.min_tokens == BT_PREFILL_MIN_AUTO;
    return (bt_router_question){
        .n_tokens = job ? job->position_end - job->position_first : 0,
        .token_bytes = p->token_bytes,
        .min_tokens = automatic ? 0 : p->options.min_tokens,
        .automatic = automatic,
        .min_first = BT_PREFILL_MIN_FIRST,
        .always = job && job->where == BT_WHERE_REMOTE,
        .last_remote = p->last_remote,
        .local_ms = &p->local_ms,
    };
}

/* Lock held. Why none of the workers can take a prompt that ends at `end`. */
static void say_none_ready(const bt_prefill *p, uint32_t end, char *reason, size_t size)
{
    const bt_handoff_peer *peer = &p->peers[0];
    for (uint32_t i = 0; i < p->n_peers; i++) {
        if (p->peers[i].status.state == BT_PREFILL_READY) {
            peer = &p->peers[i];
        }
    }
    const bt_prefill_worker_status *st = &peer->status;
    if (st->state == BT_PREFILL_READY) {
        bt_say(reason, size, "no worker has room for %u positions: %s has %u", end,
                       peer->address, peer->n_ctx);
    } else {
        bt_say(reason, size, "no worker is ready: %s is %s%s%.120s", peer->address,
                       bt_prefill_state_name(st->state), st->reason[0] ? ": " : "", st->reason);
    }
}

/* Lock held. A worker was wanted and none is there: prefilled here with a warning, or, where the
 * policy is to fail, handed to the clerk, who ends the ticket. */
static bool start_without_worker(bt_prefill *p, const bt_prefill_job *job,
                                 bt_prefill_report *report)
{
    const bool fail = job->policy == BT_POLICY_FAIL;
    say_none_ready(p, job->position_end, report->reason, sizeof report->reason);
    report->fallback = true;
    bt_handoff_job *refused = fail ? bt_handoff_job_create(job, report) : NULL;
    if (!refused) {
        p->status.n_fallbacks++;
        return false;
    }
    p->status.n_failed++;
    refused->next = p->refused;
    p->refused = refused;
    (void)pthread_cond_broadcast(&p->wake);
    return true;
}

/* Lock held. */
static bool start_on(bt_prefill *p, uint32_t index, const bt_prefill_job *job,
                     bt_prefill_report *report)
{
    bt_handoff_job *j = bt_handoff_job_create(job, report);
    if (!j) {
        bt_say(report->reason, sizeof report->reason,
                       "no memory to hand %u tokens to a worker", job->position_end);
        p->status.n_fallbacks++;
        report->fallback = true;
        return false;
    }
    bt_handoff_job_give(&p->peers[index], j);
    return true;
}

static bool start(void *context, const bt_prefill_job *job, bt_prefill_report *report)
{
    bt_prefill *p = context;
    bt_router_worker view[BT_WORKERS_MAX];
    bool taken = false;

    BT_ASSERT(job->position_first <= job->position_end && job->position_end <= job->n_tokens);
    (void)pthread_mutex_lock(&p->lock);
    const bt_router_question q = question_of(p, job);
    if (p->stopping) {
        bt_say(report->reason, sizeof report->reason, "the server is shutting down");
    } else if (job->where == BT_WHERE_LOCAL) {
        bt_say(report->reason, sizeof report->reason, "the request asks for this machine");
        p->status.n_local++;
    } else if (q.n_tokens == 0) {
        bt_say(report->reason, sizeof report->reason, "nothing is left to prefill");
        p->status.n_local++;
    } else {
        bt_handoff_peers_view(p, job->position_end, view);
        const bt_router_answer a = bt_router_choose(&q, view, p->n_peers, -1, report->reason,
                                                    sizeof report->reason);
        if (a.measured && q.automatic && !q.always) {
            p->last_remote = a.worker >= 0;
        }
        if (a.worker >= 0) {
            taken = start_on(p, (uint32_t)a.worker, job, report);
        } else if (a.wanted_remote) {
            taken = start_without_worker(p, job, report);
        } else {
            p->status.n_local++;
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (report->fallback) {
        bt_log(BT_LOG_WARN, "prefill %s tokens %u reason \"%s\"", taken ? "failed" : "fallback",
               q.n_tokens, report->reason);
    }
    return taken;
}

/* From here on late frames are dropped; the next tick ends the ticket and tells the worker. */
static void cancel(void *context, uint64_t ticket)
{
    bt_prefill *p = context;
    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n_peers; i++) {
        for (bt_handoff_job *j = p->peers[i].jobs; j; j = j->next) {
            if (j->ticket == ticket) {
                j->cancelled = true;
            }
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static void measured(void *context, uint32_t position, uint32_t n_tokens, double ms)
{
    bt_prefill *p = context;
    (void)position;
    if (n_tokens >= BT_HANDOFF_MEASURE_MIN) {
        (void)pthread_mutex_lock(&p->lock);
        bt_fit_put(&p->local_ms, n_tokens, ms);
        (void)pthread_mutex_unlock(&p->lock);
    }
}

/* ---- the clerk: ends tickets that no worker has, off the engine's thread ---- */

static void *clerk_main(void *context)
{
    bt_prefill *p = context;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stopping || p->refused) {
        bt_handoff_job *j = p->refused;
        if (!j) {
            (void)pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        p->refused = j->next;
        (void)pthread_mutex_unlock(&p->lock);
        bt_engine_import_abandon(p->engine, j->ticket, j->first, &j->report, BT_E_LOST);
        bt_handoff_job_destroy(j);
        (void)pthread_mutex_lock(&p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- life ---- */

static bt_status check_address(const char *address, bt_error *err)
{
    const char *colon = strrchr(address, ':');
    unsigned port = 0;
    bool good = colon && colon != address && colon[1];
    for (const char *c = colon ? colon + 1 : ""; good && *c; c++) {
        good = *c >= '0' && *c <= '9' && port <= 65535;
        port = port * 10 + (unsigned)(*c - '0');
    }
    if (!good || port == 0 || port > 65535 || strlen(address) >= 128) {
        return bt_fail(err, BT_E_BADINPUT, "worker '%.100s': want HOST:PORT, port 1 to 65535",
                       address);
    }
    return BT_OK;
}

/* "a:1; b:2" into peers; empty parts are skipped. */
static bt_status split_addresses(bt_prefill *p, bt_error *err)
{
    char *save = NULL;
    for (char *word = strtok_r(p->addresses, "; \t", &save); word;
         word = strtok_r(NULL, "; \t", &save)) {
        BT_TRY(check_address(word, err));
        if (p->n_peers == BT_WORKERS_MAX) {
            return bt_fail(err, BT_E_BADINPUT, "more than %u workers", BT_WORKERS_MAX);
        }
        bt_handoff_peer *peer = &p->peers[p->n_peers];
        peer->owner = p;
        peer->index = p->n_peers++;
        bt_say(peer->address, sizeof peer->address, "%s", word);
        bt_say(peer->status.address, sizeof peer->status.address, "%s", word);
    }
    return p->n_peers > 0 ? BT_OK
                          : bt_fail(err, BT_E_BADINPUT, "no worker in '%s'", p->options.addresses);
}

/* How rows travel, and room to turn them. */
static bt_status set_form(bt_prefill *p, bt_error *err)
{
    BT_TRY(bt_rows_form_init(&p->form, bt_engine_kv_layout(p->engine), p->options.codec, err));
    const size_t row = bt_rows_layer_bytes_max(&p->form);
    if (row == 0 || bt_wire_rows_fit(row) == 0) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "a K and V row of this model takes %zu bytes: no frame can carry it", row);
    }
    p->token_bytes = bt_rows_token_bytes(&p->form);
    for (uint32_t i = 0; p->form.codec != BT_ROWS_STORED && i < p->n_peers; i++) {
        BT_TRY(bt_rows_room_open(&p->peers[i].room, &p->form, err));
    }
    return BT_OK;
}

static bt_status copy_options(bt_prefill *p, const bt_prefill_options *o, bt_error *err)
{
    p->options = *o;
    p->addresses = bt_strdup(BT_MEM_handoff, o->addresses);
    p->numerics = bt_strdup(BT_MEM_handoff, o->numerics ? o->numerics : "");
    p->key_file = o->link.key_file ? bt_strdup(BT_MEM_handoff, o->link.key_file) : NULL;
    p->peers = bt_alloc_zero(BT_MEM_handoff, BT_WORKERS_MAX, sizeof *p->peers);
    if (!p->addresses || !p->numerics || !p->peers || (o->link.key_file && !p->key_file)) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the list of workers");
    }
    p->options.link.key_file = p->key_file;
    p->options.link.stop = &p->stopping;
    return BT_OK;
}

static bt_status start_threads(bt_prefill *p, bt_error *err)
{
    if (!bt_link_thread_start(&p->clerk, clerk_main, p)) {
        return bt_fail(err, BT_E_NOMEM, "the system gives no thread");
    }
    p->clerk_runs = true;
    for (uint32_t i = 0; i < p->n_peers; i++) {
        bt_handoff_peer *peer = &p->peers[i];
        if (!bt_link_thread_start(&peer->thread, bt_handoff_peer_main, peer)) {
            return bt_fail(err, BT_E_NOMEM, "the system gives no thread for worker %s",
                           peer->address);
        }
        peer->thread_runs = true;
    }
    return BT_OK;
}

bt_status bt_prefill_open(const bt_prefill_options *o, bt_engine *engine, bt_prefill **ret_prefill,
                          bt_error *err)
{
    BT_ASSERT(o->addresses != NULL);
    bt_prefill *p = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *p);
    uint64_t session = 0;
    if (!p) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the list of workers");
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    bt_link_cond_init(&p->wake);
    p->engine = engine;
    p->last_remote = true;

    bt_status s = copy_options(p, o, err);
    s = s == BT_OK ? split_addresses(p, err) : s;
    s = s == BT_OK ? set_form(p, err) : s;
    if (s == BT_OK && bt_random_u64(&session) != BT_OK) {
        s = bt_fail(err, BT_E_IO, "the system gives no random numbers");
    }
    if (s == BT_OK) {
        p->hello = bt_handoff_hello(engine, session, p->numerics);
        s = start_threads(p, err);
    }
    if (s != BT_OK) {
        bt_prefill_close(p);
        return s;
    }
    const bt_placement placement = { .context = p, .start = start, .cancel = cancel,
                                     .measured = measured };
    bt_engine_set_placement(engine, &placement);
    *ret_prefill = p;
    return BT_OK;
}

void bt_prefill_stop(bt_prefill *p)
{
    if (!p) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->stopping = true;
    for (uint32_t i = 0; i < p->n_peers; i++) {
        if (p->peers[i].link) {
            bt_link_close(p->peers[i].link, "the server is shutting down");
        }
    }
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_peers; i++) {
        if (p->peers[i].thread_runs) {
            (void)pthread_join(p->peers[i].thread, NULL);
            p->peers[i].thread_runs = false;
        }
    }
    if (p->clerk_runs) {
        (void)pthread_join(p->clerk, NULL);
        p->clerk_runs = false;
    }
}

void bt_prefill_close(bt_prefill *p)
{
    if (!p) {
        return;
    }
    bt_prefill_stop(p);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    for (uint32_t i = 0; i < p->n_peers; i++) {
        bt_rows_room_close(&p->peers[i].room);
    }
    bt_free(p->peers);
    bt_free(p->addresses);
    bt_free(p->numerics);
    bt_free(p->key_file);
    bt_free(p);
}

/* ---- status ---- */

/* Lock held. The threshold that `auto` amounts to with the best of the workers. */
static uint32_t min_tokens_now(const bt_prefill *p)
{
    bt_router_worker view[BT_WORKERS_MAX];
    const bt_router_question q = question_of(p, NULL);
    uint32_t least = UINT32_MAX;
    bool any = false;
    bt_handoff_peers_view(p, 0, view);
    for (uint32_t i = 0; i < p->n_peers; i++) {
        if (view[i].ready) {
            const uint32_t n = bt_router_break_even(&q, &view[i]);
            least = n < least ? n : least;
            any = true;
        }
    }
    return any ? least : q.automatic ? q.min_first : q.min_tokens;
}

void bt_prefill_status_get(const bt_prefill *cp, bt_prefill_status *ret_status)
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;    /* only the lock changes */
    (void)pthread_mutex_lock(&p->lock);
    *ret_status = p->status;
    ret_status->n_workers = p->n_peers;
    for (uint32_t i = 0; i < p->n_peers; i++) {
        ret_status->n_ready += p->peers[i].status.state == BT_PREFILL_READY;
    }
    ret_status->min_tokens_auto = p->options.min_tokens == BT_PREFILL_MIN_AUTO;
    ret_status->min_tokens = min_tokens_now(p);
    ret_status->local_tokens_per_second = 1000 * bt_fit_rate(&p->local_ms);
    (void)pthread_mutex_unlock(&p->lock);
}

void bt_prefill_worker_status_get(const bt_prefill *cp, uint32_t index,
                                  bt_prefill_worker_status *ret_status)
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;
    BT_ASSERT(index < p->n_peers);
    (void)pthread_mutex_lock(&p->lock);
    const bt_handoff_peer *peer = &p->peers[index];
    bt_prefill_worker_status st = peer->status;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        st.n_in_flight += j->sent;
        st.n_waiting += !j->sent;
        st.tokens_in_flight += j->end - j->complete;
    }
    st.goodput_bytes_per_second = peer->bytes_per_ms * 1000;
    st.tokens_per_second = 1000 * bt_fit_rate(&peer->compute_ms);
    if (peer->link) {
        bt_link_stats link;
        bt_link_stats_get(peer->link, &link);
        st.round_trip_ms = link.round_trip_ms;
        st.peer_prompts = link.peer_load.running + link.peer_load.waiting;
        st.peer_tokens = link.peer_load.queued_tokens;
    }
    *ret_status = st;
    (void)pthread_mutex_unlock(&p->lock);
}
