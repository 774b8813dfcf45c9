/* tests/unit/wire/frame.c - headers: consumed, need more, or bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/digest.h"
#include "wire/codec.h"
#include "wire/frame.h"

enum { BODY = 37, WHOLE = BT_WIRE_HEADER_BYTES + BODY };

static uint8_t whole[WHOLE];

static void make_frame(void)
{
    bt_frame f = {.type = BT_WIRE_ROWS,
                  .flags = 0x8001,
                  .stream = 0x01020304,
                  .sequence = 0x1122334455667788u,
                  .size = BODY,
                  .body = whole + BT_WIRE_HEADER_BYTES};
    for (uint8_t i = 0; i < BODY; i++) {
        whole[BT_WIRE_HEADER_BYTES + i] = (uint8_t)(i * 7 + 1);
    }
    bt_wire_header_encode(&f, whole);
    assert_true(f.hash == bt_hash64(f.body, BODY, 0));
}

static void a_frame_is_parsed(void **state)
{
    (void)state;
    bt_frame f;
    size_t size;

    make_frame();
    assert_int_equal(bt_wire_frame_parse(whole, WHOLE, BT_WIRE_BODY_BYTES_MAX, &f, &size, NULL),
                     BT_OK);
    assert_int_equal(size, WHOLE);
    assert_int_equal(f.type, BT_WIRE_ROWS);
    assert_int_equal(f.flags, 0x8001);
    assert_int_equal(f.stream, 0x01020304);
    assert_true(f.sequence == 0x1122334455667788u);
    assert_int_equal(f.size, BODY);
    assert_ptr_equal(f.body, whole + BT_WIRE_HEADER_BYTES);
    assert_true(f.hash == bt_hash64(f.body, BODY, 0));
}

/* What goes over the wire, byte by byte: this test breaks when the format changes. The checksums
 * are those of the xxHash library. */
