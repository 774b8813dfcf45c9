/* Appending, with every shape checked once for all devices, and the sticky first mistake. */
#include "device/tape.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "device/device.h"

enum { SPANS_MAX = 16 };

typedef struct { uint32_t first, end; } span;

typedef struct {
    uint32_t cols;
    bool     picked;
    uint32_t n_spans;
    span     written[SPANS_MAX];     /* ascending, apart: columns that some op has written */
} slot;

typedef struct { bt_op op; uint32_t layer; } entry;

struct bt_tape {
    const bt_device *device;
    uint64_t id;
    entry   *ops;
    uint32_t n_ops, capacity;
    uint32_t layer;                            /* of ops put now */
    slot     slots[BT_TAPE_SLOTS_MAX + 1];     /* number 0 unused */
    uint32_t n_slots;
    uint32_t k_cols[BT_LAYERS_MAX], v_cols[BT_LAYERS_MAX];   /* of each layer's kv_put; 0: none */
    bool     convolves[BT_LAYERS_MAX], scans[BT_LAYERS_MAX];
    bt_rows  result;
    bool     finished;
    bt_error mistake;                          /* status BT_OK: none so far */
};

/* ---- life ---- */

static atomic_uint_fast64_t n_created;

bt_status bt_ops_tape_create(const bt_device *device, bt_tape **ret_tape, bt_error *err)
{
    BT_ASSERT(device);
    bt_tape *t = bt_alloc_zero(BT_MEM_model, 1, sizeof *t);
    if (!t) {
        return bt_fail(err, BT_E_NOMEM, "no memory for a tape");
    }
    t->device = device;
    t->id = 1 + atomic_fetch_add_explicit(&n_created, 1, memory_order_relaxed);
    t->layer = BT_TAPE_NO_LAYER;
    *ret_tape = t;
    return BT_OK;
}

void bt_ops_tape_destroy(bt_tape *t)
{
    if (t) {
        bt_free(t->ops);
        bt_free(t);
    }
}

__attribute__((format(printf, 2, 3)))
static bool mistake(bt_tape *t, const char *format, ...)
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

/* ---- rows ---- */

static bt_rows take_slot(bt_tape *t, uint32_t cols, bool picked)
{
    BT_ASSERT(!t->finished);
    if (cols == 0 || cols > BT_WIDTH_MAX * 8 || t->n_slots == BT_TAPE_SLOTS_MAX) {
        mistake(t, "scratch rows of %u columns (slot %u, at most %d)", cols, t->n_slots + 1,
                BT_TAPE_SLOTS_MAX);
        return (bt_rows){ 0 };
    }
    const uint16_t number = (uint16_t)++t->n_slots;
    t->slots[number] = (slot){ .cols = cols, .picked = picked };
    return (bt_rows){ .slot = number, .picked = picked, .cols = cols };
}

bt_rows bt_ops_tape_rows(bt_tape *t, uint32_t cols) { return take_slot(t, cols, false); }
bt_rows bt_ops_tape_rows_picked(bt_tape *t, uint32_t cols) { return take_slot(t, cols, true); }

bt_rows bt_ops_rows_slice(bt_rows r, uint32_t column, uint32_t cols)
{
    if (r.slot == 0 || column > r.cols || cols > r.cols - column) {
        return (bt_rows){ 0 };
    }
    return (bt_rows){ .slot = r.slot, .picked = r.picked, .column = r.column + column,
                      .cols = cols };
}

static void note_written(bt_tape *t, bt_rows r)
{
    slot *s = &t->slots[r.slot];
    span add = { r.column, r.column + r.cols };
    span kept[SPANS_MAX + 1];
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
    if (n > SPANS_MAX) {
        mistake(t, "slot %u is written in more than %d pieces", r.slot, SPANS_MAX);
        return;
    }
    memcpy(s->written, kept, n * sizeof kept[0]);
    s->n_spans = n;
}

static bool was_written(const slot *s, bt_rows r)
{
    for (uint32_t i = 0; i < s->n_spans; i++) {
        if (s->written[i].first <= r.column && r.column + r.cols <= s->written[i].end) {
            return true;
        }
    }
    return false;
}

