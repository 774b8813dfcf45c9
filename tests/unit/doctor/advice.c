/* tests/unit/doctor/advice.c - every finding from made-up facts, and the command that fixes it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "doctor/advice.h"

static bt_checkup c;
static bt_findings f;

/* A Mac that reaches a Linux worker over 10 GbE, and nothing to complain about. */
static int well(void **state)
{
    (void)state;
    c = (bt_checkup){
        .address = "spark:7070", .host = "spark", .port = 7070, .key_file = "key",
        .here = { .system = "linux", .rmem_max = 64 << 20, .wmem_max = 64 << 20,
                  .tcp_rmem_max = 32 << 20, .tcp_wmem_max = 32 << 20, .idle_restart = 1 },
        .n_reach = 1,
        .reach = { { .peer = "10.0.0.2:7070", .kind = BT_REACH_CONNECTED, .ms = 0.2 } },
        .facts = { .own = { .version_major = 1, .version_minor = 1 }, .n_ctx = 32768,
                   .n_prefill = 4, .chunk_tokens = 512, .n_servers = 1, .n_servers_max = 16,
                   .encrypted = true, .send_buffer = 4 << 20, .wmem_max = 64 << 20,
                   .tcp_wmem_max = 32 << 20, .idle_restart = 1, .system = "linux",
                   .congestion = "cubic", .numerics = "neon", .model = "m",
                   .peer = "10.0.0.2:7070", .program = "baton " BATON_VERSION },
        .compared = true, .fits = true, .numerics = "neon",
        .n_round_trips = 3, .round_trip_ms = { 0.21, 0.2, 0.4 },
        .rested_ms = 1.0, .warm_ms = 0.95, .large_bytes = 32 << 20, .large_ms = 28.7,
        .socket = { .send_buffer = 1 << 20, .receive_buffer = 6 << 20, .segment_bytes = 8948,
                    .path_mtu = 9000, .interface = "enp1s0", .interface_mtu = 9000,
                    .interface_mbit = 10000 },
    };
    return 0;
}

static const bt_finding *find(const char *name)
{
    bt_doctor_advice_give(&c, &f);
    for (uint32_t i = 0; i < f.n; i++) {
        assert_true(f.list[i].text[0] != '\0');
        if (strcmp(f.list[i].name, name) == 0) {
            return &f.list[i];
        }
    }
    fail_msg("no finding named %s", name);
    return NULL;
}

static void expect(const char *name, bt_finding_state state, const char *text, const char *command,
                   bool worker)
{
    const bt_finding *at = find(name);
    if (at->state != state || strstr(at->text, text) == NULL) {
        fail_msg("%s: %s: %s", name, bt_doctor_finding_state_name(at->state), at->text);
    }
    bool found = command == NULL && at->n_fixes == 0;
    for (uint32_t i = 0; i < at->n_fixes && command; i++) {
        found |= strstr(at->fixes[i].command, command) != NULL && at->fixes[i].worker == worker;
    }
    if (!found) {
        fail_msg("%s: no command '%s'; the first: %s", name, command ? command : "(none)",
                 at->fixes[0].command);
    }
    assert_true(bt_doctor_findings_well(&f) == (state != BT_FINDING_PROBLEM));
}

static void all_well(void **state)
{
    (void)state;
    bt_doctor_advice_give(&c, &f);
    assert_true(bt_doctor_findings_well(&f));
    for (uint32_t i = 0; i < f.n; i++) {
        if (f.list[i].state != BT_FINDING_OK || f.list[i].n_fixes > 0) {
            fail_msg("%s: %s", f.list[i].name, f.list[i].text);
        }
    }
    assert_in_range(f.n, 12, BT_FINDINGS_MAX);
    /* 32 MiB in 28.7 ms, less 0.2 ms of round trip. */
    assert_true(bt_doctor_checkup_goodput(&c) > 1.17e9 && bt_doctor_checkup_goodput(&c) < 1.18e9);
    expect("round trip", BT_FINDING_OK, "0.21 ms in the median", NULL, false);
    expect("goodput", BT_FINDING_OK, "94 % of the 10000 Mbit/s of enp1s0", NULL, false);
}

