/* Buffers, byte order, checked sizes, random numbers, digests and statuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/random.h"
#include "base/status.h"

static void a_buffer_grows_and_stays_text(void **state)
{
    (void)state;
    bt_buf b;
    bt_buf_init(&b, BT_MEM_test, 1000);
    assert_string_equal(bt_buf_text(&b), "");
    for (int i = 0; i < 100; i++) {
        bt_buf_printf(&b, "%d,", i % 10);
    }
    assert_int_equal(bt_buf_status(&b), BT_OK);
    assert_int_equal(b.size, 200);
    assert_int_equal(strlen(bt_buf_text(&b)), 200);
    bt_buf_done(&b);
}

static void a_buffer_refuses_more_than_its_limit_and_remembers(void **state)
{
    (void)state;
    bt_buf b;
    bt_buf_init(&b, BT_MEM_test, 10);
    bt_buf_puts(&b, "0123456789");
    assert_int_equal(bt_buf_status(&b), BT_OK);
    bt_buf_puts(&b, "x");
    assert_int_equal(bt_buf_status(&b), BT_E_FULL);
    assert_int_equal(b.size, 10);
    bt_buf_clear(&b);
    bt_buf_puts(&b, "again");
    assert_string_equal(bt_buf_text(&b), "again");
    bt_buf_done(&b);
}

static void a_buffer_without_memory_says_so(void **state)
{
    (void)state;
    bt_buf b;
    bt_buf_init(&b, BT_MEM_test, 1000);
    bt_memory_fail_after(1);
    bt_buf_puts(&b, "x");
    bt_memory_fail_after(0);
    assert_int_equal(bt_buf_status(&b), BT_E_NOMEM);
    assert_int_equal(b.size, 0);
    bt_buf_done(&b);
}

static void numbers_are_little_endian_at_any_address(void **state)
{
    (void)state;
    uint8_t bytes[9] = { 0xff, 1, 2, 3, 4, 5, 6, 7, 8 };
    assert_int_equal(bt_get_le16(bytes + 1), 0x0201);
    assert_int_equal(bt_get_le32(bytes + 1), 0x04030201);
    assert_true(bt_get_le64(bytes + 1) == 0x0807060504030201u);
    uint8_t back[8];
    bt_put_le64(back, 0x0807060504030201u);
    assert_memory_equal(back, bytes + 1, 8);
}

static void a_reader_fails_once_and_stays_failed(void **state)
{
    (void)state;
    const uint8_t bytes[3] = { 1, 2, 3 };
    bt_reader r;
    bt_reader_init(&r, bytes, sizeof bytes);
    assert_int_equal(bt_reader_u16(&r), 0x0201);
    assert_int_equal(bt_reader_u32(&r), 0);
    assert_true(r.failed);
    assert_int_equal(bt_reader_u8(&r), 0);
    assert_int_equal(bt_reader_left(&r), 0);
    assert_null(bt_reader_take(&r, 0));
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    size_t r = 7;
    assert_false(bt_size_mul(SIZE_MAX / 2, 3, &r));
    assert_false(bt_size_add(SIZE_MAX, 1, &r));
    assert_int_equal(r, 7);
    assert_true(bt_size_mul(0, SIZE_MAX, &r));
    assert_int_equal(r, 0);
}

/* The generator's published check: the 10,000th output for seed 5489 is 4123659995. */
static void the_twister_gives_the_published_sequence(void **state)
{
    (void)state;
    bt_mt19937 g;
    bt_mt19937_init(&g, 5489);
    uint32_t last = 0;
    for (int i = 0; i < 10000; i++) {
        last = bt_mt19937_next(&g);
    }
    assert_int_equal(last, 4123659995u);
}

static void a_digest_does_not_depend_on_the_pieces(void **state)
{
    (void)state;
    char text[1000];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (char)(i * 7);
    }
    const bt_digest whole = bt_digest_of(text, sizeof text);
    bt_digester *d;
    assert_int_equal(bt_digester_create(&d), BT_OK);
    for (size_t at = 0, n = 1; at < sizeof text; at += n, n = (n * 3) % 97 + 1) {
        bt_digester_put(d, text + at, at + n > sizeof text ? sizeof text - at : n);
    }
    const bt_digest pieces = bt_digester_value(d);
    assert_true(bt_digest_equal(&whole, &pieces));
    bt_digester_destroy(d);
}

static void statuses_survive_the_wire(void **state)
{
    (void)state;
#define X(name, wire, http, text) assert_int_equal(bt_status_from_wire(wire), BT_##name);
    BT_STATUS_LIST(X)
#undef X
    assert_int_equal(bt_status_from_wire(9999), BT_E_PROTOCOL);
    assert_int_equal(bt_status_http(BT_E_FULL), 429);
    assert_string_equal(bt_status_name(BT_E_FULL), "E_FULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_grows_and_stays_text),
        cmocka_unit_test(a_buffer_refuses_more_than_its_limit_and_remembers),
        cmocka_unit_test(a_buffer_without_memory_says_so),
        cmocka_unit_test(numbers_are_little_endian_at_any_address),
        cmocka_unit_test(a_reader_fails_once_and_stays_failed),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(the_twister_gives_the_published_sequence),
        cmocka_unit_test(a_digest_does_not_depend_on_the_pieces),
        cmocka_unit_test(statuses_survive_the_wire),
    };
    return cmocka_run_group_tests_name("base/basics", tests, NULL, NULL);
}
