/* Strict UTF-8. The second byte of a sequence has a range that depends on the first; that alone
 * keeps out overlong forms, surrogates and what is above U+10FFFF. */
#include "text/unicode.h"

#include <string.h>

/* Continuation bytes that follow a lead byte, 0 for ASCII; the range of the first of them. */
static int shape_of(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) {
        return 0;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 1;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        *low = lead == 0xE0 ? 0xA0 : 0x80;
        *high = lead == 0xED ? 0x9F : 0xBF;
        return 2;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        *low = lead == 0xF0 ? 0x90 : 0x80;
        *high = lead == 0xF4 ? 0x8F : 0xBF;
        return 3;
    }
    return -1;
}

bt_utf8_char bt_text_utf8_at(const char *text, size_t left)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t low, high;
    const int more = shape_of(p[0], &low, &high);
    if (more < 0) {
        return (bt_utf8_char){ BT_UTF8_BAD, 1, 0 };
    }
    uint32_t code = more == 0 ? p[0] : p[0] & (0x3Fu >> more);
    for (uint32_t i = 1; i <= (uint32_t)more; i++) {
        if (i >= left) {
            return (bt_utf8_char){ BT_UTF8_SHORT, i, 0 };
        }
        if (p[i] < low || p[i] > high) {
            return (bt_utf8_char){ BT_UTF8_BAD, i, 0 };
        }
        code = code << 6 | (p[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return (bt_utf8_char){ BT_UTF8_GOOD, (uint32_t)more + 1, code };
}

bool bt_text_utf8_valid(const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        const bt_utf8_char c = bt_text_utf8_at(text + at, size - at);
        if (c.kind != BT_UTF8_GOOD) {
            return false;
        }
        at += c.size;
    }
    return true;
}

size_t bt_text_utf8_put(uint32_t code, char to[BT_UTF8_MAX])
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    const size_t size = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--) {
        to[i] = (char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    static const uint8_t lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    to[0] = (char)(lead[size] | code);
    return size;
}

void bt_text_utf8_show(const char *text, size_t size, char *to, size_t room)
{
    size_t n = 0;
    for (size_t at = 0; at < size;) {
        const bt_utf8_char c = bt_text_utf8_at(text + at, size - at);
        const bool plain = c.kind == BT_UTF8_GOOD && c.code >= 0x20 &&
                           (c.code < 0x7F || c.code > 0x9F);
        if (n + (plain ? c.size : 1) >= room) {
            break;
        }
        if (plain) {
            memcpy(to + n, text + at, c.size);
            n += c.size;
        } else {
            to[n++] = '?';
        }
        at += c.size;
    }
    to[n] = '\0';
}
