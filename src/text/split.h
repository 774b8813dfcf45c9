/* text/split.h - pre-tokenizers: a text is cut into pieces before byte-level BPE merges inside
 * them.
 *
 * A pre-tokenizer is a list of regular expressions; each cuts every piece so far into its matches
 * and the gaps between them. The expressions speak only of classes of characters, so they do not
 * run over UTF-8 but over a string with one byte per character: ASCII as it is, all else as a byte
 * 0x80.. that stands for its class. PCRE2 matches those bytes without its own Unicode tables, which
 * makes the result the same for every version of that library, and fast.
 *
 * Lifetime: create to destroy. Threads: immutable after create; run() on many threads at once.
 * Failure:  create (unknown name, memory), run (memory, match limit).
 */
#ifndef BT_TEXT_SPLIT_H
#define BT_TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { BT_SPLIT_PATTERNS_MAX = 6, BT_SPLIT_SETS_MAX = 3 };

typedef struct { uint32_t first, last; } bt_split_range;

/* The expressions of one list. Beside ordinary syntax they may use \p{L} \p{Lu} \p{Ll} \p{Lt}
 * \p{Lm} \p{Lo} \p{M} \p{N} \p{P} \p{S} \s \S (the last outside of brackets only), and \p{1} ..
 * \p{3} for the list's own sets of code points. */
typedef struct {
    const char           *patterns[BT_SPLIT_PATTERNS_MAX];
    const bt_split_range *sets[BT_SPLIT_SETS_MAX];       /* each ends with an entry { 0, 0 } */
} bt_split_list;

/* What a name of tokenizer.ggml.pre stands for. */
typedef struct {
    const char          *name;
    const bt_split_list *list;
    bool ignore_merges;     /* a piece that is a token as a whole is that token */
    bool add_bos;           /* unless the file says otherwise */
    bool no_bos;            /* there is no such token */
    bool strip_left_mask;   /* blanks before <mask> belong to it */
} bt_split_name;

extern const bt_split_name bt_text_split_names[];
extern const size_t        bt_text_split_name_count;

/* NULL if the name is not known. */
const bt_split_name *bt_text_split_name_find(const char *name, size_t size);

typedef struct bt_splitter bt_splitter;

/* Where pieces end, in bytes, ascending; the last is the size of the text. */
typedef struct {
    uint32_t *ends;
    size_t    count, capacity;
} bt_split_pieces;

BT_MUST_CHECK bt_status bt_text_splitter_create(const bt_split_list *list,
                                                bt_splitter **ret_splitter, bt_error *err);
void bt_text_splitter_destroy(bt_splitter *s);       /* NULL is fine */

/* `text` is valid UTF-8 of less than 4 GiB. `pieces` begins zeroed or as an earlier run left it;
 * its old content is replaced. Free it with bt_text_split_pieces_done. */
BT_MUST_CHECK bt_status bt_text_splitter_run(const bt_splitter *s, const char *text, size_t size,
                                             bt_split_pieces *pieces, bt_error *err);
void bt_text_split_pieces_done(bt_split_pieces *p);

#endif
