/* /completion: what scripts and editors of the llama.cpp world read. */
#include <string.h>

#include "serve/parts.h"

static const char *stop_type(bt_finish finish)
{
    switch (finish) {
    case BT_FINISH_EOG:  return "eos";
    case BT_FINISH_STOP: return "word";
    case BT_FINISH_LENGTH:
    case BT_FINISH_CONTEXT: return "limit";
    default: return "none";
    }
}

/* Everything that is known when a choice has ended; the object was opened. */
static void write_ending(const bt_answer_head *h, const bt_choice *c, bt_json_writer *w)
{
    const bt_stop *word = c->finish == BT_FINISH_STOP && c->stop_index >= 0 &&
                          (uint32_t)c->stop_index < h->body->n_stops
                              ? &h->body->stops[c->stop_index] : NULL;
    bt_buf prompt;
    bt_buf_init(&prompt, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    bt_serve_parts_prompt_text(h, c->prompt, &prompt);
    bt_json_bool(w, "stop", true);
    bt_json_string(w, "model", h->serving->alias);
    bt_json_natural(w, "tokens_predicted", c->stats.n_predicted);
    bt_json_natural(w, "tokens_evaluated", c->stats.n_prompt);
    bt_json_natural(w, "tokens_cached", c->stats.n_cached);
    bt_serve_parts_settings(w, "generation_settings", h->body, &c->seed);
    bt_json_text(w, "prompt", bt_buf_text(&prompt), prompt.size);
    bt_json_bool(w, "has_new_line", c->has_newline);
    bt_json_bool(w, "truncated", c->finish == BT_FINISH_CONTEXT);
    bt_json_string(w, "stop_type", stop_type(c->finish));
    bt_json_text(w, "stopping_word", word ? word->text : "", word ? word->size : 0);
    bt_serve_parts_timings(w, "timings", &c->stats);
    bt_serve_parts_prefill(w, "prefill", &c->prefill);
    if (bt_buf_status(&prompt) != BT_OK) {
        w->to->status = bt_buf_status(&prompt);
    }
    bt_buf_done(&prompt);
}

static void put_whole(const bt_answer_head *h, bt_run *run, bt_json_writer *w)
{
    const bool list = h->body->prompts_are_list || bt_serve_run_count(run) > 1;
    if (list) {
        bt_json_open(w, NULL, '[');
    }
    for (uint32_t i = 0; i < bt_serve_run_count(run); i++) {
        const bt_choice *c = bt_serve_run_choice(run, i);
        bt_json_open(w, NULL, '{');
        bt_json_natural(w, "index", c->index);
        bt_json_text(w, "content", bt_buf_text(&c->text), c->text.size);
        bt_serve_parts_tokens(w, "tokens", c->tokens.ids,
                              h->body->return_tokens ? c->tokens.count : 0);
        write_ending(h, c, w);
        if (h->body->want_logprobs) {
            const bt_logprobs_view view = { c->logprobs, c->n_logprobs, c->tops, 0 };
            bt_serve_parts_logprobs(w, "completion_probabilities", BT_LOGPROBS_NATIVE,
                                    h->serving->tokenizer, &view);
        }
        bt_json_close(w, '}');
    }
    if (list) {
        bt_json_close(w, ']');
    }
}

/* ---- events ---- */

static bt_json_writer open_event(const bt_choice *c, const char *text, size_t size, bt_buf *out)
{
    bt_json_writer w = bt_serve_event_open(out);
    bt_json_open(&w, NULL, '{');
    bt_json_natural(&w, "index", c->index);
    bt_json_text(&w, "content", text, size);
    return w;
}

static void close_event(bt_json_writer *w)
{
    bt_json_close(w, '}');
    bt_serve_event_close(w->to);
}

static void put_begin(const bt_answer_head *h, uint32_t index, bt_buf *out)
{
    (void)h, (void)index, (void)out;
}

static void put_progress(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                         bt_buf *out)
{
    (void)h;
    bt_json_writer w = open_event(c, "", 0, out);
    bt_json_bool(&w, "stop", false);
    bt_serve_parts_progress(&w, c, e);
    close_event(&w);
}

static void put_token(const bt_answer_head *h, const bt_choice *c, const bt_event *e, bt_buf *out)
{
    const bool token = e->kind == BT_EVENT_TOKEN;
    if (!bt_serve_parts_token_shows(h->body, e)) {
        return;
    }
    const bt_request_stats s = bt_serve_choice_stats(c);
    bt_json_writer w = open_event(c, e->text, e->text_size, out);
    bt_serve_parts_tokens(&w, "tokens", &e->token, h->body->return_tokens && token ? 1 : 0);
    bt_json_bool(&w, "stop", false);
    bt_json_natural(&w, "tokens_predicted", s.n_predicted);
    bt_json_natural(&w, "tokens_evaluated", s.n_prompt);
    if (h->body->want_logprobs && token) {
        const bt_choice_logprob one = { .id = e->token, .logprob = e->logprob, .n_top = e->n_top };
        const bt_logprobs_view view = { &one, 1, e->top, 0 };
        bt_serve_parts_logprobs(&w, "completion_probabilities", BT_LOGPROBS_NATIVE,
                                h->serving->tokenizer, &view);
    }
    if (h->body->timings_per_token) {
        bt_serve_parts_timings(&w, "timings", &s);
    }
    close_event(&w);
}

static void put_end(const bt_answer_head *h, bt_run *run, const bt_choice *c, const bt_event *e,
                    bool last, bt_buf *out)
{
    (void)run, (void)last;
    bt_json_writer w = open_event(c, e->text, e->text_size, out);
    bt_serve_parts_tokens(&w, "tokens", NULL, 0);
    write_ending(h, c, &w);
    close_event(&w);
}

/* The event with "stop": true was the last one. */
static void put_finish(const bt_answer_head *h, bt_run *run, bt_buf *out)
{
    (void)h, (void)run, (void)out;
}

static bool parse(bt_body *b, const bt_fields *f)
{
    return bt_serve_body_read_prompts(b, f, true);
}

const bt_api bt_serve_api_native = {
    .id_prefix = "cmpl-", .parse = parse, .whole = put_whole, .begin = put_begin,
    .progress = put_progress, .token = put_token, .end = put_end, .finish = put_finish,
    .problem = bt_serve_event_problem,
};
