/* gguf/writer.h */
#include "unit/gguf/sample.h"

#include "unit/gguf/walk.h"

static void what_is_written_is_read_again(void **state)
{
    (void)state;
    const float norm[2] = { 0.5f, 2.0f };
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    bt_gguf_writer_put_string(&w, "general.architecture", "llama");
    bt_gguf_writer_put_integer(&w, "llama.block_count", BT_GGUF_U32, 2);
    bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
            .name = "output_norm.weight", .type = BT_TYPE_F32, .n_dims = 1, .ne = { 2 },
            .data = norm, .size = sizeof norm });
    char path[] = "/tmp/baton-writer-XXXXXX";
    assert_true(close(mkstemp(path)) == 0);
    assert_int_equal(bt_gguf_writer_save(&w, path, NULL), BT_OK);

    bt_gguf *file;
    assert_int_equal(bt_gguf_open(path, &file, NULL), BT_OK);
    uint32_t n;
    assert_int_equal(bt_gguf_get_u32(file, "llama.block_count", &n, NULL), BT_OK);
    assert_int_equal(n, 2);
    const bt_gguf_tensor *t = bt_gguf_tensor_find(file, "output_norm.weight");
    assert_memory_equal(t->data, norm, sizeof norm);
    bt_gguf_close(file);
    bt_gguf_writer_done(&w);
    assert_int_equal(unlink(path), 0);
}

/* Every type, every byte: the file says what was put, in the order it was put. */
static void every_type_survives(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    bt_gguf *file;
    assert_int_equal(bt_gguf_open_memory(bytes, size, "s", &file, NULL), BT_OK);
    bool seen[BT_GGUF_VALUE_COUNT] = { false };
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        seen[bt_gguf_pair_at(file, i)->type] = true;
    }
    for (int i = 0; i < BT_GGUF_VALUE_COUNT; i++) {
        assert_true(seen[i]);
    }
    static const struct { const char *key; double value; } numbers[] = {
        { "a.u8", 200 }, { "a.i8", -100 }, { "a.u16", 60000 }, { "a.i16", -30000 },
        { "a.u32", 4000000000. }, { "a.i32", -2000000000. }, { "a.f32", 1.5 }, { "a.f64", -.25 },
        { "a.u64", 18446744073709551616. }, { "a.i64", -9223372036854775808. },
    };
    for (size_t i = 0; i < BT_LEN(numbers); i++) {
        float value;
        assert_int_equal(bt_gguf_get_f32(file, numbers[i].key, &value, NULL), BT_OK);
        assert_true(value == (float)numbers[i].value);
    }
    bt_gguf_close(file);
    free(bytes);
}

static void the_same_calls_give_the_same_bytes(void **state)
{
    (void)state;
    size_t size, other_size;
    uint8_t *bytes = sample_file(3, 64, &size), *other = sample_file(3, 64, &other_size);
    assert_int_equal(size, other_size);
    assert_memory_equal(bytes, other, size);
    assert_memory_equal(bytes, "GGUF\x03\0\0\0\x05\0\0\0\0\0\0\0\x14\0\0\0\0\0\0\0", 24);
    free(bytes);
    free(other);
}

/* tools/gguf_write.py is the other writer of this tree; a file of its making is read and written
 * again here, and must come out byte for byte. */
