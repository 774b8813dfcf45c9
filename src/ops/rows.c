/* Ops that make rows of rows: embedding, picking, norms, linear. For each op its shape check, its
 * text and its row. */
#include "ops/check.h"

/* ---- embed ---- */

static bool check_embed(bt_tape *t, const bt_op *op)
{
    const bt_op_embed *o = &op->embed;
    bt_weight_shape table;
    if (!bt_ops_writes(t, o->y, "y") ||
        !bt_ops_weight_is(t, o->table, o->y.cols, 0, "table", &table)) {
        return false;
    }
    return !o->y.picked || bt_ops_mistake(t, "y cannot be picked rows");
}

static void print_embed(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_embed *o = &op->embed;
    bt_ops_print_weight(to, weights, o->table);
    bt_buf_printf(to, " scale %.9g", (double)o->scale);
}

const bt_op_info bt_ops_info_embed = {
    .name = "embed",
    .output = BT_OP_AT(embed, y),
    .check = check_embed,
    .print = print_embed,
};

/* ---- rows ---- */

static bool check_rows(bt_tape *t, const bt_op *op)
{
    const bt_op_rows *o = &op->rows;
    if (!bt_ops_reads(t, o->x, "x") || !bt_ops_writes(t, o->y, "y")) {
        return false;
    }
    if (o->x.picked || !o->y.picked || o->x.cols != o->y.cols) {
        return bt_ops_mistake(t, "rows are picked from %u columns of all rows into as many picked "
                              "ones, not into %u", o->x.cols, o->y.cols);
    }
    return true;
}

const bt_op_info bt_ops_info_rows = {
    .name = "rows",
    .inputs = { BT_OP_AT(rows, x) },
    .output = BT_OP_AT(rows, y),
    .check = check_rows,
};

/* ---- rmsnorm ---- */

static bool check_rmsnorm(bt_tape *t, const bt_op *op)
{
    const bt_op_rmsnorm *o = &op->rmsnorm;
    bt_weight_shape w;
    return bt_ops_reads(t, o->x, "x") &&
           (o->add ? bt_ops_reads(t, o->y, "y") : bt_ops_writes(t, o->y, "y")) &&
           bt_ops_same_shape(t, o->x, o->y, "x and y") &&
           bt_ops_weight_is(t, o->w, o->x.cols, 1, "w", &w) &&
           (o->eps >= 0.0f || bt_ops_mistake(t, "eps is %g", (double)o->eps)) &&
           (!o->add || !bt_ops_overlap(o->x, o->y) || bt_ops_mistake(t, "x and y overlap"));
}

static void print_rmsnorm(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_rmsnorm *o = &op->rmsnorm;
    bt_ops_print_weight(to, weights, o->w);
    bt_buf_printf(to, " eps %.9g", (double)o->eps);
}

const bt_op_info bt_ops_info_rmsnorm = {
    .name = "rmsnorm",
    .inputs = { BT_OP_AT(rmsnorm, x) },
    .output = BT_OP_AT(rmsnorm, y),
    .add = BT_OP_AT(rmsnorm, add),
    .check = check_rmsnorm,
    .print = print_rmsnorm,
};

/* ---- head_norm ---- */

static bool check_head_norm(bt_tape *t, const bt_op *op)
{
    const bt_op_head_norm *o = &op->head_norm;
    bt_weight_shape w;
    if (!bt_ops_reads(t, o->x, "x")) {
        return false;
    }
    if (o->n_heads == 0 || o->x.cols % o->n_heads != 0) {
        return bt_ops_mistake(t, "%u columns are not %u equal heads", o->x.cols, o->n_heads);
    }
    return bt_ops_weight_is(t, o->w, o->x.cols / o->n_heads, 1, "w", &w) &&
           (o->eps >= 0.0f || bt_ops_mistake(t, "eps is %g", (double)o->eps));
}

static void print_head_norm(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_head_norm *o = &op->head_norm;
    bt_ops_print_weight(to, weights, o->w);
    bt_buf_printf(to, " heads %u eps %.9g", o->n_heads, (double)o->eps);
}

const bt_op_info bt_ops_info_head_norm = {
    .name = "head_norm",
    .inputs = { BT_OP_AT(head_norm, x) },
    .output = BT_OP_AT(head_norm, x),
    .check = check_head_norm,
    .print = print_head_norm,
};

/* ---- linear ---- */

static bool check_linear(bt_tape *t, const bt_op *op)
{
    const bt_op_linear *o = &op->linear;
    if (!bt_ops_reads(t, o->x, "x") ||
        !(o->add ? bt_ops_reads(t, o->y, "y") : bt_ops_writes(t, o->y, "y"))) {
        return false;
    }
    uint64_t n_out = 0;
    bool ended = false;
    for (int i = 0; i < BT_LINEAR_PARTS_MAX; i++) {
        bt_weight_shape w, bias;
        if (o->w[i].id == 0) {
            if (i == 0 || o->bias[i].id != 0) {
                return bt_ops_mistake(t, "part %d has no weight", i);
            }
            ended = true;
            continue;
        }
        if (ended) {
            return bt_ops_mistake(t, "part %d follows an empty one", i);
        }
        if (!bt_ops_weight_is(t, o->w[i], o->x.cols, 0, "w", &w) ||
            (o->bias[i].id != 0 && !bt_ops_weight_is(t, o->bias[i], w.n_out, 1, "bias", &bias))) {
            return false;
        }
        n_out += w.n_out;
    }
    return bt_ops_parts_fill(t, n_out, o->x, o->y) &&
           (!bt_ops_overlap(o->x, o->y) || bt_ops_mistake(t, "x and y overlap"));
}

static void print_linear(bt_buf *to, const bt_op_weights *weights, const bt_op *op)
{
    const bt_op_linear *o = &op->linear;
    for (int i = 0; i < BT_LINEAR_PARTS_MAX && o->w[i].id != 0; i++) {
        bt_ops_print_weight(to, weights, o->w[i]);
        if (o->bias[i].id != 0) {
            bt_buf_puts(to, " + bias");
        }
    }
}

const bt_op_info bt_ops_info_linear = {
    .name = "linear",
    .inputs = { BT_OP_AT(linear, x) },
    .output = BT_OP_AT(linear, y),
    .add = BT_OP_AT(linear, add),
    .check = check_linear,
    .print = print_linear,
};
