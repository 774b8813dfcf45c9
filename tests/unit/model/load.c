/* model/model.h: loading files that are right, and files that are not. */
#include "unit/model/tiny.h"

static const char *const archs[] = { "llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "qwen35",
                                     "qwen35moe", "qwen3next" };

/* Two delta nets: three rows of all channels and a matrix per value head. */
enum { STATE_BYTES = 2 * 4 * (3 * (2 * TINY_DELTA_K + TINY_DELTA_V) * TINY_DELTA_DIM +
                              TINY_DELTA_V * TINY_DELTA_DIM * TINY_DELTA_DIM) };

static void every_family_loads(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_LEN(archs); i++) {
        tiny_model m;
        bt_error err;
        const tiny_options o = { .arch = archs[i], .type = BT_TYPE_Q4_0, .type_v = BT_TYPE_Q8_0,
                                 .tied = i % 2 == 0 };
        if (tiny_open(&m, &o, tiny_device(bt_cpu_isa_detect(), 1), &err) != BT_OK) {
            fail_msg("%s: %s", archs[i], err.text);
        }
        const bt_model_config *c = bt_model_config_of(m.model);
        assert_string_equal(c->architecture, archs[i]);
        assert_string_equal(c->name, "tiny");
        assert_int_equal(c->n_layers, TINY_LAYERS);
        assert_int_equal(c->n_vocab, TINY_VOCAB);
        assert_int_equal(c->head_dim_k, TINY_DIM);
        /* Of a hybrid only the last layer keeps keys and values. */
        const uint32_t n_attention = tiny_is_hybrid(&o) ? 1 : TINY_LAYERS;
        assert_int_equal(bt_model_k_dim(c, 2), TINY_KV_HEADS * TINY_DIM);
        assert_int_equal(bt_model_k_dim(c, 1), n_attention == 1 ? 0 : TINY_KV_HEADS * TINY_DIM);
        assert_int_equal(bt_model_has_state(c), n_attention == 1);
        assert_int_equal(bt_model_state_bytes(c), n_attention == 1 ? STATE_BYTES : 0);
        assert_int_equal(
                bt_model_kv_token_bytes(c, BT_TYPE_F16, BT_TYPE_Q8_0),
                n_attention * (TINY_KV_HEADS * TINY_DIM * 2 + TINY_KV_HEADS * TINY_DIM * 34 / 32));
        /* A pushing tape has one mark more per layer. */
        assert_int_equal(bt_ops_tape_count(bt_model_tape(m.model, true)),
                         bt_ops_tape_count(bt_model_tape(m.model, false)) + TINY_LAYERS);
        tiny_close(&m);
    }
}

static void the_list_of_families_is_complete(void **state)
{
    (void)state;
    const char *at = bt_model_families();
    for (size_t i = 0; i < BT_LEN(archs); i++) {
        assert_memory_equal(at, archs[i], strlen(archs[i]));
        at += strlen(archs[i]);
        assert_true(i + 1 < BT_LEN(archs) ? strncmp(at, ", ", 2) == 0 : *at == '\0');
        at += 2;
    }
}

static void expect_refused(const tiny_options *o, bt_status wanted, const char *words)
{
    tiny_model m;
    bt_error err;
    const bt_status status = tiny_open(&m, o, tiny_device(bt_cpu_isa_detect(), 1), &err);
    if (status != wanted || !strstr(err.text, words)) {
        fail_msg("%s, '%s': should be %s and say '%s'", bt_status_name(status), err.text,
                 bt_status_name(wanted), words);
    }
    assert_null(m.model);
    tiny_close(&m);
}

static void wrong_tensors_are_named(void **state)
{
    (void)state;
    tiny_options o = { .arch = "llama", .type = BT_TYPE_Q4_0, .type_v = BT_TYPE_F16 };
    o.without_tensor = "blk.1.ffn_down.weight";
    expect_refused(&o, BT_E_BADFILE, "tensor 'blk.1.ffn_down.weight' (512 x 256) is missing");
    o.without_tensor = "token_embd.weight";
    expect_refused(&o, BT_E_BADFILE, "llama.vocab_size");
    o.without_tensor = "output_norm.weight";
    expect_refused(&o, BT_E_BADFILE, "'output_norm.weight' (256 x 1) is missing");
    o.without_tensor = NULL;
    o.wider_tensor = "blk.2.attn_k.weight";
    expect_refused(&o, BT_E_BADFILE, "'blk.2.attn_k.weight' is 256 x 129, but 256 x 128 is wanted");
    o.wider_tensor = "blk.0.attn_norm.weight";
    expect_refused(&o, BT_E_BADFILE, "'blk.0.attn_norm.weight' is 257, but 256 values are wanted");
    o.wider_tensor = "output.weight";
    expect_refused(&o, BT_E_BADFILE, "'output.weight' is 256 x 321, but 256 x 320 is wanted");
    o.wider_tensor = NULL;
    o.strange_tensor = "blk.0.ffn_up.weight";
    expect_refused(&o, BT_E_UNSUPPORTED, "'blk.0.ffn_up.weight' is of type IQ2_XXS");
    o.strange_tensor = "token_embd.weight";
    expect_refused(&o, BT_E_UNSUPPORTED, "'token_embd.weight' is of type IQ2_XXS");
    o.strange_tensor = NULL;
    o.extra_tensor = "blk.0.attn_q_norm.weight";
    expect_refused(&o, BT_E_UNSUPPORTED,
                   "'blk.0.attn_q_norm.weight' is not part of architecture 'llama'");
    o.extra_tensor = NULL;
    o.arch = "qwen2";
    o.without_tensor = "blk.1.attn_k.bias";
    expect_refused(&o, BT_E_BADFILE,
                   "blk.1.attn_q.bias, attn_k.bias and attn_v.bias one is missing");
    o.without_tensor = NULL;
    o.fused = true;
    expect_refused(&o, BT_E_BADFILE, "'blk.0.attn_q.weight' (256 x 256) is missing");
    o.fused = false;
    o.arch = "qwen3";
    o.without_tensor = "blk.0.attn_k_norm.weight";
    expect_refused(&o, BT_E_BADFILE, "'blk.0.attn_k_norm.weight' (64 x 1) is missing");
}

