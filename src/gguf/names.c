/* Names of keys and tensors as they are read and shown, and of types. */
#include "gguf/file.h"

#include <inttypes.h>
#include <stdio.h>

uint32_t bt_gguf_value_bytes(bt_gguf_value_type type)
{
    static const uint8_t bytes[BT_GGUF_VALUE_COUNT] = {
        [BT_GGUF_U8] = 1,  [BT_GGUF_I8] = 1,  [BT_GGUF_U16] = 2, [BT_GGUF_I16] = 2,
        [BT_GGUF_U32] = 4, [BT_GGUF_I32] = 4, [BT_GGUF_F32] = 4, [BT_GGUF_BOOL] = 1,
        [BT_GGUF_U64] = 8, [BT_GGUF_I64] = 8, [BT_GGUF_F64] = 8,
    };
    return bytes[type];
}

const char *bt_gguf_value_type_name(bt_gguf_value_type type)
{
    static const char *const names[BT_GGUF_VALUE_COUNT] = {
        "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64",
        "f64",
    };
    return (uint32_t)type < BT_GGUF_VALUE_COUNT ? names[type] : "unknown";
}

const char *bt_gguf_show(bt_gguf_string text, char to[BT_GGUF_SHOWN_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (n + sizeof "\\xFF..." > BT_GGUF_SHOWN_MAX) {
            snprintf(to + n, BT_GGUF_SHOWN_MAX - n, "...");
            return to;
        }
        if (c < 0x20 || c >= 0x7f || c == '\\') {
            n += (size_t)snprintf(to + n, BT_GGUF_SHOWN_MAX - n, "\\x%02X", c);
        } else {
            to[n++] = (char)c;
        }
    }
    to[n] = '\0';
    return to;
}

bt_status bt_gguf_cut_short(const bt_gguf *file, const bt_reader *r, const char *what,
                            bt_error *err)
{
    return bt_fail(err, BT_E_BADFILE, "'%s': the file ends inside %s at byte %zu; it is damaged or "
                   "not fully copied", file->name, what, r->at);
}

bt_status bt_gguf_name_read(const bt_gguf *file, bt_reader *r, const char *what, uint32_t max,
                            bt_gguf_string *ret, bt_error *err)
{
    const size_t at = r->at;
    const uint64_t size = bt_reader_u64(r);
    if (r->failed) {
        return bt_gguf_cut_short(file, r, what, err);
    }
    if (size == 0 || size > max) {
        return bt_fail(err, BT_E_BADFILE, "'%s': %s at byte %zu has %" PRIu64 " bytes; it must "
                       "have 1 to %u", file->name, what, at, size, max);
    }
    const char *data = (const char *)bt_reader_take(r, (size_t)size);
    if (!data) {
        return bt_gguf_cut_short(file, r, what, err);
    }
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)data[i];
        if (c < 0x20 || c == 0x7f) {
            return bt_fail(err, BT_E_BADFILE, "'%s': %s at byte %zu has a control character (%u)",
                           file->name, what, at, c);
        }
    }
    *ret = (bt_gguf_string){ .data = data, .size = (size_t)size };
    return BT_OK;
}
