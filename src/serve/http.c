#include "serve/http.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "serve/head.h"

/* ---- connections ---- */

void bt_serve_http_connection(void *cls, struct MHD_Connection *connection, void **state,
                              enum MHD_ConnectionNotificationCode code)
{
    bt_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        /* NULL, without memory: begin() turns the request away. */
        *state = info ? bt_serve_connections_add(&s->connections, info->connect_fd) : NULL;
    } else if (*state) {
        bt_serve_connections_remove(&s->connections, *state);
        *state = NULL;
    }
}

/* ---- the request ---- */

static enum MHD_Result begin(bt_server *s, struct MHD_Connection *mhd, const char *url,
                             const char *method, const char *version, void **state)
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
    x->path = bt_serve_head_target(url, &x->authority, &x->authority_size);
    x->begun_ms = bt_clock_ms();
    x->serving = atomic_load_explicit(&s->ready, memory_order_acquire) ? &s->serving : NULL;
    bt_buf_init(&x->body, BT_MEM_serve, BT_HTTP_BODY_BYTES_MAX);
    bt_serve_connections_enter(&s->connections, c, BT_CONNECTION_RECEIVING, 0);
    bt_serve_head_check(x, bt_serve_routes_find(x->path, &x->rest), version);
    /* What is wrong by the head is answered without reading the body. */
    x->unread = bt_serve_head_length(x) > 0;
    return bt_serve_problem_is(&x->problem) ? bt_serve_exchange_fail(x, &x->problem) : MHD_YES;
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
    x->received += size;
    bt_serve_connections_received(&x->server->connections, x->connection, x->received);
    if (bt_serve_problem_is(&x->problem)) {
        /* It has been answered already, or will be at its end: read and dropped, up to a limit. */
        return x->received > BT_HTTP_BODIES_BYTES_MAX ? MHD_NO : MHD_YES;
    }
    const size_t all = atomic_fetch_add(&x->server->bodies_bytes, size) + size;
    x->body_held += size;
    if (x->body_held > BT_HTTP_BODY_BYTES_MAX) {
        bt_serve_problem_set(&x->problem, 413, NULL, "the body has more than %u bytes",
                             BT_HTTP_BODY_BYTES_MAX);
    } else if (all > BT_HTTP_BODIES_BYTES_MAX) {
        bt_serve_problem_set(&x->problem, 429, NULL, "too many large bodies at once; try again");
        x->problem.retry_after_s = 1;
    } else {
        bt_buf_put(&x->body, bytes, size);
        if (bt_buf_status(&x->body) != BT_OK) {
            bt_serve_problem_set_status(&x->problem, bt_buf_status(&x->body),
                                        "out of memory: a request's body");
        }
    }
    if (bt_serve_problem_is(&x->problem)) {
        drop_body(x);
    }
    return MHD_YES;
}

static void count_work(bt_server *s, int change)
{
    pthread_mutex_lock(&s->work_lock);
    s->n_in_work += (uint32_t)change;
    pthread_cond_broadcast(&s->work_change);
    pthread_mutex_unlock(&s->work_lock);
}

static enum MHD_Result answer(bt_exchange *x)
{
    const bt_route *route = bt_serve_routes_find(x->path, &x->rest);
    x->unread = false;
    if (bt_serve_problem_is(&x->problem)) {
        return bt_serve_exchange_fail(x, &x->problem);
    }
    if (strcmp(x->method, "OPTIONS") == 0) {
        bt_buf empty;
        bt_buf_init(&empty, BT_MEM_serve, 1);
        return bt_serve_exchange_answer(x, 204, NULL, &empty);
    }
    x->working = true;
    count_work(x->server, 1);
    bt_serve_connections_enter(&x->server->connections, x->connection, BT_CONNECTION_WORKING, 0);
    return route->run(x);
}

enum MHD_Result bt_serve_http_access(void *cls, struct MHD_Connection *connection, const char *url,
                                     const char *method, const char *version, const char *upload,
                                     size_t *upload_size, void **state)
{
    bt_exchange *x = *state;
    if (!x) {
        return begin(cls, connection, url, method, version, state);
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
    const bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    (void)connection;
    if (!x) {
        return;
    }
    bt_serve_metrics_http(&s->metrics, x->code);
    bt_log(BT_LOG_DEBUG, "http_request", "method=%s path=%.100s code=%d ms=%.1f answer=%s",
           x->method, x->path, x->code, bt_clock_ms() - x->begun_ms, whole ? "whole" : "cut");
    if (x->working) {
        count_work(s, -1);
    }
    if (whole && x->unread) {
        bt_serve_connections_linger(&s->connections, x->connection);
    } else {
        bt_serve_connections_enter(&s->connections, x->connection, BT_CONNECTION_IDLE, 0);
    }
    drop_body(x);
    bt_free(x);
    *state = NULL;
}
