/* ops/step.h - what changes from one step to the next, and nothing else.
 *
 * A step evaluates n_rows rows: one row is one token of one sequence at one position. The rows of
 * a sequence stand together and their positions are consecutive. A tape says what is done with
 * rows; the step record says which rows. The device reads it when it runs.
 *
 * Lifetime: all arrays are borrowed until the step has ended (bt_device_wait). Threads: whoever
 * owns the device; on_mark runs on a device thread while other ops wait, so it must be short.
 */
#ifndef BT_OPS_STEP_H
#define BT_OPS_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "quant/types.h"

typedef struct { uint32_t id; } bt_buffer;      /* device memory; 0 is none */

/* Where K and V rows lie inside a page. Filled by kv/, read by devices. */
typedef struct {
    uint32_t k_dim, v_dim;             /* values in a row; 0: this layer keeps no K and V */
    uint64_t k_offset, v_offset;       /* bytes from the start of the page */
    uint64_t k_row_bytes, v_row_bytes;
} bt_kv_layer;

typedef struct {
    bt_buffer    buffer;               /* n_pages * page_bytes */
    uint32_t     page_tokens;          /* positions in a page */
    uint64_t     page_bytes;
    bt_type      type_k, type_v;
    uint32_t     n_layers;
    bt_kv_layer *layers;               /* [n_layers] */
} bt_kv_layout;

/* A tensor that a recurrent layer keeps per sequence: n matrices of f32, [rows][cols]. The op that
 * moves it on says what its rows mean (ops/ops.h). */
typedef struct {
    const char *name;                  /* for messages */
    uint32_t    n, rows, cols;
    uint64_t    offset;                /* bytes from the start of a slot */
} bt_state_tensor;

enum { BT_STATE_TENSORS_MAX = 4 };

/* All that a layer keeps, in the order in which it travels; n_tensors 0: nothing. */
typedef struct {
    uint32_t        n_tensors;
    bt_state_tensor tensors[BT_STATE_TENSORS_MAX];
} bt_state_layer;

static inline uint64_t bt_ops_state_tensor_bytes(const bt_state_tensor *t)
{
    return (uint64_t)t->n * t->rows * t->cols * sizeof(float);
}

typedef struct {
    bt_buffer       buffer;            /* n_slots * slot_bytes */
    uint64_t        slot_bytes;
    uint32_t        n_slots, n_layers;
    bt_state_layer *layers;            /* [n_layers] */
} bt_state_layout;

typedef struct {
    uint32_t        row_first, n_rows;
    uint32_t        position;          /* of row_first */
    const uint32_t *pages;             /* by position / page_tokens; covers all rows of this step */
    uint32_t        n_pages;
    uint32_t        state_slot;        /* updated in place; lost if the step fails */
    bool            is_long;           /* rope takes long_frequencies; the same in all its steps */
} bt_step_sequence;

typedef struct {
    uint32_t                n_rows;
    const uint32_t         *tokens;         /* [n_rows] */
    const uint32_t         *positions;      /* [n_rows] */
    const uint32_t         *row_sequence;   /* [n_rows] index into sequences */
    uint32_t                n_sequences;
    const bt_step_sequence *sequences;
    uint32_t                n_logit_rows;   /* rows whose logits are wanted; may be 0 */
    const uint32_t         *logit_rows;     /* [n_logit_rows] row numbers, ascending */
    const bt_kv_layout     *kv;
    const bt_state_layout  *state;          /* NULL: no layer of the model keeps one */
    /* Called at a `mark` op: K, V and state of `layer` are complete for all rows of this step. */
    void (*on_mark)(void *context, uint32_t layer);
    void                   *mark_context;
} bt_step;

#endif
