/* Ops that look along a sequence: attention, recurrent layers, the mark. For each op its shape
 * check, its text and its row. */
#include "ops/check.h"

#include <math.h>

/* ---- rope ---- */

static bool check_rope(bt_tape *t, const bt_op *op)
{
    const bt_op_rope *o = &op->rope;
    bt_weight_shape w;
    if (!bt_ops_reads(t, o->x, "x")) {
        return false;
    }
    if (o->n_heads == 0 || o->x.cols % o->n_heads != 0 || o->n_rot == 0 || o->n_rot % 2 != 0 ||
        o->n_rot > o->x.cols / o->n_heads) {
        return bt_ops_mistake(t, "%u of the values of each of %u heads in %u columns cannot be "
                              "rotated", o->n_rot, o->n_heads, o->x.cols);
    }
    return bt_ops_weight_is(t, o->frequencies, o->n_rot / 2, 1, "frequencies", &w) &&
           (o->long_frequencies.id == 0 ||
            bt_ops_weight_is(t, o->long_frequencies, o->n_rot / 2, 1, "long frequencies", &w)) &&
           (isfinite(o->magnitude) || bt_ops_mistake(t, "the magnitude is not finite"));
}

static void print_rope(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_rope *o = &op->rope;
    (void)weights;
    bt_buf_printf(to, " heads %u n_rot %u %s magnitude %.9g%s", o->n_heads, o->n_rot,
                  o->style == BT_ROPE_NEOX ? "neox" : "norm", (double)o->magnitude,
                  o->long_frequencies.id != 0 ? " and long" : "");
}

const bt_op_info bt_ops_info_rope = {
    .name = "rope",
    .inputs = { BT_OP_AT(rope, x) },
    .output = BT_OP_AT(rope, x),
    .check = check_rope,
    .print = print_rope,
};

/* ---- kv_put ---- */

static bool check_kv_put(bt_tape *t, const bt_op *op)
{
    const bt_op_kv_put *o = &op->kv_put;
    if (!bt_ops_reads(t, o->k, "k") || !bt_ops_reads(t, o->v, "v")) {
        return false;
    }
    if (o->k.picked || o->v.picked) {
        return bt_ops_mistake(t, "K and V are kept for all rows, not for picked ones");
    }
    if (o->layer >= BT_LAYERS_MAX || t->k_cols[o->layer] != 0) {
        return bt_ops_mistake(t, "layer %u is beyond %u or was put before", o->layer,
                              BT_LAYERS_MAX);
    }
    t->k_cols[o->layer] = o->k.cols;
    t->v_cols[o->layer] = o->v.cols;
    return true;
}

static void print_kv_put(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_kv_put *o = &op->kv_put;
    (void)weights;
    bt_buf_printf(to, " of %u", o->layer);
}

const bt_op_info bt_ops_info_kv_put = {
    .name = "kv_put",
    .inputs = { BT_OP_AT(kv_put, k), BT_OP_AT(kv_put, v) },
    .memory = BT_OP_WRITES_KV,
    .layer = BT_OP_AT(kv_put, layer),
    .check = check_kv_put,
    .print = print_kv_put,
};

/* ---- attention ---- */

static bool check_attention(bt_tape *t, const bt_op *op)
{
    const bt_op_attention *o = &op->attention;
    if (!bt_ops_reads(t, o->q, "q") || !bt_ops_writes(t, o->y, "y")) {
        return false;
    }
    if (o->n_heads == 0 || o->n_kv_heads == 0 || o->n_heads % o->n_kv_heads != 0 ||
        o->q.cols % o->n_heads != 0 || o->y.cols % o->n_heads != 0) {
        return bt_ops_mistake(t, "%u heads on %u heads of keys do not divide %u columns of q, "
                              "%u of y", o->n_heads, o->n_kv_heads, o->q.cols, o->y.cols);
    }
    if (o->layer >= BT_LAYERS_MAX || t->k_cols[o->layer] == 0) {
        return bt_ops_mistake(t, "layer %u has no K and V yet", o->layer);
    }
    if (t->k_cols[o->layer] != o->q.cols / o->n_heads * o->n_kv_heads ||
        t->v_cols[o->layer] != o->y.cols / o->n_heads * o->n_kv_heads) {
        return bt_ops_mistake(t, "layer %u keeps %u and %u values, but %u heads of %u and %u are "
                              "asked for", o->layer, t->k_cols[o->layer], t->v_cols[o->layer],
                              o->n_kv_heads, o->q.cols / o->n_heads, o->y.cols / o->n_heads);
    }
    if (!isfinite(o->scale) || !(o->softcap >= 0.0f)) {
        return bt_ops_mistake(t, "scale %g, softcap %g", (double)o->scale, (double)o->softcap);
    }
    return (o->q.picked == o->y.picked && !bt_ops_overlap(o->q, o->y)) ||
           bt_ops_mistake(t, "q and y overlap or are not the same rows");
}

static void print_attention(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_attention *o = &op->attention;
    (void)weights;
    bt_buf_printf(to, " of %u heads %u/%u window %u scale %.9g softcap %.9g", o->layer, o->n_heads,
                  o->n_kv_heads, o->window, (double)o->scale, (double)o->softcap);
}

const bt_op_info bt_ops_info_attention = {
    .name = "attention",
    .inputs = { BT_OP_AT(attention, q) },
    .output = BT_OP_AT(attention, y),
    .memory = BT_OP_READS_KV,
    .layer = BT_OP_AT(attention, layer),
    .check = check_attention,
    .print = print_attention,
};

/* ---- short_conv ---- */

