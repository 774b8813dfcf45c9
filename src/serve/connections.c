#include "serve/connections.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sync.h"

enum {
    RATE_BYTES_PER_SECOND = 16384,     /* slower than any line that is not an attack */
    LINGER_MS = 2000,
    BEYOND_MAX = BT_CONNECTIONS_BEYOND / 2      /* the rest: those that are being closed */
};
#define NS_PER_SECOND 1000000000u

BT_METRIC_DEFINE(bt_serve_connections_metrics, bt_connections_count, "baton_connections",
                 BT_CONNECTIONS_LIST)

static uint64_t allowed_ns(const bt_connections *all, size_t bytes)
{
    return all->timeout_s * (uint64_t)NS_PER_SECOND +
           (uint64_t)bytes * NS_PER_SECOND / RATE_BYTES_PER_SECOND;
}

/* ---- the end of those that are late ---- */

static void uncount(bt_connections *all, const bt_connection *c)
{
    if (!c->ended) {
        *(c->beyond ? &all->count.beyond : &all->count.placed) -= 1;
    }
}

/* The socket is only shut down: its own thread notices and closes it. It stays open, and its number
 * taken, as long as it is on the list. */
static void end(bt_connections *all, bt_connection *c, const char *why)
{
    uncount(all, c);
    c->ended = true;
    shutdown(c->fd, SHUT_RDWR);
    bt_log(BT_LOG_DEBUG, "connection_closed", "fd=%d reason=%s", c->fd, why);
}

/* With the lock held. Returns when to look again. */
static uint64_t end_late(bt_connections *all)
{
    const uint64_t now = bt_clock_ns();
    /* A deadline that is set later lies at least this far away. */
    uint64_t next = now + allowed_ns(all, 0);
    for (bt_connection *c = all->first; c; c = c->next) {
        if (c->ended || c->deadline_ns == UINT64_MAX) {
            continue;
        }
        if (now >= c->deadline_ns) {
            all->count.n_timed_out++;
            end(all, c, "timeout");
        } else if (c->deadline_ns < next) {
            next = c->deadline_ns;
        }
    }
    return next;
}

