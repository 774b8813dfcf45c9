#include "sample/window.h"

#include "base/check.h"
#include "base/memory.h"

bt_status bt_sample_window_init(bt_window *w, uint32_t size, uint32_t n_vocab)
{
    *w = (bt_window){ .size = size, .n_vocab = n_vocab };
    if (size == 0) {
        return BT_OK;
    }
    w->ring = bt_alloc_zero(BT_MEM_sample, size, sizeof *w->ring);
    w->entries = bt_alloc_zero(BT_MEM_sample, size, sizeof *w->entries);
    w->entry_of = bt_alloc_zero(BT_MEM_sample, n_vocab, sizeof *w->entry_of);
    if (!w->ring || !w->entries || !w->entry_of) {
        bt_sample_window_done(w);
        return BT_E_NOMEM;
    }
    return BT_OK;
}

void bt_sample_window_done(bt_window *w)
{
    bt_free(w->ring);
    bt_free(w->entries);
    bt_free(w->entry_of);
    *w = (bt_window){ 0 };
}

/* One occurrence less; true when it was the last. */
static bool forget(bt_window *w, uint32_t token)
{
    const uint32_t at = w->entry_of[token] - 1;
    bt_window_entry *e = &w->entries[at];
    BT_ASSERT_HOT(e->id == token && e->count > 0);
    if (--e->count > 0) {
        return false;
    }
    *e = w->entries[--w->n_entries];
    w->entry_of[e->id] = at + 1;
    w->entry_of[token] = 0;
    return true;
}

bool bt_sample_window_put(bt_window *w, uint32_t token, uint32_t *ret_left)
{
    *ret_left = UINT32_MAX;
    if (w->size == 0) {
        return false;
    }
    BT_ASSERT(token < w->n_vocab);
    if (w->n_ring == w->size) {
        const uint32_t oldest = w->ring[w->ring_next];
        if (forget(w, oldest)) {
            *ret_left = oldest;
        }
    } else {
        w->n_ring++;
    }
    w->ring[w->ring_next] = token;
    w->ring_next = w->ring_next + 1 == w->size ? 0 : w->ring_next + 1;
    if (w->entry_of[token] != 0) {
        w->entries[w->entry_of[token] - 1].count++;
        return false;
    }
    w->entries[w->n_entries] = (bt_window_entry){ token, 1 };
    w->entry_of[token] = ++w->n_entries;
    return true;
}

uint32_t bt_sample_window_count(const bt_window *w, uint32_t token)
{
    return w->size != 0 && w->entry_of[token] != 0 ? w->entries[w->entry_of[token] - 1].count : 0;
}
