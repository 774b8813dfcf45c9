/* Runs the planned step and deals out what came of it. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/private.h"
#include "engine/state.h"

/* ---- while the device runs ---- */

/* On a device thread, between two ops; the plan does not change meanwhile. */
static void on_mark(void *context, uint32_t layer)
{
    const bt_engine *e = context;
    for (uint32_t i = 0; i < e->plan.n_parts; i++) {
        const bt_step_part *part = &e->plan.parts[i];
        const bt_request *r = part->request;
        if (r->has_push) {
            r->push.layer_done(r->push.context, layer, part->position, part->n_rows);
        }
    }
}

static bt_status run(bt_engine *e, bt_error *err)
{
    const bt_plan *p = &e->plan;
    const bt_step step = {
        .n_rows = p->n_rows, .tokens = p->tokens, .positions = p->positions,
        .row_sequence = p->row_sequence, .n_sequences = p->n_parts, .sequences = p->sequences,
        .n_logit_rows = p->n_logit_rows, .logit_rows = p->logit_rows,
        .kv = bt_kv_pool_layout(e->memory.pages),
        .state = e->memory.states ? bt_kv_state_pool_layout(e->memory.states) : NULL,
        .on_mark = on_mark, .mark_context = e,
    };
    return bt_device_run(e->options.device, e->tape, &step, err);
}

/* ---- a token ---- */

