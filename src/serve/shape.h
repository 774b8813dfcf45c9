/* serve/shape.h - answers as JSON, whole and in pieces, in the three shapes.
 *
 * A whole answer is written from a run that has ended; a piece from one event of it. Both take
 * names and numbers from one head, so that all pieces of a stream share id and time.
 * Threads: owned by one.
 */
#ifndef BT_SERVE_SHAPE_H
#define BT_SERVE_SHAPE_H

#include "serve/run.h"

typedef struct {
    bt_shape shape;
    char     id[40];                   /* "chatcmpl-..." */
    int64_t  created;
    const bt_serving *serving;
    const bt_body    *body;
    const bt_prompts *prompts;
} bt_answer_head;

void bt_serve_answer_head_init(bt_answer_head *h, const bt_run *run);

void bt_serve_shape_timings(bt_json_writer *w, const char *key, const bt_request_stats *s);
void bt_serve_shape_prefill(bt_json_writer *w, const char *key, const bt_prefill_report *p);

/* Effective settings of a request; also the server's defaults (/props), then seed is not shown. */
void bt_serve_shape_settings(bt_json_writer *w, const char *key, const bt_body *b,
                             const uint32_t *seed);
/* "stop" or "length". */
const char *bt_serve_shape_finish(bt_finish finish);
/* The prompt as text: what was sent when it was a string, else what its tokens say. */
void bt_serve_shape_prompt_text(const bt_answer_head *h, uint32_t prompt, bt_buf *to);

/* The whole answer; run->o.keep was set. Problems of choices are the caller's to look at first. */
void bt_serve_shape_whole(const bt_answer_head *h, bt_run *run, bt_json_writer *w);

/* Pieces: each is one JSON object. */
void bt_serve_shape_begin(const bt_answer_head *h, uint32_t index,
                          bt_json_writer *w); /* role, or echo */
void bt_serve_shape_progress(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                             bt_json_writer *w);
void bt_serve_shape_token(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                          bt_json_writer *w);
/* `last`: of all choices; carries timings and prefill. */
void bt_serve_shape_end(const bt_answer_head *h, bt_run *run, const bt_choice *c, const bt_event *e,
                        bool last, bt_json_writer *w);
void bt_serve_shape_usage(const bt_answer_head *h, bt_run *run, bt_json_writer *w);
/* Whether begin() has something to say in this shape. */
bool bt_serve_shape_has_begin(const bt_answer_head *h);
/* Whether a token event makes a piece: with text, or because more than text was asked for. */
bool bt_serve_shape_has_token(const bt_answer_head *h, const bt_event *e);

/* Parts that the shapes share (shape_parts.c). */
typedef enum { BT_LOGPROBS_CHAT, BT_LOGPROBS_TEXT, BT_LOGPROBS_NATIVE } bt_logprobs_form;
typedef struct {
    const bt_choice_logprob *tokens;
    size_t                   n_tokens;
    const bt_token_logprob  *tops;      /* the tokens' top_first index into it */
    size_t                   offset;    /* characters before the first token */
} bt_logprobs_view;
void bt_serve_shape_logprobs(bt_json_writer *w, const char *key, bt_logprobs_form form,
                             const bt_tokenizer *tokenizer, const bt_logprobs_view *view);
void bt_serve_shape_native_whole(const bt_answer_head *h, bt_run *run, bt_json_writer *w);
void bt_serve_shape_native_token(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                                 bt_json_writer *w);
void bt_serve_shape_native_end(const bt_answer_head *h, const bt_choice *c, const bt_event *e,
                               bt_json_writer *w);

#endif
