/* tests/unit/wire/codec.c - every message there and back; cut, flipped, too long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "fuzz/wire_generate.h"

enum { POOL = BT_WIRE_BODY_BYTES_MAX, ROUNDS = 200, RANDOM = 256 };

static uint8_t *pool;
static uint8_t *buffer, *second;
static uint8_t  noise[RANDOM];
static bt_mt19937 generator;

static wire_source fresh(uint32_t pool_size)
{
    for (size_t i = 0; i < RANDOM; i++) {
        noise[i] = (uint8_t)bt_mt19937_next(&generator);
    }
    return (wire_source){.data = noise, .size = RANDOM, .pool = pool, .pool_size = pool_size};
}

static int set_up(void **state)
{
    (void)state;
    bt_mt19937_init(&generator, 20240607);
    pool = malloc(POOL);
    buffer = malloc(BT_WIRE_BODY_BYTES_MAX + 16);
    second = malloc(BT_WIRE_BODY_BYTES_MAX + 16);
    for (size_t i = 0; i < POOL; i++) {
        pool[i] = (uint8_t)bt_mt19937_next(&generator);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(pool);
    free(buffer);
    free(second);
    return 0;
}

/* The smallest example: what one writes, the other reads. */
static void a_credit_goes_there_and_back(void **state)
{
    (void)state;
    const bt_wire_credit sent = {.bytes = 0x1122334455667788u};
    bt_wire_credit got;
    uint8_t body[8];
    size_t size;

    assert_int_equal(bt_wire_credit_encode(&sent, body, sizeof body, &size, NULL), BT_OK);
    assert_int_equal(size, 8);
    assert_memory_equal(body, "\x88\x77\x66\x55\x44\x33\x22\x11", 8);
    assert_int_equal(bt_wire_credit_decode(body, size, &got, NULL), BT_OK);
    assert_true(got.bytes == sent.bytes);
}

/* ---- for each message ---- */