static void a_file_can_be_copied_key_by_key(void **state)
{
    (void)state;
    bt_gguf *file;
    const char *path = BATON_SOURCE_DIR "/tests/golden/models/tinyq-llama-q4_0.gguf";
    assert_int_equal(bt_gguf_open(path, &file, NULL), BT_OK);
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, bt_gguf_version(file), bt_gguf_alignment(file));
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *pair = bt_gguf_pair_at(file, i);
        char key[WALK_KEY_MAX] = "";
        memcpy(key, pair->key.data, pair->key.size);
        if (pair->element == BT_GGUF_STRING) {
            bt_gguf_string *texts = calloc(pair->count, sizeof *texts);
            bt_gguf_strings it = bt_gguf_strings_begin(pair);
            for (bt_gguf_string *next = texts; bt_gguf_strings_next(&it, next); next++) {
            }
            if (pair->type == BT_GGUF_ARRAY) {
                bt_gguf_writer_put_strings(&w, key, texts, pair->count);
            } else {
                char text[64] = "";
                memcpy(text, texts[0].data, texts[0].size);
                bt_gguf_writer_put_string(&w, key, text);
            }
            free(texts);
        } else if (pair->type == BT_GGUF_ARRAY) {
            bt_gguf_writer_put_array(&w, key, pair->element, pair->data, pair->count);
        } else if (pair->type == BT_GGUF_F32) {
            bt_gguf_writer_put_real(&w, key, pair->type, (double)bt_gguf_array_f32(pair, 0));
        } else {
            bt_gguf_writer_put_integer(&w, key, pair->type, bt_gguf_array_u32(pair, 0));
        }
    }
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        bt_gguf_writer_tensor copy = { .name = t->name, .type = t->type->id, .n_dims = t->n_dims,
                                       .data = t->data, .size = (size_t)t->size_bytes };
        memcpy(copy.ne, t->ne, sizeof copy.ne);
        bt_gguf_writer_put_tensor(&w, &copy);
    }
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    assert_int_equal(size, bt_gguf_size_bytes(file));
    bt_gguf_close(file);
    FILE *original = fopen(path, "rb");
    uint8_t *wanted = malloc(size);
    assert_int_equal(fread(wanted, 1, size, original), size);
    fclose(original);
    assert_memory_equal(bytes, wanted, size);
    free(wanted);
    free(bytes);
}

static void wrong_use_is_said_at_the_end(void **state)
{
    (void)state;
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    bt_gguf_writer_put_integer(&w, "x", BT_GGUF_F32, 1);
    bt_buf out;
    bt_buf_init(&out, BT_MEM_test, 1 << 20);
    assert_int_equal(bt_gguf_writer_write(&w, &out, NULL), BT_E_BADINPUT);
    bt_error err;
    assert_int_equal(bt_gguf_writer_save(&w, "/no/such/folder/x", &err), BT_E_BADINPUT);
    bt_buf_done(&out);
    bt_gguf_writer_done(&w);

    bt_gguf_writer_init(&w, 3, 32);
    assert_int_equal(bt_gguf_writer_save(&w, "/no/such/folder/x", &err), BT_E_IO);
    assert_string_equal(err.text,
                        "'/no/such/folder/x' cannot be written: No such file or directory");
    bt_buf_init(&out, BT_MEM_test, 8);
    assert_int_equal(bt_gguf_writer_write(&w, &out, NULL), BT_E_FULL);
    bt_buf_done(&out);
    bt_gguf_writer_done(&w);
}

static void running_out_of_memory_is_said_at_the_end(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        bt_memory_fail_after(n);
        bt_gguf_writer w;
        bt_gguf_writer_init(&w, 3, 64);
        sample_keys(&w);
        sample_tensors(&w);
        bt_buf out;
        bt_buf_init(&out, BT_MEM_test, 1 << 20);
        const bt_status status = bt_gguf_writer_write(&w, &out, NULL);
        bt_memory_fail_after(0);
        bt_buf_done(&out);
        bt_gguf_writer_done(&w);
        if (status == BT_OK) {
            assert_true(n > 5);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(every_type_survives),
        cmocka_unit_test(the_same_calls_give_the_same_bytes),
        cmocka_unit_test(a_file_can_be_copied_key_by_key),
        cmocka_unit_test(wrong_use_is_said_at_the_end),
        cmocka_unit_test(running_out_of_memory_is_said_at_the_end),
    };
    return cmocka_run_group_tests_name("gguf/writer", tests, NULL, NULL);
}
