/* engine/forecast.h - what the placement knew when it decided where a prompt goes: for people.
 *
 * Plain data, copied with the report of a request. Times are predicted milliseconds until the first
 * token; 0 means that nothing was known.
 */
#ifndef BT_ENGINE_FORECAST_H
#define BT_ENGINE_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_FORECAST_WORKERS_MAX = 8 };

typedef struct {
    char     worker[128];              /* "host:port" */
    double   ms;
    double   tokens_per_second;        /* prefill there */
    double   goodput_bytes_per_second; /* 0: the link was never what was waited for */
    double   round_trip_ms;
    uint64_t tokens_ahead;             /* computed before or beside this prompt */
    uint32_t n_known;                  /* tokens of the prompt that its cache should have */
} bt_forecast_worker;

typedef struct {
    bool     made;                     /* a place was chosen among several; else all is 0 */
    uint32_t position_first, n_tokens; /* rows wanted */
    double   local_ms;
    double   local_tokens_per_second;
    uint64_t local_tokens_ahead;
    double   local_decode_ms;          /* of each step, for those who decode */
    uint32_t n_workers;                /* ready ones, the first so many of them below */
    bt_forecast_worker workers[BT_FORECAST_WORKERS_MAX];
} bt_prefill_forecast;

#endif
