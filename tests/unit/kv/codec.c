/* tests/unit/kv/codec.c - rows on the wire: sizes, names, what cannot be, and how far a value
 * may move (the bounds of rows.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "kv/codec.h"
#include "kv/codec_fast.h"

enum { DIM = 96, BLOCK = 32, N = BT_KV_ROWS_AT_ONCE };

static bt_kv_layer f16_layers[2] = {
    { .k_dim = DIM, .v_dim = 2 * BLOCK, .k_row_bytes = 2 * DIM, .v_row_bytes = 4 * BLOCK },
    { 0 },
};
static bt_kv_layer f32_layers[2] = {
    { .k_dim = DIM, .v_dim = 2 * BLOCK, .k_row_bytes = 4 * DIM, .v_row_bytes = 8 * BLOCK },
    { 0 },
};
static const bt_kv_layout f16 = { .n_layers = 2, .layers = f16_layers, .type_k = BT_TYPE_F16,
                                  .type_v = BT_TYPE_F16 };
static const bt_kv_layout f32 = { .n_layers = 2, .layers = f32_layers, .type_k = BT_TYPE_F32,
                                  .type_v = BT_TYPE_F32 };

static void names_and_sizes(void **state)
{
    (void)state;
    bt_kv_codec codec = BT_KV_CODEC_STORED;
    bt_kv_form f;
    char name[24];
    assert_true(bt_kv_codec_parse("q8_0", &codec));
    assert_int_equal(codec, BT_KV_CODEC_Q8_0);
    assert_false(bt_kv_codec_parse("q4_0", &codec));
    assert_int_equal(codec, BT_KV_CODEC_Q8_0);

    assert_int_equal(bt_kv_codec_form_init(&f, &f16, BT_KV_CODEC_Q8_0, NULL), BT_OK);
    assert_string_equal(bt_kv_codec_form_name(&f, name, sizeof name), "q8_0");
    assert_int_equal(bt_kv_codec_k_bytes(&f, 0), DIM / BLOCK * 34);
    assert_int_equal(bt_kv_codec_v_bytes(&f, 0), 2 * 34);
    assert_int_equal(bt_kv_codec_layer_bytes(&f, 1), 0);
    assert_int_equal(bt_kv_codec_token_bytes(&f), 5 * 34);
    /* 34 bytes for 64: 0.53. */
    const bt_kv_form stored = bt_kv_codec_stored(&f16);
    assert_int_equal(bt_kv_codec_token_bytes(&stored) * 34,
                     bt_kv_codec_token_bytes(&f) * 64);
    assert_string_equal(bt_kv_codec_form_name(&stored, name, sizeof name), "f16");
}

static void a_codec_that_is_the_stored_type_changes_nothing(void **state)
{
    (void)state;
    bt_kv_form f;
    assert_int_equal(bt_kv_codec_form_init(&f, &f16, BT_KV_CODEC_F16, NULL), BT_OK);
    assert_int_equal(f.codec, BT_KV_CODEC_STORED);
    assert_int_equal(bt_kv_codec_token_bytes(&f), 2 * (DIM + 2 * BLOCK));
    assert_int_equal(bt_kv_codec_form_init(&f, &f32, BT_KV_CODEC_F16, NULL), BT_OK);
    assert_int_equal(f.codec, BT_KV_CODEC_F16);
}

static void what_cannot_be_is_named(void **state)
{
    (void)state;
    bt_kv_layer odd[1] = { { .k_dim = 40, .v_dim = 64, .k_row_bytes = 80, .v_row_bytes = 128 } };
    const bt_kv_layout layout = { .n_layers = 1, .layers = odd, .type_k = BT_TYPE_F16,
                                  .type_v = BT_TYPE_F16 };
    bt_kv_form f;
    bt_error err;
    assert_int_equal(bt_kv_codec_form_init(&f, &layout, BT_KV_CODEC_Q8_0, &err), BT_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "K rows of layer 0 have 40 values"));
    assert_int_equal(bt_kv_codec_form_init(&f, &layout, BT_KV_CODEC_COUNT, &err),
                     BT_E_UNSUPPORTED);
    assert_int_equal(bt_kv_codec_form_init(&f, &layout, UINT32_MAX, &err), BT_E_UNSUPPORTED);
    assert_int_equal(bt_kv_codec_form_init(&f, &layout, BT_KV_CODEC_STORED, &err), BT_OK);
}

