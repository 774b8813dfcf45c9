/* Keys of an architecture, each held against its range; the first failure sticks. */
#include <stdarg.h>
#include <stdio.h>

#include "model/family.h"

enum { KEY_MAX = 96 };

static const char *full_key(const bt_model_keys *k, const char *key, char to[KEY_MAX])
{
    snprintf(to, KEY_MAX, "%s.%s", k->architecture, key);
    return to;
}

void bt_model_key_fail(bt_model_keys *k, bt_status status, const char *format, ...)
{
    if (k->status == BT_OK) {
        char text[BT_ERROR_TEXT_MAX];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        k->status = bt_fail(k->err, status, "'%s': %s", bt_gguf_path(k->file), text);
    }
}

bool bt_model_has_key(const bt_model_keys *k, const char *key)
{
    char name[KEY_MAX];
    return bt_gguf_find(k->file, full_key(k, key, name)) != NULL;
}

bool bt_model_key_is_array(const bt_model_keys *k, const char *key)
{
    char name[KEY_MAX];
    const bt_gguf_pair *pair = bt_gguf_find(k->file, full_key(k, key, name));
    return pair && pair->type == BT_GGUF_ARRAY;
}

static uint32_t within(bt_model_keys *k, const char *key, uint32_t v, uint32_t low, uint32_t high)
{
    if (k->status == BT_OK && (v < low || v > high)) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s.%s is %u, but must be %u to %u", k->architecture,
                          key, v, low, high);
    }
    return k->status == BT_OK ? v : low;
}

uint32_t bt_model_key_u32(bt_model_keys *k, const char *key, uint32_t low, uint32_t high)
{
    char name[KEY_MAX];
    uint32_t v = low;
    if (k->status == BT_OK) {
        k->status = bt_gguf_get_u32(k->file, full_key(k, key, name), &v, k->err);
    }
    return within(k, key, v, low, high);
}

uint32_t bt_model_key_opt_u32(bt_model_keys *k, const char *key, uint32_t fallback, uint32_t low,
                              uint32_t high)
{
    return bt_model_has_key(k, key) ? bt_model_key_u32(k, key, low, high) : fallback;
}

float bt_model_key_opt_f32(bt_model_keys *k, const char *key, float fallback, float low, float high)
{
    char name[KEY_MAX];
    float v = fallback;
    if (k->status != BT_OK || !bt_model_has_key(k, key)) {
        return fallback;
    }
    k->status = bt_gguf_get_f32(k->file, full_key(k, key, name), &v, k->err);
    if (k->status == BT_OK && !(v >= low && v <= high)) {
        bt_model_key_fail(k, BT_E_BADFILE, "%s.%s is %g, but must be %g to %g", k->architecture,
                          key, (double)v, (double)low, (double)high);
    }
    return k->status == BT_OK ? v : fallback;
}

bool bt_model_key_opt_string(bt_model_keys *k, const char *key, bt_gguf_string *io_text)
{
    char name[KEY_MAX];
    if (k->status == BT_OK && bt_model_has_key(k, key)) {
        k->status = bt_gguf_get_string(k->file, full_key(k, key, name), io_text, k->err);
    }
    return k->status == BT_OK;
}

void bt_model_key_per_layer(bt_model_keys *k, const char *key, uint32_t n, uint32_t low,
                            uint32_t high, uint32_t *ret_values)
{
    char name[KEY_MAX];
    uint32_t values[BT_LAYERS_MAX];
    if (k->status == BT_OK) {
        const bt_gguf_pair *pair = bt_gguf_find(k->file, full_key(k, key, name));
        const bool more = pair && pair->type == BT_GGUF_ARRAY && pair->count == n + k->n_behind;
        k->status = bt_gguf_get_u32_per_layer(k->file, name, more ? n + k->n_behind : n, values,
                                              k->err);
    }
    for (uint32_t i = 0; i < n && k->status == BT_OK; i++) {
        ret_values[i] = k->ignored && k->ignored[i] ? 0 : values[i];
    }
    for (uint32_t i = 0; i < n && k->status == BT_OK; i++) {
        if (k->ignored && k->ignored[i]) {
            continue;
        }
        if (ret_values[i] < low || ret_values[i] > high) {
            bt_model_key_fail(k, BT_E_BADFILE, "%s.%s is %u in layer %u, but must be %u to %u",
                              k->architecture, key, ret_values[i], i, low, high);
        }
    }
}

void bt_model_rotates_whole_heads(bt_model_keys *k, bt_model_config *c)
{
    if (c->n_rot != c->head_dim_k) {
        bt_model_key_fail(k, BT_E_UNSUPPORTED, "%s rotates all %u values of a head, not %u",
                          k->architecture, c->head_dim_k, c->n_rot);
    }
}
