#include "serve/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sync.h"
#include "serve/http.h"

enum {
    CONNECTIONS_DEFAULT = 256,
    TIMEOUT_DEFAULT_S = 60,
    BACKLOG = 512,
    POOL_BYTES = 64 << 10,           /* per connection: request head and one block of a stream */
    STACK_BYTES = 1 << 20            /* the deepest path is the JSON parser at BT_JSON_DEPTH_MAX */
};

bt_server_options bt_serve_defaults(void)
{
    return (bt_server_options){
        .host = "127.0.0.1", .port = 8080, .n_connections = CONNECTIONS_DEFAULT,
        .timeout_s = TIMEOUT_DEFAULT_S, .ping_interval_s = 30, .sampling = bt_sample_defaults(),
        .n_predict = -1, .policy = BT_POLICY_FALLBACK,
    };
}

/* ---- listening ---- */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* The real port, and the address as a URL has it. */
static bt_status name_listener(bt_server *s, bt_error *err)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    char host[INET6_ADDRSTRLEN] = "", port[8] = "";
    if (getsockname(s->listener, (struct sockaddr *)&bound, &size) != 0 ||
        getnameinfo((struct sockaddr *)&bound, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return bt_fail(err, BT_E_IO, "the address of the listening socket is not known: %s",
                       strerror(errno));
    }
    const bool v6 = bound.ss_family == AF_INET6;
    s->loopback = is_loopback((struct sockaddr *)&bound);
    s->port = ntohs(v6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                       : ((struct sockaddr_in *)&bound)->sin_port);
    snprintf(s->address, sizeof s->address, v6 ? "[%s]:%s" : "%s:%s", host, port);
    return BT_OK;
}