static void fill(bt_mt19937 *g, const bt_kv_layout *l, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        /* Magnitudes over six powers of ten, so that blocks have outliers. */
        const float x = ((float)bt_mt19937_next(g) / 4294967296.0f - 0.5f) *
                        powf(10, (float)(bt_mt19937_next(g) % 6) - 3);
        assert_int_equal(
                bt_quant_type_encode(l->type_k, &x, to + i * (l->type_k == BT_TYPE_F16 ? 2 : 4), 1),
                BT_OK);
    }
}

static void check_bound(const float *was, const float *is, size_t n, bool q8, bool f16_again)
{
    for (size_t first = 0; first < n; first += BLOCK) {
        double most = 0;
        for (size_t i = first; i < first + BLOCK; i++) {
            most = fmax(most, fabs((double)was[i]));
        }
        for (size_t i = first; i < first + BLOCK; i++) {
            const double x = fabs((double)was[i]), unit = ldexp(1, -11);
            /* The last term: where the step itself is a denormal of f16. */
            double bound = q8 ? most * (1.0 / 254 + unit) + 127 * ldexp(1, -25)
                              : x * unit + ldexp(1, -25);
            bound += f16_again ? (x + bound) * unit + ldexp(1, -25) : 0;
            assert_true(fabs((double)was[i] - (double)is[i]) <= bound);
        }
    }
}

static void there_and_back(const bt_kv_layout *l, bt_kv_codec codec)
{
    const bt_kv_layer *y = &l->layers[0];
    bt_mt19937 g;
    bt_kv_form f;
    bt_kv_scratch room = { 0 };
    static float was[2][N * DIM], is[N * DIM];
    static uint8_t k[N * DIM * 4], v[N * DIM * 4];
    bt_mt19937_init(&g, 7);
    assert_int_equal(bt_kv_codec_form_init(&f, l, codec, NULL), BT_OK);
    assert_int_equal(bt_kv_codec_scratch_open(&room, &f, NULL), BT_OK);
    fill(&g, l, room.k, N * y->k_dim);
    fill(&g, l, room.v, N * y->v_dim);
    const size_t n_k = (size_t)N * y->k_dim, n_v = (size_t)N * y->v_dim;
    assert_int_equal(bt_quant_type_decode(l->type_k, room.k, was[0], n_k), BT_OK);
    assert_int_equal(bt_quant_type_decode(l->type_v, room.v, was[1], n_v), BT_OK);
    bt_kv_codec_encode(&f, &room, 0, N, k, v);
    memset(room.k, 0, N * y->k_row_bytes);
    memset(room.v, 0, N * y->v_row_bytes);
    bt_kv_codec_decode(&f, &room, 0, N, k, v);
    assert_int_equal(bt_quant_type_decode(l->type_k, room.k, is, n_k), BT_OK);
    check_bound(was[0], is, n_k, codec == BT_KV_CODEC_Q8_0, l->type_k == BT_TYPE_F16);
    assert_int_equal(bt_quant_type_decode(l->type_v, room.v, is, n_v), BT_OK);
    check_bound(was[1], is, n_v, codec == BT_KV_CODEC_Q8_0, l->type_v == BT_TYPE_F16);
    /* A layer without rows is nothing to do. */
    bt_kv_codec_encode(&f, &room, 1, N, k, v);
    bt_kv_codec_scratch_close(&room);
}

