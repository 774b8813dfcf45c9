/* cpu/pack.h - weights repacked for vectors: strips of 16 outputs. Private to cpu/ and its tests.
 *
 * A strip holds 16 consecutive outputs, all inputs. Every vector has one lane per output; a code
 * vector holds, per lane, the codes of four consecutive inputs as bytes (what dpbusd wants). A
 * block is 32 inputs: eight code vectors, "step" s for inputs 4s .. 4s + 3. Codes are unsigned; a
 * weight is
 *
 *     w = scale * (code - zero) - minimum
 *
 * How codes of fewer than 8 bits share bytes (V[i] is the i-th 64-byte vector of the block):
 *   4 bits   V[s] low halves: step s; high halves: step 4 + s          (s = 0 .. 3)
 *   5 bits   as 4 bits; bit s of each byte of V[4]: fifth bit of step s
 *   6 bits   as 4 bits; bits 2t, 2t+1 of V[4 + s/4]: upper bits of step s, t = s % 4
 *   2 bits   bits 2t, 2t+1 of V[s/4]: step s, t = s % 4
 *   3 bits   as 2 bits; bit s of each byte of V[2]: third bit of step s
 *   8 bits   V[s]: step s
 *   table    4 bits, each naming one of 16 unsigned values
 *
 * Where the scales are:
 *   small types    all scales of the strip first: per block 16 f16 (or, for MXFP4, 16 exponent
 *                  bytes), then, if the type has one, the same for its minimum; each area padded
 *                  to 64 bytes; then the codes of all blocks.
 *   large types    records of 8 blocks: 16 f16 scales, 16 f16 minimum scales (or padding), then the
 *                  small integers of the 8 blocks, then their codes.
 * Plain numbers (F32, F16, BF16): per input 16 values.
 *
 * Outputs beyond n_out are filled with zero bytes: weights of value 0, or unused.
 */
#ifndef BT_CPU_PACK_H
#define BT_CPU_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/types.h"

enum { BT_STRIP = 16, BT_STRIP_VECTOR = 64, BT_STRIP_BLOCK = 32, BT_STRIP_STEPS = 8 };

typedef enum {
    BT_CODES_2, BT_CODES_3, BT_CODES_4, BT_CODES_5, BT_CODES_6, BT_CODES_8, BT_CODES_TABLE,
    BT_CODES_PLAIN,             /* not codes: numbers */
} bt_pack_codes;

typedef enum {
    BT_SCALES_F16,              /* f16 per 32 */
    BT_SCALES_F16_MIN,          /* f16 scale and f16 addend per 32 */
    BT_SCALES_E8M0,             /* exponent byte per 32 */
    BT_SCALES_I8_32,            /* f16 per 256, i8 per 32 */
    BT_SCALES_I8_16,            /* f16 per 256, i8 per 16 */
    BT_SCALES_U8_32_MIN,        /* f16 scale and minimum per 256, u8 of both per 32 */
    BT_SCALES_U8_16_MIN,        /* the same per 16 */
} bt_pack_scales;

enum { BT_PACK_LAYOUT_FILE = 0, BT_PACK_LAYOUT_STRIPS = 1 };

typedef struct {
    bt_pack_codes  codes;
    bt_pack_scales scales;
    int            zero;
    uint32_t       block_bytes;      /* code bytes of 16 outputs x 32 inputs; or of 1 plain input */
    uint32_t       record_bytes;     /* large types: 256 inputs, all in; else 0 */
    uint32_t       codes_at;         /* large types: where codes start inside a record */
    const uint8_t *table;            /* BT_CODES_TABLE: 16 values */
} bt_pack_kind;

/* NULL if the type has no strips. */
const bt_pack_kind *bt_cpu_pack_kind_of(bt_type type);

/* Where the parts of a small type's strip start, and its size. */
typedef struct {
    size_t scale_at, min_at, codes_at, size;
} bt_pack_strip;
bt_pack_strip bt_cpu_pack_strip_of(const bt_pack_kind *kind, uint32_t n_in);

/* The slots of bt_cpu_kernels for all ISAs that use strips. */
size_t   bt_cpu_pack_bytes(bt_type type, uint32_t n_out, uint32_t n_in);
void bt_cpu_pack_rows(bt_type type, uint32_t n_out, uint32_t n_in, const void *rows, void *to,
                      uint32_t out_first, uint32_t out_last);
uint32_t bt_cpu_pack_layout_of(bt_type type, bool packed);

#endif
