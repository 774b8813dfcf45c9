/* cpu/kernels.h - the inner loops of the CPU device, one slot each.
 *
 * bt_cpu_kernels_get() gives the table of one instruction set: every slot filled by the
 * readable reference (kernels_ref.c), then overridden by what the ISA does better. Tables never
 * change and may be read by all threads.
 *
 * Batch invariance (docs/architecture.md): for every slot a row's result depends only on that row
 * and on the weights, never on how many rows or outputs are asked for at once. Sums run in one
 * fixed order per ISA. Tests compare one row with many bit for bit, and each ISA with the
 * reference within the bound of floating-point addition.
 */
#ifndef BT_CPU_KERNELS_H
#define BT_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/functions.h"
#include "quant/types.h"

/* ISAs of this build's architecture, each including those before it. */
typedef enum {
    BT_ISA_REF = 0,
    BT_ISA_AVX2,          /* AVX2, FMA, F16C */
    BT_ISA_AVX512,        /* F, BW, DQ, VL */
    BT_ISA_AVX512VNNI,    /* + VNNI */
    BT_ISA_NEON,          /* aarch64 baseline */
    BT_ISA_DOTPROD,
    BT_ISA_I8MM,
    BT_ISA_COUNT
} bt_isa;

/* The best ISA that this machine and its operating system support (XCR0 is checked). */
bt_isa      bt_cpu_isa_detect(void);
bool        bt_cpu_isa_supported(bt_isa isa);
const char *bt_cpu_isa_name(bt_isa isa);
bool bt_cpu_isa_parse(const char *name, bt_isa *ret_isa); /* "ref", "avx2", "avx512", ... */

/* A weight matrix as the ISA wants it: `n_out` outputs of `n_in` inputs. */
typedef struct {
    bt_type     type;        /* of the file */
    uint32_t    n_in, n_out;
    uint32_t    layout;      /* private to the ISA */
    const void *data;        /* packed copy, or the file's rows when layout is 0 */
    size_t      size_bytes;  /* of data */
    bool        owned;       /* free with bt_cpu_matrix_done */
} bt_cpu_matrix;

/* Query rows of one sequence, at consecutive positions, against its cached keys. Pages hold
 * page_tokens consecutive positions; K and V rows of a layer lie row by row inside a page. Walks
 * pages in order of position, so a row's result depends only on the query, its position and the
 * rows it may see: asking for many rows at once gives the same bits and is faster, since a page is
 * then made ready once for all of them. Rows that no query sees may hold any bytes. */
typedef struct {
    const float    *q;             /* row r at q + r * q_stride: [n_heads * head_dim], rotated */
    float          *y;             /* row r at y + r * y_stride: [n_heads * head_dim_v] */
    uint32_t        n_rows;        /* at least 1 */
    size_t          q_stride, y_stride;       /* floats; any value when n_rows is 1 */
    uint32_t        n_heads, n_kv_heads, head_dim, head_dim_v;
    /* Row r stands at p = position + r and attends positions max(0, p - window + 1) .. p. */
    uint32_t        position;
    uint32_t        window;        /* 0: all */
    float           scale;
    float           softcap;       /* 0: none; else c * tanh(score / c) */
    bt_type         type_k, type_v;
    const uint8_t  *kv_base;       /* the pool */
    size_t          page_bytes;
    uint32_t        page_tokens;
    const uint32_t *pages;         /* page indices by position / page_tokens */
    size_t          k_offset, v_offset;       /* of this layer inside a page */
    size_t          k_row_bytes, v_row_bytes;
    uint32_t        head_first, head_last;    /* query heads [first, last) to compute */
    float          *scratch;       /* bt_cpu_attention_scratch() floats, 64-byte aligned */
} bt_cpu_attention;

/* Consecutive tokens of one sequence through one value head of the gated delta rule (the formulas
 * are in ops/ops.h). Token t's vectors lie t strides after the first's. Rows of the state are
 * independent of each other, so [row_first, row_last) may be done alone: multiples of 8, or the
 * end. The state moves token by token, so n tokens at once give the same bits as one after the
 * other. */
typedef struct {
    const float *q, *k, *v;             /* [dk], [dk], [dv] */
    const float *alpha, *beta;          /* [1] */
    float       *y;                     /* [dv] */
    size_t       q_stride, k_stride, v_stride, alpha_stride, beta_stride, y_stride;  /* floats */
    uint32_t     n_tokens, dk, dv;
    uint32_t     row_first, row_last;   /* of dv */
    float        decay, dt_bias, l2_eps, scale;
    float       *state;                 /* [dv][dk] */
    float       *scratch;               /* bt_cpu_delta_scratch() floats, 64-byte aligned */
} bt_cpu_delta;

