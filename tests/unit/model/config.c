/* model/model.h: bt_model_config_read on keys that are missing, wrong or out of every bound. */
#include <math.h>

#include "base/bytes.h"
#include "unit/model/tiny.h"

typedef void add_keys(bt_gguf_writer *w);

static bt_status read_config(const char *arch, const char *without, add_keys *more,
                             bt_model_config *ret_config, bt_error *err)
{
    const tiny_options o = { .arch = arch, .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                             .without_key = without, .more_keys = more, .blank = true };
    size_t size;
    bt_gguf *file = NULL;
    uint8_t *bytes = tiny_make(&o, &size);
    *err = (bt_error){ 0 };
    bt_status status = bt_gguf_open_memory(bytes, size, "tiny.gguf", &file, err);
    if (status == BT_OK) {
        status = bt_model_config_read(file, ret_config, err);
    }
    bt_gguf_close(file);
    free(bytes);
    return status;
}

static void expect_refused(const char *arch, const char *without, add_keys *more, bt_status wanted,
                           const char *words)
{
    bt_model_config c = { .n_layers = 99 };
    bt_error err;
    const bt_status status = read_config(arch, without, more, &c, &err);
    if (status != wanted || !strstr(err.text, words)) {
        fail_msg("%s, '%s': should be %s and say '%s'", bt_status_name(status), err.text,
                 bt_status_name(wanted), words);
    }
    assert_int_equal(c.n_layers, 99);      /* untouched */
}