static void wrong_tensors_of_hybrids_are_named(void **state)
{
    static const struct {
        const char *arch, *missing, *wider, *words;
        bt_status status;
    } cases[] = {
        { "qwen35", "blk.0.ssm_a", NULL, "'blk.0.ssm_a' (4 x 1) is missing", BT_E_BADFILE },
        { "qwen35", "blk.1.ssm_conv1d.weight", NULL, "(4 x 256 x 1) is missing", BT_E_BADFILE },
        { "qwen35", "blk.2.attn_q.weight", NULL, "(256 x 512 x 1) is missing", BT_E_BADFILE },
        { "qwen35", NULL, "blk.2.attn_q.weight", "is 256 x 513, but 256 x 512", BT_E_BADFILE },
        { "qwen35", NULL, "blk.0.ssm_conv1d.weight", "is 4 x 257, but 4 x 256", BT_E_BADFILE },
        { "qwen35", NULL, "blk.0.ssm_alpha.weight", "is 256 x 5, but 256 x 4", BT_E_BADFILE },
        { "qwen3next", NULL, "blk.0.ssm_ba.weight", "is 256 x 9, but 256 x 8", BT_E_BADFILE },
        { "qwen35moe", "blk.0.ffn_down_exps.weight", NULL, "(256 x 256 x 4) is missing",
          BT_E_BADFILE },
        { "qwen35moe", "blk.1.ffn_gate_inp_shexp.weight", NULL, "(256 x 1 x 1) is missing",
          BT_E_BADFILE },
        { "qwen3moe", NULL, "blk.0.ffn_gate_inp.weight", "is 256 x 5, but 256 x 4", BT_E_BADFILE },
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const tiny_options o = { .arch = cases[i].arch, .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                                 .without_tensor = cases[i].missing,
                                 .wider_tensor = cases[i].wider };
        expect_refused(&o, cases[i].status, cases[i].words);
    }
    /* A layer's tensor too many is refused, a block behind the layers is not. */
    tiny_options o = { .arch = "qwen35", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                       .extra_tensor = "blk.3.nextn.enorm.weight" };
    expect_refused(&o, BT_E_UNSUPPORTED, "'blk.3.nextn.enorm.weight' is not part of");
    o.behind = true;
    tiny_model m;
    bt_error err;
    assert_int_equal(tiny_open(&m, &o, tiny_device(bt_cpu_isa_detect(), 1), &err), BT_OK);
    const bt_model_config *c = bt_model_config_of(m.model);
    assert_int_equal(c->n_layers, TINY_LAYERS);
    assert_int_equal(c->n_blocks_behind, 1);
    assert_true(c->n_params_active < c->n_params);
    tiny_close(&m);
}

static void bad_factors_keys(bt_gguf_writer *w)
{
    static const float bad[TINY_DIM / 2] = { 1, 1, 0 };
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
        .name = "rope_freqs.weight", .type = BT_TYPE_F32, .n_dims = 1, .ne = { TINY_DIM / 2 },
        .data = bad, .size = sizeof bad });
}

static void divisors_of_zero_are_refused(void **state)
{
    const tiny_options o = { .arch = "llama", .type = BT_TYPE_F32, .type_v = BT_TYPE_F32,
                             .more_keys = bad_factors_keys };
    (void)state;
    expect_refused(&o, BT_E_BADFILE, "value 2 of tensor 'rope_freqs.weight' is 0");
}

/* ---- memory ---- */

static void no_memory_leaves_nothing_behind(void **state)
{
    const tiny_options o = { .arch = "gemma3", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16 };
    size_t size;
    bt_gguf *file;
    (void)state;
    uint8_t *bytes = tiny_make(&o, &size);
    assert_int_equal(bt_gguf_open_memory(bytes, size, "tiny.gguf", &file, NULL), BT_OK);
    for (uint64_t n = 1;; n++) {
        bt_device *device = tiny_device(bt_cpu_isa_detect(), 1);
        bt_model *model = NULL;
        bt_error err = { 0 };
        bt_memory_fail_after(n);
        const bt_status status = bt_model_load(file, device, &model, &err);
        bt_memory_fail_after(0);
        bt_model_destroy(model);
        bt_device_close(device);
        if (status == BT_OK) {
            assert_true(n > 20);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_null(model);
        assert_true(err.text[0] != '\0');
    }
    bt_gguf_close(file);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_loads),
        cmocka_unit_test(the_list_of_families_is_complete),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(wrong_tensors_of_hybrids_are_named),
        cmocka_unit_test(divisors_of_zero_are_refused),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests_name("model/load", tests, NULL, NULL);
}
