/* cpu/body_unpack.h - codes and scales of a strip's block, any width; included several times.
 * cpu/pack.h draws what is read here.
 */
#ifndef BT_CPU_BODY_UNPACK_H
#define BT_CPU_BODY_UNPACK_H

#include "cpu/body_math.h"
#include "cpu/pack.h"

/* What a block's codes are multiplied with, one lane per output. */
typedef struct {
    vf scale[2], addend[2];
} block_scales;

/* v: half-bytes shifted down, upper bits of the byte cleared */
#define UPPER_HALF(v) vi_and(vi_shift_right16(v, 4), vi_set8(15))

BT_INLINE void unpack_nibbles(const uint8_t *at, vi w[8])
{
    BT_UNROLL
    for (int s = 0; s < 4; s++) {
        const vi v = vi_load(at + BT_STRIP_VECTOR * s);
        w[s] = vi_and(v, vi_set8(15));
        w[s + 4] = UPPER_HALF(v);
    }
}

/* Or-s bit `s` of v, moved to bit `to`, into each byte of w. Both constants. */
#define OR_BIT(w, v, s, to)                                                                       \
    vi_or(w, vi_and((s) > (to) ? vi_shift_right16(v, (s) > (to) ? (s) - (to) : 0)                 \
                               : vi_shift_left16(v, (s) > (to) ? 0 : (to) - (s)),                 \
                    vi_set8((uint8_t)(1u << (to)))))
/* The same for the two bits from 2 t. */
#define OR_TWO_BITS(w, v, t, to)                                                                  \
    vi_or(w, vi_and(2 * (t) > (to) ? vi_shift_right16(v, 2 * (t) > (to) ? 2 * (t) - (to) : 0)     \
                                   : vi_shift_left16(v, 2 * (t) > (to) ? 0 : (to) - 2 * (t)),     \
                    vi_set8((uint8_t)(3u << (to)))))

BT_INLINE void add_single_bits(vi v, int to, vi w[8])
{
    w[0] = to == 4 ? OR_BIT(w[0], v, 0, 4) : OR_BIT(w[0], v, 0, 2);
    w[1] = to == 4 ? OR_BIT(w[1], v, 1, 4) : OR_BIT(w[1], v, 1, 2);
    w[2] = to == 4 ? OR_BIT(w[2], v, 2, 4) : OR_BIT(w[2], v, 2, 2);
    w[3] = to == 4 ? OR_BIT(w[3], v, 3, 4) : OR_BIT(w[3], v, 3, 2);
    w[4] = to == 4 ? OR_BIT(w[4], v, 4, 4) : OR_BIT(w[4], v, 4, 2);
    w[5] = to == 4 ? OR_BIT(w[5], v, 5, 4) : OR_BIT(w[5], v, 5, 2);
    w[6] = to == 4 ? OR_BIT(w[6], v, 6, 4) : OR_BIT(w[6], v, 6, 2);
    w[7] = to == 4 ? OR_BIT(w[7], v, 7, 4) : OR_BIT(w[7], v, 7, 2);
}

BT_INLINE void add_upper_pairs(vi v, vi w[4])
{
    w[0] = OR_TWO_BITS(w[0], v, 0, 4);
    w[1] = OR_TWO_BITS(w[1], v, 1, 4);
    w[2] = OR_TWO_BITS(w[2], v, 2, 4);
    w[3] = OR_TWO_BITS(w[3], v, 3, 4);
}

BT_INLINE void unpack_pairs(vi v, vi w[4])
{
    w[0] = vi_and(v, vi_set8(3));
    w[1] = vi_and(vi_shift_right16(v, 2), vi_set8(3));
    w[2] = vi_and(vi_shift_right16(v, 4), vi_set8(3));
    w[3] = vi_and(vi_shift_right16(v, 6), vi_set8(3));
}

BT_INLINE void unpack(bt_pack_codes codes, const uint8_t *at, const uint8_t *table, vi w[8])
{
    if (codes == BT_CODES_2 || codes == BT_CODES_3) {
        unpack_pairs(vi_load(at), w);
        unpack_pairs(vi_load(at + BT_STRIP_VECTOR), w + 4);
        if (codes == BT_CODES_3) {
            add_single_bits(vi_load(at + 2 * BT_STRIP_VECTOR), 2, w);
        }
        return;
    }
    if (codes == BT_CODES_8) {
        BT_UNROLL
        for (int s = 0; s < 8; s++) {
            w[s] = vi_load(at + BT_STRIP_VECTOR * s);
        }
        return;
    }
    unpack_nibbles(at, w);
    if (codes == BT_CODES_5) {
        add_single_bits(vi_load(at + 4 * BT_STRIP_VECTOR), 4, w);
    } else if (codes == BT_CODES_6) {
        add_upper_pairs(vi_load(at + 4 * BT_STRIP_VECTOR), w);
        add_upper_pairs(vi_load(at + 5 * BT_STRIP_VECTOR), w + 4);
    } else if (codes == BT_CODES_TABLE) {
        BT_UNROLL
        for (int s = 0; s < 8; s++) {
            w[s] = vi_lookup(table, w[s]);
        }
    }
}

/* Scales of block b for lanes from `lane`; `strip` is the strip's first byte. */
BT_INLINE block_scales small_scales(const bt_pack_strip *at, bt_pack_scales scales, int zero,
                                    const uint8_t *strip, uint32_t b, uint32_t lane)
{
    const size_t index = (size_t)b * BT_STRIP + lane;
    block_scales s = { 0 };

    if (scales == BT_SCALES_E8M0) {
        s.scale[0] = vf_from_e8m0_half(strip + index);
    } else {
        s.scale[0] = vf_from_f16(strip + 2 * index);
    }
    s.addend[0] = scales == BT_SCALES_F16_MIN ? vf_from_f16(strip + at->min_at + 2 * index)
                                              : vf_mul(s.scale[0], vf_set((float)-zero));
    return s;
}

BT_INLINE block_scales record_scales(bt_pack_scales scales, int zero, const uint8_t *record,
                                     uint32_t j, uint32_t lane)
{
    const bool     has_min = scales == BT_SCALES_U8_32_MIN || scales == BT_SCALES_U8_16_MIN;
    const uint32_t n_parts = scales == BT_SCALES_I8_16 || scales == BT_SCALES_U8_16_MIN ? 2 : 1;
    const vf       d = vf_from_f16(record + 2 * lane);
    const uint8_t *ints = record + 64 + 16 * n_parts * j + lane;
    block_scales   s = { 0 };

    BT_UNROLL
    for (uint32_t h = 0; h < n_parts; h++) {
        s.scale[h] = vf_mul(d, has_min ? vf_from_u8(ints + 16 * h) : vf_from_i8(ints + 16 * h));
        if (has_min) {
            const vf d_min = vf_mul(vf_from_f16(record + 32 + 2 * lane), vf_set(-1.0f));
            s.addend[h] = vf_mul(d_min, vf_from_u8(ints + 16 * (8 * n_parts + h)));
        } else {
            s.addend[h] = vf_mul(s.scale[h], vf_set((float)-zero));
        }
    }
    return s;
}

#endif
