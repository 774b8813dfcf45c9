/* A step is checked before it runs, so that no thread can come upon a token, a page, a state or a
 * row that does not exist. */
#include "base/check.h"
#include "base/memory.h"
#include "device/cpu/private.h"

/* ---- rows, sequences and pages ---- */

static bt_status check_rows_of(const bt_cpu_plan *p, const bt_step *s, bt_error *err)
{
    if (s->n_rows == 0 || s->n_rows > p->n_rows_max || s->n_logit_rows > p->n_logit_rows_max) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: a step of %u rows (%u with logits), prepared "
                       "for 1 to %u (%u)", s->n_rows, s->n_logit_rows, p->n_rows_max,
                       p->n_logit_rows_max);
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->tokens[r] >= p->n_vocab) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: row %u has token %u, the model knows %u",
                           r, s->tokens[r], p->n_vocab);
        }
        if (s->row_sequence[r] >= s->n_sequences) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: row %u is of sequence %u of %u", r,
                           s->row_sequence[r], s->n_sequences);
        }
    }
    for (uint32_t i = 0; i < s->n_logit_rows; i++) {
        if (s->logit_rows[i] >= s->n_rows || (i > 0 && s->logit_rows[i] <= s->logit_rows[i - 1])) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: logits of row %u of %u are asked for",
                           s->logit_rows[i], s->n_rows);
        }
    }
    return BT_OK;
}

/* kv: NULL when the tape keeps no K and V, so that pages do not matter. */
static bt_status check_sequence(const bt_step *s, uint32_t index, const bt_kv_layout *kv,
                                uint64_t n_pool_pages, bt_error *err)
{
    const bt_step_sequence *q = &s->sequences[index];
    if (q->n_rows == 0) {
        return BT_OK;
    }
    const uint64_t end = (uint64_t)q->position + q->n_rows;
    if (q->row_first >= s->n_rows || q->n_rows > s->n_rows - q->row_first ||
        end > BT_CONTEXT_MAX ||
        (kv && (end + kv->page_tokens - 1) / kv->page_tokens > q->n_pages)) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: sequence %u has rows %u..%u at position %u, "
                       "but %u rows and %u pages exist", index, q->row_first,
                       q->row_first + q->n_rows, q->position, s->n_rows, q->n_pages);
    }
    for (uint32_t r = 0; r < q->n_rows; r++) {
        if (s->positions[q->row_first + r] != q->position + r ||
            s->row_sequence[q->row_first + r] != index) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: row %u does not stand at position %u of "
                           "sequence %u", q->row_first + r, q->position + r, index);
        }
    }
    for (uint32_t i = 0; kv && i < q->n_pages; i++) {
        if (q->pages[i] >= n_pool_pages) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: page %u of sequence %u is %u of %llu", i,
                           index, q->pages[i], (unsigned long long)n_pool_pages);
        }
    }
    return BT_OK;
}

static bt_status check_layout(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                              bt_error *err)
{
    const bt_kv_layout *kv = s->kv;
    if (!kv || kv->buffer.id == 0 || kv->buffer.id > BT_CPU_BUFFERS_MAX ||
        !d->buffers[kv->buffer.id - 1].base || kv->page_bytes == 0 || kv->page_tokens == 0 ||
        kv->page_tokens > BT_CPU_PAGE_TOKENS_MAX || kv->n_layers < p->n_layers) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the step has no pages of keys and values "
                       "that fit this model");
    }
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const bt_kv_layer *l = &kv->layers[i];
        const uint64_t tokens = kv->page_tokens;
        if (p->k_dim[i] == 0) {
            continue;
        }
        if (l->k_dim != p->k_dim[i] || l->v_dim != p->v_dim[i] ||
            l->k_offset > kv->page_bytes || l->v_offset > kv->page_bytes ||
            l->k_row_bytes * tokens > kv->page_bytes - l->k_offset ||
            l->v_row_bytes * tokens > kv->page_bytes - l->v_offset) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: pages keep %u and %u values of layer %u, "
                           "the model has %u and %u", l->k_dim, l->v_dim, i, p->k_dim[i],
                           p->v_dim[i]);
        }
    }
    return BT_OK;
}

