/* rooms: text gguf base
 *
 * Any vocabulary is either refused with a sentence or can encode any text: every id exists, text of
 * spans that are all the user's is user text, of spans that are all the template's is parsed text.
 * Decoding does not depend on the cut. Where a BPE vocabulary has all bytes, decoding what a valid
 * text was encoded to gives the text back.
 */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/vocab.h"

enum { TOKENS_MAX = 400, MERGES_MAX = 64, STORE_MAX = 32768 };

typedef struct { const uint8_t *at, *end; } bytes;

static uint8_t next(bytes *b)
{
    return b->at < b->end ? *b->at++ : 0;
}

typedef struct {
    bt_gguf_string texts[TOKENS_MAX], merges[MERGES_MAX];
    int32_t        types[TOKENS_MAX];
    float          scores[TOKENS_MAX];
    uint32_t       n, n_merges;
    char           store[STORE_MAX];
    size_t         stored;
    bool           bpe, tame;
} vocabulary;

static bt_gguf_string keep(vocabulary *v, const char *text, size_t size)
{
    BT_ASSERT(v->stored + size <= sizeof v->store);
    char *to = v->store + v->stored;
    memcpy(to, text, size);
    v->stored += size;
    return (bt_gguf_string){ to, size };
}

static void add(vocabulary *v, bt_gguf_string text, int32_t type, float score)
{
    v->texts[v->n] = text;
    v->types[v->n] = type;
    v->scores[v->n++] = score;
}

/* Up to 15 bytes; in tame vocabularies as the characters that stand for them. */
static bt_gguf_string text_from(bytes *b, vocabulary *v, bool mapped)
{
    char text[64];
    size_t size = 0;
    for (uint32_t n = next(b) & 15; n > 0; n--) {
        const uint8_t byte = next(b);
        if (mapped) {
            size += bt_text_utf8_put(bt_text_vocab_code_of_byte(byte), text + size);
        } else {
            text[size++] = (char)byte;
        }
    }
    return keep(v, text, size);
}

/* Specials of tame vocabularies are printable ASCII, which stands for itself. */
static bt_gguf_string special_from(bytes *b, vocabulary *v)
{
    char text[16];
    size_t size = 0;
    text[size++] = '<';
    for (uint32_t n = next(b) & 7; n > 0; n--) {
        text[size++] = (char)(0x21 + next(b) % 94);
    }
    return keep(v, text, size);
}

static bt_gguf_string merge_from(bytes *b, vocabulary *v)
{
    char text[160];
    const bt_gguf_string left = text_from(b, v, v->tame), right = text_from(b, v, v->tame);
    memcpy(text, left.data, left.size);
    text[left.size] = ' ';
    memcpy(text + left.size + 1, right.data, right.size);
    return keep(v, text, left.size + 1 + right.size);
}

static void fill(vocabulary *v, bytes *b)
{
    static const int32_t tame_types[] = { BT_TOKEN_NORMAL, BT_TOKEN_CONTROL, BT_TOKEN_USER_DEFINED,
                                          BT_TOKEN_UNKNOWN };
    const uint8_t flags = next(b);
    v->bpe = !(flags & 1);
    v->tame = flags & 2;
    for (uint32_t byte = 0; (v->tame || flags & 4) && byte < 256; byte++) {
        char text[8];
        size_t size = bt_text_utf8_put(bt_text_vocab_code_of_byte((uint8_t)byte), text);
        if (!v->bpe) {
            static const char digits[] = "0123456789ABCDEF";
            memcpy(text, "<0x00>", 6);
            text[3] = digits[byte >> 4];
            text[4] = digits[byte & 15];
            size = 6;
        }
        add(v, keep(v, text, size), v->bpe ? BT_TOKEN_NORMAL : BT_TOKEN_BYTE, 0);
    }
    for (uint32_t n = next(b) & 63; n > 0; n--) {
        const uint8_t type = next(b);
        const int32_t tame_type = tame_types[type & 3];
        const float score = (float)(int8_t)next(b);
        if (v->tame) {
            add(v, tame_type == BT_TOKEN_NORMAL ? text_from(b, v, true) : special_from(b, v),
                tame_type, score);
        } else {
            add(v, text_from(b, v, type & 128), type & 15, score);
        }
    }
    for (uint32_t n = next(b) & 31; n > 0; n--) {
        v->merges[v->n_merges++] = merge_from(b, v);
    }
}

