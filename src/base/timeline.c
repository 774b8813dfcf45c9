/* base/timeline.c - see timeline.h. */
#include "base/timeline.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/say.h"

struct bt_timeline {
    double wall_us;                    /* of the wall clock when ours was 0 */
    int    process;

    pthread_mutex_t lock;              /* guards all below */
    FILE    *file;
    uint64_t n_bytes;
    bool     ended;
};

enum { LINE_MAX_BYTES = 768, TEXT_MAX_BYTES = 300 };

/* ---- lines ---- */

/* `to` gets the inside of a JSON string: what is not plain ASCII becomes '?'. */
static const char *plain(const char *text, char to[TEXT_MAX_BYTES])
{
    size_t n = 0;
    for (const char *c = text; *c && n + 1 < TEXT_MAX_BYTES; c++) {
        const bool good = *c >= ' ' && *c <= '~' && *c != '"' && *c != '\\';
        to[n++] = good ? *c : *c == '"' ? '\'' : '?';
    }
    to[n] = '\0';
    return to;
}

static void put(bt_timeline *t, const char *line)
{
    const size_t size = strlen(line);
    (void)pthread_mutex_lock(&t->lock);
    const bool full = t->n_bytes + size > BT_TIMELINE_BYTES_MAX;
    if (!t->ended && (full || fprintf(t->file, "%s%s", t->n_bytes > 0 ? ",\n" : "[\n", line) < 0)) {
        t->ended = true;
        bt_log(BT_LOG_WARN, "timeline_ended", "bytes=%llu reason=%s",
               (unsigned long long)t->n_bytes, full ? "the size limit" : strerror(errno));
    }
    t->n_bytes += t->ended ? 0 : size + 2;
    (void)pthread_mutex_unlock(&t->lock);
}

static double wall_us(const bt_timeline *t, double ms) { return t->wall_us + ms * 1000; }

void bt_timeline_span(bt_timeline *t, uint64_t lane, const char *name, double begin_ms,
                      double end_ms, const char *format, ...)
{
    char inside[TEXT_MAX_BYTES], line[LINE_MAX_BYTES];
    va_list args;
    if (!t) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(inside, sizeof inside, format, args);
    va_end(args);
    const double us = end_ms > begin_ms ? (end_ms - begin_ms) * 1000 : 0;
    bt_say(line, sizeof line, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%llu,\"name\":\"%s\",\"ts\":%.1f,"
           "\"dur\":%.1f,\"args\":{%s}}", t->process, (unsigned long long)lane, name,
           wall_us(t, begin_ms), us, inside);
    put(t, line);
}

void bt_timeline_moment(bt_timeline *t, uint64_t lane, const char *name, const char *sentence)
{
    char text[TEXT_MAX_BYTES], line[LINE_MAX_BYTES];
    if (!t) {
        return;
    }
    bt_say(line, sizeof line, "{\"ph\":\"i\",\"s\":\"t\",\"pid\":%d,\"tid\":%llu,\"name\":\"%s\","
           "\"ts\":%.1f,\"args\":{\"text\":\"%s\"}}", t->process, (unsigned long long)lane, name,
           wall_us(t, bt_clock_ms()), plain(sentence, text));
    put(t, line);
}

/* `kind` is what the format calls "metadata". */
static void put_name(bt_timeline *t, const char *kind, uint64_t lane, const char *name)
{
    char text[TEXT_MAX_BYTES], line[LINE_MAX_BYTES];
    bt_say(line, sizeof line, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%llu,\"name\":\"%s\","
           "\"args\":{\"name\":\"%s\"}}", t->process, (unsigned long long)lane, kind,
           plain(name, text));
    put(t, line);
}

void bt_timeline_name_lane(bt_timeline *t, uint64_t lane, const char *format, ...)
{
    char name[TEXT_MAX_BYTES];
    va_list args;
    if (!t) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args);
    va_end(args);
    put_name(t, "thread_name", lane, name);
}

/* ---- life ---- */

bt_status bt_timeline_open(const char *path, const char *process, bt_timeline **ret_trace,
                           bt_error *err)
{
    struct timespec wall;
    bt_timeline *t = bt_alloc_zero(BT_MEM_base, 1, sizeof *t);
    if (!t) {
        return bt_fail_nomem(err, sizeof *t, "a timeline");
    }
    t->file = fopen(path, "w");
    if (!t->file) {
        bt_free(t);
        return bt_fail(err, BT_E_IO, "the trace %s cannot be written: %s", path, strerror(errno));
    }
    (void)setvbuf(t->file, NULL, _IOLBF, BUFSIZ);      /* whole lines, should we be killed */
    clock_gettime(CLOCK_REALTIME, &wall);
    t->wall_us = (double)wall.tv_sec * 1e6 + (double)wall.tv_nsec / 1e3 - bt_clock_ms() * 1000;
    t->process = (int)getpid();
    (void)pthread_mutex_init(&t->lock, NULL);
    put_name(t, "process_name", 0, process);
    *ret_trace = t;
    return BT_OK;
}

void bt_timeline_close(bt_timeline *t)
{
    if (!t) {
        return;
    }
    if (!t->ended) {
        (void)fputs("\n]\n", t->file);
    }
    if (fclose(t->file) != 0) {
        bt_log(BT_LOG_WARN, "timeline_incomplete", "reason=%s", strerror(errno));
    }
    (void)pthread_mutex_destroy(&t->lock);
    bt_free(t);
}
