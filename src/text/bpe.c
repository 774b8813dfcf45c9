/* A symbol is a text: the id of the token with that text, or, for texts that only occur in merges,
 * a number from `vocab->count` on. Pairs of symbols lead to the rank of their merge by hashing. */
#include "text/bpe.h"

#include <inttypes.h>
#include <string.h>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/memory.h"
#include "text/split.h"
#include "text/unicode.h"

#define NONE UINT32_MAX

enum { MERGES_MAX = 4 * BT_VOCAB_MAX };

typedef struct { uint32_t left, right, merged; } merge;

struct bt_bpe {
    const bt_vocab *vocab;
    bt_splitter    *splitter;
    merge          *merges;             /* by rank; left is NONE for one that cannot happen */
    uint32_t        n_merges;
    uint32_t       *slots;              /* pair -> rank */
    uint32_t        slot_mask;
    uint32_t        byte_symbol[256];
    uint32_t        byte_token[256];    /* NONE: no token for this byte */
};

/* ---- symbols while merges are read ---- */

/* Texts that are no tokens, numbered from `vocab->count`. */
typedef struct {
    const bt_vocab *vocab;
    bt_buf    text;
    uint32_t *at;              /* [count + 1] */
    uint32_t *slots;
    uint32_t  count, capacity; /* capacity a power of two, at most half full */
} extras;

static bool extra_is(const extras *x, uint32_t index, const char *text, size_t size)
{
    return x->at[index + 1] - x->at[index] == size &&
           memcmp(x->text.data + x->at[index], text, size) == 0;
}

static uint32_t extra_slot(const extras *x, const char *text, size_t size)
{
    uint32_t slot = (uint32_t)bt_hash64(text, size, 0) & (x->capacity - 1);
    while (x->slots[slot] != NONE && !extra_is(x, x->slots[slot], text, size)) {
        slot = (slot + 1) & (x->capacity - 1);
    }
    return slot;
}

static bt_status grow_extras(extras *x)
{
    const uint32_t capacity = x->capacity ? x->capacity * 2 : 1024;
    uint32_t *at = bt_realloc(BT_MEM_text, x->at, ((size_t)capacity / 2 + 1) * sizeof *at);
    if (!at) {
        return BT_E_NOMEM;
    }
    at[0] = 0;
    x->at = at;
    uint32_t *slots = bt_realloc(BT_MEM_text, x->slots, (size_t)capacity * sizeof *slots);
    if (!slots) {
        return BT_E_NOMEM;
    }
    x->slots = slots;
    x->capacity = capacity;
    memset(slots, 0xFF, (size_t)capacity * sizeof *slots);
    for (uint32_t i = 0; i < x->count; i++) {
        slots[extra_slot(x, x->text.data + at[i], at[i + 1] - at[i])] = i;
    }
    return BT_OK;
}

/* The symbol of a text, made if it is new. */
static bt_status symbol_of(extras *x, const char *text, size_t size, uint32_t *ret_symbol)
{
    const uint32_t id = bt_text_vocab_find(x->vocab, text, size);
    if (id != NONE) {
        *ret_symbol = id;
        return BT_OK;
    }
    if (x->count >= x->capacity / 2) {
        BT_TRY(grow_extras(x));
    }
    const uint32_t slot = extra_slot(x, text, size);
    if (x->slots[slot] == NONE) {
        bt_buf_put(&x->text, text, size);
        if (bt_buf_status(&x->text) != BT_OK) {
            return BT_E_NOMEM;
        }
        x->slots[slot] = x->count++;
        x->at[x->count] = (uint32_t)x->text.size;
    }
    *ret_symbol = x->vocab->count + x->slots[slot];
    return BT_OK;
}

static void extras_done(extras *x)
{
    bt_buf_done(&x->text);
    bt_free(x->at);
    bt_free(x->slots);
}

/* ---- pairs ---- */

/* Where the pair is, or would go. */
static uint32_t pair_slot(const bt_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t hash = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 32;
    uint32_t slot = (uint32_t)hash & b->slot_mask;
    for (;; slot = (slot + 1) & b->slot_mask) {
        const uint32_t rank = b->slots[slot];
        if (rank == NONE || (b->merges[rank].left == left && b->merges[rank].right == right)) {
            return slot;
        }
    }
}

static bt_status alloc_merges(bt_bpe *b, uint32_t n)
{
    uint32_t n_slots = 2;
    while (n_slots < 2 * n) {
        n_slots *= 2;
    }
    b->merges = bt_alloc(BT_MEM_text, (size_t)n * sizeof *b->merges);
    b->slots = bt_alloc(BT_MEM_text, (size_t)n_slots * sizeof *b->slots);
    if (!b->merges || !b->slots) {
        return BT_E_NOMEM;
    }
    memset(b->slots, 0xFF, (size_t)n_slots * sizeof *b->slots);
    b->slot_mask = n_slots - 1;
    return BT_OK;
}

/* "left right" as the merge of the next rank. The parts are divided by the first blank that has
 * something before it. Of two merges of one pair the first counts. */
