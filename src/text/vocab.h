/* text/vocab.h - the vocabulary of a model file: texts, types, scores, special ids, pieces.
 *
 * Everything is copied out of the file and checked on the way. Types are corrected as models in the
 * wild need it: a token that ends a generation or fills in the middle is a control token, whatever
 * the file says.
 *
 * Lifetime: load to done. Threads: immutable after load. Failure: load.
 */
#ifndef BT_TEXT_VOCAB_H
#define BT_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "gguf/gguf.h"
#include "text/split.h"

/* What SPM vocabularies write for a blank. */
#define BT_VOCAB_BLANK "\xe2\x96\x81"

typedef enum { BT_VOCAB_BPE, BT_VOCAB_SPM } bt_vocab_model;

/* tokenizer.ggml.token_type */
typedef enum {
    BT_TOKEN_UNDEFINED, BT_TOKEN_NORMAL, BT_TOKEN_UNKNOWN, BT_TOKEN_CONTROL,
    BT_TOKEN_USER_DEFINED, BT_TOKEN_UNUSED, BT_TOKEN_BYTE, BT_TOKEN_TYPES
} bt_token_type;

typedef struct { const char *data; size_t size; } bt_vocab_text;

typedef struct {
    bt_vocab_model       model;
    const bt_split_name *pre;             /* of BPE; NULL else */
    uint32_t             count;

    /* Texts one after the other, and pieces likewise; [count + 1] offsets. */
    char     *texts;
    uint32_t *text_at;
    char     *pieces;
    uint32_t *piece_at;
    uint32_t *slots;                      /* text -> id, open addressing */
    uint32_t  slot_mask;
    uint8_t  *types;                      /* bt_token_type */
    float    *scores;                     /* of SPM; NULL else */
    uint8_t   before_blank[256];          /* of SPM: some token has this byte before a U+2581 */
    uint8_t  *eog;
    size_t    text_max, piece_max;        /* longest, in bytes */

    uint32_t  bos, eos, unk, eot, eom;    /* UINT32_MAX: none */
    uint32_t  fim_prefix, fim_suffix, fim_middle, fim_pad, fim_repo, fim_separator;
    bool      add_bos, add_eos, add_space_prefix;
    bool      strip_right;                /* blanks after special tokens go (Phi-3) */

    uint32_t *suppressed;
    size_t    n_suppressed;
} bt_vocab;

BT_MUST_CHECK bt_status bt_text_vocab_load(const bt_gguf *file, bt_vocab *v, bt_error *err);
/* Its first part: all but special ids and pieces. */
BT_MUST_CHECK bt_status bt_text_vocab_read(const bt_gguf *file, bt_vocab *v, bt_error *err);
void bt_text_vocab_done(bt_vocab *v);          /* also of a half-loaded one that began zeroed */

/* UINT32_MAX: none. Of tokens with equal texts the last is found. */
uint32_t bt_text_vocab_find(const bt_vocab *v, const char *text, size_t size);

static inline bt_vocab_text bt_text_vocab_text_of(const bt_vocab *v, uint32_t id)
{
    return (bt_vocab_text){ v->texts + v->text_at[id], v->text_at[id + 1] - v->text_at[id] };
}

/* Neither control nor unknown tokens are shown or made from what users type. */
static inline bool bt_text_vocab_is_special(const bt_vocab *v, uint32_t id)
{
    return v->types[id] == BT_TOKEN_CONTROL || v->types[id] == BT_TOKEN_UNKNOWN;
}

/* ---- vocab_special.c: steps of load ---- */

/* Reads the special ids and flags, corrects types, fills the set that ends a generation. */
BT_MUST_CHECK bt_status bt_text_vocab_load_special(const bt_gguf *file, bt_vocab *v, bt_error *err);

/* ---- bytes and their characters in byte-level BPE ---- */

/* The code point that stands for a byte. */
uint32_t bt_text_vocab_code_of_byte(uint8_t byte);
/* The byte that a code point stands for, or -1. */
int      bt_text_vocab_byte_of_code(uint32_t code);
/* "<0x0A>" -> 10; -1 for any other text. */
int      bt_text_vocab_byte_of_text(const char *text, size_t size);

#endif
