/* handoff/ledger.c - see ledger.h. */
#include "handoff/ledger.h"

#include "base/check.h"
#include "base/memory.h"

bt_status bt_handoff_states_layer_bytes(const bt_engine *engine, uint64_t **ret_bytes,
                                        bt_error *err)
{
    const uint32_t n_layers = bt_engine_kv_layout(engine)->n_layers;
    *ret_bytes = NULL;
    if (bt_engine_state_bytes(engine) == 0) {
        return BT_OK;
    }
    uint64_t *bytes = bt_alloc_zero(BT_MEM_handoff, n_layers, sizeof *bytes);
    if (!bytes) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the sizes of %u states", n_layers);
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        bytes[i] = bt_engine_state_layer_bytes(engine, i);
        if (bytes[i] > INT32_MAX) {
            bt_free(bytes);
            return bt_fail(err, BT_E_UNSUPPORTED, "the state of layer %u takes %llu bytes: too "
                           "large for the wire", i, (unsigned long long)bytes[i]);
        }
    }
    *ret_bytes = bytes;
    return BT_OK;
}

bt_status bt_handoff_receipt_open(bt_ledger *l, const bt_kv_form *form,
                                  const uint64_t *state_bytes, uint32_t stream,
                                  const bt_wire_prefill *asked, bt_error *err)
{
    const bt_kv_layout *layout = form->layout;
    BT_ASSERT(asked->position_first <= asked->position_end);
    uint32_t *next = bt_alloc_zero(BT_MEM_handoff, layout->n_layers, sizeof *next);
    uint64_t *state_next = bt_alloc_zero(BT_MEM_handoff, layout->n_layers, sizeof *state_next);
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
    *l = (bt_ledger){ .layout = layout, .form = form, .first = asked->position_first,
                      .end = asked->position_end, .complete = asked->position_first,
                      .next = next, .state_bytes = state_bytes, .state_next = state_next,
                      .tally = tally };
    return BT_OK;
}

void bt_handoff_receipt_close(bt_ledger *l)
{
    bt_free(l->next);
    bt_free(l->state_next);
    bt_wire_tally_close(l->tally);
    *l = (bt_ledger){ 0 };
}

bt_status bt_handoff_receipt_check(const bt_ledger *l, const bt_wire_rows *m, bt_error *err)
{
    if (m->layer >= l->layout->n_layers) {
        return bt_fail(err, BT_E_PROTOCOL, "rows of layer %u, but the model has %u layers",
                       m->layer, l->layout->n_layers);
    }
    if (m->position != l->next[m->layer] || m->n == 0 || m->n > l->end - m->position) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "%u rows from position %u of layer %u, but %u is next and %u the end", m->n,
                       m->position, m->layer, l->next[m->layer], l->end);
    }
    const uint64_t k = bt_kv_codec_k_bytes(l->form, m->layer),
                   v = bt_kv_codec_v_bytes(l->form, m->layer);
    if (k + v == 0 || m->k.size != m->n * k || m->v.size != m->n * v) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "%u and %u bytes for %u K and V rows of layer %u, %llu and %llu bytes each",
                       m->k.size, m->v.size, m->n, m->layer, (unsigned long long)k,
                       (unsigned long long)v);
    }
    return BT_OK;
}

void bt_handoff_receipt_enter(bt_ledger *l, const bt_wire_rows *m, const bt_frame *frame)
{
    BT_ASSERT(m->layer < l->layout->n_layers && m->position == l->next[m->layer]);
    l->next[m->layer] = m->position + m->n;
    bt_wire_tally_put(l->tally, BT_WIRE_ROWS, frame->size, frame->hash);
}

bt_status bt_handoff_receipt_check_state(const bt_ledger *l, const bt_wire_state *m,
                                         uint32_t position, bt_error *err)
{
    const uint64_t total = l->state_bytes && m->layer < l->layout->n_layers
                               ? l->state_bytes[m->layer] : 0;
    if (total == 0 || m->kind != 0 || m->total != total) {
        return bt_fail(err, BT_E_PROTOCOL, "a state of kind %u and %u bytes for layer %u of %u, "
                       "which keeps %llu", m->kind, m->total, m->layer, l->layout->n_layers,
                       (unsigned long long)total);
    }
    const uint64_t next = l->state_next[m->layer];
    if (m->position != position || m->offset != next || m->data.size == 0 ||
        m->data.size > total - next) {
        return bt_fail(err, BT_E_PROTOCOL, "bytes %u..%llu of the state of layer %u at %u, but "
                       "%llu of %llu is next and %u the position", m->offset,
                       (unsigned long long)m->offset + m->data.size, m->layer, m->position,
                       (unsigned long long)next, (unsigned long long)total, position);
    }
    return BT_OK;
}

void bt_handoff_receipt_enter_state(bt_ledger *l, const bt_wire_state *m, const bt_frame *frame)
{
    BT_ASSERT(l->state_bytes && m->layer < l->layout->n_layers);
    l->state_next[m->layer] = (uint64_t)m->offset + m->data.size;
    bt_wire_tally_put(l->tally, BT_WIRE_STATE, frame->size, frame->hash);
}

bool bt_handoff_receipt_states_whole(const bt_ledger *l)
{
    for (uint32_t i = 0; l->state_bytes && i < l->layout->n_layers; i++) {
        if (l->state_next[i] != l->state_bytes[i]) {
            return false;
        }
    }
    return true;
}

bool bt_handoff_receipt_states_none(const bt_ledger *l)
{
    for (uint32_t i = 0; i < l->layout->n_layers; i++) {
        if (l->state_next[i] != 0) {
            return false;
        }
    }
    return true;
}

void bt_handoff_receipt_next_states(bt_ledger *l)
{
    for (uint32_t i = 0; i < l->layout->n_layers; i++) {
        l->state_next[i] = 0;
    }
}

/* Every layer that keeps rows stands exactly at `position`. */
static bt_status all_at(const bt_ledger *l, uint32_t position, bt_error *err)
{
    if (position < l->complete || position > l->end) {
        return bt_fail(err, BT_E_PROTOCOL, "a chunk ends at %u, outside %u..%u", position,
                       l->complete, l->end);
    }
    for (uint32_t i = 0; i < l->layout->n_layers; i++) {
        if (bt_kv_codec_layer_bytes(l->form, i) > 0 && l->next[i] != position) {
            return bt_fail(err, BT_E_PROTOCOL, "a chunk ends at %u, but layer %u has rows up to %u",
                           position, i, l->next[i]);
        }
    }
    return BT_OK;
}

bt_status bt_handoff_receipt_chunk(bt_ledger *l, const bt_wire_chunk *m, bt_error *err)
{
    BT_TRY(all_at(l, m->position_end, err));
    BT_TRY(bt_wire_tally_check_chunk(l->tally, m, err));
    l->complete = m->position_end;
    return BT_OK;
}

bt_status bt_handoff_receipt_commit(bt_ledger *l, const bt_wire_commit *m, bt_error *err)
{
    BT_TRY(all_at(l, l->end, err));
    if (!bt_handoff_receipt_states_whole(l)) {
        return bt_fail(err, BT_E_PROTOCOL, "COMMIT before the states of all layers had come");
    }
    BT_TRY(bt_wire_tally_check_commit(l->tally, m, err));
    l->complete = l->end;
    return BT_OK;
}