static bool writes(bt_tape *t, bt_rows r, const char *what)
{
    if (r.slot == 0 || r.slot > t->n_slots) {
        return mistake(t, "%s are rows that do not exist (slot %u of %u)", what, r.slot,
                       t->n_slots);
    }
    const slot *s = &t->slots[r.slot];
    if (r.cols == 0 || r.column > s->cols || r.cols > s->cols - r.column) {
        return mistake(t, "%s are columns %u..%u of a slot of %u", what, r.column,
                       r.column + r.cols, s->cols);
    }
    if (r.picked != s->picked) {
        return mistake(t, "%s: slot %u holds %s rows", what, r.slot,
                       s->picked ? "picked" : "all");
    }
    return true;
}

static bool reads(bt_tape *t, bt_rows r, const char *what)
{
    if (!writes(t, r, what)) {
        return false;
    }
    if (!was_written(&t->slots[r.slot], r)) {
        return mistake(t, "%s (slot %u, columns %u..%u) is read before anything wrote it", what,
                       r.slot, r.column, r.column + r.cols);
    }
    return true;
}

static bool same_shape(bt_tape *t, bt_rows x, bt_rows y, const char *what)
{
    if (x.cols != y.cols || x.picked != y.picked) {
        return mistake(t, "%s: %u columns of %s rows against %u of %s rows", what, x.cols,
                       x.picked ? "picked" : "all", y.cols, y.picked ? "picked" : "all");
    }
    return true;
}

static bool overlap(bt_rows a, bt_rows b)
{
    return a.slot == b.slot && a.column < b.column + b.cols && b.column < a.column + a.cols;
}

/* n_out 0: any. */
static bool weight_is(bt_tape *t, bt_weight w, uint32_t n_in, uint32_t n_out, const char *what,
                      bt_weight_shape *ret_shape)
{
    if (bt_device_weight_shape(t->device, w, ret_shape) != BT_OK) {
        return mistake(t, "%s is weight %u, which the device does not have", what, w.id);
    }
    if (ret_shape->n_in != n_in || (n_out != 0 && ret_shape->n_out != n_out)) {
        return mistake(t, "%s is %u x %u, but %u x %u is wanted", what, ret_shape->n_in,
                       ret_shape->n_out, n_in, n_out ? n_out : ret_shape->n_out);
    }
    return true;
}

/* ---- one check per op; each ends by noting what was written ---- */

static bool check_embed(bt_tape *t, const bt_op_embed *o)
{
    bt_weight_shape table;
    if (!writes(t, o->y, "y") || !weight_is(t, o->table, o->y.cols, 0, "table", &table)) {
        return false;
    }
    return !o->y.picked || mistake(t, "y cannot be picked rows");
}

static bool check_rows(bt_tape *t, const bt_op_rows *o)
{
    if (!reads(t, o->x, "x") || !writes(t, o->y, "y")) {
        return false;
    }
    if (o->x.picked || !o->y.picked || o->x.cols != o->y.cols) {
        return mistake(t, "rows are picked from %u columns of all rows into as many picked ones, "
                       "not into %u", o->x.cols, o->y.cols);
    }
    return true;
}

static bool check_rmsnorm(bt_tape *t, const bt_op_rmsnorm *o)
{
    bt_weight_shape w;
    return reads(t, o->x, "x") &&
           (o->add ? reads(t, o->y, "y") : writes(t, o->y, "y")) &&
           same_shape(t, o->x, o->y, "x and y") &&
           weight_is(t, o->w, o->x.cols, 1, "w", &w) &&
           (o->eps >= 0.0f || mistake(t, "eps is %g", (double)o->eps)) &&
           (!o->add || !overlap(o->x, o->y) || mistake(t, "x and y overlap"));
}

static bool check_head_norm(bt_tape *t, const bt_op_head_norm *o)
{
    bt_weight_shape w;
    if (!reads(t, o->x, "x")) {
        return false;
    }
    if (o->n_heads == 0 || o->x.cols % o->n_heads != 0) {
        return mistake(t, "%u columns are not %u equal heads", o->x.cols, o->n_heads);
    }
    return weight_is(t, o->w, o->x.cols / o->n_heads, 1, "w", &w) &&
           (o->eps >= 0.0f || mistake(t, "eps is %g", (double)o->eps));
}