/* ---- reachability ---- */

static void errnos_have_kinds(void **state)
{
    (void)state;
    assert_int_equal(bt_link_reach_kind_of(0, true, false), BT_REACH_CONNECTED);
    assert_int_equal(bt_link_reach_kind_of(ECONNREFUSED, true, true), BT_REACH_REFUSED);
    assert_int_equal(bt_link_reach_kind_of(EHOSTUNREACH, true, false), BT_REACH_NO_ROUTE);
    assert_int_equal(bt_link_reach_kind_of(EHOSTUNREACH, true, true), BT_REACH_LOCAL_NETWORK);
    assert_int_equal(bt_link_reach_kind_of(EHOSTUNREACH, false, true), BT_REACH_NO_ROUTE);
    assert_int_equal(bt_link_reach_kind_of(ENETUNREACH, false, true), BT_REACH_NO_ROUTE);
    assert_int_equal(bt_link_reach_kind_of(EHOSTDOWN, true, true), BT_REACH_NO_ROUTE);
    assert_int_equal(bt_link_reach_kind_of(ETIMEDOUT, true, true), BT_REACH_NO_ANSWER);
    assert_int_equal(bt_link_reach_kind_of(EACCES, true, false), BT_REACH_NOT_PERMITTED);
    assert_int_equal(bt_link_reach_kind_of(EPERM, true, true), BT_REACH_NOT_PERMITTED);
    assert_int_equal(bt_link_reach_kind_of(ECANCELED, true, true), BT_REACH_STOPPED);
    assert_int_equal(bt_link_reach_kind_of(EPIPE, true, true), BT_REACH_OTHER);
}

static void every_kind_has_a_sentence_and_a_name(void **state)
{
    (void)state;
    for (unsigned kind = 1; kind < BT_REACH_COUNT; kind++) {
        bt_error err = { 0 };
        assert_int_not_equal(BT_OK, bt_link_reach_explain((bt_reach_kind)kind, EIO, "a:1",
                                                            "1.2.3.4:1", 5, &err));
        assert_non_null(strstr(err.text, "'a:1' (1.2.3.4:1): "));
        assert_int_not_equal(BT_OK, bt_link_reach_explain((bt_reach_kind)kind, EIO, "1.2.3.4:1",
                                                            "1.2.3.4:1", 5, &err));
        assert_int_equal(0, strncmp(err.text, "'1.2.3.4:1': ", 13));
        assert_string_not_equal(bt_link_reach_kind_name((bt_reach_kind)kind), "unknown");
    }
    assert_string_equal(bt_link_reach_kind_name(BT_REACH_COUNT), "unknown");
}

static void unreachable(bt_reach_kind kind, int error)
{
    c.reach[0].kind = kind;
    c.reach[0].error = error;
    c.reach[0].ms = 3000;
}

static void what_stands_in_the_way_is_told_apart(void **state)
{
    (void)state;
    unreachable(BT_REACH_REFUSED, ECONNREFUSED);
    expect("reach", BT_FINDING_PROBLEM, "refused", "--listen 0.0.0.0:7070", true);
    assert_int_equal(f.n, 2);           /* and the key: nothing behind it was looked at */
    snprintf(c.reach[0].peer, sizeof c.reach[0].peer, "127.0.0.1:7070");
    expect("reach", BT_FINDING_PROBLEM, "refused", "--listen 127.0.0.1:7070", true);
    snprintf(c.reach[0].peer, sizeof c.reach[0].peer, "[fd00::2]:7070");
    expect("reach", BT_FINDING_PROBLEM, "refused", "--listen '[::]:7070' --key-file KEY", true);
    snprintf(c.reach[0].peer, sizeof c.reach[0].peer, "10.0.0.2:7070");
    unreachable(BT_REACH_NO_ROUTE, ENETUNREACH);
    expect("reach", BT_FINDING_PROBLEM, "no route", "ip route get 10.0.0.2", false);
    unreachable(BT_REACH_NO_ANSWER, ETIMEDOUT);
    expect("reach", BT_FINDING_PROBLEM, "within 3000 ms", "ufw allow 7070/tcp", true);
    unreachable(BT_REACH_NOT_PERMITTED, EACCES);
    expect("reach", BT_FINDING_PROBLEM, "not permitted", "nft list ruleset", false);
    c.here.system = "macos";
    unreachable(BT_REACH_LOCAL_NETWORK, EHOSTUNREACH);
    expect("reach", BT_FINDING_PROBLEM, "Local Network", "Privacy_LocalNetwork", false);
    unreachable(BT_REACH_NO_ROUTE, EHOSTUNREACH);
    snprintf(c.reach[0].peer, sizeof c.reach[0].peer, "[fe80::1]:7070");
    expect("reach", BT_FINDING_PROBLEM, "no route", "route -n get fe80::1", false);
}

