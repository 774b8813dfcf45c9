/* handoff/workers.c - the list of workers, which may change while prompts are under way; status.
 *
 * A place in the table of peers is taken by set_workers and given back by the clerk, who joins the
 * thread of a worker that was taken off the list once its last prompt is done.
 */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "handoff/prefill_private.h"
#include "base/say.h"
#include "link/address.h"
#include "link/sync.h"

enum { ADDRESS_MAX = 128 };

const char *bt_handoff_client_state_name(bt_prefill_state s)
{
    static const char *const names[] = {
#define X(name, text) text,
        BT_PREFILL_STATE_LIST(X)
#undef X
    };
    return (size_t)s < BT_LEN(names) ? names[s] : "unknown";
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

static bool listed(const bt_handoff_peer *peer) { return peer->used && !peer->leaving; }

uint32_t bt_handoff_workers_count(const bt_prefill *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        n += listed(&p->peers[i]);
    }
    return n;
}

const bt_handoff_peer *bt_handoff_workers_typical(const bt_prefill *p)
{
    const bt_handoff_peer *found = NULL;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_handoff_peer *peer = &p->peers[i];
        if (listed(peer) && (!found || peer->status.state == BT_PREFILL_READY)) {
            found = peer;
        }
    }
    return found;
}

const bt_handoff_peer *bt_handoff_workers_largest(const bt_prefill *p)
{
    const bt_handoff_peer *found = NULL;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_handoff_peer *peer = &p->peers[i];
        if (listed(peer) && peer->n_ctx == 0) {     /* never was ready */
            return NULL;
        }
        if (listed(peer) && (!found || peer->n_ctx > found->n_ctx)) {
            found = peer;
        }
    }
    return found;
}

static bt_handoff_peer *find_listed(bt_prefill *p, const char *address)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (listed(&p->peers[i]) && strcmp(p->peers[i].address, address) == 0) {
            return &p->peers[i];
        }
    }
    return NULL;
}

static bt_handoff_peer *find_free(bt_prefill *p)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (!p->peers[i].used) {
            return &p->peers[i];
        }
    }
    return NULL;
}

static const char off_the_list[] = "taken off the list of workers";

/* Lock held. Back on the list before it was gone. */
static bool take_back(bt_prefill *p, const char *address)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_handoff_peer *peer = &p->peers[i];
        if (!peer->used || peer->ended || strcmp(peer->address, address) != 0) {
            continue;
        }
        bt_prefill_worker_status *st = &peer->status;
        peer->leaving = false;
        if (st->state == BT_PREFILL_DRAINING && strcmp(st->reason, off_the_list) == 0) {
            st->state = BT_PREFILL_READY;
            st->reason[0] = '\0';
        }
        return true;
    }
    return false;
}

/* Lock held. */
static bt_status add(bt_prefill *p, const char *address, bt_error *err)
{
    if (take_back(p, address)) {
        return BT_OK;
    }
    bt_handoff_peer *peer = find_free(p);
    if (!peer) {
        return bt_fail(err, BT_E_FULL, "worker %s: workers that were taken off the list still "
                       "finish prompts; try again later", address);
    }
    memset(peer, 0, sizeof *peer);
    peer->owner = p;
    peer->index = (uint32_t)(peer - p->peers);
    bt_say(peer->address, sizeof peer->address, "%s", address);
    bt_say(peer->status.address, sizeof peer->status.address, "%s", address);
    if (p->form.codec != BT_KV_CODEC_STORED) {
        BT_TRY(bt_kv_codec_scratch_open(&peer->room, &p->form, err));
    }
    peer->used = true;
    if (!bt_link_thread_start(&peer->thread, bt_handoff_peer_main, peer)) {
        bt_kv_codec_scratch_close(&peer->room);
        peer->used = false;
        return bt_fail(err, BT_E_NOMEM, "the system gives no thread for worker %s", address);
    }
    peer->thread_runs = true;
    return BT_OK;
}

/* Lock held. Its own thread sees to the rest. */
static void remove_peer(bt_handoff_peer *peer)
{
    peer->leaving = true;
    if (peer->status.state == BT_PREFILL_READY) {
        peer->status.state = BT_PREFILL_DRAINING;
        bt_say(peer->status.reason, sizeof peer->status.reason, "%s", off_the_list);
    }
}

