/* Counters of the engine's thread, published once a round; and the figures of one request. */
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
    s->kv_pages_used = bt_kv_pool_used(e->memory.pages);
    s->kv_pages = bt_kv_pool_total(e->memory.pages);
    s->kv_pages_cached = bt_kv_pool_idle(e->memory.pages);
    s->kv_page_bytes = bt_kv_token_bytes(e->memory.pages) * BT_KV_PAGE_TOKENS;
    if (e->memory.states) {
        s->n_snapshots = bt_kv_snapshot_count(e->memory.states);
        s->snapshot_bytes = bt_kv_snapshot_bytes(e->memory.states);
        s->state_bytes = bt_kv_state_bytes(e->memory.states);
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

void bt_engine_stats_preempted(bt_engine *e, bt_request *r)
{
    e->stats.n_preemptions++;
    pthread_mutex_lock(&r->ring.lock);
    r->stats.n_preemptions++;
    pthread_mutex_unlock(&r->ring.lock);
}

void bt_engine_stats_begin(bt_engine *e, bt_request *r)
{
    e->stats.n_requests++;
    pthread_mutex_lock(&r->ring.lock);
    r->stats.n_cached = r->n_cached;
    r->stats.queue_ms = r->admitted_ms - r->submit_ms;
    pthread_mutex_unlock(&r->ring.lock);
}

static void count(bt_engine *e, const bt_request *r, bt_finish finish)
{
    bt_engine_stats *s = &e->stats;
    s->n_requests += !r->begun;        /* the others were counted when they began */
    s->n_cached_tokens += r->n_cached;
    s->n_external_tokens += r->n_external;
    s->n_predicted_tokens += r->stats.n_predicted;
    s->n_requests_cancelled += finish == BT_FINISH_CANCELLED;
    s->n_requests_failed += finish == BT_FINISH_ERROR;
    s->n_contexts_full += finish == BT_FINISH_CONTEXT;
    s->prompt_seconds += r->stats.prompt_ms / 1000;
    s->predicted_seconds += r->stats.predicted_ms / 1000;
    s->n_tokens_max = r->n_tokens > s->n_tokens_max ? r->n_tokens : s->n_tokens_max;
}

void bt_engine_stats_finish(bt_engine *e, bt_request *r, bt_finish finish)
{
    const double now = bt_clock_ms();
    pthread_mutex_lock(&r->ring.lock);
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
    const bool whole = r->n_tokens > r->n_prompt || r->n_done > r->n_prompt;
    const uint32_t done = whole ? r->n_prompt : r->n_done;
    const uint32_t given = r->n_cached + r->n_external;
    s->n_external = r->n_external;
    s->n_local = done > given ? done - given : 0;
    pthread_mutex_unlock(&r->ring.lock);
    count(e, r, finish);
    bt_log(BT_LOG_DEBUG, "request_end", "request=%llu finish=%s prompt=%u cached=%u external=%u "
           "predicted=%u queue_ms=%.1f prompt_ms=%.1f predicted_ms=%.1f", (unsigned long long)r->id,
           bt_engine_finish_name(finish), s->n_prompt, s->n_cached, r->n_external, s->n_predicted,
           s->queue_ms, s->prompt_ms, s->predicted_ms);
}
