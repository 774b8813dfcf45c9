/* text/bpe.h - byte-level BPE ("gpt2"): pieces of the pre-tokenizer, bytes as symbols, merges by
 * rank.
 *
 * Lifetime: create to destroy; borrows the vocabulary. Threads: immutable after create.
 * Failure:  create (merges missing or too many, memory), encode (memory).
 */
#ifndef BT_TEXT_BPE_H
#define BT_TEXT_BPE_H

#include "base/digest.h"
#include "text/merge.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

typedef struct bt_bpe bt_bpe;

BT_MUST_CHECK bt_status bt_text_bpe_create(const bt_gguf *file, const bt_vocab *v, bt_bpe **ret_bpe,
                                           bt_error *err);
void bt_text_bpe_destroy(bt_bpe *b);                 /* NULL is fine */
/* What the merges say, for the tokenizer's digest. */
void bt_text_bpe_digest(const bt_bpe *b, bt_digester *to);

/* A text without special tokens. Every byte that is not UTF-8 counts as U+FFFD. */
BT_MUST_CHECK bt_status bt_text_bpe_encode(const bt_bpe *b, const char *text, size_t size,
                                           bt_merger *merger, bt_tokens *to, bt_error *err);

#endif
