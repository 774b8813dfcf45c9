/* cpu/dot_maddubs.h - byte dot products where the processor has none; included several times.
 *
 * vpmaddubsw adds two products of an unsigned and a signed byte into 16 bits, with saturation. What
 * fits decides how much may be added before widening, per part of 16 inputs:
 *     codes up to 31   four pairs: 4 * 2 * 31 * 127 = 31496
 *     codes up to 63   two pairs:  2 * 2 * 63 * 127 = 32004
 *     codes up to 255  halves of a byte apart, each as the first case
 * So no sum ever saturates, and the result is the exact integer, as with vpdpbusd. Activation codes
 * never are -128 (cpu/acts.h).
 */
#ifndef BT_CPU_DOT_MADDUBS_H
#define BT_CPU_DOT_MADDUBS_H

BT_INLINE vi dot_narrow(vi w0, vi w1, vi w2, vi w3, const int8_t *q)
{
    const vi near = vi_add16(vi_pairs16(w0, vi_repeat4(q)), vi_pairs16(w1, vi_repeat4(q + 4)));
    const vi far = vi_add16(vi_pairs16(w2, vi_repeat4(q + 8)), vi_pairs16(w3, vi_repeat4(q + 12)));

    return vi_widen16(vi_add16(near, far));
}

/* code_max is a constant. */
BT_INLINE vi dot_part(const vi w[4], const int8_t *q, int code_max)
{
    if (code_max <= 31) {
        return dot_narrow(w[0], w[1], w[2], w[3], q);
    }
    if (code_max <= 63) {
        const vi near = vi_add16(vi_pairs16(w[0], vi_repeat4(q)),
                                 vi_pairs16(w[1], vi_repeat4(q + 4)));
        const vi far = vi_add16(vi_pairs16(w[2], vi_repeat4(q + 8)),
                                vi_pairs16(w[3], vi_repeat4(q + 12)));
        return vi_add32(vi_widen16(near), vi_widen16(far));
    }
    const vi mask = vi_set8(15);
    const vi low = dot_narrow(vi_and(w[0], mask), vi_and(w[1], mask), vi_and(w[2], mask),
                              vi_and(w[3], mask), q);
    const vi high = dot_narrow(vi_and(vi_shift_right16(w[0], 4), mask),
                               vi_and(vi_shift_right16(w[1], 4), mask),
                               vi_and(vi_shift_right16(w[2], 4), mask),
                               vi_and(vi_shift_right16(w[3], 4), mask), q);
    return vi_add32(low, vi_shift_left32(high, 4));
}

#endif
