/* Texts, types and scores, and the table that finds a text. */
#include "text/vocab.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/memory.h"
#include "text/unicode.h"

#define NONE UINT32_MAX

enum { EMPTY_TEXT_MAX = 32 };

static const char tokens_key[] = "tokenizer.ggml.tokens";

/* ---- bytes and characters of byte-level BPE ---- */

/* Bytes that are printable in Latin-1 stand for themselves; the others, in order, are U+0100.. */
static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

uint32_t bt_text_vocab_code_of_byte(uint8_t byte)
{
    if (stands_for_itself(byte)) {
        return byte;
    }
    if (byte <= 0x20) {
        return 0x100u + byte;
    }
    return byte <= 0xA0 ? 0x121u + byte - 0x7F : 0x143u;
}

int bt_text_vocab_byte_of_code(uint32_t code)
{
    if (code < 0x100) {
        return stands_for_itself(code) ? (int)code : -1;
    }
    if (code <= 0x120) {
        return (int)(code - 0x100);
    }
    if (code <= 0x142) {
        return (int)(code - 0x121 + 0x7F);
    }
    return code == 0x143 ? 0xAD : -1;
}

int bt_text_vocab_byte_of_text(const char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) {
            return -1;
        }
        byte = byte * 16 + digit;
    }
    return byte;
}

/* ---- texts ---- */

static const bt_gguf_pair *array_of(const bt_gguf *file, const char *key)
{
    const bt_gguf_pair *pair = bt_gguf_find(file, key);
    return pair && pair->type == BT_GGUF_ARRAY ? pair : NULL;
}

static bt_status measure_texts(const bt_gguf_pair *tokens, size_t *ret_size, bt_error *err)
{
    size_t total = 0;
    bt_gguf_strings it = bt_gguf_strings_begin(tokens);
    bt_gguf_string s;
    for (uint64_t id = 0; bt_gguf_strings_next(&it, &s); id++) {
        if (s.size > BT_TOKEN_BYTES_MAX) {
            return bt_fail(err, BT_E_BADFILE, "%s: token %" PRIu64 " has %zu bytes, at most %u are "
                           "read", tokens_key, id, s.size, BT_TOKEN_BYTES_MAX);
        }
        total += s.size ? s.size : EMPTY_TEXT_MAX;
        if (total >= UINT32_MAX) {
            return bt_fail(err, BT_E_BADFILE,
                           "%s: the first %" PRIu64 " tokens have more than 4 GB "
                           "of text",
                           tokens_key, id);
        }
    }
    *ret_size = total;
    return BT_OK;
}

static bt_status load_texts(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    const bt_gguf_pair *tokens = array_of(file, tokens_key);
    if (!tokens || tokens->element != BT_GGUF_STRING) {
        return bt_fail(err, BT_E_BADFILE, "'%s': %s %s; a file with a vocabulary is needed",
                       bt_gguf_path(file), tokens_key,
                       bt_gguf_find(file, tokens_key) ? "is not an array of strings"
                                                      : "is missing");
    }
    if (tokens->count == 0 || tokens->count > BT_VOCAB_MAX) {
        return bt_fail(err, BT_E_BADFILE, "%s has %" PRIu64 " entries; 1 to %u can be read",
                       tokens_key, tokens->count, BT_VOCAB_MAX);
    }
    size_t size = 0;
    BT_TRY(measure_texts(tokens, &size, err));
    v->count = (uint32_t)tokens->count;
    v->texts = bt_alloc(BT_MEM_text, size);
    v->text_at = bt_alloc_zero(BT_MEM_text, (size_t)v->count + 1, sizeof *v->text_at);
    if (!v->texts || !v->text_at) {
        return bt_fail_nomem(err, size, "the texts of a vocabulary");
    }

    uint32_t at = 0;
    bt_gguf_strings it = bt_gguf_strings_begin(tokens);
    bt_gguf_string s;
    for (uint32_t id = 0; id < v->count && bt_gguf_strings_next(&it, &s); id++) {
        char empty[EMPTY_TEXT_MAX];
        if (s.size == 0) {
            s.size = (size_t)snprintf(empty, sizeof empty, "[EMPTY_%" PRIu32 "]", id);
            s.data = empty;
        }
        memcpy(v->texts + at, s.data, s.size);
        at += (uint32_t)s.size;
        v->text_at[id + 1] = at;
        v->text_max = s.size > v->text_max ? s.size : v->text_max;
    }
    return BT_OK;
}

