/* What the engine's enums and figures are called in answers, logs and metrics. */
#include "engine/engine.h"

const char *bt_engine_finish_name(bt_finish finish)
{
    static const char *const names[] = { "none", "eog", "stop", "length", "context", "cancelled",
                                         "error" };
    return (unsigned)finish < BT_LEN(names) ? names[finish] : "unknown";
}

BT_METRIC_DEFINE(bt_engine_stats_metrics, bt_engine_stats, "baton", BT_ENGINE_STATS_LIST)