static bool check_short_conv(bt_tape *t, const bt_op *op)
{
    const bt_op_short_conv *o = &op->short_conv;
    bt_weight_shape w = { 0 };
    if (!bt_ops_reads(t, o->x, "x") || !bt_ops_writes(t, o->y, "y") ||
        !bt_ops_same_shape(t, o->x, o->y, "x and y")) {
        return false;
    }
    if (t->weights.shape(t->weights.context, o->w, &w) != BT_OK || w.n_out != o->x.cols ||
        w.n_in == 0 || w.n_in > BT_CONV_TAPS_MAX) {
        return bt_ops_mistake(t, "%u x %u taps for %u columns; up to %u taps are supported", w.n_in,
                              w.n_out, o->x.cols, BT_CONV_TAPS_MAX);
    }
    if (o->x.picked || bt_ops_overlap(o->x, o->y)) {
        return bt_ops_mistake(t, "x and y overlap, or are picked rows, which have no order");
    }
    return bt_ops_takes_state(t, o->layer, o->state);
}

static void print_short_conv(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_short_conv *o = &op->short_conv;
    bt_ops_print_weight(to, weights, o->w);
    bt_buf_printf(to, " of %u.%u %s", o->layer, o->state, bt_ops_activation_name(o->act));
}

const bt_op_info bt_ops_info_short_conv = {
    .name = "short_conv",
    .inputs = { BT_OP_AT(short_conv, x) },
    .output = BT_OP_AT(short_conv, y),
    .memory = BT_OP_MOVES_STATE,
    .layer = BT_OP_AT(short_conv, layer),
    .check = check_short_conv,
    .print = print_short_conv,
};

/* ---- delta_scan ---- */

static bool check_delta_scan(bt_tape *t, const bt_op *op)
{
    const bt_op_delta_scan *o = &op->delta_scan;
    bt_weight_shape w;
    if (!bt_ops_reads(t, o->q, "q") || !bt_ops_reads(t, o->k, "k") || !bt_ops_reads(t, o->v, "v") ||
        !bt_ops_reads(t, o->alpha, "alpha") || !bt_ops_reads(t, o->beta, "beta") ||
        !bt_ops_writes(t, o->y, "y") ||
        !bt_ops_same_shape(t, o->q, o->k, "q and k") ||
        !bt_ops_same_shape(t, o->v, o->y, "v and y") ||
        !bt_ops_same_shape(t, o->alpha, o->beta, "alpha and beta")) {
        return false;
    }
    if (o->n_k_heads == 0 || o->n_v_heads == 0 || o->n_v_heads % o->n_k_heads != 0 ||
        o->q.cols % o->n_k_heads != 0 || o->v.cols % o->n_v_heads != 0 ||
        o->alpha.cols != o->n_v_heads) {
        return bt_ops_mistake(t, "%u value heads on %u key heads do not divide %u columns of v, "
                              "%u of q, %u of alpha", o->n_v_heads, o->n_k_heads, o->v.cols,
                              o->q.cols, o->alpha.cols);
    }
    if (o->q.picked || o->v.picked || o->alpha.picked) {
        return bt_ops_mistake(t, "a scan needs all rows, not picked ones");
    }
    if (bt_ops_overlap(o->q, o->y) || bt_ops_overlap(o->k, o->y) || bt_ops_overlap(o->v, o->y) ||
        bt_ops_overlap(o->alpha, o->y) || bt_ops_overlap(o->beta, o->y)) {
        return bt_ops_mistake(t, "y overlaps what is read");
    }
    return bt_ops_weight_is(t, o->decay, o->n_v_heads, 1, "decay", &w) &&
           bt_ops_weight_is(t, o->dt_bias, o->n_v_heads, 1, "dt_bias", &w) &&
           ((isfinite(o->scale) && o->l2_eps >= 0.0f) ||
            bt_ops_mistake(t, "scale %g, l2_eps %g", (double)o->scale, (double)o->l2_eps)) &&
           bt_ops_takes_state(t, o->layer, o->state);
}

static void print_delta_scan(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_delta_scan *o = &op->delta_scan;
    bt_ops_print_weight(to, weights, o->decay);
    bt_ops_print_weight(to, weights, o->dt_bias);
    bt_buf_printf(to, " of %u.%u heads %u/%u %s l2_eps %.9g scale %.9g", o->layer, o->state,
                  o->n_v_heads, o->n_k_heads, o->tiled ? "tiled" : "grouped", (double)o->l2_eps,
                  (double)o->scale);
}

const bt_op_info bt_ops_info_delta_scan = {
    .name = "delta_scan",
    .inputs = { BT_OP_AT(delta_scan, q), BT_OP_AT(delta_scan, k), BT_OP_AT(delta_scan, v),
                BT_OP_AT(delta_scan, alpha), BT_OP_AT(delta_scan, beta) },
    .output = BT_OP_AT(delta_scan, y),
    .memory = BT_OP_MOVES_STATE,
    .layer = BT_OP_AT(delta_scan, layer),
    .check = check_delta_scan,
    .print = print_delta_scan,
};

/* ---- mark ---- */

static bool check_mark(bt_tape *t, const bt_op *op)
{
    const bt_op_mark *o = &op->mark;
    return (o->layer < BT_LAYERS_MAX &&
            (t->k_cols[o->layer] != 0 || t->states[o->layer] != 0)) ||
           bt_ops_mistake(t, "layer %u is marked before its K and V or state are complete",
                          o->layer);
}

static void print_mark(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_mark *o = &op->mark;
    (void)weights;
    bt_buf_printf(to, " of %u", o->layer);
}

const bt_op_info bt_ops_info_mark = {
    .name = "mark",
    .memory = BT_OP_SEES_ALL,
    .layer = BT_OP_AT(mark, layer),
    .check = check_mark,
    .print = print_mark,
};