static bool check_linear(bt_tape *t, const bt_op_linear *o)
{
    if (!reads(t, o->x, "x") || !(o->add ? reads(t, o->y, "y") : writes(t, o->y, "y"))) {
        return false;
    }
    uint64_t n_out = 0;
    bool ended = false;
    for (int i = 0; i < BT_LINEAR_PARTS_MAX; i++) {
        bt_weight_shape w, bias;
        if (o->w[i].id == 0) {
            if (i == 0 || o->bias[i].id != 0) {
                return mistake(t, "part %d has no weight", i);
            }
            ended = true;
            continue;
        }
        if (ended) {
            return mistake(t, "part %d follows an empty one", i);
        }
        if (!weight_is(t, o->w[i], o->x.cols, 0, "w", &w) ||
            (o->bias[i].id != 0 && !weight_is(t, o->bias[i], w.n_out, 1, "bias", &bias))) {
            return false;
        }
        n_out += w.n_out;
    }
    if (n_out != o->y.cols || o->x.picked != o->y.picked) {
        return mistake(t, "the parts give %llu columns of %s rows, but y has %u of %s rows",
                       (unsigned long long)n_out, o->x.picked ? "picked" : "all", o->y.cols,
                       o->y.picked ? "picked" : "all");
    }
    return !overlap(o->x, o->y) || mistake(t, "x and y overlap");
}

static bool check_rope(bt_tape *t, const bt_op_rope *o)
{
    bt_weight_shape w;
    if (!reads(t, o->x, "x")) {
        return false;
    }
    if (o->n_heads == 0 || o->x.cols % o->n_heads != 0 || o->n_rot == 0 || o->n_rot % 2 != 0 ||
        o->n_rot > o->x.cols / o->n_heads) {
        return mistake(t, "%u of the values of each of %u heads in %u columns cannot be rotated",
                       o->n_rot, o->n_heads, o->x.cols);
    }
    return weight_is(t, o->frequencies, o->n_rot / 2, 1, "frequencies", &w) &&
           (isfinite(o->magnitude) || mistake(t, "the magnitude is not finite"));
}

static bool check_kv_put(bt_tape *t, const bt_op_kv_put *o)
{
    if (!reads(t, o->k, "k") || !reads(t, o->v, "v")) {
        return false;
    }
    if (o->k.picked || o->v.picked) {
        return mistake(t, "keys and values are kept for all rows, not for picked ones");
    }
    if (o->layer >= BT_LAYERS_MAX || t->k_cols[o->layer] != 0) {
        return mistake(t, "layer %u is beyond %u or was put before", o->layer, BT_LAYERS_MAX);
    }
    t->k_cols[o->layer] = o->k.cols;
    t->v_cols[o->layer] = o->v.cols;
    return true;
}

static bool check_attention(bt_tape *t, const bt_op_attention *o)
{
    if (!reads(t, o->q, "q") || !writes(t, o->y, "y")) {
        return false;
    }
    if (o->n_heads == 0 || o->n_kv_heads == 0 || o->n_heads % o->n_kv_heads != 0 ||
        o->q.cols % o->n_heads != 0 || o->y.cols % o->n_heads != 0) {
        return mistake(t, "%u heads on %u heads of keys do not divide %u columns of q, %u of y",
                       o->n_heads, o->n_kv_heads, o->q.cols, o->y.cols);
    }
    if (o->layer >= BT_LAYERS_MAX || t->k_cols[o->layer] == 0) {
        return mistake(t, "layer %u has no keys yet", o->layer);
    }
    if (t->k_cols[o->layer] != o->q.cols / o->n_heads * o->n_kv_heads ||
        t->v_cols[o->layer] != o->y.cols / o->n_heads * o->n_kv_heads) {
        return mistake(t,
                       "layer %u keeps %u and %u values, but %u heads of %u and %u are asked for",
                       o->layer, t->k_cols[o->layer], t->v_cols[o->layer], o->n_kv_heads,
                       o->q.cols / o->n_heads, o->y.cols / o->n_heads);
    }
    if (!isfinite(o->scale) || !(o->softcap >= 0.0f)) {
        return mistake(t, "scale %g, softcap %g", (double)o->scale, (double)o->softcap);
    }
    return (o->q.picked == o->y.picked && !overlap(o->q, o->y)) ||
           mistake(t, "q and y overlap or are not the same rows");
}

