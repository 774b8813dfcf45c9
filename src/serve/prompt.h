/* serve/prompt.h - from a parsed body to token ids: template, tokenizer, biases.
 *
 * Lifetime: init, make, done. Threads: owned by one.
 */
#ifndef BT_SERVE_PROMPT_H
#define BT_SERVE_PROMPT_H

#include "serve/body.h"
#include "serve/server.h"

typedef struct {
    int            fd;                 /* the client's socket: work ends when it has left; -1 */
    bt_tokens      tokens[BT_PROMPTS_MAX];
    uint32_t       n;
    bt_logit_bias *bias;
    size_t         n_bias;
    /* Chats of models with recurrent states: where a later prompt may part from this one, that is
     * before the last message and before the generation prompt. */
    uint32_t       borders[2], n_borders;
} bt_prompts;

void bt_serve_prompts_init(bt_prompts *p, int fd);
void bt_serve_prompts_done(bt_prompts *p);
/* false: `problem` says what is wrong (unknown token ids, an empty prompt, no chat format, a text
 * that is too long whatever its tokens are; 499: the client has left). */
bool bt_serve_prompts_make(bt_prompts *p, const bt_body *body, const bt_serving *serving,
                           bt_problem *problem);
/* A string or a mixed array; appends to `to`. `specials`: add_special, for the first piece only. */
bool bt_serve_prompt_encode(const bt_serving *serving, const json_t *value,
                            const bt_encode_options *o, const char *field, bt_tokens *to,
                            bt_problem *problem);
/* The chat format's text for the body's messages; the caller's prompt was initialised. */
bool bt_serve_prompt_render(const bt_serving *serving, const bt_body *body,
                            bt_chat_prompt *ret_prompt, bt_problem *problem);

#endif