/* The slot where `text` is, or where it would go. */
static uint32_t slot_of(const bt_vocab *v, const char *text, size_t size)
{
    uint32_t slot = (uint32_t)bt_hash64(text, size, 0) & v->slot_mask;
    for (;; slot = (slot + 1) & v->slot_mask) {
        if (v->slots[slot] == NONE) {
            return slot;
        }
        const bt_vocab_text have = bt_text_vocab_text_of(v, v->slots[slot]);
        if (have.size == size && memcmp(have.data, text, size) == 0) {
            return slot;
        }
    }
}

static bt_status index_texts(bt_vocab *v, bt_error *err)
{
    uint32_t n_slots = 2;
    while (n_slots < 2 * v->count) {
        n_slots *= 2;
    }
    v->slots = bt_alloc(BT_MEM_text, n_slots * sizeof *v->slots);
    if (!v->slots) {
        return bt_fail_nomem(err, n_slots * sizeof *v->slots, "the index of a vocabulary");
    }
    memset(v->slots, 0xFF, n_slots * sizeof *v->slots);
    v->slot_mask = n_slots - 1;
    uint32_t n_same = 0;
    for (uint32_t id = 0; id < v->count; id++) {
        const bt_vocab_text t = bt_text_vocab_text_of(v, id);
        const uint32_t slot = slot_of(v, t.data, t.size);
        n_same += v->slots[slot] != NONE;
        v->slots[slot] = id;
    }
    if (n_same > 0) {
        bt_log(BT_LOG_WARN, "duplicate_tokens", "n=%u", n_same);
    }
    return BT_OK;
}

uint32_t bt_text_vocab_find(const bt_vocab *v, const char *text, size_t size)
{
    return size > v->text_max ? NONE : v->slots[slot_of(v, text, size)];
}

/* ---- types and scores ---- */

static bt_status check_length(const bt_gguf_pair *pair, const char *key, const bt_vocab *v,
                              bt_error *err)
{
    if (pair->count != v->count) {
        return bt_fail(err, BT_E_BADFILE, "%s has %" PRIu64 " entries, but there are %u tokens",
                       key, pair->count, v->count);
    }
    return BT_OK;
}

static bt_status load_types(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    v->types = bt_alloc(BT_MEM_text, v->count);
    if (!v->types) {
        return bt_fail_nomem(err, v->count, "the types of tokens");
    }
    memset(v->types, BT_TOKEN_NORMAL, v->count);
    const bt_gguf_pair *pair = bt_gguf_find(file, key);
    if (!pair) {
        return BT_OK;
    }
    if (pair->type != BT_GGUF_ARRAY ||
        (pair->element != BT_GGUF_I32 && pair->element != BT_GGUF_U32)) {
        return bt_fail(err, BT_E_BADFILE, "%s is not an array of 32-bit integers", key);
    }
    BT_TRY(check_length(pair, key, v, err));
    for (uint32_t id = 0; id < v->count; id++) {
        const uint32_t type = bt_get_le32(pair->data + (size_t)id * 4);
        v->types[id] = type < BT_TOKEN_TYPES ? (uint8_t)type : BT_TOKEN_UNDEFINED;
    }
    return BT_OK;
}