static bool check_add(bt_tape *t, const bt_op_add *o)
{
    return reads(t, o->x, "x") && reads(t, o->y, "y") && same_shape(t, o->x, o->y, "x and y");
}

static bool check_scale(bt_tape *t, const bt_op_scale *o)
{
    return reads(t, o->x, "x") && (isfinite(o->by) || mistake(t, "the factor is not finite"));
}

static bool check_glu(bt_tape *t, const bt_op_glu *o)
{
    return reads(t, o->gate, "gate") && reads(t, o->up, "up") && writes(t, o->y, "y") &&
           same_shape(t, o->gate, o->up, "gate and up") &&
           same_shape(t, o->gate, o->y, "gate and y");
}

static bool check_softcap(bt_tape *t, const bt_op_softcap *o)
{
    return reads(t, o->x, "x") && (o->cap > 0.0f || mistake(t, "the cap is %g", (double)o->cap));
}

static bool check_mark(bt_tape *t, const bt_op_mark *o)
{
    return (o->layer < BT_LAYERS_MAX &&
            (t->k_cols[o->layer] != 0 || t->convolves[o->layer] || t->scans[o->layer])) ||
           mistake(t, "layer %u is marked before its keys are put", o->layer);
}

static bool check_mul(bt_tape *t, const bt_op_mul *o)
{
    return reads(t, o->x, "x") && reads(t, o->gate, "gate") &&
           (o->add ? reads(t, o->y, "y") : writes(t, o->y, "y")) &&
           same_shape(t, o->x, o->y, "x and y") &&
           ((o->gate.cols == 1 && o->gate.picked == o->x.picked) ||
            mistake(t, "the gate has %u columns of %s rows; one of x's rows is wanted",
                    o->gate.cols, o->gate.picked ? "picked" : "all")) &&
           (!overlap(o->gate, o->y) || mistake(t, "gate and y overlap"));
}

/* The layer's state is touched by this kind of op for the first time. */
static bool takes_state(bt_tape *t, uint32_t layer, bool *touched)
{
    if (layer >= BT_LAYERS_MAX || touched[layer]) {
        return mistake(t, "layer %u is beyond %u, or its state was moved on before", layer,
                       BT_LAYERS_MAX);
    }
    touched[layer] = true;
    return true;
}

static bool check_short_conv(bt_tape *t, const bt_op_short_conv *o)
{
    bt_weight_shape w = { 0 };
    if (!reads(t, o->x, "x") || !writes(t, o->y, "y") ||
        !same_shape(t, o->x, o->y, "x and y")) {
        return false;
    }
    if (bt_device_weight_shape(t->device, o->w, &w) != BT_OK || w.n_out != o->x.cols ||
        w.n_in == 0 || w.n_in > BT_CONV_TAPS_MAX) {
        return mistake(t, "%u x %u taps for %u columns; up to %u taps are supported", w.n_in,
                       w.n_out, o->x.cols, BT_CONV_TAPS_MAX);
    }
    if (o->x.picked || overlap(o->x, o->y)) {
        return mistake(t, "x and y overlap, or are picked rows, which have no order");
    }
    return takes_state(t, o->layer, t->convolves);
}

