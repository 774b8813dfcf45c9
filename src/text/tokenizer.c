/* The driver: cuts special tokens out, hands what is between to the model's algorithm, puts BOS and
 * EOS around. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/memory.h"
#include "text/bpe.h"
#include "text/merge.h"
#include "text/special.h"
#include "text/spm.h"
#include "text/vocab.h"

struct bt_tokenizer {
    bt_vocab    vocab;
    bt_special *special;
    bt_bpe     *bpe;            /* NULL for SPM */
    bt_digest   digest;
};

/* ---- create ---- */

static void digest_u32(bt_digester *d, uint32_t value)
{
    uint8_t bytes[4];
    bt_put_le32(bytes, value);
    bt_digester_put(d, bytes, sizeof bytes);
}

/* Everything that decides which ids a text has and what ids mean, in a fixed order. */
static bt_status make_digest(bt_tokenizer *t, bt_error *err)
{
    const bt_vocab *v = &t->vocab;
    bt_digester *d;
    if (bt_digester_create(&d) != BT_OK) {
        return bt_fail(err, BT_E_NOMEM, "out of memory for a tokenizer's digest");
    }
    digest_u32(d, (uint32_t)v->model);
    if (v->pre) {
        bt_digester_put(d, v->pre->name, strlen(v->pre->name) + 1);
    }
    const uint32_t numbers[] = { v->count, v->bos, v->eos, v->unk, v->add_bos, v->add_eos,
                                 v->add_space_prefix, v->strip_right };
    for (size_t i = 0; i < BT_LEN(numbers); i++) {
        digest_u32(d, numbers[i]);
    }
    for (uint32_t id = 0; id < v->count; id++) {
        const bt_vocab_text text = bt_text_vocab_text_of(v, id);
        digest_u32(d, (uint32_t)text.size);
        bt_digester_put(d, text.data, text.size);
        digest_u32(d, v->types[id]);
        digest_u32(d, v->scores ? bt_bits_of_float(v->scores[id]) : 0);
    }
    if (t->bpe) {
        bt_text_bpe_digest(t->bpe, d);
    }
    t->digest = bt_digester_value(d);
    bt_digester_destroy(d);
    return BT_OK;
}

bt_status bt_text_tokenizer_create(const bt_gguf *file, bt_tokenizer **ret_tokenizer, bt_error *err)
{
    bt_tokenizer *t = bt_alloc_zero(BT_MEM_text, 1, sizeof *t);
    if (!t) {
        return bt_fail_nomem(err, sizeof *t, "a tokenizer");
    }
    bt_status status = bt_text_vocab_load(file, &t->vocab, err);
    if (status == BT_OK) {
        status = bt_text_special_create(&t->vocab, &t->special, err);
    }
    if (status == BT_OK && t->vocab.model == BT_VOCAB_BPE) {
        status = bt_text_bpe_create(file, &t->vocab, &t->bpe, err);
    }
    if (status == BT_OK) {
        status = make_digest(t, err);
    }
    if (status != BT_OK) {
        bt_text_tokenizer_destroy(t);
        return status;
    }
    *ret_tokenizer = t;
    return BT_OK;
}

void bt_text_tokenizer_destroy(bt_tokenizer *t)
{
    if (t) {
        bt_text_bpe_destroy(t->bpe);
        bt_text_special_destroy(t->special);
        bt_text_vocab_done(&t->vocab);
        bt_free(t);
    }
}

/* ---- encoding ---- */

typedef struct {
    const char          *text;
    size_t               size;
    const bt_user_range *users;
    size_t               n_users;
    bool                 add_special;
} input;

static bt_status encode_part(const bt_tokenizer *t, const char *text, size_t size, bool add_space,
                             bt_merger *m, bt_tokens *to, bt_error *err)
{
    if (t->bpe) {
        return bt_text_bpe_encode(t->bpe, text, size, m, to, err);
    }
    return bt_text_spm_encode(&t->vocab, text, size, add_space && t->vocab.add_space_prefix, m, to,
                              err);
}

static bt_status push_id(bt_tokens *to, uint32_t id, bt_error *err)
{
    const bt_status status = bt_text_tokens_push(to, id);
    return status == BT_OK ? BT_OK : bt_fail(err, status, "out of memory for more tokens");
}

/* Parts between cuts in turn; each stands at the beginning or after a special token. */
static bt_status encode_parts(const bt_tokenizer *t, const input *in, const bt_cuts *cuts,
                              bt_merger *m, bt_tokens *to, bt_error *err)
{
    if (in->add_special && t->vocab.add_bos) {
        BT_TRY(push_id(to, t->vocab.bos, err));
    }
    size_t at = 0;
    for (size_t i = 0; i <= cuts->count; i++) {
        const size_t end = i < cuts->count ? cuts->at[i].begin : in->size;
        if (end > at) {
            BT_TRY(encode_part(t, in->text + at, end - at, true, m, to, err));
        }
        if (i < cuts->count) {
            BT_TRY(push_id(to, cuts->at[i].id, err));
            at = cuts->at[i].end;
        }
    }
    return in->add_special && t->vocab.add_eos ? push_id(to, t->vocab.eos, err) : BT_OK;
}

