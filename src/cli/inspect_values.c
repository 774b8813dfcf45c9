/* Strings and values of a model file, whatever they hold. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "cli/inspect_private.h"
#include "text/unicode.h"

enum {
    ELEMENTS_SHOWN = 8,           /* of an array */
    CHARACTERS_SHOWN = 60         /* of a string */
};

/* ---- strings ---- */

/* Characters that move the cursor, change directions or cannot be seen. */
static bool is_hidden(uint32_t code)
{
    static const struct { uint32_t first, last; } ranges[] = {
        { 0x00, 0x1f }, { 0x7f, 0x9f }, { 0xad, 0xad }, { 0x200b, 0x200f }, { 0x2028, 0x202e },
        { 0x2060, 0x206f }, { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb }, { 0xe0000, 0xe007f },
    };
    for (size_t i = 0; i < BT_LEN(ranges); i++) {
        if (code >= ranges[i].first && code <= ranges[i].last) {
            return true;
        }
    }
    return false;
}

/* As \uXXXX, above the first plane as a pair of surrogates: what JSON understands. */
static void print_code(uint32_t code)
{
    if (code >= 0x10000) {
        printf("\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((code - 0x10000) >> 10),
               0xdc00 + ((code - 0x10000) & 0x3ff));
    } else {
        printf("\\u%04" PRIx32, code);
    }
}

static void print_character(const char *at, bt_utf8_char c)
{
    switch (c.code) {
    case '"':
    case '\\':
        printf("\\%c", (int)c.code);
        break;
    case '\n':
        fputs("\\n", stdout);
        break;
    case '\t':
        fputs("\\t", stdout);
        break;
    default:
        if (is_hidden(c.code)) {
            print_code(c.code);
        } else {
            fwrite(at, 1, c.size, stdout);
        }
        break;
    }
}

void bt_inspect_print_string(bt_gguf_string s, size_t n_max, bool json)
{
    size_t at = 0;
    putchar('"');
    for (size_t n = 0; at < s.size && n < n_max; n++) {
        const bt_utf8_char c = bt_text_utf8_at(s.data + at, s.size - at);
        if (c.kind == BT_UTF8_GOOD) {
            print_character(s.data + at, c);
        } else if (json) {
            fputs("\\ufffd", stdout);
        } else {
            for (uint32_t i = 0; i < c.size; i++) {
                printf("\\x%02x", (unsigned)(unsigned char)s.data[at + i]);
            }
        }
        at += c.size;
    }
    putchar('"');
    if (at < s.size) {
        printf(" and %zu bytes more", s.size - at);
    }
}

bt_gguf_string bt_inspect_string(const char *text)
{
    return (bt_gguf_string){ .data = text, .size = strlen(text) };
}

/* ---- values ---- */

/* A number as short as it can be read back exactly. JSON has no infinities. */
static void print_real(double value, bool single, bool json)
{
    if (isfinite(value)) {
        char text[40];
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, value);
            double back = 0;
            sscanf(text, "%lf", &back);
            if (single ? (float)back == (float)value : back == value) {
                break;
            }
        }
        fputs(text, stdout);
    } else {
        fputs(json ? "null" : isnan(value) ? "nan" : value < 0 ? "-inf" : "inf", stdout);
    }
}

/* An element that is not a string. */
static void print_scalar(const bt_gguf_pair *pair, uint64_t i, bool json)
{
    const uint8_t *p = pair->data;
    uint64_t bits;
    double f64;
    switch (pair->element) {
    case BT_GGUF_BOOL:
        fputs(p[i] ? "true" : "false", stdout);
        break;
    case BT_GGUF_U8:
    case BT_GGUF_U16:
    case BT_GGUF_U32:
        printf("%" PRIu32, bt_gguf_array_u32(pair, i));
        break;
    case BT_GGUF_I8:
    case BT_GGUF_I16:
        printf("%d", (int)bt_gguf_array_f32(pair, i));       /* exact: small */
        break;
    case BT_GGUF_I32:
        printf("%" PRId32, (int32_t)bt_get_le32(p + 4 * i));
        break;
    case BT_GGUF_U64:
        printf("%" PRIu64, bt_get_le64(p + 8 * i));
        break;
    case BT_GGUF_I64:
        printf("%" PRId64, (int64_t)bt_get_le64(p + 8 * i));
        break;
    case BT_GGUF_F64:
        bits = bt_get_le64(p + 8 * i);
        memcpy(&f64, &bits, sizeof f64);
        print_real(f64, false, json);
        break;
    default:
        print_real((double)bt_gguf_array_f32(pair, i), true, json);
        break;
    }
}

uint64_t bt_inspect_print_values(const bt_gguf_pair *pair, const bt_inspect_options *o)
{
    const uint64_t n = o->all || pair->count < ELEMENTS_SHOWN ? pair->count : ELEMENTS_SHOWN;
    const size_t characters = o->all || o->json ? SIZE_MAX : CHARACTERS_SHOWN;
    bt_gguf_strings strings = { 0 };
    if (pair->element == BT_GGUF_STRING) {
        strings = bt_gguf_strings_begin(pair);
    }
    for (uint64_t i = 0; i < n; i++) {
        bt_gguf_string text;
        fputs(i == 0 ? "" : o->json ? "," : ", ", stdout);
        if (pair->element != BT_GGUF_STRING) {
            print_scalar(pair, i, o->json);
        } else if (bt_gguf_strings_next(&strings, &text)) {
            bt_inspect_print_string(text, characters, o->json);
        }
    }
    return pair->count - n;
}

void bt_inspect_print_plain(bt_gguf_string key, int width)
{
    int n = 0;
    for (size_t at = 0; at < key.size; n++) {
        const bt_utf8_char c = bt_text_utf8_at(key.data + at, key.size - at);
        if (c.kind == BT_UTF8_GOOD && !is_hidden(c.code)) {
            fwrite(key.data + at, 1, c.size, stdout);
        } else {
            putchar('?');
        }
        at += c.size;
    }
    printf("%*s", n < width ? width - n : width > 0, "");
}
