/* gguf/gguf.h: opening. */
#include "unit/gguf/sample.h"

#include <sys/stat.h>

#include "base/limits.h"
#include "unit/gguf/walk.h"

static void a_file_gives_its_keys_and_tensors(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    bt_gguf *file;
    assert_int_equal(bt_gguf_open_memory(bytes, size, "dir/s.gguf", &file, NULL), BT_OK);

    assert_string_equal(bt_gguf_path(file), "dir/s.gguf");
    assert_int_equal(bt_gguf_version(file), 3);
    assert_int_equal(bt_gguf_alignment(file), 32);
    assert_int_equal(bt_gguf_size_bytes(file), size);
    assert_int_equal(bt_gguf_part_count(file), 1);
    assert_int_equal(bt_gguf_pair_count(file), 19);
    assert_int_equal(bt_gguf_tensor_count(file), 5);

    const bt_gguf_pair *pair = bt_gguf_find(file, "b.strings");
    assert_ptr_equal(pair, bt_gguf_pair_at(file, 18));
    assert_int_equal(pair->type, BT_GGUF_ARRAY);
    assert_int_equal(pair->element, BT_GGUF_STRING);
    assert_int_equal(pair->count, 3);
    assert_null(bt_gguf_find(file, "b.string"));

    const bt_gguf_tensor *t = bt_gguf_tensor_find(file, "experts.weight");
    assert_ptr_equal(t, bt_gguf_tensor_at(file, 1));
    assert_int_equal(t->type->id, BT_TYPE_F16);
    assert_int_equal(t->n_dims, 3);
    assert_true(t->ne[0] == 4 && t->ne[1] == 3 && t->ne[2] == 2 && t->ne[3] == 1);
    assert_int_equal(t->n_elems, 24);
    assert_int_equal(t->size_bytes, 48);
    assert_int_equal(t->offset, 32);
    assert_int_equal(t->part, 0);
    assert_memory_equal(t->data, "\x00\x3c\x00\xc0", 4);
    assert_int_equal(((uintptr_t)t->data - (uintptr_t)bytes) % 32, 0);

    assert_int_equal(bt_gguf_tensor_find(file, "scalar")->n_elems, 1);
    assert_int_equal(bt_gguf_tensor_find(file, "empty")->size_bytes, 0);
    assert_null(bt_gguf_tensor_find(file, "blocks"));
    walk_file(file);
    bt_gguf_drop_pages(file, t);                  /* nothing to drop, nothing lost */
    bt_gguf_close(file);
    bt_gguf_close(NULL);
    free(bytes);
}

static void version_2_and_other_alignments_are_read(void **state)
{
    (void)state;
    static const uint32_t alignments[] = { 8, 16, 64, 4096 };
    for (size_t i = 0; i < BT_LEN(alignments); i++) {
        size_t size;
        uint8_t *bytes = sample_file(2, alignments[i], &size);
        bt_gguf *file;
        assert_int_equal(bt_gguf_open_memory(bytes, size, "s", &file, NULL), BT_OK);
        assert_int_equal(bt_gguf_version(file), 2);
        assert_int_equal(bt_gguf_alignment(file), alignments[i]);
        const bt_gguf_tensor *t = bt_gguf_tensor_find(file, "blocks.weight");
        assert_int_equal(((const uint8_t *)t->data - bytes) % alignments[i], 0);
        assert_memory_equal(t->data, "\x00\x3c\x01\x02\xff", 5);
        bt_gguf_close(file);
        free(bytes);
    }
}

static void a_vocabulary_without_tensors_is_a_file(void **state)
{
    (void)state;
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    sample_keys(&w);
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    bt_gguf *file;
    assert_int_equal(bt_gguf_open_memory(bytes, size, "s", &file, NULL), BT_OK);
    assert_int_equal(bt_gguf_tensor_count(file), 0);
    walk_file(file);
    bt_gguf_close(file);
    free(bytes);
}

static void nothing_at_all_is_a_file_too(void **state)
{
    (void)state;
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    bt_error err;
    assert_int_equal(size, 24);
    assert_string_equal(sample_complaint(bytes, size, &err), "opened");
    assert_non_null(strstr(sample_complaint("", 0, &err), "'s.gguf' is not a GGUF file"));
    free(bytes);
}

static void wrong_versions_are_named(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    bt_error err;
    bytes[4] = 1;
    assert_string_equal(sample_complaint(bytes, size, &err),
                        "'s.gguf' has GGUF version 1; 2 and 3 can be read");
    bytes[4] = 4;
    assert_string_equal(sample_complaint(bytes, size, &err),
                        "'s.gguf' has GGUF version 4; 2 and 3 can be read");
    bytes[4] = 0;
    assert_string_equal(sample_complaint(bytes, size, &err),
                        "'s.gguf' has GGUF version 0; 2 and 3 can be read");
    bytes[7] = 3;
    assert_non_null(strstr(sample_complaint(bytes, size, &err), "big-endian"));
    bytes[0] = 'g';
    assert_non_null(strstr(sample_complaint(bytes, size, &err), "does not begin with 'GGUF'"));
    free(bytes);
}

