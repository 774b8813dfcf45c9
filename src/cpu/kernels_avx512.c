/* cpu/kernels_avx512.c - AVX-512 without byte dot products: everything but those. */
#if defined(__x86_64__)

#include "cpu/simd_avx512.h"

enum { TILE_ROWS = 8, FLOAT_ROWS = 6, FLOAT_VECTORS = 4, DELTA_ROWS = 8 };
#define ATTENTION_LINES 6
enum { SCORE_LINES = ATTENTION_LINES, SUM_LINES = ATTENTION_LINES, SUM_VECTORS = 4 };

#include "cpu/dot_maddubs.h"
#include "cpu/body_acts.h"
#include "cpu/body_attention.h"
#include "cpu/body_float.h"
#include "cpu/body_linear.h"
#include "cpu/body_rows.h"
#include "cpu/body_recurrent.h"
#include "cpu/body_experts.h"
#include "cpu/body_table.h"

void bt_cpu_linear_avx512(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                          uint32_t n_rows, uint32_t out_first, uint32_t out_last,
                          const float *bias, bool add, float *y, size_t y_stride)
{
    linear(w, acts, act_stride_bytes, n_rows, out_first, out_last, bias, add, y, y_stride);
}

void bt_cpu_kernels_avx512(bt_cpu_kernels *k)
{
    fill_table(k);
}

#else
typedef int bt_cpu_nothing_here;
#endif