static bool check_delta_scan(bt_tape *t, const bt_op_delta_scan *o)
{
    bt_weight_shape w;
    if (!reads(t, o->q, "q") || !reads(t, o->k, "k") || !reads(t, o->v, "v") ||
        !reads(t, o->alpha, "alpha") || !reads(t, o->beta, "beta") || !writes(t, o->y, "y") ||
        !same_shape(t, o->q, o->k, "q and k") || !same_shape(t, o->v, o->y, "v and y") ||
        !same_shape(t, o->alpha, o->beta, "alpha and beta")) {
        return false;
    }
    if (o->n_k_heads == 0 || o->n_v_heads == 0 || o->n_v_heads % o->n_k_heads != 0 ||
        o->q.cols % o->n_k_heads != 0 || o->v.cols % o->n_v_heads != 0 ||
        o->alpha.cols != o->n_v_heads) {
        return mistake(t, "%u value heads on %u key heads do not divide %u columns of v, %u of q, "
                       "%u of alpha", o->n_v_heads, o->n_k_heads, o->v.cols, o->q.cols,
                       o->alpha.cols);
    }
    if (o->q.picked || o->v.picked || o->alpha.picked) {
        return mistake(t, "a scan needs all rows, not picked ones");
    }
    if (overlap(o->q, o->y) || overlap(o->k, o->y) || overlap(o->v, o->y) ||
        overlap(o->alpha, o->y) || overlap(o->beta, o->y)) {
        return mistake(t, "y overlaps what is read");
    }
    return weight_is(t, o->decay, o->n_v_heads, 1, "decay", &w) &&
           weight_is(t, o->dt_bias, o->n_v_heads, 1, "dt_bias", &w) &&
           ((isfinite(o->scale) && o->l2_eps >= 0.0f) ||
            mistake(t, "scale %g, l2_eps %g", (double)o->scale, (double)o->l2_eps)) &&
           takes_state(t, o->layer, t->scans);
}

static bool check_route(bt_tape *t, const bt_op_route *o)
{
    if (!reads(t, o->scores, "scores") || !writes(t, o->y, "y")) {
        return false;
    }
    return (o->n_used >= 1 && o->n_used <= BT_EXPERTS_USED_MAX && o->n_used <= o->scores.cols &&
            o->scores.cols <= BT_EXPERTS_MAX && o->y.cols == 2 * o->n_used &&
            o->y.picked == o->scores.picked && !overlap(o->scores, o->y)) ||
           mistake(t, "the best %u (at most %u) of %u scores (at most %u) into %u columns",
                   o->n_used, BT_EXPERTS_USED_MAX, o->scores.cols, BT_EXPERTS_MAX, o->y.cols);
}

static bool is_route(bt_tape *t, bt_rows route, uint32_t n_used, bool picked)
{
    return reads(t, route, "route") &&
           ((n_used >= 1 && n_used <= BT_EXPERTS_USED_MAX && route.cols == 2 * n_used &&
             route.picked == picked) ||
            mistake(t, "a route of %u columns for the best %u", route.cols, n_used));
}

static bool check_expert_linear(bt_tape *t, const bt_op_expert_linear *o)
{
    bt_weight_shape w, first = { 0 };
    uint64_t n_out = 0;
    if (!reads(t, o->x, "x") || !is_route(t, o->route, o->n_used, o->x.picked) ||
        !writes(t, o->y, "y")) {
        return false;
    }
    if (o->per_expert && o->x.cols % o->n_used != 0) {
        return mistake(t, "%u columns of x are not %u equal parts", o->x.cols, o->n_used);
    }
    const uint32_t n_in = o->per_expert ? o->x.cols / o->n_used : o->x.cols;
    for (int i = 0; i < BT_EXPERT_PARTS_MAX && (i == 0 || o->w[i].id != 0); i++) {
        if (!weight_is(t, o->w[i], n_in, 0, "w", &w)) {
            return false;
        }
        first = i == 0 ? w : first;
        if (w.n_slices != first.n_slices || w.n_slices < o->n_used) {
            return mistake(t, "weights of %u and %u experts, of which %u are used",
                           first.n_slices, w.n_slices, o->n_used);
        }
        n_out += (uint64_t)o->n_used * w.n_out;
    }
    if (n_out != o->y.cols || o->x.picked != o->y.picked) {
        return mistake(t, "the parts give %llu columns of %s rows, but y has %u of %s rows",
                       (unsigned long long)n_out, o->x.picked ? "picked" : "all", o->y.cols,
                       o->y.picked ? "picked" : "all");
    }
    return (!overlap(o->x, o->y) && !overlap(o->route, o->y)) ||
           mistake(t, "y overlaps what is read");
}

