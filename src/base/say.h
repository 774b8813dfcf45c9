/* base/say.h - a sentence into a fixed array, cut where the array ends. Private to handoff/. */
#ifndef BT_BASE_SAY_H
#define BT_BASE_SAY_H

#include <stdarg.h>
#include <stdio.h>

static inline void __attribute__((format(printf, 3, 4))) bt_say(char *to, size_t size,
                                                                const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(to, size, format, args);
    va_end(args);
}

#endif
