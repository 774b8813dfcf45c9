#include "serve/http.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    WATCH_MS = 250,
    RATE_BYTES_PER_SECOND = 16384,       /* slower than any line that is not an attack */
    DRAIN_BYTES_MAX = 256 << 20          /* read and dropped, so that 413 reaches its sender */
};

/* ---- connections and their deadlines ---- */

void bt_serve_connection_expect(bt_server *s, bt_connection *c, size_t bytes)
{
    const double allowed_ms = s->o.timeout_s * 1e3 + (double)bytes * 1e3 / RATE_BYTES_PER_SECOND;
    atomic_store_explicit(&c->deadline_ms, bt_clock_ms() + allowed_ms, memory_order_relaxed);
}

void bt_serve_connection_work(bt_connection *c)
{
    atomic_store_explicit(&c->deadline_ms, 0, memory_order_relaxed);
}

void bt_serve_http_connection(void *cls, struct MHD_Connection *connection, void **state,
                              enum MHD_ConnectionNotificationCode code)
{
    bt_server *s = cls;
    bt_connection *c = *state;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = bt_alloc_zero(BT_MEM_serve, 1, sizeof *c);
        if (!c || !info) {
            bt_free(c);
            return;                          /* the access handler turns it away */
        }
        c->fd = info->connect_fd;
        bt_serve_connection_expect(s, c, 0);
        pthread_mutex_lock(&s->lock);
        c->next = s->connections;
        if (c->next) {
            c->next->previous = c;
        }
        s->connections = c;
        pthread_mutex_unlock(&s->lock);
        *state = c;
    } else if (c) {
        pthread_mutex_lock(&s->lock);
        *(c->previous ? &c->previous->next : &s->connections) = c->next;
        if (c->next) {
            c->next->previous = c->previous;
        }
        pthread_mutex_unlock(&s->lock);
        bt_free(c);
        *state = NULL;
    }
}

/* The socket is only shut down: its own thread notices and closes it. It stays open, and its number
 * taken, as long as it is on the list. */
static void end_late_connections(bt_server *s)
{
    const double now = bt_clock_ms();
    for (bt_connection *c = s->connections; c; c = c->next) {
        const double deadline = atomic_load_explicit(&c->deadline_ms, memory_order_relaxed);
        if (deadline > 0 && now > deadline && !c->ended) {
            c->ended = true;
            shutdown(c->fd, SHUT_RDWR);
            bt_log(BT_LOG_DEBUG, "http connection closed reason \"too slow\"");
        }
    }
}

void *bt_serve_http_watch(void *server)
{
    bt_server *s = server;
    pthread_mutex_lock(&s->lock);
    while (!s->watcher_stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WATCH_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&s->wake, &s->lock, &until);
        end_late_connections(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- answering ---- */

const char *bt_serve_exchange_header(const bt_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

static void add_cross_origin_headers(const bt_exchange *x, struct MHD_Response *response)
{
    const char *origin = bt_serve_exchange_header(x, "Origin");
    MHD_add_response_header(response, "Vary", "Origin");
    if (!origin || !bt_serve_access_origin_allowed(origin, bt_serve_exchange_header(x, "Host"),
                                                   x->server->o.cors_origins)) {
        return;
    }
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    if (strcmp(x->method, "OPTIONS") == 0) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        /* The star covers everything but Authorization when no credentials are allowed. */
        MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                "Authorization, Content-Type, X-Api-Key, *");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
}

static enum MHD_Result queue(bt_exchange *x, int code, struct MHD_Response *response, size_t size)
{
    if (!response) {
        return MHD_NO;
    }
    add_cross_origin_headers(x, response);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    x->code = code;
    bt_serve_connection_expect(x->server, x->connection, size);
    const enum MHD_Result result = MHD_queue_response(x->mhd, (unsigned)code, response);
    MHD_destroy_response(response);
    return result;
}

static struct MHD_Response *from_buffer(bt_buf *body)
{
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
            body->size, body->data, bt_free);
    if (response) {
        body->data = NULL;                   /* it is the response's now */
    }
    bt_buf_done(body);
    return response;
}

enum MHD_Result bt_serve_exchange_answer(bt_exchange *x, int code, const char *type, bt_buf *body)
{
    if (bt_buf_status(body) != BT_OK) {
        bt_problem problem = { 0 };
        bt_serve_problem_set_status(&problem, bt_buf_status(body), "no memory for the answer");
        bt_buf_done(body);
        return bt_serve_exchange_fail(x, &problem);
    }
    const size_t size = body->size;
    struct MHD_Response *response = from_buffer(body);
    if (response && type) {
        MHD_add_response_header(response, "Content-Type", type);
    }
    return queue(x, code, response, size);
}

enum MHD_Result bt_serve_exchange_fail(bt_exchange *x, const bt_problem *problem)
{
    static const char out_of_memory[] = "{\"error\":{\"code\":503,\"message\":\"out of memory\","
                                        "\"type\":\"unavailable_error\",\"param\":null}}";
    bt_buf body;
    bt_json_writer w;
    bt_buf_init(&body, BT_MEM_serve, 64 << 10);
    bt_json_writer_init(&w, &body);
    bt_serve_problem_write(problem, &w);
    struct MHD_Response *response;
    if (bt_buf_status(&body) == BT_OK) {
        response = from_buffer(&body);
    } else {
        bt_buf_done(&body);
        response = MHD_create_response_from_buffer(sizeof out_of_memory - 1,
                (void *)(uintptr_t)out_of_memory, MHD_RESPMEM_PERSISTENT);
    }
    if (!response) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", "application/json; charset=utf-8");
    if (problem->retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", problem->retry_after_s);
        MHD_add_response_header(response, "Retry-After", seconds);
    }
    if (problem->http == 401) {
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    }
    if (problem->allow) {
        MHD_add_response_header(response, "Allow", problem->allow);
    }
    return queue(x, problem->http, response, 0);
}

enum MHD_Result bt_serve_exchange_stream(bt_exchange *x, struct MHD_Response *response)
{
    if (!response) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return queue(x, 200, response, 0);
}

enum MHD_Result bt_serve_exchange_file(bt_exchange *x, const char *type, const void *bytes,
                                       size_t size, const char *tag)
{
    const char *known = bt_serve_exchange_header(x, "If-None-Match");
    const bool same = known && strstr(known, tag) != NULL;
    struct MHD_Response *response = MHD_create_response_from_buffer(
            same ? 0 : size, (void *)(uintptr_t)bytes, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "ETag", tag);
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "Content-Security-Policy",
                            "default-src 'self'; img-src 'self' data:; frame-ancestors 'self'");
    return queue(x, same ? 304 : 200, response, size);
}