static bt_status encode(const bt_tokenizer *t, const input *in, bt_tokens *to, bt_error *err)
{
    if (in->size > BT_RENDERED_BYTES_MAX) {
        return bt_fail(err, BT_E_BADINPUT,
                       "a text of %zu bytes is too long to tokenise; at most %u "
                       "are read",
                       in->size, BT_RENDERED_BYTES_MAX);
    }
    const size_t before = to->count;
    bt_merger merger = { .stop = to->stop, .stop_context = to->stop_context };
    bt_cuts cuts = { 0 };
    bt_status status =
            bt_text_special_cut(t->special, in->text, in->size, in->users, in->n_users, &cuts, err);
    if (status == BT_OK) {
        status = encode_parts(t, in, &cuts, &merger, to, err);
    }
    bt_text_cuts_done(&cuts);
    bt_text_merger_done(&merger);
    if (status != BT_OK) {
        to->count = before;
    }
    return status;
}

bt_status bt_text_tokenizer_encode(const bt_tokenizer *t, const char *text, size_t size,
                                   const bt_encode_options *o, bt_tokens *to, bt_error *err)
{
    const bt_user_range all = { 0, size };
    const input in = { .text = size ? text : "", .size = size, .users = &all,
                       .n_users = o->parse_special ? 0 : 1, .add_special = o->add_special };
    return encode(t, &in, to, err);
}

/* Puts the spans' texts together and notes what users wrote. */
static bt_status join(const bt_text_span *spans, size_t n_spans, bt_buf *text, bt_user_range *users,
                      size_t *ret_n_users)
{
    size_t n = 0;
    for (size_t i = 0; i < n_spans; i++) {
        const size_t begin = text->size;
        bt_buf_put(text, spans[i].text, spans[i].size);
        if (!spans[i].from_user || spans[i].size == 0) {
            continue;
        }
        if (n > 0 && users[n - 1].end == begin) {
            users[n - 1].end = text->size;
        } else {
            users[n++] = (bt_user_range){ begin, text->size };
        }
    }
    *ret_n_users = n;
    return bt_buf_status(text);
}

bt_status bt_text_tokenizer_encode_spans(const bt_tokenizer *t, const bt_text_span *spans,
                                         size_t n_spans, bool add_special, bt_tokens *to,
                                         bt_error *err)
{
    bt_buf text;
    bt_buf_init(&text, BT_MEM_text, BT_RENDERED_BYTES_MAX);
    size_t size;
    bt_user_range *users = bt_size_mul(n_spans, sizeof *users, &size) ? bt_alloc(BT_MEM_text, size)
                                                                      : NULL;
    input in = { .users = users, .add_special = add_special };
    bt_status status = users ? join(spans, n_spans, &text, users, &in.n_users) : BT_E_NOMEM;
    if (status == BT_OK) {
        in.text = bt_buf_text(&text);
        in.size = text.size;
        status = encode(t, &in, to, err);
    } else if (status == BT_E_FULL) {
        status = bt_fail(err, BT_E_BADINPUT,
                         "a prompt of more than %u bytes is too long to tokenise",
                         BT_RENDERED_BYTES_MAX);
    } else {
        status = bt_fail(err, BT_E_NOMEM, "out of memory for a prompt of %zu parts", n_spans);
    }
    bt_free(users);
    bt_buf_done(&text);
    return status;
}

/* ---- decoding ---- */

const char *bt_text_tokenizer_piece(const bt_tokenizer *t, uint32_t id, bool special,
                                    size_t *ret_size)
{
    const bt_vocab *v = &t->vocab;
    *ret_size = 0;
    if (id >= v->count || (!special && bt_text_vocab_is_special(v, id))) {
        return "";
    }
    *ret_size = v->piece_at[id + 1] - v->piece_at[id];
    return v->pieces + v->piece_at[id];
}

void bt_text_tokenizer_decode(const bt_tokenizer *t, const uint32_t *ids, size_t n, bool special,
                              bt_buf *to)
{
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *piece = bt_text_tokenizer_piece(t, ids[i], special, &size);
        /* The blank that encoding put before the text. */
        const size_t skip = i == 0 && t->vocab.add_space_prefix && size > 0 && piece[0] == ' ';
        bt_buf_put(to, piece + skip, size - skip);
    }
}

/* ---- what it knows ---- */

uint32_t bt_text_tokenizer_count(const bt_tokenizer *t)
{
    return t->vocab.count;
}

uint32_t bt_text_tokenizer_bos(const bt_tokenizer *t)
{
    return t->vocab.bos;
}

uint32_t bt_text_tokenizer_eos(const bt_tokenizer *t)
{
    return t->vocab.eos;
}

bool bt_text_tokenizer_adds_bos(const bt_tokenizer *t)
{
    return t->vocab.add_bos;
}

bool bt_text_tokenizer_is_eog(const bt_tokenizer *t, uint32_t id)
{
    return id < t->vocab.count && t->vocab.eog[id];
}

bool bt_text_tokenizer_is_special(const bt_tokenizer *t, uint32_t id)
{
    return id < t->vocab.count && bt_text_vocab_is_special(&t->vocab, id);
}

uint32_t bt_text_tokenizer_find(const bt_tokenizer *t, const char *text, size_t size)
{
    return bt_text_vocab_find(&t->vocab, text, size);
}

const uint32_t *bt_text_tokenizer_suppressed(const bt_tokenizer *t, size_t *ret_count)
{
    *ret_count = t->vocab.n_suppressed;
    return t->vocab.suppressed;
}

bt_digest bt_text_tokenizer_digest(const bt_tokenizer *t)
{
    return t->digest;
}

size_t bt_text_tokenizer_piece_max(const bt_tokenizer *t)
{
    return t->vocab.piece_max;
}
