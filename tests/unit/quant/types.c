/* The table of types, and decoding and encoding of blocks. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "quant/types.h"
#include "unit/quant/vectors.h"

static void a_row_goes_to_a_type_and_back(void **state)
{
    (void)state;
    float   row[64], back[64];
    uint8_t stored[68];
    for (int i = 0; i < 64; i++) {
        row[i] = (float)(i - 30) / 16.0f;
    }
    const bt_type_info *type = bt_quant_type_find_name("q8_0");
    assert_non_null(type);
    uint64_t bytes = 0;
    assert_true(bt_quant_type_row_bytes(type, 64, &bytes));
    assert_int_equal(bytes, sizeof stored);
    assert_int_equal(bt_quant_type_encode(type->id, row, stored, 64), BT_OK);
    assert_int_equal(bt_quant_type_decode(type->id, stored, back, 64), BT_OK);
    for (int i = 0; i < 64; i++) {
        assert_true(fabsf(back[i] - row[i]) <= 33.0f / 16.0f / 127.0f * 0.51f);
    }
}

/* Ids, block sizes and bytes of the format's table, written down a second time. */
static void every_id_has_its_name_and_size(void **state)
{
    (void)state;
    static const struct {
        uint32_t    id;
        const char *name;
        uint32_t    elems, bytes;
        bool        read;
    } WANT[] = {
        { 0, "F32", 1, 4, true }, { 1, "F16", 1, 2, true }, { 2, "Q4_0", 32, 18, true },
        { 3, "Q4_1", 32, 20, true }, { 6, "Q5_0", 32, 22, true }, { 7, "Q5_1", 32, 24, true },
        { 8, "Q8_0", 32, 34, true }, { 9, "Q8_1", 32, 36, true }, { 10, "Q2_K", 256, 84, true },
        { 11, "Q3_K", 256, 110, true }, { 12, "Q4_K", 256, 144, true },
        { 13, "Q5_K", 256, 176, true }, { 14, "Q6_K", 256, 210, true },
        { 15, "Q8_K", 256, 292, true }, { 16, "IQ2_XXS", 256, 66, false },
        { 17, "IQ2_XS", 256, 74, false }, { 18, "IQ3_XXS", 256, 98, false },
        { 19, "IQ1_S", 256, 50, false }, { 20, "IQ4_NL", 32, 18, true },
        { 21, "IQ3_S", 256, 110, false }, { 22, "IQ2_S", 256, 82, false },
        { 23, "IQ4_XS", 256, 136, true }, { 24, "I8", 1, 1, false }, { 25, "I16", 1, 2, false },
        { 26, "I32", 1, 4, false }, { 27, "I64", 1, 8, false }, { 28, "F64", 1, 8, false },
        { 29, "IQ1_M", 256, 56, false }, { 30, "BF16", 1, 2, true },
        { 34, "TQ1_0", 256, 54, false }, { 35, "TQ2_0", 256, 66, false },
        { 39, "MXFP4", 32, 17, true }, { 40, "NVFP4", 64, 36, false },
        { 41, "Q1_0", 128, 18, false }, { 42, "Q2_0", 64, 18, false },
    };
    size_t known = 0;
    for (uint32_t id = 0; id < 100; id++) {
        known += bt_quant_type_find(id) != NULL;
    }
    assert_int_equal(known, sizeof WANT / sizeof WANT[0]);
    for (size_t i = 0; i < sizeof WANT / sizeof WANT[0]; i++) {
        const bt_type_info *type = bt_quant_type_find(WANT[i].id);
        assert_non_null(type);
        assert_string_equal(type->name, WANT[i].name);
        assert_int_equal(type->id, WANT[i].id);
        assert_int_equal(type->block_elems, WANT[i].elems);
        assert_int_equal(type->block_bytes, WANT[i].bytes);
        assert_int_equal(type->can_decode, WANT[i].read);
        assert_ptr_equal(bt_quant_type_find_name(WANT[i].name), type);
    }
}

