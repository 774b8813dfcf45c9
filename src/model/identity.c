/* What two machines compare before they share keys and values. Every digest is over bytes in one
 * fixed order, little-endian, so that it depends neither on the machine nor on how a file is split
 * or its tensors and keys are ordered. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/memory.h"
#include "model/family.h"

static void put_u32(bt_digester *d, uint32_t v)
{
    uint8_t bytes[4];
    bt_put_le32(bytes, v);
    bt_digester_put(d, bytes, sizeof bytes);
}

static void put_u64(bt_digester *d, uint64_t v)
{
    uint8_t bytes[8];
    bt_put_le64(bytes, v);
    bt_digester_put(d, bytes, sizeof bytes);
}

/* Bytes with their length in front, so that no two lists of texts give the same bytes. */
static void put_bytes(bt_digester *d, const void *bytes, size_t n)
{
    put_u64(d, n);
    bt_digester_put(d, bytes, n);
}

/* ---- weights ---- */

typedef struct { const bt_gguf_tensor *tensor; const bt_digest *content; } named_tensor;

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const named_tensor *)a)->tensor->name, ((const named_tensor *)b)->tensor->name);
}

static bt_status digest_weights(bt_digester *d, const bt_gguf *file, const bt_digest *contents,
                                bt_digest *ret)
{
    const uint32_t n = bt_gguf_tensor_count(file);
    named_tensor *list = bt_alloc_zero(BT_MEM_model, n + 1, sizeof *list);
    if (!list) {
        return BT_E_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i] = (named_tensor){ bt_gguf_tensor_at(file, i), &contents[i] };
    }
    qsort(list, n, sizeof *list, by_tensor_name);
    bt_digester_reset(d);
    for (uint32_t i = 0; i < n; i++) {
        const bt_gguf_tensor *t = list[i].tensor;
        put_bytes(d, t->name, strlen(t->name));
        put_u32(d, (uint32_t)t->type->id);
        for (int dim = 0; dim < 4; dim++) {
            put_u64(d, t->ne[dim]);
        }
        bt_digester_put(d, list[i].content->bytes, sizeof list[i].content->bytes);
    }
    *ret = bt_digester_value(d);
    bt_free(list);
    return BT_OK;
}

/* ---- keys ---- */

static bool begins_with(bt_gguf_string s, const char *prefix)
{
    const size_t n = strlen(prefix);
    return s.size >= n && memcmp(s.data, prefix, n) == 0;
}

static int by_key(const void *a, const void *b)
{
    const bt_gguf_string x = (*(const bt_gguf_pair *const *)a)->key;
    const bt_gguf_string y = (*(const bt_gguf_pair *const *)b)->key;
    const int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    return order != 0 ? order : (x.size > y.size) - (x.size < y.size);
}

static size_t value_bytes(bt_gguf_value_type type)
{
    switch (type) {
    case BT_GGUF_U8: case BT_GGUF_I8: case BT_GGUF_BOOL:  return 1;
    case BT_GGUF_U16: case BT_GGUF_I16:                   return 2;
    case BT_GGUF_U32: case BT_GGUF_I32: case BT_GGUF_F32: return 4;
    case BT_GGUF_U64: case BT_GGUF_I64: case BT_GGUF_F64: return 8;
    default:                                              return 0;
    }
}

static void put_pair(bt_digester *d, const bt_gguf_pair *p)
{
    put_bytes(d, p->key.data, p->key.size);
    put_u32(d, (uint32_t)p->type);
    put_u32(d, (uint32_t)p->element);
    put_u64(d, p->count);
    if (p->element != BT_GGUF_STRING) {
        bt_digester_put(d, p->data, (size_t)p->count * value_bytes(p->element));
        return;
    }
    bt_gguf_strings it = bt_gguf_strings_begin(p);
    bt_gguf_string s;
    while (bt_gguf_strings_next(&it, &s)) {
        put_bytes(d, s.data, s.size);
    }
}

/* All keys that begin with `prefix`, known to this build or not: a list of those that matter could
 * forget one. Keys that begin with `except` stand aside. */
static bt_status put_pairs(bt_digester *d, const bt_gguf *file, const char *prefix,
                           const char *except)
{
    uint32_t n = 0;
    const bt_gguf_pair **list = bt_alloc_zero(BT_MEM_model, bt_gguf_pair_count(file) + 1,
                                              sizeof *list);
    if (!list) {
        return BT_E_NOMEM;
    }
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *p = bt_gguf_pair_at(file, i);
        if (begins_with(p->key, prefix) && !(except && begins_with(p->key, except))) {
            list[n++] = p;
        }
    }
    qsort(list, n, sizeof *list, by_key);
    for (uint32_t i = 0; i < n; i++) {
        put_pair(d, list[i]);
    }
    bt_free(list);
    return BT_OK;
}

static bt_status digest_tokenizer(bt_digester *d, const bt_gguf *file, bt_digest *ret)
{
    bt_digester_reset(d);
    /* A chat format makes text, not tokens out of text: it may differ. */
    BT_TRY(put_pairs(d, file, "tokenizer.", "tokenizer.chat_template"));
    *ret = bt_digester_value(d);
    return BT_OK;
}

/* Goes up when a build computes other keys and values from the same file. */
enum { MEANING = 2 };

static bt_status digest_geometry(bt_digester *d, const bt_gguf *file, const char *architecture,
                                 bt_digest *ret)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.", architecture);
    bt_digester_reset(d);
    put_u32(d, MEANING);
    put_bytes(d, architecture, strlen(architecture));
    BT_TRY(put_pairs(d, file, prefix, NULL));
    *ret = bt_digester_value(d);
    return BT_OK;
}

bt_status bt_model_identify(const bt_gguf *file, const char *architecture,
                            const bt_digest *contents, bt_model_identity *ret_identity,
                            bt_error *err)
{
    bt_digester *d = NULL;
    bt_model_identity made;
    bt_status status = bt_digester_create(&d);
    if (status == BT_OK) {
        status = digest_weights(d, file, contents, &made.weights);
    }
    if (status == BT_OK) {
        status = digest_tokenizer(d, file, &made.tokenizer);
    }
    if (status == BT_OK) {
        status = digest_geometry(d, file, architecture, &made.geometry);
    }
    if (status == BT_OK) {
        *ret_identity = made;
    }
    bt_digester_destroy(d);
    return status == BT_OK ? BT_OK : bt_fail(err, status, "out of memory for a model's identity");
}
