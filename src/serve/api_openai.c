/* Chat and text completions, as the OpenAI API has them. They differ in how a prompt comes in, and
 * in where a text stands: the tables at the end. */
#include <string.h>

#include "base/clock.h"
#include "serve/parts.h"

#define FINGERPRINT "baton-" BATON_VERSION

static bool is_chat(const bt_answer_head *h) { return h->body->api == &bt_serve_api_chat; }

static bt_logprobs_form logprobs_form(const bt_answer_head *h)
{
    return is_chat(h) ? BT_LOGPROBS_CHAT : BT_LOGPROBS_TEXT;
}

/* ---- parts ---- */

static void write_head(const bt_answer_head *h, bool whole, bt_json_writer *w)
{
    bt_json_string(w, "id", h->id);
    bt_json_string(w, "object",
                   !is_chat(h) ? "text_completion"
                   : whole     ? "chat.completion" : "chat.completion.chunk");
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
    bt_serve_parts_timings(w, "timings", &first->stats);
    bt_serve_parts_prefill(w, "prefill", &first->prefill);
}

/* What stands before the answer's own text when `echo` asks for it. */
static void put_echo(const bt_answer_head *h, uint32_t prompt, bt_buf *to)
{
    if (!h->body->echo) {
        return;
    }
    if (!is_chat(h)) {
        bt_serve_parts_prompt_text(h, prompt, to);
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

/* Why the answer ended; "length" alone does not tell a limit that was set from a full context. */
static void write_finish(const bt_choice *c, bt_json_writer *w)
{
    bt_json_string(w, "finish_reason", bt_serve_parts_finish(c->finish));
    bt_json_bool(w, "truncated", c->finish == BT_FINISH_CONTEXT);
}

static void write_choice(const bt_answer_head *h, const bt_choice *c, bt_json_writer *w)
{
    const bool chat = is_chat(h);
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
        bt_serve_parts_logprobs(w, "logprobs", logprobs_form(h),
                                h->serving->tokenizer, &view);
    } else {
        bt_json_null(w, "logprobs");
    }
    write_finish(c, w);
    if (h->body->return_tokens) {
        bt_serve_parts_tokens(w, "tokens", c->tokens.ids, c->tokens.count);
    }
    bt_json_close(w, '}');
}

static void put_whole(const bt_answer_head *h, bt_run *run, bt_json_writer *w)
{
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

/* ---- events ---- */

/* {head, "choices":[{"index":I, ...   closed by end_choices() and close_event() */
static bt_json_writer open_event(const bt_answer_head *h, uint32_t index, bt_buf *out)
{
    bt_json_writer w = bt_serve_event_open(out);
    bt_json_open(&w, NULL, '{');
    write_head(h, false, &w);
    bt_json_open(&w, "choices", '[');
    bt_json_open(&w, NULL, '{');
    bt_json_natural(&w, "index", index);
    return w;
}

static void close_choices(bt_json_writer *w)
{
    bt_json_close(w, '}');
    bt_json_close(w, ']');
}

static void close_event(bt_json_writer *w)
{
    bt_json_close(w, '}');
    bt_serve_event_close(w->to);
}

/* The delta, or the text: what this event adds to the answer. */
static void write_addition(const bt_answer_head *h, const char *text, size_t size,
                           bt_json_writer *w)
{
    if (!is_chat(h)) {
        bt_json_text(w, "text", text, size);
        return;
    }
    bt_json_open(w, "delta", '{');
    if (size > 0) {
        bt_json_text(w, "content", text, size);
    }
    bt_json_close(w, '}');
}

static void write_unfinished(bt_json_writer *w)
{
    bt_json_null(w, "finish_reason");
    close_choices(w);
}

static void write_role(const bt_buf *echo, bt_json_writer *w)
{
    bt_json_open(w, "delta", '{');
    bt_json_string(w, "role", "assistant");
    if (echo->size > 0) {
        bt_json_text(w, "content", echo->data, echo->size);
    } else {
        bt_json_null(w, "content");
    }
    bt_json_close(w, '}');
}

/* The role, or the echoed prompt. */
static void put_begin(const bt_answer_head *h, uint32_t index, bt_buf *out)
{
    if (!is_chat(h) && !h->body->echo) {
        return;
    }
    bt_buf echo;
    bt_buf_init(&echo, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    put_echo(h, index / h->body->n, &echo);
    bt_json_writer w = open_event(h, index, out);
    if (is_chat(h)) {
        write_role(&echo, &w);
    } else {
        write_addition(h, bt_buf_text(&echo), echo.size, &w);
    }
    bt_json_null(&w, "logprobs");
    write_unfinished(&w);
    close_event(&w);
    if (bt_buf_status(&echo) != BT_OK) {
        out->status = bt_buf_status(&echo);
    }
    bt_buf_done(&echo);
}

static void put_progress(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                         bt_buf *out)
{
    bt_json_writer w = open_event(h, c->index, out);
    write_addition(h, "", 0, &w);
    bt_json_null(&w, "logprobs");
    write_unfinished(&w);
    bt_serve_parts_progress(&w, c, e);
    close_event(&w);
}

static void write_extras(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                         bt_json_writer *w)
{
    const bool token = e->kind == BT_EVENT_TOKEN;
    if (h->body->want_logprobs && token) {
        const bt_choice_logprob one = { .id = e->token, .logprob = e->logprob, .n_top = e->n_top };
        const bt_logprobs_view view = { &one, 1, e->top, c->token_offset };
        bt_serve_parts_logprobs(w, "logprobs", logprobs_form(h), h->serving->tokenizer, &view);
    } else {
        bt_json_null(w, "logprobs");
    }
    if (h->body->return_tokens && token) {
        bt_serve_parts_tokens(w, "tokens", &e->token, 1);
    }
}

static void put_text(const bt_answer_head *h, const bt_choice *c, const bt_event *e, bt_buf *out)
{
    bt_json_writer w = open_event(h, c->index, out);
    write_addition(h, e->text, e->text_size, &w);
    write_extras(h, c, e, &w);
    write_unfinished(&w);
    if (h->body->timings_per_token) {
        const bt_request_stats s = bt_serve_choice_stats(c);
        bt_serve_parts_timings(&w, "timings", &s);
    }
    close_event(&w);
}

/* A token without text makes an event only where more than text was asked for. */
static void put_token(const bt_answer_head *h, const bt_choice *c, const bt_event *e, bt_buf *out)
{
    if (bt_serve_parts_token_shows(h->body, e)) {
        put_text(h, c, e, out);
    }
}

static void put_end(const bt_answer_head *h, bt_run *run, const bt_choice *c, const bt_event *e,
                    bool last, bt_buf *out)
{
    if (e->text_size > 0) {                /* what was held back; the last delta stays empty */
        put_text(h, c, e, out);
    }
    bt_json_writer w = open_event(h, c->index, out);
    write_addition(h, "", 0, &w);
    bt_json_null(&w, "logprobs");
    write_finish(c, &w);
    close_choices(&w);
    if (last) {
        write_measures(run, &w);
    }
    close_event(&w);
}

static void put_finish(const bt_answer_head *h, bt_run *run, bt_buf *out)
{
    if (h->body->include_usage) {
        bt_json_writer w = bt_serve_event_open(out);
        bt_json_open(&w, NULL, '{');
        write_head(h, false, &w);
        bt_json_open(&w, "choices", '[');
        bt_json_close(&w, ']');
        write_usage(h, run, &w);
        write_measures(run, &w);
        close_event(&w);
    }
    bt_buf_puts(out, "data: [DONE]");
    bt_serve_event_close(out);
}

/* ---- the fields that one of them has alone ---- */

static bool parse_chat(bt_body *b, const bt_fields *f)
{
    int64_t n = 0;
    bool wanted = false;
    bt_serve_fields_bool(f, "logprobs", &wanted);
    if (bt_serve_fields_integer(f, "top_logprobs", 0, BT_TOP_LOGPROBS_MAX, &n) && n > 0 &&
        !wanted) {
        bt_serve_problem_set(f->problem, 400, "top_logprobs",
                             "Field 'top_logprobs' needs 'logprobs' to be true");
    }
    if (wanted) {
        bt_serve_body_want_logprobs(b, (uint32_t)n);
    }
    return bt_serve_body_read_messages(b, f);
}

static bool parse_text(bt_body *b, const bt_fields *f)
{
    int64_t n = 0, best_of = 1;
    if (bt_serve_fields_integer(f, "logprobs", 0, BT_TOP_LOGPROBS_MAX, &n)) {
        bt_serve_body_want_logprobs(b, (uint32_t)n);
    }
    if (bt_serve_fields_integer(f, "best_of", 1, 1 << 20, &best_of) && best_of > (int64_t)b->n) {
        bt_serve_problem_set(f->problem, 400, "best_of",
                             "Field 'best_of': more than 'n' is not supported");
    }
    if (b->echo && b->want_logprobs) {
        bt_serve_problem_set(f->problem, 400, "echo",
                             "Field 'echo' with 'logprobs' is not supported: the prompt's own "
                             "probabilities are not computed");
    }
    return bt_serve_body_read_prompts(b, f, false);
}

#define OPENAI_EVENTS                                                                       \
    .whole = put_whole, .begin = put_begin, .progress = put_progress, .token = put_token,   \
    .end = put_end, .finish = put_finish, .problem = bt_serve_event_problem

const bt_api bt_serve_api_chat = { .id_prefix = "chatcmpl-", .parse = parse_chat, OPENAI_EVENTS };
const bt_api bt_serve_api_text = { .id_prefix = "cmpl-", .parse = parse_text, OPENAI_EVENTS };
