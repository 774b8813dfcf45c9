/* tests/unit/wire/docs.c - docs/wire.md lists the messages and fields that the tables do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "wire/codec.h"

static char *page;

static int read_page(void **state)
{
    (void)state;
    FILE *f = fopen(BATON_SOURCE_DIR "/docs/wire.md", "rb");
    if (f == NULL) {
        return -1;
    }
    page = calloc(1, 1 << 20);
    const size_t n = fread(page, 1, (1 << 20) - 1, f);
    fclose(f);
    return n > 0 ? 0 : -1;
}

static int forget_page(void **state)
{
    (void)state;
    free(page);
    return 0;
}

#define ROW(type, name, doc) "| " #type " | " #name " | " doc " |\n"
#define X(NAME, message, number, FIELDS, sender, doc)                                     \
    "### " #NAME " (" #number "), sent by " sender ": " doc "\n\n| type | field | |\n"    \
    "|---|---|---|\n" FIELDS(ROW) "\n",
static const char *tables[] = {BT_WIRE_MESSAGE_LIST(X)};
#undef X

static void every_message_is_on_the_page_in_order(void **state)
{
    (void)state;
    const char *at = page;
    for (size_t i = 0; i < BT_LEN(tables); i++) {
        const char *found = strstr(at, tables[i]);
        if (found == NULL) {
            fail_msg("docs/wire.md lacks, or has elsewhere:\n%s", tables[i]);
        }
        at = found + strlen(tables[i]);
    }
}

static void nothing_else_is_on_the_page(void **state)
{
    (void)state;
    size_t n = 0;
    for (const char *at = page; (at = strstr(at, "sent by ")) != NULL; at++) {
        n++;
    }
    assert_int_equal(n, BT_LEN(tables));
}

static void limits_on_the_page_are_those_of_the_code(void **state)
{
    (void)state;
    assert_int_equal(BT_WIRE_BODY_BYTES_MAX, 1048576);
    assert_non_null(strstr(page, "| length | of the body, at most 1,048,576 |"));
    assert_non_null(strstr(page, "| bytes | u32 size, at most 1,048,576, then the bytes |"));
    assert_int_equal(BT_WIRE_TEXT_BYTES_MAX, 4096);
    assert_non_null(strstr(page, "| text | u32 size, at most 4,096, then UTF-8 |"));
    assert_int_equal(BT_WIRE_TOKENS_PER_FRAME_MAX, 131072);
    assert_non_null(strstr(page, "| tokens | u32 count, at most 131,072,"));
}

/* Numbers of sentences are never used twice, and every one that is cited exists. */
static void sentences_are_numbered(void **state)
{
    (void)state;
    static bool said[1000];
    unsigned last = 0, count = 0;
    for (const char *at = page; (at = strstr(at, "- **W-")) != NULL; at++) {
        const unsigned n = (unsigned)atoi(at + 6);
        assert_in_range(n, last + 1, 999);
        said[n] = true;
        last = n;
        count++;
    }
    assert_true(count > 60);
    for (const char *at = page; (at = strstr(at, "W-")) != NULL; at++) {
        assert_true(said[(unsigned)atoi(at + 2) % 1000]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_is_on_the_page_in_order),
        cmocka_unit_test(nothing_else_is_on_the_page),
        cmocka_unit_test(limits_on_the_page_are_those_of_the_code),
        cmocka_unit_test(sentences_are_numbered),
    };
    return cmocka_run_group_tests_name("wire/docs", tests, read_page, forget_page);
}