/* ---- the request ---- */

static bool is_method(const char *methods, const char *method)
{
    const size_t n = strlen(method);
    for (const char *at = methods; *at;) {
        at += strspn(at, ", ");
        const size_t size = strcspn(at, ", ");
        if (size == n && memcmp(at, method, n) == 0) {
            return true;
        }
        at += size;
    }
    return false;
}

/* A page of another site may not drive the server: simple posts come without asking first. A
 * browser says itself when page and server are one site behind a proxy. */
static bool is_foreign(const bt_exchange *x)
{
    const char *origin = bt_serve_exchange_header(x, "Origin");
    const char *site = bt_serve_exchange_header(x, "Sec-Fetch-Site");
    return origin && strcmp(x->method, "POST") == 0 &&
           !(site && strcmp(site, "same-origin") == 0) &&
           !bt_serve_access_origin_allowed(origin, bt_serve_exchange_header(x, "Host"),
                                           x->server->o.cors_origins);
}

/* What can be said from the head alone. */
static void check_head(bt_exchange *x, const bt_route *route)
{
    const bt_server *s = x->server;
    const char *host = bt_serve_exchange_header(x, "Host");
    bt_problem *p = &x->problem;
    const bool head = strcmp(x->method, "HEAD") == 0;
    if (!bt_serve_access_host_allowed(host, s->loopback, s->o.host)) {
        bt_serve_problem_set(p, 403, NULL,
                             "this server is for its own machine only: the Host header names "
                             "'%.100s'",
                             host);
    } else if (strcmp(x->method, "OPTIONS") == 0) {
        return;
    } else if (is_foreign(x)) {
        bt_serve_problem_set(p, 403, NULL,
                             "pages of '%.100s' may not use this server (--cors-origins)",
                             bt_serve_exchange_header(x, "Origin"));
    } else if (!route) {
        bt_serve_problem_set(p, 404, NULL, "there is nothing at %.200s", x->path);
    } else if (!is_method(route->methods, head ? "GET" : x->method)) {
        bt_serve_problem_set(p, 405, NULL, "%.20s is not for %.200s; use %s", x->method, x->path,
                             route->methods);
        p->allow = route->methods;
    } else if (!route->is_public &&
               !bt_serve_access_key_valid(&s->keys, bt_serve_exchange_header(x, "Authorization"),
                                          bt_serve_exchange_header(x, "X-Api-Key"),
                                          &x->key_number)) {
        bt_serve_problem_set(p, 401, NULL,
                             "the API key is missing or wrong (Authorization: Bearer KEY, or "
                             "X-Api-Key: KEY)");
    } else if (atomic_load(&s->closing)) {
        bt_serve_problem_set(p, 503, NULL, "the server is shutting down");
    } else if (!x->serving && !route->while_loading) {
        bt_serve_problem_set(p, 503, NULL, "Loading model");
        p->retry_after_s = 1;
    }
}

static size_t announced_length(const bt_exchange *x)
{
    const char *text = bt_serve_exchange_header(x, "Content-Length");
    return text ? (size_t)strtoull(text, NULL, 10) : 0;
}