static bt_status add_merge(bt_bpe *b, extras *x, bt_gguf_string s, bt_buf *joined)
{
    merge *m = &b->merges[b->n_merges];
    *m = (merge){ NONE, NONE, NONE };
    const char *blank = s.size > 1 ? memchr(s.data + 1, ' ', s.size - 1) : NULL;
    const size_t left = blank ? (size_t)(blank - s.data) : 0;
    if (!blank || left + 1 == s.size) {
        b->n_merges++;
        return BT_OK;
    }
    bt_buf_clear(joined);
    bt_buf_put(joined, s.data, left);
    bt_buf_put(joined, blank + 1, s.size - left - 1);
    if (bt_buf_status(joined) != BT_OK) {
        return BT_E_NOMEM;
    }
    merge made;
    BT_TRY(symbol_of(x, s.data, left, &made.left));
    BT_TRY(symbol_of(x, blank + 1, s.size - left - 1, &made.right));
    BT_TRY(symbol_of(x, joined->data, joined->size, &made.merged));
    const uint32_t slot = pair_slot(b, made.left, made.right);
    if (b->slots[slot] == NONE) {
        *m = made;
        b->slots[slot] = b->n_merges;
    }
    b->n_merges++;
    return BT_OK;
}

static bt_status load_merges(const bt_gguf *file, bt_bpe *b, extras *x, bt_error *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    const bt_gguf_pair *pair = bt_gguf_find(file, key);
    if (!pair || pair->type != BT_GGUF_ARRAY || pair->element != BT_GGUF_STRING) {
        return bt_fail(err, BT_E_BADFILE, "%s %s; a vocabulary of the model 'gpt2' is merged by "
                       "them", key, pair ? "is not an array of strings" : "is missing");
    }
    if (pair->count > MERGES_MAX) {
        return bt_fail(err, BT_E_BADFILE, "%s has %" PRIu64 " entries, at most %d can be read", key,
                       pair->count, (int)MERGES_MAX);
    }
    bt_buf joined;
    bt_buf_init(&joined, BT_MEM_text, BT_GGUF_STRING_BYTES_MAX);
    bt_status status = alloc_merges(b, (uint32_t)pair->count);
    bt_gguf_strings it = bt_gguf_strings_begin(pair);
    bt_gguf_string s;
    while (status == BT_OK && b->n_merges < pair->count && bt_gguf_strings_next(&it, &s)) {
        status = add_merge(b, x, s, &joined);
    }
    bt_buf_done(&joined);
    return status == BT_OK ? BT_OK : bt_fail(err, status, "out of memory for %" PRIu64 " merges",
                                             pair->count);
}

static bt_status load_bytes(bt_bpe *b, extras *x, bt_error *err)
{
    uint32_t n_missing = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[BT_UTF8_MAX];
        const size_t size = bt_text_utf8_put(bt_text_vocab_code_of_byte((uint8_t)byte), text);
        if (symbol_of(x, text, size, &b->byte_symbol[byte]) != BT_OK) {
            return bt_fail(err, BT_E_NOMEM, "out of memory for the bytes of a vocabulary");
        }
        b->byte_token[byte] = bt_text_vocab_find(b->vocab, text, size);
        n_missing += b->byte_token[byte] == NONE;
    }
    if (n_missing > 0) {
        bt_log(BT_LOG_DEBUG, "bytes_without_token", "n=%u effect=%s", n_missing,
               "these bytes are dropped from texts");
    }
    return BT_OK;
}

bt_status bt_text_bpe_create(const bt_gguf *file, const bt_vocab *v, bt_bpe **ret_bpe,
                             bt_error *err)
{
    bt_bpe *b = bt_alloc_zero(BT_MEM_text, 1, sizeof *b);
    if (!b) {
        return bt_fail_nomem(err, sizeof *b, "a tokenizer");
    }
    b->vocab = v;
    extras x = { .vocab = v };
    bt_buf_init(&x.text, BT_MEM_text, UINT32_MAX / 2);
    bt_status status = bt_text_splitter_create(v->pre->list, &b->splitter, err);
    if (status == BT_OK) {
        status = load_merges(file, b, &x, err);
    }
    if (status == BT_OK) {
        status = load_bytes(b, &x, err);
    }
    extras_done(&x);
    if (status != BT_OK) {
        bt_text_bpe_destroy(b);
        return status;
    }
    *ret_bpe = b;
    return BT_OK;
}

void bt_text_bpe_destroy(bt_bpe *b)
{
    if (b) {
        bt_text_splitter_destroy(b->splitter);
        bt_free(b->merges);
        bt_free(b->slots);
        bt_free(b);
    }
}

void bt_text_bpe_digest(const bt_bpe *b, bt_digester *to)
{
    for (uint32_t rank = 0; rank < b->n_merges; rank++) {
        uint8_t bytes[12];
        bt_put_le32(bytes, b->merges[rank].left);
        bt_put_le32(bytes + 4, b->merges[rank].right);
        bt_put_le32(bytes + 8, b->merges[rank].merged);
        bt_digester_put(to, bytes, sizeof bytes);
    }
}

