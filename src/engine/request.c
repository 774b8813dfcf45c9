/* Submitting: everything that a request can be refused for is found here, and everything that it
 * will need in memory is allocated here, on the client's thread. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/private.h"

/* A multiple of the queue: how many requests may be in it, with cancelled ones, which hold their
 * memory until the step that runs has ended. */
enum { LINE_PARTS = 4 };

bt_request_options bt_engine_request_defaults(void)
{
    return (bt_request_options){ .n_predict = UINT32_MAX, .sampling = bt_sample_defaults() };
}

/* ---- what may be wrong with a request ---- */

static bt_status check_length(const bt_engine *e, const bt_request_options *o, bt_error *err)
{
    const uint32_t n_ctx = e->options.n_ctx;
    if (o->n_tokens == 0) {
        return bt_fail(err, BT_E_BADINPUT, "the prompt is empty: at least one token is needed");
    }
    if (o->n_tokens > n_ctx || (o->n_tokens == n_ctx && !o->prefill_only)) {
        return bt_fail(err, BT_E_CONTEXT, "context_length_exceeded: the prompt of %u tokens "
                       "exceeds the available context size of %u tokens%s; shorten it or start "
                       "with a larger context", o->n_tokens, n_ctx,
                       o->n_tokens == n_ctx ? ", which must leave room for an answer" : "");
    }
    return BT_OK;
}

static bt_status check_borders(const bt_request_options *o, bt_error *err)
{
    if (o->n_borders > BT_BORDERS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "%u checkpoint positions in a prompt; at most %u",
                       o->n_borders, BT_BORDERS_MAX);
    }
    for (uint32_t i = 0; i < o->n_borders; i++) {
        if (o->borders[i] > o->n_tokens || (i > 0 && o->borders[i] <= o->borders[i - 1])) {
            return bt_fail(err, BT_E_BADINPUT, "checkpoint position %u of a prompt of %u tokens is "
                           "%u, but they must ascend and lie inside", i, o->n_tokens,
                           o->borders[i]);
        }
    }
    return BT_OK;
}

static bt_status check_options(const bt_engine *e, const bt_request_options *o, bt_error *err)
{
    for (uint32_t i = 0; i < o->n_tokens; i++) {
        if (o->tokens[i] >= e->n_vocab) {
            return bt_fail(err, BT_E_BADINPUT, "token %u of the prompt is %u; the vocabulary has "
                           "%u", i, o->tokens[i], e->n_vocab);
        }
    }
    BT_TRY(check_borders(o, err));
    if (o->n_stops > BT_STOPS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "%u stop strings; at most %u", o->n_stops, BT_STOPS_MAX);
    }
    for (uint32_t i = 0; i < o->n_stops; i++) {
        if (o->stops[i].size > BT_STOP_BYTES_MAX) {
            return bt_fail(err, BT_E_BADINPUT, "stop string %u has %zu bytes; at most %u", i,
                           o->stops[i].size, BT_STOP_BYTES_MAX);
        }
    }
    if (o->n_logprobs > BT_TOP_LOGPROBS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "%u log probabilities per token; at most %u",
                       o->n_logprobs, BT_TOP_LOGPROBS_MAX);
    }
    if (o->sampling.n_bias > BT_LOGIT_BIAS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "logit_bias names %zu tokens; at most %u",
                       o->sampling.n_bias, BT_LOGIT_BIAS_MAX);
    }
    if (o->n_cuts > BT_CUTS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "%u cuts of a prompt; at most %d", o->n_cuts,
                       (int)BT_CUTS_MAX);
    }
    if (o->push && (!o->prefill_only || !e->options.push)) {
        return bt_fail(err, BT_E_BADINPUT, "only a prefill-only request of a pushing engine can "
                       "push rows");
    }
    return BT_OK;
}

/* ---- memory ---- */

