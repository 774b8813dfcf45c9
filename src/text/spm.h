/* text/spm.h - SentencePiece BPE ("llama"): characters as symbols, the best-scored token first.
 *
 * Lifetime: borrows the vocabulary, holds nothing. Threads: any. Failure: memory.
 */
#ifndef BT_TEXT_SPM_H
#define BT_TEXT_SPM_H

#include "text/merge.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

/* A text without special tokens. `add_space`: as if it began with one more blank. Bytes that are
 * not UTF-8 are kept. */
BT_MUST_CHECK bt_status bt_text_spm_encode(const bt_vocab *v, const char *text, size_t size,
                                           bool add_space, bt_merger *merger, bt_tokens *to,
                                           bt_error *err);

#endif
