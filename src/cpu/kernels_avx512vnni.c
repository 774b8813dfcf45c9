/* cpu/kernels_avx512vnni.c - AVX-512 with byte dot products: the products with quantised weights.
 * Everything else is that of kernels_avx512.c. */
#if defined(__x86_64__)

#include "cpu/simd_avx512.h"

enum { TILE_ROWS = 12 };

/* Unsigned times signed bytes, four neighbours to a lane. */
BT_INLINE vi dot_part(const vi w[4], const int8_t *q, int code_max)
{
    vi sum = vi_zero();

    (void)code_max;
    sum = _mm512_dpbusd_epi32(sum, w[0], vi_repeat4(q));
    sum = _mm512_dpbusd_epi32(sum, w[1], vi_repeat4(q + 4));
    sum = _mm512_dpbusd_epi32(sum, w[2], vi_repeat4(q + 8));
    return _mm512_dpbusd_epi32(sum, w[3], vi_repeat4(q + 12));
}

#include "cpu/body_linear.h"

static void linear(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                   uint32_t n_rows, uint32_t out_first, uint32_t out_last, const float *bias,
                   bool add, float *y, size_t y_stride)
{
    const bool codes = w->layout == BT_PACK_LAYOUT_STRIPS
                       && bt_cpu_pack_kind_of(w->type)->codes != BT_CODES_PLAIN;

    (codes ? linear_strips : bt_cpu_linear_avx512)(w, acts, act_stride_bytes, n_rows, out_first,
                                                   out_last, bias, add, y, y_stride);
}

void bt_cpu_kernels_avx512vnni(bt_cpu_kernels *k)
{
    k->linear = linear;
}

#else
typedef int bt_cpu_nothing_here;
#endif
