/* Chat and text completions, as the OpenAI API shapes them. */
#include "serve/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"

#define FINGERPRINT "baton-" BATON_VERSION

void bt_serve_answer_head_init(bt_answer_head *h, const bt_run *run)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const bt_run_options *o = bt_serve_run_options_of(run);
    uint8_t bytes[24];
    if (bt_random_bytes(bytes, sizeof bytes) != BT_OK) {
        /* Only an identifier: unique enough from the clock. */
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)(bt_clock_ns() >> (i % 8 * 4));
        }
    }
    *h = (bt_answer_head){ .shape = o->body->shape, .created = bt_clock_unix_seconds(),
                           .serving = o->serving, .body = o->body, .prompts = o->prompts };
    const int n =
            snprintf(h->id, sizeof h->id, "%s", h->shape == BT_SHAPE_CHAT ? "chatcmpl-" : "cmpl-");
    for (size_t i = 0; i < sizeof bytes; i++) {
        h->id[(size_t)n + i] = letters[bytes[i] % (sizeof letters - 1)];
    }
}

static void write_head(const bt_answer_head *h, bool whole, bt_json_writer *w)
{
    bt_json_string(w, "id", h->id);
    bt_json_string(w, "object",
                         h->shape == BT_SHAPE_TEXT ? "text_completion"
                         : whole                   ? "chat.completion"
                                                   : "chat.completion.chunk");
    bt_json_integer(w, "created", h->created);
    bt_json_string(w, "model", h->serving->alias);
    bt_json_string(w, "system_fingerprint", FINGERPRINT);
}

static void write_usage(const bt_answer_head *h, bt_run *run, bt_json_writer *w)
{
    uint64_t prompt = 0, answer = 0, cached = 0;
    for (uint32_t i = 0; i < bt_serve_run_count(run); i++) {
        const bt_choice *c = bt_serve_run_choice(run, i);
        answer += c->stats.n_predicted;
        if (i % h->body->n == 0) {          /* further choices share their prompt */
            prompt += c->stats.n_prompt;
            cached += c->stats.n_cached;
        }
    }
    bt_json_open(w, "usage", '{');
    bt_json_natural(w, "prompt_tokens", prompt);
    bt_json_natural(w, "completion_tokens", answer);
    bt_json_natural(w, "total_tokens", prompt + answer);
    bt_json_open(w, "prompt_tokens_details", '{');
    bt_json_natural(w, "cached_tokens", cached);
    bt_json_close(w, '}');
    bt_json_close(w, '}');
}

static void write_measures(bt_run *run, bt_json_writer *w)
{
    const bt_choice *first = bt_serve_run_choice(run, 0);
    bt_serve_shape_timings(w, "timings", &first->stats);
    bt_serve_shape_prefill(w, "prefill", &first->stats.prefill);
}

/* What stands before the answer's own text when `echo` asks for it. */
static void put_echo(const bt_answer_head *h, uint32_t prompt, bt_buf *to)
{
    if (!h->body->echo) {
        return;
    }
    if (h->shape == BT_SHAPE_TEXT) {
        bt_serve_shape_prompt_text(h, prompt, to);
    } else if (h->body->continue_final) {
        const bt_chat_message *last = &h->body->messages[h->body->n_messages - 1];
        bt_buf_put(to, last->content ? last->content : "", last->content_size);
    }
}

