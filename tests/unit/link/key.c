/* tests/unit/link/key.c - key files: what is a key, and what is said of those that are none. */
#include "key_files.h"

#include "base/log.h"
#include "link/key.h"

static bool same_key(const char *a, const char *b)
{
    bt_link_key x, y;
    assert_ok(bt_link_key_load(a, &x, &pair_err));
    assert_ok(bt_link_key_load(b, &y, &pair_err));
    return memcmp(&x, &y, sizeof x) == 0;
}

static void a_key_is_bytes_or_hexadecimal(void **state)
{
    (void)state;
    uint8_t raw[32];
    char text[80];
    for (int i = 0; i < 32; i++) {
        raw[i] = (uint8_t)(i % 16 * 0x11);
    }
    snprintf(text, sizeof text, "%s\r\n\n", hex_key);
    const char *bytes = key_file(2, raw, 32), *lines = key_file(3, text, strlen(text));
    assert_true(same_key(paths[0], bytes));
    assert_true(same_key(paths[0], lines));
    assert_false(same_key(paths[0], paths[1]));
    /* An odd number of digits is text. */
    key_file(2, hex_key, 63);
    assert_false(same_key(paths[0], paths[2]));
}

static void expect_bad(const char *path, const char *says)
{
    bt_link_key key;
    assert_int_equal(bt_link_key_load(path, &key, &pair_err), BT_E_BADINPUT);
    assert_says(pair_err.text, path);
    assert_says(pair_err.text, says);
}

static void bad_key_files_are_told_apart(void **state)
{
    (void)state;
    static char much[5000];
    bt_listener *l;
    bt_link *link;

    expect_bad("/nonexistent/key", "No such file");
    expect_bad(folder, "directory");
    expect_bad(key_file(2, "", 0), "a key of 0 bytes, at least 16");
    expect_bad(key_file(2, "fifteen bytes..", 15), "a key of 15 bytes");
    expect_bad(key_file(2, "00112233445566778899aabbccddee\n", 31), "a key of 15 bytes");
    memset(much, 'x', sizeof much);
    expect_bad(key_file(2, much, sizeof much), "more than 4096");

    const bt_link_options o = {.key_file = "/nonexistent/key"};
    assert_int_equal(bt_link_listener_open("127.0.0.1:0", &o, &l, &pair_err), BT_E_BADINPUT);
    assert_int_equal(bt_link_connect("127.0.0.1:1", &o, &link, &pair_err), BT_E_BADINPUT);
}

static char logged[400];

static void keep_line(void *context, bt_log_level level, const char *line)
{
    (void)context;
    if (level == BT_LOG_WARN) {
        snprintf(logged, sizeof logged, "%s", line);
    }
}

static void a_key_that_others_may_read_is_warned_of(void **state)
{
    (void)state;
    bt_link_key key;

    bt_log_set_sink(keep_line, NULL);
    logged[0] = '\0';
    assert_ok(bt_link_key_load(paths[0], &key, &pair_err));
    assert_string_equal(logged, "");
    assert_int_equal(chmod(paths[1], 0644), 0);
    assert_ok(bt_link_key_load(paths[1], &key, &pair_err));
    assert_says(logged, "chmod 600");
    chmod(paths[1], 0600);
    bt_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_bytes_or_hexadecimal),
        cmocka_unit_test(bad_key_files_are_told_apart),
        cmocka_unit_test(a_key_that_others_may_read_is_warned_of),
    };
    return cmocka_run_group_tests_name("link/key", tests, set_up, tear_down);
}