static void names_have_any_case_and_ids_have_an_end(void **state)
{
    (void)state;
    assert_ptr_equal(bt_quant_type_find_name("q4_k"), bt_quant_type_find(12));
    assert_ptr_equal(bt_quant_type_find_name("Bf16"), bt_quant_type_find(30));
    assert_null(bt_quant_type_find_name("Q4_KX"));
    assert_null(bt_quant_type_find_name("Q4"));
    assert_null(bt_quant_type_find_name(""));
    assert_null(bt_quant_type_find_name(NULL));
    assert_null(bt_quant_type_find(4));
    assert_null(bt_quant_type_find(BT_TYPE_ID_MAX));
    assert_null(bt_quant_type_find(UINT32_MAX));
}

static void row_bytes_refuse_broken_blocks_and_overflow(void **state)
{
    (void)state;
    uint64_t bytes = 7;
    assert_false(bt_quant_type_row_bytes(bt_quant_type_find(12), 255, &bytes));
    assert_false(bt_quant_type_row_bytes(bt_quant_type_find(0), UINT64_MAX / 2, &bytes));
    assert_false(bt_quant_type_row_bytes(NULL, 256, &bytes));
    assert_int_equal(bytes, 7);
    assert_true(bt_quant_type_row_bytes(bt_quant_type_find(12), 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_true(bt_quant_type_row_bytes(bt_quant_type_find(14), 1024, &bytes));
    assert_int_equal(bytes, 840);
}

static void unread_types_are_refused(void **state)
{
    (void)state;
    float   values[256] = { 0 };
    uint8_t bytes[4096] = { 0 };
    for (uint32_t id = 0; id < 70; id++) {
        const bt_type_info *type = bt_quant_type_find(id);
        if (!type || !type->can_decode) {
            assert_int_equal(bt_quant_type_decode((bt_type)id, bytes, values, 256),
                             BT_E_UNSUPPORTED);
        }
        if (!type || !type->can_encode) {
            assert_int_equal(bt_quant_type_encode((bt_type)id, values, bytes, 256),
                             BT_E_UNSUPPORTED);
        }
    }
    assert_int_equal(bt_quant_type_decode(BT_TYPE_Q4_0, bytes, values, 31), BT_E_BADINPUT);
    assert_int_equal(bt_quant_type_encode(BT_TYPE_Q4_0, values, bytes, 33), BT_E_BADINPUT);
}

/* Bit for bit what an independent decoder says (tools/quant_vectors.py). */
static void blocks_decode_as_recorded(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof VECTORS / sizeof VECTORS[0]; v++) {
        float values[256];
        assert_true(VECTORS[v].n <= 256);
        assert_int_equal(
                bt_quant_type_decode(VECTORS[v].type, VECTORS[v].bytes, values, VECTORS[v].n),
                BT_OK);
        for (size_t i = 0; i < VECTORS[v].n; i++) {
            const float want = bt_float_of_bits(VECTORS[v].values[i]);
            if (isnan(want) ? !isnan(values[i])
                            : bt_bits_of_float(values[i]) != VECTORS[v].values[i]) {
                fail_msg("%s, value %zu: %.9g instead of %.9g",
                         bt_quant_type_find(VECTORS[v].type)->name, i, values[i], want);
            }
        }
    }
}

/* The forms of activations in files: Q8_1 and Q8_K hold signed bytes times a scale. */
static void activation_blocks_decode(void **state)
{
    (void)state;
    uint8_t q8_1[36] = { 0 }, q8_k[292] = { 0 };
    float   values[256];
    bt_put_le16(q8_1, bt_quant_f32_to_f16(0.5f));
    bt_put_le32(q8_k, bt_bits_of_float(-0.25f));
    for (int i = 0; i < 256; i++) {
        q8_k[4 + i] = (uint8_t)(i - 128);
        if (i < 32) {
            q8_1[4 + i] = (uint8_t)(i - 16);
        }
    }
    assert_int_equal(bt_quant_type_decode(BT_TYPE_Q8_1, q8_1, values, 32), BT_OK);
    for (int i = 0; i < 32; i++) {
        assert_true(values[i] == 0.5f * (float)(i - 16));
    }
    assert_int_equal(bt_quant_type_decode(BT_TYPE_Q8_K, q8_k, values, 256), BT_OK);
    for (int i = 0; i < 256; i++) {
        assert_true(values[i] == -0.25f * (float)(i - 128));
    }
}

/* A sum of sines: smooth, of both signs, without a pattern that fits blocks. */
static void fill(float *to, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = size * (sinf((float)i * 1.7f) + 0.5f * sinf((float)i * 0.37f + 1.0f));
    }
}

