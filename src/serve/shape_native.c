/* /completion: the shape that scripts and editors of the llama.cpp world read. */
#include <string.h>

#include "serve/shape.h"

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

static void write_tokens(const uint32_t *ids, size_t n, bool shown, bt_json_writer *w)
{
    bt_json_open(w, "tokens", '[');
    for (size_t i = 0; i < n && shown; i++) {
        bt_json_natural(w, NULL, ids[i]);
    }
    bt_json_close(w, ']');
}

/* Everything that is known when a choice has ended; the object was opened. */
static void write_ending(const bt_answer_head *h, const bt_choice *c, bt_json_writer *w)
{
    const bt_stop *word = c->finish == BT_FINISH_STOP && c->stop_index >= 0 &&
                          (uint32_t)c->stop_index < h->body->n_stops
                              ? &h->body->stops[c->stop_index] : NULL;
    bt_buf prompt;
    bt_buf_init(&prompt, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    bt_serve_shape_prompt_text(h, c->prompt, &prompt);
    bt_json_bool(w, "stop", true);
    bt_json_string(w, "model", h->serving->alias);
    bt_json_natural(w, "tokens_predicted", c->stats.n_predicted);
    bt_json_natural(w, "tokens_evaluated", c->stats.n_prompt);
    bt_json_natural(w, "tokens_cached", c->stats.n_cached);
    bt_serve_shape_settings(w, "generation_settings", h->body, &c->seed);
    bt_json_text(w, "prompt", bt_buf_text(&prompt), prompt.size);
    bt_json_bool(w, "has_new_line", c->has_newline);
    bt_json_bool(w, "truncated", c->finish == BT_FINISH_CONTEXT);
    bt_json_string(w, "stop_type", stop_type(c->finish));
    bt_json_text(w, "stopping_word", word ? word->text : "", word ? word->size : 0);
    bt_serve_shape_timings(w, "timings", &c->stats);
    bt_serve_shape_prefill(w, "prefill", &c->stats.prefill);
    if (bt_buf_status(&prompt) != BT_OK) {
        w->to->status = bt_buf_status(&prompt);
    }
    bt_buf_done(&prompt);
}

void bt_serve_shape_native_whole(const bt_answer_head *h, bt_run *run, bt_json_writer *w)
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
        write_tokens(c->tokens.ids, c->tokens.count, h->body->return_tokens, w);
        write_ending(h, c, w);
        if (h->body->want_logprobs) {
            const bt_logprobs_view view = { c->logprobs, c->n_logprobs, c->tops, 0 };
            bt_serve_shape_logprobs(w, "completion_probabilities", BT_LOGPROBS_NATIVE,
                                    h->serving->tokenizer, &view);
        }
        bt_json_close(w, '}');
    }
    if (list) {
        bt_json_close(w, ']');
    }
}

void bt_serve_shape_native_token(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                                 bt_json_writer *w)
{
    const bt_request_stats s = bt_serve_choice_stats(c);
    bt_json_open(w, NULL, '{');
    bt_json_natural(w, "index", c->index);
    bt_json_text(w, "content", e->text, e->text_size);
    write_tokens(&e->token, 1, h->body->return_tokens && e->kind == BT_EVENT_TOKEN, w);
    bt_json_bool(w, "stop", false);
    bt_json_natural(w, "tokens_predicted", s.n_predicted);
    bt_json_natural(w, "tokens_evaluated", s.n_prompt);
    if (h->body->want_logprobs && e->kind == BT_EVENT_TOKEN) {
        const bt_choice_logprob token = {.id = e->token, .logprob = e->logprob, .n_top = e->n_top};
        const bt_logprobs_view view = { &token, 1, e->top, 0 };
        bt_serve_shape_logprobs(w, "completion_probabilities", BT_LOGPROBS_NATIVE,
                                h->serving->tokenizer, &view);
    }
    if (h->body->timings_per_token) {
        bt_serve_shape_timings(w, "timings", &s);
    }
    bt_json_close(w, '}');
}

void bt_serve_shape_native_end(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                               bt_json_writer *w)
{
    bt_json_open(w, NULL, '{');
    bt_json_natural(w, "index", c->index);
    bt_json_text(w, "content", e->text, e->text_size);
    write_tokens(NULL, 0, false, w);
    write_ending(h, c, w);
    bt_json_close(w, '}');
}