static void one_good_address_is_enough(void **state)
{
    (void)state;
    c.n_reach = 2;
    c.reach[1] = c.reach[0];
    unreachable(BT_REACH_NO_ANSWER, ETIMEDOUT);
    expect("reach", BT_FINDING_ADVICE, "another address", "ping -c 3 10.0.0.2", false);
    assert_true(f.n > 5);
}

static void names(void **state)
{
    (void)state;
    (void)bt_fail(&c.name_error, BT_E_NOTFOUND, "'spark': no such name");
    c.n_reach = 0;
    expect("name", BT_FINDING_PROBLEM, "no such name", "getent hosts spark", false);
    c.here.system = "macos";
    expect("name", BT_FINDING_PROBLEM, "no such name", "dscacheutil", false);
}

/* ---- key, answer, identity ---- */

static void keys(void **state)
{
    (void)state;
    c.key_open_to_others = true;
    expect("key", BT_FINDING_ADVICE, "used by others", "chmod 600 key", false);
    c.key_file = NULL;
    expect("key", BT_FINDING_ADVICE, "whoever reaches", "head -c 32 /dev/urandom", false);
    c.socket.loopback = true;
    expect("key", BT_FINDING_OK, "loopback", NULL, false);
    (void)bt_fail(&c.visit_error, BT_E_AUTH, "no key here");
    expect("key", BT_FINDING_PROBLEM, "no key here", "baton doctor spark:7070 --key-file", false);
    c.key_file = "key";
    c.key_open_to_others = false;
    (void)bt_fail(&c.visit_error, BT_E_AUTH, "the keys differ");
    expect("key", BT_FINDING_PROBLEM, "the keys differ", "scp key spark:baton.key", false);
    expect("key", BT_FINDING_PROBLEM, "the keys differ", "worker --key-file baton.key", true);
    snprintf(c.host, sizeof c.host, "fd00::2");
    expect("key", BT_FINDING_PROBLEM, "the keys differ", "scp key '['fd00::2']:baton.key'", false);
    c.worker_keyless = true;
    expect("key", BT_FINDING_PROBLEM, "the worker has no key", "doctor spark:7070   #", false);
    snprintf(c.reach[0].peer, sizeof c.reach[0].peer, "127.0.0.1:7070");
    expect("key", BT_FINDING_PROBLEM, "the worker has no key", "worker --key-file key", true);
}

/* A key is a file of this machine: no port needs to be open to look at it. */
static void keys_without_a_way(void **state)
{
    (void)state;
    unreachable(BT_REACH_REFUSED, ECONNREFUSED);
    assert_int_equal(find("key")->state, BT_FINDING_OK);
    assert_non_null(strstr(find("key")->text, "could not be compared"));
    c.key_open_to_others = true;
    assert_int_equal(find("key")->state, BT_FINDING_ADVICE);
    (void)bt_fail(&c.key_error, BT_E_BADINPUT, "key file 'key': a key of 3 bytes");
    expect("key", BT_FINDING_PROBLEM, "3 bytes", "ls -l key", false);
    c.key_short = true;
    expect("key", BT_FINDING_PROBLEM, "3 bytes", "openssl rand -hex 32 > key && chmod 600 key",
           false);
    unreachable(BT_REACH_CONNECTED, 0);
    expect("key", BT_FINDING_PROBLEM, "3 bytes", "openssl", false);
    assert_int_equal(f.n, 2);           /* no visit without it */
    c.key_error = (bt_error){ 0 };
    c.key_file = NULL;
    unreachable(BT_REACH_REFUSED, ECONNREFUSED);
    bt_doctor_advice_give(&c, &f);
    assert_int_equal(f.n, 1);
}

