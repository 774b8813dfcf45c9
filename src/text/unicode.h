/* text/unicode.h - UTF-8, strictly, and the kinds of characters that pre-tokenizers speak of.
 *
 * Well-formed means what the Unicode standard calls so: no overlong forms, no surrogates, nothing
 * above U+10FFFF. The kinds are those of Unicode 15.1.
 *
 * Threads: any. Failure: none; nothing allocates.
 */
#ifndef BT_TEXT_UNICODE_H
#define BT_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { BT_UNICODE_COUNT = 0x110000, BT_UTF8_MAX = 4 };

/* General categories, where needed by sub-category; the property White_Space goes before them.
 * tools/mkunicode.py holds the same order. */
typedef enum {
    BT_UNICODE_OTHER,                  /* control, format, private use, surrogate, unassigned */
    BT_UNICODE_LU, BT_UNICODE_LL, BT_UNICODE_LT, BT_UNICODE_LM, BT_UNICODE_LO,
    BT_UNICODE_M, BT_UNICODE_N, BT_UNICODE_P, BT_UNICODE_S,
    BT_UNICODE_SPACE,
    BT_UNICODE_KINDS
} bt_unicode_kind;

/* Unicode's table, in runs: first code point << 4 | kind, ascending, from 0. */
extern const uint32_t bt_text_unicode_runs[];
extern const size_t   bt_text_unicode_run_count;

/* What stands at the beginning of some bytes. */
typedef enum {
    BT_UTF8_GOOD,      /* a character */
    BT_UTF8_BAD,       /* a maximal subpart of an ill-formed sequence: one U+FFFD */
    BT_UTF8_SHORT      /* all bytes there are begin a character that is not complete */
} bt_utf8_kind;

typedef struct {
    bt_utf8_kind kind;
    uint32_t     size;       /* in bytes, at least 1 */
    uint32_t     code;       /* of a GOOD one */
} bt_utf8_char;

/* `left` is at least 1. */
bt_utf8_char bt_text_utf8_at(const char *text, size_t left);
bool bt_text_utf8_valid(const char *text, size_t size);
/* Writes 1..4 bytes; `code` is a Unicode scalar value. */
size_t bt_text_utf8_put(uint32_t code, char to[BT_UTF8_MAX]);

/* A copy for an error sentence: controls and ill-formed bytes become '?', and what does not fit is
 * cut off after a whole character. */
void bt_text_utf8_show(const char *text, size_t size, char *to, size_t room);
enum { BT_UTF8_SHOWN_MAX = 64 };

/* U+FFFD. */
#define BT_UTF8_REPLACEMENT "\xef\xbf\xbd"
enum { BT_UTF8_REPLACEMENT_SIZE = 3 };

#endif
