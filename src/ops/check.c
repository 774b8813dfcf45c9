/* What shape checks ask of rows, weights and states, and the sticky first mistake. */
#include "ops/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool bt_ops_mistake(bt_tape *t, const char *format, ...)
{
    if (t->mistake.status == BT_OK) {
        char text[200];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        bt_fail(&t->mistake, BT_E_BADINPUT, "tape, op %u: %s", t->n_ops, text);
    }
    return false;
}

void bt_ops_note_written(bt_tape *t, bt_rows r)
{
    bt_ops_slot *s = &t->slots[r.slot];
    bt_ops_span add = { r.column, r.column + r.cols };
    bt_ops_span kept[BT_OPS_SPANS_MAX + 1];
    uint32_t n = 0, at = 0;
    while (at < s->n_spans && s->written[at].end < add.first) {
        kept[n++] = s->written[at++];
    }
    for (; at < s->n_spans && s->written[at].first <= add.end; at++) {
        add.first = add.first < s->written[at].first ? add.first : s->written[at].first;
        add.end = add.end > s->written[at].end ? add.end : s->written[at].end;
    }
    kept[n++] = add;
    while (at < s->n_spans) {
        kept[n++] = s->written[at++];
    }
    if (n > BT_OPS_SPANS_MAX) {
        bt_ops_mistake(t, "slot %u is written in more than %d pieces", r.slot, BT_OPS_SPANS_MAX);
        return;
    }
    memcpy(s->written, kept, n * sizeof kept[0]);
    s->n_spans = n;
}

static bool was_written(const bt_ops_slot *s, bt_rows r)
{
    for (uint32_t i = 0; i < s->n_spans; i++) {
        if (s->written[i].first <= r.column && r.column + r.cols <= s->written[i].end) {
            return true;
        }
    }
    return false;
}

bool bt_ops_writes(bt_tape *t, bt_rows r, const char *what)
{
    if (r.slot == 0 || r.slot > t->n_slots) {
        return bt_ops_mistake(t, "%s are rows that do not exist (slot %u of %u)", what, r.slot,
                              t->n_slots);
    }
    const bt_ops_slot *s = &t->slots[r.slot];
    if (r.cols == 0 || r.column > s->cols || r.cols > s->cols - r.column) {
        return bt_ops_mistake(t, "%s are columns %u..%u of a slot of %u", what, r.column,
                              r.column + r.cols, s->cols);
    }
    if (r.picked != s->picked) {
        return bt_ops_mistake(t, "%s: slot %u holds %s rows", what, r.slot,
                              s->picked ? "picked" : "all");
    }
    return true;
}

bool bt_ops_reads(bt_tape *t, bt_rows r, const char *what)
{
    if (!bt_ops_writes(t, r, what)) {
        return false;
    }
    if (!was_written(&t->slots[r.slot], r)) {
        return bt_ops_mistake(t, "%s (slot %u, columns %u..%u) is read before anything wrote it",
                              what, r.slot, r.column, r.column + r.cols);
    }
    return true;
}

bool bt_ops_same_shape(bt_tape *t, bt_rows x, bt_rows y, const char *what)
{
    if (x.cols != y.cols || x.picked != y.picked) {
        return bt_ops_mistake(t, "%s: %u columns of %s rows against %u of %s rows", what, x.cols,
                              x.picked ? "picked" : "all", y.cols, y.picked ? "picked" : "all");
    }
    return true;
}

bool bt_ops_overlap(bt_rows a, bt_rows b)
{
    return a.slot == b.slot && a.column < b.column + b.cols && b.column < a.column + a.cols;
}

bool bt_ops_weight_is(bt_tape *t, bt_weight w, uint32_t n_in, uint32_t n_out, const char *what,
                      bt_weight_shape *ret_shape)
{
    if (t->weights.shape(t->weights.context, w, ret_shape) != BT_OK) {
        return bt_ops_mistake(t, "%s is weight %u, which the device does not have", what, w.id);
    }
    if (ret_shape->n_in != n_in || (n_out != 0 && ret_shape->n_out != n_out)) {
        return bt_ops_mistake(t, "%s is %u x %u, but %u x %u is wanted", what, ret_shape->n_in,
                              ret_shape->n_out, n_in, n_out ? n_out : ret_shape->n_out);
    }
    return true;
}

bool bt_ops_takes_state(bt_tape *t, uint32_t layer, uint32_t state)
{
    if (layer >= BT_LAYERS_MAX || state >= BT_STATE_TENSORS_MAX ||
        (t->states[layer] & (1u << state)) != 0) {
        return bt_ops_mistake(t, "layer %u is beyond %u, or tensor %u of its state is beyond %u or "
                              "was moved on before", layer, BT_LAYERS_MAX, state,
                              BT_STATE_TENSORS_MAX);
    }
    t->states[layer] |= (uint8_t)(1u << state);
    return true;
}

bool bt_ops_parts_fill(bt_tape *t, uint64_t n_out, bt_rows x, bt_rows y)
{
    if (n_out != y.cols || x.picked != y.picked) {
        return bt_ops_mistake(t, "the parts give %llu columns of %s rows, but y has %u of %s rows",
                              (unsigned long long)n_out, x.picked ? "picked" : "all", y.cols,
                              y.picked ? "picked" : "all");
    }
    return true;
}

/* ---- text ---- */

void bt_ops_print_weight(bt_buf *to, const bt_op_weights *weights, bt_weight w)
{
    bt_weight_shape shape;
    if (weights->shape(weights->context, w, &shape) != BT_OK) {
        bt_buf_puts(to, " (?)");
        return;
    }
    const bt_type_info *type = bt_quant_type_find(shape.type);
    if (shape.n_slices > 1) {
        bt_buf_printf(to, " (%ux%ux%u %s)", shape.n_in, shape.n_out, shape.n_slices,
                      type ? type->name : "?");
    } else {
        bt_buf_printf(to, " (%ux%u %s)", shape.n_in, shape.n_out, type ? type->name : "?");
    }
}

const char *bt_ops_activation_name(bt_activation act)
{
    switch (act) {
    case BT_ACT_SILU:      return "silu";
    case BT_ACT_GELU_TANH: return "gelu_tanh";
    case BT_ACT_SIGMOID:   break;
    }
    return "sigmoid";
}
