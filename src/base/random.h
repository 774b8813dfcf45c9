/* base/random.h - numbers from the system, and the generator the sampler promises (MT19937).
 *
 * bt_mt19937 is the 32-bit Mersenne Twister (Matsumoto and Nishimura 1998) with the usual seeding,
 * so that a seed gives the same draws as any other conforming implementation.
 * Threads: a generator belongs to one thread; bt_random_bytes may be called from any.
 */
#ifndef BT_BASE_RANDOM_H
#define BT_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    uint32_t state[624];
    uint32_t index;
} bt_mt19937;

void     bt_mt19937_init(bt_mt19937 *g, uint32_t seed);
uint32_t bt_mt19937_next(bt_mt19937 *g);
/* In [0, 1): two outputs, (u0 + u1 * 2^32) / 2^64. */
double   bt_mt19937_unit(bt_mt19937 *g);

/* From the operating system; BT_E_IO if it gives none. */
BT_MUST_CHECK bt_status bt_random_bytes(void *to, size_t n);
BT_MUST_CHECK bt_status bt_random_u64(uint64_t *ret_value);

#endif
