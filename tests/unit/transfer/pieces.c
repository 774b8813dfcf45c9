/* tests/unit/transfer/pieces.c - which frame of a prompt comes next: order, segments, credit. */
#include "unit/transfer/prompt.h"

#include <stdio.h>
#include <string.h>

/* Frames as far as they go: "r0@0+4" rows of layer 0, "s1@0+300" state, "C8" chunk, "!" commit,
 * "c1@0+300" part of a checkpoint, "." nothing now. */
static void sends(prompt *p, const char *want)
{
    char text[512] = "";
    size_t at = 0;
    for (;;) {
        uint32_t todo;
        const bt_transfer_piece x = prompt_send(p, &todo);
        char *to = text + at;
        const size_t room = sizeof text - at;
        switch (x.kind) {
        case BT_TRANSFER_PIECE_NONE:
            assert_string_equal(text, want);
            return;
        case BT_TRANSFER_PIECE_ROWS:
            at += (size_t)snprintf(to, room, "r%u@%u+%u ", x.layer, x.position, x.n);
            break;
        case BT_TRANSFER_PIECE_STATE:
            at += (size_t)snprintf(to, room, "s%u@%u+%u ", x.layer, x.offset, x.n);
            break;
        case BT_TRANSFER_PIECE_CHECKPOINT:
            at += (size_t)snprintf(to, room, "c%u@%u+%u ", x.layer, x.offset, x.n);
            break;
        case BT_TRANSFER_PIECE_CHUNK:
            at += (size_t)snprintf(to, room, "C%u ", x.position);
            break;
        case BT_TRANSFER_PIECE_COMMIT:
            at += (size_t)snprintf(to, room, "! ");
            break;
        case BT_TRANSFER_PIECE_FIND:
            fail_msg("a checkpoint was found already");
        }
    }
}

static void opened(prompt *p, uint32_t first, uint32_t end, uint32_t order, uint32_t n_checkpoints)
{
    prompt_open(p, first, end, order, 1 << 20, n_checkpoints);
    prompt_begin(p);
    sends(p, "");
}

static void a_layer_leaves_as_soon_as_it_is_computed(void **state)
{
    (void)state;
    prompt p;
    opened(&p, 0, 8, BT_WIRE_ORDER_PUSH, 0);
    bt_transfer_worker_layer_ready(&p.w, 0, 0, 4, 1);
    sends(&p, "r0@0+4 ");
    bt_transfer_worker_layer_ready(&p.w, 2, 0, 4, 1);
    sends(&p, "r2@0+4 C4 ");                            /* all layers of it are ready */
    bt_transfer_worker_layer_ready(&p.w, 0, 4, 4, 1);
    bt_transfer_worker_layer_ready(&p.w, 2, 4, 4, 1);
    sends(&p, "r0@4+4 r2@4+4 ");                        /* COMMIT waits for the engine's word */
    bt_transfer_worker_all_ready(&p.w, 8, 1);
    sends(&p, "! ");
    bt_transfer_worker_done(&p.w);
}

static void rows_of_the_prefix_cache_leave_without_computing(void **state)
{
    (void)state;
    prompt p;
    opened(&p, 2, 8, BT_WIRE_ORDER_PUSH, 0);
    bt_transfer_worker_layer_ready(&p.w, 0, 6, 2, 1);   /* the first row computed is 6 */
    assert_int_equal(p.w.n_cached, 6);
    sends(&p, "r0@2+4 r2@2+4 C6 r0@6+2 ");
    bt_transfer_worker_done(&p.w);
}

static void chunks_and_bulk_wait_for_all_layers(void **state)
{
    (void)state;
    prompt p;
    opened(&p, 0, 8, BT_WIRE_ORDER_CHUNKS, 0);
    bt_transfer_worker_layer_ready(&p.w, 0, 0, 4, 1);
    sends(&p, "");
    bt_transfer_worker_all_ready(&p.w, 4, 1);
    sends(&p, "r0@0+4 r2@0+4 C4 ");
    bt_transfer_worker_done(&p.w);

    opened(&p, 0, 8, BT_WIRE_ORDER_BULK, 0);
    bt_transfer_worker_all_ready(&p.w, 4, 1);
    sends(&p, "");
    bt_transfer_worker_all_ready(&p.w, 8, 1);
    sends(&p, "r0@0+8 r2@0+8 ! ");
    bt_transfer_worker_done(&p.w);
}

