/* base/log.h - lines for people and machines, in logfmt: one event, one line.
 *
 *     bt_log(BT_LOG_INFO, "worker_ready", "worker=%s slots=%u", name, n);
 *     time=2026-12-01T01:23:45.678Z level=info event=worker_ready worker=spark:7070 slots=4
 *
 * The format is a list of key=value, separated by blanks. Each value is quoted and escaped where it
 * has to be, so text from outside can forge neither a field nor a line, nor drive a terminal. A
 * value that is a sentence is an argument of "%s". All conversions of printf but %n, %p and %Lf.
 *
 * Levels are defined by how often the event happens: error and warn and info are per process,
 * debug per request, trace per step. Libraries log at debug and trace, and at warn where a user
 * would otherwise not learn that something was lost or replaced (every fallback).
 *
 * After bt_log_start() a thread of the log does the writing and no caller waits for a slow terminal
 * or a full pipe: what finds the queue full is dropped, counted, and reported as event=log_dropped.
 * The end of the process waits for the queue, at most BT_LOG_EXIT_MS. Before, and where it is not
 * called, lines are written at once.
 *
 * Threads: any; a line is written whole. Failure: start only.
 */
#ifndef BT_BASE_LOG_H
#define BT_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum { BT_LOG_ERROR, BT_LOG_WARN, BT_LOG_INFO, BT_LOG_DEBUG, BT_LOG_TRACE } bt_log_level;

enum { BT_LOG_EXIT_MS = 500 };

/* `line` has no newline at its end. */
typedef void bt_log_sink(void *context, bt_log_level level, const char *line);

/* Once in a process. */
BT_MUST_CHECK bt_status bt_log_start(bt_error *err);
void bt_log_set_level(bt_log_level most);               /* default: info */
void bt_log_set_sink(bt_log_sink *sink, void *context); /* NULL: standard error */
bool bt_log_wants(bt_log_level level);

/* `event` is a name in snake_case. */
void bt_log(bt_log_level level, const char *event, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
void bt_log_event(bt_log_level level, const char *event);      /* without fields */

/* A line for people on standard output, as it is, by the same queue. */
void bt_log_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* False: lines are still queued after timeout_ms. */
bool bt_log_flush(uint32_t timeout_ms);

#endif
