#include "base/random.h"

#include <sys/random.h>
#include <unistd.h>

enum { N = 624, M = 397 };

void bt_mt19937_init(bt_mt19937 *g, uint32_t seed)
{
    g->state[0] = seed;
    for (uint32_t i = 1; i < N; i++) {
        const uint32_t previous = g->state[i - 1];
        g->state[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
    }
    g->index = N;
}

static void refill(bt_mt19937 *g)
{
    uint32_t *s = g->state;
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % N] & 0x7fffffffu);
        s[i] = s[(i + M) % N] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
    }
    g->index = 0;
}

uint32_t bt_mt19937_next(bt_mt19937 *g)
{
    if (g->index >= N) {
        refill(g);
    }
    uint32_t y = g->state[g->index++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

double bt_mt19937_unit(bt_mt19937 *g)
{
    const double low = (double)bt_mt19937_next(g);
    const double high = (double)bt_mt19937_next(g);
    const double unit = (low + high * 4294967296.0) / 18446744073709551616.0;
    return unit < 1.0 ? unit : 0.99999999999999988898; /* the sum may round up to 1 */
}

bt_status bt_random_bytes(void *to, size_t n)
{
    unsigned char *at = to;
    while (n > 0) {
        const size_t part = n < 256 ? n : 256; /* getentropy gives at most 256 at once */
        if (getentropy(at, part) != 0) {
            return BT_E_IO;
        }
        at += part;
        n -= part;
    }
    return BT_OK;
}

bt_status bt_random_u64(uint64_t *ret_value)
{
    return bt_random_bytes(ret_value, sizeof *ret_value);
}
