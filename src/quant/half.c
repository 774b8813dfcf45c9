/* quant/half.c - f16 and bf16, one value at a time, in integer arithmetic so that no mode of the
 * floating-point unit (flush to zero, rounding) can change a bit. */
#include "base/bytes.h"
#include "quant/types.h"

float bt_quant_f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t       exponent = (half >> 10) & 31u;
    uint32_t       mantissa = half & 0x3ffu;

    if (exponent == 31) {
        return bt_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    }
    if (exponent == 0) {
        if (mantissa == 0) {
            return bt_float_of_bits(sign);
        }
        /* A denormal is mantissa * 2^-24: shift its leading one out, one exponent per place. */
        exponent = 1;
        while ((mantissa & 0x400u) == 0) {
            mantissa <<= 1;
            exponent--;
        }
        mantissa &= 0x3ffu;
    }
    return bt_float_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* value >> shift, rounded to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_rounded(uint32_t value, uint32_t shift)
{
    const uint32_t low = value & ((1u << shift) - 1u);
    const uint32_t tie = 1u << (shift - 1u);
    const uint32_t high = value >> shift;

    return high + (low > tie || (low == tie && (high & 1u)) ? 1u : 0u);
}

uint16_t bt_quant_f32_to_f16(float value)
{
    const uint32_t bits = bt_bits_of_float(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t exponent = magnitude >> 23;

    if (magnitude > 0x7f800000u) {   /* NaN: quiet, its upper payload kept */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (exponent >= 113) {           /* at least 2^-14: normal, or too large */
        const uint32_t rounded = shift_rounded(magnitude - (112u << 23), 13);
        return (uint16_t)(sign | (rounded >= 0x7c00u ? 0x7c00u : rounded));
    }
    if (exponent < 102) {            /* below half of the smallest denormal */
        return (uint16_t)sign;
    }
    /* A carry out of the denormals lands on the smallest normal, as it should. */
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | shift_rounded(mantissa, 126u - exponent));
}

float bt_quant_bf16_to_f32(uint16_t value)
{
    return bt_float_of_bits((uint32_t)value << 16);
}

uint16_t bt_quant_f32_to_bf16(float value)
{
    const uint32_t bits = bt_bits_of_float(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
