/* sample/options.h: what a model file suggests for sampling. */
#include <stdio.h>
#include <string.h>

#include "gguf/writer.h"
#include "sample/options.h"
#include "unit/sample/pick.h"

/* The hints of a file with what `put` wrote. */
static bt_status read_hints(void (*put)(bt_gguf_writer *w), bt_sample_hints *ret, bt_error *err)
{
    bt_gguf_writer w;
    bt_buf bytes;
    bt_gguf *file = NULL;
    bt_gguf_writer_init(&w, 3, 32);
    put(&w);
    bt_buf_init(&bytes, BT_MEM_gguf, 1 << 20);
    assert_int_equal(bt_gguf_writer_write(&w, &bytes, err), BT_OK);
    bt_gguf_writer_done(&w);
    assert_int_equal(bt_gguf_open_memory(bytes.data, bytes.size, "hints.gguf", &file, err), BT_OK);
    const bt_status status = bt_sample_hints_read(file, ret, err);
    bt_gguf_close(file);
    bt_buf_done(&bytes);
    return status;
}

static void put_none(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "general.name", "x");
    bt_gguf_writer_put_string(w, "general.samplings", "not one of them");
}

static void a_file_without_hints_gives_the_defaults(void **state)
{
    (void)state;
    const bt_sampler_options plain = bt_sample_defaults();
    bt_sample_hints h;
    bt_error err = { 0 };
    assert_int_equal(read_hints(put_none, &h, &err), BT_OK);
    assert_int_equal(h.n_hints, 0);
    assert_string_equal(h.unsupported, "");
    assert_memory_equal(&h.options, &plain, sizeof plain);
}

static void put_all(bt_gguf_writer *w)
{
    bt_gguf_writer_put_real(w, "general.sampling.temp", BT_GGUF_F32, 0.6);
    bt_gguf_writer_put_integer(w, "general.sampling.top_k", BT_GGUF_I32, 20);
    bt_gguf_writer_put_real(w, "general.sampling.top_p", BT_GGUF_F64, 0.75);
    bt_gguf_writer_put_integer(w, "general.sampling.min_p", BT_GGUF_I32, 0);
    bt_gguf_writer_put_integer(w, "general.sampling.penalty_last_n", BT_GGUF_I32, (uint64_t)-1);
    bt_gguf_writer_put_real(w, "general.sampling.penalty_repeat", BT_GGUF_F32, 1.5);
}

static void hints_of_a_file_become_defaults(void **state)
{
    (void)state;
    bt_sampler_options wanted = bt_sample_defaults();
    bt_sample_hints h;
    bt_error err = { 0 };
    wanted.temperature = 0.6f;
    wanted.top_k = 20;
    wanted.top_p = 0.75f;
    wanted.min_p = 0;
    wanted.penalty_last_n = -1;
    wanted.penalty_repeat = 1.5f;
    assert_int_equal(read_hints(put_all, &h, &err), BT_OK);
    assert_int_equal(h.n_hints, 6);
    assert_memory_equal(&h.options, &wanted, sizeof wanted);
}

static void put_foreign(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "general.sampling.sequence", "kpt");
    bt_gguf_writer_put_integer(w, "general.sampling.mirostat", BT_GGUF_I32, 0);
    bt_gguf_writer_put_real(w, "general.sampling.xtc_probability", BT_GGUF_F32, 0.5);
    bt_gguf_writer_put_real(w, "general.sampling.top_p", BT_GGUF_F32, 0.5);
}

static void hints_without_effect_here_are_named(void **state)
{
    (void)state;
    bt_sample_hints h;
    bt_error err = { 0 };
    assert_int_equal(read_hints(put_foreign, &h, &err), BT_OK);
    assert_int_equal(h.n_hints, 1);
    assert_string_equal(h.unsupported,
                        "general.sampling.sequence, general.sampling.xtc_probability");
}

static void put_long_names(bt_gguf_writer *w)
{
    for (int i = 0; i < 9; i++) {
        char key[96];
        snprintf(key, sizeof key, "general.sampling.a_sampler_with_a_rather_long_name_%d", i);
        bt_gguf_writer_put_string(w, key, "x");
    }
}

static void put_hot(bt_gguf_writer *w)
{
    bt_gguf_writer_put_real(w, "general.sampling.temp", BT_GGUF_F32, -0.5);
}

static void put_half(bt_gguf_writer *w)
{
    bt_gguf_writer_put_real(w, "general.sampling.top_k", BT_GGUF_F32, 2.5);
}

static void put_text(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "general.sampling.top_p", "0.9");
}

static void put_nan(bt_gguf_writer *w)
{
    bt_gguf_writer_put_real(w, "general.sampling.min_p", BT_GGUF_F32, NAN);
}

static void hints_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    const struct { void (*put)(bt_gguf_writer *w); const char *key; } bad[] = {
        { put_hot, "general.sampling.temp" }, { put_half, "general.sampling.top_k" },
        { put_text, "general.sampling.top_p" }, { put_nan, "general.sampling.min_p" },
    };
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        bt_sample_hints h = { .n_hints = 77 };
        bt_error err = { 0 };
        assert_int_equal(read_hints(bad[i].put, &h, &err), BT_E_BADFILE);
        assert_non_null(strstr(err.text, bad[i].key));
        assert_int_equal(h.n_hints, 77);
    }
}

static void many_unsupported_names_are_cut_and_terminated(void **state)
{
    (void)state;
    bt_sample_hints h;
    bt_error err = { 0 };
    assert_int_equal(read_hints(put_long_names, &h, &err), BT_OK);
    assert_int_equal(strlen(h.unsupported), sizeof h.unsupported - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_hints_gives_the_defaults),
        cmocka_unit_test(hints_of_a_file_become_defaults),
        cmocka_unit_test(hints_without_effect_here_are_named),
        cmocka_unit_test(hints_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(many_unsupported_names_are_cut_and_terminated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
