/* base/log.c - see log.h. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/logfmt.h"
#include "base/sync.h"

/* A quarter of the queue is kept for what is not written per request. */
enum { QUEUE_LINES = 256, QUEUE_LINES_DEBUG = QUEUE_LINES * 3 / 4 };

typedef struct {
    int  fd;
    char text[BT_LOGFMT_LINE_MAX + 1];             /* with a newline */
} queued;

static atomic_int       most = BT_LOG_INFO;
static pthread_mutex_t  sink_lock = PTHREAD_MUTEX_INITIALIZER; /* guards sink, sink_context */
static bt_log_sink     *sink;
static void            *sink_context;

static pthread_mutex_t  lock = PTHREAD_MUTEX_INITIALIZER;      /* guards all below */
static pthread_cond_t   arrived, drained;
static bool             runs;                      /* the conditions are ready too */
static queued           lines[QUEUE_LINES];
static bool             idle;                      /* nothing is queued or being written */
static uint32_t         head, count;               /* the line that is being written counts */
static uint64_t         n_dropped;                 /* since the last report */

/* ---- writing ---- */

static void write_all(int fd, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const ssize_t n = write(fd, text, left);
        if (n > 0) {
            text += n;
            left -= (size_t)n;
        } else if (errno != EINTR) {
            return;                                /* nobody is there to hear of it */
        }
    }
}

static void begin_line(char *line, bt_log_level level, const char *event)
{
    static const char *const names[] = { "error", "warn", "info", "debug", "trace" };
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    const size_t n = strftime(line, BT_LOGFMT_LINE_MAX, "time=%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(line + n, BT_LOGFMT_LINE_MAX - n, ".%03dZ level=%s event=%s",
                   (int)(now.tv_nsec / 1000000), names[level], event);
}

static void end_line(char *line)
{
    const size_t n = strlen(line);
    line[n] = '\n';
    line[n + 1] = '\0';
}

static void __attribute__((format(printf, 4, 5)))
make_line(char *line, bt_log_level level, const char *event, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    begin_line(line, level, event);
    bt_logfmt_fields(line, format, args);
    va_end(args);
}

/* The lock is held, but not while it writes: nobody else touches the first line. */
static void write_first(void)
{
    const queued *first = &lines[head];
    pthread_mutex_unlock(&lock);
    write_all(first->fd, first->text);
    pthread_mutex_lock(&lock);
    head = (head + 1) % QUEUE_LINES;
    count--;
}

/* The lock is held, but not while it writes. */
static void report_dropped(void)
{
    char line[BT_LOGFMT_LINE_MAX + 1];
    make_line(line, BT_LOG_WARN, "log_dropped", "n=%llu", (unsigned long long)n_dropped);
    n_dropped = 0;
    end_line(line);
    pthread_mutex_unlock(&lock);
    write_all(STDERR_FILENO, line);
    pthread_mutex_lock(&lock);
}

static void *writer_main(void *context)
{
    (void)context;
    pthread_mutex_lock(&lock);
    for (;;) {
        if (count > 0) {
            write_first();
        }
        if (n_dropped > 0) {
            report_dropped();
        }
        if (count == 0 && n_dropped == 0) {
            idle = true;
            pthread_cond_broadcast(&drained);
            pthread_cond_wait(&arrived, &lock);
            idle = false;
        }
    }
    return NULL;
}

/* `line` ends in a newline. False: nobody writes for us. */
static bool enqueue(int fd, bt_log_level level, const char *line)
{
    pthread_mutex_lock(&lock);
    const bool taken = runs;
    const uint32_t limit = level >= BT_LOG_DEBUG ? QUEUE_LINES_DEBUG : QUEUE_LINES;
    if (taken && count < limit) {
        queued *last = &lines[(head + count) % QUEUE_LINES];
        last->fd = fd;
        memcpy(last->text, line, strlen(line) + 1);
        count++;
        idle = false;
        pthread_cond_signal(&arrived);
    } else if (taken) {
        n_dropped++;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

static void put(int fd, bt_log_level level, char line[BT_LOGFMT_LINE_MAX + 1])
{
    end_line(line);
    if (!enqueue(fd, level, line)) {
        write_all(fd, line);
    }
}

/* False: there is no sink. */
static bool to_sink(bt_log_level level, const char *line)
{
    pthread_mutex_lock(&sink_lock);
    const bool any = sink != NULL;
    if (any) {
        sink(sink_context, level, line);
    }
    pthread_mutex_unlock(&sink_lock);
    return any;
}

/* ---- public ---- */

static void flush_at_exit(void)
{
    (void)bt_log_flush(BT_LOG_EXIT_MS);
}

bt_status bt_log_start(bt_error *err)
{
    bt_cond_init(&arrived);
    bt_cond_init(&drained);
    BT_TRY(bt_thread_start(NULL, writer_main, NULL, "log", err));
    pthread_mutex_lock(&lock);
    runs = true;
    pthread_mutex_unlock(&lock);
    (void)atexit(flush_at_exit);
    return BT_OK;
}

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

void bt_log(bt_log_level level, const char *event, const char *format, ...)
{
    if (!bt_log_wants(level)) {
        return;
    }
    char line[BT_LOGFMT_LINE_MAX + 1];
    va_list args;
    va_start(args, format);
    begin_line(line, level, event);
    bt_logfmt_fields(line, format, args);
    va_end(args);
    if (!to_sink(level, line)) {
        put(STDERR_FILENO, level, line);
    }
}

void bt_log_event(bt_log_level level, const char *event)
{
    bt_log(level, event, " ");
}

void bt_log_print(const char *format, ...)
{
    char line[BT_LOGFMT_LINE_MAX + 1];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, BT_LOGFMT_LINE_MAX, format, args);
    va_end(args);
    put(STDOUT_FILENO, BT_LOG_INFO, line);
}

bool bt_log_flush(uint32_t timeout_ms)
{
    const uint64_t deadline_ns = bt_clock_ns() + (uint64_t)timeout_ms * BT_NS_PER_MS;
    bool in_time = true;
    pthread_mutex_lock(&lock);
    while (runs && !idle && in_time) {
        in_time = bt_cond_wait_until(&drained, &lock, deadline_ns);
    }
    const bool written = !runs || idle;
    pthread_mutex_unlock(&lock);
    return written;
}
