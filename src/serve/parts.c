#include "serve/parts.h"

#include <float.h>
#include <string.h>

#include "base/clock.h"

/* Rates come from intervals: n tokens after the first one span n - 1 of them. Nothing is shown as
 * infinite when there was nothing to measure. */
void bt_serve_parts_timings(bt_json_writer *w, const char *key, const bt_request_stats *s)
{
    const uint32_t prompt_n = s->n_prompt > s->n_cached ? s->n_prompt - s->n_cached : 0;
    const uint32_t steps = s->n_predicted > 1 ? s->n_predicted - 1 : 0;
    const double each = prompt_n ? s->prompt_ms / prompt_n : 0;
    const double step = steps ? s->predicted_ms / steps : 0;
    bt_json_open(w, key, '{');
    bt_json_natural(w, "cache_n", s->n_cached);
    bt_json_natural(w, "prompt_n", prompt_n);
    bt_json_number(w, "prompt_ms", s->prompt_ms);
    bt_json_number(w, "prompt_per_token_ms", each);
    bt_json_number(w, "prompt_per_second", each > 0 ? 1e3 / each : 0);
    bt_json_natural(w, "predicted_n", s->n_predicted);
    bt_json_number(w, "predicted_ms", s->predicted_ms);
    bt_json_number(w, "predicted_per_token_ms", step);
    bt_json_number(w, "predicted_per_second", step > 0 ? 1e3 / step : 0);
    bt_json_number(w, "queue_ms", s->queue_ms);
    bt_json_number(w, "first_token_ms", s->first_token_ms);
    bt_json_close(w, '}');
}

static void write_forecast(bt_json_writer *w, const bt_prefill_forecast *f)
{
    if (!f->made) {
        bt_json_null(w, "forecast");
        return;
    }
    bt_json_open(w, "forecast", '{');
    bt_json_natural(w, "position_first", f->position_first);
    bt_json_natural(w, "n_tokens", f->n_tokens);
    bt_json_number(w, "local_ms", f->local_ms);
    bt_json_number(w, "local_tokens_per_second", f->local_tokens_per_second);
    bt_json_natural(w, "local_tokens_ahead", f->local_tokens_ahead);
    bt_json_number(w, "local_decode_ms", f->local_decode_ms);
    bt_json_natural(w, "n_workers", f->n_workers);
    bt_json_open(w, "workers", '[');
    for (uint32_t i = 0; i < f->n_workers && i < BT_FORECAST_WORKERS_MAX; i++) {
        const bt_forecast_worker *of = &f->workers[i];
        bt_json_open(w, NULL, '{');
        bt_json_string(w, "worker", of->worker);
        bt_json_number(w, "ms", of->ms);
        bt_json_number(w, "tokens_per_second", of->tokens_per_second);
        bt_json_number(w, "goodput_bytes_per_second", of->goodput_bytes_per_second);
        bt_json_number(w, "round_trip_ms", of->round_trip_ms);
        bt_json_natural(w, "tokens_ahead", of->tokens_ahead);
        bt_json_natural(w, "n_known", of->n_known);
        bt_json_close(w, '}');
    }
    bt_json_close(w, ']');
    bt_json_close(w, '}');
}

void bt_serve_parts_prefill(bt_json_writer *w, const char *key, const bt_prefill_report *p)
{
    bt_json_open(w, key, '{');
    bt_json_string(w, "place", bt_handoff_place_name(p->place));
    bt_json_string(w, "worker", p->worker[0] ? p->worker : NULL);
    bt_json_string(w, "reason", p->reason);
    bt_json_bool(w, "fallback", p->fallback);
    bt_json_bool(w, "hedged", p->hedged);
    bt_json_natural(w, "n_cached", p->n_cached);
    bt_json_natural(w, "n_remote", p->n_remote);
    bt_json_natural(w, "n_local", p->n_local);
    bt_json_natural(w, "retries", p->retries);
    bt_json_natural(w, "bytes", p->bytes);
    bt_json_string(w, "wire_type", p->wire_type[0] ? p->wire_type : NULL);
    bt_json_number(w, "queue_ms", p->queue_ms);
    bt_json_number(w, "compute_ms", p->compute_ms);
    bt_json_number(w, "transfer_ms", p->transfer_ms);
    bt_json_number(w, "exposed_ms", p->exposed_ms);
    bt_json_number(w, "import_ms", p->import_ms);
    bt_json_number(w, "overlap_percent", 100 * p->hidden);
    bt_json_number(w, "total_ms", p->total_ms);
    write_forecast(w, &p->forecast);
    bt_json_close(w, '}');
}

