/* tests/unit/handoff/wait.h - waiting for another thread, only as long as it takes. */
#ifndef WAIT_H
#define WAIT_H

#include "base/clock.h"

/* The test fails after 20 s; what has to happen at once is measured apart. */
#define WAIT_FOR(condition)                                                                  \
    do {                                                                                     \
        const double wait_until = bt_clock_ms() + 20000;                                     \
        while (!(condition)) {                                                               \
            assert_true(bt_clock_ms() < wait_until);                                         \
            bt_clock_sleep_ms(1);                                                            \
        }                                                                                    \
    } while (0)

#endif
