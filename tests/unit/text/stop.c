/* text/tokenizer.h: an encoder that is asked to stop does, soon, and leaves no half list. */
#include "unit/text/vocabulary.h"

#include <stdlib.h>

static bool after_some(void *context)
{
    return ++*(unsigned *)context > 3;
}

static void expect_stop(const bt_tokenizer *t, char letter)
{
    enum { SIZE = 1 << 20 };
    char *text = malloc(SIZE);
    memset(text, letter, SIZE);
    unsigned n_asked = 0;
    bt_tokens ids;
    bt_error err = { 0 };
    const bt_encode_options options = { 0 };
    bt_text_tokens_init(&ids);
    ids.stop = after_some;
    ids.stop_context = &n_asked;
    assert_int_equal(bt_text_tokenizer_encode(t, text, SIZE, &options, &ids, &err),
                     BT_E_CANCELLED);
    assert_int_equal(n_asked, 4);
    assert_int_equal(ids.count, 0);
    bt_text_tokens_done(&ids);
    free(text);
}

static void a_text_is_left_when_nobody_wants_it(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_bytes(&v);
    (void)vocabulary_merge(&v, "a a");
    vocabulary_keys(&v, "gpt2", "gpt-2");
    bt_tokenizer *t = vocabulary_tokenizer(&v);
    expect_stop(t, 'x');                       /* between tokens */
    expect_stop(t, 'a');                       /* within one piece that merges and merges */
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_left_when_nobody_wants_it),
    };
    return cmocka_run_group_tests_name("text/stop", tests, NULL, NULL);
}
