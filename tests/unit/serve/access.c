/* serve/access.h: keys, hosts, origins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/access.h"

static void only_names_of_this_machine_reach_a_loopback_server(void **state)
{
    (void)state;
    static const char *const good[] = { "localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1",
                                        "127.9.9.9:80", "[::1]", "[::1]:8080", "a.localhost:3",
                                        "box.lan", "box.lan:8080" };
    static const char *const bad[] = {"evil.example",
                                      "evil.example:8080",
                                      "127.0.0.1.evil.example",
                                      "localhost.evil.example",
                                      "128.0.0.1",
                                      "[::2]:80",
                                      "",
                                      "127.0.0.1@evil",
                                      "0x7f.1",
                                      "127.0.0.256",
                                      "[::1].evil.example",
                                      "[::1]evil",
                                      "[::1]:80.evil",
                                      "[localhost]",
                                      "localhost:80.evil.example",
                                      "[::1"};
    for (size_t i = 0; i < BT_LEN(good); i++) {
        assert_true(bt_serve_access_host_allowed(good[i], "box.lan", NULL));
    }
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        assert_false(bt_serve_access_host_allowed(bad[i], "127.0.0.1", NULL));
    }
    assert_true(bt_serve_access_host_allowed(NULL, "127.0.0.1", NULL));
}

static void hosts_named_by_an_option_are_allowed(void **state)
{
    (void)state;
    static const char list[] = "api.example, box:8080";
    assert_true(bt_serve_access_host_allowed("api.example", "127.0.0.1", list));
    assert_true(bt_serve_access_host_allowed("API.example:443", "127.0.0.1", list));
    assert_true(bt_serve_access_host_allowed("box:8080", "127.0.0.1", list));
    assert_false(bt_serve_access_host_allowed("box:8081", "127.0.0.1", list));
    assert_false(bt_serve_access_host_allowed("example", "127.0.0.1", list));
    assert_false(bt_serve_access_host_allowed("api.example.evil", "127.0.0.1", list));
    assert_true(bt_serve_access_host_allowed("anything", "127.0.0.1", "*"));
    assert_false(bt_serve_access_host_allowed("", "127.0.0.1", list));
}

static void foreign_origins_are_refused_unless_named(void **state)
{
    (void)state;
    const char *host = "192.168.1.5:8080";
    assert_true(bt_serve_access_origin_allowed("http://192.168.1.5:8080", host, NULL));
    assert_true(bt_serve_access_origin_allowed("http://localhost:5173", host, NULL));
    assert_true(bt_serve_access_origin_allowed("http://[::1]:3000", host, NULL));
    assert_false(bt_serve_access_origin_allowed("http://192.168.1.5:9999", host, NULL));
    assert_false(bt_serve_access_origin_allowed("https://evil.example", host, NULL));
    assert_false(bt_serve_access_origin_allowed("https://localhost.evil.example", host, NULL));
    assert_false(bt_serve_access_origin_allowed("http://[::1].evil.example", host, NULL));
    assert_false(bt_serve_access_origin_allowed("null", host, NULL));
    assert_true(bt_serve_access_origin_allowed("https://evil.example", host, "*"));
    assert_true(bt_serve_access_origin_allowed("https://a.example", host,
                                               "https://b.example, https://a.example"));
    assert_false(bt_serve_access_origin_allowed("https://c.example", host,
                                                "https://b.example,https://a.example"));
    assert_false(bt_serve_access_origin_allowed("http://localhost:1", host, "https://b.example"));
    assert_true(bt_serve_access_origin_allowed("http://localhost:1", host,
                                               "https://b.example,localhost"));
}

static void a_key_must_match_whole(void **state)
{
    (void)state;
    bt_access_keys k = { 0 };
    uint32_t n = 9;
    assert_true(bt_serve_access_key_valid(&k, NULL, NULL, &n));
    assert_int_equal(n, 0);
    assert_int_equal(bt_serve_access_keys_add_list(&k, "one, two", NULL), BT_OK);
    assert_int_equal(k.count, 2);
    assert_true(bt_serve_access_key_valid(&k, "Bearer one", NULL, &n));
    assert_int_equal(n, 1);
    assert_true(bt_serve_access_key_valid(&k, "bearer  two", NULL, &n));
    assert_true(bt_serve_access_key_valid(&k, NULL, "two", &n));
    assert_int_equal(n, 2);
    /* Blanks at the end are no part of a header's value. */
    assert_true(bt_serve_access_key_valid(&k, "Bearer one \t", NULL, &n));
    assert_true(bt_serve_access_key_valid(&k, NULL, "two ", &n));
    static const char *const wrong[] = { "", "o", "on", "ones", "oneone", "onetwo", "two x", "tw" };
    for (size_t i = 0; i < BT_LEN(wrong); i++) {
        char bearer[64];
        snprintf(bearer, sizeof bearer, "Bearer %s", wrong[i]);
        assert_false(bt_serve_access_key_valid(&k, NULL, wrong[i], &n));
        assert_false(bt_serve_access_key_valid(&k, bearer, NULL, &n));
    }
    assert_false(bt_serve_access_key_valid(&k, NULL, NULL, &n));
    bt_serve_access_keys_done(&k);
}

static void write_file(char path[32], const char *text)
{
    strcpy(path, "/tmp/baton-keys-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void a_key_file_has_lines_and_comments(void **state)
{
    (void)state;
    char path[32];
    bt_access_keys k = { 0 };
    bt_error err;
    write_file(path, "# keys\n  first  \n\nsecond\r\n#third\n");
    assert_int_equal(bt_serve_access_keys_add_file(&k, path, &err), BT_OK);
    assert_int_equal(k.count, 2);
    assert_string_equal(k.keys[0], "first");
    assert_string_equal(k.keys[1], "second");
    unlink(path);
    bt_serve_access_keys_done(&k);
}

static void a_key_file_without_keys_opens_nothing(void **state)
{
    (void)state;
    char path[32];
    bt_access_keys k = { 0 };
    bt_error err;
    write_file(path, "# nothing here\n");
    assert_int_equal(bt_serve_access_keys_add_file(&k, path, &err), BT_E_BADINPUT);
    unlink(path);
    assert_int_equal(bt_serve_access_keys_add_file(&k, path, &err), BT_E_IO);
    bt_serve_access_keys_done(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_names_of_this_machine_reach_a_loopback_server),
        cmocka_unit_test(hosts_named_by_an_option_are_allowed),
        cmocka_unit_test(foreign_origins_are_refused_unless_named),
        cmocka_unit_test(a_key_must_match_whole),
        cmocka_unit_test(a_key_file_has_lines_and_comments),
        cmocka_unit_test(a_key_file_without_keys_opens_nothing),
    };
    return cmocka_run_group_tests_name("serve/access", tests, NULL, NULL);
}