static enum MHD_Result begin(bt_server *s, struct MHD_Connection *mhd, const char *url,
                             const char *method, void **state)
{
    const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    bt_connection *c = info ? info->socket_context : NULL;
    bt_exchange *x = bt_alloc_zero(BT_MEM_serve, 1, sizeof *x);
    if (!x || !c) {
        bt_free(x);
        return MHD_NO;
    }
    *state = x;
    x->server = s;
    x->mhd = mhd;
    x->connection = c;
    x->method = method;
    x->path = url;
    x->begun_ms = bt_clock_ms();
    x->serving = atomic_load_explicit(&s->ready, memory_order_acquire) ? &s->serving : NULL;
    bt_buf_init(&x->body, BT_MEM_serve, BT_HTTP_BODY_BYTES_MAX);
    check_head(x, bt_serve_routes_find(url, &x->rest));
    const size_t length = announced_length(x);
    bt_serve_connection_expect(s, c, length < DRAIN_BYTES_MAX ? length : DRAIN_BYTES_MAX);
    if (length > BT_HTTP_BODY_BYTES_MAX) {
        bt_serve_problem_set(&x->problem, 413, NULL, "the body has %zu bytes; at most %u are taken",
                             length, BT_HTTP_BODY_BYTES_MAX);
    }
    /* A client that asks first, or that announces more than is worth reading, is told at once;
     * others send their body anyway and read the answer after it. */
    if (bt_serve_problem_is(&x->problem) &&
        (bt_serve_exchange_header(x, "Expect") || length > DRAIN_BYTES_MAX)) {
        return bt_serve_exchange_fail(x, &x->problem);
    }
    return MHD_YES;
}

static void drop_body(bt_exchange *x)
{
    atomic_fetch_sub(&x->server->bodies_bytes, x->body_held);
    x->body_held = 0;
    bt_buf_done(&x->body);
}

static enum MHD_Result receive(bt_exchange *x, const char *bytes, size_t size, size_t *ret_left)
{
    *ret_left = 0;
    if (bt_serve_problem_is(&x->problem)) {
        return MHD_YES;                      /* read and dropped */
    }
    const size_t all = atomic_fetch_add(&x->server->bodies_bytes, size) + size;
    x->body_held += size;
    if (x->body_held > BT_HTTP_BODY_BYTES_MAX) {
        bt_serve_problem_set(&x->problem, 413, NULL, "the body has more than %u bytes",
                             BT_HTTP_BODY_BYTES_MAX);
    } else if (all > BT_HTTP_BODIES_BYTES_MAX) {
        bt_serve_problem_set(&x->problem, 429, NULL, "too many large bodies at once; try again");
    } else {
        bt_buf_put(&x->body, bytes, size);
        if (bt_buf_status(&x->body) != BT_OK) {
            bt_serve_problem_set_status(&x->problem, bt_buf_status(&x->body),
                                        "no memory for the body");
        }
    }
    if (bt_serve_problem_is(&x->problem)) {
        drop_body(x);
    }
    return MHD_YES;
}

static enum MHD_Result answer(bt_exchange *x)
{
    const bt_route *route = bt_serve_routes_find(x->path, &x->rest);
    if (bt_serve_problem_is(&x->problem)) {
        return bt_serve_exchange_fail(x, &x->problem);
    }
    if (strcmp(x->method, "OPTIONS") == 0) {
        bt_buf empty;
        bt_buf_init(&empty, BT_MEM_serve, 1);
        return bt_serve_exchange_answer(x, 204, NULL, &empty);
    }
    x->working = true;
    atomic_fetch_add(&x->server->n_in_work, 1);
    bt_serve_connection_work(x->connection);
    return route->run(x);
}

enum MHD_Result bt_serve_http_access(void *cls, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *upload,
                                     size_t *upload_size, void **state)
{
    (void)version;
    bt_exchange *x = *state;
    if (!x) {
        return begin(cls, connection, url, method, state);
    }
    if (*upload_size > 0) {
        return receive(x, upload, *upload_size, upload_size);
    }
    return answer(x);
}

void bt_serve_http_completed(void *cls, struct MHD_Connection *connection, void **state,
                             enum MHD_RequestTerminationCode code)
{
    bt_server *s = cls;
    bt_exchange *x = *state;
    (void)connection;
    if (!x) {
        return;
    }
    bt_serve_metrics_http(&s->metrics, x->code);
    bt_log(BT_LOG_DEBUG, "http %s %.100s code %d ms %.1f answer %s", x->method, x->path, x->code,
           bt_clock_ms() - x->begun_ms,
           code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "whole" : "cut");
    if (x->working) {
        atomic_fetch_sub(&s->n_in_work, 1);
    }
    bt_serve_connection_expect(s, x->connection, 0);
    drop_body(x);
    bt_free(x);
    *state = NULL;
}
