/* cpu/pack.c - from the file's rows to strips; pack.h draws the result.
 *
 * Each block of 32 codes is first spread into 32 bytes, the same for all types, and then folded
 * into the strip's form with 32-bit words, four inputs at a time.
 */
#include "cpu/pack.h"

#include <string.h>

#include "base/check.h"
#include "quant/blocks.h"

/* The values of quant/blocks.h, moved up to be unsigned. */
static const uint8_t IQ4_TABLE[16] = {
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
};
static const uint8_t E2M1_TABLE[16] = {
    12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,
};

enum { HEAD = 64, BLOCKS = BT_BLOCK_LARGE / BT_STRIP_BLOCK };

#define SMALL(codes, scales, zero, bytes, table) { codes, scales, zero, bytes, 0, 0, table }
/* n_int: vectors of 16 small integers per block. */
#define LARGE(codes, scales, zero, bytes, n_int, table)                                        \
    { codes, scales, zero, bytes, HEAD + BLOCKS * (16 * (n_int) + (bytes)),                     \
      HEAD + BLOCKS * 16 * (n_int), table }

static const bt_pack_kind KINDS[BT_TYPE_ID_MAX] = {
    [BT_TYPE_F32] = SMALL(BT_CODES_PLAIN, 0, 0, 64, NULL),
    [BT_TYPE_F16] = SMALL(BT_CODES_PLAIN, 0, 0, 32, NULL),
    [BT_TYPE_BF16] = SMALL(BT_CODES_PLAIN, 0, 0, 32, NULL),
    [BT_TYPE_Q4_0] = SMALL(BT_CODES_4, BT_SCALES_F16, 8, 256, NULL),
    [BT_TYPE_Q4_1] = SMALL(BT_CODES_4, BT_SCALES_F16_MIN, 0, 256, NULL),
    [BT_TYPE_Q5_0] = SMALL(BT_CODES_5, BT_SCALES_F16, 16, 320, NULL),
    [BT_TYPE_Q5_1] = SMALL(BT_CODES_5, BT_SCALES_F16_MIN, 0, 320, NULL),
    [BT_TYPE_Q8_0] = SMALL(BT_CODES_8, BT_SCALES_F16, 128, 512, NULL),
    [BT_TYPE_IQ4_NL] = SMALL(BT_CODES_TABLE, BT_SCALES_F16, 128, 256, IQ4_TABLE),
    [BT_TYPE_MXFP4] = SMALL(BT_CODES_TABLE, BT_SCALES_E8M0, 12, 256, E2M1_TABLE),
    [BT_TYPE_Q2_K] = LARGE(BT_CODES_2, BT_SCALES_U8_16_MIN, 0, 128, 4, NULL),
    [BT_TYPE_Q3_K] = LARGE(BT_CODES_3, BT_SCALES_I8_16, 4, 192, 2, NULL),
    [BT_TYPE_Q4_K] = LARGE(BT_CODES_4, BT_SCALES_U8_32_MIN, 0, 256, 2, NULL),
    [BT_TYPE_Q5_K] = LARGE(BT_CODES_5, BT_SCALES_U8_32_MIN, 0, 320, 2, NULL),
    [BT_TYPE_Q6_K] = LARGE(BT_CODES_6, BT_SCALES_I8_16, 32, 384, 2, NULL),
    [BT_TYPE_IQ4_XS] = LARGE(BT_CODES_TABLE, BT_SCALES_I8_32, 128, 256, 1, IQ4_TABLE),
};

const bt_pack_kind *bt_cpu_pack_kind_of(bt_type type)
{
    return (unsigned)type < BT_TYPE_ID_MAX && KINDS[type].block_bytes ? &KINDS[type] : NULL;
}

static size_t padded(size_t bytes)
{
    return (bytes + BT_STRIP_VECTOR - 1) / BT_STRIP_VECTOR * BT_STRIP_VECTOR;
}

bt_pack_strip bt_cpu_pack_strip_of(const bt_pack_kind *kind, uint32_t n_in)
{
    const size_t  n_blocks = n_in / BT_STRIP_BLOCK;
    bt_pack_strip at = { 0 };

    if (kind->codes == BT_CODES_PLAIN) {
        at.size = padded((size_t)kind->block_bytes * n_in);
    } else if (kind->record_bytes) {
        at.size = n_blocks / BLOCKS * kind->record_bytes;
    } else {
        const size_t scale_bytes = kind->scales == BT_SCALES_E8M0 ? 1 : 2;
        const size_t area = padded(n_blocks * BT_STRIP * scale_bytes);
        at.min_at = area;
        at.codes_at = kind->scales == BT_SCALES_F16_MIN ? 2 * area : area;
        at.size = at.codes_at + n_blocks * kind->block_bytes;
    }
    return at;
}