static void counts_are_held_against_the_size(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    bt_error err;
    memset(bytes + 8, 0xff, 8);                    /* -1 tensors */
    assert_string_equal(sample_complaint(bytes, size, &err), "'s.gguf' announces "
                        "18446744073709551615 tensors; at most 1048576 can be read");
    memset(bytes + 8, 0, 16);
    bytes[9] = 1;                                  /* 256 tensors */
    assert_non_null(strstr(sample_complaint(bytes, size, &err), "256 tensors, but only"));
    bytes[9] = 0;
    bytes[18] = 1;                                 /* 65536 keys */
    assert_non_null(strstr(sample_complaint(bytes, size, &err), "65536 keys, but only"));
    bytes[16] = 1;
    assert_string_equal(sample_complaint(bytes, size, &err),
                        "'s.gguf' announces 65537 keys; at most 65536 can be read");
    free(bytes);
}

/* A file with one key written by `put`, and what opening it says. */
typedef void put_fn(bt_gguf_writer *w);

static void expect(put_fn *put, const char *complaint)
{
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    put(&w);
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    bt_error err;
    const char *text = sample_complaint(bytes, size, &err);
    if (!strstr(text, complaint)) {
        print_error("got: %s\nwant: %s\n", text, complaint);
        fail();
    }
    free(bytes);
}

static void put_twice(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, "x.y", BT_GGUF_U8, 1);
    bt_gguf_writer_put_integer(w, "x.z", BT_GGUF_U8, 1);
    bt_gguf_writer_put_string(w, "x.y", "again");
}

static void put_nameless(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, "", BT_GGUF_U64, 1);
}

static void put_control(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, "a\nb", BT_GGUF_U8, 1);
}

static void put_long_key(bt_gguf_writer *w)
{
    static char key[BT_GGUF_KEY_BYTES_MAX + 2];
    memset(key, 'k', sizeof key - 1);
    bt_gguf_writer_put_integer(w, key, BT_GGUF_U8, 1);
}

static void put_bool_2(bt_gguf_writer *w)
{
    bt_gguf_writer_put_integer(w, "flag", BT_GGUF_BOOL, 2);
}

static void put_bool_array(bt_gguf_writer *w)
{
    bt_gguf_writer_put_array(w, "flags", BT_GGUF_BOOL, "\x01\x00\x09", 3);
}

static void put_unknown_value(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "strange", "");
    w->pairs.data[8 + 7] = 13;
}

static void put_unknown_element(bt_gguf_writer *w)
{
    bt_gguf_writer_put_array(w, "strange", BT_GGUF_U8, "", 0);
    w->pairs.data[8 + 7 + 4] = 99;
}

static void put_array_of_arrays(bt_gguf_writer *w)
{
    bt_gguf_writer_put_array(w, "nested", BT_GGUF_U8, "abcd", 4);
    w->pairs.data[8 + 6 + 4] = BT_GGUF_ARRAY;
}

static void put_long_string(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "text", "abc");
    w->pairs.data[8 + 4 + 4] = 4;
}

static void put_huge_string(bt_gguf_writer *w)
{
    bt_gguf_writer_put_string(w, "text", "abc");
    w->pairs.data[8 + 4 + 4 + 7] = 1;
}

static void put_long_array(bt_gguf_writer *w)
{
    bt_gguf_writer_put_array(w, "list", BT_GGUF_U64, "01234567", 1);
    w->pairs.data[8 + 4 + 4 + 4] = 2;
}

static void put_huge_array(bt_gguf_writer *w)
{
    bt_gguf_writer_put_array(w, "list", BT_GGUF_U64, "01234567", 1);
    w->pairs.data[8 + 4 + 4 + 4 + 7] = 0x20;      /* 2^61 values: the byte count would overflow */
}

static void put_many_strings(bt_gguf_writer *w)
{
    const bt_gguf_string text = SAMPLE_TEXT("a");
    bt_gguf_writer_put_strings(w, "list", &text, 1);
    w->pairs.data[8 + 4 + 4 + 4 + 2] = 1;
}

static void put_alignment_of(bt_gguf_writer *w, bt_gguf_value_type type, uint64_t value)
{
    bt_gguf_writer_put_integer(w, "general.alignment", type, value);
}

