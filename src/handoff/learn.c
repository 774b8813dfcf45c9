/* handoff/learn.c - what prompts teach about workers, and what the router is told of them.
 *
 * Only a prompt that was alone on its worker says what work costs there: of one that shared it,
 * nobody here can tell which part of the time was its own. Where prompts never are alone, one in a
 * minute is taken as it is.
 */
#include "base/clock.h"
#include "handoff/prefill_private.h"

/* Of a prompt of which so many bytes came late, the exposed time is the link's, not the tail's. */
#define LINK_BOUND 0.2
/* Both ends of what is late are seen up to NOISE_MS too late: by when a thread runs, and by half a
 * round trip that is only guessed. In 5 times that a rate is known to a fifth, in less (the last
 * layer of SmolLM2 over loopback: 230 KB in 0.3 to 3.6 ms, 64 MB/s to 0.7 GB/s, where it carries
 * 0.8 to 1.7) it is only known that the bytes took no longer than that and the noise. */
#define NOISE_MS 1.0
#define LINK_MS_MIN (5 * NOISE_MS)
/* What came while a clock ran, but may have left before: a shaper's burst, a switch's queue, a
 * card's ring give so much at once after a pause. A rate is made of what is beyond, and only where
 * that is most of it; what is less only says that the link is at least so fast. */
#define BUFFERED_BYTES 65536.0
#define LINK_BYTES_MIN (4 * BUFFERED_BYTES)
#define SMOOTH 0.25
#define LEARN_SHARED_MS 60000.0

/* ---- load ---- */

uint32_t bt_handoff_job_left(const bt_handoff_job *job)
{
    return job->end - job->complete;
}

static uint64_t our_tokens(const bt_handoff_peer *peer, uint32_t *ret_prompts)
{
    uint64_t ours = 0;
    *ret_prompts = 0;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        ours += j->sent ? bt_handoff_job_left(j) : 0;
        *ret_prompts += j->sent;
    }
    return ours;
}

/* The worker's word includes our own prompts as they were a heartbeat ago; we know those better, so
 * only the rest is kept, taken apart when the word comes. */
void bt_handoff_peer_learn_load(bt_handoff_peer *peer, const bt_link_stats *link)
{
    const double told_ms = bt_clock_ms() - link->peer_load_age_ms;
    /* One that has left us since may still be in that word. */
    const bool stale = told_ms < peer->left_ms + link->round_trip_ms;
    if (link->peer_load_age_ms >= 0 && told_ms > peer->load_told_ms + 1 && !stale) {
        uint32_t n_ours;
        const uint64_t all = link->peer_load.queued_tokens, ours = our_tokens(peer, &n_ours);
        const uint32_t n_all = link->peer_load.running + link->peer_load.waiting;
        peer->others_prompts = n_all > n_ours ? n_all - n_ours : 0;
        peer->others_tokens = all > ours && peer->others_prompts > 0 ? all - ours : 0;
        peer->load_told_ms = told_ms;
    }
}

static void add(bt_route_load *l, double first, double n)
{
    l->n_tokens += n;
    l->attended += bt_cost_attended(first, first + n);
}

/* What the worker computes before or beside a prompt of n tokens. It takes turns and prefers the
 * one that is nearest its end, so a longer one costs us as much as we are ourselves; but where all
 * slots are taken the first of them has to end before we begin. Where prompts of other servers
 * stand is not known; they are taken to have just begun. */
static bt_route_load load_ahead(const bt_handoff_peer *peer, uint32_t n)
{
    bt_route_load sum = { 0 };
    const bt_handoff_job *first_to_end = NULL;
    uint32_t n_sent = 0;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        n_sent += j->sent;
        if (j->sent && (!first_to_end ||
                        bt_handoff_job_left(j) < bt_handoff_job_left(first_to_end))) {
            first_to_end = j;
        }
    }
    const bool full = n_sent > 0 && n_sent >= peer->status.n_slots;
    for (const bt_handoff_job *j = peer->jobs; j; j = j->next) {
        const uint32_t left = bt_handoff_job_left(j);
        add(&sum, j->complete, left < n || (full && j == first_to_end) ? left : n);
    }
    for (uint32_t i = 0; i < peer->others_prompts; i++) {
        const double each = (double)peer->others_tokens / peer->others_prompts;
        add(&sum, 0, each < n ? each : n);
    }
    return sum;
}

