/* text/chat_private.h - what the files of chat.h share. */
#ifndef BT_TEXT_CHAT_PRIVATE_H
#define BT_TEXT_CHAT_PRIVATE_H

#include "text/chat.h"

/* ---- chat_lex.c: a template's words ---- */

typedef enum { BT_CHAT_NAME, BT_CHAT_LITERAL } bt_chat_word_kind;

/* A name, or a string literal with its escapes undone. */
typedef struct {
    bt_chat_word_kind kind;
    const char       *text;      /* NUL-terminated; of a literal that held NUL: its beginning */
    size_t            size;
} bt_chat_word;

typedef struct {
    bt_chat_word *words;
    size_t        count, capacity;
    char         *text;          /* the words point here */
    bool          loose_text;    /* something but tags would be printed */
    bool          broken;        /* a tag or a literal does not end */
} bt_chat_words;

BT_MUST_CHECK bt_status bt_text_chat_words_read(const char *template_text, size_t size,
                                                bt_chat_words *ret_words);
void bt_text_chat_words_done(bt_chat_words *w);

/* ---- chat_detect.c: what kind of template it is ---- */

enum { BT_CHAT_LITERAL_MAX = 4096 };

typedef enum { BT_CHAT_CHATML, BT_CHAT_LLAMA3, BT_CHAT_GEMMA } bt_chat_family;

/* How members of a family differ. Texts belong to the shape. */
typedef struct {
    bt_chat_family family;
    bool  writes_bos;
    bool  always_opens;       /* the generation prompt is written even when it is not asked for */
    bool  never_opens;        /* or not even when it is asked for */
    char *opening;            /* the generation prompt */
    char *default_system; /* ChatML: when the first message is not from the system; NULL: none */
    bool  wraps_tools;        /* ChatML: tool messages become user turns with <tool_response> */
    bool  thinks;             /* ChatML: thoughts of old answers are dropped, as Qwen3 does */
    bool  trims;              /* Llama 3: contents */
    char *knowledge;          /* Llama 3.1: "Cutting Knowledge Date: ...\n"; NULL: no preamble */
    char *date;               /* Llama 3.1: a fixed date; NULL: today */
    bool  no_system;          /* Gemma: refuses system messages */
    char *system_end;         /* Gemma: between the system's text and the first user's */
} bt_chat_shape;

/* BT_E_UNSUPPORTED says what is not known about the template. */
BT_MUST_CHECK bt_status bt_text_chat_shape_detect(const char *template_text, size_t size,
                                                  bt_chat_shape *shape, bt_error *err);
/* The plain member of a family by its name; BT_E_NOTFOUND if there is no such name. */
BT_MUST_CHECK bt_status bt_text_chat_shape_named(const char *name, bt_chat_shape *shape);
void bt_text_chat_shape_done(bt_chat_shape *s);
extern const char *const bt_text_chat_family_names[];

/* ---- chat_render.c ---- */

struct bt_chat_format {
    bt_chat_shape shape;
    char         *source;
    const char   *bos;            /* "" if none, or if the tokenizer adds it */
    size_t        bos_size;
    bt_status (*render)(const bt_chat_format *f, const bt_chat_message *messages, size_t n_messages,
                        const bt_chat_options *o, bt_chat_prompt *to, bt_error *err);
};

BT_MUST_CHECK bt_status bt_text_chat_render_shape(const bt_chat_format *f,
                                                  const bt_chat_message *messages,
                                                  size_t n_messages, const bt_chat_options *o,
                                                  bt_chat_prompt *to, bt_error *err);

#endif