static void write_text(const bt_answer_head *h, const char *key, const bt_choice *c,
                       bt_json_writer *w)
{
    bt_buf text;
    bt_buf_init(&text, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    put_echo(h, c->prompt, &text);
    bt_buf_put(&text, c->text.data, c->text.size);
    bt_json_text(w, key, bt_buf_text(&text), text.size);
    if (bt_buf_status(&text) != BT_OK) {
        w->to->status = bt_buf_status(&text);
    }
    bt_buf_done(&text);
}

static void write_choice(const bt_answer_head *h, const bt_choice *c, bt_json_writer *w)
{
    const bool chat = h->shape == BT_SHAPE_CHAT;
    bt_json_open(w, NULL, '{');
    bt_json_natural(w, "index", c->index);
    if (chat) {
        bt_json_open(w, "message", '{');
        bt_json_string(w, "role", "assistant");
        write_text(h, "content", c, w);
        bt_json_close(w, '}');
    } else {
        write_text(h, "text", c, w);
    }
    if (h->body->want_logprobs) {
        const bt_logprobs_view view = { c->logprobs, c->n_logprobs, c->tops, 0 };
        bt_serve_shape_logprobs(w, "logprobs", chat ? BT_LOGPROBS_CHAT : BT_LOGPROBS_TEXT,
                                h->serving->tokenizer, &view);
    } else {
        bt_json_null(w, "logprobs");
    }
    bt_json_string(w, "finish_reason", bt_serve_shape_finish(c->finish));
    if (h->body->return_tokens) {
        bt_json_open(w, "tokens", '[');
        for (size_t i = 0; i < c->tokens.count; i++) {
            bt_json_natural(w, NULL, c->tokens.ids[i]);
        }
        bt_json_close(w, ']');
    }
    bt_json_close(w, '}');
}

void bt_serve_shape_whole(const bt_answer_head *h, bt_run *run, bt_json_writer *w)
{
    if (h->shape == BT_SHAPE_NATIVE) {
        bt_serve_shape_native_whole(h, run, w);
        return;
    }
    bt_json_open(w, NULL, '{');
    write_head(h, true, w);
    bt_json_open(w, "choices", '[');
    for (uint32_t i = 0; i < bt_serve_run_count(run); i++) {
        write_choice(h, bt_serve_run_choice(run, i), w);
    }
    bt_json_close(w, ']');
    write_usage(h, run, w);
    write_measures(run, w);
    bt_json_close(w, '}');
}

/* ---- pieces ---- */

/* {head, "choices":[{"index":I, ...   closed by end_piece() */
static void begin_piece(const bt_answer_head *h, uint32_t index, bt_json_writer *w)
{
    bt_json_open(w, NULL, '{');
    write_head(h, false, w);
    bt_json_open(w, "choices", '[');
    bt_json_open(w, NULL, '{');
    bt_json_natural(w, "index", index);
}

static void end_choices(const char *finish, bt_json_writer *w)
{
    bt_json_string(w, "finish_reason", finish);
    bt_json_close(w, '}');
    bt_json_close(w, ']');
}

/* The delta, or the text: what this piece adds to the answer. */
static void write_addition(const bt_answer_head *h, const char *text, size_t size,
                           bt_json_writer *w)
{
    if (h->shape == BT_SHAPE_TEXT) {
        bt_json_text(w, "text", text, size);
        return;
    }
    bt_json_open(w, "delta", '{');
    if (size > 0) {
        bt_json_text(w, "content", text, size);
    }
    bt_json_close(w, '}');
}

bool bt_serve_shape_has_begin(const bt_answer_head *h)
{
    return h->shape == BT_SHAPE_CHAT || (h->shape == BT_SHAPE_TEXT && h->body->echo);
}

void bt_serve_shape_begin(const bt_answer_head *h, uint32_t index, bt_json_writer *w)
{
    bt_buf echo;
    bt_buf_init(&echo, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    put_echo(h, index / h->body->n, &echo);
    begin_piece(h, index, w);
    if (h->shape == BT_SHAPE_CHAT) {
        bt_json_open(w, "delta", '{');
        bt_json_string(w, "role", "assistant");
        if (echo.size > 0) {
            bt_json_text(w, "content", echo.data, echo.size);
        } else {
            bt_json_null(w, "content");
        }
        bt_json_close(w, '}');
    } else {
        write_addition(h, bt_buf_text(&echo), echo.size, w);
    }
    bt_json_null(w, "logprobs");
    end_choices(NULL, w);
    bt_json_close(w, '}');
    if (bt_buf_status(&echo) != BT_OK) {
        w->to->status = bt_buf_status(&echo);
    }
    bt_buf_done(&echo);
}

void bt_serve_shape_progress(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                             bt_json_writer *w)
{
    const bt_request_stats s = bt_serve_choice_stats(c);
    if (h->shape == BT_SHAPE_NATIVE) {
        bt_json_open(w, NULL, '{');
        bt_json_natural(w, "index", c->index);
        bt_json_string(w, "content", "");
        bt_json_bool(w, "stop", false);
    } else {
        begin_piece(h, c->index, w);
        write_addition(h, "", 0, w);
        bt_json_null(w, "logprobs");
        end_choices(NULL, w);
    }
    bt_json_open(w, "prompt_progress", '{');
    bt_json_natural(w, "total", s.n_prompt);
    bt_json_natural(w, "cache", s.n_cached);
    bt_json_natural(w, "processed", e->kind == BT_EVENT_PROGRESS ? e->n_done : s.n_cached);
    bt_json_number(w, "time_ms", bt_clock_ms() - c->begun_ms);
    bt_json_close(w, '}');
    bt_json_close(w, '}');
}

bool bt_serve_shape_has_token(const bt_answer_head *h, const bt_event *e)
{
    const bt_body *b = h->body;
    return e->text_size > 0 || b->want_logprobs || b->return_tokens || b->timings_per_token;
}

static void write_token_extras(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                               bt_json_writer *w)
{
    if (h->body->want_logprobs && e->kind == BT_EVENT_TOKEN) {
        const bt_choice_logprob token = {.id = e->token, .logprob = e->logprob, .n_top = e->n_top};
        const bt_logprobs_view view = { &token, 1, e->top, c->token_offset };
        bt_serve_shape_logprobs(w, "logprobs",
                                h->shape == BT_SHAPE_CHAT ? BT_LOGPROBS_CHAT : BT_LOGPROBS_TEXT,
                                h->serving->tokenizer, &view);
    } else {
        bt_json_null(w, "logprobs");
    }
    if (h->body->return_tokens && e->kind == BT_EVENT_TOKEN) {
        bt_json_open(w, "tokens", '[');
        bt_json_natural(w, NULL, e->token);
        bt_json_close(w, ']');
    }
}

void bt_serve_shape_token(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                          bt_json_writer *w)
{
    if (h->shape == BT_SHAPE_NATIVE) {
        bt_serve_shape_native_token(h, c, e, w);
        return;
    }
    begin_piece(h, c->index, w);
    write_addition(h, e->text, e->text_size, w);
    write_token_extras(h, c, e, w);
    end_choices(NULL, w);
    if (h->body->timings_per_token) {
        const bt_request_stats s = bt_serve_choice_stats(c);
        bt_serve_shape_timings(w, "timings", &s);
    }
    bt_json_close(w, '}');
}

void bt_serve_shape_end(const bt_answer_head *h, bt_run *run, const bt_choice *c, const bt_event *e,
                        bool last, bt_json_writer *w)
{
    if (h->shape == BT_SHAPE_NATIVE) {
        bt_serve_shape_native_end(h, c, e, w);
        return;
    }
    begin_piece(h, c->index, w);
    /* Chat keeps the last delta empty; text that was still held back went out just before. */
    write_addition(h, "", 0, w);
    bt_json_null(w, "logprobs");
    end_choices(bt_serve_shape_finish(c->finish), w);
    if (last) {
        write_measures(run, w);
    }
    bt_json_close(w, '}');
}

void bt_serve_shape_usage(const bt_answer_head *h, bt_run *run, bt_json_writer *w)
{
    bt_json_open(w, NULL, '{');
    write_head(h, false, w);
    bt_json_open(w, "choices", '[');
    bt_json_close(w, ']');
    write_usage(h, run, w);
    write_measures(run, w);
    bt_json_close(w, '}');
}
