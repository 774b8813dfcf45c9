/* Loading: texts and types first, then the special ids that may correct types, then the pieces. */
#include <string.h>

#include "base/memory.h"
#include "text/unicode.h"
#include "text/vocab.h"

/* ---- pieces ---- */

static size_t put_bpe_piece(char *to, bt_vocab_text t)
{
    size_t n = 0;
    for (size_t at = 0; at < t.size;) {
        const bt_utf8_char c = bt_text_utf8_at(t.data + at, t.size - at);
        const int byte = c.kind == BT_UTF8_GOOD ? bt_text_vocab_byte_of_code(c.code) : -1;
        if (byte >= 0) {
            to[n++] = (char)byte;
        } else {
            /* No byte's character: such a token can only mean its own text. */
            memcpy(to + n, t.data + at, c.size);
            n += c.size;
        }
        at += c.size;
    }
    return n;
}

static size_t put_spm_piece(char *to, bt_vocab_text t)
{
    size_t n = 0;
    for (size_t at = 0; at < t.size;) {
        if (t.size - at >= 3 && memcmp(t.data + at, BT_VOCAB_BLANK, 3) == 0) {
            to[n++] = ' ';
            at += 3;
        } else {
            to[n++] = t.data[at++];
        }
    }
    return n;
}

static size_t put_piece(const bt_vocab *v, uint32_t id, char *to)
{
    const bt_vocab_text t = bt_text_vocab_text_of(v, id);
    const int byte = bt_text_vocab_byte_of_text(t.data, t.size);
    switch (v->types[id]) {
    case BT_TOKEN_UNDEFINED:
    case BT_TOKEN_UNUSED:
        return 0;
    case BT_TOKEN_BYTE:
        if (byte >= 0) {
            to[0] = (char)byte;
            return 1;
        }
        break;
    case BT_TOKEN_NORMAL:
        return v->model == BT_VOCAB_BPE ? put_bpe_piece(to, t) : put_spm_piece(to, t);
    default:
        break;
    }
    memcpy(to, t.data, t.size);
    return t.size;
}

static bt_status make_pieces(bt_vocab *v, bt_error *err)
{
    /* No piece is longer than its text. */
    v->pieces = bt_alloc(BT_MEM_text, v->text_at[v->count]);
    v->piece_at = bt_alloc_zero(BT_MEM_text, (size_t)v->count + 1, sizeof *v->piece_at);
    if (!v->pieces || !v->piece_at) {
        return bt_fail_nomem(err, v->text_at[v->count], "the pieces of a vocabulary");
    }
    for (uint32_t id = 0; id < v->count; id++) {
        const size_t size = put_piece(v, id, v->pieces + v->piece_at[id]);
        v->piece_at[id + 1] = v->piece_at[id] + (uint32_t)size;
        v->piece_max = size > v->piece_max ? size : v->piece_max;
    }
    return BT_OK;
}

bt_status bt_text_vocab_load(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    BT_TRY(bt_text_vocab_read(file, v, err));
    BT_TRY(bt_text_vocab_load_special(file, v, err));
    return make_pieces(v, err);
}
