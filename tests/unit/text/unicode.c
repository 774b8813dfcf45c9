#include "unit/text/vocabulary.h"

static void a_character_is_decoded(void **state)
{
    (void)state;
    const bt_utf8_char c = bt_text_utf8_at("\xe2\x82\xac!", 4);
    assert_int_equal(c.kind, BT_UTF8_GOOD);
    assert_int_equal(c.size, 3);
    assert_int_equal(c.code, 0x20AC);
}

static void every_scalar_value_comes_back(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < BT_UNICODE_COUNT; code++) {
        char text[BT_UTF8_MAX];
        const size_t size = bt_text_utf8_put(code, text);
        const bt_utf8_char c = bt_text_utf8_at(text, size);
        if (code >= 0xD800 && code < 0xE000) {
            assert_int_equal(c.kind, BT_UTF8_BAD);
            assert_int_equal(c.size, 1);
            continue;
        }
        assert_int_equal(c.kind, BT_UTF8_GOOD);
        assert_int_equal(c.size, size);
        assert_int_equal(c.code, code);
        for (size_t left = 1; left < size; left++) {
            const bt_utf8_char part = bt_text_utf8_at(text, left);
            assert_int_equal(part.kind, BT_UTF8_SHORT);
            assert_int_equal(part.size, left);
        }
    }
}

/* The example of the Unicode standard, section 3.9: maximal subparts, one U+FFFD each. */
static void bad_bytes_come_in_maximal_subparts(void **state)
{
    (void)state;
    static const struct { const char *text; size_t size; uint32_t subpart; } cases[] = {
        { "\xC0\xAF", 2, 1 }, { "\xE0\x80\xBF", 3, 1 }, { "\xF0\x81\x82\x41", 4, 1 },
        { "\xED\xA0\x80", 3, 1 }, { "\xF4\x91\x92\x93", 4, 1 }, { "\xFF", 1, 1 },
        { "\x80\x41", 2, 1 }, { "\xE1\x80\xE2\xF0", 4, 2 }, { "\xF1\x80\x80\x41", 4, 3 },
        { "\xE2\x41", 2, 1 }, { "\xF5\x80\x80\x80", 4, 1 },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const bt_utf8_char c = bt_text_utf8_at(cases[i].text, cases[i].size);
        assert_int_equal(c.kind, BT_UTF8_BAD);
        assert_int_equal(c.size, cases[i].subpart);
        assert_false(bt_text_utf8_valid(cases[i].text, cases[i].size));
    }
    assert_true(bt_text_utf8_valid("", 0));
    assert_true(bt_text_utf8_valid("a\0b", 3));
}

static int kind_of(uint32_t code)
{
    int kind = -1;
    for (size_t i = 0; i < bt_text_unicode_run_count && bt_text_unicode_runs[i] >> 4 <= code; i++) {
        kind = (int)(bt_text_unicode_runs[i] & 15);
    }
    return kind;
}

static void the_table_is_that_of_unicode_15_1(void **state)
{
    (void)state;
    static const struct { uint32_t code; int kind;
    } cases[] = {
            {'A', BT_UNICODE_LU},         {'z', BT_UNICODE_LL},       {'7', BT_UNICODE_N},
            {'~', BT_UNICODE_S},          {'_', BT_UNICODE_P},        {' ', BT_UNICODE_SPACE},
            {0x1F, BT_UNICODE_OTHER},     {0x85, BT_UNICODE_SPACE},   {0xA0, BT_UNICODE_SPACE},
            {0x3000, BT_UNICODE_SPACE},   {0x180E, BT_UNICODE_OTHER}, {0x200B, BT_UNICODE_OTHER},
            {0xB2, BT_UNICODE_N},         {0xBD, BT_UNICODE_N},       {0x2167, BT_UNICODE_N},
            {0x01C5, BT_UNICODE_LT},      {0x02B0, BT_UNICODE_LM},    {0x4E2D, BT_UNICODE_LO},
            {0x0301, BT_UNICODE_M},       {0x0903, BT_UNICODE_M},     {0x20DD, BT_UNICODE_M},
            {0xFF5E, BT_UNICODE_S},       {0xE000, BT_UNICODE_OTHER}, {0x0378, BT_UNICODE_OTHER},
            {0x10FFFF, BT_UNICODE_OTHER}, {0x1F600, BT_UNICODE_S},    {0x2EBF0, BT_UNICODE_LO},
            {0x2FFC, BT_UNICODE_S},     /* new in 15.1 */
            {0x1C89, BT_UNICODE_OTHER}, /* a letter since 16.0 */
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        if (kind_of(cases[i].code) != cases[i].kind) {
            fail_msg("U+%04X is of kind %d, not %d", (unsigned)cases[i].code,
                     kind_of(cases[i].code), cases[i].kind);
        }
    }
    assert_int_equal(bt_text_unicode_runs[0] >> 4, 0);
    for (size_t i = 1; i < bt_text_unicode_run_count; i++) {
        assert_true(bt_text_unicode_runs[i] >> 4 > bt_text_unicode_runs[i - 1] >> 4);
        assert_true((bt_text_unicode_runs[i] & 15) < BT_UNICODE_KINDS);
    }
}

static void error_sentences_can_be_printed(void **state)
{
    (void)state;
    char shown[8];
    bt_text_utf8_show("a\n\xff" "b\x7f", 5, shown, sizeof shown);
    assert_string_equal(shown, "a\?\?b\?");
    bt_text_utf8_show("12345\xe2\x82\xac", 8, shown, sizeof shown);
    assert_string_equal(shown, "12345");
    bt_text_utf8_show("1234\xe2\x82\xac" "5", 8, shown, sizeof shown);
    assert_string_equal(shown, "1234\xe2\x82\xac");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_is_decoded),
        cmocka_unit_test(every_scalar_value_comes_back),
        cmocka_unit_test(bad_bytes_come_in_maximal_subparts),
        cmocka_unit_test(the_table_is_that_of_unicode_15_1),
        cmocka_unit_test(error_sentences_can_be_printed),
    };
    return cmocka_run_group_tests_name("text/unicode", tests, NULL, NULL);
}
