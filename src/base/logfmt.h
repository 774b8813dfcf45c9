/* base/logfmt.h - key=value fields from a printf format, values quoted and escaped where needed.
 *
 * Threads: any. Failure: none; a line that is too long ends in " cut=true", a value in "...".
 */
#ifndef BT_BASE_LOGFMT_H
#define BT_BASE_LOGFMT_H

#include <stdarg.h>
#include <stddef.h>

enum { BT_LOGFMT_LINE_MAX = 1024, BT_LOGFMT_VALUE_MAX = 512 };

/* Appends to the text in `line`, which has BT_LOGFMT_LINE_MAX bytes. */
void bt_logfmt_fields(char *line, const char *format, va_list args)
        __attribute__((format(printf, 2, 0)));

/* Appends one value, quoted and escaped where needed. */
void bt_logfmt_value(char *line, const char *value);

#endif
