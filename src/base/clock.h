/* base/clock.h - time that never goes backwards. Threads: any. */
#ifndef BT_BASE_CLOCK_H
#define BT_BASE_CLOCK_H

#include <stdint.h>

uint64_t bt_clock_ns(void);                 /* monotonic; only differences mean something */
double   bt_clock_ms(void);                 /* the same in milliseconds */
int64_t  bt_clock_unix_seconds(void);       /* wall clock, for timestamps only */
/* Tests only, before other threads run: bt_clock_ns() gives *source from now on; NULL: real time.
 * Waits with a deadline (base/sync.h) still go by the real clock. */
void     bt_clock_set_source(const uint64_t *source_ns);
uint64_t bt_clock_after_ms(uint32_t ms);     /* a deadline for bt_clock_ns: so long from now */
void     bt_clock_sleep_ms(uint32_t ms);
void     bt_clock_sleep_ns(uint64_t ns);

#endif
