/* base/bytes.h - little-endian numbers at any address, and a sticky-error reader.
 *
 * A bt_reader walks borrowed bytes. After the first read past the end every later read gives zero
 * and the reader stays failed; the caller asks once, at the end.
 */
#ifndef BT_BASE_BYTES_H
#define BT_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t bt_get_le16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | (b[1] << 8));
}

static inline uint32_t bt_get_le32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | ((uint32_t)b[1] << 8) | ((uint32_t)b[2] << 16) | ((uint32_t)b[3] << 24);
}

static inline uint64_t bt_get_le64(const void *p)
{
    const uint8_t *b = p;
    return (uint64_t)bt_get_le32(b) | ((uint64_t)bt_get_le32(b + 4) << 32);
}

static inline void bt_put_le16(void *p, uint16_t v)
{
    uint8_t *b = p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

static inline void bt_put_le32(void *p, uint32_t v)
{
    uint8_t *b = p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
    b[2] = (uint8_t)(v >> 16);
    b[3] = (uint8_t)(v >> 24);
}

static inline void bt_put_le64(void *p, uint64_t v)
{
    uint8_t *b = p;
    bt_put_le32(b, (uint32_t)v);
    bt_put_le32(b + 4, (uint32_t)(v >> 32));
}

typedef struct {
    const uint8_t *data;
    size_t         size;
    size_t         at;
    bool           failed;
} bt_reader;

static inline void bt_reader_init(bt_reader *r, const void *data, size_t size)
{
    r->data = data;
    r->size = size;
    r->at = 0;
    r->failed = false;
}

static inline size_t bt_reader_left(const bt_reader *r)
{
    return r->failed ? 0 : r->size - r->at;
}

/* The next `n` bytes in place, or NULL: the reader has failed, now or before. */
static inline const uint8_t *bt_reader_take(bt_reader *r, size_t n)
{
    if (r->failed || n > bt_reader_left(r)) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->data + r->at;
    r->at += n;
    return p;
}

static inline uint8_t bt_reader_u8(bt_reader *r)
{
    const uint8_t *p = bt_reader_take(r, 1);
    return p ? *p : 0;
}

static inline uint16_t bt_reader_u16(bt_reader *r)
{
    const uint8_t *p = bt_reader_take(r, 2);
    return p ? bt_get_le16(p) : 0;
}

static inline uint32_t bt_reader_u32(bt_reader *r)
{
    const uint8_t *p = bt_reader_take(r, 4);
    return p ? bt_get_le32(p) : 0;
}

static inline uint64_t bt_reader_u64(bt_reader *r)
{
    const uint8_t *p = bt_reader_take(r, 8);
    return p ? bt_get_le64(p) : 0;
}

static inline float bt_float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bt_bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

#endif
