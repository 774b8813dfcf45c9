/* Touches everything that an open file gives out, so that a sanitizer sees every wrong pointer, and
 * holds what must always be true. Returns a number that depends on all of it. */
#ifndef BT_TESTS_GGUF_WALK_H
#define BT_TESTS_GGUF_WALK_H

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "gguf/gguf.h"

enum { WALK_ROW_MAX = 4096, WALK_KEY_MAX = 256 };

static inline uint64_t walk_bytes(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    uint64_t sum = size;
    for (size_t i = 0; i < size; i++) {
        sum = sum * 31 + bytes[i];
    }
    return sum;
}

static inline uint64_t walk_values(const bt_gguf_pair *pair)
{
    uint64_t sum = pair->count;
    if (pair->element == BT_GGUF_STRING) {
        bt_gguf_strings it = bt_gguf_strings_begin(pair);
        bt_gguf_string text;
        uint64_t n = 0;
        while (bt_gguf_strings_next(&it, &text)) {
            sum += walk_bytes(text.data, text.size);
            n++;
        }
        BT_ASSERT(n == pair->count);
        return sum;
    }
    const bool real = pair->element == BT_GGUF_F32 || pair->element == BT_GGUF_F64;
    for (uint64_t i = 0; i < pair->count; i++) {
        const float value = bt_gguf_array_f32(pair, i);
        sum += walk_bytes(&value, sizeof value);
        sum += real ? 0 : bt_gguf_array_u32(pair, i);
    }
    return sum;
}

/* Every getter with the key: each either gives a value or says why not, in words. */
static inline uint64_t walk_getters(const bt_gguf *file, const bt_gguf_pair *pair)
{
    char key[WALK_KEY_MAX];
    if (pair->key.size >= sizeof key) {
        return 0;
    }
    memcpy(key, pair->key.data, pair->key.size);
    key[pair->key.size] = '\0';
    BT_ASSERT(bt_gguf_find(file, key) == pair);

    bt_error err = { .text = "" };
    uint32_t u32 = 0, layers[3] = { 0 };
    float f32 = 0;
    bool flag = false;
    bt_gguf_string text = { 0 };
    const bt_status status[] = {
        bt_gguf_get_u32(file, key, &u32, &err),    bt_gguf_opt_u32(file, key, 7, &u32, &err),
        bt_gguf_get_f32(file, key, &f32, &err),    bt_gguf_opt_f32(file, key, 7, &f32, &err),
        bt_gguf_get_bool(file, key, &flag, &err),  bt_gguf_opt_bool(file, key, true, &flag, &err),
        bt_gguf_get_string(file, key, &text, &err),
        bt_gguf_get_u32_per_layer(file, key, 3, layers, &err),
    };
    uint64_t sum = u32 + flag + layers[0] + layers[2] + walk_bytes(&f32, sizeof f32);
    for (size_t i = 0; i < BT_LEN(status); i++) {
        BT_ASSERT(status[i] == BT_OK || (status[i] == BT_E_BADFILE && err.text[0] != '\0'));
        sum = sum * 3 + status[i];
    }
    return sum + walk_bytes(text.data, text.size);
}

/* The first row as numbers, if its type has any, and all bytes. */
static inline uint64_t walk_tensor(const bt_gguf *file, const bt_gguf_tensor *tensor)
{
    BT_ASSERT(bt_gguf_tensor_find(file, tensor->name) == tensor);
    BT_ASSERT(tensor->n_dims <= 4 && tensor->ne[0] % tensor->type->block_elems == 0);
    uint64_t sum = walk_bytes(tensor->data, (size_t)tensor->size_bytes) + tensor->part;
    if (tensor->type->can_decode && tensor->n_elems != 0 && tensor->ne[0] <= WALK_ROW_MAX) {
        float row[WALK_ROW_MAX];
        if (bt_quant_type_decode(tensor->type->id, tensor->data, row, (size_t)tensor->ne[0]) ==
            BT_OK) {
            sum += walk_bytes(row, (size_t)tensor->ne[0] * sizeof *row);
        }
    }
    return sum;
}

static inline uint64_t walk_file(const bt_gguf *file)
{
    uint64_t sum = bt_gguf_version(file) + bt_gguf_alignment(file) + bt_gguf_part_count(file);
    sum += bt_gguf_size_bytes(file) + strlen(bt_gguf_path(file));
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *pair = bt_gguf_pair_at(file, i);
        sum = sum * 5 + walk_bytes(pair->key.data, pair->key.size);
        sum += walk_values(pair) + walk_getters(file, pair);
    }
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        sum = sum * 5 + walk_tensor(file, bt_gguf_tensor_at(file, i));
    }
    BT_ASSERT(!bt_gguf_find(file, "no.such.key") && !bt_gguf_tensor_find(file, "no.such.tensor"));
    return sum;
}

#endif