/* The request's bias, then what the engine itself bans. */
static bt_status create_sampler(bt_engine *e, const bt_request_options *o, bt_request *r,
                                bt_error *err)
{
    size_t n_suppressed = 0;
    const uint32_t *suppressed = NULL;
    if (e->options.tokenizer) {
        suppressed = bt_text_tokenizer_suppressed(e->options.tokenizer, &n_suppressed);
    }
    const size_t n_eog = o->ignore_eog ? e->n_eog : 0;
    bt_logit_bias *bias = bt_alloc_zero(BT_MEM_engine, o->sampling.n_bias + n_suppressed + n_eog,
                                        sizeof *bias);
    if (!bias) {
        return bt_fail_nomem(err, (o->sampling.n_bias + n_suppressed + n_eog) * sizeof *bias,
                             "a request's logit bias");
    }
    size_t n = o->sampling.n_bias;
    if (n > 0) {
        memcpy(bias, o->sampling.bias, n * sizeof *bias);
    }
    for (size_t i = 0; i < n_suppressed; i++) {
        if (suppressed[i] < e->n_vocab) {
            bias[n++] = (bt_logit_bias){ suppressed[i], -INFINITY };
        }
    }
    for (size_t i = 0; i < n_eog; i++) {
        bias[n++] = (bt_logit_bias){ e->eog[i], -INFINITY };
    }
    bt_sampler_options sampling = o->sampling;
    sampling.bias = bias;
    sampling.n_bias = n;
    const bt_status status =
            bt_sample_create(&sampling, e->n_vocab, e->options.n_ctx, &r->sampler, err);
    bt_free(bias);
    BT_TRY(status);
    r->seed = bt_sample_seed(r->sampler);
    for (uint32_t i = 0; i < o->n_tokens; i++) {
        bt_sample_accept(r->sampler, o->tokens[i]);
    }
    return BT_OK;
}

static bt_status create_stream(bt_engine *e, const bt_request_options *o, bt_request *r,
                               bt_error *err)
{
    if (!e->options.tokenizer || o->prefill_only) {
        return BT_OK;
    }
    BT_TRY(bt_text_stream_create(o->stops, o->n_stops, e->piece_max, &r->stream, err));
    return BT_OK;
}

static uint32_t tokens_max(const bt_engine *e, const bt_request_options *o)
{
    if (o->prefill_only) {
        return o->n_tokens;
    }
    const uint32_t room = e->options.n_ctx - o->n_tokens;
    return o->n_tokens + (o->n_predict < room ? o->n_predict : room);
}

static bt_status allocate(bt_engine *e, const bt_request_options *o, bt_request *r, bt_error *err)
{
    r->n_tokens_max = tokens_max(e, o);
    r->tokens = bt_alloc_zero(BT_MEM_engine, r->n_tokens_max, sizeof *r->tokens);
    r->borders = bt_alloc_zero(BT_MEM_engine, o->n_borders, sizeof *r->borders);
    if (!r->tokens || !r->borders) {
        return bt_fail_nomem(err, r->n_tokens_max * sizeof *r->tokens, "a request's tokens");
    }
    memcpy(r->tokens, o->tokens, o->n_tokens * sizeof *r->tokens);
    r->n_tokens = o->n_tokens;
    r->n_borders = o->n_borders;
    if (o->n_borders > 0) {
        memcpy(r->borders, o->borders, o->n_borders * sizeof *r->borders);
    }
    BT_TRY(bt_kv_lease_open(&r->lease, &e->memory, r->n_tokens_max, err));
    BT_TRY(create_stream(e, o, r, err));
    if (!o->prefill_only) {
        BT_TRY(create_sampler(e, o, r, err));
    }
    const size_t text_max = r->stream ? bt_text_stream_release_max(r->stream) : 0;
    return bt_engine_ring_open(&r->ring, text_max, r->n_logprobs, err);
}

