/* tests/kernels/ceilings.c - see ceilings.h. */
#include "ceilings.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

double seconds_now(void)
{
    struct timespec t;

    /* Of this thread: others on the machine then take cache and bandwidth, but not time. */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ceiling_read_gbs(void)
{
    enum { BYTES = 512 << 20, ALIGNMENT = 2 << 20 };
    uint64_t *data = aligned_alloc(ALIGNMENT, BYTES);
    double    best = 0.0;

    if (!data) {
        return 0.0;
    }
#if defined(__linux__)
    madvise(data, BYTES, MADV_HUGEPAGE);
#endif
    memset(data, 1, BYTES);
    for (int round = 0; round < 4; round++) {
        uint64_t     sums[8] = { 0 };
        const double start = seconds_now();
        for (size_t i = 0; i < BYTES / sizeof *data; i += 8) {
            for (size_t j = 0; j < 8; j++) {
                sums[j] += data[i + j];
            }
        }
        const double seconds = seconds_now() - start;
        volatile uint64_t keep = sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6]
                                 ^ sums[7];
        (void)keep;
        best = BYTES / seconds * 1e-9 > best ? BYTES / seconds * 1e-9 : best;
    }
    free(data);
    return best;
}

double ceiling_int8_gops(bt_isa isa)
{
    double best = 0.0;

#if defined(__x86_64__)
    if (isa != BT_ISA_AVX512VNNI) {
        return 0.0;
    }
    for (int round = 0; round < 5; round++) {
        const double start = seconds_now();
        const double operations = dpbusd_rounds(4000000);
        const double gops = operations / (seconds_now() - start) * 1e-9;
        best = gops > best ? gops : best;
    }
#else
    (void)isa;
#endif
    return best;
}
