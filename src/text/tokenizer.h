/* text/tokenizer.h - text to token ids and back, from the vocabulary in a GGUF file.
 *
 * Byte-level BPE ("gpt2") with the pre-tokenizers of docs/tokenizers.md, and SentencePiece BPE
 * ("llama"). An unknown model or pre-tokenizer is refused by name.
 *
 * Lifetime: create to destroy; the file may be closed after create (texts are copied).
 * Threads:  immutable after create; encode may run on many threads at once.
 * Failure:  create; encode (memory, limits). Decoding cannot fail.
 */
#ifndef BT_TEXT_TOKENIZER_H
#define BT_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/digest.h"
#include "base/status.h"
#include "gguf/gguf.h"

typedef struct bt_tokenizer bt_tokenizer;

#define BT_TOKEN_NONE UINT32_MAX

typedef struct {
    uint32_t *ids;
    size_t    count, capacity;
    /* Asked from time to time while a text is encoded; true ends that with BT_E_CANCELLED. NULL:
     * nobody asks. */
    bool    (*stop)(void *context);
    void     *stop_context;
} bt_tokens;

void bt_text_tokens_init(bt_tokens *t);
void bt_text_tokens_done(bt_tokens *t);
BT_MUST_CHECK bt_status bt_text_tokens_push(bt_tokens *t, uint32_t id);

typedef struct {
    bool add_special;      /* BOS and EOS as the file asks */
    bool parse_special;    /* texts of control tokens become those tokens */
} bt_encode_options;

/* A piece of a prompt: what a template wrote, or what a user typed (never special). */
typedef struct {
    const char *text;
    size_t      size;
    bool        from_user;
} bt_text_span;

BT_MUST_CHECK bt_status bt_text_tokenizer_create(const bt_gguf *file, bt_tokenizer **ret_tokenizer,
                                                 bt_error *err);
void bt_text_tokenizer_destroy(bt_tokenizer *t);

/* Appends to `to`. Text may hold any bytes, NUL too. */
BT_MUST_CHECK bt_status bt_text_tokenizer_encode(const bt_tokenizer *t, const char *text,
                                                 size_t size, const bt_encode_options *o,
                                                 bt_tokens *to, bt_error *err);
/* Spans as one text: special tokens are cut only out of template spans; add_special as given. */
BT_MUST_CHECK bt_status bt_text_tokenizer_encode_spans(const bt_tokenizer *t,
                                                       const bt_text_span *spans, size_t n_spans,
                                                       bool add_special, bt_tokens *to,
                                                       bt_error *err);

/* The bytes of one token. With `special`, control tokens show their text. Lives until destroy. */
const char *bt_text_tokenizer_piece(const bt_tokenizer *t, uint32_t id, bool special,
                                    size_t *ret_size);
/* A whole sequence; appends bytes, which may be invalid UTF-8. */
void bt_text_tokenizer_decode(const bt_tokenizer *t, const uint32_t *ids, size_t n, bool special,
                              bt_buf *to);

uint32_t  bt_text_tokenizer_count(const bt_tokenizer *t);
uint32_t  bt_text_tokenizer_bos(const bt_tokenizer *t);        /* BT_TOKEN_NONE if none */
uint32_t  bt_text_tokenizer_eos(const bt_tokenizer *t);
bool      bt_text_tokenizer_adds_bos(const bt_tokenizer *t);
bool      bt_text_tokenizer_is_eog(const bt_tokenizer *t, uint32_t id);
bool bt_text_tokenizer_is_special(const bt_tokenizer *t, uint32_t id); /* control or unknown */
uint32_t bt_text_tokenizer_find(const bt_tokenizer *t, const char *text, size_t size); /* or NONE */
/* Ids that must never be sampled (tokenizer.ggml.suppress_tokens). */
const uint32_t *bt_text_tokenizer_suppressed(const bt_tokenizer *t, size_t *ret_count);
bt_digest bt_text_tokenizer_digest(const bt_tokenizer *t);
size_t    bt_text_tokenizer_piece_max(const bt_tokenizer *t);  /* longest piece in bytes */

#endif
