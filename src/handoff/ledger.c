/* handoff/ledger.c - see ledger.h. */
#include "handoff/ledger.h"

#include "base/check.h"
#include "base/memory.h"

bt_status bt_ledger_open(bt_ledger *l, const bt_rows_form *form, uint32_t stream,
                         const bt_wire_prefill *asked, bt_error *err)
{
    const bt_kv_layout *layout = form->layout;
    BT_ASSERT(asked->position_first <= asked->position_end);
    uint32_t *next = bt_alloc_zero(BT_MEM_handoff, layout->n_layers, sizeof *next);
    if (!next) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the account of a prompt");
    }
    bt_wire_tally *tally = NULL;
    const bt_status s = bt_wire_tally_open(stream, asked, &tally, err);
    if (s != BT_OK) {
        bt_free(next);
        return s;
    }
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        next[i] = asked->position_first;
    }
    *l = (bt_ledger){ .layout = layout, .form = form, .first = asked->position_first,
                      .end = asked->position_end, .complete = asked->position_first,
                      .next = next, .tally = tally };
    return BT_OK;
}

void bt_ledger_close(bt_ledger *l)
{
    bt_free(l->next);
    bt_wire_tally_close(l->tally);
    *l = (bt_ledger){ 0 };
}

bt_status bt_ledger_check(const bt_ledger *l, const bt_wire_rows *m, bt_error *err)
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
    const uint64_t k = bt_rows_k_bytes(l->form, m->layer), v = bt_rows_v_bytes(l->form, m->layer);
    if (k + v == 0 || m->k.size != m->n * k || m->v.size != m->n * v) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "%u and %u bytes for %u K and V rows of layer %u, %llu and %llu bytes each",
                       m->k.size, m->v.size, m->n, m->layer, (unsigned long long)k,
                       (unsigned long long)v);
    }
    return BT_OK;
}

void bt_ledger_enter(bt_ledger *l, const bt_wire_rows *m, const bt_frame *frame)
{
    BT_ASSERT(m->layer < l->layout->n_layers && m->position == l->next[m->layer]);
    l->next[m->layer] = m->position + m->n;
    bt_wire_tally_put(l->tally, BT_WIRE_ROWS, frame->size, frame->hash);
}

/* Every layer that keeps rows stands exactly at `position`. */
static bt_status all_at(const bt_ledger *l, uint32_t position, bt_error *err)
{
    if (position < l->complete || position > l->end) {
        return bt_fail(err, BT_E_PROTOCOL, "a chunk ends at %u, outside %u..%u", position,
                       l->complete, l->end);
    }
    for (uint32_t i = 0; i < l->layout->n_layers; i++) {
        if (bt_rows_layer_bytes(l->form, i) > 0 && l->next[i] != position) {
            return bt_fail(err, BT_E_PROTOCOL, "a chunk ends at %u, but layer %u has rows up to %u",
                           position, i, l->next[i]);
        }
    }
    return BT_OK;
}

bt_status bt_ledger_chunk(bt_ledger *l, const bt_wire_chunk *m, bt_error *err)
{
    BT_TRY(all_at(l, m->position_end, err));
    BT_TRY(bt_wire_tally_check_chunk(l->tally, m, err));
    l->complete = m->position_end;
    return BT_OK;
}

bt_status bt_ledger_commit(bt_ledger *l, const bt_wire_commit *m, bt_error *err)
{
    BT_TRY(all_at(l, l->end, err));
    BT_TRY(bt_wire_tally_check_commit(l->tally, m, err));
    l->complete = l->end;
    return BT_OK;
}
