/* engine/stats.h - the engine's counters and gauges, by one list (base/metric.h). */
#ifndef BT_ENGINE_STATS_H
#define BT_ENGINE_STATS_H

#include "base/metric.h"

#define BT_ENGINE_STATS_LIST(X)                                                                  \
    X(uint32_t, n_running,         GAUGE,   NONE,   "Requests running")                          \
    X(uint32_t, n_waiting,         GAUGE,   NONE,   "Requests waiting, preempted ones too")      \
    X(uint32_t, n_queued,          GAUGE,   NONE,   "Requests submitted and not cancelled that " \
                                                    "have not begun, at this moment")            \
    X(uint32_t, n_parallel,        GAUGE,   NONE,   "Requests that run at once at most")         \
    X(uint32_t, kv_pages_used,     GAUGE,   NONE,   "KV pages in use, cached ones too")          \
    X(uint32_t, kv_pages_cached,   GAUGE,   NONE,   "KV pages held only by the prefix cache")    \
    X(uint32_t, kv_pages,          GAUGE,   NONE,   "KV pages in all")                           \
    X(uint64_t, kv_page_bytes,     GAUGE,   BYTES,  "Bytes of a KV page")                        \
    X(uint32_t, n_snapshots,       GAUGE,   NONE,   "Recurrent states kept for later prompts")   \
    X(uint64_t, snapshot_bytes,    GAUGE,   BYTES,  "Memory that these take")                    \
    X(uint64_t, state_bytes,       GAUGE,   BYTES,  "Bytes of the recurrent state of a sequence")\
    X(uint64_t, n_requests,        COUNTER, NONE,   "Requests begun, or ended in the queue")     \
    X(uint64_t, n_requests_cancelled, COUNTER, NONE, "Requests cancelled")                       \
    X(uint64_t, n_requests_failed, COUNTER, NONE,   "Requests ended by an error")                \
    X(uint64_t, n_preemptions,     COUNTER, NONE,   "Times that a request lost its KV pages to " \
                                                    "others and was queued again")               \
    X(uint64_t, n_contexts_full,   COUNTER, NONE,   "Answers ended because the context was full")\
    X(uint64_t, n_prompt_tokens,   COUNTER, TOKENS, "Prompt tokens evaluated here")              \
    X(uint64_t, n_cached_tokens,   COUNTER, TOKENS, "Prompt tokens found in the prefix cache")   \
    X(uint64_t, n_external_tokens, COUNTER, TOKENS, "Prompt tokens with rows from elsewhere") \
    X(uint64_t, n_predicted_tokens, COUNTER, TOKENS, "Tokens generated")                         \
    X(uint64_t, n_recomputed_tokens, COUNTER, TOKENS, "Tokens evaluated again after a preemption") \
    X(uint64_t, n_steps,           COUNTER, NONE,   "Steps of the model")                        \
    X(double,   prompt_seconds,    COUNTER, SECONDS, "Time from admission to the first token")   \
    X(double,   predicted_seconds, COUNTER, SECONDS, "Time from the first token to the end")     \
    X(uint32_t, n_tokens_max,      GAUGE,   TOKENS, "Longest sequence so far")                   \
    X(double,   prefill_tokens_per_second, GAUGE, TOKENS_PER_SECOND, "Fitted rate of prefill") \
    X(double,   decode_tokens_per_second, GAUGE, TOKENS_PER_SECOND, "Fitted rate of decoding")

typedef struct { BT_METRIC_MEMBERS(BT_ENGINE_STATS_LIST) } bt_engine_stats;

bt_metric_list bt_engine_stats_metrics(void);

#endif
