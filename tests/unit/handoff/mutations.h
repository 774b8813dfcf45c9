/* tests/unit/handoff/mutations.h - frames with something wrong in them, for tests of both sides.
 *
 * Everything depends on dice_state alone: a test sets it to the number of the try, and that number
 * makes the same mutations again.
 */
#ifndef MUTATIONS_H
#define MUTATIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

enum { SAID_MAX = 1 << 14 };

/* A frame that is to be said; `size` bytes of its body. */
typedef struct {
    uint16_t type;
    uint32_t stream;
    size_t   size;
    uint8_t  body[SAID_MAX];
} said;

static uint64_t dice_state;

/* splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t dice(void)
{
    uint64_t z = (dice_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* How many tries: BATON_TEST_MUTATIONS, or so many. */
static inline uint64_t mutations_wanted(uint64_t n)
{
    const char *wanted = getenv("BATON_TEST_MUTATIONS");
    return wanted ? strtoull(wanted, NULL, 10) : n;
}

/* A number of four or eight bytes becomes one at an edge: of types, of limits, or of what the frame
 * is about (`near`, one less, one more). It is one of the body's first, where numbers are. */
static inline void mutate_number(said *f, uint64_t near)
{
    const uint64_t telling[] = { 0, 1, near - 1, near, near + 1, 127, 128, 255, 65535, 65536,
                                 1 << 20, (1 << 20) + 1, INT32_MAX, UINT32_MAX, INT64_MAX,
                                 UINT64_MAX };
    const uint64_t v = telling[dice() % BT_LEN(telling)];
    const size_t width = dice() % 2 ? 4 : 8;
    size_t at = dice() % (f->size < 256 ? f->size + 1 : 256);
    at -= dice() % 4 ? at % 4 : 0;                  /* most numbers are aligned */
    for (size_t i = 0; i < width && at + i < f->size; i++) {
        f->body[at + i] = (uint8_t)(v >> (8 * i));
    }
}

static inline void mutate(said *f, uint64_t near)
{
    switch (dice() % 8) {
    case 0:
        f->type = (uint16_t)(dice() % 24);
        break;
    case 1:
        f->stream = (uint32_t)(dice() % 3 == 0 ? dice() : f->stream + dice() % 3);
        break;
    case 2:
        f->size = dice() % (f->size + 1);
        break;
    case 3:
    case 4:
        f->body[f->size ? dice() % f->size : 0] ^= (uint8_t)(1u << dice() % 8);
        break;
    default:
        mutate_number(f, near);
        break;
    }
}

#endif
