/* handoff/report.h - where a request wants its prompt prefilled, and where it was.
 *
 * The engine knows neither: one object per request, which travels as the request's tag, carries the
 * wish in and the report out. Whoever submits the request makes it and reads the report; the code
 * that places prompts finds it in the offer and writes to it.
 *
 * Lifetime: counted references; the tag of a submitted request is one.
 * Threads:  any. Failure: create only.
 */
#ifndef BT_HANDOFF_REPORT_H
#define BT_HANDOFF_REPORT_H

#include "engine/external.h"

typedef enum {
    BT_PREFILL_LOCAL, BT_PREFILL_REMOTE, BT_PREFILL_MIXED, BT_PREFILL_CACHE
} bt_prefill_place;
const char *bt_handoff_place_name(bt_prefill_place place);    /* static; "unknown" for others */
typedef enum { BT_POLICY_FALLBACK, BT_POLICY_FAIL, BT_POLICY_HEDGE } bt_prefill_policy;
typedef enum { BT_WHERE_AUTO, BT_WHERE_LOCAL, BT_WHERE_REMOTE } bt_prefill_where;

/* ---- what was known when the place was chosen, for people ---- */

/* Times are predicted milliseconds until the first token; 0: nothing was known. */
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

/* ---- the report ---- */

typedef struct {
    bt_prefill_place place;
    bool     fallback;             /* meant for a worker, and then not */
    bool     hedged;               /* prefilled here and there; `place` says who was first */
    char     worker[128];          /* "host:port", "" if none */
    char     reason[400];          /* why this place, or why it fell back; one sentence */
    uint32_t n_cached;             /* tokens found in the prefix cache */
    uint32_t n_remote, n_local;    /* tokens prefilled there and here */
    uint32_t retries;
    uint64_t bytes;                /* of KV rows received, as they were on the wire */
    char     wire_type[24];        /* their element type there; "" if none came */
    double   queue_ms;             /* waiting, here and there */
    double   compute_ms;           /* remote prefill, by the worker's clock */
    double   transfer_ms;          /* first rows received to commit received */
    double   exposed_ms;           /* part of transfer_ms that computing did not hide */
    double   import_ms;            /* of the transfer: putting rows into pages */
    double   hidden;               /* share of sending the bytes that computing hid, 0 .. 1 */
    double   total_ms;             /* prompt given out to prefix usable */
    bt_prefill_forecast forecast;  /* what the choice was made from */
} bt_prefill_report;

/* ---- one request ---- */

typedef struct {
    bt_prefill_where  where;
    bt_prefill_policy policy;
    bool no_worker_cache;          /* neither use nor fill the prefix cache of a worker */
    bool has_workers;              /* prompts are offered to workers at all */
} bt_handoff_wish;

typedef struct bt_handoff_request bt_handoff_request;

BT_MUST_CHECK bt_status bt_handoff_request_create(const bt_handoff_wish *wish,
                                                  bt_handoff_request **ret_request, bt_error *err);
void   bt_handoff_request_unref(bt_handoff_request *r);       /* NULL is fine */
bt_tag bt_handoff_request_tag(bt_handoff_request *r);         /* for bt_request_options */

/* What became of the prompt so far; `stats` are those of its engine request. */
void bt_handoff_request_report(const bt_handoff_request *r, const bt_request_stats *stats,
                               bt_prefill_report *ret_report);

/* ---- for the code that places prompts; all take NULL for a request without the object ---- */

bt_handoff_wish bt_handoff_request_wish(const bt_handoff_request *r);
void bt_handoff_request_ref(bt_handoff_request *r);
/* A new offer: what earlier ones wrote is void. */
void bt_handoff_request_begin(bt_handoff_request *r, uint64_t ticket);
/* What is known at the offer, and what came of the ticket. The second stands against the first;
 * neither counts once another ticket, or none, is the request's. */
void bt_handoff_request_note(bt_handoff_request *r, uint64_t ticket, const bt_prefill_report *p);
void bt_handoff_request_end(bt_handoff_request *r, uint64_t ticket, const bt_prefill_report *p);
/* The engine has closed the ticket. */
void bt_handoff_request_cancel(bt_handoff_request *r, uint64_t ticket, bt_external_reason reason);

#endif
