/* quant/types.c - the table of types, and the rows of values that the file format stores. */
#include "quant/types.h"

#include <string.h>

#include "base/memory.h"
#include "quant/blocks.h"

typedef struct {
    bt_type_info     info;
    bt_block_decode *decode;      /* of one block; NULL for plain numbers and unread types */
    bt_block_encode *encode;
} type_entry;

#define PLAIN(name, id, bytes, reads) \
    [id] = { { name, (bt_type)(id), 1, bytes, reads, reads }, NULL, NULL }
#define BLOCKS(name, id, elems, bytes, decode, encode) \
    [id] = { { name, (bt_type)(id), elems, bytes, true, true }, decode, encode }
#define READ_ONLY(name, id, elems, bytes, decode) \
    [id] = { { name, (bt_type)(id), elems, bytes, true, false }, decode, NULL }
#define NAMED(name, id, elems, bytes) \
    [id] = { { name, (bt_type)(id), elems, bytes, false, false }, NULL, NULL }

static const type_entry TYPES[BT_TYPE_ID_MAX] = {
    PLAIN("F32", BT_TYPE_F32, 4, true),
    PLAIN("F16", BT_TYPE_F16, 2, true),
    PLAIN("BF16", BT_TYPE_BF16, 2, true),
    PLAIN("I8", BT_TYPE_I8, 1, false),
    PLAIN("I16", BT_TYPE_I16, 2, false),
    PLAIN("I32", BT_TYPE_I32, 4, false),
    PLAIN("I64", BT_TYPE_I64, 8, false),
    PLAIN("F64", BT_TYPE_F64, 8, false),
    BLOCKS("Q4_0", BT_TYPE_Q4_0, 32, 18, bt_quant_decode_q4_0, bt_quant_encode_q4_0),
    BLOCKS("Q4_1", BT_TYPE_Q4_1, 32, 20, bt_quant_decode_q4_1, bt_quant_encode_q4_1),
    BLOCKS("Q5_0", BT_TYPE_Q5_0, 32, 22, bt_quant_decode_q5_0, bt_quant_encode_q5_0),
    BLOCKS("Q5_1", BT_TYPE_Q5_1, 32, 24, bt_quant_decode_q5_1, bt_quant_encode_q5_1),
    BLOCKS("Q8_0", BT_TYPE_Q8_0, 32, 34, bt_quant_decode_q8_0, bt_quant_encode_q8_0),
    READ_ONLY("Q8_1", BT_TYPE_Q8_1, 32, 36, bt_quant_decode_q8_1),
    BLOCKS("Q2_K", BT_TYPE_Q2_K, 256, 84, bt_quant_decode_q2_k, bt_quant_encode_q2_k),
    BLOCKS("Q3_K", BT_TYPE_Q3_K, 256, 110, bt_quant_decode_q3_k, bt_quant_encode_q3_k),
    BLOCKS("Q4_K", BT_TYPE_Q4_K, 256, 144, bt_quant_decode_q4_k, bt_quant_encode_q4_k),
    BLOCKS("Q5_K", BT_TYPE_Q5_K, 256, 176, bt_quant_decode_q5_k, bt_quant_encode_q5_k),
    BLOCKS("Q6_K", BT_TYPE_Q6_K, 256, 210, bt_quant_decode_q6_k, bt_quant_encode_q6_k),
    READ_ONLY("Q8_K", BT_TYPE_Q8_K, 256, 292, bt_quant_decode_q8_k),
    BLOCKS("IQ4_NL", BT_TYPE_IQ4_NL, 32, 18, bt_quant_decode_iq4_nl, bt_quant_encode_iq4_nl),
    READ_ONLY("IQ4_XS", BT_TYPE_IQ4_XS, 256, 136, bt_quant_decode_iq4_xs),
    BLOCKS("MXFP4", BT_TYPE_MXFP4, 32, 17, bt_quant_decode_mxfp4, bt_quant_encode_mxfp4),
    NAMED("IQ2_XXS", 16, 256, 66),
    NAMED("IQ2_XS", 17, 256, 74),
    NAMED("IQ3_XXS", 18, 256, 98),
    NAMED("IQ1_S", 19, 256, 50),
    NAMED("IQ3_S", 21, 256, 110),
    NAMED("IQ2_S", 22, 256, 82),
    NAMED("IQ1_M", 29, 256, 56),
    NAMED("TQ1_0", 34, 256, 54),
    NAMED("TQ2_0", 35, 256, 66),
    NAMED("NVFP4", 40, 64, 36),
    NAMED("Q1_0", 41, 128, 18),
    NAMED("Q2_0", 42, 64, 18),
};

