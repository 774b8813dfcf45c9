/* Ops that work value by value. For each op its shape check, its text and its row. */
#include "ops/check.h"

#include <math.h>

/* ---- add ---- */

static bool check_add(bt_tape *t, const bt_op *op)
{
    const bt_op_add *o = &op->add;
    return bt_ops_reads(t, o->x, "x") && bt_ops_reads(t, o->y, "y") &&
           bt_ops_same_shape(t, o->x, o->y, "x and y");
}

const bt_op_info bt_ops_info_add = {
    .name = "add",
    .inputs = { BT_OP_AT(add, x) },
    .output = BT_OP_AT(add, y),
    .adds_always = true,
    .check = check_add,
};

/* ---- scale ---- */

static bool check_scale(bt_tape *t, const bt_op *op)
{
    const bt_op_scale *o = &op->scale;
    return bt_ops_reads(t, o->x, "x") &&
           (isfinite(o->by) || bt_ops_mistake(t, "the factor is not finite"));
}

static void print_scale(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_scale *o = &op->scale;
    (void)weights;
    bt_buf_printf(to, " by %.9g", (double)o->by);
}

const bt_op_info bt_ops_info_scale = {
    .name = "scale",
    .inputs = { BT_OP_AT(scale, x) },
    .output = BT_OP_AT(scale, x),
    .check = check_scale,
    .print = print_scale,
};

/* ---- glu ---- */

static bool check_glu(bt_tape *t, const bt_op *op)
{
    const bt_op_glu *o = &op->glu;
    return bt_ops_reads(t, o->gate, "gate") && bt_ops_reads(t, o->up, "up") &&
           bt_ops_writes(t, o->y, "y") &&
           bt_ops_same_shape(t, o->gate, o->up, "gate and up") &&
           bt_ops_same_shape(t, o->gate, o->y, "gate and y");
}

static void print_glu(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_glu *o = &op->glu;
    (void)weights;
    bt_buf_printf(to, " %s", bt_ops_activation_name(o->act));
}

const bt_op_info bt_ops_info_glu = {
    .name = "glu",
    .inputs = { BT_OP_AT(glu, gate), BT_OP_AT(glu, up) },
    .output = BT_OP_AT(glu, y),
    .check = check_glu,
    .print = print_glu,
};

/* ---- softcap ---- */

static bool check_softcap(bt_tape *t, const bt_op *op)
{
    const bt_op_softcap *o = &op->softcap;
    return bt_ops_reads(t, o->x, "x") &&
           (o->cap > 0.0f || bt_ops_mistake(t, "the cap is %g", (double)o->cap));
}

static void print_softcap(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_softcap *o = &op->softcap;
    (void)weights;
    bt_buf_printf(to, " cap %.9g", (double)o->cap);
}

const bt_op_info bt_ops_info_softcap = {
    .name = "softcap",
    .inputs = { BT_OP_AT(softcap, x) },
    .output = BT_OP_AT(softcap, x),
    .check = check_softcap,
    .print = print_softcap,
};

/* ---- mul ---- */

static bool check_mul(bt_tape *t, const bt_op *op)
{
    const bt_op_mul *o = &op->mul;
    return bt_ops_reads(t, o->x, "x") && bt_ops_reads(t, o->gate, "gate") &&
           (o->add ? bt_ops_reads(t, o->y, "y") : bt_ops_writes(t, o->y, "y")) &&
           bt_ops_same_shape(t, o->x, o->y, "x and y") &&
           ((o->gate.cols == 1 && o->gate.picked == o->x.picked) ||
            bt_ops_mistake(t, "the gate has %u columns of %s rows; one of x's rows is wanted",
                           o->gate.cols, o->gate.picked ? "picked" : "all")) &&
           (!bt_ops_overlap(o->gate, o->y) || bt_ops_mistake(t, "gate and y overlap"));
}

static void print_mul(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_mul *o = &op->mul;
    (void)weights;
    bt_buf_printf(to, " %s", bt_ops_activation_name(o->act));
}

const bt_op_info bt_ops_info_mul = {
    .name = "mul",
    .inputs = { BT_OP_AT(mul, x), BT_OP_AT(mul, gate) },
    .output = BT_OP_AT(mul, y),
    .add = BT_OP_AT(mul, add),
    .check = check_mul,
    .print = print_mul,
};