static void put_alignment_4(bt_gguf_writer *w) { put_alignment_of(w, BT_GGUF_U32, 4); }
static void put_alignment_48(bt_gguf_writer *w) { put_alignment_of(w, BT_GGUF_U32, 48); }
static void put_alignment_0(bt_gguf_writer *w) { put_alignment_of(w, BT_GGUF_U32, 0); }
static void put_alignment_u64(bt_gguf_writer *w) { put_alignment_of(w, BT_GGUF_U64, 32); }

static void wrong_keys_are_named(void **state)
{
    (void)state;
    expect(put_twice, "'s.gguf': key 'x.y', before byte 84: the key is there a second time, at "
           "byte (56)");
    expect(put_nameless, "'s.gguf': a key at byte 24 has 0 bytes; it must have 1 to 65535");
    expect(put_control, "a key at byte 24 has a control character (10)");
    expect(put_long_key, "a key at byte 24 has 65536 bytes; it must have 1 to 65535");
    expect(put_bool_2, "key 'flag', before byte 41: a boolean is neither 0 nor 1 (2)");
    expect(put_bool_array, "a boolean is neither 0 nor 1 (9)");
    expect(put_unknown_value, "key 'strange', before byte 43: the type of the value is not "
           "known (13)");
    expect(put_unknown_element, "the type of the array is not known (99)");
    expect(put_array_of_arrays, "arrays of arrays are not supported (4)");
    expect(put_long_string, "the string is longer than what is left of the file (4)");
    expect(put_huge_string, "the string is longer than 64 MiB (72057594037927939)");
    expect(put_long_array, "there are more values than bytes left in the file (2)");
    expect(put_huge_array, "the array has more than 67108864 entries (2305843009213693953)");
    expect(put_many_strings, "there are more strings than bytes left in the file (65537)");
    expect(put_alignment_4, "'general.alignment' is 4; it must be a power of two, 8 or more");
    expect(put_alignment_48, "'general.alignment' is 48; it must be a power of two");
    expect(put_alignment_0, "'general.alignment' is 0; it must be a power of two");
    expect(put_alignment_u64, "'general.alignment' is u64; it must be u32");
}

static void put_tensor(bt_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                       const uint64_t *ne, size_t size)
{
    static const uint8_t zeros[256];
    bt_gguf_writer_tensor t = { .name = name, .type = type, .n_dims = n_dims,
                                .data = zeros, .size = size };
    memcpy(t.ne, ne, n_dims * sizeof *ne);
    bt_gguf_writer_put_tensor(w, &t);
}

static void put_name_64(bt_gguf_writer *w)
{
    char name[65];
    memset(name, 'n', 64);
    name[64] = '\0';
    put_tensor(w, name, BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 4);
}

static void put_name_63(bt_gguf_writer *w)
{
    char name[64];
    memset(name, 'n', 63);
    name[63] = '\0';
    put_tensor(w, name, BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 4);
}

static void put_same_names(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 4);
    put_tensor(w, "u", BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 4);
    put_tensor(w, "t", BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 4);
}

static void put_5_dims(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 4, (uint64_t[]){ 1, 1, 1, 1 }, 4);
    w->infos.data[8 + 1] = 5;
}

static void put_negative(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 2, (uint64_t[]){ 1, (uint64_t)-1 }, 4);
}

static void put_product(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 3, (uint64_t[]){ 1u << 31, 1u << 31, 2 }, 4);
}

static void put_bytes(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F64, 2, (uint64_t[]){ 1u << 31, 1u << 31 }, 8);
}

static void put_zero_times_much(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 3, (uint64_t[]){ 0, UINT64_C(1) << 62, UINT64_C(1) << 62 }, 0);
}

static void put_retired(bt_gguf_writer *w)
{
    put_tensor(w, "t", 4, 1, (uint64_t[]){ 32 }, 128);
}

static void put_unknown_type(bt_gguf_writer *w)
{
    put_tensor(w, "t", 4000000000u, 1, (uint64_t[]){ 32 }, 128);
}

static void put_half_block(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_Q4_K, 2, (uint64_t[]){ 128, 2 }, 144);
}

static void put_gap(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 40);
    put_tensor(w, "u", BT_TYPE_F32, 1, (uint64_t[]){ 1 }, 4);
}

static void put_too_little(bt_gguf_writer *w)
{
    put_tensor(w, "t", BT_TYPE_F32, 1, (uint64_t[]){ 9 }, 32);
}

static void put_codebook(bt_gguf_writer *w)
{
    put_tensor(w, "t", 16, 1, (uint64_t[]){ 256 }, 66);
}

