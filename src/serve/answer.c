/* How a request is answered: headers common to all answers, JSON, errors, files, streams. */
#include <stdio.h>
#include <string.h>

#include "serve/http.h"

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

/* "Connection: close" where the request is not read to its end, or has no place (connections.h). */
static enum MHD_Result queue(bt_exchange *x, int code, struct MHD_Response *response, size_t size)
{
    if (!response) {
        return MHD_NO;
    }
    if (x->close || x->unread || x->connection->beyond) {
        MHD_add_response_header(response, "Connection", "close");
    }
    add_cross_origin_headers(x, response);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    x->code = code;
    bt_serve_connections_enter(&x->server->connections, x->connection, BT_CONNECTION_SENDING,
                               size);
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
        bt_serve_problem_set_status(&problem, bt_buf_status(body), "out of memory: an answer");
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