static void a_link_that_is_behind_gets_segments_of_256_tokens(void **state)
{
    (void)state;
    prompt p;
    opened(&p, 0, 600, BT_WIRE_ORDER_PUSH, 0);
    bt_transfer_worker_all_ready(&p.w, 600, 1);
    sends(&p, "r0@0+256 r2@0+256 C256 r0@256+256 r2@256+256 C512 r0@512+88 r2@512+88 ! ");
    bt_transfer_worker_done(&p.w);
}

static void a_state_follows_the_last_rows_of_its_layer(void **state)
{
    (void)state;
    prompt p;
    opened(&p, 0, 8, BT_WIRE_ORDER_PUSH, 1);
    bt_transfer_worker_layer_ready(&p.w, 0, 0, 8, 1);
    sends(&p, "r0@0+8 ");
    bt_transfer_worker_layer_ready(&p.w, 1, 0, 8, 1);
    sends(&p, "s1@0+300 ");
    bt_transfer_worker_all_ready(&p.w, 8, 1);
    sends(&p, "r2@0+8 ! ");                             /* checkpoints wait for the engine's end */
    assert_int_equal(bt_transfer_worker_put(&p.w, ON(ENDED), 1), DO(RELEASE));
    sends(&p, "c1@0+300 C7 ");
    assert_int_equal(p.w.state, BT_TRANSFER_WORKER_DONE);
    bt_transfer_worker_done(&p.w);
}

static void a_checkpoint_that_was_not_kept_is_a_chunk_alone(void **state)
{
    (void)state;
    prompt p;
    opened(&p, 0, 8, BT_WIRE_ORDER_PUSH, 2);
    (void)bt_transfer_worker_put(&p.w, ON(ENDED), 1);
    prompt_send_up_to(&p, BT_TRANSFER_PIECE_COMMIT);
    bt_transfer_piece x = bt_transfer_worker_next(&p.w, 1);
    assert_int_equal(x.kind, BT_TRANSFER_PIECE_FIND);
    assert_int_equal(x.position, 7);
    bt_transfer_worker_found(&p.w, false);
    sends(&p, "C7 c1@0+300 C6 ");
    bt_transfer_worker_done(&p.w);
}

static void credit_cuts_frames_and_is_spent_to_the_byte(void **state)
{
    (void)state;
    prompt p;
    const uint32_t rows = (uint32_t)bt_wire_rows_place_size(0, 0);
    const uint32_t part = (uint32_t)bt_wire_state_place_size(0);
    prompt_open(&p, 0, 8, BT_WIRE_ORDER_PUSH, rows + 3 * 64 + 63, 1);
    prompt_begin(&p);
    bt_transfer_worker_all_ready(&p.w, 8, 1);
    sends(&p, "r0@0+3 ");
    assert_int_equal(p.w.credit, 63);
    assert_true(bt_transfer_worker_is_held_up(&p.w));
    assert_true(bt_transfer_worker_credit(&p.w, rows + 5 * 64 - 63 + part + 10, 1));
    sends(&p, "r0@3+5 s1@0+10 ");
    assert_int_equal(p.w.credit, 0);
    assert_true(bt_transfer_worker_credit(&p.w, part, 1));     /* nothing fits beside the header */
    sends(&p, "");
    assert_true(bt_transfer_worker_credit(&p.w, 1 << 20, 1));
    sends(&p, "s1@10+290 r2@0+8 ! ");                          /* marks cost nothing */
    bt_transfer_worker_done(&p.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_leaves_as_soon_as_it_is_computed),
        cmocka_unit_test(rows_of_the_prefix_cache_leave_without_computing),
        cmocka_unit_test(chunks_and_bulk_wait_for_all_layers),
        cmocka_unit_test(a_link_that_is_behind_gets_segments_of_256_tokens),
        cmocka_unit_test(a_state_follows_the_last_rows_of_its_layer),
        cmocka_unit_test(a_checkpoint_that_was_not_kept_is_a_chunk_alone),
        cmocka_unit_test(credit_cuts_frames_and_is_spent_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
