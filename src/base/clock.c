#include "base/clock.h"

#include <errno.h>
#include <time.h>

uint64_t bt_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double bt_clock_ms(void)
{
    return (double)bt_clock_ns() / 1e6;
}

int64_t bt_clock_unix_seconds(void)
{
    return (int64_t)time(NULL);
}

void bt_clock_sleep_ms(uint32_t ms)
{
    struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
