/* base/json.h - JSON text, written in order into a buffer.
 *
 * Commas are put where they belong; text that is not valid UTF-8 comes out with U+FFFD, one per
 * maximal subpart, and numbers that JSON cannot hold come out as 0 or the largest float. So the
 * result is valid JSON whatever is put in, as long as begin and end match (asserted).
 *
 * Lifetime: a view on a caller's bt_buf, whose sticky error tells whether all went in.
 * Threads: owned by one.
 */
#ifndef BT_BASE_JSON_H
#define BT_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"

typedef struct {
    bt_buf  *to;
    uint32_t depth;
    bool     comma;             /* a value stands before, on this level */
} bt_json_writer;

void bt_json_writer_init(bt_json_writer *w, bt_buf *to);

/* A NULL key stands for "inside an array" in all of these. */
void bt_json_open(bt_json_writer *w, const char *key, char bracket);    /* '{' or '[' */
void bt_json_close(bt_json_writer *w, char bracket);                    /* '}' or ']' */
void bt_json_text(bt_json_writer *w, const char *key, const char *text, size_t size);
void bt_json_string(bt_json_writer *w, const char *key, const char *text);  /* NULL: null */
void bt_json_integer(bt_json_writer *w, const char *key, int64_t value);
void bt_json_natural(bt_json_writer *w, const char *key, uint64_t value);
void bt_json_number(bt_json_writer *w, const char *key, double value);
void bt_json_bool(bt_json_writer *w, const char *key, bool value);
void bt_json_null(bt_json_writer *w, const char *key);
/* A key that is not a literal, inside an object; the value follows with key NULL. */
void bt_json_key(bt_json_writer *w, const char *key, size_t size);

/* Length of the valid UTF-8 sequence at `text`, or 0; *ret_bad then is the length of the maximal
 * subpart to replace (at least 1). size >= 1. */
size_t bt_json_utf8_length(const char *text, size_t size, size_t *ret_bad);
/* Appends text with bad bytes replaced by U+FFFD, without quotes or escapes. */
void bt_json_utf8_put(bt_buf *to, const char *text, size_t size);
bool bt_json_utf8_valid(const char *text, size_t size);

#endif