/* ---- recurrent states ---- */

static bool fits(const bt_state_layout *s, const bt_state_tensor *t)
{
    size_t bytes, end;
    return bt_size_mul(t->n, t->rows, &bytes) && bt_size_mul(bytes, t->cols, &bytes) &&
           bt_size_mul(bytes, sizeof(float), &bytes) && t->offset % sizeof(float) == 0 &&
           bt_size_add((size_t)t->offset, bytes, &end) && end <= s->slot_bytes;
}

static bt_status check_state_layer(const bt_state_layout *s, const bt_state_layer *want,
                                   uint32_t layer, bt_error *err)
{
    const bt_state_layer *l = &s->layers[layer];
    for (uint32_t i = 0; i < want->n_tensors; i++) {
        const bt_state_tensor *w = &want->tensors[i], none = { .name = "(none)" };
        const bt_state_tensor *t = i < l->n_tensors ? &l->tensors[i] : &none;
        if (w->n != 0 && (t->n != w->n || t->rows != w->rows || t->cols != w->cols ||
                          !fits(s, t))) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: states keep %u x %u x %u values '%s' of "
                           "layer %u, the model has %u x %u x %u", t->n, t->rows, t->cols, t->name,
                           layer, w->n, w->rows, w->cols);
        }
    }
    return BT_OK;
}

static bt_status check_states(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *step,
                              bt_error *err)
{
    const bt_state_layout *s = step->state;
    if (p->n_state_layers == 0) {
        return BT_OK;
    }
    if (!s || s->buffer.id == 0 || s->buffer.id > BT_CPU_BUFFERS_MAX ||
        !d->buffers[s->buffer.id - 1].base || s->n_layers < p->n_state_layers ||
        s->slot_bytes == 0 || s->slot_bytes % sizeof(float) != 0 ||
        s->n_slots > d->buffers[s->buffer.id - 1].size / s->slot_bytes) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the step has no recurrent states that fit "
                       "this model");
    }
    for (uint32_t i = 0; i < p->n_state_layers; i++) {
        BT_TRY(check_state_layer(s, &p->state[i], i, err));
    }
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const uint32_t slot = step->sequences[i].state_slot;
        bool twice = false;
        for (uint32_t j = 0; j < i && step->sequences[i].n_rows > 0; j++) {
            twice = twice || (step->sequences[j].n_rows > 0 &&
                              step->sequences[j].state_slot == slot);
        }
        if (step->sequences[i].n_rows > 0 && (slot >= s->n_slots || twice)) {
            return bt_fail(err, BT_E_DEVICE, "cpu device: sequence %u has state %u of %u%s", i,
                           slot, s->n_slots, twice ? ", which another one has too" : "");
        }
    }
    return BT_OK;
}

bt_status bt_device_cpu_check_step(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                                   bt_error *err)
{
    BT_TRY(check_rows_of(p, s, err));
    if (p->n_layers == 0 && p->n_state_layers == 0) {
        return BT_OK;
    }
    const bt_kv_layout *kv = p->n_layers > 0 ? s->kv : NULL;
    if (p->n_layers > 0) {
        BT_TRY(check_layout(d, p, s, err));
    }
    const uint64_t n_pages = kv ? d->buffers[kv->buffer.id - 1].size / kv->page_bytes : 0;
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        BT_TRY(check_sequence(s, i, kv, n_pages, err));
        n_rows += s->sequences[i].n_rows;
    }
    if (n_rows != s->n_rows) {
        return bt_fail(err, BT_E_DEVICE, "cpu device: the sequences have %llu rows, the step %u",
                       (unsigned long long)n_rows, s->n_rows);
    }
    return check_states(d, p, s, err);
}