static bool is_eog(const bt_engine *e, uint32_t token)
{
    size_t low = 0, high = e->n_eog;           /* ascending */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (e->eog[middle] < token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < e->n_eog && e->eog[low] == token;
}

/* The bytes of a token; ids beyond the tokenizer's (padding of the matrix) have none. */
static const char *piece_of(const bt_engine *e, const bt_request *r, uint32_t token,
                            size_t *ret_size)
{
    if (token >= bt_text_tokenizer_count(e->options.tokenizer)) {
        *ret_size = 0;
        return "";
    }
    return bt_text_tokenizer_piece(e->options.tokenizer, token, r->special, ret_size);
}

/* Appends the token and tells the consumer; gives the index of a stop string that is complete. */
static int put_token(bt_engine *e, bt_request *r, uint32_t token, const float *logits)
{
    char *text;
    bt_token_logprob *top;
    int stop = -1;
    BT_ASSERT(r->n_tokens < r->n_tokens_max);
    r->tokens[r->n_tokens++] = token;
    bt_event *event = bt_engine_ring_slot(&r->ring, &text, &top);
    event->kind = BT_EVENT_TOKEN;
    event->token = token;
    event->text = text;
    if (r->stream) {
        size_t size;
        const char *piece = piece_of(e, r, token, &size);
        event->text_size = bt_text_stream_put(r->stream, piece, size, text, &stop);
    }
    if (r->want_logprobs) {
        bt_sample_logprobs(r->sampler, logits, token, r->n_logprobs, top, &event->logprob);
        event->top = top;
        event->n_top = r->n_logprobs;
    }
    bt_engine_ring_put(&r->ring);
    return stop;
}

static void after_token(bt_engine *e, bt_request *r, int stop)
{
    const uint32_t n_predicted = r->n_tokens - r->n_prompt;
    if (stop >= 0) {
        bt_engine_sequence_end_stop(e, r, stop);
    } else if (n_predicted >= r->n_predict) {
        bt_engine_sequence_end(e, r, BT_FINISH_LENGTH, BT_OK, "");
    } else if (r->n_tokens >= e->options.n_ctx) {
        char message[160];
        snprintf(message, sizeof message, "the context of %u tokens is full: %u of the prompt, %u "
                 "of the answer", e->options.n_ctx, r->n_prompt, n_predicted);
        bt_log(BT_LOG_DEBUG, "context_full", "request=%llu n_prompt=%u n_predicted=%u n_ctx=%u",
               (unsigned long long)r->id, r->n_prompt, n_predicted, e->options.n_ctx);
        bt_engine_sequence_end(e, r, BT_FINISH_CONTEXT, BT_OK, message);
    } else {
        r->phase = BT_PHASE_DECODE;
    }
}

static void sample(bt_engine *e, bt_request *r, const float *logits)
{
    bt_error err = { 0 };
    uint32_t token = 0;
    if (r->first_token_ms <= 0) {
        r->first_token_ms = bt_clock_ms();
    }
    const bt_status status = bt_sample_pick(r->sampler, logits, &token, &err);
    if (status != BT_OK) {
        bt_log(BT_LOG_WARN, "request_failed", "request=%llu reason=%s", (unsigned long long)r->id,
               err.text);
        if (status == BT_E_DEVICE) {
            bt_engine_cache_forget(e, r);
        }
        bt_engine_sequence_end(e, r, BT_FINISH_ERROR, status, err.text);
        return;
    }
    bt_engine_cache_enter(r);
    if (!r->ignore_eog && is_eog(e, token)) {
        bt_engine_sequence_end(e, r, BT_FINISH_EOG, BT_OK, "");
        return;
    }
    after_token(e, r, put_token(e, r, token, logits));
}

/* ---- after the step ---- */

static void advance(bt_engine *e, const bt_step_part *part)
{
    bt_request *r = part->request;
    const bool prefill = part->position < r->n_prefill, answering = r->n_tokens > r->n_prompt;
    r->n_done += part->n_rows;
    bt_engine_state_advanced(e, r, part->position);
    if (r->has_push) {
        r->push.chunk_done(r->push.context, r->n_done);
    }
    if (prefill && !answering) {
        e->stats.n_prompt_tokens += part->n_rows;
        bt_engine_ring_put_progress(&r->ring, r->n_done);
    } else if (prefill) {                /* the newest token was never evaluated */
        e->stats.n_recomputed_tokens += part->n_rows - (r->n_done == r->n_prefill);
    }
    if (r->ticket != 0 && r->n_done == r->n_prompt) {
        bt_engine_external_cancel(e, r, BT_EXTERNAL_LOCAL_FIRST);
    }
    if (part->logit_row != BT_NOTHING) {
        uint64_t stride;
        const bt_rows result = bt_ops_tape_result(e->tape);
        const float *rows = bt_device_read_rows(e->options.device, result, &stride);
        sample(e, r, rows + part->logit_row * stride);
        return;
    }
    bt_engine_cache_enter(r);
    if (r->n_done == r->n_prefill) {
        bt_engine_sequence_end(e, r, BT_FINISH_LENGTH, BT_OK, "");
    }
}

/* The step's rows mean nothing; what was done before stays right, but these requests are lost. */
static void fail_all(bt_engine *e, bt_status status, const char *why)
{
    char message[BT_ERROR_TEXT_MAX];
    snprintf(message, sizeof message, "the device failed: %.280s", why);
    bt_log(BT_LOG_WARN, "step_failed", "rows=%u reason=%s", e->plan.n_rows, why);
    for (uint32_t i = 0; i < e->plan.n_parts; i++) {
        bt_engine_sequence_end(e, e->plan.parts[i].request, BT_FINISH_ERROR,
                               status == BT_OK ? BT_E_DEVICE : status, message);
    }
}

/* Whoever takes offers learns what prefill costs here: each prompt's share of the step, above what
 * decoding took. */
static void tell_cost(bt_engine *e, double ms)
{
    const bt_plan *p = &e->plan;
    const double rest = ms - bt_engine_pace_decode_ms(&e->pace, p->n_decode_rows);
    if (!e->external.measured || p->n_prefill_rows == 0 || rest <= 0) {
        return;
    }
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const bt_step_part *part = &p->parts[i];
        if (part->request->phase == BT_PHASE_PREFILL) {
            e->external.measured(e->external.context, part->position, part->n_rows,
                                 rest * part->n_rows / p->n_prefill_rows);
        }
    }
}

void bt_engine_step_run(bt_engine *e)
{
    bt_error err = { 0 };
    const bt_plan *p = &e->plan;
    const double start = bt_clock_ms();
    const bt_status status = run(e, &err);
    const double ms = bt_clock_ms() - start;
    e->stats.n_steps++;
    if (status != BT_OK) {
        fail_all(e, status, err.text);
        return;
    }
    tell_cost(e, ms);
    bt_engine_pace_note(&e->pace, p->n_decode_rows, p->n_prefill_rows, p->n_keys, ms);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        advance(e, &p->parts[i]);
    }
}
