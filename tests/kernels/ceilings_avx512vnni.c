/* tests/kernels/ceilings_avx512vnni.c - vpdpbusd as fast as it goes: 16 sums that depend on nothing
 * but themselves. */
#include <immintrin.h>

#include "ceilings.h"

double dpbusd_rounds(uint64_t n)
{
    __m512i sums[16];
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8((char)n);

    for (int i = 0; i < 16; i++) {
        sums[i] = _mm512_set1_epi32(i);
    }
    for (uint64_t round = 0; round < n; round++) {
#if defined(__clang__)
#pragma unroll
#else
#pragma GCC unroll 16
#endif
        for (int i = 0; i < 16; i++) {
            sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
        }
    }
    for (int i = 1; i < 16; i++) {
        sums[0] = _mm512_add_epi32(sums[0], sums[i]);
    }
    volatile int keep = _mm512_reduce_add_epi32(sums[0]);
    (void)keep;
    return (double)n * 16.0 * 64.0 * 2.0;
}
