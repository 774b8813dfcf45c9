/* Magic, counts and keys: the first part of the header. */
#include "gguf/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/memory.h"

/* The fewest bytes a record can have: they bound the counts before anything is allocated. */
enum {
    PAIR_BYTES_MIN = 8 + 1 + 4 + 1,            /* key size, key, type, value */
    INFO_BYTES_MIN = 8 + 1 + 4 + 4 + 8         /* name size, name, n_dims, type, offset */
};

/* The value of the key that is being read; the key is in the message. */
static bt_status bad_value(const bt_gguf *file, const bt_reader *r, const bt_gguf_pair *pair,
                           const char *problem, uint64_t number, bt_error *err)
{
    char key[BT_GGUF_SHOWN_MAX];
    return bt_fail(err, BT_E_BADFILE, "'%s': key '%s', before byte %zu: %s (%" PRIu64 ")",
                   file->name, bt_gguf_show(pair->key, key), r->at, problem, number);
}

static bt_status string_skip(const bt_gguf *file, bt_reader *r, const bt_gguf_pair *pair,
                             bt_error *err)
{
    const uint64_t size = bt_reader_u64(r);
    if (r->failed) {
        return bad_value(file, r, pair, "the file ends before its last string; strings",
                         pair->count, err);
    }
    if (size > BT_GGUF_STRING_BYTES_MAX) {
        return bad_value(file, r, pair, "the string is longer than 64 MiB", size, err);
    }
    if (!bt_reader_take(r, (size_t)size)) {
        return bad_value(file, r, pair, "the string is longer than what is left of the file", size,
                         err);
    }
    return BT_OK;
}

static bt_status scalars_skip(const bt_gguf *file, bt_reader *r, const bt_gguf_pair *pair,
                              bt_error *err)
{
    /* count is at most BT_GGUF_ARRAY_MAX, so this cannot overflow even in 32 bits. */
    const size_t size = (size_t)pair->count * bt_gguf_value_bytes(pair->element);
    const uint8_t *data = bt_reader_take(r, size);
    if (!data) {
        return bad_value(file, r, pair, "there are more values than bytes left in the file",
                         pair->count, err);
    }
    if (pair->element == BT_GGUF_BOOL) {
        for (size_t i = 0; i < size; i++) {
            if (data[i] > 1) {
                return bad_value(file, r, pair, "a boolean is neither 0 nor 1", data[i], err);
            }
        }
    }
    return BT_OK;
}

static bt_status elements_skip(const bt_gguf *file, bt_reader *r, const bt_gguf_pair *pair,
                               bt_error *err)
{
    if (pair->element != BT_GGUF_STRING) {
        return scalars_skip(file, r, pair, err);
    }
    if (pair->count > bt_reader_left(r) / 8) {
        return bad_value(file, r, pair, "there are more strings than bytes left in the file",
                         pair->count, err);
    }
    for (uint64_t i = 0; i < pair->count; i++) {
        BT_TRY(string_skip(file, r, pair, err));
    }
    return BT_OK;
}

/* After the key: type, for arrays element type and count, then the values. */
static bt_status value_read(const bt_gguf *file, bt_reader *r, bt_gguf_pair *pair, bt_error *err)
{
    uint32_t type = bt_reader_u32(r), element = type;
    uint64_t count = 1;
    if (!r->failed && type == BT_GGUF_ARRAY) {
        element = bt_reader_u32(r);
        count = bt_reader_u64(r);
    }
    if (r->failed) {
        return bt_gguf_cut_short(file, r, "a value", err);
    }
    if (type >= BT_GGUF_VALUE_COUNT) {
        return bad_value(file, r, pair, "the type of the value is not known", type, err);
    }
    if (element >= BT_GGUF_VALUE_COUNT) {
        return bad_value(file, r, pair, "the type of the array is not known", element, err);
    }
    if (element == BT_GGUF_ARRAY) {
        return bad_value(file, r, pair, "arrays of arrays are not supported", count, err);
    }
    if (count > BT_GGUF_ARRAY_MAX) {
        return bad_value(file, r, pair, "the array has more than 67108864 entries", count, err);
    }
    pair->type = (bt_gguf_value_type)type;
    pair->element = (bt_gguf_value_type)element;
    pair->count = count;
    pair->data = r->data + r->at;
    return elements_skip(file, r, pair, err);
}

static bt_gguf_string key_of(const void *table, uint32_t i)
{
    return ((const bt_gguf_pair *)table)[i].key;
}