static bt_model_config expect_read(const char *arch, const char *without, add_keys *more)
{
    bt_model_config c;
    bt_error err;
    if (read_config(arch, without, more, &c, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return c;
}

static void required_keys_are_named(void **state)
{
    static const char *const keys[] = {
        "llama.block_count", "llama.context_length", "llama.embedding_length",
        "llama.feed_forward_length", "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(keys); i++) {
        expect_refused("llama", keys[i], NULL, BT_E_BADFILE, keys[i]);
    }
}

/* One key with one number, for a table of cases. */
static struct { const char *key; uint64_t value; } number;

static void put_number(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, number.key, BT_GGUF_U64, number.value);
}

static void numbers_beyond_limits_are_refused(void **state)
{
    static const struct { const char *key; uint64_t value; const char *words;
    } cases[] = {
            {"llama.block_count", 0, "llama.block_count is 0, but must be 1 to 512"},
            {"llama.block_count", 513, "llama.block_count is 513, but must be 1 to 512"},
            {"llama.block_count", UINT64_MAX, "llama.block_count"},
            {"llama.embedding_length", 0, "embedding_length is 0"},
            {"llama.embedding_length", 1 << 21,
             "embedding_length is 2097152, but must be 1 to 1048576"},
            {"llama.feed_forward_length", 0, "feed_forward_length is 0 in layer 0"},
            {"llama.feed_forward_length", 1 << 21, "feed_forward_length is 2097152 in layer 0"},
            {"llama.context_length", 0, "context_length is 0"},
            {"llama.context_length", 1 << 25, "context_length is 33554432"},
            {"llama.attention.head_count", 0, "head_count is 0 in layer 0"},
            {"llama.attention.head_count", 1025, "head_count is 1025 in layer 0"},
            {"llama.attention.head_count_kv", 0, "head_count_kv is 0 in layer 0"},
            {"llama.attention.head_count_kv", 3, "4 heads and 3 heads of keys"},
            {"llama.attention.head_count_kv", 8, "4 heads and 8 heads of keys"},
            {"llama.attention.key_length", 0, "key_length is 0"},
            {"llama.attention.key_length", 8193, "key_length is 8193, but must be 1 to 8192"},
            {"llama.attention.value_length", 8193, "value_length is 8193"},
            {"llama.rope.dimension_count", 63, "63 values of each head are rotated"},
            {"llama.rope.dimension_count", 66, "dimension_count is 66, but must be 2 to 64"},
            {"llama.rope.dimension_count", 32, "rotates all 64 values of a head, not 32"},
            {"llama.rope.scaling.original_context_length", 0, "original_context_length is 0"},
            {"llama.expert_count", 8193, "expert_count is 8193, but must be 0 to 8192"},
            {"llama.expert_count", 8, "llama.expert_used_count"},
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const bt_status wanted = strstr(cases[i].words, "rotates all") ? BT_E_UNSUPPORTED
                                                                        : BT_E_BADFILE;
        number.key = cases[i].key;
        number.value = cases[i].value;
        expect_refused("llama", cases[i].key, put_number, wanted, cases[i].words);
    }
}

static void numbers_of_hybrids_are_checked(void **state)
{
    static const struct { const char *arch, *key; uint64_t value; const char *words;
    } cases[] = {
            {"qwen35", "nextn_predict_layers", 3, "nextn_predict_layers is 3, but must be 0 to 2"},
            {"qwen35", "full_attention_interval", 0, "interval is 0, but must be 1 to 512"},
            {"qwen35", "full_attention_interval", 4, "none of 3 layers has attention"},
            {"qwen35", "ssm.conv_kernel", 0, "conv_kernel is 0, but must be 1 to 16"},
            {"qwen35", "ssm.conv_kernel", 17, "conv_kernel is 17, but must be 1 to 16"},
            {"qwen35", "ssm.state_size", 0, "state_size is 0, but must be 1 to 1024"},
            {"qwen35", "ssm.state_size", 1025, "state_size is 1025"},
            {"qwen35", "ssm.state_size", 64, "4 value heads of 64 (inner size 128) on 2 key heads"},
            {"qwen35", "ssm.group_count", 3, "on 3 key heads do not fit together"},
            {"qwen35", "ssm.group_count", UINT32_MAX, "group_count is 4294967295"},
            {"qwen35", "ssm.time_step_rank", 0, "time_step_rank is 0"},
            {"qwen35", "ssm.inner_size", 1u << 31, "inner_size is 2147483648"},
            {"qwen35", "attention.value_length", 32, "needs them equal"},
            {"qwen35", "rope.dimension_count", 17, "17 values of each head are rotated"},
            {"qwen35moe", "expert_count", 0, "expert_count is 0, but must be 1 to 8192"},
            {"qwen35moe", "expert_count", 8193, "expert_count is 8193"},
            {"qwen35moe", "expert_used_count", 0, "expert_used_count is 0, but must be 1 to 4"},
            {"qwen35moe", "expert_used_count", 5, "expert_used_count is 5, but must be 1 to 4"},
            {"qwen35moe", "expert_feed_forward_length", 0, "expert_feed_forward_length is 0"},
            {"qwen35moe", "expert_feed_forward_length", 1u << 21, "must be 1 to 1048576"},
            {"qwen35moe", "expert_shared_feed_forward_length", 1u << 21, "must be 0 to 1048576"},
            {"qwen3moe", "expert_used_count", 65, "expert_used_count is 65"},
            {"qwen2", "expert_count", 8, "architecture 'qwen2' is not known with experts"},
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%s", cases[i].arch, cases[i].key);
        const bool unsupported = strstr(cases[i].words, "not known with") ||
                                 strstr(cases[i].words, "has attention") ||
                                 strstr(cases[i].words, "needs them");
        number.key = key;
        number.value = cases[i].value;
        expect_refused(cases[i].arch, key, put_number,
                       unsupported ? BT_E_UNSUPPORTED : BT_E_BADFILE, cases[i].words);
    }
}

static void required_keys_of_hybrids_are_named(void **state)
{
    static const char *const keys[] = {
        "qwen35moe.ssm.conv_kernel", "qwen35moe.ssm.state_size", "qwen35moe.ssm.group_count",
        "qwen35moe.ssm.time_step_rank", "qwen35moe.ssm.inner_size", "qwen35moe.expert_count",
        "qwen35moe.expert_used_count", "qwen35moe.expert_feed_forward_length",
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(keys); i++) {
        expect_refused("qwen35moe", keys[i], NULL, BT_E_BADFILE, keys[i]);
    }
}

/* Flags of layers, one more for the block behind them; heads with anything where there are none. */
static struct { const char *key; bt_gguf_value_type type; uint32_t n; uint64_t values[5]; } list;

static void put_list(bt_gguf_writer *w)
{
    uint8_t bytes[sizeof list.values];
    const uint32_t size = list.type == BT_GGUF_BOOL ? 1 : 4;
    for (uint32_t i = 0; i < list.n; i++) {
        bt_put_le32(bytes + 4 * i, (uint32_t)list.values[i]);
        memmove(bytes + size * i, bytes + 4 * i, size);
    }
    bt_gguf_writer_put_array(w, list.key, list.type, bytes, list.n);
    if (list.n == 4) {
        bt_gguf_writer_put_integer(w, "qwen35.nextn_predict_layers", BT_GGUF_U32, 1);
        bt_gguf_writer_put_integer(w, "qwen35.block_count", BT_GGUF_U32, 4);
    }
}

static void flags_win_over_the_interval(void **state)
{
    static const char flags[] = "qwen35.attention.recurrent_layers";
    (void)state;
    for (list.n = 3; list.n <= 4; list.n++) {
        list.key = flags;
        list.type = BT_GGUF_BOOL;
        memcpy(list.values, (const uint64_t[]){ 0, 1, 0, 0 }, 4 * sizeof list.values[0]);
        const bt_model_config c =
                expect_read("qwen35", list.n == 4 ? "qwen35.block_count" : NULL, put_list);
        assert_int_equal(c.n_layers, 3);
        assert_int_equal(c.n_blocks_behind, list.n - 3);
        assert_false(c.recurrent[0]);
        assert_true(c.recurrent[1]);
        assert_false(c.recurrent[2]);
        assert_int_equal(c.n_heads[0], TINY_HEADS);
        assert_int_equal(c.n_heads[1], 0);
    }
    list.n = 3;
    memcpy(list.values, (const uint64_t[]){ 1, 1, 1 }, 3 * sizeof list.values[0]);
    expect_refused("qwen35", NULL, put_list, BT_E_UNSUPPORTED, "none of 3 layers has attention");
    list.n = 2;
    expect_refused("qwen35", NULL, put_list, BT_E_BADFILE, "array of 2 values");
    list.key = "qwen35.attention.head_count_kv";
    list.type = BT_GGUF_U32;
    list.n = 3;
    memcpy(list.values, (const uint64_t[]){ 0, 77777, 1 }, 3 * sizeof list.values[0]);
    const bt_model_config c = expect_read("qwen35", "qwen35.attention.head_count_kv", put_list);
    assert_int_equal(c.n_kv_heads[1], 0);
    assert_int_equal(c.n_kv_heads[2], 1);
    list.values[2] = 0;
    expect_refused("qwen35", "qwen35.attention.head_count_kv", put_list, BT_E_BADFILE,
                   "head_count_kv is 0 in layer 2");
    list.key = "qwen35.rope.dimension_sections";
    list.type = BT_GGUF_I32;
    memcpy(list.values, (const uint64_t[]){ 3, 3, 2 }, 3 * sizeof list.values[0]);
    expect_read("qwen35", NULL, put_list);
    list.values[2] = 1;
    expect_refused("qwen35", NULL, put_list, BT_E_BADFILE, "hold 7 pairs, but 8 are rotated");
    list.values[2] = UINT32_MAX;
    expect_refused("qwen35", NULL, put_list, BT_E_BADFILE, "the sections hold");
}

static struct { const char *key; double value; } real;

static void put_real(bt_gguf_writer *w)
{
    bt_gguf_writer_put_real(w, real.key, BT_GGUF_F32, real.value);
}

static void reals_out_of_range_are_refused(void **state)
{
    static const struct { const char *key; double value; } cases[] = {
        { "llama.attention.layer_norm_rms_epsilon", -1e-6 },
        { "llama.attention.layer_norm_rms_epsilon", NAN },
        { "llama.attention.layer_norm_rms_epsilon", 2 },
        { "llama.rope.freq_base", 0 }, { "llama.rope.freq_base", INFINITY },
        { "llama.rope.freq_base", NAN }, { "llama.rope.scaling.factor", -4 },
        { "llama.rope.scaling.factor", NAN }, { "llama.rope.scaling.attn_factor", INFINITY },
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        real.key = cases[i].key;
        real.value = cases[i].value;
        expect_refused("llama", cases[i].key, put_real, BT_E_BADFILE, cases[i].key);
    }
}

static void wrong_types(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "llama.block_count", "three");
}

