/* kv/codec_fast.c - see rows_fast.h. */
#include "kv/codec_fast.h"

#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "quant/types.h"

enum { BLOCK = 32, BLOCK_BYTES = 34, HALF_INFINITE = 0x7c00 };

/* Added and taken away again, this rounds |x| < 2^22 to the nearest whole number, ties to even. */
static const float ROUND = 12582912.0f;

/* ---- one value, without branches ---- */

/* The bits of a finite f16 as an f32: shifted into place, then the exponent put right by a
 * multiplication, which is exact for denormals too. */
static inline float widen(uint16_t half)
{
    const float scaled = bt_float_of_bits((uint32_t)(half & 0x7fffu) << 13);
    return bt_float_of_bits(bt_bits_of_float(scaled * 0x1p112f) | (uint32_t)(half & 0x8000u) << 16);
}

/* Rounded to nearest, ties to even. Denormals by the adder: its last place is theirs there. */
static inline uint16_t narrow(float value)
{
    const uint32_t bits = bt_bits_of_float(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t odd = magnitude >> 13 & 1u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    const uint32_t small = bt_bits_of_float(bt_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t large = normal > HALF_INFINITE ? HALF_INFINITE : normal;
    return (uint16_t)((bits >> 16 & 0x8000u) | (magnitude < 113u << 23 ? small : large));
}

/* ---- blocks ---- */

/* Blocks with something that is not finite go the readable way. */
static void encode_slowly(const uint8_t *from, uint8_t *to)
{
    float values[BLOCK];
    const bt_status decoded = bt_quant_type_decode(BT_TYPE_F16, from, values, BLOCK);
    const bt_status encoded = bt_quant_type_encode(BT_TYPE_Q8_0, values, to, BLOCK);
    BT_ASSERT(decoded == BT_OK && encoded == BT_OK);
}

static void decode_slowly(const uint8_t *from, uint8_t *to)
{
    float values[BLOCK];
    const bt_status decoded = bt_quant_type_decode(BT_TYPE_Q8_0, from, values, BLOCK);
    const bt_status encoded = bt_quant_type_encode(BT_TYPE_F16, values, to, BLOCK);
    BT_ASSERT(decoded == BT_OK && encoded == BT_OK);
}

static void encode(const uint8_t *from, uint8_t *to)
{
    uint16_t halves[BLOCK];
    float values[BLOCK];
    int8_t codes[BLOCK];
    uint16_t most = 0;
    for (int i = 0; i < BLOCK; i++) {
        halves[i] = bt_get_le16(from + 2 * i);
        const uint16_t magnitude = halves[i] & 0x7fffu;
        most = magnitude > most ? magnitude : most;
    }
    if (most >= HALF_INFINITE) {
        encode_slowly(from, to);
        return;
    }
    const uint16_t scale = narrow(widen(most) / 127.0f);
    const float d = widen(scale), inverse = d > 0 ? 1.0f / d : 0.0f;
    for (int i = 0; i < BLOCK; i++) {
        values[i] = widen(halves[i]) * inverse;
    }
    for (int i = 0; i < BLOCK; i++) {
        const float low = values[i] < -127.0f ? -127.0f : values[i];
        const float held = low > 127.0f ? 127.0f : low;
        codes[i] = (int8_t)(int32_t)(held + ROUND - ROUND);
    }
    bt_put_le16(to, scale);
    memcpy(to + 2, codes, sizeof codes);
}

static void decode(const uint8_t *from, uint8_t *to)
{
    const uint16_t scale = bt_get_le16(from);
    int8_t codes[BLOCK];
    if ((scale & 0x7fffu) >= HALF_INFINITE) {
        decode_slowly(from, to);
        return;
    }
    const float d = widen(scale);
    memcpy(codes, from + 2, sizeof codes);
    for (int i = 0; i < BLOCK; i++) {
        bt_put_le16(to + 2 * i, narrow(d * (float)codes[i]));
    }
}

void bt_kv_codec_f16_to_q8_0(const uint8_t *from, uint8_t *to, size_t n)
{
    for (; n >= BLOCK; n -= BLOCK) {
        encode(from, to);
        from += 2 * BLOCK;
        to += BLOCK_BYTES;
    }
}

void bt_kv_codec_q8_0_to_f16(const uint8_t *from, uint8_t *to, size_t n)
{
    for (; n >= BLOCK; n -= BLOCK) {
        decode(from, to);
        from += BLOCK_BYTES;
        to += 2 * BLOCK;
    }
}
