/* cpu/tables.h - what the kernel files of this room share. Private to cpu/ and its tests.
 *
 * An ISA's function overrides slots of a table that the ISAs before it have filled. Nothing in a
 * ISA's file may run before bt_cpu_isa_supported() has returned true. */
#ifndef BT_CPU_TABLES_H
#define BT_CPU_TABLES_H

#include "cpu/kernels.h"

void bt_cpu_kernels_ref(bt_cpu_kernels *k);
#if defined(__x86_64__)
void bt_cpu_kernels_avx2(bt_cpu_kernels *k);
void bt_cpu_kernels_avx512(bt_cpu_kernels *k);
void bt_cpu_kernels_avx512vnni(bt_cpu_kernels *k);
#endif

/* Slots `linear` that other ISAs call: the reference's for matrices left as the file has them,
 * that of AVX-512 for plain numbers. */
typedef void bt_cpu_linear(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                           uint32_t n_rows, uint32_t out_first, uint32_t out_last,
                           const float *bias, bool add, float *y, size_t y_stride);
bt_cpu_linear bt_cpu_linear_ref;
#if defined(__x86_64__)
bt_cpu_linear bt_cpu_linear_avx512;
#endif

/* Slots of recurrent layers and experts in readable C, and what all ISAs share of them: the same
 * bits on every machine. exp(decay * softplus(alpha + dt_bias)) and sigmoid(beta), in double and
 * rounded once. */
double bt_cpu_activate(double x, bt_activation act);
void bt_cpu_kernels_ref_recurrent(bt_cpu_kernels *k);
void bt_cpu_kernels_ref_experts(bt_cpu_kernels *k);
void bt_cpu_delta_gates(float alpha, float dt_bias, float decay, float beta, float *ret_keep,
                        float *ret_beta);
/* The n_used best of n scores, best first; of equals the lower number. */
void bt_cpu_best_scores(const float *scores, uint32_t n, uint32_t n_used, uint32_t *ret_best);
/* Tokens that delta_scan gets ready at a time. */
enum { BT_DELTA_TOKENS = 32 };

/* Forms of activations (bt_cpu_kernels.act_form). */
enum {
    BT_ACT_FORM_F32 = 0,     /* the row as it is */
    BT_ACT_FORM_Q8 = 1,      /* bt_act_block after bt_act_block */
};

/* Attention works on at most this many (query row, head) pairs at a time. */
enum { BT_ATTENTION_LINES_MAX = 48 };

#endif
