/* Values of keys, by the type the caller wants. */
#include "gguf/file.h"

#include <inttypes.h>
#include <math.h>

#include "base/check.h"

/* ---- single numbers, at any address ---- */

/* An integer of any type: a sign and a magnitude, so that u64 and i64 both fit. */
typedef struct {
    bool     negative;
    uint64_t magnitude;
} integer;

static integer integer_of(int64_t v)
{
    return (integer){ .negative = v < 0, .magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v };
}

/* Integers and booleans only; false for other types. */
static bool integer_at(bt_gguf_value_type type, const uint8_t *p, integer *ret)
{
    switch (type) {
    case BT_GGUF_BOOL:
    case BT_GGUF_U8:
        *ret = (integer){ .magnitude = p[0] };
        return true;
    case BT_GGUF_U16:
        *ret = (integer){ .magnitude = bt_get_le16(p) };
        return true;
    case BT_GGUF_U32:
        *ret = (integer){ .magnitude = bt_get_le32(p) };
        return true;
    case BT_GGUF_U64:
        *ret = (integer){ .magnitude = bt_get_le64(p) };
        return true;
    case BT_GGUF_I8:
        *ret = integer_of((int8_t)p[0]);
        return true;
    case BT_GGUF_I16:
        *ret = integer_of((int16_t)bt_get_le16(p));
        return true;
    case BT_GGUF_I32:
        *ret = integer_of((int32_t)bt_get_le32(p));
        return true;
    case BT_GGUF_I64:
        *ret = integer_of((int64_t)bt_get_le64(p));
        return true;
    default:
        return false;
    }
}

/* Any number; false for strings and arrays. */
static bool real_at(bt_gguf_value_type type, const uint8_t *p, double *ret)
{
    integer n;
    if (type == BT_GGUF_F32) {
        *ret = (double)bt_float_of_bits(bt_get_le32(p));
    } else if (type == BT_GGUF_F64) {
        const uint64_t bits = bt_get_le64(p);
        memcpy(ret, &bits, sizeof bits);
    } else if (integer_at(type, p, &n)) {
        *ret = n.negative ? -(double)n.magnitude : (double)n.magnitude;
    } else {
        return false;
    }
    return true;
}

bt_gguf_string bt_gguf_string_at(const uint8_t *data)
{
    return (bt_gguf_string){ .data = (const char *)data + 8, .size = (size_t)bt_get_le64(data) };
}

/* ---- messages ---- */

static bt_status missing(const bt_gguf *f, const char *key, bt_error *err)
{
    return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is missing", f->name, key);
}

static bt_status wrong_type(const bt_gguf *f, const char *key, const bt_gguf_pair *pair,
                            const char *wanted, bt_error *err)
{
    if (pair->type == BT_GGUF_ARRAY) {
        return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is an array of %" PRIu64 " %s, but %s is "
                       "wanted", f->name, key, pair->count, bt_gguf_value_type_name(pair->element),
                       wanted);
    }
    return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is of type %s, but %s is wanted", f->name,
                   key, bt_gguf_value_type_name(pair->type), wanted);
}

static bt_status out_of_range(const bt_gguf *f, const char *key, integer n, bt_error *err)
{
    return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is %s%" PRIu64 ", but an integer from 0 to "
                   "4294967295 is wanted", f->name, key, n.negative ? "-" : "", n.magnitude);
}

/* ---- typed getters: `pair` is there, its type is not yet known ---- */

static bt_status as_u32(const bt_gguf *f, const char *key, const bt_gguf_pair *pair, uint32_t *ret,
                        bt_error *err)
{
    integer n;
    if (pair->type == BT_GGUF_BOOL || !integer_at(pair->type, pair->data, &n)) {
        return wrong_type(f, key, pair, "an integer", err);
    }
    if (n.negative || n.magnitude > UINT32_MAX) {
        return out_of_range(f, key, n, err);
    }
    *ret = (uint32_t)n.magnitude;
    return BT_OK;
}

static bt_status as_f32(const bt_gguf *f, const char *key, const bt_gguf_pair *pair, float *ret,
                        bt_error *err)
{
    double value;
    if (pair->type == BT_GGUF_BOOL || !real_at(pair->type, pair->data, &value)) {
        return wrong_type(f, key, pair, "a number", err);
    }
    const float narrow = (float)value;
    if (!isfinite(narrow)) {
        return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is %g, but a finite f32 is wanted",
                       f->name, key, value);
    }
    *ret = narrow;
    return BT_OK;
}

