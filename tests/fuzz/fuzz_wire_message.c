/* rooms: wire base
 *
 * Any message that can be built is encoded to as many bytes as were said, and decodes to itself;
 * cut anywhere it does not decode. The bytes are the choices: the first names the message, the next
 * two where it is cut.
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"
#include "fuzz/wire_generate.h"

enum { POOL = 1 << 12 };

static uint8_t body[1 << 16];
static uint8_t pool[POOL];

#define X(NAME, message, number, FIELDS, sender, doc)                                              \
    static void check_##message(wire_source *s, uint32_t cut)                                      \
    {                                                                                              \
        const bt_wire_##message m = wire_make_##message(s);                                        \
        const size_t want = bt_wire_##message##_size(&m);                                          \
        bt_wire_##message back;                                                                    \
        size_t n = 0;                                                                              \
        BT_ASSERT(want <= sizeof body);                                                            \
        BT_ASSERT(bt_wire_##message##_encode(&m, body, want, &n, NULL) == BT_OK && n == want);     \
        BT_ASSERT(bt_wire_##message##_decode(body, n, &back, NULL) == BT_OK);                      \
        BT_ASSERT(wire_same_##message(&m, &back));                                                 \
        BT_ASSERT(bt_wire_##message##_decode(body, cut % n, &back, NULL) == BT_E_PROTOCOL);        \
        BT_ASSERT(bt_wire_##message##_encode(&m, body, cut % n, &n, NULL) == BT_E_BADINPUT);       \
    }
BT_WIRE_MESSAGE_LIST(X)
#undef X

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const checks[])(wire_source *, uint32_t) = {
#define X(NAME, message, number, FIELDS, sender, doc) check_##message,
        BT_WIRE_MESSAGE_LIST(X)
#undef X
    };
    wire_source s = {.data = data, .size = size, .pool = pool, .pool_size = POOL};

    /* Texts and rows show the input, from its end, so that their bytes vary too. */
    for (size_t i = 0; i < POOL && size > 0; i++) {
        pool[i] = data[size - 1 - i % size];
    }
    const size_t which = (size_t)wire_take(&s, 1) % (sizeof checks / sizeof checks[0]);
    const uint32_t cut = (uint32_t)wire_take(&s, 2);
    checks[which](&s, cut);
    return 0;
}
