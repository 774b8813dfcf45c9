/* cli/events.c - see news.h. */
#include "cli/events.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sync.h"
#include "cli/verbs.h"

static int event_pipe[2] = { -1, -1 };

/* Also from a signal handler: nothing but write(), and errno as it was. */
void bt_cli_events_post(bt_cli_event what)
{
    const int saved = errno;
    const char byte = (char)what;
    if (write(event_pipe[1], &byte, 1) < 0) {
        /* A full pipe has more in it than anybody needs. */
    }
    errno = saved;
}

static void on_signal(int number)
{
    bt_cli_events_post(number == SIGUSR1 ? BT_CLI_EVENT_COUNTERS : BT_CLI_EVENT_STOP);
}

bool bt_cli_events_open(bool counters)
{
    struct sigaction action;
    bt_error err;
    if (bt_log_start(&err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    memset(&action, 0, sizeof action);
    (void)sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    if (pipe(event_pipe) != 0 || sigaction(SIGTERM, &action, NULL) != 0 ||
        sigaction(SIGINT, &action, NULL) != 0 ||
        (counters && sigaction(SIGUSR1, &action, NULL) != 0)) {
        bt_cli_say_error("cannot set up signals: %s", strerror(errno));
        return false;
    }
    return true;
}

/* poll() comes back for a signal whatever SA_RESTART says; its byte is in the pipe then. */
bt_cli_event bt_cli_events_wait(int timeout_ms)
{
    struct pollfd p = { .fd = event_pipe[0], .events = POLLIN };
    for (;;) {
        const int n = poll(&p, 1, timeout_ms);
        char byte;
        if (n == 0) {
            return BT_CLI_EVENT_NONE;
        }
        if (n > 0 && read(event_pipe[0], &byte, 1) == 1) {
            return (bt_cli_event)byte;
        }
    }
}

/* ---- loading ---- */

static struct {
    bool (*load)(void *context);
    void *context;
} loading;                             /* outlives the waiting; a process loads once */

static void *run_load(void *unused)
{
    (void)unused;
    bt_cli_events_post(loading.load(loading.context) ? BT_CLI_EVENT_DONE : BT_CLI_EVENT_FAILED);
    return NULL;
}

bt_cli_event bt_cli_events_load(bool (*load)(void *context), void *context)
{
    pthread_t thread;
    bt_error err;
    bt_cli_event event;
    loading.load = load;
    loading.context = context;
    if (bt_thread_start(&thread, run_load, NULL, "load", &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return BT_CLI_EVENT_FAILED;
    }
    do {
        event = bt_cli_events_wait(-1);
    } while (event == BT_CLI_EVENT_COUNTERS);      /* all of them are 0 */
    if (event == BT_CLI_EVENT_STOP) {
        pthread_detach(thread);
    } else {
        pthread_join(thread, NULL);
    }
    return event;
}