static void short_list(bt_gguf_writer *w)
{
    static const uint32_t heads[] = { 4, 4 };
    bt_gguf_writer_put_array(w, "llama.attention.head_count", BT_GGUF_U32, heads, BT_LEN(heads));
}

static void odd_scaling(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "llama.rope.scaling.type", "magic");
}

static void wide_heads(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, "llama.attention.head_count", BT_GGUF_U32, 1024);
    bt_gguf_writer_put_integer(w, "llama.attention.head_count_kv", BT_GGUF_U32, 1024);
}

static void many_tokens(bt_gguf_writer *w)
{
    static const bt_gguf_string tokens[] = { { "a", 1 }, { "b", 1 } };
    bt_gguf_writer_put_strings(w, "tokenizer.ggml.tokens", tokens, BT_LEN(tokens));
}

static void other_mistakes_are_named(void **state)
{
    (void)state;
    expect_refused("llama", "llama.block_count", wrong_types, BT_E_BADFILE, "llama.block_count");
    expect_refused("llama", "llama.attention.head_count", short_list, BT_E_BADFILE,
                   "llama.attention.head_count");
    expect_refused("llama", NULL, odd_scaling, BT_E_UNSUPPORTED, "scaling.type is 'magic'");
    expect_refused("llama", NULL, many_tokens, BT_E_BADFILE, "the tokenizer has 2 tokens");
    expect_refused("mamba", NULL, NULL, BT_E_UNSUPPORTED,
                   "'mamba' is not supported; this build knows llama, qwen2, qwen3, gemma3");
    number.key = "llama.attention.key_length";
    number.value = 4096;
    /* 1,024 heads of 4,096 values pass each limit alone. */
    expect_refused("llama", "llama.attention.head_count", wide_heads, BT_E_BADFILE,
                   "llama.attention");
}

