/* serve/http.h - inside the server: one HTTP request and how it is answered.
 *
 * libmicrohttpd runs one thread per connection, which calls the access handler (http.c), which
 * checks the head (head.c), receives the body and calls a route (routes.c), which answers
 * (answer.c). A route may block: only its own client waits. Deadlines: connections.h.
 */
#ifndef BT_SERVE_HTTP_H
#define BT_SERVE_HTTP_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/waker.h"
#include "serve/access.h"
#include "serve/body.h"
#include "serve/connections.h"
#include "serve/metrics.h"
#include "serve/problem.h"
#include "serve/server.h"

struct bt_server {
    bt_server_options o;                    /* texts are copies, freed by destroy */
    bt_access_keys    keys;
    struct MHD_Daemon *daemon;
    int               listener;
    bool              loopback;             /* bound to an address of this machine only */
    uint32_t          port;
    char              address[128];
    int64_t           started;              /* Unix seconds */
    bt_serving        serving;
    atomic_bool       ready;                /* releases `serving` */
    atomic_bool       closing;              /* new requests are refused */
    atomic_bool       cancelling;           /* requests in flight are cancelled */
    bt_waker          stop;                 /* woken with `cancelling`, never cleared */
    pthread_mutex_t   work_lock;            /* guards n_in_work */
    pthread_cond_t    work_change;          /* n_in_work, or cancelling */
    uint32_t          n_in_work;            /* exchanges that a route works on */
    atomic_size_t     bodies_bytes;         /* held by all requests being received */
    bt_serve_metrics  metrics;
    bt_connections    connections;
};

typedef struct bt_exchange {
    bt_server     *server;
    const bt_serving *serving;              /* NULL while loading */
    struct MHD_Connection *mhd;
    bt_connection *connection;
    const char    *method, *path;           /* libmicrohttpd's, while the request lives */
    const char    *rest;                    /* after a route's path, for /v1/models/{id} */
    const char    *authority;               /* of an absolute target */
    size_t         authority_size;          /* 0: the target is a path */
    bt_buf         body;
    size_t         received;                /* bytes of body so far */
    size_t         body_held;               /* counted in server->bodies_bytes */
    bt_problem     problem;                 /* found before the body was complete */
    bool           close;                   /* no further request on this connection */
    bool           unread;                  /* there is a body, and it has not come to its end */
    bool           working;                 /* counted in n_in_work */
    uint32_t       key_number;              /* of the API key; 0: none is asked for */
    double         begun_ms;
    int            code;                    /* answered, for the log */
} bt_exchange;

/* A route: answers through one of bt_serve_exchange_answer, _fail, _stream. */
typedef enum MHD_Result bt_route_run(bt_exchange *x);

typedef struct {
    const char   *path;                     /* "/v1/models/" with a slash: has a rest */
    const char   *methods;                  /* "GET" or "POST" or "GET, POST" */
    bool          is_public;                /* needs no key */
    bool          while_loading;
    bt_route_run *run;
} bt_route;

bool bt_serve_route_takes(const bt_route *route, const char *method);
/* NULL: unknown path. *ret_rest: what follows a path that ends in a slash. */
const bt_route *bt_serve_routes_find(const char *path, const char **ret_rest);
/* Completions, in any API (complete.c). */
enum MHD_Result bt_serve_complete_run(bt_exchange *x, const bt_api *api);

/* Takes what is in `body` (leaves it empty). */
enum MHD_Result bt_serve_exchange_answer(bt_exchange *x, int code, const char *type, bt_buf *body);
enum MHD_Result bt_serve_exchange_fail(bt_exchange *x, const bt_problem *problem);
/* `response` is from a content reader; adds the headers of an event stream and destroys it. */
enum MHD_Result bt_serve_exchange_stream(bt_exchange *x, struct MHD_Response *response);
/* Static bytes with an entity tag. */
enum MHD_Result bt_serve_exchange_file(bt_exchange *x, const char *type, const void *bytes,
                                       size_t size, const char *tag);
const char *bt_serve_exchange_header(const bt_exchange *x, const char *name);

/* Callbacks for the daemon (http.c). */
enum MHD_Result bt_serve_http_access(void *cls, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *upload,
                                     size_t *upload_size, void **state);
void bt_serve_http_completed(void *cls, struct MHD_Connection *connection, void **state,
                             enum MHD_RequestTerminationCode code);
void bt_serve_http_connection(void *cls, struct MHD_Connection *connection, void **state,
                              enum MHD_ConnectionNotificationCode code);

#endif