/* ---- One block's codes, spread into bytes --------------------------------------------------- */

static void spread_nibbles(const uint8_t from[16], uint8_t codes[32])
{
    for (int j = 0; j < 16; j++) {
        codes[j] = from[j] & 15u;
        codes[j + 16] = from[j] >> 4;
    }
}

static void spread_fifths(uint32_t bits, uint8_t codes[32])
{
    for (int i = 0; i < 32; i++) {
        codes[i] = (uint8_t)(codes[i] | (bits >> i & 1u) << 4);
    }
}

/* Sub-block j of a 256-block whose 32-byte rows hold two sub-blocks as low and high halves. */
static void spread_shared_nibbles(const uint8_t *rows, unsigned j, uint8_t codes[32])
{
    for (int l = 0; l < 32; l++) {
        codes[l] = rows[32 * (j / 2) + (unsigned)l] >> (4 * (j % 2)) & 15u;
    }
}

static void spread_q2_k(const uint8_t *block, unsigned j, uint8_t codes[32])
{
    for (int l = 0; l < 32; l++) {
        codes[l] = block[16 + 32 * (j / 4) + (unsigned)l] >> (2 * (j % 4)) & 3u;
    }
}

static void spread_q3_k(const uint8_t *block, unsigned j, uint8_t codes[32])
{
    for (int l = 0; l < 32; l++) {
        const unsigned low = block[32 + 32 * (j / 4) + (unsigned)l] >> (2 * (j % 4)) & 3u;
        codes[l] = (uint8_t)(low | (block[l] >> j & 1u) << 2);
    }
}

static void spread_q6_k(const uint8_t *block, unsigned j, uint8_t codes[32])
{
    const unsigned half = j / 4, row = j % 4;

    for (unsigned l = 0; l < 32; l++) {
        const unsigned low = block[64 * half + 32 * (row % 2) + l] >> (4 * (row / 2)) & 15u;
        const unsigned high = block[128 + 32 * half + l] >> (2 * row) & 3u;
        codes[l] = (uint8_t)(low | high << 4);
    }
}

/* Codes of sub-block j (0 for small types) of `block`. */
static void spread(bt_type type, const uint8_t *block, unsigned j, uint8_t codes[32])
{
    switch (type) {
    case BT_TYPE_Q4_0:
    case BT_TYPE_IQ4_NL:
        spread_nibbles(block + 2, codes);
        break;
    case BT_TYPE_Q4_1:
        spread_nibbles(block + 4, codes);
        break;
    case BT_TYPE_MXFP4:
        spread_nibbles(block + 1, codes);
        break;
    case BT_TYPE_IQ4_XS:
        spread_nibbles(block + 8 + 16 * j, codes);
        break;
    case BT_TYPE_Q5_0:
        spread_nibbles(block + 6, codes);
        spread_fifths(bt_get_le32(block + 2), codes);
        break;
    case BT_TYPE_Q5_1:
        spread_nibbles(block + 8, codes);
        spread_fifths(bt_get_le32(block + 4), codes);
        break;
    case BT_TYPE_Q8_0:
        for (int i = 0; i < 32; i++) {
            codes[i] = block[2 + i] ^ 0x80u;
        }
        break;
    case BT_TYPE_Q2_K:
        spread_q2_k(block, j, codes);
        break;
    case BT_TYPE_Q3_K:
        spread_q3_k(block, j, codes);
        break;
    case BT_TYPE_Q4_K:
        spread_shared_nibbles(block + 16, j, codes);
        break;
    case BT_TYPE_Q5_K:
        spread_shared_nibbles(block + 48, j, codes);
        for (int l = 0; l < 32; l++) {
            codes[l] = (uint8_t)(codes[l] | (block[16 + l] >> j & 1u) << 4);
        }
        break;
    default:
        spread_q6_k(block, j, codes);
        break;
    }
}

/* ---- Folding into the strip ----------------------------------------------------------------- */

static uint32_t word_of(const uint8_t codes[32], unsigned step)
{
    return bt_get_le32(codes + 4 * step);
}

