/* transfer/receipt.c - see ledger.h. */
#include "transfer/receipt.h"

#include "base/check.h"
#include "base/memory.h"

bt_status bt_transfer_receipt_open(bt_transfer_receipt *r, const bt_kv_form *form,
                                   const uint64_t *state_bytes, uint32_t stream,
                                   const bt_wire_prefill *asked, bt_error *err)
{
    const bt_kv_layout *layout = form->layout;
    BT_ASSERT(asked->position_first <= asked->position_end);
    uint32_t *next = bt_alloc_zero(BT_MEM_wire, layout->n_layers, sizeof *next);
    uint64_t *state_next = bt_alloc_zero(BT_MEM_wire, layout->n_layers, sizeof *state_next);
    if (!next || !state_next) {
        bt_free(next);
        bt_free(state_next);
        return bt_fail(err, BT_E_NOMEM, "no memory for the account of a prompt");
    }
    bt_wire_tally *tally = NULL;
    const bt_status s = bt_wire_tally_open(stream, asked, &tally, err);
    if (s != BT_OK) {
        bt_free(next);
        bt_free(state_next);
        return s;
    }
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        next[i] = asked->position_first;
    }
    *r = (bt_transfer_receipt){ .layout = layout, .form = form, .first = asked->position_first,
                      .end = asked->position_end, .complete = asked->position_first,
                      .next = next, .state_bytes = state_bytes, .state_next = state_next,
                      .tally = tally };
    return BT_OK;
}

void bt_transfer_receipt_close(bt_transfer_receipt *r)
{
    bt_free(r->next);
    bt_free(r->state_next);
    bt_wire_tally_close(r->tally);
    *r = (bt_transfer_receipt){ 0 };
}

bt_status bt_transfer_receipt_check(const bt_transfer_receipt *r, const bt_wire_rows *m,
                                    bt_error *err)
{
    if (m->layer >= r->layout->n_layers) {
        return bt_fail(err, BT_E_PROTOCOL, "rows of layer %u, but the model has %u layers",
                       m->layer, r->layout->n_layers);
    }
    if (m->position != r->next[m->layer] || m->n == 0 || m->n > r->end - m->position) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "%u rows from position %u of layer %u, but %u is next and %u the end", m->n,
                       m->position, m->layer, r->next[m->layer], r->end);
    }
    const uint64_t k = bt_kv_codec_k_bytes(r->form, m->layer),
                   v = bt_kv_codec_v_bytes(r->form, m->layer);
    if (k + v == 0 || m->k.size != m->n * k || m->v.size != m->n * v) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "%u and %u bytes for %u K and V rows of layer %u, %llu and %llu bytes each",
                       m->k.size, m->v.size, m->n, m->layer, (unsigned long long)k,
                       (unsigned long long)v);
    }
    return BT_OK;
}

void bt_transfer_receipt_enter(bt_transfer_receipt *r, const bt_wire_rows *m, const bt_frame *frame)
{
    BT_ASSERT(m->layer < r->layout->n_layers && m->position == r->next[m->layer]);
    r->next[m->layer] = m->position + m->n;
    bt_wire_tally_put(r->tally, BT_WIRE_ROWS, frame->size, frame->hash);
}

bt_status bt_transfer_receipt_check_state(const bt_transfer_receipt *r, const bt_wire_state *m,
                                          uint32_t position, bt_error *err)
{
    const uint64_t total = r->state_bytes && m->layer < r->layout->n_layers
                               ? r->state_bytes[m->layer] : 0;
    if (total == 0 || m->kind != 0 || m->total != total) {
        return bt_fail(err, BT_E_PROTOCOL, "a state of kind %u and %u bytes for layer %u of %u, "
                       "which keeps %llu", m->kind, m->total, m->layer, r->layout->n_layers,
                       (unsigned long long)total);
    }
    const uint64_t next = r->state_next[m->layer];
    if (m->position != position || m->offset != next || m->data.size == 0 ||
        m->data.size > total - next) {
        return bt_fail(err, BT_E_PROTOCOL, "bytes %u..%llu of the state of layer %u at %u, but "
                       "%llu of %llu is next and %u the position", m->offset,
                       (unsigned long long)m->offset + m->data.size, m->layer, m->position,
                       (unsigned long long)next, (unsigned long long)total, position);
    }
    return BT_OK;
}

void bt_transfer_receipt_enter_state(bt_transfer_receipt *r, const bt_wire_state *m,
                                     const bt_frame *frame)
{
    BT_ASSERT(r->state_bytes && m->layer < r->layout->n_layers);
    r->state_next[m->layer] = (uint64_t)m->offset + m->data.size;
    bt_wire_tally_put(r->tally, BT_WIRE_STATE, frame->size, frame->hash);
}

bool bt_transfer_receipt_states_whole(const bt_transfer_receipt *r)
{
    for (uint32_t i = 0; r->state_bytes && i < r->layout->n_layers; i++) {
        if (r->state_next[i] != r->state_bytes[i]) {
            return false;
        }
    }
    return true;
}

bool bt_transfer_receipt_states_none(const bt_transfer_receipt *r)
{
    for (uint32_t i = 0; i < r->layout->n_layers; i++) {
        if (r->state_next[i] != 0) {
            return false;
        }
    }
    return true;
}

void bt_transfer_receipt_next_states(bt_transfer_receipt *r)
{
    for (uint32_t i = 0; i < r->layout->n_layers; i++) {
        r->state_next[i] = 0;
    }
}

/* Every layer that keeps rows stands exactly at `position`. */
static bt_status all_at(const bt_transfer_receipt *r, uint32_t position, bt_error *err)
{
    if (position < r->complete || position > r->end) {
        return bt_fail(err, BT_E_PROTOCOL, "a chunk ends at %u, outside %u..%u", position,
                       r->complete, r->end);
    }
    for (uint32_t i = 0; i < r->layout->n_layers; i++) {
        if (bt_kv_codec_layer_bytes(r->form, i) > 0 && r->next[i] != position) {
            return bt_fail(err, BT_E_PROTOCOL, "a chunk ends at %u, but layer %u has rows up to %u",
                           position, i, r->next[i]);
        }
    }
    return BT_OK;
}

bt_status bt_transfer_receipt_chunk(bt_transfer_receipt *r, const bt_wire_chunk *m, bt_error *err)
{
    BT_TRY(all_at(r, m->position_end, err));
    BT_TRY(bt_wire_tally_check_chunk(r->tally, m, err));
    r->complete = m->position_end;
    return BT_OK;
}

bt_status bt_transfer_receipt_commit(bt_transfer_receipt *r, const bt_wire_commit *m, bt_error *err)
{
    BT_TRY(all_at(r, r->end, err));
    if (!bt_transfer_receipt_states_whole(r)) {
        return bt_fail(err, BT_E_PROTOCOL, "COMMIT before the states of all layers had come");
    }
    BT_TRY(bt_wire_tally_check_commit(r->tally, m, err));
    r->complete = r->end;
    return BT_OK;
}
