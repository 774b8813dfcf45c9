/* text/chat.h - messages to a prompt, in the format that the model was trained on.
 *
 * The format is recognised from the model's own template (ChatML, Llama 3, Gemma shapes), and what
 * is rendered is what the template would render (docs/tokenizers.md). A template that holds
 * anything beyond the known shapes is refused with the names of those known; the place for a full
 * template engine is the `render` member behind this header.
 * The prompt comes as spans that say who wrote them, so that "<|im_end|>" typed by a user stays
 * text.
 *
 * Lifetime: create to destroy; independent of the file. Threads: immutable after create.
 */
#ifndef BT_TEXT_CHAT_H
#define BT_TEXT_CHAT_H

#include "text/tokenizer.h"

typedef struct bt_chat_format bt_chat_format;

typedef struct {
    const char *role;          /* "system", "user", "assistant", "developer", "tool" */
    const char *content;       /* UTF-8, may hold NUL; NULL is empty */
    size_t      content_size;
} bt_chat_message;

typedef struct {
    bool add_generation_prompt;
    bool continue_final; /* leave the last assistant message open; no generation prompt then */
    int64_t now_unix_seconds;  /* for templates that print the date, in local time; 0: the clock */
} bt_chat_options;

/* A rendered prompt; spans point into text. */
typedef struct {
    bt_buf        text;
    bt_text_span *spans;
    size_t        n_spans, spans_capacity;
} bt_chat_prompt;

/* From the file's template, or from `override` (a known name: chatml, llama3, gemma; or template
 * text). `tokenizer` names BOS (NULL: none) and must outlive the format.
 * Unrecognised: BT_E_UNSUPPORTED with the names known. No template at all: the same. */
BT_MUST_CHECK bt_status bt_text_chat_format_create(const bt_gguf *file,
                                                   const bt_tokenizer *tokenizer,
                                                   const char *override,
                                                   bt_chat_format **ret_format, bt_error *err);
void bt_text_chat_format_destroy(bt_chat_format *f);
const char *bt_text_chat_format_name(const bt_chat_format *f);
/* The template's own text (for /props); "" if none. */
const char *bt_text_chat_format_source(const bt_chat_format *f);

void bt_text_chat_prompt_init(bt_chat_prompt *p);
void bt_text_chat_prompt_done(bt_chat_prompt *p);
/* Encode the result with add_special: where the template writes BOS and the tokenizer adds one, it
 * is left out of the text. `developer` counts as system. BT_E_BADINPUT names the message and what
 * is wrong with it. The prompt's old content is replaced. */
BT_MUST_CHECK bt_status bt_text_chat_render(const bt_chat_format *f,
                                            const bt_chat_message *messages, size_t n_messages,
                                            const bt_chat_options *o, bt_chat_prompt *ret_prompt,
                                            bt_error *err);

#endif
