/* cpu/simd_avx512.h - the vector vocabulary of body_*.h in AVX-512; included several times.
 *
 * Included by one kernel file at a time, which is compiled with the flags of its ISA. A vf is a
 * vector of f32, a vi the same bits as integers, a vd half a vector as f64. Operations that round
 * do so once, to nearest even; vf_fma is fused in every ISA.
 */
#ifndef BT_CPU_SIMD_AVX512_H
#define BT_CPU_SIMD_AVX512_H

#include <string.h>

#include "cpu/simd_x86.h"

enum { LANES = 16, REGISTERS = 32 };

typedef __m512  vf;
typedef __m512i vi;
typedef __m512d vd;

/* ---- f32 --------------------------------------------------------------------------------- */

BT_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
BT_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
BT_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
BT_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
BT_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
BT_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
BT_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
BT_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
/* a * b + c, and c - a * b */
BT_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
BT_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
/* NaN in b wins, NaN in a is lost. */
BT_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
BT_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }

BT_INLINE __mmask16 lanes_below(uint32_t n)
{
    return (__mmask16)(n >= LANES ? 0xffffu : (1u << n) - 1u);
}

/* The first n lanes (all if n >= LANES); the others read nothing and are 0. */
BT_INLINE vf vf_load_part(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(lanes_below(n), p);
}

BT_INLINE void vf_store_part(float *p, vf v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, lanes_below(n), v);
}

/* Lanes first <= i < last of v, `other` elsewhere. */
BT_INLINE vf vf_keep(vf v, uint32_t first, uint32_t last, vf other)
{
    return _mm512_mask_mov_ps(other, (__mmask16)(lanes_below(last) & ~lanes_below(first)), v);
}

BT_INLINE vf vf_round(vf v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* |a| < b ? yes : no, lane by lane. */
BT_INLINE vf vf_select_abs_below(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(_mm512_abs_ps(a), b, _CMP_LT_OQ), yes);
}

/* Fixed trees. */
BT_INLINE float vf_sum(vf v)
{
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

BT_INLINE float vf_largest(vf v)
{
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* (x1, x0, x3, x2, ...) */
BT_INLINE vf vf_swap_pairs(vf v) { return _mm512_permute_ps(v, 0xb1); }
/* (p0, p0, p1, p1, ...) of LANES / 2 values */
BT_INLINE vf vf_load_doubled(const float *p)
{
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
/* (-a, b, -c, d, ...) */
BT_INLINE vf vf_negate_even(vf v)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v),
                                                _mm512_set1_epi64(0x80000000)));
}

BT_INLINE float vf_first(vf v) { return _mm512_cvtss_f32(v); }

/* to[c][r] = from[r][c], LANES x LANES. Lane by lane of 128 bits: rows r, r + 4, r + 8, r + 12
 * come into one vector, so that a 4 x 4 transposition inside the lanes leaves whole columns. */
BT_INLINE __m512 four_quads(const float *from, size_t stride)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(from));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(from + 4 * stride), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(from + 8 * stride), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(from + 12 * stride), 3);
}

BT_INLINE void transpose_tile(const float *from, size_t stride, float *to, size_t to_stride)
{
    for (int c = 0; c < LANES; c += 4, from += 4, to += 4 * to_stride) {
        const __m512 r0 = four_quads(from, stride), r1 = four_quads(from + stride, stride);
        const __m512 r2 = four_quads(from + 2 * stride, stride);
        const __m512 r3 = four_quads(from + 3 * stride, stride);
        const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
        const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
        const __m512d e = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
        const __m512d f = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
        _mm512_storeu_ps(to, _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)));
        _mm512_storeu_ps(to + to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
        _mm512_storeu_ps(to + 2 * to_stride, _mm512_castpd_ps(_mm512_unpacklo_pd(e, f)));
        _mm512_storeu_ps(to + 3 * to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(e, f)));
    }
}

/* ---- f64 --------------------------------------------------------------------------------- */

BT_INLINE vd vd_zero(void) { return _mm512_setzero_pd(); }
BT_INLINE vd vd_low(vf v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }
BT_INLINE vd vd_high(vf v) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)); }
BT_INLINE vd vd_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }
BT_INLINE vd vd_add(vd a, vd b) { return _mm512_add_pd(a, b); }
BT_INLINE double vd_sum(vd v)
{
    const __m256d a = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    const __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}

