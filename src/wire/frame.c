/* wire/frame.c - header out, header in. */
#include "wire/frame.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/digest.h"

enum {
    AT_MAGIC = 0,
    AT_TYPE = 4,
    AT_FLAGS = 6,
    AT_STREAM = 8,
    AT_LENGTH = 12,
    AT_SEQUENCE = 16,
    AT_BODY_CHECKSUM = 24,
    AT_HEADER_CHECKSUM = 28
};
_Static_assert(AT_HEADER_CHECKSUM + 4 == BT_WIRE_HEADER_BYTES, "the header is 32 bytes");

/* The base of a zero-sized span may be NULL, which XXH3 need not accept. */
static uint64_t hash_of(const uint8_t *body, uint32_t size)
{
    return bt_hash64(size > 0 ? body : (const uint8_t *)"", size, 0);
}

void bt_wire_header_encode(bt_frame *f, uint8_t to[BT_WIRE_HEADER_BYTES])
{
    BT_ASSERT(f->size <= BT_WIRE_BODY_BYTES_MAX);
    BT_ASSERT(f->size == 0 || f->body != NULL);

    f->hash = hash_of(f->body, f->size);
    bt_put_le32(to + AT_MAGIC, BT_WIRE_MAGIC);
    bt_put_le16(to + AT_TYPE, f->type);
    bt_put_le16(to + AT_FLAGS, f->flags);
    bt_put_le32(to + AT_STREAM, f->stream);
    bt_put_le32(to + AT_LENGTH, f->size);
    bt_put_le64(to + AT_SEQUENCE, f->sequence);
    bt_put_le32(to + AT_BODY_CHECKSUM, (uint32_t)f->hash);
    bt_put_le32(to + AT_HEADER_CHECKSUM, bt_checksum32(to, AT_HEADER_CHECKSUM));
}

/* What can be said of the header alone. The magic goes first, with as many bytes as there are, so
 * that somebody who speaks HTTP or TLS to this port learns of it at once. */
static bt_status check_header(const uint8_t *data, size_t size, uint32_t body_max, bt_error *err)
{
    uint8_t magic[4];

    bt_put_le32(magic, BT_WIRE_MAGIC);
    if (memcmp(data, magic, size < sizeof magic ? size : sizeof magic) != 0) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "not a Baton frame: it begins with 0x%02x; is something else (a browser, "
                       "TLS without a key here) talking to this port?",
                       data[0]);
    }
    if (size < BT_WIRE_HEADER_BYTES) {
        return BT_E_AGAIN;
    }
    const uint32_t want = bt_get_le32(data + AT_HEADER_CHECKSUM);
    const uint32_t have = bt_checksum32(data, AT_HEADER_CHECKSUM);
    if (have != want) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "damaged on the way: the frame header's checksum is %08x, not %08x", have,
                       want);
    }
    const uint32_t length = bt_get_le32(data + AT_LENGTH);
    if (length > body_max) {
        return bt_fail(err, BT_E_PROTOCOL, "a frame of type %u with %u bytes, at most %u here",
                       bt_get_le16(data + AT_TYPE), length, body_max);
    }
    return BT_OK;
}

bt_status bt_wire_frame_parse(const uint8_t *data, size_t size, uint32_t body_max,
                              bt_frame *ret_frame, size_t *ret_size, bt_error *err)
{
    BT_ASSERT(body_max <= BT_WIRE_BODY_BYTES_MAX);

    const bt_status status = size > 0 ? check_header(data, size, body_max, err) : BT_E_AGAIN;
    if (status != BT_OK) {
        if (status == BT_E_AGAIN) {
            *ret_size = BT_WIRE_HEADER_BYTES;
        }
        return status;
    }
    const bt_frame f = {
        .type = bt_get_le16(data + AT_TYPE),
        .flags = bt_get_le16(data + AT_FLAGS),
        .stream = bt_get_le32(data + AT_STREAM),
        .sequence = bt_get_le64(data + AT_SEQUENCE),
        .size = bt_get_le32(data + AT_LENGTH),
        .body = data + BT_WIRE_HEADER_BYTES,
    };
    if (size - BT_WIRE_HEADER_BYTES < f.size) {
        *ret_size = BT_WIRE_HEADER_BYTES + (size_t)f.size;
        return BT_E_AGAIN;
    }
    const uint64_t hash = hash_of(f.body, f.size);
    const uint32_t want = bt_get_le32(data + AT_BODY_CHECKSUM);
    if ((uint32_t)hash != want) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "damaged on the way: the body of a frame of type %u, stream %u, %u bytes, "
                       "has the checksum %08x, not %08x",
                       f.type, f.stream, f.size, (uint32_t)hash, want);
    }
    *ret_frame = f;
    ret_frame->hash = hash;
    *ret_size = BT_WIRE_HEADER_BYTES + (size_t)f.size;
    return BT_OK;
}