/* `to`: this lane's first word of the block; vector i is at to + 64 i. */
static void put_vector(uint8_t *to, unsigned i, uint32_t word)
{
    bt_put_le32(to + BT_STRIP_VECTOR * i, word);
}

static void fold_nibbles(const uint8_t codes[32], uint8_t *to)
{
    for (unsigned s = 0; s < 4; s++) {
        put_vector(to, s, (word_of(codes, s) & 0x0f0f0f0fu)
                              | (word_of(codes, s + 4) & 0x0f0f0f0fu) << 4);
    }
}

/* One bit of each code (`shift` places up), eight steps to a byte. */
static uint32_t single_bits(const uint8_t codes[32], unsigned shift)
{
    uint32_t word = 0;

    for (unsigned s = 0; s < BT_STRIP_STEPS; s++) {
        word |= (word_of(codes, s) >> shift & 0x01010101u) << s;
    }
    return word;
}

/* Two bits of each code, steps 4 h .. 4 h + 3 to a byte. */
static uint32_t double_bits(const uint8_t codes[32], unsigned shift, unsigned h)
{
    uint32_t word = 0;

    for (unsigned t = 0; t < 4; t++) {
        word |= (word_of(codes, 4 * h + t) >> shift & 0x03030303u) << (2 * t);
    }
    return word;
}

static void fold(bt_pack_codes kind, const uint8_t codes[32], uint8_t *to)
{
    switch (kind) {
    case BT_CODES_2:
    case BT_CODES_3:
        put_vector(to, 0, double_bits(codes, 0, 0));
        put_vector(to, 1, double_bits(codes, 0, 1));
        if (kind == BT_CODES_3) {
            put_vector(to, 2, single_bits(codes, 2));
        }
        break;
    case BT_CODES_8:
        for (unsigned s = 0; s < BT_STRIP_STEPS; s++) {
            put_vector(to, s, word_of(codes, s));
        }
        break;
    default:
        fold_nibbles(codes, to);
        if (kind == BT_CODES_5) {
            put_vector(to, 4, single_bits(codes, 4));
        } else if (kind == BT_CODES_6) {
            put_vector(to, 4, double_bits(codes, 4, 0));
            put_vector(to, 5, double_bits(codes, 4, 1));
        }
        break;
    }
}

/* ---- Scales --------------------------------------------------------------------------------- */

static void pack_small_scale(bt_type type, const uint8_t *block, unsigned lane, size_t b,
                             const bt_pack_strip *at, uint8_t *strip)
{
    const size_t index = b * BT_STRIP + lane;

    if (type == BT_TYPE_MXFP4) {
        strip[index] = block[0];
        return;
    }
    memcpy(strip + 2 * index, block, 2);
    if (type == BT_TYPE_Q4_1 || type == BT_TYPE_Q5_1) {
        memcpy(strip + at->min_at + 2 * index, block + 2, 2);
    }
}

/* `min` is NULL for types without minimum. */
static void pack_record_f16(const uint8_t *scale, const uint8_t *min, unsigned lane,
                            uint8_t *record)
{
    memcpy(record + 2 * lane, scale, 2);
    if (min) {
        memcpy(record + 32 + 2 * lane, min, 2);
    }
}

static void pack_record_scales(bt_type type, const uint8_t *block, unsigned lane, uint8_t *record)
{
    uint8_t *ints = record + HEAD + lane;       /* integer i of this lane at ints[16 * i] */

    switch (type) {
    case BT_TYPE_Q2_K:
        pack_record_f16(block + 80, block + 82, lane, record);
        for (unsigned g = 0; g < 16; g++) {
            ints[16 * g] = block[g] & 15u;
            ints[16 * (16 + g)] = block[g] >> 4;
        }
        break;
    case BT_TYPE_Q3_K:
        pack_record_f16(block + 108, NULL, lane, record);
        for (unsigned g = 0; g < 16; g++) {
            ints[16 * g] = (uint8_t)bt_quant_block_q3_scale(block + 96, g);
        }
        break;
    case BT_TYPE_Q4_K:
    case BT_TYPE_Q5_K:
        pack_record_f16(block, block + 2, lane, record);
        for (unsigned j = 0; j < 8; j++) {
            bt_quant_block_scale_min(block + 4, j, &ints[16 * j], &ints[16 * (8 + j)]);
        }
        break;
    case BT_TYPE_IQ4_XS:
        pack_record_f16(block, NULL, lane, record);
        for (unsigned j = 0; j < 8; j++) {
            ints[16 * j] =
                    (uint8_t)bt_quant_block_iq4_xs_scale(bt_get_le16(block + 2), block + 4, j);
        }
        break;
    default:
        pack_record_f16(block + 208, NULL, lane, record);
        for (unsigned g = 0; g < 16; g++) {
            ints[16 * g] = block[192 + g];
        }
        break;
    }
}