void bt_serve_parts_settings(bt_json_writer *w, const char *key, const bt_body *b,
                             const uint32_t *seed)
{
    const bt_sampler_options *s = &b->sampling;
    bt_json_open(w, key, '{');
    bt_json_integer(w, "n_predict", b->n_predict);
    bt_json_integer(w, "max_tokens", b->n_predict);
    if (seed) {
        bt_json_natural(w, "seed", *seed);
    }
    bt_json_number(w, "temperature", (double)s->temperature);
    bt_json_integer(w, "top_k", s->top_k);
    bt_json_number(w, "top_p", (double)s->top_p);
    bt_json_number(w, "min_p", (double)s->min_p);
    bt_json_natural(w, "min_keep", s->min_keep);
    bt_json_integer(w, "repeat_last_n", s->penalty_last_n);
    bt_json_number(w, "repeat_penalty", (double)s->penalty_repeat);
    bt_json_number(w, "presence_penalty", (double)s->penalty_presence);
    bt_json_number(w, "frequency_penalty", (double)s->penalty_frequency);
    bt_json_bool(w, "ignore_eos", b->ignore_eog);
    bt_json_bool(w, "stream", b->stream);
    bt_json_natural(w, "n_probs", b->n_logprobs);
    bt_json_open(w, "stop", '[');
    for (uint32_t i = 0; i < b->n_stops; i++) {
        bt_json_text(w, NULL, b->stops[i].text, b->stops[i].size);
    }
    bt_json_close(w, ']');
    bt_json_close(w, '}');
}

const char *bt_serve_parts_finish(bt_finish finish)
{
    return finish == BT_FINISH_EOG || finish == BT_FINISH_STOP ? "stop" : "length";
}

void bt_serve_parts_tokens(bt_json_writer *w, const char *key, const uint32_t *ids, size_t n)
{
    bt_json_open(w, key, '[');
    for (size_t i = 0; i < n; i++) {
        bt_json_natural(w, NULL, ids[i]);
    }
    bt_json_close(w, ']');
}

void bt_serve_parts_prompt_text(const bt_answer_head *h, uint32_t prompt, bt_buf *to)
{
    const json_t *value = prompt < h->body->n_prompts ? h->body->prompts[prompt] : NULL;
    if (json_is_string(value)) {
        bt_buf_put(to, json_string_value(value), json_string_length(value));
        return;
    }
    const bt_tokens *tokens = &h->prompts->tokens[prompt];
    bt_text_tokenizer_decode(h->serving->tokenizer, tokens->ids, tokens->count, false, to);
}

void bt_serve_parts_progress(bt_json_writer *w, const bt_choice *c, const bt_event *e)
{
    const bt_request_stats s = bt_serve_choice_stats(c);
    bt_json_open(w, "prompt_progress", '{');
    bt_json_natural(w, "total", s.n_prompt);
    bt_json_natural(w, "cache", s.n_cached);
    bt_json_natural(w, "processed", e->kind == BT_EVENT_PROGRESS ? e->n_done : s.n_cached);
    bt_json_number(w, "time_ms", bt_clock_ms() - c->begun_ms);
    bt_json_close(w, '}');
}

bool bt_serve_parts_token_shows(const bt_body *b, const bt_event *e)
{
    return e->text_size > 0 || b->want_logprobs || b->return_tokens || b->timings_per_token;
}

/* ---- probabilities ---- */

static double finite(float logprob)
{
    return logprob >= -FLT_MAX ? (double)logprob : -(double)FLT_MAX;     /* NaN too */
}