static void defaults_follow_from_other_keys(void **state)
{
    (void)state;
    bt_model_config c = expect_read("llama", "llama.attention.head_count_kv", NULL);
    assert_int_equal(c.n_kv_heads[2], TINY_HEADS);
    c = expect_read("llama", "llama.attention.key_length", NULL);
    assert_int_equal(c.head_dim_k, TINY_WIDTH / TINY_HEADS);
    c = expect_read("llama", "llama.rope.freq_base", NULL);
    assert_true(c.rope_base == 10000.0f);
    assert_int_equal(c.n_rot, TINY_DIM);
    assert_true(c.attention_scale == 0.125f);
    assert_true(c.rope_factor == 1.0f);
    assert_int_equal(c.rope_ctx_original, TINY_CONTEXT);
    assert_int_equal(c.rope_style, BT_ROPE_NORM);
    c = expect_read("qwen2", NULL, NULL);
    assert_int_equal(c.rope_style, BT_ROPE_NEOX);
    assert_true(c.n_params > 1000000 && c.weight_bytes > 2000000);
}

static void yarn_keys(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "llama.rope.scaling.type", "yarn");
    bt_gguf_writer_put_real(w, "llama.rope.scaling.factor", BT_GGUF_F32, 4);
    bt_gguf_writer_put_integer(w, "llama.rope.scaling.original_context_length", BT_GGUF_U32, 256);
}

static void none_keys(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "llama.rope.scaling.type", "none");
    bt_gguf_writer_put_real(w, "llama.rope.scaling.factor", BT_GGUF_F32, 4);
}

