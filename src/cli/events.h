/* cli/events.h - signals, and what threads have done, for the one place of a verb that waits.
 *
 * Everything comes through a pipe, in the order in which it was posted. serve and worker load the
 * model on a thread of its own, so that a signal is noticed meanwhile.
 *
 * Lifetime: of the process. Threads: any may post, one waits.
 */
#ifndef BT_CLI_EVENTS_H
#define BT_CLI_EVENTS_H

#include <stdbool.h>

typedef enum {
    BT_CLI_EVENT_NONE,                 /* the time is over */
    BT_CLI_EVENT_STOP,                 /* SIGTERM or SIGINT */
    BT_CLI_EVENT_COUNTERS,             /* SIGUSR1, if it was asked for */
    BT_CLI_EVENT_DONE,                 /* by a thread: what it was started for */
    BT_CLI_EVENT_FAILED                /* likewise; the sentence is on standard error */
} bt_cli_event;

/* Signals are events from now on, and the log has its thread (base/log.h). False: an error is on
 * standard error. */
bool bt_cli_events_open(bool counters);
void bt_cli_events_post(bt_cli_event what);
/* Waits at most timeout_ms (-1: for ever). */
bt_cli_event bt_cli_events_wait(int timeout_ms);

/* Runs load(context) on a thread. DONE or FAILED as it returned, or STOP: it still runs, cannot be
 * interrupted, and ends with the process. */
bt_cli_event bt_cli_events_load(bool (*load)(void *context), void *context);

#endif