static void write_token(bt_json_writer *w, const bt_tokenizer *tokenizer, bt_logprobs_form form,
                        uint32_t id, float logprob)
{
    size_t size;
    const char *piece = bt_text_tokenizer_piece(tokenizer, id, true, &size);
    if (form == BT_LOGPROBS_NATIVE) {
        bt_json_natural(w, "id", id);
    }
    bt_json_text(w, "token", piece, size);
    bt_json_number(w, "logprob", finite(logprob));
    bt_json_open(w, "bytes", '[');
    for (size_t i = 0; i < size; i++) {
        bt_json_natural(w, NULL, (unsigned char)piece[i]);
    }
    bt_json_close(w, ']');
}

static void write_tokens(bt_json_writer *w, const char *key, bt_logprobs_form form,
                         const bt_tokenizer *tokenizer, const bt_logprobs_view *view)
{
    bt_json_open(w, key, '[');
    for (size_t i = 0; i < view->n_tokens; i++) {
        const bt_choice_logprob *t = &view->tokens[i];
        bt_json_open(w, NULL, '{');
        write_token(w, tokenizer, form, t->id, t->logprob);
        bt_json_open(w, "top_logprobs", '[');
        for (uint32_t k = 0; k < t->n_top; k++) {
            const bt_token_logprob *top = &view->tops[t->top_first + k];
            bt_json_open(w, NULL, '{');
            write_token(w, tokenizer, form, top->id, top->logprob);
            bt_json_close(w, '}');
        }
        bt_json_close(w, ']');
        bt_json_close(w, '}');
    }
    bt_json_close(w, ']');
}

static void put_piece(bt_json_writer *w, const bt_tokenizer *tokenizer, uint32_t id, bool as_key)
{
    size_t size;
    const char *piece = bt_text_tokenizer_piece(tokenizer, id, true, &size);
    if (as_key) {
        bt_json_key(w, piece, size);
    } else {
        bt_json_text(w, NULL, piece, size);
    }
}

/* The older form: parallel arrays. */
static void write_arrays(bt_json_writer *w, const char *key, const bt_tokenizer *tokenizer,
                         const bt_logprobs_view *view)
{
    size_t offset = view->offset;
    bt_json_open(w, key, '{');
    bt_json_open(w, "tokens", '[');
    for (size_t i = 0; i < view->n_tokens; i++) {
        put_piece(w, tokenizer, view->tokens[i].id, false);
    }
    bt_json_close(w, ']');
    bt_json_open(w, "token_logprobs", '[');
    for (size_t i = 0; i < view->n_tokens; i++) {
        bt_json_number(w, NULL, finite(view->tokens[i].logprob));
    }
    bt_json_close(w, ']');
    bt_json_open(w, "top_logprobs", '[');
    for (size_t i = 0; i < view->n_tokens; i++) {
        const bt_choice_logprob *t = &view->tokens[i];
        bt_json_open(w, NULL, '{');
        for (uint32_t k = 0; k < t->n_top; k++) {
            put_piece(w, tokenizer, view->tops[t->top_first + k].id, true);
            bt_json_number(w, NULL, finite(view->tops[t->top_first + k].logprob));
        }
        bt_json_close(w, '}');
    }
    bt_json_close(w, ']');
    bt_json_open(w, "text_offset", '[');
    for (size_t i = 0; i < view->n_tokens; i++) {
        size_t size;
        const char *piece = bt_text_tokenizer_piece(tokenizer, view->tokens[i].id, true, &size);
        bt_json_natural(w, NULL, offset);
        for (size_t k = 0; k < size; k++) {
            offset += ((unsigned char)piece[k] & 0xC0) != 0x80;
        }
    }
    bt_json_close(w, ']');
    bt_json_close(w, '}');
}

void bt_serve_parts_logprobs(bt_json_writer *w, const char *key, bt_logprobs_form form,
                             const bt_tokenizer *tokenizer, const bt_logprobs_view *view)
{
    if (form == BT_LOGPROBS_TEXT) {
        write_arrays(w, key, tokenizer, view);
    } else if (form == BT_LOGPROBS_NATIVE) {
        write_tokens(w, key, form, tokenizer, view);
    } else {
        bt_json_open(w, key, '{');
        write_tokens(w, "content", form, tokenizer, view);
        bt_json_null(w, "refusal");
        bt_json_close(w, '}');
    }
}
