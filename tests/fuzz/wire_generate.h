/* tests/fuzz/wire_generate.h - any message of the wire from a string of bytes, and equality of two.
 *
 * Comes from the tables of wire/messages.h, so a new message or field is tested without a line
 * here. Includers must use all of it or allow unused static functions.
 */
#ifndef TESTS_FUZZ_WIRE_GENERATE_H
#define TESTS_FUZZ_WIRE_GENERATE_H

#include <string.h>

#include "wire/codec.h"

/* Bytes that are used up in order; zeros after the end. Texts, tokens and bytes borrow from `pool`,
 * whose size limits them. */
typedef struct {
    const uint8_t *data;
    size_t         size, at;
    const uint8_t *pool;
    uint32_t       pool_size;
} wire_source;

static inline uint64_t wire_take(wire_source *s, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) {
        v = v << 8 | (s->at < s->size ? s->data[s->at++] : 0);
    }
    return v;
}

/* A size up to `max`: mostly small, now and then anything. */
static inline uint32_t wire_take_size(wire_source *s, uint32_t max)
{
    const uint32_t small = (uint32_t)wire_take(s, 1);
    const uint32_t v = small < 240 ? small % 24 : (uint32_t)wire_take(s, 4);
    const uint32_t limit = max < s->pool_size ? max : s->pool_size;
    return v <= limit ? v : v % (limit + 1);
}

static inline uint32_t wire_field_make_u32(wire_source *s) { return (uint32_t)wire_take(s, 4); }
static inline uint64_t wire_field_make_u64(wire_source *s) { return wire_take(s, 8); }

static inline bt_digest wire_field_make_digest(wire_source *s)
{
    bt_digest d;
    for (size_t i = 0; i < sizeof d.bytes; i++) {
        d.bytes[i] = (uint8_t)wire_take(s, 1);
    }
    return d;
}

static inline bt_wire_text wire_field_make_text(wire_source *s)
{
    return (bt_wire_text){(const char *)s->pool, wire_take_size(s, BT_WIRE_TEXT_BYTES_MAX)};
}

static inline bt_wire_ids wire_field_make_tokens(wire_source *s)
{
    const uint32_t n = wire_take_size(s, BT_WIRE_TOKENS_PER_FRAME_MAX);
    return (bt_wire_ids){s->pool, n * 4 <= s->pool_size ? n : s->pool_size / 4};
}

static inline bt_wire_bytes wire_field_make_bytes(wire_source *s)
{
    return (bt_wire_bytes){s->pool, wire_take_size(s, BT_WIRE_BODY_BYTES_MAX / 4)};
}

static inline bool wire_field_same_u32(uint32_t a, uint32_t b) { return a == b; }
static inline bool wire_field_same_u64(uint64_t a, uint64_t b) { return a == b; }
static inline bool wire_field_same_digest(bt_digest a, bt_digest b)
{
    return bt_digest_equal(&a, &b);
}
static inline bool wire_same_span(const void *a, const void *b, uint32_t n, uint32_t m, size_t unit)
{
    return n == m && (n == 0 || memcmp(a, b, n * unit) == 0);
}
static inline bool wire_field_same_text(bt_wire_text a, bt_wire_text b)
{
    return wire_same_span(a.data, b.data, a.size, b.size, 1);
}
static inline bool wire_field_same_tokens(bt_wire_ids a, bt_wire_ids b)
{
    return wire_same_span(a.data, b.data, a.n, b.n, 4);
}
static inline bool wire_field_same_bytes(bt_wire_bytes a, bt_wire_bytes b)
{
    return wire_same_span(a.data, b.data, a.size, b.size, 1);
}

#define WIRE_MAKE_FIELD(type, name, doc) m.name = wire_field_make_##type(s);
#define WIRE_SAME_FIELD(type, name, doc) same = same && wire_field_same_##type(a->name, b->name);
#define X(NAME, message, number, FIELDS, sender, doc)                                              \
    static inline bt_wire_##message wire_make_##message(wire_source *s)                            \
    {                                                                                              \
        bt_wire_##message m;                                                                       \
        FIELDS(WIRE_MAKE_FIELD)                                                                    \
        return m;                                                                                  \
    }                                                                                              \
    static inline bool wire_same_##message(const bt_wire_##message *a, const bt_wire_##message *b) \
    {                                                                                              \
        bool same = true;                                                                          \
        FIELDS(WIRE_SAME_FIELD)                                                                    \
        return same;                                                                               \
    }
BT_WIRE_MESSAGE_LIST(X)
#undef X

#endif
