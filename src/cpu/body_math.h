/* cpu/body_math.h - exp and tanh of vectors, for any width; included several times. No libm: the
 * same bits on every machine of an ISA.
 */
#ifndef BT_CPU_BODY_MATH_H
#define BT_CPU_BODY_MATH_H

#if defined(__clang__)
#define BT_UNROLL _Pragma("unroll")
#else
#define BT_UNROLL _Pragma("GCC unroll 16")
#endif

/* e^x within 2^-22 relatively where the result is normal; 0 below -104, infinite above 88.73.
 *
 * x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q of degree 4 fitted for the smallest
 * relative error, 3.1e-9. */
BT_INLINE vf vf_exp(vf x)
{
    x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x));
    const vf n = vf_round(vf_mul(x, vf_set(1.44269502f)));
    const vf near = vf_fnma(n, vf_set(0.693359375f), x);             /* exact: 9 bits of ln 2 */
    const vf r = vf_fnma(n, vf_set(-2.12194442e-4f), near);
    vf q = vf_set(1.38145988e-3f);

    q = vf_fma(q, r, vf_set(8.36871658e-3f));
    q = vf_fma(q, r, vf_set(4.16683890e-2f));
    q = vf_fma(q, r, vf_set(1.66665211e-1f));
    q = vf_fma(q, r, vf_set(4.99999940e-1f));
    const vf p = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set(1.0f));
    return vf_times_power_of_two(p, n);
}

/* tanh x within 2^-21 relatively: near 0 an odd polynomial, since 1 - 2 / (1 + e^2x) cancels. */
BT_INLINE vf vf_tanh(vf x)
{
    const vf square = vf_mul(x, x);
    vf p = vf_set(2.14753998e-3f);

    p = vf_fma(p, square, vf_set(-8.18267744e-3f));
    p = vf_fma(p, square, vf_set(2.17029694e-2f));
    p = vf_fma(p, square, vf_set(-5.39472029e-2f));
    p = vf_fma(p, square, vf_set(1.33332103e-1f));
    p = vf_fma(p, square, vf_set(-3.33333313e-1f));
    const vf near = vf_fma(vf_mul(x, square), p, x);
    const vf grown = vf_exp(vf_add(x, x));
    const vf far = vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), vf_add(grown, vf_set(1.0f))));
    return vf_select_abs_below(x, vf_set(0.625f), near, far);
}

#endif
