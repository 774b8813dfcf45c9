/* The tape of every family as text, against tests/golden/tapes/NAME.txt: what is computed, in which
 * order and with which numbers. After a wanted change, ACCEPT=1 in the environment of this program
 * writes the files anew; read what changed before you commit it. */
#include "unit/model/tiny.h"

static void read_golden(const char *path, bt_buf *to)
{
    char part[4096];
    size_t n;
    FILE *file = fopen(path, "rb");
    while (file && (n = fread(part, 1, sizeof part, file)) > 0) {
        bt_buf_put(to, part, n);
    }
    if (file) {
        fclose(file);
    }
}

static void expect_tape(const char *name, const tiny_options *o, bool push)
{
    tiny_model m;
    bt_error err;
    bt_buf text, golden;
    char path[512];
    if (tiny_open(&m, o, tiny_device(BT_ISA_REF, 1), &err) != BT_OK) {
        fail_msg("%s: %s", name, err.text);
    }
    bt_buf_init(&text, BT_MEM_test, 1 << 20);
    bt_buf_init(&golden, BT_MEM_test, 1 << 20);
    bt_ops_tape_print(bt_model_tape(m.model, push), &text);
    snprintf(path, sizeof path, "%s/tests/golden/tapes/%s.txt", BATON_SOURCE_DIR, name);
    if (getenv("ACCEPT")) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(bt_buf_text(&text), file);
        fclose(file);
    }
    read_golden(path, &golden);
    assert_string_equal(bt_buf_text(&text), bt_buf_text(&golden));
    bt_buf_done(&text);
    bt_buf_done(&golden);
    tiny_close(&m);
}

static void families_have_their_tapes(void **state)
{
    const tiny_options llama = { .arch = "llama", .type = BT_TYPE_Q4_0, .type_v = BT_TYPE_Q8_0 };
    const tiny_options fused = { .arch = "llama", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                                 .fused = true, .tied = true };
    const tiny_options qwen2 = { .arch = "qwen2", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16 };
    const tiny_options qwen3 = { .arch = "qwen3", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16 };
    const tiny_options gemma3 = { .arch = "gemma3", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                                  .tied = true };
    (void)state;
    expect_tape("llama", &llama, false);
    expect_tape("llama-push", &llama, true);
    expect_tape("llama-fused", &fused, false);
    expect_tape("qwen2", &qwen2, false);
    expect_tape("qwen3", &qwen3, false);
    expect_tape("gemma3", &gemma3, false);
    tiny_options o = { .arch = "llama", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                       .experts = true };
    expect_tape("llama-experts", &o, false);
    o = (tiny_options){ .arch = "qwen3moe", .type = BT_TYPE_Q4_0, .type_v = BT_TYPE_Q8_0,
                        .merged = true };
    expect_tape("qwen3moe", &o, false);
    o = (tiny_options){ .arch = "qwen35", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                        .tied = true, .behind = true };
    expect_tape("qwen35", &o, true);
    o = (tiny_options){ .arch = "qwen35moe", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                        .interval = 2 };
    expect_tape("qwen35moe", &o, false);
    o = (tiny_options){ .arch = "qwen3next", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16,
                        .merged = true };
    expect_tape("qwen3next", &o, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_tapes),
    };
    return cmocka_run_group_tests_name("model/tapes", tests, NULL, NULL);
}