const bt_type_info *bt_quant_type_find(uint32_t id)
{
    return id < BT_TYPE_ID_MAX && TYPES[id].info.name ? &TYPES[id].info : NULL;
}

static char upper(char c)
{
    return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
}

static bool equal_any_case(const char *a, const char *b)
{
    while (*a && upper(*a) == upper(*b)) {
        a++;
        b++;
    }
    return upper(*a) == upper(*b);
}

const bt_type_info *bt_quant_type_find_name(const char *name)
{
    for (uint32_t id = 0; name && id < BT_TYPE_ID_MAX; id++) {
        const bt_type_info *type = bt_quant_type_find(id);
        if (type && equal_any_case(type->name, name)) {
            return type;
        }
    }
    return NULL;
}

bool bt_quant_type_row_bytes(const bt_type_info *type, uint64_t n, uint64_t *ret_bytes)
{
    if (!type || n % type->block_elems != 0) {
        return false;
    }
    const uint64_t blocks = n / type->block_elems;
    if (blocks > UINT64_MAX / type->block_bytes) {
        return false;
    }
    *ret_bytes = blocks * type->block_bytes;
    return true;
}

bt_status bt_quant_type_decode(bt_type type, const void *from, float *to, size_t n)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);
    const uint8_t      *bytes = from;

    if (!info || !info->can_decode) {
        return BT_E_UNSUPPORTED;
    }
    if (n % info->block_elems != 0) {
        return BT_E_BADINPUT;
    }
    switch (type) {
    case BT_TYPE_F32:
        memcpy(to, from, n * sizeof(float));
        return BT_OK;
    case BT_TYPE_F16:
        for (size_t i = 0; i < n; i++) {
            to[i] = bt_quant_block_f16(bytes + 2 * i);
        }
        return BT_OK;
    case BT_TYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            to[i] = bt_quant_bf16_to_f32(bt_get_le16(bytes + 2 * i));
        }
        return BT_OK;
    default:
        for (size_t i = 0; i < n; i += info->block_elems, bytes += info->block_bytes) {
            TYPES[type].decode(bytes, to + i);
        }
        return BT_OK;
    }
}

bt_status bt_quant_type_encode(bt_type type, const float *from, void *to, size_t n)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);
    uint8_t            *bytes = to;

    if (!info || !info->can_encode) {
        return BT_E_UNSUPPORTED;
    }
    if (n % info->block_elems != 0) {
        return BT_E_BADINPUT;
    }
    switch (type) {
    case BT_TYPE_F32:
        memcpy(to, from, n * sizeof(float));
        return BT_OK;
    case BT_TYPE_F16:
        for (size_t i = 0; i < n; i++) {
            bt_put_le16(bytes + 2 * i, bt_quant_f32_to_f16(from[i]));
        }
        return BT_OK;
    case BT_TYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            bt_put_le16(bytes + 2 * i, bt_quant_f32_to_bf16(from[i]));
        }
        return BT_OK;
    default:
        for (size_t i = 0; i < n; i += info->block_elems, bytes += info->block_bytes) {
            TYPES[type].encode(from + i, bytes);
        }
        return BT_OK;
    }
}
