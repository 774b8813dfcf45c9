/* cpu/kernels_avx2.c - AVX2, FMA and F16C: the kernels of body_*.h, eight lanes wide. */
#if defined(__x86_64__)

#include "cpu/simd_avx2.h"

enum { TILE_ROWS = 4, FLOAT_ROWS = 6, FLOAT_VECTORS = 2, DELTA_ROWS = 4 };
#define ATTENTION_LINES 3
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

void bt_cpu_kernels_avx2(bt_cpu_kernels *k)
{
    fill_table(k);
}

#else
typedef int bt_cpu_nothing_here;
#endif
