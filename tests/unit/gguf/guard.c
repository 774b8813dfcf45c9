/* gguf/gguf.h: files that somebody writes to while they are open. */
#include "unit/gguf/sample.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 16, PAGE = 65536 };         /* as large as pages get */

static char folder[] = "/tmp/baton-guard-XXXXXX";
static char path[64], other[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_file(const char *to, float value)
{
    bt_gguf_writer w;
    bt_error err = { 0 };
    float *rows = malloc(PAGES * PAGE);
    for (size_t i = 0; i < PAGES * PAGE / sizeof *rows; i++) {
        rows[i] = value;
    }
    bt_gguf_writer_init(&w, 3, 32);
    bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
        .name = "rows", .type = BT_TYPE_F32, .n_dims = 1, .ne = { PAGES * PAGE / sizeof *rows },
        .data = rows, .size = PAGES * PAGE });
    if (bt_gguf_writer_save(&w, to, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    bt_gguf_writer_done(&w);
    free(rows);
}

static bt_gguf *open_file(void)
{
    bt_gguf *file;
    bt_error err = { 0 };
    if (bt_gguf_open(path, &file, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return file;
}

static void expect_refused(const bt_gguf *file, const char *words)
{
    for (int i = 0; i < 2; i++) {          /* and from then on */
        bt_error err = { 0 };
        assert_int_equal(bt_gguf_unchanged(file, &err), BT_E_IO);
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, words));
    }
}

static void a_file_written_in_place_is_noticed(void **state)
{
    (void)state;
    const struct timespec long_ago[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    write_file(path, 1);
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    bt_gguf *file = open_file();
    assert_int_equal(bt_gguf_unchanged(file, NULL), BT_OK);
    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, PAGE), 1);
    close(fd);
    expect_refused(file, "its time changed");
    bt_gguf_close(file);
}

static void a_file_cut_short_is_noticed(void **state)
{
    (void)state;
    write_file(path, 1);
    bt_gguf *file = open_file();
    assert_int_equal(truncate(path, PAGE), 0);
    expect_refused(file, "its size changed");
    bt_gguf_close(file);
}

static void a_file_replaced_by_renaming_or_removed_is_still_whole(void **state)
{
    (void)state;
    write_file(path, 1);
    write_file(other, 2);
    bt_gguf *file = open_file();
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(bt_gguf_unchanged(file, NULL), BT_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(bt_gguf_unchanged(file, NULL), BT_OK);
    const float *rows = bt_gguf_tensor_at(file, 0)->data;
    assert_true(rows[PAGES * PAGE / sizeof *rows - 1] == 1.0f);
    bt_gguf_close(file);
}

/* What a process says that touches the end of a file after it was cut. */
static void touch_what_was_cut(char *said, size_t capacity)
{
    int ends[2], status;
    write_file(path, 1);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        bt_gguf *file;
        dup2(ends[1], STDERR_FILENO);
        bt_gguf_guard_start();
        if (bt_gguf_open(path, &file, NULL) != BT_OK || truncate(path, PAGE) != 0) {
            _exit(77);
        }
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, 0);
        const volatile float *rows = t->data;
        _exit(rows[t->n_elems - 1] == 1.0f ? 78 : 79);
    }
    close(ends[1]);
    size_t n = 0;
    ssize_t got;
    while ((got = read(ends[0], said + n, capacity - 1 - n)) > 0) {
        n += (size_t)got;
    }
    said[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void touching_what_was_cut_names_the_file_and_ends(void **state)
{
    (void)state;
    char said[1024];
    touch_what_was_cut(said, sizeof said);
    assert_non_null(strstr(said, path));
    assert_non_null(strstr(said, "was cut short"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_written_in_place_is_noticed),
        cmocka_unit_test(a_file_cut_short_is_noticed),
        cmocka_unit_test(a_file_replaced_by_renaming_or_removed_is_still_whole),
        cmocka_unit_test(touching_what_was_cut_names_the_file_and_ends),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
