/* Ops of experts. For each op its shape check, its text and its row. */
#include "ops/check.h"

/* ---- route ---- */

static bool check_route(bt_tape *t, const bt_op *op)
{
    const bt_op_route *o = &op->route;
    if (!bt_ops_reads(t, o->scores, "scores") || !bt_ops_writes(t, o->y, "y")) {
        return false;
    }
    return (o->n_used >= 1 && o->n_used <= BT_EXPERTS_USED_MAX && o->n_used <= o->scores.cols &&
            o->scores.cols <= BT_EXPERTS_MAX && o->y.cols == 2 * o->n_used &&
            o->y.picked == o->scores.picked && !bt_ops_overlap(o->scores, o->y)) ||
           bt_ops_mistake(t, "the best %u (at most %u) of %u scores (at most %u) into %u columns",
                          o->n_used, BT_EXPERTS_USED_MAX, o->scores.cols, BT_EXPERTS_MAX,
                          o->y.cols);
}

static void print_route(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_route *o = &op->route;
    (void)weights;
    bt_buf_printf(to, " best %u%s", o->n_used, o->renormalise ? " renormalised" : "");
}

const bt_op_info bt_ops_info_route = {
    .name = "route",
    .inputs = { BT_OP_AT(route, scores) },
    .output = BT_OP_AT(route, y),
    .check = check_route,
    .print = print_route,
};

/* Rows that an op of kind `route` with as many chosen experts gave. */
static bool is_route(bt_tape *t, bt_rows route, uint32_t n_used, bool picked)
{
    return bt_ops_reads(t, route, "route") &&
           ((n_used >= 1 && n_used <= BT_EXPERTS_USED_MAX && route.cols == 2 * n_used &&
             route.picked == picked) ||
            bt_ops_mistake(t, "a route of %u columns for the best %u", route.cols, n_used));
}

/* ---- expert_linear ---- */

static bool check_expert_linear(bt_tape *t, const bt_op *op)
{
    const bt_op_expert_linear *o = &op->expert_linear;
    bt_weight_shape w, first = { 0 };
    uint64_t n_out = 0;
    if (!bt_ops_reads(t, o->x, "x") || !is_route(t, o->route, o->n_used, o->x.picked) ||
        !bt_ops_writes(t, o->y, "y")) {
        return false;
    }
    if (o->per_expert && o->x.cols % o->n_used != 0) {
        return bt_ops_mistake(t, "%u columns of x are not %u equal parts", o->x.cols, o->n_used);
    }
    const uint32_t n_in = o->per_expert ? o->x.cols / o->n_used : o->x.cols;
    for (int i = 0; i < BT_EXPERT_PARTS_MAX && (i == 0 || o->w[i].id != 0); i++) {
        if (!bt_ops_weight_is(t, o->w[i], n_in, 0, "w", &w)) {
            return false;
        }
        first = i == 0 ? w : first;
        if (w.n_slices != first.n_slices || w.n_slices < o->n_used) {
            return bt_ops_mistake(t, "weights of %u and %u experts, of which %u are used",
                                  first.n_slices, w.n_slices, o->n_used);
        }
        n_out += (uint64_t)o->n_used * w.n_out;
    }
    return bt_ops_parts_fill(t, n_out, o->x, o->y) &&
           ((!bt_ops_overlap(o->x, o->y) && !bt_ops_overlap(o->route, o->y)) ||
            bt_ops_mistake(t, "y overlaps what is read"));
}

static void print_expert_linear(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_expert_linear *o = &op->expert_linear;
    for (int i = 0; i < BT_EXPERT_PARTS_MAX && o->w[i].id != 0; i++) {
        bt_ops_print_weight(to, weights, o->w[i]);
    }
    bt_buf_printf(to, " best %u%s", o->n_used, o->per_expert ? " of its own" : "");
}

const bt_op_info bt_ops_info_expert_linear = {
    .name = "expert_linear",
    .inputs = { BT_OP_AT(expert_linear, x), BT_OP_AT(expert_linear, route) },
    .output = BT_OP_AT(expert_linear, y),
    .check = check_expert_linear,
    .print = print_expert_linear,
};

/* ---- combine ---- */

static bool check_combine(bt_tape *t, const bt_op *op)
{
    const bt_op_combine *o = &op->combine;
    if (!bt_ops_reads(t, o->x, "x") || !is_route(t, o->route, o->n_used, o->x.picked) ||
        !(o->add ? bt_ops_reads(t, o->y, "y") : bt_ops_writes(t, o->y, "y"))) {
        return false;
    }
    return ((uint64_t)o->n_used * o->y.cols == o->x.cols && o->x.picked == o->y.picked &&
            !bt_ops_overlap(o->x, o->y) && !bt_ops_overlap(o->route, o->y)) ||
           bt_ops_mistake(t, "%u columns of x are not %u parts of the %u of y, or y overlaps them",
                          o->x.cols, o->n_used, o->y.cols);
}

static void print_combine(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_combine *o = &op->combine;
    (void)weights;
    bt_buf_printf(to, " best %u", o->n_used);
}

const bt_op_info bt_ops_info_combine = {
    .name = "combine",
    .inputs = { BT_OP_AT(combine, x), BT_OP_AT(combine, route) },
    .output = BT_OP_AT(combine, y),
    .add = BT_OP_AT(combine, add),
    .check = check_combine,
    .print = print_combine,
};
