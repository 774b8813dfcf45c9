/* ops/ops.h - the vocabulary of tapes.
 *
 * An op is plain data: handles and shapes, no pointers. What shapes the work (which weight, how
 * many heads, eps) stands in the op; what changes at every step (rows, positions, pages) stands in
 * the step record. Names come from mathematics, never from a model. An op enters when two families
 * need it, or one family and a measured gain of 10 %; ceiling 32.
 *
 * Rows are f32 [n, cols] with a row stride, n being the step's rows, or its logit rows once `rows`
 * has picked them. All ops work row by row, so a row's result never depends on its neighbours.
 */
#ifndef BT_OPS_OPS_H
#define BT_OPS_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/functions.h"
#include "ops/step.h"

#define BT_OP_LIST(X)                                        \
    X(embed) X(rows)                       /* moving    */   \
    X(rmsnorm) X(head_norm)                /* norms     */   \
    X(linear)                              /* weights   */   \
    X(rope) X(kv_put) X(attention)         /* attention */   \
    X(add) X(scale) X(glu) X(softcap) X(mul)   /* pointwise */ \
    X(short_conv) X(delta_scan)            /* recurrent */   \
    X(route) X(expert_linear) X(combine)   /* experts   */   \
    X(mark)                                /* the baton */

typedef struct { uint32_t id; } bt_weight;      /* a tensor on the device; 0 is none */

/* Scratch rows of a tape. Slices of columns are made with bt_ops_rows_slice. */
typedef struct {
    uint16_t slot;           /* 1 ..; 0 is none */
    bool     picked;         /* one row per logit row instead of one per step row */
    uint32_t column;         /* first column inside the slot */
    uint32_t cols;
} bt_rows;

enum { BT_LINEAR_PARTS_MAX = 4, BT_EXPERT_PARTS_MAX = 2 };

/* y = scale * table[token] */
typedef struct { bt_weight table; bt_rows y; float scale; } bt_op_embed;
/* y = the rows of x that the step wants logits of; y is picked */
typedef struct { bt_rows x, y; } bt_op_rows;
/* y = x / sqrt(mean(x^2) + eps) * w. With add: y += that. */
typedef struct { bt_rows x, y; bt_weight w; float eps; bool add; } bt_op_rmsnorm;
/* The same over each of n_heads equal parts of x, in place; w has cols / n_heads values. */
typedef struct { bt_rows x; bt_weight w; uint32_t n_heads; float eps; } bt_op_head_norm;
/* y = [w0 x | w1 x | ...] (+ biases); with add: y += that. Parts stand side by side in y. */
typedef struct {
    bt_rows   x, y;
    bt_weight w[BT_LINEAR_PARTS_MAX];
    bt_weight bias[BT_LINEAR_PARTS_MAX];
    bool      add;
} bt_op_linear;
/* Rotates the first n_rot values of each head by position * frequencies[i], times magnitude.
 * frequencies: f32 vector of n_rot / 2, radians per position, all scaling already applied.
 * Sequences that the step calls long use long_frequencies, if there are any. */
typedef struct {
    bt_rows       x;
    bt_weight     frequencies, long_frequencies;
    uint32_t      n_heads, n_rot;
    bt_rope_style style;
    float         magnitude;
} bt_op_rope;
typedef struct { bt_rows k, v; uint32_t layer; } bt_op_kv_put;
typedef struct {
    bt_rows  q, y;
    uint32_t layer, n_heads, n_kv_heads;
    uint32_t window;         /* positions attended, its own included; 0: all */
    float    scale, softcap; /* softcap 0: none */
} bt_op_attention;
typedef struct { bt_rows x, y; } bt_op_add;                             /* y += x */
typedef struct { bt_rows x; float by; } bt_op_scale;                    /* x *= by */
typedef struct { bt_rows gate, up, y; bt_activation act; } bt_op_glu;   /* y = act(gate) * up */
typedef struct { bt_rows x; float cap; } bt_op_softcap;                 /* x = cap tanh(x / cap) */
/* y = x * act(gate), the gate being one column that serves all of x; with add: y += that. */
typedef struct { bt_rows x, gate, y; bt_activation act; bool add; } bt_op_mul;

/* Along each sequence, column by column: y at t = act(sum over m of w[m] * x at t - n_taps + 1 + m)
 * with the taps in order. Rows before this step are those of the sequence's state, which moves on:
 * tensor `state` of the layer, one matrix of n_taps - 1 rows, the oldest first. w was loaded
 * as_taps, n_taps x cols. */
typedef struct {
    bt_rows       x, y;
    bt_weight     w;
    uint32_t      layer, state;
    bt_activation act;
} bt_op_short_conv;
/* The gated delta rule along each sequence. Every value head has a state S, [dv][dk], a matrix of
 * tensor `state` of the layer. With
 * q = scale * q / max(|q|, l2_eps), k = k / max(|k|, l2_eps) of its key head, beta = sigmoid(beta),
 * g = exp(decay * softplus(alpha + dt_bias)), one token after the other:
 *
 *     d = beta * (v - g * (S k));   S = g * S + d k^T;   y = S q
 *
 * Value head j belongs to key head j % n_k_heads if `tiled`, else to j / (n_v_heads / n_k_heads).
 * q and k have n_k_heads parts, v and y n_v_heads, alpha and beta that many columns. */
typedef struct {
    bt_rows   q, k, v, alpha, beta, y;
    bt_weight decay, dt_bias;          /* vectors of n_v_heads */
    uint32_t  layer, state, n_k_heads, n_v_heads;
    bool      tiled;
    float     l2_eps, scale;
} bt_op_delta_scan;

/* y = the numbers of the n_used largest scores, best first, of equals the lower number, and then
 * their shares: exp(score) over the sum of all, or with renormalise over that of the chosen. A sum
 * counts as at least 2^-14. y has 2 * n_used columns. */
typedef struct { bt_rows scores, y; uint32_t n_used; bool renormalise; } bt_op_route;
/* y = for each weight the products of the row's chosen experts side by side: with two weights (gate
 * and up), first all of the one, then all of the other. x serves all experts, or with per_expert
 * each has its own part of x. Weights have slices, one per expert. */
typedef struct {
    bt_rows   x, route, y;
    bt_weight w[BT_EXPERT_PARTS_MAX];
    uint32_t  n_used;
    bool      per_expert;
} bt_op_expert_linear;
/* y = the sum, best first, of share times part of x; with add: y += that. */
typedef struct { bt_rows x, route, y; uint32_t n_used; bool add; } bt_op_combine;
/* K, V and state of `layer` are complete for this step: notifies the host. */
typedef struct { uint32_t layer; } bt_op_mark;

typedef enum {
#define X(name) BT_OP_##name,
    BT_OP_LIST(X)
#undef X
    BT_OP_COUNT
} bt_op_kind;

_Static_assert(BT_OP_COUNT <= 32, "the vocabulary has a ceiling");

typedef struct {
    bt_op_kind kind;
    union {
#define X(name) bt_op_##name name;
        BT_OP_LIST(X)
#undef X
    };
} bt_op;

const char *bt_ops_name(bt_op_kind kind);

#endif