#define X(NAME, message, number, FIELDS, sender, doc)                                              \
    static void round_trip_##message(void)                                                         \
    {                                                                                              \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            wire_source s = fresh(i % 10 == 0 ? POOL : 40);                                        \
            const bt_wire_##message m = wire_make_##message(&s);                                   \
            const size_t want = bt_wire_##message##_size(&m);                                      \
            bt_wire_##message back;                                                                \
            size_t size = 0, again = 0;                                                            \
            memset(buffer + want, 0xA5, 8);                                                        \
            assert_int_equal(bt_wire_##message##_encode(&m, buffer, want, &size, NULL), BT_OK);    \
            assert_int_equal(size, want);                                                          \
            assert_memory_equal(buffer + want, "\xA5\xA5\xA5\xA5\xA5\xA5\xA5\xA5", 8);             \
            assert_int_equal(bt_wire_##message##_decode(buffer, size, &back, NULL), BT_OK);        \
            assert_true(wire_same_##message(&m, &back));                                           \
            /* Fields of a later version behind it change nothing. */                              \
            assert_int_equal(bt_wire_##message##_decode(buffer, size + 8, &back, NULL), BT_OK);    \
            assert_int_equal(bt_wire_##message##_encode(&back, second, want, &again, NULL),        \
                             BT_OK);                                                               \
            assert_int_equal(again, size);                                                         \
            assert_memory_equal(second, buffer, size);                                             \
        }                                                                                          \
    }                                                                                              \
    static void truncation_##message(void)                                                         \
    {                                                                                              \
        for (int i = 0; i < 20; i++) {                                                             \
            wire_source s = fresh(40);                                                             \
            const bt_wire_##message m = wire_make_##message(&s);                                   \
            bt_wire_##message back, untouched;                                                     \
            size_t size = 0;                                                                       \
            memset(&back, 0x77, sizeof back);                                                      \
            memset(&untouched, 0x77, sizeof untouched);                                            \
            assert_int_equal(bt_wire_##message##_encode(&m, buffer, POOL, &size, NULL), BT_OK);    \
            for (size_t n = 0; n < size; n++) {                                                    \
                bt_error err = {.text = ""};                                                       \
                uint8_t *cut = malloc(n);       /* ends where a sanitizer sees it */               \
                memcpy(cut, buffer, n);                                                            \
                assert_int_equal(bt_wire_##message##_decode(cut, n, &back, &err), BT_E_PROTOCOL);  \
                assert_non_null(strstr(err.text, #NAME));                                          \
                assert_non_null(strstr(err.text, "cut short in '"));                               \
                assert_memory_equal(&back, &untouched, sizeof back);                               \
                size_t written = 12345;                                                            \
                memset(second, 0xA5, n + 8);                                                       \
                assert_int_equal(bt_wire_##message##_encode(&m, second, n, &written, &err),        \
                                 BT_E_BADINPUT);                                                   \
                assert_int_equal(written, 12345);                                                  \
                assert_memory_equal(second + n, "\xA5\xA5\xA5\xA5\xA5\xA5\xA5\xA5", 8);            \
                free(cut);                                                                         \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void flips_##message(void)                                                              \
    {                                                                                              \
        for (int i = 0; i < 20; i++) {                                                             \
            wire_source s = fresh(40);                                                             \
            const bt_wire_##message m = wire_make_##message(&s);                                   \
            size_t size = 0;                                                                       \
            assert_int_equal(bt_wire_##message##_encode(&m, buffer, POOL, &size, NULL), BT_OK);    \
            uint8_t *flipped = malloc(size);                                                       \
            for (size_t bit = 0; bit < size * 8; bit++) {                                          \
                bt_wire_##message got;                                                             \
                size_t again = 0;                                                                  \
                memcpy(flipped, buffer, size);                                                     \
                flipped[bit / 8] ^= (uint8_t)(1u << bit % 8);                                      \
                const bt_status status = bt_wire_##message##_decode(flipped, size, &got, NULL);    \
                if (status == BT_OK) {          /* then it is what those bytes say */              \
                    assert_false(wire_same_##message(&m, &got));                                   \
                    assert_int_equal(bt_wire_##message##_encode(&got, second, size, &again, NULL), \
                                     BT_OK);                                                       \
                    assert_memory_equal(second, flipped, again);                                   \
                } else {                                                                           \
                    assert_int_equal(status, BT_E_PROTOCOL);                                       \
                }                                                                                  \
            }                                                                                      \
            free(flipped);                                                                         \
        }                                                                                          \
    }
BT_WIRE_MESSAGE_LIST(X)
#undef X

#define X(NAME, message, number, FIELDS, sender, doc) round_trip_##message();
static void every_message_goes_there_and_back(void **state)
{
    (void)state;
    const uint64_t calls = bt_memory_calls();
    BT_WIRE_MESSAGE_LIST(X)
    assert_true(bt_memory_calls() == calls);    /* the codec allocates nothing */
}
#undef X

#define X(NAME, message, number, FIELDS, sender, doc) truncation_##message();
static void every_truncation_is_an_error_that_names_the_field(void **state)
{
    (void)state;
    BT_WIRE_MESSAGE_LIST(X)
}
#undef X

#define X(NAME, message, number, FIELDS, sender, doc) flips_##message();
static void every_flipped_bit_is_an_error_or_another_message(void **state)
{
    (void)state;
    BT_WIRE_MESSAGE_LIST(X)
}
#undef X

/* ---- limits ---- */

static void counts_over_their_limits_are_refused(void **state)
{
    (void)state;
    bt_error err;
    bt_wire_error error;
    bt_wire_tokens tokens;
    bt_wire_rows rows;
    size_t size;
    const uint32_t bad[] = {BT_WIRE_TEXT_BYTES_MAX + 1, 1u << 31, UINT32_MAX};

    for (size_t i = 0; i < BT_LEN(bad); i++) {
        memset(buffer, 0, 8);
        bt_put_le32(buffer + 8, bad[i]);
        assert_int_equal(bt_wire_error_decode(buffer, POOL, &error, &err), BT_E_PROTOCOL);
        assert_non_null(strstr(err.text, "'sentence' has"));
    }
    bt_put_le32(buffer + 4, BT_WIRE_TOKENS_PER_FRAME_MAX + 1);
    assert_int_equal(bt_wire_tokens_decode(buffer, POOL, &tokens, &err), BT_E_PROTOCOL);
    assert_non_null(strstr(err.text, "'ids' has 131073, at most 131072"));
    bt_put_le32(buffer + 4, 1u << 30);          /* times 4 is 0 in 32 bits */
    assert_int_equal(bt_wire_tokens_decode(buffer, POOL, &tokens, &err), BT_E_PROTOCOL);
    bt_put_le32(buffer + 12, UINT32_MAX);
    assert_int_equal(bt_wire_rows_decode(buffer, POOL, &rows, &err), BT_E_PROTOCOL);

    const bt_wire_error wordy = {.sentence = {(const char *)pool, BT_WIRE_TEXT_BYTES_MAX + 1}};
    assert_int_equal(bt_wire_error_encode(&wordy, buffer, POOL, &size, &err), BT_E_BADINPUT);
    assert_non_null(strstr(err.text, "longer than allowed"));
    const bt_wire_tokens many = {.ids = {pool, BT_WIRE_TOKENS_PER_FRAME_MAX + 1}};
    assert_int_equal(bt_wire_tokens_encode(&many, buffer, POOL, &size, &err), BT_E_BADINPUT);
    const bt_wire_tokens most = {.ids = {pool, BT_WIRE_TOKENS_PER_FRAME_MAX}};
    assert_int_equal(bt_wire_tokens_encode(&most, buffer, POOL, &size, &err), BT_OK);
    assert_int_equal(bt_wire_tokens_decode(buffer, size, &tokens, &err), BT_OK);
    assert_int_equal(bt_wire_token(tokens.ids, 131071), bt_get_le32(pool + 4 * 131071));

    /* A body is at most 1 MiB, however much room there is. */
    const bt_wire_rows big = {.k = {pool, POOL}};
    uint8_t *room = malloc(2 * POOL);
    assert_int_equal(bt_wire_rows_encode(&big, room, 2 * POOL, &size, &err), BT_E_BADINPUT);
    free(room);
}

/* ---- rows in place ---- */

static void rows_written_in_place_are_a_rows_message(void **state)
{
    (void)state;
    const bt_wire_rows m = {
        .layer = 3, .position = 77, .n = 5, .k = {pool, 1000}, .v = {pool + 1000, 600}};
    uint8_t *k, *v;
    size_t size;

    assert_int_equal(bt_wire_rows_place_size(1000, 600), bt_wire_rows_size(&m));
    bt_wire_rows_place(second, 3, 77, 5, 1000, 600, &k, &v);
    memcpy(k, m.k.data, 1000);
    memcpy(v, m.v.data, 600);
    assert_int_equal(bt_wire_rows_encode(&m, buffer, POOL, &size, NULL), BT_OK);
    assert_memory_equal(second, buffer, size);
}

static void as_many_rows_as_said_fit_and_no_more(void **state)
{
    (void)state;
    static const size_t row_bytes[] = {1, 68, 256, 4096, 8192, 1 << 19, (1 << 20) - 20, 1 << 20};
    for (size_t i = 0; i < BT_LEN(row_bytes); i++) {
        const uint32_t n = bt_wire_rows_fit(row_bytes[i]);
        assert_true(bt_wire_rows_place_size(n * row_bytes[i], 0) <= BT_WIRE_BODY_BYTES_MAX);
        assert_true(bt_wire_rows_place_size((n + 1) * row_bytes[i], 0) > BT_WIRE_BODY_BYTES_MAX);
    }
    assert_int_equal(bt_wire_rows_fit((1 << 20) - 20), 1);
    assert_int_equal(bt_wire_rows_fit(1 << 20), 0);
}

/* ---- texts and names ---- */

static void texts_of_strangers_are_made_printable(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t    size;
        const char *shown;
    } cases[] = {
        {"plain", 5, "plain"},
        {"", 0, ""},
        {"a\0b", 3, "a?b"},
        {"\x1b[31m\n\r\t\x7f", 9, "?[31m????"},
        {"gr\xc3\xbc\xc3\x9f", 6, "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac \xf0\x9f\x98\x80", 8, "\xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc3", 1, "?"},
        {"\xc0\xaf", 2, "??"},                          /* overlong */
        {"\xe0\x80\x80", 3, "???"},
        {"\xed\xa0\x80", 3, "???"},                     /* surrogate */
        {"\xf4\x90\x80\x80", 4, "????"},                /* beyond U+10FFFF */
        {"\xc2\x9b", 2, "??"},                          /* a control sequence introducer */
        {"x\xe2\x82", 3, "x??"},
    };
    char to[64];

    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const bt_wire_text t = {cases[i].text, cases[i].size};
        assert_string_equal(bt_wire_text_copy(t, to, sizeof to), cases[i].shown);
    }
    const bt_wire_text long_text = bt_wire_text_of("abc\xe2\x82\xac");
    assert_string_equal(bt_wire_text_copy(long_text, to, 6), "abc");    /* never half a character */
    assert_string_equal(bt_wire_text_copy(long_text, to, 7), "abc\xe2\x82\xac");
    assert_string_equal(bt_wire_text_copy(long_text, to, 1), "");
    assert_int_equal(bt_wire_text_of(NULL).size, 0);
}

static void types_have_names(void **state)
{
    (void)state;
    assert_string_equal(bt_wire_type_name(BT_WIRE_HELLO), "HELLO");
    assert_string_equal(bt_wire_type_name(16), "DRAIN");
    assert_string_equal(bt_wire_type_name(0), "unknown");
    assert_string_equal(bt_wire_type_name(999), "unknown");
    assert_true(bt_wire_type_known(1) && bt_wire_type_known(16));
    assert_false(bt_wire_type_known(0) || bt_wire_type_known(999) || bt_wire_type_known(0xFFFF));
}

static void tokens_are_copied_at_any_alignment(void **state)
{
    (void)state;
    const uint8_t bytes[] = {9, 1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x78, 0x56, 0x34, 0x12};
    uint32_t to[3];
    bt_wire_tokens_copy((bt_wire_ids){bytes + 1, 3}, to);
    assert_int_equal(to[0], 1);
    assert_true(to[1] == UINT32_MAX);
    assert_int_equal(to[2], 0x12345678);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_credit_goes_there_and_back),
        cmocka_unit_test(every_message_goes_there_and_back),
        cmocka_unit_test(every_truncation_is_an_error_that_names_the_field),
        cmocka_unit_test(every_flipped_bit_is_an_error_or_another_message),
        cmocka_unit_test(counts_over_their_limits_are_refused),
        cmocka_unit_test(rows_written_in_place_are_a_rows_message),
        cmocka_unit_test(as_many_rows_as_said_fit_and_no_more),
        cmocka_unit_test(texts_of_strangers_are_made_printable),
        cmocka_unit_test(types_have_names),
        cmocka_unit_test(tokens_are_copied_at_any_alignment),
    };
    return cmocka_run_group_tests_name("wire/codec", tests, set_up, tear_down);
}
