/* Small vocabularies in memory, and random numbers and texts, for the tests of this room. */
#ifndef UNIT_TEXT_VOCABULARY_H
#define UNIT_TEXT_VOCABULARY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/log.h"
#include "base/memory.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/vocab.h"

enum { VOCABULARY_MAX = 2048 };

typedef struct {
    bt_gguf_string texts[VOCABULARY_MAX];
    int32_t        types[VOCABULARY_MAX];
    float          scores[VOCABULARY_MAX];
    uint32_t       n;
    char           store[65536];
    size_t         stored;
    const char    *merges[VOCABULARY_MAX];
    uint32_t       n_merges;
    bt_gguf_writer w;
    bt_buf         file_bytes;
} vocabulary;

static inline void vocabulary_init(vocabulary *v)
{
    memset(v, 0, sizeof *v);
    bt_gguf_writer_init(&v->w, 3, 32);
    bt_buf_init(&v->file_bytes, BT_MEM_test, 1u << 24);
}

static inline void vocabulary_done(vocabulary *v)
{
    bt_gguf_writer_done(&v->w);
    bt_buf_done(&v->file_bytes);
}

static inline uint32_t vocabulary_add(vocabulary *v, const char *text, size_t size, int type,
                                      float score)
{
    assert_true(v->n < VOCABULARY_MAX && v->stored + size <= sizeof v->store);
    memcpy(v->store + v->stored, text, size);
    v->texts[v->n] = (bt_gguf_string){ v->store + v->stored, size };
    v->stored += size;
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return v->n++;
}

static inline uint32_t vocabulary_token(vocabulary *v, const char *text, int type)
{
    return vocabulary_add(v, text, strlen(text), type, 0);
}

/* Ids 0..255: the bytes' characters. */
static inline void vocabulary_bytes(vocabulary *v)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[BT_UTF8_MAX];
        vocabulary_add(v, text, bt_text_utf8_put(bt_text_vocab_code_of_byte((uint8_t)byte), text),
                       BT_TOKEN_NORMAL, 0);
    }
}

/* "left right", and the token it makes. */
static inline uint32_t vocabulary_merge(vocabulary *v, const char *merge)
{
    char joined[256];
    const char *blank = strchr(merge + 1, ' ');
    snprintf(joined, sizeof joined, "%.*s%s", (int)(blank - merge), merge, blank + 1);
    v->merges[v->n_merges++] = merge;
    for (uint32_t id = 0; id < v->n; id++) {
        if (v->texts[id].size == strlen(joined) &&
            memcmp(v->texts[id].data, joined, strlen(joined)) == 0) {
            return id;
        }
    }
    return vocabulary_token(v, joined, BT_TOKEN_NORMAL);
}

/* The keys that every vocabulary of this model has. More may be put before or after. */
static inline void vocabulary_keys(vocabulary *v, const char *model, const char *pre)
{
    bt_gguf_string merges[VOCABULARY_MAX];
    for (uint32_t i = 0; i < v->n_merges; i++) {
        merges[i] = (bt_gguf_string){ v->merges[i], strlen(v->merges[i]) };
    }
    bt_gguf_writer_put_string(&v->w, "tokenizer.ggml.model", model);
    if (pre) {
        bt_gguf_writer_put_string(&v->w, "tokenizer.ggml.pre", pre);
    }
    bt_gguf_writer_put_strings(&v->w, "tokenizer.ggml.tokens", v->texts, v->n);
    bt_gguf_writer_put_array(&v->w, "tokenizer.ggml.token_type", BT_GGUF_I32, v->types, v->n);
    if (strcmp(model, "gpt2") == 0) {
        bt_gguf_writer_put_strings(&v->w, "tokenizer.ggml.merges", merges, v->n_merges);
    } else {
        bt_gguf_writer_put_array(&v->w, "tokenizer.ggml.scores", BT_GGUF_F32, v->scores, v->n);
    }
}

static inline bt_gguf *vocabulary_open(vocabulary *v)
{
    bt_error err = { 0 };
    bt_gguf *file = NULL;
    bt_buf_clear(&v->file_bytes);
    assert_int_equal(bt_gguf_writer_write(&v->w, &v->file_bytes, &err), BT_OK);
    const bt_status status =
            bt_gguf_open_memory(v->file_bytes.data, v->file_bytes.size, "test.gguf", &file, &err);
    if (status != BT_OK) {
        fail_msg("%s", err.text);
    }
    return file;
}

static inline bt_status vocabulary_load(vocabulary *v, bt_tokenizer **ret, bt_error *err)
{
    bt_gguf *file = vocabulary_open(v);
    const bt_status status = bt_text_tokenizer_create(file, ret, err);
    bt_gguf_close(file);
    return status;
}

static inline bt_tokenizer *vocabulary_tokenizer(vocabulary *v)
{
    bt_error err = { 0 };
    bt_tokenizer *t = NULL;
    if (vocabulary_load(v, &t, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

/* ---- checking ---- */

static inline void expect_ids(const bt_tokens *got, const uint32_t *want, size_t n,
                              const char *what)
{
    bool same = got->count == n;
    for (size_t i = 0; same && i < n; i++) {
        same = got->ids[i] == want[i];
    }
    if (same) {
        return;
    }
    print_message("%s\n  got ", what);
    for (size_t i = 0; i < got->count; i++) {
        print_message(" %u", got->ids[i]);
    }
    print_message("\n  want");
    for (size_t i = 0; i < n; i++) {
        print_message(" %u", want[i]);
    }
    print_message("\n");
    fail();
}

#define EXPECT(tokenizer, text, parse, ...)                                                    \
    do {                                                                                       \
        const uint32_t want_ids[] = { __VA_ARGS__ };                                           \
        expect_encoding(tokenizer, text, sizeof(text) - 1, parse, want_ids, BT_LEN(want_ids)); \
    } while (0)

static inline void expect_encoding(const bt_tokenizer *t, const char *text, size_t size, bool parse,
                                   const uint32_t *want, size_t n)
{
    bt_error err = { 0 };
    bt_tokens got;
    bt_text_tokens_init(&got);
    const bt_encode_options o = { .parse_special = parse };
    assert_int_equal(bt_text_tokenizer_encode(t, text, size, &o, &got, &err), BT_OK);
    expect_ids(&got, want, n, text);
    bt_text_tokens_done(&got);
}

/* ---- random things ---- */

typedef struct { uint64_t state; } dice;

static inline uint32_t roll(dice *d, uint32_t n)
{
    d->state ^= d->state << 13;
    d->state ^= d->state >> 7;
    d->state ^= d->state << 17;
    return (uint32_t)((d->state >> 24) % n);
}

static inline void quiet(void *context, bt_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

#endif
