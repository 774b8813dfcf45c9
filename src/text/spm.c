/* Blanks are written as U+2581. The pair whose text is the token with the highest score merges
 * first. */
#include "text/spm.h"

#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/limits.h"

#define NONE UINT32_MAX
#define BLANK "\xe2\x96\x81"

typedef struct {
    const bt_vocab *vocab;
    const char     *text;
} context;

/* Orders scores from the highest down: floats order like integers once the sign is dealt with. */
static uint32_t key_of(float score)
{
    const uint32_t bits = bt_bits_of_float(score);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static void look(const void *c, bt_merge_node *left, const bt_merge_node *right, uint32_t end)
{
    const context *x = c;
    (void)right;
    const uint32_t id = bt_text_vocab_find(x->vocab, x->text + left->begin, end - left->begin);
    left->merged = id;
    left->key = id == NONE ? BT_MERGE_NONE : key_of(x->vocab->scores[id]);
}

/* A length as the first byte says it, right or wrong. */
static size_t char_size(uint8_t lead)
{
    return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* No token has this text: its bytes, each as "<0xXX>" or as itself, or unknown. */
static bt_status push_bytes(const bt_vocab *v, const char *text, size_t size, bt_tokens *to)
{
    for (size_t i = 0; i < size; i++) {
        char name[8];
        const int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)(uint8_t)text[i]);
        uint32_t id = bt_text_vocab_find(v, name, (size_t)n);
        id = id == NONE ? bt_text_vocab_find(v, text + i, 1) : id;
        id = id == NONE ? v->unk : id;
        BT_TRY(id == NONE ? BT_OK : bt_text_tokens_push(to, id));
    }
    return BT_OK;
}

/* Merges what the merger holds, which ends at `end`, and pushes the tokens. */
static bt_status finish(const context *x, uint32_t end, bt_merger *m, bt_tokens *to)
{
    BT_TRY(bt_text_merger_run(m, end, look, x));
    for (uint32_t n = m->count > 0 ? 0 : BT_MERGE_NONE; n != BT_MERGE_NONE; n = m->nodes[n].next) {
        const char *text = x->text + m->nodes[n].begin;
        const size_t size = bt_text_merger_end(m, n, end) - m->nodes[n].begin;
        uint32_t id = m->nodes[n].symbol;
        id = id == NONE ? bt_text_vocab_find(x->vocab, text, size) : id;
        BT_TRY(id != NONE ? bt_text_tokens_push(to, id) : push_bytes(x->vocab, text, size, to));
    }
    bt_text_merger_begin(m);
    return BT_OK;
}

/* Where no token holds both sides of a boundary no merge crosses it, so what is before a blank is
 * mostly done for itself: the same tokens, with memory for a word instead of for the whole. */
static bt_status encode(const bt_vocab *v, const char *text, uint32_t size, bt_merger *m,
                        bt_tokens *to)
{
    const context x = { v, text };
    bt_text_merger_begin(m);
    for (uint32_t at = 0; at < size;) {
        const size_t n = char_size((uint8_t)text[at]);
        if (n == 3 && size - at >= 3 && memcmp(text + at, BLANK, 3) == 0 && at > 0 &&
            !v->before_blank[(uint8_t)text[at - 1]]) {
            BT_TRY(finish(&x, at, m, to));
        }
        BT_TRY(bt_text_merger_add(m, at, NONE));
        at = n < size - at ? at + (uint32_t)n : size;
    }
    return finish(&x, size, m, to);
}

bt_status bt_text_spm_encode(const bt_vocab *v, const char *text, size_t size, bool add_space,
                             bt_merger *merger, bt_tokens *to, bt_error *err)
{
    bt_buf blanks;
    bt_buf_init(&blanks, BT_MEM_text, 3 * (size_t)BT_RENDERED_BYTES_MAX + 3);
    if (add_space) {
        bt_buf_puts(&blanks, BLANK);
    }
    for (size_t at = 0; at < size;) {
        const char *blank = memchr(text + at, ' ', size - at);
        const size_t n = blank ? (size_t)(blank - text) - at : size - at;
        bt_buf_put(&blanks, text + at, n);
        if (blank) {
            bt_buf_puts(&blanks, BLANK);
        }
        at += n + 1;
    }
    bt_status status = bt_buf_status(&blanks);
    if (status == BT_OK) {
        status = encode(v, bt_buf_text(&blanks), (uint32_t)blanks.size, merger, to);
    }
    bt_buf_done(&blanks);
    return status == BT_OK ? BT_OK
                           : bt_fail(err, status,
                                     "out of memory for the tokens of %zu bytes "
                                     "of text",
                                     size);
}