static bool check_combine(bt_tape *t, const bt_op_combine *o)
{
    if (!reads(t, o->x, "x") || !is_route(t, o->route, o->n_used, o->x.picked) ||
        !(o->add ? reads(t, o->y, "y") : writes(t, o->y, "y"))) {
        return false;
    }
    return ((uint64_t)o->n_used * o->y.cols == o->x.cols && o->x.picked == o->y.picked &&
            !overlap(o->x, o->y) && !overlap(o->route, o->y)) ||
           mistake(t, "%u columns of x are not %u parts of the %u of y, or y overlaps them",
                   o->x.cols, o->n_used, o->y.cols);
}

static bool check(bt_tape *t, const bt_op *op)
{
    switch (op->kind) {
#define X(name)         \
    case BT_OP_##name:  \
        return check_##name(t, &op->name);
        BT_OP_LIST(X)
#undef X
    case BT_OP_COUNT:
        break;
    }
    return mistake(t, "kind %d is not in the vocabulary", (int)op->kind);
}

static bool has_room(bt_tape *t)
{
    if (t->n_ops < t->capacity) {
        return true;
    }
    if (t->n_ops == BT_TAPE_OPS_MAX) {
        return mistake(t, "a tape holds at most %d ops", BT_TAPE_OPS_MAX);
    }
    const uint32_t capacity = t->capacity ? t->capacity * 2 : 64;
    entry *ops = bt_realloc(BT_MEM_model, t->ops, capacity * sizeof *ops);
    if (!ops) {
        bt_fail(&t->mistake, BT_E_NOMEM, "no memory for a tape of %u ops", capacity);
        return false;
    }
    t->ops = ops;
    t->capacity = capacity;
    return true;
}

void bt_ops_tape_put(bt_tape *t, const bt_op *op)
{
    BT_ASSERT(!t->finished);
    if (t->mistake.status != BT_OK || !check(t, op) || !has_room(t)) {
        return;
    }
    const bt_rows output = bt_ops_output(op);
    if (output.slot != 0) {
        note_written(t, output);
    }
    t->ops[t->n_ops++] = (entry){ *op, t->layer };
}

void bt_ops_tape_set_layer(bt_tape *t, uint32_t layer)
{
    BT_ASSERT(!t->finished);
    t->layer = layer;
}

void bt_ops_tape_set_result(bt_tape *t, bt_rows logits)
{
    BT_ASSERT(!t->finished);
    if (t->mistake.status == BT_OK && reads(t, logits, "the result")) {
        t->result = logits;
    }
}

bt_status bt_ops_tape_finish(bt_tape *t, bt_error *err)
{
    if (t->mistake.status != BT_OK) {
        return bt_fail(err, t->mistake.status, "%s", t->mistake.text);
    }
    t->finished = true;
    return BT_OK;
}

/* ---- looking ---- */

uint32_t bt_ops_tape_count(const bt_tape *t) { return t->n_ops; }
uint32_t bt_ops_tape_slots(const bt_tape *t) { return t->n_slots; }
bt_rows  bt_ops_tape_result(const bt_tape *t) { return t->result; }

const bt_op *bt_ops_tape_op(const bt_tape *t, uint32_t index)
{
    BT_ASSERT(index < t->n_ops);
    return &t->ops[index].op;
}

uint32_t bt_ops_tape_layer_of(const bt_tape *t, uint32_t index)
{
    BT_ASSERT(index < t->n_ops);
    return t->ops[index].layer;
}

uint32_t bt_ops_tape_slot_cols(const bt_tape *t, uint16_t number, bool *ret_picked)
{
    BT_ASSERT(number >= 1 && number <= t->n_slots);
    *ret_picked = t->slots[number].picked;
    return t->slots[number].cols;
}

const bt_device *bt_ops_tape_device(const bt_tape *t) { return t->device; }
uint64_t bt_ops_tape_id(const bt_tape *t) { return t->id; }