bt_status bt_handoff_client_set_workers(bt_prefill *p, const char *addresses, bt_error *err)
{
    list *l = bt_alloc(BT_MEM_handoff, sizeof *l);
    if (!l) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the list of workers");
    }
    bt_status s = parse(addresses, l, err);
    (void)pthread_mutex_lock(&p->lock);
    bool added[BT_WORKERS_MAX] = { false };
    for (uint32_t i = 0; s == BT_OK && i < l->n && !p->stopping; i++) {
        added[i] = !find_listed(p, l->addresses[i]);
        s = added[i] ? add(p, l->addresses[i], err) : BT_OK;
        added[i] &= s == BT_OK;
    }
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_handoff_peer *peer = &p->peers[i];
        if (s == BT_OK && listed(peer) && !has(l, peer->address)) {
            remove_peer(peer);
        }
    }
    for (uint32_t i = 0; s != BT_OK && i < BT_WORKERS_MAX; i++) {
        if (added[i]) {                /* all or nothing */
            remove_peer(find_listed(p, l->addresses[i]));
        }
    }
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    bt_free(l);
    return s;
}

bool bt_handoff_workers_join_one(bt_prefill *p)
{
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        bt_handoff_peer *peer = &p->peers[i];
        if (peer->ended && peer->leaving && peer->thread_runs) {
            peer->thread_runs = false;
            (void)pthread_mutex_unlock(&p->lock);
            (void)pthread_join(peer->thread, NULL);
            (void)pthread_mutex_lock(&p->lock);
            bt_kv_codec_scratch_close(&peer->room);
            peer->used = false;
            return true;
        }
    }
    return false;
}

/* ---- status ---- */

/* Lock held. The threshold that `auto` amounts to with the best of the workers. */
static uint32_t min_tokens_now(const bt_prefill *p)
{
    bt_route_worker view[BT_WORKERS_MAX];
    const bt_route_question q = bt_handoff_question(p, NULL);
    uint32_t least = UINT32_MAX;
    bool any = false;
    bt_handoff_peers_view(p, 0, NULL, 0, 0, view);
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        if (view[i].ready) {
            const uint32_t n = bt_route_break_even(&q, &view[i]);
            least = n < least ? n : least;
            any = true;
        }
    }
    return any ? least : q.automatic ? q.min_first : q.min_tokens;
}

/* Prompts of this many tokens give the rates that are shown. */
#define RATE_TOKENS 512.0

void bt_handoff_client_status_get(const bt_prefill *cp, bt_prefill_status *ret_status)
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;    /* only the lock changes */
    (void)pthread_mutex_lock(&p->lock);
    *ret_status = p->status;
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        ret_status->n_workers += p->peers[i].used;
        ret_status->n_ready += p->peers[i].used && p->peers[i].status.state == BT_PREFILL_READY;
    }
    ret_status->min_tokens_auto = p->options.min_tokens == BT_PREFILL_MIN_AUTO;
    ret_status->min_tokens = min_tokens_now(p);
    ret_status->local_tokens_per_second = 1000 * bt_cost_fit_rate(&p->local, RATE_TOKENS);
    ret_status->local_step_ms = p->local.cost[0];
    ret_status->local_token_ms = p->local.cost[1];
    ret_status->local_key_ms = p->local.cost[2];
    (void)pthread_mutex_unlock(&p->lock);
}

/* Lock held. */
static bt_prefill_worker_status status_of(const bt_handoff_peer *peer)
{
    bt_prefill_worker_status st = peer->status;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        st.n_in_flight += j->sent;
        st.n_waiting += !j->sent;
        st.tokens_in_flight += bt_handoff_job_left(j);
    }
    st.goodput_bytes_per_second = peer->bytes_per_ms * 1000;
    st.tokens_per_second = 1000 * bt_cost_fit_rate(&peer->compute, RATE_TOKENS);
    st.step_ms = peer->compute.cost[0];
    st.token_ms = peer->compute.cost[1];
    st.key_ms = peer->compute.cost[2];
    st.lead_ms = peer->lead_ms;
    st.tail_ms = peer->tail_ms;
    st.idle_seconds = peer->given_ms > 0 ? (bt_clock_ms() - peer->given_ms) / 1000 : -1;
    if (peer->link) {
        bt_link_stats link;
        bt_link_stats_get(peer->link, &link);
        st.round_trip_ms = link.round_trip_ms_min;
        st.peer_prompts = link.peer_load.running + link.peer_load.waiting;
        st.peer_tokens = link.peer_load.queued_tokens;
    }
    return st;
}

bool bt_handoff_client_worker_status_get(const bt_prefill *cp, uint32_t index,
                                         bt_prefill_worker_status *ret_status)
{
    bt_prefill *p = (bt_prefill *)(uintptr_t)cp;
    bool found = false;
    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < BT_WORKERS_MAX && !found; i++) {
        if (p->peers[i].used && index-- == 0) {
            *ret_status = status_of(&p->peers[i]);
            found = true;
        }
    }
    (void)pthread_mutex_unlock(&p->lock);
    return found;
}
