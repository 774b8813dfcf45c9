/* tests/unit/link/pair.h - two ends of a link over loopback, and raw sockets that misbehave. */
#ifndef TESTS_UNIT_LINK_PAIR_H
#define TESTS_UNIT_LINK_PAIR_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "link/link.h"
#include "wire/codec.h"
#include "wire/tally.h"

typedef struct {
    bt_listener *listener;
    bt_link     *a, *b;                 /* a connected to b */
} pair;

/* A deadline, so late that only a promise that is broken reaches it. */
static inline uint64_t within(uint32_t ms) { return bt_clock_after_ms(ms); }

static _Thread_local bt_error pair_err;     /* what a failing call said */

#define assert_ok(call)                                                                  \
    do {                                                                                 \
        pair_err.text[0] = '\0';                                                         \
        const bt_status assert_ok_status = (call);                                       \
        if (assert_ok_status != BT_OK) {                                                 \
            fail_msg("%s: %s: %s", #call, bt_status_name(assert_ok_status), pair_err.text); \
        }                                                                                \
    } while (0)

#define assert_says(text_, part)                                                         \
    do {                                                                                 \
        if (strstr((text_), (part)) == NULL) {                                           \
            fail_msg("'%s' does not say '%s'", (text_), (part));                         \
        }                                                                                \
    } while (0)

/* Without options, heartbeats so slow that a machine with much else to do loses nobody: threads
 * that wait two seconds for their first turn have been seen. */
typedef struct {
    const char            *address;
    const bt_link_options *options;
    bt_link               *link;
} pair_caller;

/* On a thread: with TLS, connecting needs a peer that receives. */
static inline void *pair_call(void *context)
{
    pair_caller *c = context;
    assert_ok(bt_link_connect(c->address, c->options, &c->link, &pair_err));
    assert_ok(bt_link_send(c->link, BT_WIRE_HELLO, 0, "", 0, &pair_err));
    return NULL;
}

static inline pair pair_open(const bt_link_options *options)
{
    bt_link_options o = {.heartbeat_ms = 5000};
    pair p = {0};
    pthread_t thread;
    bt_frame f;

    if (options != NULL) {
        o = *options;
        o.heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : 5000;
    }
    assert_ok(bt_link_listener_open("127.0.0.1:0", &o, &p.listener, &pair_err));
    pair_caller caller = {bt_link_listener_address(p.listener), &o, NULL};
    pthread_create(&thread, NULL, pair_call, &caller);
    assert_ok(bt_link_listener_accept(p.listener, within(20000), &p.b, &pair_err));
    assert_ok(bt_link_receive(p.b, within(20000), &f, &pair_err));
    assert_int_equal(f.type, BT_WIRE_HELLO);
    pthread_join(thread, NULL);
    p.a = caller.link;
    return p;
}

static inline void pair_close(pair *p)
{
    bt_link_destroy(p->a);
    bt_link_destroy(p->b);
    bt_link_listener_close(p->listener);
}

/* ---- a peer without manners ---- */

static inline struct sockaddr_in raw_address(const char *address)
{
    const char *colon = strrchr(address, ':');
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return in;
}

static inline int raw_connect(const char *address)
{
    const struct sockaddr_in in = raw_address(address);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&in, sizeof in), 0);
    return fd;
}

/* A listening socket; its address goes to `address`. */
static inline int raw_listen(int backlog, char address[32])
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    socklen_t size = sizeof in;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &size), 0);
    snprintf(address, 32, "127.0.0.1:%u", ntohs(in.sin_port));
    return fd;
}

static inline void raw_frame(int fd, uint16_t type, uint32_t stream, uint64_t sequence,
                             const void *body, uint32_t size)
{
    uint8_t buffer[BT_WIRE_HEADER_BYTES + 4096];
    bt_frame f = {.type = type, .stream = stream, .sequence = sequence, .size = size, .body = body};
    assert_true(size <= 4096);
    bt_wire_header_encode(&f, buffer);
    if (size > 0) {
        memcpy(buffer + BT_WIRE_HEADER_BYTES, body, size);
    }
    assert_int_equal(send(fd, buffer, BT_WIRE_HEADER_BYTES + size, MSG_NOSIGNAL),
                     BT_WIRE_HEADER_BYTES + size);
}

#endif
