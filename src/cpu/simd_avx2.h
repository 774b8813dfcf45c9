/* cpu/simd_avx2.h - the vector vocabulary of body_*.h in AVX2, FMA, F16C; included several times.
 *
 * The same names and the same rules as cpu/simd_avx512.h, which explains them; half as wide.
 */
#ifndef BT_CPU_SIMD_AVX2_H
#define BT_CPU_SIMD_AVX2_H

#include <string.h>

#include "cpu/simd_x86.h"

enum { LANES = 8, REGISTERS = 16 };

typedef __m256  vf;
typedef __m256i vi;
typedef __m256d vd;

/* ---- f32 --------------------------------------------------------------------------------- */

BT_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
BT_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
BT_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
BT_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
BT_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
BT_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
BT_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
BT_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
BT_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
BT_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
BT_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
BT_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }

/* All ones in the first n lanes. */
BT_INLINE __m256i lanes_below(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= LANES ? LANES : (int)n), lane);
}

BT_INLINE vf vf_load_part(const float *p, uint32_t n)
{
    return n >= LANES ? vf_load(p) : _mm256_maskload_ps(p, lanes_below(n));
}

BT_INLINE void vf_store_part(float *p, vf v, uint32_t n)
{
    if (n >= LANES) {
        vf_store(p, v);
    } else {
        _mm256_maskstore_ps(p, lanes_below(n), v);
    }
}

BT_INLINE vf vf_keep(vf v, uint32_t first, uint32_t last, vf other)
{
    const __m256i inside = _mm256_andnot_si256(lanes_below(first), lanes_below(last));
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(inside));
}

BT_INLINE vf vf_round(vf v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

BT_INLINE vf vf_select_abs_below(vf a, vf b, vf yes, vf no)
{
    const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(magnitude, b, _CMP_LT_OQ));
}

BT_INLINE float vf_sum(vf v)
{
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

BT_INLINE float vf_largest(vf v)
{
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

BT_INLINE float vf_first(vf v) { return _mm256_cvtss_f32(v); }

BT_INLINE vf vf_swap_pairs(vf v) { return _mm256_permute_ps(v, 0xb1); }

BT_INLINE vf vf_load_doubled(const float *p)
{
    const __m128 v = _mm_loadu_ps(p);
    return _mm256_set_m128(_mm_unpackhi_ps(v, v), _mm_unpacklo_ps(v, v));
}

BT_INLINE vf vf_negate_even(vf v)
{
    return _mm256_xor_ps(v, _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000)));
}

BT_INLINE __m256 two_quads(const float *from, size_t stride)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)),
                                _mm_loadu_ps(from + 4 * stride), 1);
}

BT_INLINE void transpose_tile(const float *from, size_t stride, float *to, size_t to_stride)
{
    for (int c = 0; c < LANES; c += 4, from += 4, to += 4 * to_stride) {
        const __m256 r0 = two_quads(from, stride), r1 = two_quads(from + stride, stride);
        const __m256 r2 = two_quads(from + 2 * stride, stride);
        const __m256 r3 = two_quads(from + 3 * stride, stride);
        const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1));
        const __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
        const __m256d e = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1));
        const __m256d f = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
        _mm256_storeu_ps(to, _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)));
        _mm256_storeu_ps(to + to_stride, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
        _mm256_storeu_ps(to + 2 * to_stride, _mm256_castpd_ps(_mm256_unpacklo_pd(e, f)));
        _mm256_storeu_ps(to + 3 * to_stride, _mm256_castpd_ps(_mm256_unpackhi_pd(e, f)));
    }
}

/* ---- f64 --------------------------------------------------------------------------------- */

BT_INLINE vd vd_zero(void) { return _mm256_setzero_pd(); }
BT_INLINE vd vd_low(vf v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
BT_INLINE vd vd_high(vf v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }
BT_INLINE vd vd_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }
BT_INLINE vd vd_add(vd a, vd b) { return _mm256_add_pd(a, b); }
BT_INLINE double vd_sum(vd v)
{
    const __m128d b = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}

/* ---- Stored numbers ----------------------------------------------------------------------- */