static void scaling_is_read(void **state)
{
    (void)state;
    bt_model_config c = expect_read("llama", NULL, yarn_keys);
    assert_int_equal(c.rope_scaling, BT_ROPE_YARN);
    assert_true(c.rope_factor == 4.0f);
    assert_int_equal(c.rope_ctx_original, 256);
    c = expect_read("llama", NULL, none_keys);
    assert_true(c.rope_factor == 1.0f);
}

static void longrope_keys(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "llama.rope.scaling.type", "longrope");
    bt_gguf_writer_put_integer(w, "llama.rope.scaling.original_context_length", BT_GGUF_U32, 256);
}

static void put_factors(bt_gguf_writer *w, const char *name)
{
    static const float ones[TINY_DIM / 2] = { 0 };
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
        .name = name, .type = BT_TYPE_F32, .n_dims = 1, .ne = { TINY_DIM / 2 }, .data = ones,
        .size = sizeof ones });
}

static void long_factors_alone(bt_gguf_writer *w)
{
    longrope_keys(w);
    put_factors(w, "rope_factors_long.weight");
}

static void both_factors(bt_gguf_writer *w)
{
    long_factors_alone(w);
    put_factors(w, "rope_factors_short.weight");
}

static void long_prompts_are_those_above_the_original_context(void **state)
{
    (void)state;
    bt_model_config c = expect_read("llama", NULL, both_factors);
    assert_int_equal(c.rope_scaling, BT_ROPE_LONG);
    assert_false(bt_model_is_long(&c, 1));
    assert_false(bt_model_is_long(&c, 256));
    assert_true(bt_model_is_long(&c, 257));
    c = expect_read("llama", NULL, longrope_keys);         /* no factors, no difference */
    assert_false(bt_model_is_long(&c, 257));
    c = expect_read("llama", NULL, yarn_keys);
    assert_false(bt_model_is_long(&c, 257));
    expect_refused("llama", NULL, long_factors_alone, BT_E_BADFILE,
                   "tensor 'rope_factors_short.weight' is missing");
}

static void gemma_flags(bt_gguf_writer *w)
{
    static const uint8_t flags[] = { 0, 1, 0 };
    bt_gguf_writer_put_array(w, "gemma3.attention.sliding_window_pattern", BT_GGUF_BOOL, flags, 3);
}

static void gemma_patterns(void **state)
{
    static const char key[] = "gemma3.attention.sliding_window_pattern";
    (void)state;
    bt_model_config c = expect_read("gemma3", NULL, NULL);
    assert_true(c.slides[0] && !c.slides[1] && c.slides[2]);
    assert_int_equal(c.window, 24);
    assert_true(c.logit_softcap == 20.0f);
    assert_true(c.rope_base_swa == 10000.0f);
    c = expect_read("gemma3", key, gemma_flags);
    assert_true(!c.slides[0] && c.slides[1] && !c.slides[2]);
    c = expect_read("gemma3", key, NULL);          /* every sixth: none of three */
    assert_true(c.slides[0] && c.slides[1] && c.slides[2]);
    number.key = key;
    number.value = 0;
    c = expect_read("gemma3", key, put_number);
    assert_true(c.slides[0] && c.slides[1] && c.slides[2]);
    number.value = 1;
    c = expect_read("gemma3", key, put_number);
    assert_true(!c.slides[0] && !c.slides[1] && !c.slides[2]);
    c = expect_read("gemma3", "gemma3.attention.sliding_window", NULL);
    assert_true(!c.slides[0] && c.window == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_follow_from_other_keys),
        cmocka_unit_test(required_keys_are_named),
        cmocka_unit_test(numbers_beyond_limits_are_refused),
        cmocka_unit_test(numbers_of_hybrids_are_checked),
        cmocka_unit_test(required_keys_of_hybrids_are_named),
        cmocka_unit_test(flags_win_over_the_interval),
        cmocka_unit_test(reals_out_of_range_are_refused),
        cmocka_unit_test(other_mistakes_are_named),
        cmocka_unit_test(scaling_is_read),
        cmocka_unit_test(long_prompts_are_those_above_the_original_context),
        cmocka_unit_test(gemma_patterns),
    };
    return cmocka_run_group_tests_name("model/config", tests, NULL, NULL);
}
