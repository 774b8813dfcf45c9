/* Long-rope models: a prompt's length says which factors rotate it, and rows of the two kinds never
 * meet. Compared are tokens and the bits of their log probabilities. */
#include <unistd.h>

#include "unit/engine/machine.h"

#include "gguf/writer.h"

enum { ORIGINAL = 64, LONG = 150 };

static char path[64];

/* hf-llama with factors for short and for long prompts. */
static int make_model(void **state)
{
    char source[1024];
    bt_gguf *file;
    bt_gguf_writer w;
    (void)state;
    snprintf(source, sizeof source, "%s/tests/golden/models/hf-llama.gguf", BATON_SOURCE_DIR);
    snprintf(path, sizeof path, "/tmp/baton-long-rope-%ld.gguf", (long)getpid());
    must(bt_gguf_open(source, &file, &err));
    bt_gguf_writer_init(&w, 3, 32);
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        bt_gguf_writer_put_pair(&w, bt_gguf_pair_at(file, i));
    }
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
            .name = t->name, .type = (uint32_t)t->type->id, .n_dims = t->n_dims,
            .ne = { t->ne[0], t->ne[1], t->ne[2], t->ne[3] }, .data = t->data,
            .size = t->size_bytes });
    }
    uint32_t dim = 0;
    float factors[2][128];
    must(bt_gguf_opt_u32(file, "llama.attention.key_length", 0, &dim, &err));
    if (dim == 0) {
        uint32_t width, heads;
        must(bt_gguf_get_u32(file, "llama.embedding_length", &width, &err));
        must(bt_gguf_get_u32(file, "llama.attention.head_count", &heads, &err));
        dim = width / heads;
    }
    for (uint32_t i = 0; i < dim / 2; i++) {
        factors[0][i] = 1 + 0.1f * i;
        factors[1][i] = 1 + 0.9f * i;
    }
    bt_gguf_writer_put_string(&w, "llama.rope.scaling.type", "longrope");
    bt_gguf_writer_put_integer(&w, "llama.rope.scaling.original_context_length", BT_GGUF_U32,
                               ORIGINAL);
    for (int k = 0; k < 2; k++) {
        bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
            .name = k ? "rope_factors_long.weight" : "rope_factors_short.weight",
            .type = BT_TYPE_F32, .n_dims = 1, .ne = { dim / 2 }, .data = factors[k],
            .size = dim / 2 * sizeof(float) });
    }
    must(bt_gguf_writer_save(&w, path, &err));
    bt_gguf_writer_done(&w);
    bt_gguf_close(file);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    return unlink(path);
}

static answer alone(const uint32_t *prompt, uint32_t n)
{
    machine m = open_machine(path, 1, BATCH, false);
    const answer a = ask(&m, prompt, n, false, true);
    close_machine(&m);
    return a;
}

static void a_long_prompt_does_not_begin_with_the_rows_of_a_short_one(void **state)
{
    (void)state;
    uint32_t prompt[PROMPT_MAX];
    machine m = open_machine(path, 1, BATCH, false);
    make_prompt(&m, 5, LONG, prompt);
    answer got = ask(&m, prompt, ORIGINAL, false, false);
    got = ask(&m, prompt, LONG, false, false);
    assert_int_equal(got.stats.n_cached, 0);
    answer wanted = alone(prompt, LONG);
    assert_same(&got, &wanted);
    got = ask(&m, prompt, ORIGINAL - 1, false, false);    /* and the short one finds its own */
    assert_int_equal(got.stats.n_cached, ORIGINAL - 2);
    wanted = alone(prompt, ORIGINAL - 1);
    assert_same(&got, &wanted);
    got = ask(&m, prompt, ORIGINAL + 1, false, false);    /* the long one, too */
    assert_int_equal(got.stats.n_cached, ORIGINAL);
    wanted = alone(prompt, ORIGINAL + 1);
    assert_same(&got, &wanted);
    close_machine(&m);
}

static void long_and_short_prompts_share_a_step(void **state)
{
    (void)state;
    uint32_t longer[PROMPT_MAX], shorter[PROMPT_MAX];
    answer got[2];
    machine m = open_machine(path, 2, BATCH, false);
    make_prompt(&m, 6, LONG, longer);
    make_prompt(&m, 7, ORIGINAL, shorter);
    bt_request *a = submit(&m, longer, LONG, false, true);
    bt_request *b = submit(&m, shorter, ORIGINAL, false, true);
    finish(a, &got[0]);
    finish(b, &got[1]);
    close_machine(&m);
    answer wanted = alone(longer, LONG);
    assert_same(&got[0], &wanted);
    wanted = alone(shorter, ORIGINAL);
    assert_same(&got[1], &wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_does_not_begin_with_the_rows_of_a_short_one),
        cmocka_unit_test(long_and_short_prompts_share_a_step),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
