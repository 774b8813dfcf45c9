/* serve/connections.h - clients' connections: what each waits for, until when, and which give way.
 *
 * A place is held by a connection that the server works for. Where all `n_max` places are taken, a
 * new connection takes the place of one that is idle between two requests, or else of one that has
 * sent nothing for SILENT_MS although its request is not complete. Where neither is found it is
 * taken beyond the places, for what must always be answered (/health, /metrics) and for a 503.
 *
 * One thread closes connections whose deadline has passed.
 *
 * Lifetime: init, add and remove for each connection, stop, done.
 * Threads:  internally locked. A connection's own thread moves it from state to state.
 */
#ifndef BT_SERVE_CONNECTIONS_H
#define BT_SERVE_CONNECTIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/metric.h"
#include "base/status.h"

enum {
    BT_CONNECTIONS_BEYOND = 64,        /* taken beyond n_max, for /health and refusals */
    BT_CONNECTIONS_SILENT_MS = 1000
};

typedef enum {
    BT_CONNECTION_OPENED,              /* no request yet, or a part of its head */
    BT_CONNECTION_IDLE,                /* kept alive between two requests */
    BT_CONNECTION_RECEIVING,           /* a head was complete, the body is not */
    BT_CONNECTION_WORKING,             /* the server computes: no deadline */
    BT_CONNECTION_SENDING,             /* the client has to take what was written */
    BT_CONNECTION_CLOSING              /* answered; what it still sends is dropped for a moment */
} bt_connection_state;

typedef struct bt_connection {
    struct bt_connection *previous, *next;
    int                   fd;
    bt_connection_state   state;
    uint64_t              since_ns;    /* the last sign of life in this state */
    uint64_t              deadline_ns; /* UINT64_MAX: none */
    uint64_t              begun_ns;    /* of the request's body */
    bool                  beyond;      /* has no place: see above */
    bool                  ended;       /* shut down; its own thread will close it */
} bt_connection;

#define BT_CONNECTIONS_LIST(X)                                                                \
    X(uint32_t, placed, GAUGE, NONE, "Connections that hold a place, of --threads-http")      \
    X(uint32_t, beyond, GAUGE, NONE, "Connections beyond the last place: /health or 503")     \
    X(uint64_t, n_accepted, COUNTER, NONE, "Connections accepted")                            \
    X(uint64_t, n_displaced, COUNTER, NONE, "Idle or silent connections closed for new ones") \
    X(uint64_t, n_refused, COUNTER, NONE, "Requests answered by 503 for want of a place")     \
    X(uint64_t, n_timed_out, COUNTER, NONE, "Connections closed by --timeout")

typedef struct { BT_METRIC_MEMBERS(BT_CONNECTIONS_LIST) } bt_connections_count;

typedef struct {
    pthread_mutex_t lock;              /* guards everything below, and all connections */
    pthread_cond_t  wake;
    bt_connection  *first;
    uint32_t        n_max, timeout_s;
    bt_connections_count count;        /* placed and beyond: those that have not ended */
    bool            stopping, running;
    pthread_t       thread;
} bt_connections;

BT_MUST_CHECK bt_status bt_serve_connections_init(bt_connections *all, uint32_t n_max,
                                                  uint32_t timeout_s, bt_error *err);
void bt_serve_connections_done(bt_connections *all);             /* stops its thread */

/* NULL: no memory. `fd` is shut down, never closed, here. */
bt_connection *bt_serve_connections_add(bt_connections *all, int fd);
void bt_serve_connections_remove(bt_connections *all, bt_connection *c);

/* A new state. OPENED, IDLE and SENDING must end within timeout_s plus the time that `bytes` need
 * at 16 KiB/s; WORKING may last. */
void bt_serve_connections_enter(bt_connections *all, bt_connection *c, bt_connection_state state,
                                size_t bytes);
/* `bytes` of the body have come so far: the deadline moves on by the time that these need. */
void bt_serve_connections_received(bt_connections *all, bt_connection *c, size_t bytes);
/* Whether a request that is not for /health or /metrics may be served; false is counted, and
 * answered by 503. */
BT_MUST_CHECK bool bt_serve_connections_claim(bt_connections *all, bt_connection *c);

bt_connections_count bt_serve_connections_count(bt_connections *all);
bt_metric_list bt_serve_connections_metrics(void);

/* After an answer to a request that was not read to its end: closes the sending side and drops what
 * comes, for a moment, so that a reset does not overtake the answer. */
void bt_serve_connections_linger(bt_connections *all, bt_connection *c);

/* Whether the client has closed its sending side. */
bool bt_serve_socket_is_gone(int fd);

#endif
