/* link/lookup.c - names to addresses, with an end to the waiting.
 *
 * getaddrinfo() cannot be given a deadline, and a resolver that does not answer holds it for half a
 * minute. So it runs on a thread of its own, which is left behind when the time is up and frees
 * what it found. Numeric addresses take neither thread nor time.
 */
#include "link/lookup.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/sync.h"
#include "base/waker.h"
#include "link/socket.h"

typedef struct {
    pthread_mutex_t  lock;              /* guards the rest */
    bt_waker         finished;          /* wakes who waits for `done` */
    bool             done, abandoned;
    int              error;
    struct addrinfo *list;
    bt_link_address  address;
    int              family_flags;
} lookup;

static int ask(const bt_link_address *a, int flags, struct addrinfo **ret_list)
{
    char port[8];
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_protocol = IPPROTO_TCP,
                                   .ai_flags = flags | AI_NUMERICSERV};

    snprintf(port, sizeof port, "%u", a->port);
    return getaddrinfo(a->host, port, &hints, ret_list);
}

static void release(lookup *l)
{
    if (l->list != NULL) {
        freeaddrinfo(l->list);
    }
    bt_waker_close(&l->finished);
    pthread_mutex_destroy(&l->lock);
    bt_free(l);
}

static void *run(void *context)
{
    lookup *l = context;
    struct addrinfo *list = NULL;
    const int error = ask(&l->address, l->family_flags, &list);

    pthread_mutex_lock(&l->lock);
    l->list = error == 0 ? list : NULL;
    l->error = error;
    l->done = true;
    const bool abandoned = l->abandoned;
    bt_waker_wake(&l->finished);
    pthread_mutex_unlock(&l->lock);
    if (abandoned) {
        release(l);
    }
    return NULL;
}

static bt_status explain(const bt_link_address *a, int error, bt_error *err)
{
    if (error == EAI_NONAME
#ifdef EAI_NODATA
        || error == EAI_NODATA
#endif
    ) {
        return bt_fail(err, BT_E_NOTFOUND,
                       "'%s': no such name; try the machine's IP address, or its name with .local",
                       a->host);
    }
    if (error == EAI_MEMORY) {
        return bt_fail(err, BT_E_NOMEM, "'%s': no memory to look up the name", a->host);
    }
    return bt_fail(err, error == EAI_AGAIN ? BT_E_LOST : BT_E_NOTFOUND,
                   "'%s': the name could not be looked up: %s", a->host, gai_strerror(error));
}

/* Takes `l`: frees it, or leaves it to the thread. */
static bt_status await(lookup *l, uint64_t deadline_ns, const bt_waker *cancel,
                       struct addrinfo **ret_list, bt_error *err)
{
    bt_status status = BT_OK;

    (void)bt_link_socket_await(bt_waker_fd(&l->finished), POLLIN, cancel, deadline_ns);
    pthread_mutex_lock(&l->lock);
    if (!l->done) {
        l->abandoned = true;
        pthread_mutex_unlock(&l->lock);
        return bt_fail(err, BT_E_TIMEOUT, "the name could not be looked up in time; try the "
                       "machine's IP address");
    }
    pthread_mutex_unlock(&l->lock);
    if (l->error != 0) {
        status = explain(&l->address, l->error, err);
    } else {
        *ret_list = l->list;
        l->list = NULL;
    }
    release(l);
    return status;
}

bt_status bt_link_lookup(const bt_link_address *a, bool passive, uint64_t deadline_ns,
                         const bt_waker *cancel, struct addrinfo **ret_list, bt_error *err)
{
    const int flags = passive ? AI_PASSIVE : 0;

    const int error = ask(a, flags | AI_NUMERICHOST, ret_list);
    if (error == 0) {
        return BT_OK;
    }
    if (error != EAI_NONAME) {
        return explain(a, error, err);
    }
    lookup *l = bt_alloc_zero(BT_MEM_link, 1, sizeof *l);
    if (l == NULL) {
        return bt_fail(err, BT_E_NOMEM, "'%s': no memory to look up the name", a->host);
    }
    l->address = *a;
    l->finished = (bt_waker){-1, -1};
    l->family_flags = flags;
    pthread_mutex_init(&l->lock, NULL);
    bt_status status = bt_waker_open(&l->finished, err);
    if (status == BT_OK) {
        status = bt_thread_start(NULL, run, l, "bt-lookup", err);
    }
    if (status != BT_OK) {
        release(l);
        return status;
    }
    return await(l, deadline_ns, cancel, ret_list, err);
}
