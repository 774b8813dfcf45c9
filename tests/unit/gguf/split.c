/* gguf/gguf.h: models in several files. */
#include "unit/gguf/sample.h"

#include "unit/gguf/walk.h"

static char folder[] = "/tmp/baton-split-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static const char *path_of(const char *prefix, uint32_t part, uint32_t n_parts)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s-%05u-of-%05u.gguf", folder, prefix, part + 1, n_parts);
    return path;
}

/* What a part says about itself, and its tensors. */
typedef struct {
    uint32_t    no, count, total;
    const char *tensor;            /* one tensor of one row of `width` zeros; NULL: none */
    uint32_t    width, alignment;
} part;

static void write_part(const char *path, const part *p)
{
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, p->alignment ? p->alignment : 32);
    bt_gguf_writer_put_integer(&w, "split.no", BT_GGUF_U16, p->no);
    bt_gguf_writer_put_integer(&w, "split.count", BT_GGUF_U16, p->count);
    bt_gguf_writer_put_integer(&w, "split.tensors.count", BT_GGUF_I32, p->total);
    bt_gguf_writer_put_integer(&w, "which", BT_GGUF_U32, p->no);
    if (p->tensor) {
        float row[256];
        for (uint32_t i = 0; i < p->width; i++) {
            row[i] = (float)(p->no * 1000 + i);
        }
        bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
                .name = p->tensor, .type = BT_TYPE_F32, .n_dims = 1, .ne = { p->width },
                .data = row, .size = p->width * sizeof *row });
    }
    bt_error err = { .text = "" };
    if (bt_gguf_writer_save(&w, path, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    bt_gguf_writer_done(&w);
}

static void write_parts(const char *prefix, const part *parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        write_part(path_of(prefix, i, n), &parts[i]);
    }
}

static void remove_parts(const char *prefix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(unlink(path_of(prefix, i, n)), 0);
    }
}

static const part good[3] = {
    { .no = 0, .count = 3, .total = 2 },           /* the first may hold keys only */
    { .no = 1, .count = 3, .total = 2, .tensor = "one", .width = 7 },
    { .no = 2, .count = 3, .total = 2, .tensor = "two", .width = 256, .alignment = 64 },
};