static void *watch(void *context)
{
    bt_connections *all = context;
    pthread_mutex_lock(&all->lock);
    while (!all->stopping) {
        bt_cond_wait_until(&all->wake, &all->lock, end_late(all));
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* ---- lifetime ---- */

bt_status bt_serve_connections_init(bt_connections *all, uint32_t n_max, uint32_t timeout_s,
                                    bt_error *err)
{
    *all = (bt_connections){ .n_max = n_max, .timeout_s = timeout_s };
    pthread_mutex_init(&all->lock, NULL);
    bt_cond_init(&all->wake);
    const bt_status status = bt_thread_start(&all->thread, watch, all, "http-watch", err);
    all->running = status == BT_OK;
    return status;
}

void bt_serve_connections_done(bt_connections *all)
{
    if (!all->n_max) {
        return;                        /* never initialised */
    }
    if (all->running) {
        pthread_mutex_lock(&all->lock);
        all->stopping = true;
        pthread_cond_signal(&all->wake);
        pthread_mutex_unlock(&all->lock);
        pthread_join(all->thread, NULL);
    }
    pthread_cond_destroy(&all->wake);
    pthread_mutex_destroy(&all->lock);
    *all = (bt_connections){ 0 };
}

/* ---- places ---- */

/* Idle ones before silent ones, and of each kind the one that has been so for longest. */
static bt_connection *find_displaced(const bt_connections *all, uint64_t now)
{
    bt_connection *idle = NULL, *silent = NULL;
    for (bt_connection *c = all->first; c; c = c->next) {
        if (c->ended || c->beyond) {
            continue;
        }
        if (c->state == BT_CONNECTION_IDLE || c->state == BT_CONNECTION_CLOSING) {
            idle = !idle || c->since_ns < idle->since_ns ? c : idle;
        } else if (c->state == BT_CONNECTION_OPENED || c->state == BT_CONNECTION_RECEIVING) {
            silent = !silent || c->since_ns < silent->since_ns ? c : silent;
        }
    }
    const uint64_t patience = (uint64_t)BT_CONNECTIONS_SILENT_MS * BT_NS_PER_MS;
    return idle ? idle : silent && now - silent->since_ns >= patience ? silent : NULL;
}

static void displace(bt_connections *all, bt_connection *c)
{
    all->count.n_displaced++;
    end(all, c, "displaced");
}

static bool take_place(bt_connections *all, bt_connection *c)
{
    if (all->count.placed == all->n_max) {
        bt_connection *displaced = find_displaced(all, bt_clock_ns());
        if (!displaced) {
            return false;
        }
        displace(all, displaced);
    }
    all->count.beyond -= c->beyond;
    c->beyond = false;
    all->count.placed++;
    return true;
}

/* The oldest of those beyond the places gives way, so that a new one can ask for /health. */
static void go_beyond(bt_connections *all, bt_connection *c)
{
    bt_connection *oldest = NULL;
    for (bt_connection *o = all->first; o && all->count.beyond >= BEYOND_MAX; o = o->next) {
        if (!o->ended && o->beyond && o->state != BT_CONNECTION_WORKING) {
            oldest = !oldest || o->since_ns < oldest->since_ns ? o : oldest;
        }
    }
    if (oldest) {
        displace(all, oldest);
    }
    c->beyond = true;
    all->count.beyond++;
}

bool bt_serve_connections_claim(bt_connections *all, bt_connection *c)
{
    pthread_mutex_lock(&all->lock);
    const bool placed = !c->beyond || (!c->ended && take_place(all, c));
    all->count.n_refused += !placed;
    const uint64_t n = all->count.n_refused;
    pthread_mutex_unlock(&all->lock);
    /* There may be very many: a line for each power of two. */
    if (!placed && (n & (n - 1)) == 0) {
        bt_log(BT_LOG_WARN, "connections_full", "max=%u refused=%" PRIu64, all->n_max, n);
    }
    return placed;
}

bt_connection *bt_serve_connections_add(bt_connections *all, int fd)
{
    bt_connection *c = bt_alloc_zero(BT_MEM_serve, 1, sizeof *c);
    if (!c) {
        return NULL;
    }
    c->fd = fd;
    pthread_mutex_lock(&all->lock);
    c->since_ns = bt_clock_ns();
    c->deadline_ns = c->since_ns + allowed_ns(all, 0);
    if (!take_place(all, c)) {
        go_beyond(all, c);
    }
    all->count.n_accepted++;
    c->next = all->first;
    if (c->next) {
        c->next->previous = c;
    }
    all->first = c;
    pthread_mutex_unlock(&all->lock);
    return c;
}

void bt_serve_connections_remove(bt_connections *all, bt_connection *c)
{
    pthread_mutex_lock(&all->lock);
    *(c->previous ? &c->previous->next : &all->first) = c->next;
    if (c->next) {
        c->next->previous = c->previous;
    }
    uncount(all, c);
    pthread_mutex_unlock(&all->lock);
    bt_free(c);
}

/* ---- states ---- */

void bt_serve_connections_enter(bt_connections *all, bt_connection *c, bt_connection_state state,
                                size_t bytes)
{
    pthread_mutex_lock(&all->lock);
    c->state = state;
    c->since_ns = bt_clock_ns();
    c->begun_ns = c->since_ns;
    c->deadline_ns = state == BT_CONNECTION_WORKING ? UINT64_MAX
                                                    : c->since_ns + allowed_ns(all, bytes);
    pthread_mutex_unlock(&all->lock);
}

void bt_serve_connections_received(bt_connections *all, bt_connection *c, size_t bytes)
{
    pthread_mutex_lock(&all->lock);
    c->since_ns = bt_clock_ns();
    c->deadline_ns = c->begun_ns + allowed_ns(all, bytes);
    pthread_mutex_unlock(&all->lock);
}

bt_connections_count bt_serve_connections_count(bt_connections *all)
{
    pthread_mutex_lock(&all->lock);
    const bt_connections_count count = all->count;
    pthread_mutex_unlock(&all->lock);
    return count;
}

void bt_serve_connections_linger(bt_connections *all, bt_connection *c)
{
    char dropped[4096];
    const uint64_t until = bt_clock_ns() + (uint64_t)LINGER_MS * BT_NS_PER_MS;
    bt_serve_connections_enter(all, c, BT_CONNECTION_CLOSING, 0);
    shutdown(c->fd, SHUT_WR);
    for (;;) {
        const uint64_t now = bt_clock_ns();
        struct pollfd p = { .fd = c->fd, .events = POLLIN };
        if (now >= until || poll(&p, 1, (int)((until - now) / BT_NS_PER_MS) + 1) <= 0) {
            return;
        }
        const ssize_t n = recv(c->fd, dropped, sizeof dropped, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return;
        }
    }
}

bool bt_serve_socket_is_gone(int fd)
{
    char byte;
    if (fd < 0) {
        return false;
    }
#if defined(POLLRDHUP)
    /* Sees the end even after bytes that nobody has read yet. */
    struct pollfd p = { .fd = fd, .events = POLLRDHUP };
    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) {
        return true;
    }
#endif
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}
