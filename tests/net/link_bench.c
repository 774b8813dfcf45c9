/* tests/net/link_bench.c - goodput of bulk frames between two processes over loopback.
 *
 *     link_bench [GiB [BODY_BYTES [KEY_FILE]]]
 *
 * One process fills ROWS from a region larger than any cache, as a worker does from its pages; the
 * other verifies, keeps the running digest and copies them into a region of its own, as a server
 * does. Prints one JSON line. Compare with `iperf3 -c 127.0.0.1 -n 4G`, which moves bytes and looks
 * at none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "link/link.h"
#include "wire/codec.h"
#include "wire/tally.h"

enum { REGION = 256 << 20 };

typedef struct {
    const uint8_t *region;
    bt_wire_tally *tally;
    size_t         at;
    uint32_t       size;
    uint64_t       left;                /* bytes */
} rows;

static bool next_rows(void *context, uint8_t *body, size_t capacity, bt_link_out *ret)
{
    rows *r = context;
    if (r->left == 0 || r->size > capacity) {
        return false;
    }
    memcpy(body, r->region + r->at, r->size);
    r->at = r->at + 2 * (size_t)r->size <= REGION ? r->at + r->size : 0;
    r->left -= r->size;
    ret->type = BT_WIRE_ROWS;
    ret->stream = 1;
    ret->size = r->size;
    return true;
}

static void sealed(void *context, uint32_t stream, uint64_t hash)
{
    const rows *r = context;
    (void)stream;
    bt_wire_tally_put(r->tally, BT_WIRE_ROWS, 1, hash);
}

static void check(bt_status status, const bt_error *err)
{
    if (status != BT_OK) {
        fprintf(stderr, "%s: %s\n", bt_status_name(status), err->text);
        exit(1);
    }
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static bt_wire_tally *open_tally(void)
{
    const bt_wire_prefill prefill = {.nonce = 1, .epoch = 2, .position_end = 3};
    bt_wire_tally *t;
    bt_error err;
    check(bt_wire_tally_open(1, &prefill, &t, &err), &err);
    return t;
}

/* CPU seconds spent, through the pipe. */
static void receive_all(bt_listener *listener, uint64_t total, int report)
{
    uint8_t *region = malloc(REGION);
    bt_wire_tally *tally = open_tally();
    bt_link *link;
    bt_error err;
    bt_frame f;
    size_t at = 0;
    uint64_t n = 0;

    memset(region, 1, REGION);
    check(bt_link_listener_accept(listener, bt_clock_after_ms(10000), &link, &err), &err);
    check(bt_link_receive(link, bt_clock_after_ms(10000), &f, &err), &err);
    const double before = cpu_seconds();
    while (n < total) {
        check(bt_link_receive(link, bt_clock_after_ms(10000), &f, &err), &err);
        bt_wire_tally_put(tally, f.type, 1, f.hash);
        at = at + f.size <= REGION ? at : 0;
        memcpy(region + at, f.body, f.size);
        at += f.size;
        n += f.size;
    }
    const double spent = cpu_seconds() - before;
    check(bt_link_send(link, BT_WIRE_CREDIT, 0, "", 0, &err), &err);
    if (write(report, &spent, sizeof spent) != sizeof spent) {
        exit(1);
    }
    bt_link_finish(link, 2000, "done");
    bt_link_destroy(link);
    bt_wire_tally_close(tally);
    free(region);
}

static double send_all(const char *address, const bt_link_options *o, uint64_t total, uint32_t size,
                       double *ret_cpu)
{
    uint8_t *region = malloc(REGION);
    bt_wire_tally *tally = open_tally();
    bt_link *link;
    bt_error err;
    bt_frame f;
    rows r = {.region = region, .tally = tally, .size = size, .left = total};
    const bt_link_source source = {.context = &r, .next = next_rows, .sealed = sealed};

    memset(region, 2, REGION);
    check(bt_link_connect(address, o, &link, &err), &err);
    check(bt_link_send(link, BT_WIRE_HELLO, 0, "", 0, &err), &err);
    const double cpu = cpu_seconds();
    const uint64_t before = bt_clock_ns();
    check(bt_link_set_source(link, &source, &err), &err);
    check(bt_link_receive(link, bt_clock_after_ms(60000), &f, &err), &err);
    const double seconds = (double)(bt_clock_ns() - before) / 1e9;
    *ret_cpu = cpu_seconds() - cpu;
    bt_link_destroy(link);
    bt_wire_tally_close(tally);
    free(region);
    return seconds;
}

int main(int argc, char **argv)
{
    const uint32_t size = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 1 << 18;
    const uint64_t wanted = (argc > 1 ? strtoull(argv[1], NULL, 0) : 4) << 30;
    const uint64_t total = wanted / size * size;
    const bt_link_options o = {.key_file = argc > 3 ? argv[3] : NULL};
    bt_listener *listener;
    bt_error err;
    int report[2];

    check(bt_link_listener_open("127.0.0.1:0", &o, &listener, &err), &err);
    if (pipe(report) != 0) {
        return 1;
    }
    const pid_t child = fork();
    if (child == 0) {
        receive_all(listener, total, report[1]);
        bt_link_listener_close(listener);
        return 0;
    }
    double sender = 0, receiver = 0;
    const double seconds = send_all(bt_link_listener_address(listener), &o, total, size, &sender);
    if (read(report[0], &receiver, sizeof receiver) != sizeof receiver) {
        return 1;
    }
    waitpid(child, NULL, 0);
    bt_link_listener_close(listener);
    const double gb = (double)total / 1e9;
    printf("{\"gbytes_per_second\":%.3f,\"gbytes\":%.3f,\"seconds\":%.3f,\"body_bytes\":%u,"
           "\"sender_cpu_s_per_gbyte\":%.3f,\"receiver_cpu_s_per_gbyte\":%.3f,\"encrypted\":%s}\n",
           gb / seconds, gb, seconds, size, sender / gb, receiver / gb,
           o.key_file ? "true" : "false");
    return 0;
}