static void destroy(bt_request *r)
{
    bt_sample_destroy(r->sampler);
    bt_text_stream_destroy(r->stream);
    bt_engine_ring_close(&r->ring);
    bt_free(r->tokens);
    bt_kv_lease_close(&r->lease);
    bt_free(r->borders);
    if (r->tag.unref) {
        r->tag.unref(r->tag.data);
    }
    bt_free(r);
}

void bt_engine_request_unref(bt_request *r)
{
    /* Releases what this holder wrote to the other, which acquires it before it frees. */
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) {
        bt_engine *e = r->engine;
        destroy(r);
        bt_engine_unref(e);
    }
}

static void copy_options(bt_engine *e, const bt_request_options *o, bt_request *r)
{
    r->prefill_only = o->prefill_only;
    r->has_push = o->push != NULL;
    if (o->push) {
        r->push = *o->push;
    }
    r->ignore_eog = o->ignore_eog;
    r->special = o->special;
    r->no_cache = o->no_cache;
    /* A prompt that is prefilled for somebody else comes without its last token, and both must
     * decide alike. */
    const uint32_t n_prompt = o->n_tokens + o->prefill_only;
    r->is_long = bt_model_is_long(bt_model_config_of(e->options.model), n_prompt);
    r->cache_key = r->is_long ? ~o->cache_key : o->cache_key;   /* their rows never meet */
    r->want_logprobs = o->want_logprobs || o->n_logprobs > 0;
    r->n_logprobs = o->n_logprobs;
    r->n_prompt = r->n_prefill = o->n_tokens;
    r->n_predict = o->prefill_only ? 0 : o->n_predict;
    r->n_prefill_chunk = o->n_prefill_chunk > 0 ? o->n_prefill_chunk : e->options.n_prefill_chunk;
    if (r->n_prefill_chunk > e->options.n_batch) {
        r->n_prefill_chunk = e->options.n_batch;
    }
    for (uint32_t i = 0; i < o->n_cuts; i++) {
        r->cuts[i] = o->cuts[i];
    }
    r->n_cuts = o->n_cuts;
    r->ring.on_event = o->on_event.fn;
    r->ring.on_event_context = o->on_event.context;
    r->seed = BT_SEED_RANDOM;
    r->stats.n_prompt = o->n_tokens;
}

/* ---- submit ---- */

static bt_status post(bt_engine *e, bt_request *r, bt_error *err)
{
    pthread_mutex_lock(&e->mail_lock);
    const bool closing = e->closing;
    /* Those that will find a free sequence as soon as the engine looks do not wait. */
    const uint32_t n_waiting = e->n_queued > e->n_free ? e->n_queued - e->n_free : 0;
    const uint64_t line_max = (uint64_t)LINE_PARTS * e->options.queue_max + e->options.n_parallel;
    const uint32_t n_in_line = e->n_in_line;
    const bool crowd = n_in_line >= line_max;
    const bool full = crowd || (e->n_queued >= e->n_free && n_waiting >= e->options.queue_max);
    if (!closing && !full) {
        r->submit_ms = bt_clock_ms();
        *e->inbox_end = r;
        e->inbox_end = &r->next;
        r->counted_round = e->mail_round;
        e->n_queued++;
        e->n_in_line++;
        e->woken = true;
        pthread_cond_signal(&e->mail);
    }
    pthread_mutex_unlock(&e->mail_lock);
    if (closing) {
        return bt_fail(err, BT_E_CLOSED, "the engine is shutting down");
    }
    if (full) {
        return bt_fail(err, BT_E_FULL, "%u requests are waiting already, %sthe most that may; try "
                       "again later", crowd ? n_in_line : n_waiting,
                       crowd ? "with those that were cancelled meanwhile " : "");
    }
    return BT_OK;
}

