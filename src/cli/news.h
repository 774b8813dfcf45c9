/* cli/news.h - signals and what threads have done, for the one place of a verb that waits.
 *
 * Everything comes through a pipe, in the order in which it was told. serve and worker load on a
 * thread of their own, so that a signal is heard meanwhile.
 * Lifetime: of the process. Threads: any may tell, one waits.
 */
#ifndef BT_CLI_NEWS_H
#define BT_CLI_NEWS_H

#include <stdbool.h>

typedef enum {
    BT_NEWS_NONE,                      /* the time is over */
    BT_NEWS_STOP,                      /* SIGTERM or SIGINT */
    BT_NEWS_COUNTERS,                  /* SIGUSR1, if it was asked for */
    BT_NEWS_DONE,                      /* by a thread: what it was started for */
    BT_NEWS_FAILED                     /* likewise; it has said why */
} bt_news;

/* From now on signals are news; false: said why not on standard error. */
bool    bt_news_open(bool counters);
void    bt_news_tell(bt_news what);
/* Waits at most timeout_ms (-1: for ever). */
bt_news bt_news_next(int timeout_ms);

#endif
