/* base/timeline.h - a timeline of prompts, for people: a file in Chrome's trace format.
 *
 * One event a line, as it happens, so that the file of a process that was killed can be read too
 * (chrome://tracing, ui.perfetto.dev). Times are of the wall clock, so that the files of a server
 * and a worker whose clocks agree lie over each other.
 *
 * A lane is a line of the picture; spans of one lane must not overlap but may contain each other.
 *
 * Lifetime: open to close.
 * Threads:  any; a lock is held while a line is written.
 * Failure:  open only; a full disk, or BT_TIMELINE_BYTES_MAX, ends the file with a warning.
 */
#ifndef BT_BASE_TIMELINE_H
#define BT_BASE_TIMELINE_H

#include <stdint.h>

#include "base/status.h"

typedef struct bt_timeline bt_timeline;

#define BT_TIMELINE_BYTES_MAX (UINT64_C(1) << 30)

/* `process` names this side ("server 127.0.0.1:8080"). */
BT_MUST_CHECK bt_status bt_timeline_open(const char *path, const char *process,
                                         bt_timeline **ret_trace, bt_error *err);
void bt_timeline_close(bt_timeline *t);                      /* NULL is fine */

/* All: t NULL does nothing. Times are those of bt_clock_ms(). `format` gives the inside of a JSON
 * object: numbers only, with their names; "" for none. */
void bt_timeline_span(bt_timeline *t, uint64_t lane, const char *name, double begin_ms,
                      double end_ms, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* A moment, now, with a sentence (any bytes; may be ""). */
void bt_timeline_moment(bt_timeline *t, uint64_t lane, const char *name, const char *sentence);
void bt_timeline_name_lane(bt_timeline *t, uint64_t lane, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

#endif
