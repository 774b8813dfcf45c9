#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void bt_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "baton: internal error: %s (%s:%d)\n", condition, file, line);
    fflush(stderr);
    abort();
}
