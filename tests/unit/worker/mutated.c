/* tests/unit/worker/mutated.c - a worker that gets nonsense, frame by frame.
 *
 * Each connection says what a server says, HELLO, PREFILL, TOKENS, CREDIT, CANCEL, with up to three
 * mutations in it; four in five have the right checksums all the same, so that they reach whoever
 * has to make sense of them. Every connection ends, nothing is left of it, memory stays, and a
 * server is served in the end as in the beginning. 5,000 of them; BATON_TEST_MUTATIONS: as many.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "handoff/identity.h"
#include "worker/worker.h"
#include "unit/handoff/fake_engine.h"
#include "unit/handoff/mutations.h"

enum { N_DEFAULT = 5000, FRAMES = 5, GROWTH_KIB = 8 << 10, TOKENS = 40 };

#if defined(__SANITIZE_ADDRESS__)
static const bool keeps_memory = true;         /* what was freed waits in a quarantine */
#else
static const bool keeps_memory = false;
#endif

static bt_engine *engine;
static bt_worker *worker;
static said script[FRAMES];

#define SAY(index, NAME, name, on, ...)                                                         \
    do {                                                                                        \
        const bt_wire_##name message = __VA_ARGS__;                                             \
        script[index].type = BT_WIRE_##NAME;                                                    \
        script[index].stream = on;                                                              \
        assert_int_equal(bt_wire_##name##_encode(&message, script[index].body, SAID_MAX,        \
                                                 &script[index].size, NULL), BT_OK);            \
    } while (0)

static void write_script(uint64_t epoch)
{
    static uint8_t ids[TOKENS * 4];
    for (uint32_t i = 0; i < TOKENS; i++) {
        bt_put_le32(ids + i * 4, i * 7 % 1000);
    }
    SAY(0, HELLO, hello, 0, bt_handoff_hello(engine, 1, "ref"));
    SAY(1, PREFILL, prefill, 1, { .nonce = 5, .epoch = epoch, .n_tokens = TOKENS,
                                  .position_end = TOKENS - 1, .credit = 1 << 20 });
    SAY(2, TOKENS, tokens, 1, { .offset = 0, .ids = { ids, TOKENS } });
    SAY(3, CREDIT, credit, 1, { .bytes = 4096 });
    SAY(4, CANCEL, cancel, 1, { .status = BT_E_CANCELLED });
}

static int connect_raw(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    a.sin_port = htons((uint16_t)atoi(strrchr(bt_worker_address(worker), ':') + 1));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static size_t put_frames(const said *frames, uint8_t *to)
{
    size_t at = 0;
    for (uint32_t i = 0; i < FRAMES; i++) {
        bt_frame f = { .type = frames[i].type, .stream = frames[i].stream, .sequence = i,
                       .size = (uint32_t)frames[i].size, .body = frames[i].body };
        bt_wire_header_encode(&f, to + at);
        memcpy(to + at + BT_WIRE_HEADER_BYTES, frames[i].body, frames[i].size);
        at += BT_WIRE_HEADER_BYTES + frames[i].size;
    }
    return at;
}

/* Says it all, then the end, and listens until the worker has ended too. */
static void one_connection(uint64_t k)
{
    static uint8_t bytes[FRAMES * (BT_WIRE_HEADER_BYTES + SAID_MAX)];
    said frames[FRAMES];
    memcpy(frames, script, sizeof frames);
    dice_state = k;
    for (uint64_t n = 1 + dice() % 3; n > 0; n--) {
        mutate(&frames[dice() % 4 == 0 ? 0 : dice() % FRAMES], TOKENS);
    }
    const size_t size = put_frames(frames, bytes);
    if (dice() % 5 == 0) {
        bytes[dice() % size] ^= (uint8_t)(1u << dice() % 8);
    }
    const int fd = connect_raw();
    uint8_t sink[4096];
    ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    do {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, 6000) == 0) {
            fail_msg("connection %llu is still there after 6 s", (unsigned long long)k);
        }
        n = recv(fd, sink, sizeof sink, 0);
    } while (n > 0);
    close(fd);
}

/* A server's greeting and prompt as they should be; the worker's epoch on the way. */
static uint64_t be_served(uint64_t epoch)
{
    bt_link *link = NULL;
    bt_frame f;
    bt_wire_welcome m;
    bt_status s;
    assert_int_equal(
            bt_link_connect(bt_worker_address(worker), &(bt_link_options){0}, &link, NULL),
            BT_OK);
    write_script(epoch);
    for (int i = 0; i < (epoch ? 3 : 1); i++) {
        assert_int_equal(bt_link_send(link, script[i].type, script[i].stream, script[i].body,
                                      script[i].size, NULL), BT_OK);
        if (i == 0) {
            assert_int_equal(bt_link_receive(link, bt_clock_after_ms(5000), &f, NULL), BT_OK);
            assert_int_equal(bt_wire_welcome_decode(f.body, f.size, &m, NULL), BT_OK);
        }
    }
    do {
        s = epoch ? bt_link_receive(link, bt_clock_after_ms(5000), &f, NULL) : BT_E_CLOSED;
    } while (s == BT_OK && f.type != BT_WIRE_COMMIT);
    assert_int_equal(s, epoch ? BT_OK : BT_E_CLOSED);
    bt_link_destroy(link);
    return m.epoch;
}

static long peak_kib(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss;
}

static void nonsense_costs_its_own_connection(void **state)
{
    (void)state;
    const uint64_t n = mutations_wanted(N_DEFAULT);
    const uint64_t epoch = be_served(0);
    (void)be_served(epoch);
    for (uint64_t k = 0; k < n / 4; k++) {
        one_connection(k);
    }
    const long before = peak_kib();
    for (uint64_t k = n / 4; k < n; k++) {
        one_connection(k);
    }
    assert_true(keeps_memory || peak_kib() - before < GROWTH_KIB);
    bt_worker_status s;
    for (int i = 0; i < 500; i++) {
        bt_worker_status_get(worker, &s);
        if (s.n_in_flight == 0 && s.n_peers == 0 && atomic_load(&engine->n_requests) == 0) {
            break;
        }
        bt_clock_sleep_ms(10);
    }
    assert_int_equal(s.n_in_flight + s.n_peers + s.tokens_in_flight, 0);
    assert_int_equal(atomic_load(&engine->n_requests), 0);
    assert_true(s.n_corrupt > n / 8 && s.n_rejects > 0 && s.n_errors > 0);
    (void)be_served(epoch);
}

int main(void)
{
    bt_error err = { 0 };
    bt_log_set_level(BT_LOG_ERROR);
    engine = fake_engine_new(true, 16, 1);
    atomic_store(&engine->layer_us, 0);
    const bt_worker_options o = { .listen = "127.0.0.1:0", .numerics = "ref" };
    if (bt_worker_open(&o, engine, &worker, &err) != BT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(nonsense_costs_its_own_connection) };
    const int code = cmocka_run_group_tests_name("handoff/mutated", tests, NULL, NULL);
    bt_worker_close(worker);
    fake_engine_free(engine);
    return code;
}
