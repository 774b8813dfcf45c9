/* Real models, where BATON_MODELS_DIR has them: SmolLM2's template and tokens, Gemma 3's tokens.
 * Skipped without. */
#include "unit/text/vocabulary.h"

#include "text/chat.h"

#define SMOLLM2 "smollm2-135m-instruct-q4_1.gguf"
#define GEMMA3 "gemma-3-270m-q4_k_m.gguf"

static bt_gguf *open_model(const char *name)
{
    char path[1024];
    bt_error err = { 0 };
    bt_gguf *file;
    const char *folder = getenv("BATON_MODELS_DIR");
    if (!folder) {
        print_message("BATON_MODELS_DIR is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (bt_gguf_open(path, &file, &err) != BT_OK) {
        print_message("%s\n", err.text);
        skip();
    }
    return file;
}

static bt_tokenizer *tokenizer_of(const bt_gguf *file)
{
    bt_error err = { 0 };
    bt_tokenizer *t = NULL;
    if (bt_text_tokenizer_create(file, &t, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

static void smollm2_chats_as_its_template_says(void **state)
{
    (void)state;
    bt_gguf *file = open_model(SMOLLM2);
    bt_tokenizer *t = tokenizer_of(file);
    bt_error err = { 0 };
    bt_chat_format *f = NULL;
    assert_int_equal(bt_text_chat_format_create(file, t, NULL, &f, &err), BT_OK);
    bt_gguf_close(file);
    assert_string_equal(bt_text_chat_format_name(f), "chatml");

    static const struct { bt_chat_message messages[2]; size_t n; const char *want; } cases[] = {
        { { { "user", "Hello", 5 } }, 1,
          "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
          "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n" },
        { { { "system", "Be brief.", 9 }, { "user", " Hi ", 4 } }, 2,
          "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
          "<|im_start|>assistant\n" },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const bt_chat_options o = { .add_generation_prompt = true };
        bt_chat_prompt p;
        bt_tokens ids;
        bt_buf text;
        bt_text_chat_prompt_init(&p);
        bt_text_tokens_init(&ids);
        bt_buf_init(&text, BT_MEM_test, 4096);
        assert_int_equal(bt_text_chat_render(f, cases[i].messages, cases[i].n, &o, &p, &err),
                         BT_OK);
        assert_string_equal(bt_buf_text(&p.text), cases[i].want);
        assert_int_equal(bt_text_tokenizer_encode_spans(t, p.spans, p.n_spans, true, &ids, &err),
                         BT_OK);
        assert_int_equal(ids.ids[0], bt_text_tokenizer_find(t, "<|im_start|>", 12));
        bt_text_tokenizer_decode(t, ids.ids, ids.count, true, &text);
        assert_string_equal(bt_buf_text(&text), cases[i].want);
        bt_buf_done(&text);
        bt_text_tokens_done(&ids);
        bt_text_chat_prompt_done(&p);
    }
    assert_true(bt_text_tokenizer_is_eog(t, bt_text_tokenizer_find(t, "<|im_end|>", 10)));
    assert_true(bt_text_tokenizer_is_eog(t, bt_text_tokenizer_find(t, "<|endoftext|>", 13)));
    bt_text_chat_format_destroy(f);
    bt_text_tokenizer_destroy(t);
}

static void gemma3_cuts_runs_of_newlines_and_blanks(void **state)
{
    (void)state;
    bt_gguf *file = open_model(GEMMA3);
    bt_tokenizer *t = tokenizer_of(file);
    bt_error err = { 0 };
    bt_chat_format *f = NULL;
    /* A base model: it has no template, so its family's format must be named. */
    if (!bt_gguf_find(file, "tokenizer.chat_template")) {
        assert_int_equal(bt_text_chat_format_create(file, t, NULL, &f, &err), BT_E_UNSUPPORTED);
    }
    assert_int_equal(bt_text_chat_format_create(file, t, "gemma", &f, &err), BT_OK);
    bt_gguf_close(file);
    EXPECT(t, "\n\n\n", false, bt_text_tokenizer_find(t, "\n\n\n", 3));
    EXPECT(t, "    ", false, bt_text_tokenizer_find(t, "    ", 4));
    const uint32_t turn = bt_text_tokenizer_find(t, "<start_of_turn>", 15);
    EXPECT(t, "<start_of_turn>", true, turn);
    assert_true(bt_text_tokenizer_adds_bos(t));

    const bt_chat_message messages[] = { { "user", "Hi", 2 } };
    const bt_chat_options o = { .add_generation_prompt = true };
    bt_chat_prompt p;
    bt_tokens ids;
    bt_text_chat_prompt_init(&p);
    bt_text_tokens_init(&ids);
    assert_int_equal(bt_text_chat_render(f, messages, 1, &o, &p, &err), BT_OK);
    assert_string_equal(bt_buf_text(&p.text), "<start_of_turn>user\nHi<end_of_turn>\n"
                                              "<start_of_turn>model\n");
    assert_int_equal(bt_text_tokenizer_encode_spans(t, p.spans, p.n_spans, true, &ids, &err),
                     BT_OK);
    assert_int_equal(ids.ids[0], bt_text_tokenizer_bos(t));
    assert_int_equal(ids.ids[1], turn);
    assert_int_not_equal(ids.ids[2], turn);
    bt_text_tokens_done(&ids);
    bt_text_chat_prompt_done(&p);
    bt_text_chat_format_destroy(f);
    bt_text_tokenizer_destroy(t);
}

int main(void)
{
    bt_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_chats_as_its_template_says),
        cmocka_unit_test(gemma3_cuts_runs_of_newlines_and_blanks),
    };
    return cmocka_run_group_tests_name("text/models", tests, NULL, NULL);
}
