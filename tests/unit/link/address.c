/* tests/unit/link/address.c - addresses, and sentences about connections that do not come about. */
#include "pair.h"

#include <stdatomic.h>

#include "link/address.h"

static void addresses_are_taken_apart(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        uint16_t    port;
    } good[] = {
        {"spark:7070", "spark", 7070},
        {"127.0.0.1:0", "127.0.0.1", 0},
        {"[::1]:65535", "::1", 65535},
        {"[fe80::1%eth0]:9", "fe80::1%eth0", 9},
    };
    static const char *bad[] = {"",         ":",        "spark",    "spark:",     ":7070",
                                "a:b",      "a:65536",  "a:-1",     "a:1x",       "::1:80",
                                "[::1]",    "[::1]80",  "[::1",     "[]:80",      "a:9999999999",
                                "a: 80",    "a:0x50",   "a/b:1",    "u@a:1",      "http://a:1",
                                "a:1,b:2",  "a,b:2",    "[::1/x]:1"};
    bt_link_address a;

    for (size_t i = 0; i < BT_LEN(good); i++) {
        assert_ok(bt_link_address_parse(good[i].text, &a, &pair_err));
        assert_string_equal(a.host, good[i].host);
        assert_int_equal(a.port, good[i].port);
    }
    for (size_t i = 0; i < BT_LEN(bad); i++) {
        assert_int_equal(bt_link_address_parse(bad[i], &a, &pair_err), BT_E_BADINPUT);
    }
    char many[400];
    memset(many, 'a', sizeof many);
    memcpy(many + 395, ":80", 4);
    assert_int_equal(bt_link_address_parse(many, &a, &pair_err), BT_E_BADINPUT);
}

static void expect(const char *address, const bt_link_options *o, bt_status status,
                   const char *says)
{
    bt_link *link;
    assert_int_equal(bt_link_connect(address, o, &link, &pair_err), status);
    assert_says(pair_err.text, says);
}

static void failures_to_connect_are_told_apart(void **state)
{
    (void)state;
    char address[32];
    const int fd = raw_listen(1, address);
    close(fd);                                  /* a port that was free a moment ago */
    expect(address, NULL, BT_E_LOST, "refused");
    expect(address, NULL, BT_E_LOST, "is the worker running");
    expect("no-such-host.invalid:7070", NULL, BT_E_NOTFOUND, "no-such-host.invalid");
    expect("127.0.0.1:0", NULL, BT_E_BADINPUT, "port 0");
    expect("spark", NULL, BT_E_BADINPUT, "no port");
    expect("http://spark:1", NULL, BT_E_BADINPUT, "is a URL");
    expect("a:1,b:2", NULL, BT_E_BADINPUT, "more than one address");
}

#ifdef __linux__
/* A full backlog: Linux drops the next SYN, as a firewall would. */
static void fill_backlog(const char *address, int fds[3])
{
    const struct sockaddr_in in = raw_address(address);
    for (int i = 0; i < 3; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fds[i], (const struct sockaddr *)&in, sizeof in);
    }
    bt_clock_sleep_ms(50);
}

static void no_answer_is_a_timeout(void **state)
{
    (void)state;
    const bt_link_options o = {.connect_timeout_ms = 200};
    char address[32];
    int fds[3];
    const int fd = raw_listen(0, address);

    fill_backlog(address, fds);
    const double before = bt_clock_ms();
    expect(address, &o, BT_E_TIMEOUT, "no answer within 200 ms");
    const double ms = bt_clock_ms() - before;
    assert_true(ms >= 190 && ms < 600);

    bt_waker waker;
    assert_ok(bt_waker_open(&waker, &pair_err));
    bt_waker_wake(&waker);
    const bt_link_options stopping = {.cancel = &waker};
    const double stopped_at = bt_clock_ms();
    expect(address, &stopping, BT_E_TIMEOUT, "stopping");
    assert_true(bt_clock_ms() - stopped_at < 2500);     /* of 3,000 */
    bt_waker_close(&waker);
    for (int i = 0; i < 3; i++) {
        close(fds[i]);
    }
    close(fd);
}
#endif

static void without_a_key_only_loopback_listens(void **state)
{
    (void)state;
    const bt_link_options insecure = {.allow_insecure = true};
    bt_listener *l;

    assert_int_equal(bt_link_listener_open("0.0.0.0:0", NULL, &l, &pair_err), BT_E_REFUSED);
    assert_says(pair_err.text, "--key-file");
    assert_int_equal(bt_link_listener_open("[::]:0", NULL, &l, &pair_err), BT_E_REFUSED);
    assert_ok(bt_link_listener_open("0.0.0.0:0", &insecure, &l, &pair_err));
    assert_says(bt_link_listener_address(l), "0.0.0.0:");
    bt_link_listener_close(l);
    assert_ok(bt_link_listener_open("127.8.9.10:0", NULL, &l, &pair_err));
    bt_link_listener_close(l);
    assert_ok(bt_link_listener_open("localhost:0", NULL, &l, &pair_err));
    bt_link_listener_close(l);
}

static void failures_to_listen_are_told_apart(void **state)
{
    (void)state;
    const bt_link_options insecure = {.allow_insecure = true};
    bt_listener *l, *second;

    assert_ok(bt_link_listener_open("127.0.0.1:0", NULL, &l, &pair_err));
    assert_int_equal(bt_link_listener_open(bt_link_listener_address(l), NULL, &second, &pair_err),
                     BT_E_IO);
    assert_says(pair_err.text, "another program has the port");
    bt_link_listener_close(l);
    assert_int_equal(bt_link_listener_open("192.0.2.1:0", &insecure, &l, &pair_err), BT_E_IO);
    assert_says(pair_err.text, "not an address of this machine");
    assert_int_equal(bt_link_listener_open("nonsense", NULL, &l, &pair_err), BT_E_BADINPUT);
}

static void ipv6_works(void **state)
{
    (void)state;
    bt_listener *l;
    bt_link *a, *b;
    bt_link_stats s;

    if (bt_link_listener_open("[::1]:0", NULL, &l, &pair_err) != BT_OK) {
        skip();                                 /* no IPv6 on this machine */
    }
    assert_says(bt_link_listener_address(l), "[::1]:");
    assert_ok(bt_link_connect(bt_link_listener_address(l), NULL, &a, &pair_err));
    assert_ok(bt_link_listener_accept(l, within(2000), &b, &pair_err));
    bt_link_stats_get(a, &s);
    assert_string_equal(s.peer, bt_link_listener_address(l));
    bt_link_destroy(a);
    bt_link_destroy(b);
    bt_link_listener_close(l);
}

static void names_are_looked_up(void **state)
{
    (void)state;
    bt_listener *l;
    bt_link *a;
    char address[64];

    assert_ok(bt_link_listener_open("127.0.0.1:0", NULL, &l, &pair_err));
    snprintf(address, sizeof address, "localhost%s", strrchr(bt_link_listener_address(l), ':'));
    assert_ok(bt_link_connect(address, NULL, &a, &pair_err));
    bt_link_destroy(a);
    bt_link_listener_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_taken_apart),
        cmocka_unit_test(failures_to_connect_are_told_apart),
#ifdef __linux__
        cmocka_unit_test(no_answer_is_a_timeout),
#endif
        cmocka_unit_test(without_a_key_only_loopback_listens),
        cmocka_unit_test(failures_to_listen_are_told_apart),
        cmocka_unit_test(ipv6_works),
        cmocka_unit_test(names_are_looked_up),
    };
    return cmocka_run_group_tests_name("link/address", tests, NULL, NULL);
}