static void wrong_tensors_are_named(void **state)
{
    (void)state;
    expect(put_name_63, "opened");
    expect(put_name_64, "a tensor name at byte 24 has 64 bytes; it must have 1 to 63");
    expect(put_same_names, "'s.gguf': tensor 't': the name is there twice; record (2)");
    expect(put_5_dims, "tensor 't': it has more than 4 dimensions (5)");
    expect(put_negative, "a dimension is too large or negative (18446744073709551615)");
    expect(put_product, "it has more values than can be counted; dimension (2)");
    expect(put_bytes, "it is larger than this machine can address; values (4611686018427387904)");
    expect(put_zero_times_much, "opened");
    expect(put_retired, "its type is not known or was retired (4)");
    expect(put_unknown_type, "its type is not known or was retired (4000000000)");
    expect(put_half_block, "its rows are not whole Q4_K blocks of 256 values (128)");
    expect(put_gap, "tensor 'u': its data does not follow that of the tensor before; offset (64)");
    expect(put_too_little, "tensor 't': its data goes past the end of the file, which is damaged "
           "or not fully copied; bytes (36)");
    expect(put_codebook, "opened");                /* known by name; whether it can be decoded is
                                                      for those who want to */
}

static void a_file_that_ends_in_the_padding_is_whole(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 64, &size);
    bt_error err;
    /* The last payload has 68 bytes, so 60 bytes of padding follow. */
    assert_string_equal(sample_complaint(bytes, size - 60, &err), "opened");
    assert_non_null(strstr(sample_complaint(bytes, size - 61, &err), "past the end"));
    free(bytes);
}

static void messages_stay_printable_and_short(void **state)
{
    (void)state;
    char key[400];
    memset(key, 0xe4, sizeof key - 1);
    key[0] = '\\';
    key[sizeof key - 1] = '\0';
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    bt_gguf_writer_put_integer(&w, key, BT_GGUF_BOOL, 3);
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    bt_error err;
    const char *text = sample_complaint(bytes, size, &err);
    assert_non_null(strstr(text, "key '\\x5C\\xE4\\xE4"));
    assert_non_null(strstr(text, "...', before byte"));
    for (; *text; text++) {
        assert_true(*text >= 0x20 && *text < 0x7f);
    }
    free(bytes);
}

/* ---- files ---- */

static void complain(const char *path, bt_status want, const char *complaint)
{
    bt_gguf *file = NULL;
    bt_error err = { .text = "" };
    assert_int_equal(bt_gguf_open(path, &file, &err), want);
    assert_null(file);
    if (!strstr(err.text, complaint)) {
        print_error("got: %s\nwant: %s\n", err.text, complaint);
        fail();
    }
}

static void what_is_not_a_file_is_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/baton-gguf-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    complain(folder, BT_E_BADFILE, "is not a file but a folder");
    snprintf(path, sizeof path, "%s/none.gguf", folder);
    complain(path, BT_E_NOTFOUND, "none.gguf' cannot be opened: No such file");
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    complain(path, BT_E_BADFILE, "a device or pipe");       /* and does not wait for a writer */
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/empty", folder);
    fclose(fopen(path, "w"));
    complain(path, BT_E_BADFILE, "empty' is empty");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void a_real_model_opens_and_survives_dropped_pages(void **state)
{
    (void)state;
    const char *path = BATON_SOURCE_DIR "/tests/golden/models/tinyq-qwen3-q4_k_m.gguf";
    bt_gguf *file;
    bt_error err = { .text = "" };
    if (bt_gguf_open(path, &file, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(bt_gguf_tensor_count(file), 35);
    const bt_gguf_tensor *t = bt_gguf_tensor_find(file, "token_embd.weight");
    assert_string_equal(t->type->name, "Q6_K");
    assert_true(t->ne[0] == 256 && t->ne[1] == 1024);
    const uint64_t sum = walk_file(file);
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        bt_gguf_drop_pages(file, bt_gguf_tensor_at(file, i));
    }
    assert_int_equal(walk_file(file), sum);
    bt_gguf_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_its_keys_and_tensors),
        cmocka_unit_test(version_2_and_other_alignments_are_read),
        cmocka_unit_test(a_vocabulary_without_tensors_is_a_file),
        cmocka_unit_test(nothing_at_all_is_a_file_too),
        cmocka_unit_test(wrong_versions_are_named),
        cmocka_unit_test(counts_are_held_against_the_size),
        cmocka_unit_test(wrong_keys_are_named),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(a_file_that_ends_in_the_padding_is_whole),
        cmocka_unit_test(messages_stay_printable_and_short),
        cmocka_unit_test(what_is_not_a_file_is_refused),
        cmocka_unit_test(a_real_model_opens_and_survives_dropped_pages),
    };
    return cmocka_run_group_tests_name("gguf/open", tests, NULL, NULL);
}
