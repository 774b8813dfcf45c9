/* base/log.h - lines for people and machines: one event, one line, `key value` pairs.
 *
 * Levels are defined by how often the event happens: error and warn and info are per process,
 * debug per request, trace per step. Libraries log at debug and trace, and at warn where a user
 * would otherwise not learn that something was lost or replaced (every fallback).
 * Threads: any; a line is written whole.
 */
#ifndef BT_BASE_LOG_H
#define BT_BASE_LOG_H

#include <stdbool.h>

typedef enum { BT_LOG_ERROR, BT_LOG_WARN, BT_LOG_INFO, BT_LOG_DEBUG, BT_LOG_TRACE } bt_log_level;

typedef void bt_log_sink(void *context, bt_log_level level, const char *line);

void bt_log_set_level(bt_log_level most);               /* default: info */
void bt_log_set_sink(bt_log_sink *sink, void *context); /* NULL: standard error with a timestamp */
bool bt_log_wants(bt_log_level level);
void bt_log(bt_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
