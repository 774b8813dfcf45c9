/* base/logfmt.c - see logfmt.h.
 *
 * The format is read here and not by one vsnprintf of the whole, because afterwards nobody could
 * tell a blank of the format from one of a value. Each conversion goes to snprintf by itself.
 */
#include "base/logfmt.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char cut_mark[] = " cut=true";

enum { LINE_END = BT_LOGFMT_LINE_MAX - sizeof cut_mark, SPEC_MAX = 32 };

/* ---- quoting ---- */

/* Bytes of the UTF-8 character at `s` when it may be shown as it is: well formed, no control
 * character (C1), no line separator, nothing that turns the direction of text. 0 otherwise. */
static size_t shown_bytes(const unsigned char *s)
{
    const size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    static const uint32_t least[] = { 0, 0, 0xa0, 0x800, 0x10000 };
    if (s[0] < 0xc2 || s[0] > 0xf4) {
        return 0;
    }
    uint32_t c = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;                  /* the NUL at the end too */
        }
        c = c << 6 | (s[i] & 0x3fu);
    }
    const bool turns = (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
                       (c >= 0x2066 && c <= 0x2069);
    return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) || turns ? 0 : n;
}

static bool is_bare(const char *value)
{
    for (const char *c = value; *c; c++) {
        if (*c <= ' ' || *c > '~' || *c == '"' || *c == '\\' || *c == '=') {
            return false;
        }
    }
    return *value != '\0';
}

/* What stands for the character at `s`; *ret_used bytes of it. */
static void escape(const char *s, char to[8], size_t *ret_used)
{
    const unsigned char c = (unsigned char)*s;
    const size_t n = c < 0x80 ? 0 : shown_bytes((const unsigned char *)s);
    *ret_used = n > 0 ? n : 1;
    if (n > 0) {
        memcpy(to, s, n);
        to[n] = '\0';
    } else if (c == '"' || c == '\\') {
        (void)snprintf(to, 8, "\\%c", c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
        (void)snprintf(to, 8, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    } else if (c < ' ' || c >= 0x7f) {
        (void)snprintf(to, 8, "\\x%02x", c);
    } else {
        (void)snprintf(to, 8, "%c", c);
    }
}

/* Appends; false when `text` does not fit before `end`. */
static bool append(char *line, size_t end, const char *text)
{
    const size_t size = strlen(line), n = strlen(text);
    if (size + n > end) {
        return false;
    }
    memcpy(line + size, text, n + 1);
    return true;
}

/* Space for an ellipsis and the closing quote is kept. */
static void quote(char *line, const char *value)
{
    const size_t end = LINE_END - 4, begun = strlen(line);
    char one[8];
    size_t used;
    if (!append(line, end, "\"")) {
        return;
    }
    for (const char *s = value; *s; s += used) {
        escape(s, one, &used);
        if (strlen(line) - begun > BT_LOGFMT_VALUE_MAX || !append(line, end, one)) {
            (void)append(line, LINE_END, "...");
            break;
        }
    }
    (void)append(line, LINE_END, "\"");
}

void bt_logfmt_value(char *line, const char *value)
{
    if (!is_bare(value) || strlen(value) > BT_LOGFMT_VALUE_MAX ||
        !append(line, LINE_END, value)) {
        quote(line, value);
    }
}

/* ---- the format ---- */

/* One conversion from '%' on, without its length modifier, which `wide` tells. */
typedef struct {
    char text[SPEC_MAX];
    char letter;
    int  wide;                         /* 0 int, 1 long, 2 long long, 3 size_t or intmax_t */
} spec;

static void add(spec *s, char c)
{
    const size_t n = strlen(s->text);
    if (n + 6 < sizeof s->text) {      /* "ll", the letter and the NUL still fit */
        s->text[n] = c;
        s->text[n + 1] = '\0';
    }
}

/* A '*' becomes its number. Gives the first character after the conversion. */
static const char *read_spec(const char *f, spec *ret_spec, va_list *args)
{
    spec s = { .text = "%" };
    for (f++; *f && strchr("-+ #0123456789.*", *f); f++) {
        if (*f == '*') {
            char number[16];
            (void)snprintf(number, sizeof number, "%d", va_arg(*args, int));
            for (const char *d = number; *d; d++) {
                add(&s, *d);
            }
        } else {
            add(&s, *f);
        }
    }
    for (; *f && strchr("hlzjt", *f); f++) {
        s.wide = *f == 'h' ? 0 : *f == 'l' ? s.wide + 1 : 3;
    }
    s.letter = *f;
    *ret_spec = s;
    return *f ? f + 1 : f;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static int put_integer(char *to, size_t size, spec *s, va_list *args)
{
    const bool is_signed = s->letter == 'd' || s->letter == 'i';
    const long long v = s->wide == 0 && is_signed ? va_arg(*args, int)
                      : s->wide == 0 ? (long long)va_arg(*args, unsigned)
                      : s->wide == 1 ? va_arg(*args, long)
                      : s->wide == 2 ? va_arg(*args, long long) : (long long)va_arg(*args, size_t);
    add(s, 'l');
    add(s, 'l');
    add(s, s->letter);
    return snprintf(to, size, s->text, v);
}

/* Appends what the conversion gives to the value in `to`. */
static void convert(char to[BT_LOGFMT_VALUE_MAX], spec *s, va_list *args)
{
    const size_t used = strlen(to), size = BT_LOGFMT_VALUE_MAX - used;
    int n = 0;
    switch (s->letter) {
    case 'd': case 'i': case 'u': case 'x': case 'X': case 'o':
        n = put_integer(to + used, size, s, args);
        break;
    case 'e': case 'f': case 'g': case 'E': case 'F': case 'G': case 'a': case 'A':
        add(s, s->letter);
        n = snprintf(to + used, size, s->text, va_arg(*args, double));
        break;
    case 'c':
        n = snprintf(to + used, size, "%c", va_arg(*args, int));
        break;
    case 's':
        add(s, 's');
        n = snprintf(to + used, size, s->text, va_arg(*args, const char *));
        break;
    default:
        n = snprintf(to + used, size, "%%");
        break;
    }
    if (n >= (int)size && size > 3) {
        memcpy(to + BT_LOGFMT_VALUE_MAX - 4, "...", 4);
    }
}
#pragma GCC diagnostic pop

void bt_logfmt_fields(char *line, const char *format, va_list args)
{
    va_list rest;
    va_copy(rest, args);
    format += strspn(format, " ");
    while (*format && strlen(line) < LINE_END - 80) {
        char value[BT_LOGFMT_VALUE_MAX] = "";
        char key[64] = " ";
        const char *f = format + strcspn(format, "= ");
        (void)snprintf(key + 1, sizeof key - 1, "%.*s%s", (int)(f - format), format,
                       *f == '=' ? "=" : "");
        for (f += *f == '='; *f && *f != ' ';) {
            spec s = { .letter = '\0' };
            const size_t used = strlen(value);
            if (*f == '%') {
                f = read_spec(f, &s, &rest);
                convert(value, &s, &rest);
            } else if (used + 1 < sizeof value) {
                value[used] = *f++;
                value[used + 1] = '\0';
            } else {
                f++;
            }
        }
        (void)append(line, LINE_END, key);
        bt_logfmt_value(line, value);
        format = f + strspn(f, " ");
    }
    va_end(rest);
    if (*format) {
        (void)append(line, BT_LOGFMT_LINE_MAX - 1, cut_mark);
    }
}