static bt_status pairs_read(bt_gguf *file, bt_reader *r, uint32_t n, bt_error *err)
{
    file->pairs = bt_alloc_zero(BT_MEM_gguf, n, sizeof *file->pairs);
    if (!file->pairs || bt_gguf_index_init(&file->keys, n) != BT_OK) {
        return bt_fail_nomem(err, n * sizeof *file->pairs, "the keys of a model file");
    }
    for (uint32_t i = 0; i < n; i++) {
        bt_gguf_pair *pair = &file->pairs[i];
        const size_t at = r->at;
        BT_TRY(bt_gguf_name_read(file, r, "a key", BT_GGUF_KEY_BYTES_MAX, &pair->key, err));
        BT_TRY(value_read(file, r, pair, err));
        if (!bt_gguf_index_add(&file->keys, key_of, file->pairs, i)) {
            return bad_value(file, r, pair, "the key is there a second time, at byte", at, err);
        }
        file->n_pairs = i + 1;
    }
    return BT_OK;
}

const bt_gguf_pair *bt_gguf_find(const bt_gguf *file, const char *key)
{
    const bt_gguf_string text = { .data = key, .size = strlen(key) };
    const uint32_t i = bt_gguf_index_find(&file->keys, key_of, file->pairs, text);
    return i == UINT32_MAX ? NULL : &file->pairs[i];
}

static bt_status version_read(bt_gguf *file, bt_reader *r, bt_error *err)
{
    const uint8_t *magic = bt_reader_take(r, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0) {
        return bt_fail(err, BT_E_BADFILE, "'%s' is not a GGUF file: it does not begin with 'GGUF'",
                       file->name);
    }
    file->version = bt_reader_u32(r);
    if (r->failed) {
        return bt_gguf_cut_short(file, r, "the version", err);
    }
    if ((file->version & 0xffff) == 0 && file->version != 0) {
        return bt_fail(err, BT_E_BADFILE, "'%s' seems to be a big-endian GGUF file (version "
                       "0x%08X); convert it to little-endian", file->name, file->version);
    }
    if (file->version != 2 && file->version != 3) {
        return bt_fail(err, BT_E_BADFILE, "'%s' has GGUF version %u; 2 and 3 can be read",
                       file->name, file->version);
    }
    return BT_OK;
}

/* Held against a limit and against what is left of the file, so that tables stay in proportion. */
static bt_status count_check(const bt_gguf *file, const bt_reader *r, const char *what,
                             uint64_t count, uint64_t max, uint64_t bytes_each, bt_error *err)
{
    if (count > max) {
        return bt_fail(err, BT_E_BADFILE, "'%s' announces %" PRIu64 " %s; at most %" PRIu64
                       " can be read", file->name, count, what, max);
    }
    if (count > bt_reader_left(r) / bytes_each) {
        return bt_fail(err, BT_E_BADFILE, "'%s' announces %" PRIu64 " %s, but only %zu bytes are "
                       "left; it is damaged or not fully copied", file->name, count, what,
                       bt_reader_left(r));
    }
    return BT_OK;
}

static bt_status alignment_read(bt_gguf *file, bt_error *err)
{
    file->alignment = 32;
    const bt_gguf_pair *pair = bt_gguf_find(file, "general.alignment");
    if (!pair) {
        return BT_OK;
    }
    if (pair->type != BT_GGUF_U32) {
        return bt_fail(err, BT_E_BADFILE, "'%s': key 'general.alignment' is %s; it must be u32",
                       file->name, bt_gguf_value_type_name(pair->type));
    }
    const uint32_t alignment = bt_get_le32(pair->data);
    if (alignment < 8 || (alignment & (alignment - 1)) != 0) {
        return bt_fail(err, BT_E_BADFILE, "'%s': key 'general.alignment' is %u; it must be a power "
                       "of two, 8 or more", file->name, alignment);
    }
    file->alignment = alignment;
    return BT_OK;
}

bt_status bt_gguf_header_read(bt_gguf *file, bt_error *err)
{
    bt_reader r;
    bt_reader_init(&r, file->map.data, file->map.size);
    BT_TRY(version_read(file, &r, err));
    const uint64_t n_tensors = bt_reader_u64(&r);
    const uint64_t n_pairs = bt_reader_u64(&r);
    if (r.failed) {
        return bt_gguf_cut_short(file, &r, "the counts", err);
    }
    BT_TRY(count_check(file, &r, "keys", n_pairs, BT_GGUF_KEYS_MAX, PAIR_BYTES_MIN, err));
    BT_TRY(count_check(file, &r, "tensors", n_tensors, BT_GGUF_TENSORS_MAX, INFO_BYTES_MIN, err));
    BT_TRY(pairs_read(file, &r, (uint32_t)n_pairs, err));
    BT_TRY(alignment_read(file, err));
    /* Again, now that the keys have taken their share. */
    BT_TRY(count_check(file, &r, "tensors", n_tensors, BT_GGUF_TENSORS_MAX, INFO_BYTES_MIN, err));
    return bt_gguf_infos_read(file, &r, (uint32_t)n_tensors, err);
}