/* ---- Strips --------------------------------------------------------------------------------- */

static void pack_plain_lane(uint32_t value_bytes, const uint8_t *row, uint32_t n_in, unsigned lane,
                            uint8_t *strip)
{
    for (size_t i = 0; i < n_in; i++) {
        memcpy(strip + (i * BT_STRIP + lane) * value_bytes, row + i * value_bytes, value_bytes);
    }
}

static void pack_small_lane(bt_type type, const bt_pack_kind *kind, const uint8_t *row,
                            uint32_t n_in, unsigned lane, uint8_t *strip)
{
    const uint32_t      block_bytes = bt_quant_type_find((uint32_t)type)->block_bytes;
    const bt_pack_strip at = bt_cpu_pack_strip_of(kind, n_in);
    uint8_t             codes[32];

    for (size_t b = 0; b < n_in / BT_STRIP_BLOCK; b++) {
        const uint8_t *block = row + b * block_bytes;
        pack_small_scale(type, block, lane, b, &at, strip);
        spread(type, block, 0, codes);
        fold(kind->codes, codes, strip + at.codes_at + b * kind->block_bytes + 4 * lane);
    }
}

static void pack_large_lane(bt_type type, const bt_pack_kind *kind, const uint8_t *row,
                            uint32_t n_in, unsigned lane, uint8_t *strip)
{
    const uint32_t block_bytes = bt_quant_type_find((uint32_t)type)->block_bytes;
    uint8_t        codes[32];

    for (size_t i = 0; i < n_in / BT_BLOCK_LARGE; i++) {
        const uint8_t *block = row + i * block_bytes;
        uint8_t       *record = strip + i * kind->record_bytes;
        pack_record_scales(type, block, lane, record);
        for (unsigned j = 0; j < BLOCKS; j++) {
            spread(type, block, j, codes);
            fold(kind->codes, codes, record + kind->codes_at + j * kind->block_bytes + 4 * lane);
        }
    }
}

size_t bt_cpu_pack_bytes(bt_type type, uint32_t n_out, uint32_t n_in)
{
    const bt_pack_kind *kind = bt_cpu_pack_kind_of(type);
    const size_t        strips = ((size_t)n_out + BT_STRIP - 1) / BT_STRIP;

    return kind ? strips * bt_cpu_pack_strip_of(kind, n_in).size : 0;
}

void bt_cpu_pack_rows(bt_type type, uint32_t n_out, uint32_t n_in, const void *rows, void *to,
                      uint32_t out_first, uint32_t out_last)
{
    const bt_pack_kind *kind = bt_cpu_pack_kind_of(type);
    uint64_t            row_bytes = 0;

    BT_ASSERT(kind);
    BT_ASSERT(out_first % BT_STRIP == 0 && out_last <= n_out);
    const bool whole =
            bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), n_in, &row_bytes);
    BT_ASSERT(whole);

    const size_t strip_size = bt_cpu_pack_strip_of(kind, n_in).size;
    for (uint32_t o = out_first; o < out_last; o++) {
        uint8_t       *strip = (uint8_t *)to + o / BT_STRIP * strip_size;
        const uint8_t *row = (const uint8_t *)rows + o * row_bytes;
        const unsigned lane = o % BT_STRIP;
        if (lane == 0 && (o + BT_STRIP > n_out || kind->record_bytes)) {
            memset(strip, 0, strip_size);      /* padding lanes and unused header bytes */
        }
        if (kind->codes == BT_CODES_PLAIN) {
            pack_plain_lane(kind->block_bytes / BT_STRIP, row, n_in, lane, strip);
        } else if (kind->record_bytes) {
            pack_large_lane(type, kind, row, n_in, lane, strip);
        } else {
            pack_small_lane(type, kind, row, n_in, lane, strip);
        }
    }
}

uint32_t bt_cpu_pack_layout_of(bt_type type, bool packed)
{
    (void)type;
    return packed ? BT_PACK_LAYOUT_STRIPS : BT_PACK_LAYOUT_FILE;
}