void bt_handoff_peers_view(const bt_prefill *p, uint64_t tenant, const uint32_t *tokens,
                           uint32_t first, uint32_t end,
                           bt_route_worker ret_workers[BT_WORKERS_MAX])
{
    const double now = bt_clock_ms();
    for (uint32_t i = 0; i < BT_WORKERS_MAX; i++) {
        const bt_handoff_peer *peer = &p->peers[i];
        bt_route_worker *w = &ret_workers[i];
        *w = (bt_route_worker){ .ready = peer->used && peer->link &&
                                          peer->status.state == BT_PREFILL_READY &&
                                          end <= peer->n_ctx };
        if (!peer->used) {
            continue;
        }
        w->compute = &peer->compute;
        w->link = &peer->transfer;
        w->lead_ms = peer->lead_ms;
        w->tail_ms = peer->tail_ms;
        w->chunk = peer->chunk;
        if (!w->ready) {
            continue;
        }
        bt_link_stats link;
        bt_link_stats_get(peer->link, &link);
        w->round_trip_ms = link.round_trip_ms_min;
        w->ahead = load_ahead(peer, end - first);
        w->n_known = tokens ? bt_route_cache_hint_find(&peer->known, tenant, tokens, end) : 0;
        w->idle_ms = peer->given_ms > 0 ? now - peer->given_ms : 0;
        w->n_passed = peer->n_passed;
    }
}

/* ---- a committed prompt ---- */

void bt_handoff_job_mark(bt_handoff_job *job)
{
    if (job->n_marks == BT_HANDOFF_MARKS) {
        for (uint32_t i = 0; i < BT_HANDOFF_MARKS / 2; i++) {
            job->marks[i] = job->marks[2 * i + 1];
        }
        job->n_marks = BT_HANDOFF_MARKS / 2;
    }
    job->marks[job->n_marks++] = (bt_handoff_mark){
        job->news_ms, (double)bt_wire_tally_bytes(job->ledger.tally)
    };
}

static void smooth(double *value, double sample)
{
    *value += (sample - *value) * (*value > 0 ? SMOOTH : 1);
}

static void learn_compute(bt_handoff_peer *peer, const bt_handoff_job *job,
                          const bt_wire_commit *m)
{
    const double now = bt_clock_ms();
    const bool alone = job->alone && peer->others_prompts == 0;
    const uint32_t from = m->n_cached < job->end ? m->n_cached : job->end;
    if (job->end - from < BT_HANDOFF_MEASURE_MIN ||
        (!alone && peer->learned_ms > 0 && now - peer->learned_ms < LEARN_SHARED_MS)) {
        return;
    }
    bt_cost_fit_put(&peer->compute, bt_route_steps(job->end - from, peer->chunk), job->end - from,
                    bt_cost_attended(from, job->end), (double)m->compute_us / 1000);
    peer->learned_ms = now;
}

/* Bytes that had come when the clock stood at `ms`, between two marks in proportion. */
static double bytes_at(const bt_handoff_job *job, double ms)
{
    double at_ms = job->rows_ms, at_bytes = job->first_bytes;
    for (uint32_t i = 0; i < job->n_marks; i++) {
        const bt_handoff_mark *m = &job->marks[i];
        if (m->ms >= ms) {
            const double span = m->ms - at_ms;
            return ms <= at_ms || span <= 0
                    ? at_bytes : at_bytes + (m->bytes - at_bytes) * (ms - at_ms) / span;
        }
        at_ms = m->ms;
        at_bytes = m->bytes;
    }
    return at_bytes;
}

/* So many bytes took at most so long: news only where that is less than was thought. */
static void learn_at_most(bt_handoff_peer *peer, double bytes, double ms)
{
    const double sent = bytes - BUFFERED_BYTES;
    if (sent > 0 && ms < bt_cost_fit_at(&peer->transfer, 1, sent, 0)) {
        bt_cost_fit_put(&peer->transfer, 1, sent, 0, ms);
    }
}

/* Bytes that came behind the first frame, while transfer_ms passed. */
static double bytes_timed(const bt_handoff_job *job)
{
    return (double)bt_wire_tally_bytes(job->ledger.tally) - job->first_bytes;
}

