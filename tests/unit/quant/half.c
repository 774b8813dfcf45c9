/* f16 and bf16, all of them, against their definition by powers of two. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "quant/types.h"

static void halves_convert_and_round(void **state)
{
    (void)state;
    assert_true(bt_quant_f16_to_f32(0x3c00) == 1.0f);
    assert_true(bt_quant_f16_to_f32(0xc000) == -2.0f);
    assert_int_equal(bt_quant_f32_to_f16(0.1f), 0x2e66);
    assert_true(bt_quant_bf16_to_f32(0x3f80) == 1.0f);
    assert_int_equal(bt_quant_f32_to_bf16(3.14159274f), 0x4049);
}

/* The value of a finite half by the book: (-1)^s 2^(e - 15) (1 + m / 1024), denormals m 2^-24. */
static double value_of_half(uint32_t half)
{
    const int    exponent = (int)(half >> 10 & 31u);
    const double mantissa = half & 1023u;
    const double size = exponent ? ldexp(1.0 + mantissa / 1024.0, exponent - 15)
                                 : ldexp(mantissa, -24);

    return half & 0x8000u ? -size : size;
}

static void every_half_has_its_value_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; half++) {
        const float value = bt_quant_f16_to_f32((uint16_t)half);
        if ((half & 0x7c00u) == 0x7c00u) {
            const bool nan = (half & 0x3ffu) != 0;
            assert_true(nan ? isnan(value) : isinf(value));
            assert_int_equal(signbit(value) != 0, half >> 15);
            if (nan) {     /* made quiet, the payload kept */
                assert_int_equal(bt_quant_f32_to_f16(value), half | 0x200u);
                continue;
            }
        } else {
            assert_true((double)value == value_of_half(half));
            assert_int_equal(signbit(value) != 0, half >> 15);
        }
        assert_int_equal(bt_quant_f32_to_f16(value), half);
    }
}

/* Between two neighbours: the middle goes to the even one, and a hair beside it to the nearer. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7c00u; half++) {
        const double low = value_of_half(half);
        const double high = half == 0x7bffu ? 65536.0 : value_of_half(half + 1);
        const float  middle = (float)((low + high) / 2.0);     /* exact: one bit more than a half */
        const uint32_t even = half & 1u ? half + 1 : half;
        for (uint32_t sign = 0; sign <= 0x8000u; sign += 0x8000u) {
            const float s = sign ? -1.0f : 1.0f;
            assert_int_equal(bt_quant_f32_to_f16(s * middle), even | sign);
            assert_int_equal(bt_quant_f32_to_f16(s * nextafterf(middle, 0.0f)), half | sign);
            assert_int_equal(bt_quant_f32_to_f16(s * nextafterf(middle, INFINITY)),
                             (half + 1) | sign);
        }
    }
    assert_int_equal(bt_quant_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(bt_quant_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(bt_quant_f32_to_f16(0x1p-149f), 0);
    assert_int_equal(bt_quant_f32_to_f16(-0x1p-26f), 0x8000);
}

static void every_bf16_comes_back_and_rounds(void **state)
{
    (void)state;
    for (uint32_t top = 0; top < 65536; top++) {
        const float value = bt_quant_bf16_to_f32((uint16_t)top);
        assert_int_equal(bt_bits_of_float(value), top << 16);
        if ((top & 0x7fffu) > 0x7f80u) {
            assert_int_equal(bt_quant_f32_to_bf16(value), top | 0x40u);
            continue;
        }
        assert_int_equal(bt_quant_f32_to_bf16(value), top);
        if ((top & 0x7fffu) < 0x7f80u) {
            const uint32_t even = top & 1u ? top + 1 : top;
            assert_int_equal(bt_quant_f32_to_bf16(bt_float_of_bits(top << 16 | 0x7fffu)), top);
            assert_int_equal(bt_quant_f32_to_bf16(bt_float_of_bits(top << 16 | 0x8000u)), even);
            assert_int_equal(bt_quant_f32_to_bf16(bt_float_of_bits(top << 16 | 0x8001u)), top + 1);
        }
    }
    /* A NaN whose payload lies in the lower half only must not become an infinity. */
    assert_int_equal(bt_quant_f32_to_bf16(bt_float_of_bits(0x7f800001u)), 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_convert_and_round),
        cmocka_unit_test(every_half_has_its_value_and_comes_back),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(every_bf16_comes_back_and_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
