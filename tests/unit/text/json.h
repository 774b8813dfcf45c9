/* As much of JSON as the golden files need. */
#ifndef UNIT_TEXT_JSON_H
#define UNIT_TEXT_JSON_H

#include "text/unicode.h"

typedef struct { char *data; const char *at; } json_reader;

static inline json_reader json_open(const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) {
        fail_msg("%s cannot be opened", path);
    }
    json_reader r = { malloc(1 << 24), NULL };
    const size_t n = fread(r.data, 1, (1 << 24) - 1, in);
    fclose(in);
    r.data[n] = '\0';
    r.at = r.data;
    return r;
}

static inline void json_close(json_reader *r)
{
    free(r->data);
}

static inline bool json_accept(json_reader *r, char c)
{
    r->at += strspn(r->at, " \t\r\n");
    if (*r->at != c) {
        return false;
    }
    r->at++;
    return true;
}

static inline void json_expect(json_reader *r, char c)
{
    if (!json_accept(r, c)) {
        fail_msg("'%c' expected at %.20s", c, r->at);
    }
}

static inline long json_number(json_reader *r)
{
    char *end;
    const long n = strtol(r->at, &end, 10);
    assert_ptr_not_equal(end, r->at);
    r->at = end;
    return n;
}

static inline uint32_t json_hex(json_reader *r)
{
    uint32_t code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        const char c = *r->at;
        code = code * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return code;
}

/* The size in bytes; NUL may be among them. */
static inline size_t json_string(json_reader *r, char *to, size_t room)
{
    size_t n = 0;
    json_expect(r, '"');
    while (*r->at != '"') {
        assert_true(n + 4 < room && *r->at);
        char c = *r->at++;
        if (c != '\\') {
            to[n++] = c;
            continue;
        }
        c = *r->at++;
        static const char letters[] = "bfnrt", controls[] = "\b\f\n\r\t";
        const char *known = strchr(letters, c);
        if (known) {
            to[n++] = controls[known - letters];
        } else if (c == 'u') {
            uint32_t code = json_hex(r);
            if (code >= 0xD800 && code < 0xDC00) {
                r->at += 2;
                code = 0x10000 + ((code - 0xD800) << 10) + (json_hex(r) - 0xDC00);
            }
            n += bt_text_utf8_put(code, to + n);
        } else {
            to[n++] = c;
        }
    }
    r->at++;
    return n;
}

#endif