/* Rows that come after the last one was computed come as fast as the link is. Rows that kept pace
 * with computing say only that it is at least so fast. */
static void learn_link(bt_handoff_peer *peer, const bt_handoff_job *job, const bt_wire_commit *m,
                       double now_ms, bool link_knows)
{
    const bt_prefill_report *r = &job->report;
    const double bytes = (double)bt_wire_tally_bytes(job->ledger.tally);
    const double computed_ms = now_ms - r->exposed_ms;
    const double late = bytes - bytes_at(job, computed_ms);
    if (late >= LINK_BYTES_MIN && r->exposed_ms >= LINK_MS_MIN) {
        bt_cost_fit_put(&peer->transfer, 1, late - BUFFERED_BYTES, 0, r->exposed_ms);
        if (!link_knows) {
            smooth(&peer->bytes_per_ms, (late - BUFFERED_BYTES) / r->exposed_ms);
        }
    } else {
        learn_at_most(peer, bytes_timed(job), r->transfer_ms);
        learn_at_most(peer, late, r->exposed_ms + NOISE_MS);
    }
    if (late < LINK_BOUND * bytes) {
        smooth(&peer->tail_ms, r->exposed_ms);
    }
    const double lead = job->rows_ms - job->sent_ms - (double)m->queue_us / 1000;
    smooth(&peer->lead_ms, lead > 0 ? lead : 0);
}

void bt_handoff_peer_learn_part(bt_handoff_peer *peer, const bt_handoff_job *job)
{
    const uint32_t first = job->asked.position_first, n = job->complete - first;
    if (!job->sent || !job->alone || peer->others_prompts > 0 || n < BT_HANDOFF_MEASURE_MIN) {
        return;
    }
    const double now = bt_clock_ms(), attended = bt_cost_attended(first, job->complete);
    const double steps = bt_route_steps(n, peer->chunk);
    const double compute_ms = now - job->sent_ms, transfer_ms = now - job->rows_ms;
    if (compute_ms < bt_cost_fit_at(&peer->compute, steps, n, attended)) {
        bt_cost_fit_put(&peer->compute, steps, n, attended, compute_ms);
    }
    learn_at_most(peer, bytes_timed(job), transfer_ms);
}

void bt_handoff_peer_learn(bt_handoff_peer *peer, const bt_handoff_job *job,
                           const bt_wire_commit *m, const bt_link_stats *link)
{
    bt_prefill *p = peer->owner;
    const bt_prefill_report *r = &job->report;
    const uint32_t n = job->end - job->asked.position_first;

    peer->status.n_prompts++;
    peer->status.n_tokens += n;
    peer->status.n_bytes += bt_wire_tally_bytes(job->ledger.tally);
    p->status.n_prompts++;
    p->status.n_tokens += n;
    p->status.n_bytes += r->bytes;
    p->status.exposed_seconds += r->exposed_ms / 1000;
    p->status.transfer_seconds += r->transfer_ms / 1000;

    const bool link_knows = link->goodput_bytes_per_ms > 0;
    if (link_knows) {
        peer->bytes_per_ms = link->goodput_bytes_per_ms;
    }
    learn_compute(peer, job, m);
    if (job->alone && peer->others_prompts == 0) {
        learn_link(peer, job, m, bt_clock_ms(), link_knows);
    }
    /* Rows that waited for computing tell how fast that was: the link carries at least as much. */
    const double sent = bytes_timed(job) - BUFFERED_BYTES;
    const double seen = r->transfer_ms >= NOISE_MS ? sent / r->transfer_ms : 0;
    if (seen > 0) {
        smooth(&peer->least_bytes_per_ms, seen);
    }
    if (peer->bytes_per_ms > 0 && peer->bytes_per_ms < seen) {
        peer->bytes_per_ms = seen;
    }
    /* Less in its cache than we thought: it has thrown things out, and who knows what else. */
    if (m->n_cached + BT_CACHE_HINT_BLOCK <
        bt_route_cache_hint_find(&peer->known, job->tenant, job->tokens, job->end)) {
        bt_route_cache_hint_clear(&peer->known);
    }
    if ((job->tenant & BT_WIRE_TENANT_ALONE) == 0) {
        bt_route_cache_hint_put(&peer->known, job->tenant, job->tokens, job->end);
    }
}
