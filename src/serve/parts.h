/* serve/parts.h - parts of answers that all APIs show alike: timings, prefill, settings,
 * probabilities. Threads: owned by one. */
#ifndef BT_SERVE_PARTS_H
#define BT_SERVE_PARTS_H

#include "serve/api.h"

void bt_serve_parts_timings(bt_json_writer *w, const char *key, const bt_request_stats *s);
void bt_serve_parts_prefill(bt_json_writer *w, const char *key, const bt_prefill_report *p);
/* Effective settings of a request; also the server's defaults (/props), then seed is not shown. */
void bt_serve_parts_settings(bt_json_writer *w, const char *key, const bt_body *b,
                             const uint32_t *seed);
/* "stop" or "length". */
const char *bt_serve_parts_finish(bt_finish finish);
void bt_serve_parts_tokens(bt_json_writer *w, const char *key, const uint32_t *ids, size_t n);
/* The prompt as text: what was sent when it was a string, else what its tokens say. */
void bt_serve_parts_prompt_text(const bt_answer_head *h, uint32_t prompt, bt_buf *to);

/* "prompt_progress", of a BEGIN or PROGRESS event. */
void bt_serve_parts_progress(bt_json_writer *w, const bt_choice *c, const bt_event *e);
/* Whether a token makes an event: it has text, or more than text was asked for. */
bool bt_serve_parts_token_shows(const bt_body *b, const bt_event *e);

typedef enum { BT_LOGPROBS_CHAT, BT_LOGPROBS_TEXT, BT_LOGPROBS_NATIVE } bt_logprobs_form;
typedef struct {
    const bt_choice_logprob *tokens;
    size_t                   n_tokens;
    const bt_token_logprob  *tops;      /* the tokens' top_first index into it */
    size_t                   offset;    /* characters before the first token */
} bt_logprobs_view;
void bt_serve_parts_logprobs(bt_json_writer *w, const char *key, bt_logprobs_form form,
                             const bt_tokenizer *tokenizer, const bt_logprobs_view *view);

#endif