static int listen_on(const struct addrinfo *at)
{
    const int on = 1;
    const int fd = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
    if (fd < 0) {
        return -1;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        const int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static bt_status open_listener(bt_server *s, bt_error *err)
{
    char host[256], port[16];
    const char *name = s->o.host;
    size_t n = strlen(name);
    if (name[0] == '[' && n > 2 && name[n - 1] == ']') {
        name++;
        n -= 2;
    }
    snprintf(host, sizeof host, "%.*s", (int)n, name);
    snprintf(port, sizeof port, "%u", s->o.port);
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const int found = getaddrinfo(host, port, &hints, &list);
    if (found != 0) {
        return bt_fail(err, BT_E_BADINPUT,
                       "cannot listen on '%s', which is no address of this machine: %s", s->o.host,
                       gai_strerror(found));
    }
    for (const struct addrinfo *at = list; at && s->listener < 0; at = at->ai_next) {
        s->listener = listen_on(at);
    }
    const int why = errno;
    freeaddrinfo(list);
    if (s->listener < 0) {
        return bt_fail(err, BT_E_IO, "cannot listen on '%s' port %u: %s%s", s->o.host, s->o.port,
                       strerror(why),
                       why == EADDRINUSE ? " (another program has it; --port 0 takes a "
                                           "free one)"
                                         : "");
    }
    return name_listener(s, err);
}

/* ---- start ---- */

static char *copy(const char *text)
{
    return text ? bt_strdup(BT_MEM_serve, text) : NULL;
}

static bt_status copy_options(bt_server *s, const bt_server_options *o, bt_error *err)
{
    s->o = *o;
    s->o.sampling.bias = NULL;
    s->o.sampling.n_bias = 0;
    s->o.n_connections = o->n_connections ? o->n_connections : CONNECTIONS_DEFAULT;
    s->o.timeout_s = o->timeout_s ? o->timeout_s : TIMEOUT_DEFAULT_S;
    s->o.host = copy(o->host ? o->host : "127.0.0.1");
    s->o.cors_origins = copy(o->cors_origins);
    s->o.allowed_hosts = copy(o->allowed_hosts);
    s->o.api_keys = NULL;
    s->o.api_key_file = NULL;
    if (!s->o.host || (o->cors_origins && !s->o.cors_origins) ||
        (o->allowed_hosts && !s->o.allowed_hosts)) {
        return bt_fail(err, BT_E_NOMEM, "out of memory: the server's options");
    }
    if (o->api_keys) {
        BT_TRY(bt_serve_access_keys_add_list(&s->keys, o->api_keys, err));
    }
    if (o->api_key_file) {
        BT_TRY(bt_serve_access_keys_add_file(&s->keys, o->api_key_file, err));
    }
    return BT_OK;
}

static void log_line(void *context, const char *format, va_list args)
        __attribute__((format(printf, 2, 0)));

static void log_line(void *context, const char *format, va_list args)
{
    char line[256];
    (void)context;
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    /* So it calls every answer that we cut, mostly because its client has left; the request's own
     * line says that as "answer cut". */
    if (!strstr(line, "Application reported internal error")) {
        bt_log(BT_LOG_DEBUG, "http_library", "message=%s", line);
    }
}

static bt_status start_daemon(bt_server *s, bt_error *err)
{
    const unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                           MHD_USE_ITC | MHD_USE_ERROR_LOG;
    s->daemon = MHD_start_daemon(
            flags, 0, NULL, NULL, bt_serve_http_access, s,
            MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
            MHD_OPTION_LISTEN_SOCKET, s->listener,
            MHD_OPTION_CONNECTION_LIMIT, s->o.n_connections + BT_CONNECTIONS_BEYOND,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
            MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES,
            MHD_OPTION_NOTIFY_COMPLETED, bt_serve_http_completed, s,
            MHD_OPTION_NOTIFY_CONNECTION, bt_serve_http_connection, s,
            MHD_OPTION_END);
    if (!s->daemon) {
        return bt_fail(err, BT_E_IO, "the HTTP library did not start: %s", strerror(errno));
    }
    return BT_OK;
}

bt_status bt_serve_start(const bt_server_options *o, bt_server **ret_server, bt_error *err)
{
    bt_server *s = bt_alloc_zero(BT_MEM_serve, 1, sizeof *s);
    if (!s) {
        return bt_fail(err, BT_E_NOMEM, "out of memory: %zu bytes for the server", sizeof *s);
    }
    bt_serve_json_setup();
    /* A client that left must not end the process. */
    signal(SIGPIPE, SIG_IGN);
    s->listener = -1;
    s->started = bt_clock_unix_seconds();
    s->stop = (bt_waker){ -1, -1 };
    pthread_mutex_init(&s->work_lock, NULL);
    bt_cond_init(&s->work_change);
    bt_serve_metrics_init(&s->metrics);
    bt_status status = copy_options(s, o, err);
    if (status == BT_OK) {
        status = bt_waker_open(&s->stop, err);
    }
    if (status == BT_OK) {
        status = open_listener(s, err);
    }
    if (status == BT_OK) {
        status = bt_serve_connections_init(&s->connections, s->o.n_connections, s->o.timeout_s,
                                           err);
    }
    if (status == BT_OK) {
        status = start_daemon(s, err);
    }
    if (status != BT_OK) {
        bt_serve_destroy(s);
        return status;
    }
    *ret_server = s;
    return BT_OK;
}

const char *bt_serve_address(const bt_server *s) { return s->address; }

uint32_t bt_serve_port(const bt_server *s) { return s->port; }

void bt_serve_set_ready(bt_server *s, const bt_serving *serving)
{
    s->serving = *serving;
    atomic_store_explicit(&s->ready, true, memory_order_release);
}

/* ---- stop ---- */

/* Until nothing is in flight, the grace is over, or (with `hurry`) no more is given. */
static void wait_for_work(bt_server *s, uint32_t grace_ms, bool hurry)
{
    const uint64_t until = bt_clock_ns() + grace_ms * (uint64_t)BT_NS_PER_MS;
    pthread_mutex_lock(&s->work_lock);
    while (s->n_in_work > 0 && !(hurry && atomic_load(&s->cancelling)) &&
           bt_cond_wait_until(&s->work_change, &s->work_lock, until)) {
    }
    pthread_mutex_unlock(&s->work_lock);
}

void bt_serve_hurry(bt_server *s)
{
    atomic_store(&s->cancelling, true);
    bt_waker_wake(&s->stop);
    pthread_mutex_lock(&s->work_lock);
    pthread_cond_broadcast(&s->work_change);
    pthread_mutex_unlock(&s->work_lock);
}

void bt_serve_stop(bt_server *s, uint32_t grace_ms)
{
    if (!s->daemon) {
        return;
    }
    atomic_store(&s->closing, true);
    const MHD_socket listener = MHD_quiesce_daemon(s->daemon);
    if (listener != MHD_INVALID_SOCKET) {
        close(listener);
        s->listener = -1;
    }
    wait_for_work(s, grace_ms, true);
    bt_serve_hurry(s);
    /* Long enough for a step to end and for the last events to be written. */
    wait_for_work(s, 2000, false);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    s->listener = -1;
}

void bt_serve_destroy(bt_server *s)
{
    if (!s) {
        return;
    }
    bt_serve_stop(s, 0);
    bt_serve_connections_done(&s->connections);
    if (s->listener >= 0) {
        close(s->listener);
    }
    bt_waker_close(&s->stop);
    pthread_cond_destroy(&s->work_change);
    pthread_mutex_destroy(&s->work_lock);
    bt_serve_metrics_done(&s->metrics);
    bt_serve_access_keys_done(&s->keys);
    bt_free((void *)(uintptr_t)s->o.host);
    bt_free((void *)(uintptr_t)s->o.cors_origins);
    bt_free((void *)(uintptr_t)s->o.allowed_hosts);
    bt_free(s);
}