static bt_status as_bool(const bt_gguf *f, const char *key, const bt_gguf_pair *pair, bool *ret,
                         bt_error *err)
{
    if (pair->type != BT_GGUF_BOOL) {
        return wrong_type(f, key, pair, "a boolean", err);
    }
    *ret = pair->data[0] != 0;
    return BT_OK;
}

bt_status bt_gguf_get_u32(const bt_gguf *f, const char *key, uint32_t *ret, bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    return pair ? as_u32(f, key, pair, ret, err) : missing(f, key, err);
}

bt_status bt_gguf_get_f32(const bt_gguf *f, const char *key, float *ret, bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    return pair ? as_f32(f, key, pair, ret, err) : missing(f, key, err);
}

bt_status bt_gguf_get_bool(const bt_gguf *f, const char *key, bool *ret, bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    return pair ? as_bool(f, key, pair, ret, err) : missing(f, key, err);
}

bt_status bt_gguf_get_string(const bt_gguf *f, const char *key, bt_gguf_string *ret, bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    if (!pair) {
        return missing(f, key, err);
    }
    if (pair->type != BT_GGUF_STRING) {
        return wrong_type(f, key, pair, "a string", err);
    }
    *ret = bt_gguf_string_at(pair->data);
    return BT_OK;
}

bt_status bt_gguf_opt_u32(const bt_gguf *f, const char *key, uint32_t fallback, uint32_t *ret,
                          bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    if (!pair) {
        *ret = fallback;
        return BT_OK;
    }
    return as_u32(f, key, pair, ret, err);
}

bt_status bt_gguf_opt_f32(const bt_gguf *f, const char *key, float fallback, float *ret,
                          bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    if (!pair) {
        *ret = fallback;
        return BT_OK;
    }
    return as_f32(f, key, pair, ret, err);
}

bt_status bt_gguf_opt_bool(const bt_gguf *f, const char *key, bool fallback, bool *ret,
                           bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    if (!pair) {
        *ret = fallback;
        return BT_OK;
    }
    return as_bool(f, key, pair, ret, err);
}

/* ---- arrays ---- */

/* Where element `index` lies; for a scalar, where it lies itself. */
static const uint8_t *element_at(const bt_gguf_pair *pair, uint64_t index)
{
    BT_ASSERT(index < pair->count);
    return pair->data + (size_t)index * bt_gguf_value_bytes(pair->element);
}

bt_status bt_gguf_get_u32_per_layer(const bt_gguf *f, const char *key, uint32_t n,
                                    uint32_t *ret_values, bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(f, key);
    if (!pair) {
        return missing(f, key, err);
    }
    const bool array = pair->type == BT_GGUF_ARRAY;
    if (array && pair->count != n) {
        return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is an array of %" PRIu64 " values, but "
                       "one for each of %u layers is wanted", f->name, key, pair->count, n);
    }
    /* All are checked before any is given out: on failure results stay untouched. */
    integer value;
    for (uint64_t i = 0; i < pair->count; i++) {
        if (!integer_at(pair->element, element_at(pair, i), &value)) {
            return wrong_type(f, key, pair, "an integer or an array of integers", err);
        }
        if (value.negative || value.magnitude > UINT32_MAX) {
            return out_of_range(f, key, value, err);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        ret_values[i] = bt_gguf_array_u32(pair, array ? i : 0);
    }
    return BT_OK;
}

uint32_t bt_gguf_array_u32(const bt_gguf_pair *pair, uint64_t index)
{
    integer n;
    const bool known = integer_at(pair->element, element_at(pair, index), &n);
    BT_ASSERT(known);
    return n.negative || n.magnitude > UINT32_MAX ? UINT32_MAX : (uint32_t)n.magnitude;
}

float bt_gguf_array_f32(const bt_gguf_pair *pair, uint64_t index)
{
    double value;
    const bool known = real_at(pair->element, element_at(pair, index), &value);
    BT_ASSERT(known);
    return (float)value;
}

bt_gguf_strings bt_gguf_strings_begin(const bt_gguf_pair *pair)
{
    BT_ASSERT(pair->element == BT_GGUF_STRING);
    return (bt_gguf_strings){ .at = pair->data, .left = pair->count };
}

bool bt_gguf_strings_next(bt_gguf_strings *it, bt_gguf_string *ret)
{
    if (it->left == 0) {
        return false;
    }
    *ret = bt_gguf_string_at(it->at);
    it->at += 8 + ret->size;
    it->left--;
    return true;
}
