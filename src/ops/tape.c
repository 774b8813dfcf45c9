/* Appending, with every shape checked once for all devices. */
#include "ops/tape.h"

#include <stdatomic.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "ops/check.h"

/* ---- life ---- */

static atomic_uint_fast64_t n_created;

bt_status bt_ops_tape_create(const bt_op_weights *weights, bt_tape **ret_tape, bt_error *err)
{
    BT_ASSERT(weights->shape);
    bt_tape *t = bt_alloc_zero(BT_MEM_model, 1, sizeof *t);
    if (!t) {
        return bt_fail_nomem(err, sizeof *t, "a tape");
    }
    t->weights = *weights;
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

/* ---- rows ---- */

static bt_rows take_slot(bt_tape *t, uint32_t cols, bool picked)
{
    BT_ASSERT(!t->finished);
    if (cols == 0 || cols > BT_WIDTH_MAX * 8 || t->n_slots == BT_TAPE_SLOTS_MAX) {
        bt_ops_mistake(t, "scratch rows of %u columns (slot %u, at most %d)", cols, t->n_slots + 1,
                BT_TAPE_SLOTS_MAX);
        return (bt_rows){ 0 };
    }
    const uint16_t number = (uint16_t)++t->n_slots;
    t->slots[number] = (bt_ops_slot){ .cols = cols, .picked = picked };
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

static bool grow(bt_tape *t)
{
    if (t->n_ops < t->capacity) {
        return true;
    }
    if (t->n_ops == BT_TAPE_OPS_MAX) {
        return bt_ops_mistake(t, "a tape holds at most %d ops", BT_TAPE_OPS_MAX);
    }
    const uint32_t capacity = t->capacity ? t->capacity * 2 : 64;
    bt_ops_entry *ops = bt_realloc(BT_MEM_model, t->ops, capacity * sizeof *ops);
    if (!ops) {
        bt_fail_nomem(&t->mistake, capacity * sizeof *ops, "the ops of a tape");
        return false;
    }
    t->ops = ops;
    t->capacity = capacity;
    return true;
}

void bt_ops_tape_put(bt_tape *t, const bt_op *op)
{
    BT_ASSERT(!t->finished);
    if (t->mistake.status != BT_OK) {
        return;
    }
    if ((unsigned)op->kind >= BT_OP_COUNT) {
        bt_ops_mistake(t, "kind %d is not in the vocabulary", (int)op->kind);
        return;
    }
    if (!bt_ops_info(op->kind)->check(t, op) || !grow(t)) {
        return;
    }
    const bt_rows output = bt_ops_output(op);
    if (output.slot != 0) {
        bt_ops_note_written(t, output);
    }
    t->ops[t->n_ops++] = (bt_ops_entry){ *op, t->layer };
}

void bt_ops_tape_set_layer(bt_tape *t, uint32_t layer)
{
    BT_ASSERT(!t->finished);
    t->layer = layer;
}

void bt_ops_tape_set_result(bt_tape *t, bt_rows logits)
{
    BT_ASSERT(!t->finished);
    if (t->mistake.status == BT_OK && bt_ops_reads(t, logits, "the result")) {
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

const bt_op_weights *bt_ops_tape_weights(const bt_tape *t) { return &t->weights; }
uint64_t bt_ops_tape_id(const bt_tape *t) { return t->id; }