static void answers(void **state)
{
    (void)state;
    (void)bt_fail(&c.visit_error, BT_E_TIMEOUT, "no answer");
    expect("answer", BT_FINDING_PROBLEM, "no answer", "baton --version", true);
    (void)bt_fail(&c.visit_error, BT_E_PROTOCOL, "not a Baton frame");
    expect("answer", BT_FINDING_PROBLEM, "not a Baton", "ss -ltnp 'sport = :7070'", true);
    (void)bt_fail(&c.visit_error, BT_E_LOST, "closed the connection");
    expect("answer", BT_FINDING_PROBLEM, "closed", "ss -ltnp 'sport = :7070'", true);
    expect("answer", BT_FINDING_PROBLEM, "is no worker", "grep '[b]aton worker'", true);
    c.http = true;
    expect("answer", BT_FINDING_PROBLEM, "an HTTP server answers there", "ss -ltnp", true);
    c.port = 8080;
    expect("answer", BT_FINDING_PROBLEM, "7070 if not told", "baton doctor spark:7070", false);
    c.http = false;
    (void)bt_fail(&c.visit_error, BT_E_REFUSED, "update the server");
    expect("answer", BT_FINDING_PROBLEM, "update the server", "the older one", true);
    (void)bt_fail(&c.visit_error, BT_E_FULL, "two others");
    expect("answer", BT_FINDING_PROBLEM, "two others", NULL, false);
}

static void workers(void **state)
{
    (void)state;
    c.facts.n_servers = 16;
    expect("worker", BT_FINDING_ADVICE, "if yours is one of them, all is well; another",
           "--peers 32", true);
    assert_true(bt_doctor_checkup_full(&c));
    c.facts.n_servers_max = c.facts.n_servers = 40;
    expect("worker", BT_FINDING_ADVICE, "40 of 40", "--peers 64", true);
    c.facts.n_servers_max = c.facts.n_servers = 64;
    expect("worker", BT_FINDING_ADVICE, "64 of 64", NULL, true);
    c.facts.draining = true;
    expect("worker", BT_FINDING_PROBLEM, "shutting down", "systemctl restart", true);
    snprintf(c.facts.program, sizeof c.facts.program, "baton 0.0.1");
    (void)find("version");
}

static void models(void **state)
{
    (void)state;
    c.fits = false;
    c.misfit = (bt_wire_misfit){ .field = "type_k", .server_value = "f16", .worker_value = "q8_0" };
    expect("model", BT_FINDING_PROBLEM, "keys are kept as f16 here and as q8_0 on the worker",
           "baton worker -ctk f16", true);
    for (uint32_t i = 0; i < f.n; i++) {                   /* nor would it agree bit for bit */
        assert_string_not_equal(f.list[i].name, "numerics");
        assert_null(strstr(f.list[i].text, "sha256sum"));
    }
    c.misfit.field[5] = 'v';
    expect("model", BT_FINDING_PROBLEM, "values are kept as f16 here", "baton serve -ctv q8_0",
           false);
    static const char *const of_files[] = { "geometry", "tokenizer", "weights", "n_layers",
                                            "token_bytes" };
    c.model_file = "/models/a.gguf";
    snprintf(c.model, sizeof c.model, "ours");
    for (size_t i = 0; i < sizeof of_files / sizeof of_files[0]; i++) {
        snprintf(c.misfit.field, sizeof c.misfit.field, "%s", of_files[i]);
        expect("model", BT_FINDING_PROBLEM, "'ours' here, 'm' on the worker: the",
               "sha256sum /models/a.gguf", false);
    }
    c.misfit = (bt_wire_misfit){ .field = "kv_format", .sentence = "update the older program" };
    expect("model", BT_FINDING_PROBLEM, "update the older", "baton --version", true);
    c.compared = false;
    expect("model", BT_FINDING_SKIPPED, "-m FILE", NULL, false);
    snprintf(c.facts.numerics, sizeof c.facts.numerics, "avx2");
    expect("numerics", BT_FINDING_OK, "the worker computes with avx2, this machine with neon", NULL,
           false);
}