static bt_status load_scores(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    const bt_gguf_pair *pair = bt_gguf_find(file, key);
    if (v->model != BT_VOCAB_SPM) {
        return BT_OK;
    }
    if (!pair || pair->type != BT_GGUF_ARRAY || pair->element != BT_GGUF_F32) {
        return bt_fail(err, BT_E_BADFILE, "%s %s; a vocabulary of the model 'llama' is merged by "
                       "score", key, pair ? "is not an array of f32" : "is missing");
    }
    BT_TRY(check_length(pair, key, v, err));
    v->scores = bt_alloc(BT_MEM_text, v->count * sizeof *v->scores);
    if (!v->scores) {
        return bt_fail_nomem(err, v->count * sizeof *v->scores, "the scores of tokens");
    }
    for (uint32_t id = 0; id < v->count; id++) {
        const float score = bt_float_of_bits(bt_get_le32(pair->data + (size_t)id * 4));
        /* Not a number would have no place in the order; minus zero is zero. */
        v->scores[id] = isnan(score) ? -INFINITY : score + 0.0f;
    }
    return BT_OK;
}

static void note_blanks(bt_vocab *v)
{
    for (uint32_t id = 0; id < v->count; id++) {
        const bt_vocab_text t = bt_text_vocab_text_of(v, id);
        for (size_t at = 1; at + 3 <= t.size; at++) {
            if (memcmp(t.data + at, BT_VOCAB_BLANK, 3) == 0) {
                v->before_blank[(uint8_t)t.data[at - 1]] = 1;
            }
        }
    }
}

static bt_status load_model(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    bt_gguf_string model;
    BT_TRY(bt_gguf_get_string(file, "tokenizer.ggml.model", &model, err));
    if (model.size == 5 && memcmp(model.data, "llama", 5) == 0) {
        v->model = BT_VOCAB_SPM;
        return BT_OK;
    }
    char shown[BT_UTF8_SHOWN_MAX];
    if (model.size != 4 || memcmp(model.data, "gpt2", 4) != 0) {
        bt_text_utf8_show(model.data, model.size, shown, sizeof shown);
        return bt_fail(err, BT_E_UNSUPPORTED, "tokenizer.ggml.model is '%s'; known are 'gpt2' "
                       "(byte-level BPE) and 'llama' (SentencePiece BPE)", shown);
    }
    v->model = BT_VOCAB_BPE;
    bt_gguf_string pre = { "default", 7 };
    if (bt_gguf_find(file, "tokenizer.ggml.pre")) {
        BT_TRY(bt_gguf_get_string(file, "tokenizer.ggml.pre", &pre, err));
    } else {
        bt_log(BT_LOG_WARN, "pretokenizer_unknown", "key=tokenizer.ggml.pre used=default effect=%s",
               "words may be split in other places than in training");
    }
    v->pre = bt_text_split_name_find(pre.data, pre.size);
    if (!v->pre) {
        bt_text_utf8_show(pre.data, pre.size, shown, sizeof shown);
        return bt_fail(err, BT_E_UNSUPPORTED, "tokenizer.ggml.pre is '%s'; known are default, "
                       "gpt-2, falcon, llama-bpe, qwen2, qwen35, smollm, deepseek-coder, "
                       "deepseek-llm, deepseek-v3, gpt-4o, tekken and the names that mean one of "
                       "these (docs/tokenizers.md)", shown);
    }
    return BT_OK;
}

bt_status bt_text_vocab_read(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    BT_TRY(load_model(file, v, err));
    BT_TRY(load_texts(file, v, err));
    BT_TRY(index_texts(v, err));
    BT_TRY(load_types(file, v, err));
    BT_TRY(load_scores(file, v, err));
    if (v->model == BT_VOCAB_SPM) {
        note_blanks(v);
    }
    return BT_OK;
}

void bt_text_vocab_done(bt_vocab *v)
{
    bt_free(v->texts);
    bt_free(v->text_at);
    bt_free(v->pieces);
    bt_free(v->piece_at);
    bt_free(v->slots);
    bt_free(v->types);
    bt_free(v->scores);
    bt_free(v->eog);
    bt_free(v->suppressed);
    *v = (bt_vocab){ 0 };
}
