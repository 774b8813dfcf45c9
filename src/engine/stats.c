/* Counters of the engine's thread, published once a round; and what a request is told of itself. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/private.h"

void bt_engine_stats_publish(bt_engine *e)
{
    bt_engine_stats *s = &e->stats;
    s->n_running = e->n_active;
    s->n_parallel = e->options.n_parallel;
    s->n_waiting = 0;
    for (const bt_request *r = e->waiting; r; r = r->next) {
        s->n_waiting++;
    }
    s->kv_pages_used = bt_kv_pool_used(e->pool);
    s->kv_pages_total = bt_kv_pool_total(e->pool);
    s->kv_pages_cached = bt_kv_pool_idle(e->pool);
    s->kv_token_bytes = bt_kv_token_bytes(e->pool);
    if (e->states) {
        s->n_snapshots = bt_kv_snapshot_count(e->states);
        s->snapshot_bytes = bt_kv_snapshot_bytes(e->states);
        s->state_bytes = bt_kv_state_bytes(e->states);
    }
    s->prefill_tokens_per_second = 1000 * bt_engine_pace_prefill_rate(&e->pace);
    s->decode_tokens_per_second = 1000 * bt_engine_pace_decode_rate(&e->pace);
    pthread_mutex_lock(&e->stats_lock);
    e->published = *s;
    pthread_mutex_unlock(&e->stats_lock);
}

void bt_engine_stats_get(const bt_engine *e, bt_engine_stats *ret_stats)
{
    /* The lock guards; it is no part of what a reader calls the engine's value. */
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&e->stats_lock;
    pthread_mutex_lock(lock);
    *ret_stats = e->published;
    pthread_mutex_unlock(lock);
    lock = (pthread_mutex_t *)(uintptr_t)&e->mail_lock;
    pthread_mutex_lock(lock);
    ret_stats->n_queued = e->n_queued;
    pthread_mutex_unlock(lock);
}

void bt_engine_stats_begin(bt_engine *e, bt_request *r)
{
    e->stats.n_requests++;
    pthread_mutex_lock(&r->lock);
    r->stats.n_cached = r->n_cached;
    r->stats.queue_ms = r->admitted_ms - r->submit_ms;
    pthread_mutex_unlock(&r->lock);
}

/* Where the rows of the prompt came from, by what was really done. */
static void finish_report(const bt_request *r, bt_prefill_report *p)
{
    const uint32_t given = r->n_cached + r->n_remote;
    const uint32_t done = r->n_done < r->n_prompt ? r->n_done : r->n_prompt;
    p->n_cached = r->n_cached;
    p->n_remote = r->n_remote;
    p->n_local = done > given ? done - given : 0;
    p->queue_ms += r->stats.queue_ms;
    /* The prefix was usable when all of it was: what was prefilled here counts too. */
    if (p->n_local > 1 || p->total_ms <= 0) {
        p->total_ms = r->stats.prompt_ms;
    }
    if (r->n_remote > 0) {
        p->place = p->n_local > 1 ? BT_PREFILL_MIXED : BT_PREFILL_REMOTE;
        return;
    }
    const bool cached = r->n_cached > 0 && r->n_cached + 1 >= r->n_prompt;
    p->place = cached ? BT_PREFILL_CACHE : BT_PREFILL_LOCAL;
    if (p->reason[0] == '\0') {
        snprintf(p->reason, sizeof p->reason, "%s",
                 cached           ? "the prompt was in the prefix cache"
                 : r->prefill_only ? "this is the prefill worker"
                 : r->n_prompt < 2 ? "a prompt of one token is evaluated here"
                                   : "");
    }
}

static void count(bt_engine *e, const bt_request *r, bt_finish finish)
{
    bt_engine_stats *s = &e->stats;
    s->n_requests += !r->begun;        /* the others were counted when they began */
    s->n_cached_tokens += r->n_cached;
    s->n_remote_tokens += r->n_remote;
    s->n_predicted_tokens += r->stats.n_predicted;
    s->n_fallbacks += r->stats.prefill.fallback;
    s->n_cancelled += finish == BT_FINISH_CANCELLED;
    s->n_errors += finish == BT_FINISH_ERROR;
    s->prompt_seconds += r->stats.prompt_ms / 1000;
    s->predicted_seconds += r->stats.predicted_ms / 1000;
    s->n_tokens_max = r->n_tokens > s->n_tokens_max ? r->n_tokens : s->n_tokens_max;
}

void bt_engine_stats_finish(bt_engine *e, bt_request *r, bt_finish finish)
{
    const double now = bt_clock_ms();
    pthread_mutex_lock(&r->lock);
    bt_request_stats *s = &r->stats;
    s->n_cached = r->n_cached;
    s->n_predicted = r->n_tokens - r->n_prompt;
    if (!r->begun) {
        s->queue_ms = now - r->submit_ms;
    } else if (r->first_token_ms > 0) {
        s->prompt_ms = r->first_token_ms - r->admitted_ms;
        s->predicted_ms = now - r->first_token_ms;
        s->first_token_ms = r->first_token_ms - r->submit_ms;
    } else {
        s->prompt_ms = now - r->admitted_ms;
    }
    finish_report(r, &s->prefill);
    pthread_mutex_unlock(&r->lock);
    count(e, r, finish);
    bt_log(BT_LOG_DEBUG, "engine request %llu end %s prompt %u cached %u remote %u predicted %u "
           "queue_ms %.1f prompt_ms %.1f predicted_ms %.1f", (unsigned long long)r->id,
           bt_engine_finish_name(finish), s->n_prompt, s->n_cached, r->n_remote, s->n_predicted,
           s->queue_ms, s->prompt_ms, s->predicted_ms);
}