/* Largest error of encoding, as a fraction of the largest magnitude R = 1.5 size. Numbers: half of
 * the last bit. Codes around zero: one whole step, R over the codes of one side, at their short
 * end; codes above a minimum: half a step of the range 2 R; tables: half of the widest gap (MXFP4:
 * 2 of at least 10), or what lies beyond the shorter end. Scales add 2^-11 where they are f16, and
 * half a unit of their field in K types: times code_max steps for the scale, once for the minimum.
 */
static void encoding_errs_by_less_than_a_step(void **state)
{
    (void)state;
    static const struct {
        bt_type type;
        double  steps;
    } WANT[] = {
        { BT_TYPE_F16, 2048 },    { BT_TYPE_BF16, 256 },   { BT_TYPE_Q8_0, 225 },
        { BT_TYPE_Q4_0, 7.9 },    { BT_TYPE_Q4_1, 14.5 },  { BT_TYPE_Q5_0, 15.5 },
        { BT_TYPE_Q5_1, 30 },     { BT_TYPE_IQ4_NL, 8.5 }, { BT_TYPE_MXFP4, 5 },
        { BT_TYPE_Q2_K, 2.3 },    { BT_TYPE_Q3_K, 3.6 },   { BT_TYPE_Q4_K, 11 },
        { BT_TYPE_Q5_K, 17.5 },   { BT_TYPE_Q6_K, 25 },
    };
    float   values[1024], back[1024];
    uint8_t bytes[4096];
    for (size_t t = 0; t < sizeof WANT / sizeof WANT[0]; t++) {
        for (float size = 1e-3f; size < 1e4f; size *= 1000.0f) {
            fill(values, 1024, size);
            assert_int_equal(bt_quant_type_encode(WANT[t].type, values, bytes, 1024), BT_OK);
            assert_int_equal(bt_quant_type_decode(WANT[t].type, bytes, back, 1024), BT_OK);
            for (int i = 0; i < 1024; i++) {
                const double error = fabs((double)back[i] - values[i]);
                if (error > 1.5 * size / WANT[t].steps) {
                    fail_msg("%s, size %g: %.9g became %.9g",
                             bt_quant_type_find(WANT[t].type)->name, size, values[i], back[i]);
                }
            }
        }
    }
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    const float zeros[256] = { 0 };
    for (uint32_t id = 0; id < BT_TYPE_ID_MAX; id++) {
        const bt_type_info *type = bt_quant_type_find(id);
        if (type && type->can_encode) {
            float   back[256];
            uint8_t bytes[1024];
            assert_int_equal(bt_quant_type_encode((bt_type)id, zeros, bytes, 256), BT_OK);
            assert_int_equal(bt_quant_type_decode((bt_type)id, bytes, back, 256), BT_OK);
            for (int i = 0; i < 256; i++) {
                assert_true(back[i] == 0.0f);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_goes_to_a_type_and_back),
        cmocka_unit_test(every_id_has_its_name_and_size),
        cmocka_unit_test(names_have_any_case_and_ids_have_an_end),
        cmocka_unit_test(row_bytes_refuse_broken_blocks_and_overflow),
        cmocka_unit_test(unread_types_are_refused),
        cmocka_unit_test(blocks_decode_as_recorded),
        cmocka_unit_test(activation_blocks_decode),
        cmocka_unit_test(encoding_errs_by_less_than_a_step),
        cmocka_unit_test(zeros_stay_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
