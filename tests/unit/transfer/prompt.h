/* tests/unit/transfer/prompt.h - a prompt on a worker whose model has three layers: rows of 64
 * bytes, a recurrent state of 300 bytes, rows of 32 bytes. */
#ifndef TRANSFER_PROMPT_H
#define TRANSFER_PROMPT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "transfer/worker.h"
#include "wire/codec.h"

#define DO(name) BT_TRANSFER_WORKER_DO_##name
#define ON(name) BT_TRANSFER_WORKER_ON_##name

enum { PROMPT_LAYERS = 3, PROMPT_STATE = 300 };

typedef struct {
    bt_kv_layer  layers[PROMPT_LAYERS];
    bt_kv_layout layout;
    bt_kv_form   form;
    uint64_t     state_bytes[PROMPT_LAYERS];
    bt_transfer_worker_ask ask;
    bt_transfer_worker     w;
} prompt;

/* n_checkpoints > 0: at positions end - 1, end - 2, ...; then the model keeps states. */
static inline void prompt_open(prompt *p, uint32_t first, uint32_t end, uint32_t order,
                               uint64_t credit, uint32_t n_checkpoints)
{
    *p = (prompt){
        .layers = { { .k_dim = 8, .v_dim = 8, .k_row_bytes = 32, .v_row_bytes = 32 }, { 0 },
                    { .k_dim = 4, .v_dim = 4, .k_row_bytes = 16, .v_row_bytes = 16 } },
        .state_bytes = { 0, PROMPT_STATE, 0 },
    };
    p->layout = (bt_kv_layout){ .page_tokens = 32, .type_k = BT_TYPE_F32, .type_v = BT_TYPE_F32,
                                .n_layers = PROMPT_LAYERS, .layers = p->layers };
    p->form = bt_kv_codec_stored(&p->layout);
    p->ask = (bt_transfer_worker_ask){ .form = &p->form, .first = first, .end = end,
                                       .order = order, .credit = credit,
                                       .n_checkpoints = n_checkpoints,
                                       .state_bytes = n_checkpoints > 0 ? p->state_bytes : NULL };
    for (uint32_t i = 0; i < n_checkpoints; i++) {
        p->ask.checkpoints[i] = end - 1 - i;
    }
    assert_int_equal(bt_transfer_worker_init(&p->w, &p->ask, 0, NULL), BT_OK);
}

/* To QUEUED. */
static inline void prompt_begin(prompt *p)
{
    (void)bt_transfer_worker_put(&p->w, ON(FULL), 1);
    assert_int_equal(bt_transfer_worker_put(&p->w, ON(ADMITTED), 1), DO(SUBMIT));
}

/* The next frame, written; checkpoints are found. */
static inline bt_transfer_piece prompt_send(prompt *p, uint32_t *ret_todo)
{
    bt_transfer_piece piece = bt_transfer_worker_next(&p->w, 1);
    if (piece.kind == BT_TRANSFER_PIECE_FIND) {
        bt_transfer_worker_found(&p->w, true);
        piece = bt_transfer_worker_next(&p->w, 1);
    }
    *ret_todo = piece.kind == BT_TRANSFER_PIECE_NONE
            ? 0 : bt_transfer_worker_written(&p->w, &piece, 1);
    return piece;
}

/* Frames up to one of that kind; what there is to do then. */
static inline uint32_t prompt_send_up_to(prompt *p, bt_transfer_piece_kind kind)
{
    uint32_t todo;
    bt_transfer_piece piece;
    do {
        piece = prompt_send(p, &todo);
        assert_int_not_equal(piece.kind, BT_TRANSFER_PIECE_NONE);
    } while (piece.kind != kind);
    return todo;
}

#endif
