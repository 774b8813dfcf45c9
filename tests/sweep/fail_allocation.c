/* Part of every unit program: BATON_FAIL_ALLOCATION=N lets the N-th allocation of the process fail
 * (sweep.py). What was not reached is told at exit, so that the sweep knows its end. */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

static unsigned long long wanted;

static void tell(void)
{
    if (bt_memory_calls() < wanted) {
        fputs("sweep: not reached\n", stderr);
    }
}

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("BATON_FAIL_ALLOCATION");
    if (text) {
        wanted = strtoull(text, NULL, 10);
        bt_memory_fail_after(wanted);
        (void)atexit(tell);
    }
}