/* ---- the way ---- */

static void probes_that_fail(void **state)
{
    (void)state;
    (void)bt_fail(&c.probe_error, BT_E_TIMEOUT, "0 of 1048576 bytes came");
    expect("goodput", BT_FINDING_PROBLEM, "differ in MTU", "ping -M do -s 8972 -c 3 spark",
           false);
    expect("goodput", BT_FINDING_PROBLEM, "differ in MTU", "$(ip -o addr show to 10.0.0.2 |", true);
    (void)bt_fail(&c.probe_error, BT_E_LOST, "reset");
    expect("goodput", BT_FINDING_PROBLEM, "reset", NULL, false);
}

static void slow_ways(void **state)
{
    (void)state;
    c.large_ms = 290;
    expect("goodput", BT_FINDING_ADVICE, "9 % of the 10000", "iperf3 -R", false);
    expect("goodput", BT_FINDING_ADVICE, "9 % of the 10000",
           "ethtool \"$(ip -o addr show to 10.0.0.2 | awk '{print $2; exit}')\"", true);
    snprintf(c.facts.system, sizeof c.facts.system, "macos");
    snprintf(c.facts.peer, sizeof c.facts.peer, "[fd00::2]:7070");
    expect("goodput", BT_FINDING_ADVICE, "9 % of", "-getMedia \"$(ifconfig | awk -v a=fd00::2 '",
           true);
    c.round_trip_ms[0] = 90;
    c.round_trip_ms[1] = 1;
    c.round_trip_ms[2] = 2;
    expect("round trip", BT_FINDING_ADVICE, "very uneven", NULL, false);
}

static void windows(void **state)
{
    (void)state;
    /* 1.25 GB/s and 20 ms: 50 MB are needed, 32 MiB allowed. */
    c.n_round_trips = 1;
    c.round_trip_ms[0] = 20;
    c.large_ms = 48.6;
    expect("tcp_rmem", BT_FINDING_PROBLEM, "here", "net.ipv4.tcp_rmem='4096 131072 67108864'",
           false);
    expect("tcp_wmem", BT_FINDING_PROBLEM, "worker", "net.ipv4.tcp_wmem='4096 131072 67108864'",
           true);
    c.here.system = "macos";
    expect("tcp_rmem", BT_FINDING_PROBLEM, "here", "net.inet.tcp.autorcvbufmax=67108864", false);
    c.here.tcp_rmem_max = c.facts.tcp_wmem_max = 0;     /* not known: nothing is said */
    bt_doctor_advice_give(&c, &f);
    assert_true(bt_doctor_findings_well(&f));
}

static void explicit_buffers(void **state)
{
    (void)state;
    c.buffer_bytes = 32 << 20;
    expect("rmem_max", BT_FINDING_OK, "up to 64.0 MiB", NULL, false);
    c.here.rmem_max = c.facts.wmem_max = 212992;
    expect("rmem_max", BT_FINDING_PROBLEM, "asks for 32.0 MiB, the kernel gives 208 KiB",
           "sudo sysctl -w net.core.rmem_max=33554432", false);
    expect("wmem_max", BT_FINDING_PROBLEM, "worker", "sudo sysctl -w net.core.wmem_max=33554432",
           true);
}

