/* base/clock.h - time that never goes backwards. Threads: any. */
#ifndef BT_BASE_CLOCK_H
#define BT_BASE_CLOCK_H

#include <stdint.h>

uint64_t bt_clock_ns(void);                 /* monotonic; only differences mean something */
double   bt_clock_ms(void);                 /* the same in milliseconds */
int64_t  bt_clock_unix_seconds(void);       /* wall clock, for timestamps only */
void     bt_clock_sleep_ms(uint32_t ms);
void     bt_clock_sleep_ns(uint64_t ns);

#endif
