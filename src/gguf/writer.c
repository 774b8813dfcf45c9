#include "gguf/writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "gguf/file.h"

/* What a test may put into memory; models of real size are made by tools/mkmodel.py. */
#define WRITER_BYTES_MAX ((size_t)1 << 30)

void bt_gguf_writer_init(bt_gguf_writer *w, uint32_t version, uint32_t alignment)
{
    BT_ASSERT(alignment > 0);
    *w = (bt_gguf_writer){ .version = version, .alignment = alignment };
    bt_buf_init(&w->pairs, BT_MEM_gguf, WRITER_BYTES_MAX);
    bt_buf_init(&w->infos, BT_MEM_gguf, WRITER_BYTES_MAX);
    bt_buf_init(&w->data, BT_MEM_gguf, WRITER_BYTES_MAX);
    if (alignment != 32) {
        bt_gguf_writer_put_integer(w, "general.alignment", BT_GGUF_U32, alignment);
    }
}

void bt_gguf_writer_done(bt_gguf_writer *w)
{
    bt_buf_done(&w->pairs);
    bt_buf_done(&w->infos);
    bt_buf_done(&w->data);
}

static void put_u32(bt_buf *b, uint32_t value)
{
    uint8_t bytes[4];
    bt_put_le32(bytes, value);
    bt_buf_put(b, bytes, sizeof bytes);
}

static void put_u64(bt_buf *b, uint64_t value)
{
    uint8_t bytes[8];
    bt_put_le64(bytes, value);
    bt_buf_put(b, bytes, sizeof bytes);
}

static void put_text(bt_buf *b, const char *data, size_t size)
{
    put_u64(b, size);
    bt_buf_put(b, data, size);
}

static void put_key(bt_gguf_writer *w, const char *key, bt_gguf_value_type type)
{
    put_text(&w->pairs, key, strlen(key));
    put_u32(&w->pairs, type);
    w->n_pairs++;
}

/* The low `size` bytes. */
static void put_low(bt_buf *b, uint64_t value, uint32_t size)
{
    uint8_t bytes[8];
    bt_put_le64(bytes, value);
    bt_buf_put(b, bytes, size);
}

static bool is_integer(bt_gguf_value_type type)
{
    return bt_gguf_value_bytes(type) != 0 && type != BT_GGUF_F32 && type != BT_GGUF_F64;
}

void bt_gguf_writer_put_integer(bt_gguf_writer *w, const char *key, bt_gguf_value_type type,
                                uint64_t value)
{
    w->failed |= !is_integer(type);
    put_key(w, key, type);
    put_low(&w->pairs, value, bt_gguf_value_bytes(type));
}

void bt_gguf_writer_put_real(bt_gguf_writer *w, const char *key, bt_gguf_value_type type,
                             double value)
{
    put_key(w, key, type);
    if (type == BT_GGUF_F32) {
        put_u32(&w->pairs, bt_bits_of_float((float)value));
    } else {
        w->failed |= type != BT_GGUF_F64;
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        put_u64(&w->pairs, bits);
    }
}

void bt_gguf_writer_put_string(bt_gguf_writer *w, const char *key, const char *text)
{
    put_key(w, key, BT_GGUF_STRING);
    put_text(&w->pairs, text, strlen(text));
}

/* A C integer or the bits of a C float of `size` bytes. */
static uint64_t native_at(const uint8_t *p, uint32_t size)
{
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (size) {
    case 1:
        return *p;
    case 2:
        memcpy(&u16, p, sizeof u16);
        return u16;
    case 4:
        memcpy(&u32, p, sizeof u32);
        return u32;
    default:
        memcpy(&u64, p, sizeof u64);
        return u64;
    }
}

void bt_gguf_writer_put_array(bt_gguf_writer *w, const char *key, bt_gguf_value_type element,
                              const void *values, uint64_t count)
{
    const uint32_t size = bt_gguf_value_bytes(element);
    w->failed |= size == 0;
    put_key(w, key, BT_GGUF_ARRAY);
    put_u32(&w->pairs, element);
    put_u64(&w->pairs, count);
    for (uint64_t i = 0; size != 0 && i < count; i++) {
        put_low(&w->pairs, native_at((const uint8_t *)values + (size_t)i * size, size), size);
    }
}