static void parts_become_one_model(void **state)
{
    (void)state;
    write_parts("good", good, 3);
    bt_gguf *file;
    bt_error err = { .text = "" };
    if (bt_gguf_open(path_of("good", 0, 3), &file, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    remove_parts("good", 3);                       /* what is mapped stays */
    assert_int_equal(bt_gguf_part_count(file), 3);
    assert_int_equal(bt_gguf_tensor_count(file), 2);
    uint32_t which;
    assert_int_equal(bt_gguf_get_u32(file, "which", &which, NULL), BT_OK);
    assert_int_equal(which, 0);                    /* keys are those of the first */
    const bt_gguf_tensor *one = bt_gguf_tensor_find(file, "one");
    const bt_gguf_tensor *two = bt_gguf_tensor_find(file, "two");
    assert_int_equal(one->part, 1);
    assert_int_equal(two->part, 2);
    assert_true(((const float *)one->data)[6] == 1006);
    assert_true(((const float *)two->data)[255] == 2255);
    assert_true(bt_gguf_size_bytes(file) > 256 * 4 + 7 * 4);
    const uint64_t sum = walk_file(file);
    bt_gguf_drop_pages(file, two);
    assert_int_equal(walk_file(file), sum);
    bt_gguf_close(file);
}

/* `good` with one part replaced, and what opening says. */
static void expect(uint32_t at, part replaced, bt_status want, const char *complaint)
{
    part parts[3];
    memcpy(parts, good, sizeof parts);
    parts[at] = replaced;
    write_parts("bad", parts, 3);
    bt_gguf *file = NULL;
    bt_error err = { .text = "" };
    assert_int_equal(bt_gguf_open(path_of("bad", 0, 3), &file, &err), want);
    assert_null(file);
    if (!strstr(err.text, complaint)) {
        print_error("got: %s\nwant: %s\n", err.text, complaint);
        fail();
    }
    remove_parts("bad", 3);
}

static void parts_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    expect(1, (part){ .no = 2, .count = 3, .tensor = "one", .width = 7 }, BT_E_BADFILE,
           "'bad-00002-of-00003.gguf' is part 3, but its name says part 2");
    expect(2, (part){ .no = 2, .count = 4, .tensor = "two", .width = 7 }, BT_E_BADFILE,
           "'bad-00003-of-00003.gguf' says it belongs to 4 parts, the first part says 3");
    expect(2, (part){ .no = 2, .count = 3, .tensor = "one", .width = 7 }, BT_E_BADFILE,
           "tensor 'one': the name is there twice");
    expect(2, (part){ .no = 2, .count = 3 }, BT_E_BADFILE,
           "its parts hold 1 tensors, 'split.tensors.count' says 2");
    expect(0, (part){ .no = 1, .count = 3, .total = 2 }, BT_E_BADFILE,
           "is part 2 of 3; open the first, whose name ends in '-00001-of-00003.gguf'");
    expect(0, (part){ .no = 0, .count = 1025, .total = 2 }, BT_E_BADFILE,
           "is one of 1025 parts; at most 1024 can be read");
    expect(0, (part){ .no = 0, .count = 4, .total = 2 }, BT_E_BADFILE,
           "the first of 4 parts, so its name must end in '-00001-of-00004.gguf'");
}

static void a_missing_part_is_named(void **state)
{
    (void)state;
    write_parts("gone", good, 3);
    assert_int_equal(unlink(path_of("gone", 2, 3)), 0);
    bt_gguf *file = NULL;
    bt_error err;
    assert_int_equal(bt_gguf_open(path_of("gone", 0, 3), &file, &err), BT_E_NOTFOUND);
    assert_non_null(strstr(err.text, "gone-00003-of-00003.gguf' cannot be opened: No such file"));
    assert_int_equal(bt_gguf_open(path_of("gone", 1, 3), &file, &err), BT_E_BADFILE);
    assert_non_null(strstr(err.text, "is part 2 of 3; open the first"));
    assert_null(file);
    write_part(path_of("gone", 2, 3), &good[2]);
    remove_parts("gone", 3);
}

static void a_single_part_is_a_plain_file(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/single.gguf", folder);
    write_part(path, &(part){ .count = 1, .total = 1, .tensor = "one", .width = 3 });
    bt_gguf *file;
    assert_int_equal(bt_gguf_open(path, &file, NULL), BT_OK);
    assert_int_equal(bt_gguf_part_count(file), 1);
    bt_gguf_close(file);
    assert_int_equal(unlink(path), 0);
}

static void bytes_in_memory_cannot_be_joined(void **state)
{
    (void)state;
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    bt_gguf_writer_put_integer(&w, "split.no", BT_GGUF_U16, 0);
    bt_gguf_writer_put_integer(&w, "split.count", BT_GGUF_U16, 2);
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    bt_error err;
    assert_non_null(strstr(sample_complaint(bytes, size, &err), "only files can be joined"));
    assert_int_equal(err.status, BT_E_UNSUPPORTED);
    free(bytes);
}

static void running_out_of_memory_leaves_nothing_behind(void **state)
{
    (void)state;
    write_parts("poor", good, 3);
    uint64_t n = 1;
    for (;; n++) {
        bt_gguf *file = NULL;
        bt_error err = { .text = "" };
        bt_memory_fail_after(n);
        const bt_status status = bt_gguf_open(path_of("poor", 0, 3), &file, &err);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            bt_gguf_close(file);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_null(file);
        assert_true(strstr(err.text, "out of memory") != NULL);
    }
    assert_true(n > 12);
    remove_parts("poor", 3);
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_become_one_model),
        cmocka_unit_test(parts_that_do_not_belong_together_are_refused),
        cmocka_unit_test(a_missing_part_is_named),
        cmocka_unit_test(a_single_part_is_a_plain_file),
        cmocka_unit_test(bytes_in_memory_cannot_be_joined),
        cmocka_unit_test(running_out_of_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests_name("gguf/split", tests, make_folder, remove_folder);
}