static void values_move_no_further_than_the_bounds(void **state)
{
    (void)state;
    there_and_back(&f16, BT_KV_CODEC_Q8_0);
    there_and_back(&f32, BT_KV_CODEC_Q8_0);
    there_and_back(&f32, BT_KV_CODEC_F16);
}

/* ---- the fast pair ---- */

static void assert_same_block(const uint16_t *halves)
{
    float values[BLOCK];
    uint8_t want[34], got[34], want_back[2 * BLOCK], got_back[2 * BLOCK];
    assert_int_equal(bt_quant_type_decode(BT_TYPE_F16, halves, values, BLOCK), BT_OK);
    assert_int_equal(bt_quant_type_encode(BT_TYPE_Q8_0, values, want, BLOCK), BT_OK);
    bt_kv_codec_f16_to_q8_0((const uint8_t *)halves, got, BLOCK);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(bt_quant_type_decode(BT_TYPE_Q8_0, want, values, BLOCK), BT_OK);
    assert_int_equal(bt_quant_type_encode(BT_TYPE_F16, values, want_back, BLOCK), BT_OK);
    bt_kv_codec_q8_0_to_f16(want, got_back, BLOCK);
    assert_memory_equal(got_back, want_back, sizeof want_back);
}

/* Every f16 but NaN as the largest of its block and as a follower; blocks of random bits, and of
 * one magnitude. */
static void fast_blocks_have_the_same_bits(void **state)
{
    (void)state;
    bt_mt19937 g;
    uint16_t block[BLOCK];
    bt_mt19937_init(&g, 11);
    for (uint32_t h = 0; h <= 0xffff; h++) {
        if ((h & 0x7fff) > 0x7c00) {
            continue;
        }
        for (uint32_t i = 0; i < BLOCK; i++) {
            const uint32_t below = (h & 0x7fff) > 0 ? bt_mt19937_next(&g) % (h & 0x7fff) : 0;
            block[i] = (uint16_t)(below | (bt_mt19937_next(&g) & 0x8000));
        }
        block[h % BLOCK] = (uint16_t)h;
        assert_same_block(block);
    }
    for (uint32_t n = 0; n < 20000; n++) {
        const uint32_t exponent = bt_mt19937_next(&g) % 31 << 10;
        for (uint32_t i = 0; i < BLOCK; i++) {
            const uint32_t bits = bt_mt19937_next(&g);
            const uint32_t finite = (bits & 0x7c00) == 0x7c00 ? bits & 0x83ff : bits;
            block[i] = (uint16_t)(n % 2 ? finite : (bits & 0x83ff) | exponent);
        }
        assert_same_block(block);
    }
}

/* A receiver takes any bytes; all scales but NaN, with codes that no sender makes. */
static void fast_blocks_take_any_bytes(void **state)
{
    (void)state;
    uint8_t block[34], want[2 * BLOCK], got[2 * BLOCK];
    float values[BLOCK];
    for (uint32_t scale = 0; scale <= 0xffff; scale++) {
        block[0] = (uint8_t)scale;
        block[1] = (uint8_t)(scale >> 8);
        for (uint32_t i = 0; i < BLOCK; i++) {
            block[2 + i] = (uint8_t)(i < 8 ? 0x7c + i : i * 37 + scale);
        }
        bt_kv_codec_q8_0_to_f16(block, got, BLOCK);
        if ((scale & 0x7fff) > 0x7c00) {
            continue;
        }
        assert_int_equal(bt_quant_type_decode(BT_TYPE_Q8_0, block, values, BLOCK), BT_OK);
        assert_int_equal(bt_quant_type_encode(BT_TYPE_F16, values, want, BLOCK), BT_OK);
        assert_memory_equal(got, want, sizeof want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes),
        cmocka_unit_test(a_codec_that_is_the_stored_type_changes_nothing),
        cmocka_unit_test(what_cannot_be_is_named),
        cmocka_unit_test(values_move_no_further_than_the_bounds),
        cmocka_unit_test(fast_blocks_have_the_same_bits),
        cmocka_unit_test(fast_blocks_take_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