typedef struct bt_cpu_kernels {
    bt_isa isa;

    /* Weights. pack: rows as in the file -> the ISA's layout. size 0 means "use the rows as they
     * are". BT_E_UNSUPPORTED for types that cannot be read. */
    size_t    (*pack_bytes)(bt_type type, uint32_t n_out, uint32_t n_in);
    void      (*pack)(bt_type type, uint32_t n_out, uint32_t n_in, const void *rows, void *to,
                      uint32_t out_first, uint32_t out_last);   /* ranges are multiples of 64 */
    uint32_t  (*layout_of)(bt_type type, bool packed);

    /* Activations: f32 rows are converted once per linear into what the weight type's dot product
     * wants (int8 blocks with f32 scales, f32 itself, ...). The form depends on the matrix only. */
    size_t    (*act_row_bytes)(const bt_cpu_matrix *w);
    uint32_t  (*act_form)(const bt_cpu_matrix *w);    /* equal forms can share one conversion */
    void      (*act_convert)(const bt_cpu_matrix *w, const float *x, void *to);
    /* y[r][o] (+)= w[o] . x[r] (+ bias[o]) for outputs [out_first, out_last), all rows.
     * out_first is a multiple of 16. */
    void      (*linear)(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                        uint32_t n_rows, uint32_t out_first, uint32_t out_last, const float *bias,
                        bool add, float *y, size_t y_stride);
    /* Row `index` of the file's rows as f32 (embedding); exact. */
    void      (*decode_row)(bt_type type, const void *rows, uint32_t n_in, uint32_t index,
                            float *to);

    /* Pointwise and norms, one row. Sums in f64 or in a fixed tree. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    void (*add)(float *y, const float *x, uint32_t n);              /* y += x */
    void (*scale)(float *y, const float *x, uint32_t n, float by);  /* y = x * by */
    void (*glu)(float *y, const float *gate, const float *up, uint32_t n, bt_activation act);
    void (*softcap)(float *x, uint32_t n, float cap);
    /* One head vector in place; cos and sin have n_rot / 2 values, magnitude included. */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t n_rot, bt_rope_style style);
    /* f32 row -> KV row of `type`; n a multiple of its block. */
    void (*kv_store)(bt_type type, const float *x, void *to, uint32_t n);
    void (*attention)(const bt_cpu_attention *a);

    /* y[i] = act(sum over m, ascending, of taps[m * tap_stride + i] * x[m][i]) */
    void (*short_conv)(float *y, const float *const *x, const float *taps, size_t tap_stride,
                       uint32_t n_taps, uint32_t n, bt_activation act);
    void (*delta_scan)(const bt_cpu_delta *d);
    /* to = the numbers of the n_used largest scores, then their shares (ops/ops.h). A NaN counts
     * as less than any number. */
    void (*route)(const float *scores, uint32_t n, uint32_t n_used, bool renormalise, float *to);
    /* y (+)= sum over j, ascending, of shares[j] * x[j * x_stride + i] */
    void (*combine)(float *y, const float *x, size_t x_stride, const float *shares, uint32_t n_used,
                    uint32_t n, bool add);
} bt_cpu_kernels;

/* NULL when this machine cannot run the ISA. */
const bt_cpu_kernels *bt_cpu_kernels_get(bt_isa isa);

/* Floats of scratch that attention needs for one call, whatever its rows and heads; head_dim is
 * the larger of head_dim and head_dim_v. */
size_t bt_cpu_attention_scratch(uint32_t n_heads, uint32_t head_dim, uint32_t page_tokens);

/* Floats of scratch that delta_scan needs, whatever its tokens and rows. */
size_t bt_cpu_delta_scratch(uint32_t dk);

/* Packs (or with repack = false refers to) `rows`, which must then stay mapped. */
BT_MUST_CHECK bt_status bt_cpu_matrix_init(bt_cpu_matrix *m, const bt_cpu_kernels *k, bt_type type,
        uint32_t n_out, uint32_t n_in, const void *rows, bool repack, bt_error *err);
void bt_cpu_matrix_done(bt_cpu_matrix *m);

#endif