static void the_header_is_as_written_down(void **state)
{
    (void)state;
    static const uint8_t front[24] = {'B', 'A', 'T', 'N', 6, 0, 0x01, 0x80, 4, 3, 2, 1, BODY, 0, 0,
                                      0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
    make_frame();
    assert_memory_equal(whole, front, sizeof front);
    assert_int_equal(bt_get_le32(whole + 24),
                     (uint32_t)bt_hash64(whole + BT_WIRE_HEADER_BYTES, BODY, 0));
    assert_int_equal(bt_get_le32(whole + 28), bt_checksum32(whole, 28));
}

static void an_empty_body_is_a_frame(void **state)
{
    (void)state;
    bt_frame f = {.type = BT_WIRE_DRAIN}, got;
    uint8_t header[BT_WIRE_HEADER_BYTES];
    size_t size;

    bt_wire_header_encode(&f, header);
    assert_int_equal(bt_wire_frame_parse(header, sizeof header, 0, &got, &size, NULL), BT_OK);
    assert_int_equal(size, BT_WIRE_HEADER_BYTES);
    assert_int_equal(got.size, 0);
}

static void every_cut_says_how_much_is_needed(void **state)
{
    (void)state;
    make_frame();
    for (size_t n = 0; n < WHOLE; n++) {
        bt_frame f;
        size_t size = 0;
        uint8_t *cut = malloc(n);               /* ends where a sanitizer sees it */
        memcpy(cut, whole, n);
        assert_int_equal(bt_wire_frame_parse(cut, n, BT_WIRE_BODY_BYTES_MAX, &f, &size, NULL),
                         BT_E_AGAIN);
        assert_int_equal(size, n < BT_WIRE_HEADER_BYTES ? BT_WIRE_HEADER_BYTES : WHOLE);
        free(cut);
    }
}

static void every_flipped_bit_is_noticed(void **state)
{
    (void)state;
    make_frame();
    for (size_t bit = 0; bit < WHOLE * 8; bit++) {
        bt_frame f;
        size_t size;
        bt_error err = {.text = ""};
        whole[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(bt_wire_frame_parse(whole, WHOLE, BT_WIRE_BODY_BYTES_MAX, &f, &size, &err),
                         BT_E_PROTOCOL);
        assert_true(strlen(err.text) > 20);
        /* In the header it is noticed before the body is there. */
        if (bit / 8 < BT_WIRE_HEADER_BYTES) {
            assert_int_equal(bt_wire_frame_parse(whole, BT_WIRE_HEADER_BYTES,
                                                 BT_WIRE_BODY_BYTES_MAX, &f, &size, &err),
                             BT_E_PROTOCOL);
        }
        whole[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* With checksums that are made to fit, a flipped header is another header or an error. */
static void a_forged_header_is_harmless(void **state)
{
    (void)state;
    for (size_t bit = 0; bit < 24 * 8; bit++) {
        bt_frame f = {0};
        size_t size = 0;
        make_frame();
        whole[bit / 8] ^= (uint8_t)(1u << bit % 8);
        bt_put_le32(whole + 28, bt_checksum32(whole, 28));
        const bt_status status = bt_wire_frame_parse(whole, WHOLE, 64, &f, &size, NULL);
        if (bit < 32) {
            assert_int_equal(status, BT_E_PROTOCOL);            /* magic */
        } else if (bit >= 96 && bit < 128) {                    /* length */
            const uint32_t length = bt_get_le32(whole + 12);
            assert_int_equal(status, length > 64 || length < BODY ? BT_E_PROTOCOL : BT_E_AGAIN);
        } else {
            assert_int_equal(status, BT_OK);
            assert_int_equal(f.size, BODY);
        }
    }
}

static void a_body_of_another_frame_is_noticed(void **state)
{
    (void)state;
    uint8_t other[WHOLE];
    bt_frame f;
    size_t size;

    make_frame();
    memcpy(other, whole, WHOLE);
    other[BT_WIRE_HEADER_BYTES] ^= 0xFF;
    bt_frame second = {.type = BT_WIRE_ROWS, .size = BODY, .body = other + BT_WIRE_HEADER_BYTES};
    bt_wire_header_encode(&second, other);
    memcpy(whole + BT_WIRE_HEADER_BYTES, other + BT_WIRE_HEADER_BYTES, BODY);
    assert_int_equal(bt_wire_frame_parse(whole, WHOLE, BT_WIRE_BODY_BYTES_MAX, &f, &size, NULL),
                     BT_E_PROTOCOL);
    memcpy(whole + 24, other + 24, 4);                          /* with its checksum, too */
    assert_int_equal(bt_wire_frame_parse(whole, WHOLE, BT_WIRE_BODY_BYTES_MAX, &f, &size, NULL),
                     BT_E_PROTOCOL);
}

static void the_largest_body_is_a_mebibyte(void **state)
{
    (void)state;
    bt_frame f;
    size_t size;
    bt_error err;

    make_frame();
    for (uint64_t n = BT_WIRE_BODY_BYTES_MAX; n < 1ull << 32; n = n * 2 + 1) {
        bt_put_le32(whole + 12, (uint32_t)n);
        bt_put_le32(whole + 28, bt_checksum32(whole, 28));
        const bt_status status =
                bt_wire_frame_parse(whole, WHOLE, BT_WIRE_BODY_BYTES_MAX, &f, &size, &err);
        assert_int_equal(status, n == BT_WIRE_BODY_BYTES_MAX ? BT_E_AGAIN : BT_E_PROTOCOL);
        if (status == BT_E_PROTOCOL) {
            assert_non_null(strstr(err.text, "at most 1048576"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_parsed),
        cmocka_unit_test(the_header_is_as_written_down),
        cmocka_unit_test(an_empty_body_is_a_frame),
        cmocka_unit_test(every_cut_says_how_much_is_needed),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(a_forged_header_is_harmless),
        cmocka_unit_test(a_body_of_another_frame_is_noticed),
        cmocka_unit_test(the_largest_body_is_a_mebibyte),
    };
    return cmocka_run_group_tests_name("wire/frame", tests, NULL, NULL);
}
