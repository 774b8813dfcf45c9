#include "unit/text/vocabulary.h"

#include "text/split.h"

/* Compares with pieces written as one text, divided by '|'. */
static void expect_pieces(const char *pre, const char *text, size_t size, const char *want)
{
    bt_error err = { 0 };
    bt_splitter *s;
    const bt_split_name *name = bt_text_split_name_find(pre, strlen(pre));
    assert_non_null(name);
    assert_int_equal(bt_text_splitter_create(name->list, &s, &err), BT_OK);
    bt_split_pieces pieces = { 0 };
    assert_int_equal(bt_text_splitter_run(s, text, size, &pieces, &err), BT_OK);
    char got[4096];
    size_t n = 0, begin = 0;
    for (size_t i = 0; i < pieces.count; i++) {
        if (i > 0) {
            got[n++] = '|';
        }
        memcpy(got + n, text + begin, pieces.ends[i] - begin);
        n += pieces.ends[i] - begin;
        begin = pieces.ends[i];
    }
    got[n] = '\0';
    assert_int_equal(begin, size);
    if (strcmp(got, want) != 0) {
        fail_msg("%s\n  got  %s\n  want %s", pre, got, want);
    }
    bt_text_split_pieces_done(&pieces);
    bt_text_splitter_destroy(s);
}

#define PIECES(pre, text, want) expect_pieces(pre, text, sizeof(text) - 1, want)

static void words_keep_the_blank_before_them(void **state)
{
    (void)state;
    PIECES("gpt-2", "Hello my  friend's 12 apples!", "Hello| my| | friend|'s| 12| apples|!");
}

static void lists_differ_where_they_should(void **state)
{
    (void)state;
    PIECES("gpt-2", "I'LL", "I|'|LL");
    PIECES("llama-bpe", "I'LL", "I|'LL");
    PIECES("llama-bpe", "12345", "123|45");
    PIECES("qwen2", "12345", "1|2|3|4|5");
    PIECES("default", "12345 a", "123|45| a");
    PIECES("smollm", "x 12", "x| |1|2");
    PIECES("falcon", "a`b", "a|`|b");
    PIECES("llama-bpe", "a\n\n\nb", "a|\n\n\n|b");
    PIECES("llama-bpe", "a \n \n  b", "a| \n \n| | b");
    PIECES("gpt-2", "a\n\nb", "a|\n|\n|b");
    PIECES("llama-bpe", "(hello)", "(hello|)");
    PIECES("llama-bpe", "x!!\n\ny", "x|!!\n\n|y");
    PIECES("qwen2", "e\xcc\x81t", "e|\xcc\x81t");                   /* a mark is no letter ... */
    PIECES("qwen35", "e\xcc\x81t", "e\xcc\x81t");                   /* ... but there it is */
    PIECES("gpt-4o", "HTTPServer's", "HTTPServer's");
    PIECES("gpt-4o", "iPhone", "i|Phone");
    PIECES("gpt-4o", "\xc3\x84pfel\xc3\x96l", "\xc3\x84pfel|\xc3\x96l");
    PIECES("tekken", "it's 12", "it|'s| |1|2");
    PIECES("deepseek-coder", "a b,c \xe4\xb8\xad 1", "a| b|,|c| |\xe4\xb8\xad| |1");
    PIECES("deepseek-llm", "ab \xe4\xb8\xad\xe6\x96\x87  ", "ab| |\xe4\xb8\xad\xe6\x96\x87|  ");
    PIECES("deepseek-v3", "1234 a ~b", "123|4| a| ~|b");
    PIECES("deepseek-v3", "!word", "!word");
}

static void every_name_has_a_list(void **state)
{
    (void)state;
    assert_null(bt_text_split_name_find("nonsense", 8));
    assert_null(bt_text_split_name_find("llama", 5));
    for (size_t i = 0; i < bt_text_split_name_count; i++) {
        const bt_split_name *n = &bt_text_split_names[i];
        assert_ptr_equal(bt_text_split_name_find(n->name, strlen(n->name)), n);
        expect_pieces(n->name, "", 0, "");
        expect_pieces(n->name, "a", 1, "a");
        expect_pieces(n->name, "\n", 1, "\n");
    }
}

/* Whatever the text: pieces tile it, end at characters, and none is empty. */
static void pieces_tile_any_text(void **state)
{
    (void)state;
    static const char *const parts[] = {"a",
                                        "Z",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "'s",
                                        "9",
                                        "\xc2\xa0",
                                        "!",
                                        "\xe4\xb8\xad",
                                        "\xcc\x81",
                                        "\xf0\x9f\x98\x80",
                                        "~",
                                        "\xe3\x80\x80",
                                        "\xc3\x84",
                                        "_",
                                        "/"};
    dice d = { 7 };
    for (size_t i = 0; i < bt_text_split_name_count; i++) {
        bt_error err = { 0 };
        bt_splitter *s;
        assert_int_equal(bt_text_splitter_create(bt_text_split_names[i].list, &s, &err), BT_OK);
        bt_split_pieces pieces = { 0 };
        for (int round = 0; round < 60; round++) {
            char text[256];
            size_t size = 0;
            for (uint32_t n = roll(&d, 40); n > 0; n--) {
                const char *part = parts[roll(&d, BT_LEN(parts))];
                memcpy(text + size, part, strlen(part));
                size += strlen(part);
            }
            assert_int_equal(bt_text_splitter_run(s, text, size, &pieces, &err), BT_OK);
            size_t begin = 0;
            for (size_t k = 0; k < pieces.count; k++) {
                assert_true(pieces.ends[k] > begin);
                assert_true(bt_text_utf8_valid(text + begin, pieces.ends[k] - begin));
                begin = pieces.ends[k];
            }
            assert_int_equal(begin, size);
        }
        bt_text_split_pieces_done(&pieces);
        bt_text_splitter_destroy(s);
    }
}

/* A run of blanks before something else must not be tried from each of them: at 200,000 blanks that
 * would be 2 * 10^10 steps. */
static void long_runs_take_no_quadratic_time(void **state)
{
    (void)state;
    enum { N = 200000 };
    static char text[N + 3];
    static const char fills[] = { ' ', 'a', '\n', '!', '7', '\t' };
    for (size_t i = 0; i < bt_text_split_name_count; i++) {
        bt_error err = { 0 };
        bt_splitter *s;
        assert_int_equal(bt_text_splitter_create(bt_text_split_names[i].list, &s, &err), BT_OK);
        for (size_t k = 0; k < sizeof fills; k++) {
            bt_split_pieces pieces = { 0 };
            memset(text, fills[k], N);
            memcpy(text + N, "\xe4\xb8\xad", 3);
            assert_int_equal(bt_text_splitter_run(s, text, sizeof text, &pieces, &err), BT_OK);
            assert_int_equal(pieces.ends[pieces.count - 1], sizeof text);
            bt_text_split_pieces_done(&pieces);
        }
        bt_text_splitter_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_keep_the_blank_before_them),
        cmocka_unit_test(lists_differ_where_they_should),
        cmocka_unit_test(every_name_has_a_list),
        cmocka_unit_test(pieces_tile_any_text),
        cmocka_unit_test(long_runs_take_no_quadratic_time),
    };
    return cmocka_run_group_tests_name("text/split", tests, NULL, NULL);
}
