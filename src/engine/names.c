/* engine/names.c - how enums of the engine are called in answers and logs. */
#include "engine/engine.h"

const char *bt_engine_finish_name(bt_finish finish)
{
    static const char *const names[] = { "none", "eog", "stop", "length", "context", "cancelled",
                                         "error" };
    return (unsigned)finish < BT_LEN(names) ? names[finish] : "unknown";
}