void bt_gguf_writer_put_strings(bt_gguf_writer *w, const char *key, const bt_gguf_string *texts,
                                uint64_t count)
{
    put_key(w, key, BT_GGUF_ARRAY);
    put_u32(&w->pairs, BT_GGUF_STRING);
    put_u64(&w->pairs, count);
    for (uint64_t i = 0; i < count; i++) {
        put_text(&w->pairs, texts[i].data, texts[i].size);
    }
}

static void pad(bt_buf *b, size_t size, uint32_t alignment)
{
    const size_t over = size % alignment;
    if (over != 0) {
        void *room = bt_buf_grow(b, alignment - over);
        if (room) {
            memset(room, 0, alignment - over);
        }
    }
}

void bt_gguf_writer_put_pair(bt_gguf_writer *w, const bt_gguf_pair *pair)
{
    put_text(&w->pairs, pair->key.data, pair->key.size);
    put_u32(&w->pairs, pair->type);
    if (pair->type == BT_GGUF_ARRAY) {
        put_u32(&w->pairs, pair->element);
        put_u64(&w->pairs, pair->count);
    }
    if (pair->element != BT_GGUF_STRING) {
        bt_buf_put(&w->pairs, pair->data, pair->count * bt_gguf_value_bytes(pair->element));
    } else {
        bt_gguf_strings it = bt_gguf_strings_begin(pair);
        bt_gguf_string text;
        while (bt_gguf_strings_next(&it, &text)) {
            put_text(&w->pairs, text.data, text.size);
        }
    }
    w->n_pairs++;
}

void bt_gguf_writer_put_tensor(bt_gguf_writer *w, const bt_gguf_writer_tensor *tensor)
{
    BT_ASSERT(tensor->n_dims <= 4);
    put_text(&w->infos, tensor->name, strlen(tensor->name));
    put_u32(&w->infos, tensor->n_dims);
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        put_u64(&w->infos, tensor->ne[d]);
    }
    put_u32(&w->infos, tensor->type);
    put_u64(&w->infos, w->data.size);
    bt_buf_put(&w->data, tensor->data, tensor->size);
    pad(&w->data, w->data.size, w->alignment);
    w->n_tensors++;
}

bt_status bt_gguf_writer_write(const bt_gguf_writer *w, bt_buf *to, bt_error *err)
{
    const size_t start = to->size;
    bt_buf_puts(to, "GGUF");
    put_u32(to, w->version);
    put_u64(to, w->n_tensors);
    put_u64(to, w->n_pairs);
    const bt_buf *parts[] = { &w->pairs, &w->infos, &w->data };
    for (size_t i = 0; i < BT_LEN(parts); i++) {
        if (bt_buf_status(parts[i]) != BT_OK) {
            return bt_fail(err, bt_buf_status(parts[i]), "out of memory for a GGUF file");
        }
        if (i == 2 && w->n_tensors > 0) {
            pad(to, to->size - start, w->alignment);
        }
        bt_buf_put(to, parts[i]->data, parts[i]->size);
    }
    if (w->failed) {
        return bt_fail(err, BT_E_BADINPUT, "a key of the GGUF file has a type it cannot have");
    }
    return bt_buf_status(to) == BT_OK
                   ? BT_OK
                   : bt_fail(err, bt_buf_status(to), "out of memory for a GGUF file");
}

static bt_status save(const bt_buf *bytes, const char *path, bt_error *err)
{
    FILE *out = fopen(path, "wb");
    if (!out) {
        return bt_fail(err, BT_E_IO, "'%s' cannot be written: %s", path, strerror(errno));
    }
    bool good = fwrite(bytes->data, 1, bytes->size, out) == bytes->size;
    good = fclose(out) == 0 && good;
    return good ? BT_OK
                : bt_fail(err, BT_E_IO, "'%s' cannot be written: %s", path, strerror(errno));
}

bt_status bt_gguf_writer_save(const bt_gguf_writer *w, const char *path, bt_error *err)
{
    bt_buf bytes;
    bt_buf_init(&bytes, BT_MEM_gguf, WRITER_BYTES_MAX);
    bt_status status = bt_gguf_writer_write(w, &bytes, err);
    if (status == BT_OK) {
        status = save(&bytes, path, err);
    }
    bt_buf_done(&bytes);
    return status;
}
