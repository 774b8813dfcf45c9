/* quant/types.h - the tensor types of GGUF files, and what their bits mean.
 *
 * Ids are those of the file format. bt_quant_type_decode() is the reference: plain C, one block
 * after the other, exactly the formulas of docs/quants.md; fast kernels are tested against it.
 * Threads: everything here is immutable. Failure: bt_quant_type_find gives NULL for an unknown id.
 */
#ifndef BT_QUANT_TYPES_H
#define BT_QUANT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum {
    BT_TYPE_F32 = 0, BT_TYPE_F16 = 1, BT_TYPE_Q4_0 = 2, BT_TYPE_Q4_1 = 3, BT_TYPE_Q5_0 = 6,
    BT_TYPE_Q5_1 = 7, BT_TYPE_Q8_0 = 8, BT_TYPE_Q8_1 = 9, BT_TYPE_Q2_K = 10, BT_TYPE_Q3_K = 11,
    BT_TYPE_Q4_K = 12, BT_TYPE_Q5_K = 13, BT_TYPE_Q6_K = 14, BT_TYPE_Q8_K = 15,
    BT_TYPE_IQ4_NL = 20, BT_TYPE_IQ4_XS = 23, BT_TYPE_I8 = 24, BT_TYPE_I16 = 25, BT_TYPE_I32 = 26,
    BT_TYPE_I64 = 27, BT_TYPE_F64 = 28, BT_TYPE_BF16 = 30, BT_TYPE_MXFP4 = 39,
    BT_TYPE_ID_MAX = 64 /* ids at or above are unknown */
} bt_type;

typedef struct {
    const char *name;          /* "Q4_K", as people write it */
    bt_type     id;
    uint32_t    block_elems;   /* values in a block */
    uint32_t    block_bytes;
    bool        can_decode;    /* false: known by name only (codebook types): refuse by name */
    bool        can_encode;
} bt_type_info;

/* NULL for retired and unknown ids. Names: any case. */
const bt_type_info *bt_quant_type_find(uint32_t id);
const bt_type_info *bt_quant_type_find_name(const char *name);

/* Bytes of a row of n values; false if n is not a multiple of the block or it overflows. */
bool bt_quant_type_row_bytes(const bt_type_info *type, uint64_t n, uint64_t *ret_bytes);

/* n is a multiple of the block. Exact f32 values of the stored row. */
BT_MUST_CHECK bt_status bt_quant_type_decode(bt_type type, const void *from, float *to, size_t n);
/* Straightforward encoders (no search), for tests, tools and the KV cache. BT_E_UNSUPPORTED for
 * types that have none. */
BT_MUST_CHECK bt_status bt_quant_type_encode(bt_type type, const float *from, void *to, size_t n);

/* One value. Round to nearest even; f16 keeps infinities, NaN and denormals. */
float    bt_quant_f16_to_f32(uint16_t half);
uint16_t bt_quant_f32_to_f16(float value);
float    bt_quant_bf16_to_f32(uint16_t value);
uint16_t bt_quant_f32_to_bf16(float value);

#endif