static void write(const vocabulary *v, bytes *b, bt_gguf_writer *w)
{
    const bt_split_name *pre = &bt_text_split_names[next(b) % bt_text_split_name_count];
    bt_gguf_writer_put_string(w, "tokenizer.ggml.model", v->bpe ? "gpt2" : "llama");
    bt_gguf_writer_put_string(w, "tokenizer.ggml.pre", pre->name);
    if (!v->tame && next(b) & 1) {
        bt_gguf_writer_put_string(w, "general.name", "phi3");
    }
    bt_gguf_writer_put_strings(w, "tokenizer.ggml.tokens", v->texts, v->n);
    bt_gguf_writer_put_array(w, "tokenizer.ggml.token_type", BT_GGUF_I32, v->types, v->n);
    bt_gguf_writer_put_array(w, "tokenizer.ggml.scores", BT_GGUF_F32, v->scores, v->n);
    bt_gguf_writer_put_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges);
    static const char *const ids[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.unknown_token_id",
                                       "tokenizer.ggml.eot_token_id" };
    const uint8_t which = next(b);
    for (uint32_t i = 0; i < 4; i++) {
        if (which >> i & 1) {
            bt_gguf_writer_put_integer(w, ids[i], BT_GGUF_U32, next(b) | (uint32_t)next(b) << 8);
        }
    }
    if (!v->tame) {
        bt_gguf_writer_put_integer(w, "tokenizer.ggml.add_space_prefix", BT_GGUF_BOOL, next(b) & 1);
        bt_gguf_writer_put_integer(w, "tokenizer.ggml.add_eos_token", BT_GGUF_BOOL, next(b) & 1);
    }
}

static void encode(const bt_tokenizer *t, const char *text, size_t size, bool special,
                   bt_tokens *to)
{
    bt_error err = { 0 };
    const bt_encode_options o = { .add_special = false, .parse_special = special };
    bt_text_tokens_init(to);
    BT_ASSERT(bt_text_tokenizer_encode(t, text, size, &o, to, &err) == BT_OK);
    for (size_t i = 0; i < to->count; i++) {
        BT_ASSERT(to->ids[i] < bt_text_tokenizer_count(t));
    }
}

static bool same(const bt_tokens *a, const bt_tokens *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

/* The text in two spans, both written by the same side, is one text. */
static void check_spans(const bt_tokenizer *t, const char *text, size_t size, size_t cut, bool user,
                        const bt_tokens *want)
{
    bt_error err = { 0 };
    bt_tokens got;
    const bt_text_span spans[] = { { text, cut, user }, { text + cut, size - cut, user } };
    bt_text_tokens_init(&got);
    BT_ASSERT(bt_text_tokenizer_encode_spans(t, spans, 2, false, &got, &err) == BT_OK);
    BT_ASSERT(same(&got, want));
    bt_text_tokens_done(&got);
}

static void check_text(const bt_tokenizer *t, const char *text, size_t size, size_t cut, bool tame)
{
    for (int special = 0; special < 2; special++) {
        bt_tokens ids;
        bt_buf whole;
        encode(t, text, size, special, &ids);
        check_spans(t, text, size, cut, !special, &ids);
        bt_buf_init(&whole, BT_MEM_test, 1u << 26);
        bt_text_tokenizer_decode(t, ids.ids, ids.count, true, &whole);
        BT_ASSERT(bt_buf_status(&whole) == BT_OK);
        if (tame && bt_text_utf8_valid(text, size)) {
            BT_ASSERT(whole.size == size && (size == 0 || memcmp(whole.data, text, size) == 0));
        }
        for (size_t i = 0; i < ids.count; i++) {
            size_t n;
            bt_text_tokenizer_piece(t, ids.ids[i], true, &n);
            BT_ASSERT(n <= bt_text_tokenizer_piece_max(t));
        }
        bt_buf_done(&whole);
        bt_text_tokens_done(&ids);
    }
}

static void quiet(void *context, bt_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static vocabulary v;
    bytes b = { data, data + size };
    memset(&v, 0, sizeof v);
    bt_log_set_sink(quiet, NULL);
    fill(&v, &b);

    bt_gguf_writer w;
    bt_buf file_bytes;
    bt_error err = { 0 };
    bt_gguf_writer_init(&w, 3, 32);
    bt_buf_init(&file_bytes, BT_MEM_test, 1u << 24);
    write(&v, &b, &w);
    BT_ASSERT(bt_gguf_writer_write(&w, &file_bytes, &err) == BT_OK);
    bt_gguf *file = NULL;
    bt_tokenizer *t = NULL;
    bt_status status = bt_gguf_open_memory(file_bytes.data, file_bytes.size, "fuzz.gguf", &file,
                                           &err);
    BT_ASSERT(status == BT_OK);
    status = bt_text_tokenizer_create(file, &t, &err);
    bt_gguf_close(file);
    bt_gguf_writer_done(&w);
    bt_buf_done(&file_bytes);
    if (status != BT_OK) {
        BT_ASSERT(!t && strlen(err.text) > 10 && bt_text_utf8_valid(err.text, strlen(err.text)));
        BT_ASSERT(!v.tame);
        return 0;
    }
    const size_t left = (size_t)(b.end - b.at);
    check_text(t, (const char *)b.at, left, left ? b.at[0] % (left + 1) : 0, v.tame && v.bpe);
    bt_text_tokenizer_destroy(t);
    return 0;
}