/* ---- encoding ---- */

static void look(const void *context, bt_merge_node *left, const bt_merge_node *right, uint32_t end)
{
    const bt_bpe *b = context;
    (void)end;
    const uint32_t rank = b->slots[pair_slot(b, left->symbol, right->symbol)];
    left->key = rank;
    left->merged = rank == NONE ? NONE : b->merges[rank].merged;
}

/* The token that a piece is as a whole, or NONE. */
static uint32_t whole_piece(const bt_bpe *b, const char *piece, size_t size, bt_buf *scratch)
{
    if (size > b->vocab->text_max) {
        return NONE;
    }
    bt_buf_clear(scratch);
    for (size_t i = 0; i < size; i++) {
        char text[BT_UTF8_MAX];
        bt_buf_put(scratch, text,
                   bt_text_utf8_put(bt_text_vocab_code_of_byte((uint8_t)piece[i]), text));
    }
    return bt_buf_status(scratch) == BT_OK
                   ? bt_text_vocab_find(b->vocab, scratch->data, scratch->size)
                   : NONE;
}

static bt_status encode_piece(const bt_bpe *b, const char *piece, uint32_t size, bt_merger *m,
                              bt_tokens *to)
{
    bt_text_merger_begin(m);
    for (uint32_t i = 0; i < size; i++) {
        BT_TRY(bt_text_merger_add(m, i, b->byte_symbol[(uint8_t)piece[i]]));
    }
    BT_TRY(bt_text_merger_run(m, size, look, b));
    for (uint32_t n = 0; n != BT_MERGE_NONE; n = m->nodes[n].next) {
        if (m->nodes[n].symbol < b->vocab->count) {
            BT_TRY(bt_text_tokens_push(to, m->nodes[n].symbol));
            continue;
        }
        /* No such token: its bytes, as far as they have tokens. */
        for (uint32_t i = m->nodes[n].begin; i < bt_text_merger_end(m, n, size); i++) {
            const uint32_t id = b->byte_token[(uint8_t)piece[i]];
            BT_TRY(id == NONE ? BT_OK : bt_text_tokens_push(to, id));
        }
    }
    return BT_OK;
}

static bt_status encode_valid(const bt_bpe *b, const char *text, size_t size, bt_merger *m,
                              bt_tokens *to, bt_error *err)
{
    bt_split_pieces pieces = { 0 };
    bt_buf scratch;
    bt_buf_init(&scratch, BT_MEM_text, 2 * (size_t)BT_TOKEN_BYTES_MAX);
    bt_status status = bt_text_splitter_run(b->splitter, text, size, &pieces, err);
    const bool said = status != BT_OK;
    uint32_t begin = 0;
    for (size_t i = 0; status == BT_OK && i < pieces.count; i++) {
        const char *piece = text + begin;
        const uint32_t n = pieces.ends[i] - begin;
        const uint32_t id =
                b->vocab->pre->ignore_merges ? whole_piece(b, piece, n, &scratch) : NONE;
        status = id != NONE ? bt_text_tokens_push(to, id) : encode_piece(b, piece, n, m, to);
        begin = pieces.ends[i];
    }
    bt_buf_done(&scratch);
    bt_text_split_pieces_done(&pieces);
    if (status == BT_OK || said) {
        return status;
    }
    return bt_fail(err, status, "out of memory for the tokens of %zu bytes of text", size);
}

/* Copies `text`, every bad byte replaced. */
static void put_valid(bt_buf *to, const char *text, size_t size)
{
    size_t good = 0;
    for (size_t at = 0; at < size;) {
        const bt_utf8_char c = bt_text_utf8_at(text + at, size - at);
        if (c.kind != BT_UTF8_GOOD) {
            bt_buf_put(to, text + good, at - good);
            bt_buf_put(to, BT_UTF8_REPLACEMENT, BT_UTF8_REPLACEMENT_SIZE);
            good = at + 1;
        }
        at += c.kind == BT_UTF8_GOOD ? c.size : 1;
    }
    bt_buf_put(to, text + good, size - good);
}

bt_status bt_text_bpe_encode(const bt_bpe *b, const char *text, size_t size, bt_merger *merger,
                             bt_tokens *to, bt_error *err)
{
    if (bt_text_utf8_valid(text, size)) {
        return encode_valid(b, text, size, merger, to, err);
    }
    bt_buf valid;
    bt_buf_init(&valid, BT_MEM_text, 3 * (size_t)BT_RENDERED_BYTES_MAX);
    put_valid(&valid, text, size);
    bt_status status = bt_buf_status(&valid);
    status = status == BT_OK
                     ? encode_valid(b, valid.data, valid.size, merger, to, err)
                     : bt_fail(err, BT_E_NOMEM, "out of memory to check %zu bytes of text",
                               size);
    bt_buf_done(&valid);
    return status;
}
