/* cpu/simd_x86.h - what the vector vocabularies of x86 have in common; included several times.
 *
 * Shared so that ISAs do the same operations in the same order where their results must agree.
 */
#ifndef BT_CPU_SIMD_X86_H
#define BT_CPU_SIMD_X86_H

#include <immintrin.h>
#include <stdint.h>

#define BT_INLINE static inline __attribute__((always_inline))

typedef __m128 quad;

BT_INLINE __m128i load_128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

BT_INLINE uint32_t largest_of_eight(__m256i v)
{
    const __m128i b = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i c = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}

/* Values i and i + 4 added. */
BT_INLINE quad quad_of_eight(__m256 v)
{
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

/* (sum of a, of b, of c, of d) */
BT_INLINE quad quad_sums(quad a, quad b, quad c, quad d)
{
    const quad ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    const quad cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

/* Which of four is the smallest; the first of equals. */
BT_INLINE int index_of_smallest(quad v)
{
    const quad b = _mm_min_ps(v, _mm_shuffle_ps(v, v, 0x4e));
    const quad c = _mm_min_ps(b, _mm_shuffle_ps(b, b, 0xb1));
    return __builtin_ctz((unsigned)_mm_movemask_ps(_mm_cmpeq_ps(v, c)) | 8u);
}

BT_INLINE quad quad_set(float x) { return _mm_set1_ps(x); }
BT_INLINE void quad_store(float to[4], quad v) { _mm_storeu_ps(to, v); }
BT_INLINE quad quad_mul(quad a, const float b[4]) { return _mm_mul_ps(a, _mm_loadu_ps(b)); }

/* Stores 16 codes and returns their sum. */
BT_INLINE int32_t store_codes(__m128i codes, int8_t *to)
{
    /* Offset to unsigned, so that sad can add them: the sum grows by 16 * 128. */
    const __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8((char)0x80)),
                                      _mm_setzero_si128());
    _mm_storeu_si128((__m128i *)(void *)to, codes);
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

#endif
