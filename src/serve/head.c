#include "serve/head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- framing ---- */

typedef struct {
    uint32_t    n_host, n_length, n_encoding;
    const char *encoding;
    bool        bad_name, folded;
    const char *next;                  /* where the next line has to begin */
} framing;

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* Up to 0.9.75 the library joins folded lines without a trace, except that it copies them: lines
 * that were not folded lie in its buffer one after the other. Later versions refuse them. */
static bool follows(const framing *f, const char *name)
{
#if MHD_VERSION < 0x00097600
    const uintptr_t at = (uintptr_t)name, next = (uintptr_t)f->next;
    return !f->next || (at > next && at <= next + 2);
#else
    (void)f, (void)name;
    return true;
#endif
}

static enum MHD_Result look_at(void *context, enum MHD_ValueKind kind, const char *name,
                               const char *value)
{
    framing *f = context;
    (void)kind;
    value = value ? value : "";
    f->n_host += strcasecmp(name, "Host") == 0;
    f->n_length += strcasecmp(name, "Content-Length") == 0;
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->n_encoding++;
        f->encoding = value;
    }
    for (const char *c = name; *c; c++) {
        f->bad_name = f->bad_name || is_blank(*c);
    }
    f->bad_name = f->bad_name || name[0] == '\0';
    f->folded = f->folded || !follows(f, name);
    f->next = value + strlen(value);
    return MHD_YES;
}

static void check_framing(bt_exchange *x, const char *version)
{
    framing f = { .next = version + strlen(version) };
    const char *why = NULL;
    MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, look_at, &f);
    if (f.bad_name) {
        why = "a header name holds a blank";
    } else if (f.folded) {
        why = "a header is folded over several lines";
    } else if (f.n_host > 1) {
        why = "there is more than one Host header";
    } else if (f.n_host == 0 && strcmp(version, "HTTP/1.1") == 0) {
        why = "HTTP/1.1 needs a Host header";
    } else if (f.n_length > 1) {
        why = "there is more than one Content-Length header";
    } else if (f.n_encoding > 1 || (f.n_encoding && strcasecmp(f.encoding, "chunked") != 0)) {
        why = "the only Transfer-Encoding taken is 'chunked', once";
    } else if (f.n_encoding && f.n_length) {
        why = "Content-Length and Transfer-Encoding exclude each other";
    }
    if (why) {
        bt_serve_problem_set(&x->problem, 400, NULL, "the request is not valid HTTP: %s", why);
        x->close = true;
    }
}

/* ---- the target ---- */

const char *bt_serve_head_target(const char *url, const char **ret_authority, size_t *ret_size)
{
    const char *at = strncasecmp(url, "http://", 7) == 0    ? url + 7
                     : strncasecmp(url, "https://", 8) == 0 ? url + 8 : NULL;
    *ret_authority = at ? at : "";
    *ret_size = at ? strcspn(at, "/") : 0;
    return !at ? url : at[*ret_size] ? at + *ret_size : "/";
}

size_t bt_serve_head_length(const bt_exchange *x)
{
    const char *text = bt_serve_exchange_header(x, "Content-Length");
    if (bt_serve_exchange_header(x, "Transfer-Encoding")) {
        return SIZE_MAX;
    }
    return text ? (size_t)strtoull(text, NULL, 10) : 0;
}

/* ---- who asks for what ---- */

/* A page of another site may not drive the server: simple posts come without asking first. A
 * browser says itself when page and server are one site behind a proxy. */
static bool is_foreign(const bt_exchange *x, const char *host)
{
    const char *origin = bt_serve_exchange_header(x, "Origin");
    const char *site = bt_serve_exchange_header(x, "Sec-Fetch-Site");
    return origin && strcmp(x->method, "POST") == 0 &&
           !(site && strcmp(site, "same-origin") == 0) &&
           !bt_serve_access_origin_allowed(origin, host, x->server->o.cors_origins);
}

static bool has_key(bt_exchange *x)
{
    return bt_serve_access_key_valid(&x->server->keys,
                                     bt_serve_exchange_header(x, "Authorization"),
                                     bt_serve_exchange_header(x, "X-Api-Key"), &x->key_number);
}

/* Whether the server is in a state to answer; `route` is there and may be asked for. */
static void check_state(bt_exchange *x, const bt_route *route)
{
    const bt_server *s = x->server;
    bt_problem *p = &x->problem;
    if (atomic_load(&s->closing)) {
        bt_serve_problem_set(p, 503, NULL, "the server is shutting down");
    } else if (!x->serving && !route->while_loading) {
        bt_serve_problem_set(p, 503, NULL, "Loading model");
        p->retry_after_s = 1;
    } else if (!route->while_loading &&
               !bt_serve_connections_claim(&x->server->connections, x->connection)) {
        bt_serve_problem_set(p, 503, NULL, "all %u connections are in use (--threads-http); try "
                             "again", s->o.n_connections);
        p->retry_after_s = 1;
        x->close = true;
    }
}

static void check_access(bt_exchange *x, const bt_route *route, const char *host)
{
    const bt_server *s = x->server;
    bt_problem *p = &x->problem;
    const bool head = strcmp(x->method, "HEAD") == 0;
    if (s->loopback && !bt_serve_access_host_allowed(host, s->o.host, s->o.allowed_hosts)) {
        bt_serve_problem_set(p, 403, NULL,
                             "the Host header names '%.100s', and this server answers only to "
                             "names of its own machine; to allow the name: --allowed-hosts NAME",
                             host);
    } else if (strcmp(x->method, "OPTIONS") == 0) {
        return;
    } else if (is_foreign(x, host)) {
        bt_serve_problem_set(p, 403, NULL,
                             "pages of '%.100s' may not use this server; to allow them: "
                             "--cors-origins ORIGIN", bt_serve_exchange_header(x, "Origin"));
    } else if (!route) {
        bt_serve_problem_set(p, 404, NULL, "no such path: %.200s", x->path);
    } else if (!bt_serve_route_takes(route, head ? "GET" : x->method)) {
        bt_serve_problem_set(p, 405, NULL, "%.20s is not for %.200s; use %s", x->method, x->path,
                             route->methods);
        p->allow = route->methods;
    } else if (!route->is_public && !has_key(x)) {
        bt_serve_problem_set(p, 401, NULL,
                             "the API key is missing or wrong (Authorization: Bearer KEY, or "
                             "X-Api-Key: KEY)");
    } else {
        check_state(x, route);
    }
}

void bt_serve_head_check(bt_exchange *x, const bt_route *route, const char *version)
{
    check_framing(x, version);
    if (bt_serve_problem_is(&x->problem)) {
        return;
    }
    /* What an absolute target names counts instead of the Host header (RFC 9112, 3.2.2). */
    char named[256];
    const char *host = bt_serve_exchange_header(x, "Host");
    if (x->authority_size > 0) {
        snprintf(named, sizeof named, "%.*s", (int)x->authority_size, x->authority);
        host = named;
    }
    check_access(x, route, host);
    const size_t length = bt_serve_head_length(x);
    if (length != SIZE_MAX && length > BT_HTTP_BODY_BYTES_MAX) {
        bt_serve_problem_set(&x->problem, 413, NULL, "the body has %zu bytes; at most %u are taken",
                             length, BT_HTTP_BODY_BYTES_MAX);
    }
}
