/* Ids of real vocabularies: BATON_GOLDEN_DIR/tokenizers holds NAME.gguf and NAME.json, which is a
 * list of [text, ids], encoded without BOS and with special tokens left as text. Skipped without.
 * */
#include "unit/text/vocabulary.h"

#include "unit/text/json.h"

static const char *const names[] = {"deepseek-coder", "falcon", "gpt-2",    "llama-spm", "mpt",
                                    "phi-3",          "refact", "starcoder"};

static void check_case(const bt_tokenizer *t, json_reader *r, const char *name, size_t index)
{
    static char text[1 << 16];
    static uint32_t want[1 << 16];
    json_expect(r, '[');
    const size_t size = json_string(r, text, sizeof text);
    json_expect(r, ',');
    json_expect(r, '[');
    size_t n = 0;
    while (!json_accept(r, ']')) {
        if (n > 0) {
            json_expect(r, ',');
        }
        assert_true(n < BT_LEN(want));
        want[n++] = (uint32_t)json_number(r);
    }
    json_expect(r, ']');
    bt_error err = { 0 };
    bt_tokens got;
    bt_text_tokens_init(&got);
    const bt_encode_options o = { 0 };
    assert_int_equal(bt_text_tokenizer_encode(t, text, size, &o, &got, &err), BT_OK);
    char what[128];
    snprintf(what, sizeof what, "%s, case %zu", name, index);
    expect_ids(&got, want, n, what);
    bt_text_tokens_done(&got);
}

static void golden_ids_are_equal(void **state)
{
    (void)state;
    const char *folder = getenv("BATON_GOLDEN_DIR");
    if (!folder) {
        print_message("BATON_GOLDEN_DIR is not set\n");
        skip();
    }
    size_t n_cases = 0;
    for (size_t i = 0; i < BT_LEN(names); i++) {
        char path[1024];
        bt_error err = { 0 };
        bt_gguf *file;
        bt_tokenizer *t;
        snprintf(path, sizeof path, "%s/tokenizers/%s.gguf", folder, names[i]);
        if (bt_gguf_open(path, &file, &err) != BT_OK ||
            bt_text_tokenizer_create(file, &t, &err) != BT_OK) {
            fail_msg("%s: %s", path, err.text);
        }
        bt_gguf_close(file);
        snprintf(path, sizeof path, "%s/tokenizers/%s.json", folder, names[i]);
        json_reader r = json_open(path);
        json_expect(&r, '[');
        for (size_t k = 0; !json_accept(&r, ']'); k++) {
            if (k > 0) {
                json_expect(&r, ',');
            }
            check_case(t, &r, names[i], k);
            n_cases++;
        }
        json_close(&r);
        bt_text_tokenizer_destroy(t);
    }
    print_message("%zu cases of %zu vocabularies\n", n_cases, BT_LEN(names));
    assert_true(n_cases >= 8 * 30);
}

int main(void)
{
    bt_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = { cmocka_unit_test(golden_ids_are_equal) };
    return cmocka_run_group_tests_name("text/golden", tests, NULL, NULL);
}