static void rests(void **state)
{
    (void)state;
    expect("slow start", BT_FINDING_OK, "off on the worker; 1 MiB takes 1.00 ms then, and 0.95",
           NULL, false);
    c.facts.idle_restart = 2;
    expect("slow start", BT_FINDING_ADVICE, "did not show now",
           "sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0", true);
    c.rested_ms = 4;
    expect("slow start", BT_FINDING_ADVICE, "4.00 ms",
           "sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0", true);
    c.facts.idle_restart = 0;
    expect("slow start", BT_FINDING_ADVICE, "not known", NULL, false);
    c.facts.idle_restart = 1;
    expect("slow start", BT_FINDING_ADVICE, "slow to wake", NULL, false);
    c.socket.loopback = true;
    for (c.facts.idle_restart = 0; c.facts.idle_restart < 3; c.facts.idle_restart++) {
        expect("slow start", BT_FINDING_OK, "of no account on loopback", NULL, false);
        assert_null(strstr(find("slow start")->text, "slowly"));
    }
}

static void packets(void **state)
{
    (void)state;
    c.socket.path_mtu = c.socket.interface_mtu = 1500;
    c.socket.segment_bytes = 1448;
    expect("mtu", BT_FINDING_ADVICE, "9000", "sudo ip link set enp1s0 mtu 9000", false);
    expect("mtu", BT_FINDING_ADVICE, "9000", "ip link set \"$(ip -o addr show to 10.0.0.2", true);
    c.here.system = "macos";
    expect("mtu", BT_FINDING_ADVICE, "9000", "sudo networksetup -setMTU enp1s0 9000", false);
    c.socket.interface_mbit = 1000;
    c.large_ms = 290;
    expect("mtu", BT_FINDING_OK, "1500", NULL, false);
    c.socket.segment_bytes = 1200;
    expect("mtu", BT_FINDING_ADVICE, "tunnel", NULL, false);
}

/* Whatever stands in a value remains one word of the command. */
static void values_are_quoted(void **state)
{
    (void)state;
    char long_name[sizeof f.list[0].fixes[0].command];
    snprintf(c.host, sizeof c.host, "a b;$(id)");
    (void)bt_fail(&c.name_error, BT_E_NOTFOUND, "no such name");
    expect("name", BT_FINDING_PROBLEM, "no such", "getent hosts 'a b;$(id)'", false);
    c.name_error = (bt_error){ 0 };
    c.key_file = "it's";
    c.key_open_to_others = true;
    expect("key", BT_FINDING_ADVICE, "others", "chmod 600 'it'\\''s'", false);
    c.key_file = "";
    expect("key", BT_FINDING_ADVICE, "others", "chmod 600 ''", false);
    /* What does not fit is left out, and the next one is whole. */
    memset(long_name, '\'', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    c.key_file = long_name;
    c.key_open_to_others = false;
    (void)bt_fail(&c.visit_error, BT_E_AUTH, "the keys differ");
    expect("key", BT_FINDING_PROBLEM, "differ", "worker --key-file baton.key", true);
    assert_int_equal(f.list[f.n - 1].n_fixes, 1);
}

static void spreads(void **state)
{
    (void)state;
    double v[21];
    for (int i = 0; i < 21; i++) {
        v[i] = 21 - i;
    }
    bt_spread s = bt_doctor_spread_of(v, 21);
    assert_true(s.median > 10.9 && s.median < 11.1);
    assert_true(s.low > 2.9 && s.low < 3.1 && s.high > 18.9 && s.high < 19.1);
    s = bt_doctor_spread_of(v, 2);
    assert_true(s.median > 20.4 && s.median < 20.6);
    s = bt_doctor_spread_of(v, 0);
    assert_true(s.median <= 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup(test, well)
    const struct CMUnitTest tests[] = {
        T(all_well), T(errnos_have_kinds), T(every_kind_has_a_sentence_and_a_name),
        T(what_stands_in_the_way_is_told_apart), T(one_good_address_is_enough), T(names), T(keys),
        T(keys_without_a_way),
        T(answers), T(workers), T(models), T(probes_that_fail), T(slow_ways), T(windows),
        T(explicit_buffers), T(rests), T(packets), T(values_are_quoted), T(spreads),
    };
    return cmocka_run_group_tests_name("doctor/advice", tests, NULL, NULL);
}