bt_status bt_engine_submit(bt_engine *e, const bt_request_options *o, bt_request **ret_request,
                           bt_error *err)
{
    BT_ASSERT(o->n_tokens == 0 || o->tokens);
    BT_ASSERT(o->n_stops == 0 || o->stops);
    BT_ASSERT(o->n_borders == 0 || o->borders);
    BT_ASSERT(o->n_cuts == 0 || o->cuts);
    BT_TRY(check_length(e, o, err));
    BT_TRY(check_options(e, o, err));
    if (e->options.file) {
        BT_TRY(bt_gguf_unchanged(e->options.file, err));
    }
    bt_request *r = bt_alloc_zero(BT_MEM_engine, 1, sizeof *r);
    if (!r) {
        return bt_fail_nomem(err, sizeof *r, "a request");
    }
    r->engine = e;
    r->id = atomic_fetch_add_explicit(&e->next_id, 1, memory_order_relaxed) + 1;
    atomic_init(&r->refs, 2);
    atomic_init(&r->cancelled, false);
    atomic_init(&r->released, false);
    copy_options(e, o, r);
    r->tag = o->tag;
    if (r->tag.ref) {
        r->tag.ref(r->tag.data);
    }
    bt_status status = allocate(e, o, r, err);
    if (status == BT_OK) {
        atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
        status = post(e, r, err);
        if (status != BT_OK) {
            bt_engine_unref(e);
        }
    }
    if (status != BT_OK) {
        destroy(r);
        return status;
    }
    *ret_request = r;
    return BT_OK;
}

/* ---- handles ---- */

/* A cancelled request frees its place in the queue at once. */
void bt_engine_request_cancel(bt_request *r)
{
    bt_engine *e = r->engine;
    pthread_mutex_lock(&e->mail_lock);
    if (!atomic_exchange_explicit(&r->cancelled, true, memory_order_relaxed) &&
        r->counted_round == e->mail_round) {
        BT_ASSERT(e->n_queued > 0);
        e->n_queued--;
    }
    e->woken = true;
    pthread_cond_signal(&e->mail);
    pthread_mutex_unlock(&e->mail_lock);
}

bt_status bt_engine_request_wait(bt_request *r, uint32_t timeout_ms, bt_event *ret_event)
{
    if (bt_engine_ring_give_back(&r->ring)) {
        bt_engine_wake(r->engine);
    }
    return bt_engine_ring_wait(&r->ring, timeout_ms, ret_event);
}

void bt_engine_request_release(bt_request *r)
{
    if (!r) {
        return;
    }
    bt_engine_ring_mute(&r->ring);
    bt_engine_request_cancel(r);
    /* Releases the client's last use of the pages to the engine, which gives them back. */
    atomic_store_explicit(&r->released, true, memory_order_release);
    bt_engine_wake(r->engine);
    bt_engine_request_unref(r);
}

void bt_engine_request_stats_get(const bt_request *r, bt_request_stats *ret_stats)
{
    /* The lock guards; it is no part of what a reader calls the request's value. */
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&r->ring.lock;
    pthread_mutex_lock(lock);
    *ret_stats = r->stats;
    pthread_mutex_unlock(lock);
}

uint64_t bt_engine_request_id(const bt_request *r)
{
    return r->id;
}

uint32_t bt_engine_request_seed(const bt_request *r)
{
    return r->seed;
}

void bt_engine_request_export_rows(const bt_request *r, uint32_t layer, uint32_t position,
                                   uint32_t n, void *ret_k, void *ret_v)
{
    BT_ASSERT(n <= r->n_prompt && position <= r->n_prompt - n);
    bt_kv_rows_export(r->engine->memory.pages, r->lease.pages, layer, position, n, ret_k, ret_v);
}

void bt_engine_request_export_state(const bt_request *r, uint32_t layer, uint64_t offset,
                                    uint64_t size, void *ret_data)
{
    BT_ASSERT(r->has_push && r->lease.slot != BT_NOTHING);
    bt_kv_state_export(r->engine->memory.states, r->lease.slot, layer, offset, size, ret_data);
}