BT_INLINE vf vf_from_f16(const void *p)
{
    return _mm256_cvtph_ps(load_128(p));
}

BT_INLINE vf vf_from_bf16(const void *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(load_128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

BT_INLINE void vf_to_f16(void *p, vf v)
{
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* The upper 16 bits of every lane, in order. */
BT_INLINE void store_upper_halves(void *p, __m256i v)
{
    const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(v, 16), _mm256_setzero_si256());
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(ordered));
}

BT_INLINE void vf_to_bf16(void *p, vf v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256  quiet = _mm256_or_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    const __m256  rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, round));
    const __m256  nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    store_upper_halves(p, _mm256_castps_si256(_mm256_blendv_ps(rounded, quiet, nan)));
}

BT_INLINE __m128i eight_bytes(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

BT_INLINE vf vf_from_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes(p)));
}

BT_INLINE vf vf_from_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p)));
}

BT_INLINE vf vf_from_e8m0_half(const uint8_t *p)
{
    const __m256i e = _mm256_cvtepu8_epi32(eight_bytes(p));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
}

/* ---- Integers ----------------------------------------------------------------------------- */

BT_INLINE vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
BT_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
BT_INLINE vi vi_set8(uint8_t x) { return _mm256_set1_epi8((char)x); }
BT_INLINE vi vi_set32(int32_t x) { return _mm256_set1_epi32(x); }
BT_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
BT_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
BT_INLINE vi vi_add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
BT_INLINE vi vi_add16(vi a, vi b) { return _mm256_add_epi16(a, b); }
BT_INLINE vi vi_pairs16(vi u, vi s) { return _mm256_maddubs_epi16(u, s); }
BT_INLINE vi vi_widen16(vi v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
#define vi_shift_right16(v, n) _mm256_srli_epi16(v, n)
#define vi_shift_left16(v, n)  _mm256_slli_epi16(v, n)
#define vi_shift_left32(v, n)  _mm256_slli_epi32(v, n)
BT_INLINE vf vf_from_i32(vi v) { return _mm256_cvtepi32_ps(v); }
BT_INLINE __m256 power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* In two halves, since 2^n itself may be out of range; only the second may round. */
BT_INLINE vf vf_times_power_of_two(vf v, vf n)
{
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256  part = _mm256_mul_ps(v, power_of_two(half));
    return _mm256_mul_ps(part, power_of_two(_mm256_sub_epi32(whole, half)));
}

BT_INLINE vi vi_lookup(const uint8_t table[16], vi v)
{
    const __m128i row = load_128(table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), v);
}

BT_INLINE vi vi_repeat4(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* ---- Sixteen activations ------------------------------------------------------------------ */

BT_INLINE uint32_t largest_magnitude_bits_of_16(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return largest_of_eight(_mm256_max_epi32(_mm256_and_si256(vi_load(x), mask),
                                             _mm256_and_si256(vi_load(x + 8), mask)));
}

BT_INLINE __m256 squared_errors_of_8(const float *x, float by)
{
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by));
    const __m256 e = _mm256_sub_ps(vf_round(v), v);
    return _mm256_mul_ps(e, e);
}

BT_INLINE quad folded_errors(const float *x, float by)
{
    return quad_of_eight(_mm256_add_ps(squared_errors_of_8(x, by), squared_errors_of_8(x + 8, by)));
}

BT_INLINE quad squared_error_sums_of_16(const float *x, const float factors[4])
{
    return quad_sums(folded_errors(x, factors[0]), folded_errors(x, factors[1]),
                     folded_errors(x, factors[2]), folded_errors(x, factors[3]));
}

BT_INLINE int32_t round_16_to_i8(const float *x, float by, int8_t *to)
{
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(by)));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8),
                                                          _mm256_set1_ps(by)));
    /* Packing works inside halves: (l0-3, h0-3 | l4-7, h4-7), put in order as 64-bit pieces. */
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    return store_codes(_mm_packs_epi16(_mm256_castsi256_si128(words),
                                       _mm256_extracti128_si256(words, 1)), to);
}

#endif
