/* What two machines compare before they share keys and values: model/identity.c. */
#include "model/family.h"
#include "unit/model/tiny.h"

static bt_model_identity identity(const tiny_options *o)
{
    tiny_model m;
    bt_error err;
    if (tiny_open(&m, o, tiny_device(bt_cpu_isa_detect(), 1), &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    const bt_model_identity id = *bt_model_identity_of(m.model);
    tiny_close(&m);
    return id;
}

static void two_tokens(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "tokenizer.ggml.model", "gpt2");
    bt_gguf_writer_put_integer(w, "tokenizer.ggml.bos_token_id", BT_GGUF_U32, 1);
}

static void two_tokens_and_a_format(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, "tokenizer.ggml.bos_token_id", BT_GGUF_U32, 1);
    bt_gguf_writer_put_string(w, "tokenizer.chat_template", "{{ messages }}");
    bt_gguf_writer_put_string(w, "tokenizer.ggml.model", "gpt2");
}

static void other_tokens(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "tokenizer.ggml.model", "gpt2");
    bt_gguf_writer_put_integer(w, "tokenizer.ggml.bos_token_id", BT_GGUF_U32, 2);
}

static void longer_base(bt_gguf_writer *w)
{
    two_tokens(w);
    bt_gguf_writer_put_real(w, "llama.rope.freq_base", BT_GGUF_F32, 2e5);
}

/* A key that this build does not know may matter to the build at the other end. */
static void unknown_key(bt_gguf_writer *w)
{
    two_tokens(w);
    bt_gguf_writer_put_integer(w, "llama.attention.of_the_future", BT_GGUF_U32, 0);
}

static void expect_identity(const tiny_options *o, const bt_model_identity *a, bool weights,
                            bool tokenizer, bool geometry)
{
    const bt_model_identity b = identity(o);
    assert_int_equal(bt_digest_equal(&a->weights, &b.weights), weights);
    assert_int_equal(bt_digest_equal(&a->tokenizer, &b.tokenizer), tokenizer);
    assert_int_equal(bt_digest_equal(&a->geometry, &b.geometry), geometry);
}

static void identity_names_what_differs(void **state)
{
    tiny_options o = { .arch = "llama", .type = BT_TYPE_Q8_0, .type_v = BT_TYPE_Q8_0,
                       .more_keys = two_tokens };
    (void)state;
    const bt_model_identity a = identity(&o);
    expect_identity(&o, &a, true, true, true);
    o.backwards = true;
    expect_identity(&o, &a, true, true, true);
    o.more_keys = two_tokens_and_a_format;
    expect_identity(&o, &a, true, true, true);
    o.more_keys = other_tokens;
    expect_identity(&o, &a, true, false, true);
    o.more_keys = unknown_key;
    expect_identity(&o, &a, true, true, false);
    o.without_key = "llama.rope.freq_base";
    o.more_keys = longer_base;
    expect_identity(&o, &a, true, true, false);
    o = (tiny_options){ .arch = "llama", .type = BT_TYPE_Q8_0, .type_v = BT_TYPE_F16,
                        .more_keys = two_tokens };
    expect_identity(&o, &a, false, true, true);
    o.type_v = BT_TYPE_Q8_0;
    o.tied = true;
    expect_identity(&o, &a, false, true, true);
}

/* ---- every key ---- */

static void tokenizer_keys(bt_gguf_writer *w)
{
    static const char *const texts[] = { "a", "b" };
    const bt_gguf_string tokens[] = { { texts[0], 1 }, { texts[1], 1 } };
    static const float scores[] = { 0.5f, -1 };
    bt_gguf_writer_put_string(w, "tokenizer.ggml.model", "gpt2");
    bt_gguf_writer_put_string(w, "tokenizer.of_the_future", "x");
    bt_gguf_writer_put_strings(w, "tokenizer.ggml.tokens", tokens, 2);
    bt_gguf_writer_put_array(w, "tokenizer.ggml.scores", BT_GGUF_F32, scores, 2);
    bt_gguf_writer_put_integer(w, "tokenizer.ggml.add_bos_token", BT_GGUF_BOOL, 1);
    bt_gguf_writer_put_string(w, "tokenizer.chat_template", "{{ messages }}");
    bt_gguf_writer_put_string(w, "general.description", "says nothing of the computing");
}

static bool begins(const bt_gguf_pair *p, const char *prefix)
{
    return p->key.size >= strlen(prefix) && memcmp(p->key.data, prefix, strlen(prefix)) == 0;
}

static bt_model_identity identify(const bt_gguf *file, const char *arch, const bt_digest *contents)
{
    bt_model_identity id;
    assert_int_equal(bt_model_identify(file, arch, contents, &id, NULL), BT_OK);
    return id;
}

/* Changes each value of the file in turn and looks which digest notices. */
static void expect_all_keys_count(const char *arch)
{
    const tiny_options o = { .arch = arch, .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                             .more_keys = tokenizer_keys, .blank = true };
    size_t size;
    bt_gguf *file;
    char prefix[32];
    uint32_t n_geometry = 0, n_tokenizer = 0;
    uint8_t *bytes = tiny_make(&o, &size);
    snprintf(prefix, sizeof prefix, "%s.", arch);
    assert_int_equal(bt_gguf_open_memory(bytes, size, "tiny.gguf", &file, NULL), BT_OK);
    bt_digest *contents = calloc(bt_gguf_tensor_count(file) + 1, sizeof *contents);
    const bt_model_identity a = identify(file, arch, contents);
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *p = bt_gguf_pair_at(file, i);
        const bool geometry = begins(p, prefix);
        const bool tokenizer = begins(p, "tokenizer.") && !begins(p, "tokenizer.chat_template");
        uint8_t *value = bytes + (p->data - bytes) + (p->element == BT_GGUF_STRING ? 8 : 0);
        *value ^= 1;
        const bt_model_identity b = identify(file, arch, contents);
        *value ^= 1;
        assert_true(bt_digest_equal(&a.weights, &b.weights));
        if (bt_digest_equal(&a.geometry, &b.geometry) == geometry ||
            bt_digest_equal(&a.tokenizer, &b.tokenizer) == tokenizer) {
            fail_msg("%s: %.*s", arch, (int)p->key.size, p->key.data);
        }
        n_geometry += geometry;
        n_tokenizer += tokenizer;
    }
    assert_true(n_geometry >= 10);
    assert_int_equal(n_tokenizer, 5);
    free(contents);
    bt_gguf_close(file);
    free(bytes);
}

static void any_key_of_the_architecture_or_the_tokenizer_changes_the_identity(void **state)
{
    static const char *const archs[] = { "llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "qwen35",
                                         "qwen35moe", "qwen3next" };
    (void)state;
    for (size_t i = 0; i < BT_LEN(archs); i++) {
        expect_all_keys_count(archs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_names_what_differs),
        cmocka_unit_test(any_key_of_the_architecture_or_the_tokenizer_changes_the_identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
