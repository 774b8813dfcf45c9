#include "base/json.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"

#define REPLACEMENT "\xEF\xBF\xBD"      /* U+FFFD */

void bt_json_writer_init(bt_json_writer *w, bt_buf *to)
{
    *w = (bt_json_writer){ .to = to };
}

/* ---- UTF-8 (Unicode 15, table 3-7) ---- */

/* What may follow a lead byte: how many bytes in all, and the range of the second one. */
static size_t lead(unsigned char c, unsigned char *ret_low, unsigned char *ret_high)
{
    *ret_low = 0x80;
    *ret_high = 0xBF;
    if (c < 0x80) {
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF) {
        return 2;
    }
    if (c >= 0xE0 && c <= 0xEF) {
        *ret_low = c == 0xE0 ? 0xA0 : 0x80;
        *ret_high = c == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        *ret_low = c == 0xF0 ? 0x90 : 0x80;
        *ret_high = c == 0xF4 ? 0x8F : 0xBF;
        return 4;
    }
    return 0;
}

size_t bt_json_utf8_length(const char *text, size_t size, size_t *ret_bad)
{
    const unsigned char *b = (const unsigned char *)text;
    unsigned char low, high;
    const size_t n = lead(b[0], &low, &high);
    *ret_bad = 1;
    if (n <= 1) {
        return n;
    }
    for (size_t i = 1; i < n; i++) {
        if (i >= size || b[i] < low || b[i] > high) {
            *ret_bad = i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return n;
}

void bt_json_utf8_put(bt_buf *to, const char *text, size_t size)
{
    size_t from = 0;
    for (size_t i = 0; i < size;) {
        size_t bad;
        const size_t n = bt_json_utf8_length(text + i, size - i, &bad);
        if (n == 0) {
            bt_buf_put(to, text + from, i - from);
            bt_buf_puts(to, REPLACEMENT);
            from = i + bad;
        }
        i += n ? n : bad;
    }
    bt_buf_put(to, text + from, size - from);
}

bool bt_json_utf8_valid(const char *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        size_t bad;
        const size_t n = bt_json_utf8_length(text + i, size - i, &bad);
        if (n == 0) {
            return false;
        }
        i += n;
    }
    return true;
}

/* ---- values ---- */

static void put_escape(bt_buf *to, unsigned char c)
{
    switch (c) {
    case '"':  bt_buf_puts(to, "\\\""); break;
    case '\\': bt_buf_puts(to, "\\\\"); break;
    case '\n': bt_buf_puts(to, "\\n"); break;
    case '\r': bt_buf_puts(to, "\\r"); break;
    case '\t': bt_buf_puts(to, "\\t"); break;
    default:   bt_buf_printf(to, "\\u%04x", c); break;
    }
}

static void put_quoted(bt_buf *to, const char *text, size_t size)
{
    size_t from = 0;
    bt_buf_puts(to, "\"");
    for (size_t i = 0; i < size;) {
        const unsigned char c = (unsigned char)text[i];
        size_t bad = 1;
        const size_t n = bt_json_utf8_length(text + i, size - i, &bad);
        if (n == 0 || c < 0x20 || c == '"' || c == '\\' || c == 0x7F) {
            bt_buf_put(to, text + from, i - from);
            if (n == 0) {
                bt_buf_puts(to, REPLACEMENT);
            } else {
                put_escape(to, c);
            }
            from = i + (n ? n : bad);
        }
        i += n ? n : bad;
    }
    bt_buf_put(to, text + from, size - from);
    bt_buf_puts(to, "\"");
}

void bt_json_key(bt_json_writer *w, const char *key, size_t size)
{
    if (w->comma) {
        bt_buf_puts(w->to, ",");
    }
    put_quoted(w->to, key, size);
    bt_buf_puts(w->to, ":");
    w->comma = false;
}

/* What stands before a value: a comma if there is a neighbour, and the key. */
static void begin(bt_json_writer *w, const char *key)
{
    if (key) {
        bt_json_key(w, key, strlen(key));
    } else if (w->comma) {
        bt_buf_puts(w->to, ",");
    }
    w->comma = true;
}

void bt_json_open(bt_json_writer *w, const char *key, char bracket)
{
    begin(w, key);
    bt_buf_put(w->to, &bracket, 1);
    w->depth++;
    w->comma = false;
}

void bt_json_close(bt_json_writer *w, char bracket)
{
    BT_ASSERT(w->depth > 0);
    bt_buf_put(w->to, &bracket, 1);
    w->depth--;
    w->comma = true;
}

void bt_json_text(bt_json_writer *w, const char *key, const char *text, size_t size)
{
    begin(w, key);
    put_quoted(w->to, text, size);
}

void bt_json_string(bt_json_writer *w, const char *key, const char *text)
{
    if (text) {
        bt_json_text(w, key, text, strlen(text));
    } else {
        bt_json_null(w, key);
    }
}

void bt_json_integer(bt_json_writer *w, const char *key, int64_t value)
{
    begin(w, key);
    bt_buf_printf(w->to, "%" PRId64, value);
}

void bt_json_natural(bt_json_writer *w, const char *key, uint64_t value)
{
    begin(w, key);
    bt_buf_printf(w->to, "%" PRIu64, value);
}

void bt_json_number(bt_json_writer *w, const char *key, double value)
{
    begin(w, key);
    if (isnan(value)) {
        value = 0;
    } else if (isinf(value)) {
        value = value < 0 ? -(double)FLT_MAX : (double)FLT_MAX;
    }
    /* The process keeps the C locale, so the point is a point; 9 digits hold any float. */
    bt_buf_printf(w->to, "%.9g", value);
}

void bt_json_bool(bt_json_writer *w, const char *key, bool value)
{
    begin(w, key);
    bt_buf_puts(w->to, value ? "true" : "false");
}

void bt_json_null(bt_json_writer *w, const char *key)
{
    begin(w, key);
    bt_buf_puts(w->to, "null");
}
