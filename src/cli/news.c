/* cli/news.c - see news.h. */
#include "cli/news.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/verbs.h"

static int news_pipe[2] = { -1, -1 };

/* Also from a signal handler: nothing but write(), and errno as it was. */
void bt_news_tell(bt_news what)
{
    const int saved = errno;
    const char byte = (char)what;
    if (write(news_pipe[1], &byte, 1) < 0) {
        /* A full pipe has more in it than anybody needs. */
    }
    errno = saved;
}

static void on_signal(int number)
{
    bt_news_tell(number == SIGUSR1 ? BT_NEWS_COUNTERS : BT_NEWS_STOP);
}

bool bt_news_open(bool counters)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    (void)sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    if (pipe(news_pipe) != 0 || sigaction(SIGTERM, &action, NULL) != 0 ||
        sigaction(SIGINT, &action, NULL) != 0 ||
        (counters && sigaction(SIGUSR1, &action, NULL) != 0)) {
        bt_cli_say_error("no pipe for signals: %s", strerror(errno));
        return false;
    }
    return true;
}

/* poll() comes back for a signal whatever SA_RESTART says; its byte is in the pipe then. */
bt_news bt_news_next(int timeout_ms)
{
    struct pollfd p = { .fd = news_pipe[0], .events = POLLIN };
    for (;;) {
        const int n = poll(&p, 1, timeout_ms);
        char byte;
        if (n == 0) {
            return BT_NEWS_NONE;
        }
        if (n > 0 && read(news_pipe[0], &byte, 1) == 1) {
            return (bt_news)byte;
        }
    }
}
