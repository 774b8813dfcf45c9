#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { LINE_MAX_BYTES = 1024 };

static atomic_int       most = BT_LOG_INFO;
static pthread_mutex_t  sink_lock = PTHREAD_MUTEX_INITIALIZER; /* guards sink, sink_context */
static bt_log_sink     *sink;
static void            *sink_context;

void bt_log_set_level(bt_log_level level)
{
    atomic_store_explicit(&most, (int)level, memory_order_relaxed);
}

void bt_log_set_sink(bt_log_sink *new_sink, void *context)
{
    pthread_mutex_lock(&sink_lock);
    sink = new_sink;
    sink_context = context;
    pthread_mutex_unlock(&sink_lock);
}

bool bt_log_wants(bt_log_level level)
{
    return (int)level <= atomic_load_explicit(&most, memory_order_relaxed);
}

static void to_standard_error(bt_log_level level, const char *line)
{
    static const char *const names[] = { "error", "warn", "info", "debug", "trace" };
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    fprintf(stderr, "%02d:%02d:%02d.%03d %-5s %s\n", parts.tm_hour, parts.tm_min, parts.tm_sec,
            (int)(now.tv_nsec / 1000000), names[level], line);
}

void bt_log(bt_log_level level, const char *format, ...)
{
    if (!bt_log_wants(level)) {
        return;
    }
    char line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* What comes from outside must not forge lines or drive a terminal. */
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    pthread_mutex_lock(&sink_lock);
    if (sink) {
        sink(sink_context, level, line);
    } else {
        to_standard_error(level, line);
    }
    pthread_mutex_unlock(&sink_lock);
}
