/* rooms: wire base
 *
 * Any bytes are frames, the beginning of one, or refused with a sentence; no frame is larger than
 * its limit, and nothing is allocated. The body of a frame either is refused by the decoder of its
 * type, or gives a message that encodes to those very bytes (less what a later version may have
 * appended) and decodes to the same again.
 *
 * The first byte chooses: even, the rest is parsed as it is; odd, the rest is a list of type u16,
 * size u16, body, each made into a frame with the right checksums first, so that flips reach the
 * decoders.
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/memory.h"
#include "fuzz/wire_generate.h"
#include "wire/frame.h"

enum { BODY_MAX = 1 << 16 };

static uint8_t again[BODY_MAX];
static uint8_t frame[BT_WIRE_HEADER_BYTES + BODY_MAX];

#define X(NAME, message, number, FIELDS, sender, doc)                                              \
    static void check_##message(const uint8_t *body, size_t size)                                  \
    {                                                                                              \
        bt_wire_##message m, back;                                                                 \
        bt_error err = {.text = ""};                                                               \
        size_t n = 0;                                                                              \
        const bt_status status = bt_wire_##message##_decode(body, size, &m, &err);                 \
        if (status != BT_OK) {                                                                     \
            BT_ASSERT(status == BT_E_PROTOCOL && strstr(err.text, #NAME) != NULL);                 \
            return;                                                                                \
        }                                                                                          \
        BT_ASSERT(bt_wire_##message##_size(&m) <= size);                                           \
        BT_ASSERT(bt_wire_##message##_encode(&m, again, sizeof again, &n, NULL) == BT_OK);         \
        BT_ASSERT(n == bt_wire_##message##_size(&m) && memcmp(again, body, n) == 0);               \
        BT_ASSERT(bt_wire_##message##_decode(again, n, &back, NULL) == BT_OK);                     \
        BT_ASSERT(wire_same_##message(&m, &back));                                                 \
        BT_ASSERT(n == 0 || bt_wire_##message##_decode(again, n - 1, &back, NULL) != BT_OK);       \
    }
BT_WIRE_MESSAGE_LIST(X)
#undef X

static void check_body(const bt_frame *f)
{
    switch (f->type) {
#define X(NAME, message, number, FIELDS, sender, doc)                                              \
    case number:                                                                                   \
        check_##message(f->body, f->size);                                                         \
        break;
        BT_WIRE_MESSAGE_LIST(X)
#undef X
    default:
        BT_ASSERT(!bt_wire_type_known(f->type));
    }
}

static void parse_all(const uint8_t *data, size_t size)
{
    for (size_t at = 0; at <= size;) {
        bt_frame f;
        bt_error err = {.text = ""};
        size_t n = 0;
        const bt_status status = bt_wire_frame_parse(data + at, size - at, BODY_MAX, &f, &n, &err);
        if (status == BT_E_AGAIN) {
            BT_ASSERT(n > size - at && n <= BT_WIRE_HEADER_BYTES + BODY_MAX);
            return;
        }
        if (status != BT_OK) {
            BT_ASSERT(status == BT_E_PROTOCOL && err.text[0] != '\0');
            return;
        }
        BT_ASSERT(n == BT_WIRE_HEADER_BYTES + (size_t)f.size && n <= size - at);
        BT_ASSERT(f.body == data + at + BT_WIRE_HEADER_BYTES);
        check_body(&f);
        at += n;
    }
}

static void forge_all(const uint8_t *data, size_t size)
{
    while (size >= 4) {
        const uint16_t told = bt_get_le16(data + 2);
        const uint16_t n = told <= size - 4 ? told : (uint16_t)(size - 4);
        bt_frame f = {.type = bt_get_le16(data), .size = n, .body = data + 4};
        bt_wire_header_encode(&f, frame);
        memcpy(frame + BT_WIRE_HEADER_BYTES, data + 4, n);
        parse_all(frame, BT_WIRE_HEADER_BYTES + (size_t)n);
        data += 4 + (size_t)n;
        size -= 4 + (size_t)n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint64_t calls = bt_memory_calls();
    if (size > 0 && data[0] % 2 == 1) {
        forge_all(data + 1, size - 1);
    } else if (size > 0) {
        parse_all(data + 1, size - 1);
    }
    BT_ASSERT(bt_memory_calls() == calls);
    return 0;
}
