/* tests/unit/handoff/frames.h - frames by hand, for tests that are one end of a connection. */
#ifndef FRAMES_H
#define FRAMES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "link/link.h"
#include "wire/codec.h"

#define SEND(link, NAME, name, on_stream, ...)                                               \
    do {                                                                                     \
        const bt_wire_##name message = { __VA_ARGS__ };                                      \
        static uint8_t body[1 << 16];                                                        \
        size_t size;                                                                         \
        const bt_status encoded =                                                            \
                bt_wire_##name##_encode(&message, body, sizeof body, &size, NULL);           \
        assert_int_equal(encoded, BT_OK);                                                    \
        (void)(bt_link_send(link, BT_WIRE_##NAME, on_stream, body, size, NULL) == BT_OK);    \
    } while (0)

/* The next frame of that type, whatever comes before it (CANCEL is answered, as a server would wait
 * for that); false when the link ends or time is up. */
static inline bool receive(bt_link *link, uint16_t type, bt_frame *ret)
{
    const double until = bt_clock_ms() + 20000;
    while (bt_clock_ms() < until) {
        const bt_status s = bt_link_receive(link, bt_clock_after_ms(100), ret, NULL);
        if (s == BT_OK && ret->type == type) {
            return true;
        }
        if (s == BT_OK && ret->type == BT_WIRE_CANCEL) {
            SEND(link, CANCELLED, cancelled, ret->stream, 0);
        }
        if (s != BT_OK && s != BT_E_AGAIN) {
            return false;
        }
    }
    return false;
}

static inline bool link_ends(bt_link *link)
{
    bt_frame f;
    return !receive(link, 0xFFFF, &f) && bt_link_receive(link, 0, &f, NULL) != BT_E_AGAIN;
}

static inline int quiet(void **state)
{
    (void)state;
    bt_log_set_level(getenv("BATON_TEST_LOG") ? BT_LOG_DEBUG : BT_LOG_ERROR);
    return 0;
}

#endif
