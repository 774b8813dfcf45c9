#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static _Atomic(const uint64_t *) test_source;

void bt_clock_set_source(const uint64_t *source_ns)
{
    atomic_store(&test_source, source_ns);
}

uint64_t bt_clock_ns(void)
{
    const uint64_t *source = atomic_load_explicit(&test_source, memory_order_relaxed);
    if (source) {
        return *source;
    }
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

uint64_t bt_clock_after_ms(uint32_t ms)
{
    return bt_clock_ns() + (uint64_t)ms * 1000000u;
}

void bt_clock_sleep_ms(uint32_t ms)
{
    bt_clock_sleep_ns((uint64_t)ms * 1000000u);
}

void bt_clock_sleep_ns(uint64_t ns)
{
    struct timespec left = { .tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u) };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