/* ---- Stored numbers ----------------------------------------------------------------------- */

BT_INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

BT_INLINE vf vf_from_f16(const void *p)
{
    return _mm512_cvtph_ps(load_256(p));
}

BT_INLINE vf vf_from_bf16(const void *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(load_256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

BT_INLINE void vf_to_f16(void *p, vf v)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

BT_INLINE void vf_to_bf16(void *p, vf v)
{
    const __m512i   bits = _mm512_castps_si512(v);
    const __m512i   odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i   round = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i   quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i   done = _mm512_mask_mov_epi32(_mm512_add_epi32(bits, round), nan, quiet);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(done, 16)));
}

BT_INLINE vf vf_from_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_128(p)));
}

BT_INLINE vf vf_from_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(p)));
}

/* 2^(e - 128) for LANES exponent bytes; below 2, denormals. */
BT_INLINE vf vf_from_e8m0_half(const uint8_t *p)
{
    const __m512i   e = _mm512_cvtepu8_epi32(load_128(p));
    const __m512i   normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i   small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
}

/* ---- Integers ----------------------------------------------------------------------------- */

BT_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
BT_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
BT_INLINE vi vi_set8(uint8_t x) { return _mm512_set1_epi8((char)x); }
BT_INLINE vi vi_set32(int32_t x) { return _mm512_set1_epi32(x); }
BT_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
BT_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
BT_INLINE vi vi_add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
BT_INLINE vi vi_add16(vi a, vi b) { return _mm512_add_epi16(a, b); }
/* Unsigned times signed bytes, two neighbours added, saturating. */
BT_INLINE vi vi_pairs16(vi u, vi s) { return _mm512_maddubs_epi16(u, s); }
/* Two neighbours added. */
BT_INLINE vi vi_widen16(vi v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }
#define vi_shift_right16(v, n) _mm512_srli_epi16(v, n)
#define vi_shift_left16(v, n)  _mm512_slli_epi16(v, n)
#define vi_shift_left32(v, n)  _mm512_slli_epi32(v, n)
BT_INLINE vf vf_from_i32(vi v) { return _mm512_cvtepi32_ps(v); }
/* v * 2^n for whole n in -150 .. 128, rounded once where the result is a denormal. */
BT_INLINE vf vf_times_power_of_two(vf v, vf n) { return _mm512_scalef_ps(v, n); }
/* table[v & 15], byte by byte; v < 128 */
BT_INLINE vi vi_lookup(const uint8_t table[16], vi v)
{
    const __m128i row = load_128(table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), v);
}
/* Four activation codes in every lane. */
BT_INLINE vi vi_repeat4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* ---- Sixteen activations ------------------------------------------------------------------ */

BT_INLINE uint32_t largest_magnitude_bits_of_16(const float *x)
{
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
    return largest_of_eight(_mm256_max_epi32(_mm512_castsi512_si256(bits),
                                             _mm512_extracti32x8_epi32(bits, 1)));
}

/* x times one of four factors, less the nearest whole number, squared. */
BT_INLINE __m512 squared_errors(__m512 x, const float *factor)
{
    const __m512 v = _mm512_mul_ps(x, _mm512_set1_ps(*factor));
    const __m512 e = _mm512_reduce_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_mul_ps(e, e);
}

/* Upper halves added to lower ones: (a, b) */
BT_INLINE __m512 fold_pair(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

BT_INLINE quad squared_error_sums_of_16(const float *x, const float factors[4])
{
    const __m512 v = _mm512_loadu_ps(x);
    const __m512 ab = fold_pair(squared_errors(v, factors), squared_errors(v, factors + 1));
    const __m512 cd = fold_pair(squared_errors(v, factors + 2), squared_errors(v, factors + 3));
    /* Each quarter: the sums i, i + 4, i + 8, i + 12 of one factor. */
    const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                                   _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 h = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    const __m512 s = _mm512_add_ps(h, _mm512_permute_ps(h, 0xb1));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s));
}

BT_INLINE int32_t round_16_to_i8(const float *x, float by, int8_t *to)
{
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(by));
    return store_codes(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)), to);
}

#endif
