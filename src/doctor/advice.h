/* doctor/advice.h - what was seen of a worker and the way to it, in words, with what fixes it.
 *
 * Pure: facts in, findings out, so that every finding can be tested on any machine. Commands are
 * whole lines for a shell, of the system on which they are to be run.
 * Threads: any. Failure: none; more findings than there is room for are left out.
 */
#ifndef BT_DOCTOR_ADVICE_H
#define BT_DOCTOR_ADVICE_H

#include "base/buffer.h"
#include "doctor/probe.h"
#include "doctor/reach.h"

typedef enum {
    BT_FINDING_OK,
    BT_FINDING_ADVICE,                 /* it works, and could be better */
    BT_FINDING_PROBLEM,                /* prompts will not go there, or far too slowly */
    BT_FINDING_SKIPPED                 /* could not be looked at */
} bt_finding_state;

const char *bt_doctor_finding_state_name(bt_finding_state s);      /* "ok", "advice", ...; static */

enum { BT_FINDINGS_MAX = 24, BT_FIXES_MAX = 4, BT_PROBE_TIMES_MAX = 32 };

typedef struct {
    bool worker;                       /* to be run on the worker's machine; else on this one */
    char command[480];                 /* values in it are quoted for the shell */
} bt_fix;

typedef struct {
    const char      *name;             /* "reach", "key", ...; static */
    bt_finding_state state;
    char             text[480];
    uint32_t         n_fixes;
    bt_fix          fixes[BT_FIXES_MAX];
} bt_finding;

typedef struct {
    uint32_t   n;
    bt_finding list[BT_FINDINGS_MAX + 1];
} bt_findings;

/* All that a checkup has seen, in the order in which it is looked at; what comes after the first
 * failure is absent. */
typedef struct {
    const char *address;               /* as given */
    char        host[256];
    uint16_t    port;
    const char *key_file;              /* NULL: none */
    bt_error    key_error;             /* status OK: a key; else no probe was tried */
    bool        key_open_to_others;    /* on this machine */
    bool        key_short;             /* why there is a key_error */
    const char *model_file;            /* -m; NULL: none to compare */
    char        model[128];            /* its name */
    uint32_t    buffer_bytes;          /* --link-buffer; 0: the kernel's tuning */
    bt_link_system here;

    bt_error  name_error;              /* status OK: the name has addresses */
    uint32_t  n_reach;
    bt_reach  reach[BT_REACH_MAX];

    bt_error  visit_error;             /* status OK: `facts` are there */
    bool      worker_keyless;          /* failed with our key, and does not without one */
    bool      http;                    /* failed, and an HTTP server answers there */
    bt_probe_facts facts;

    bool      compared;                /* with a model of ours */
    bool      fits;
    bt_wire_misfit misfit;
    char      numerics[32];            /* tier here; "": not looked at */

    bt_error  probe_error;             /* status OK: all below is there */
    uint32_t  n_round_trips;
    double    round_trip_ms[BT_PROBE_TIMES_MAX];
    double    rested_ms, warm_ms;      /* 1 MiB after a rest, and at once after another; 0: not */
    double    large_bytes, large_ms;   /* the largest probe; 0: not done */
    bt_link_socket socket;
} bt_checkup;

typedef struct {
    double median, low, high;          /* low and high: a tenth of the values lies beyond each */
} bt_spread;

bt_spread bt_doctor_spread_of(const double *values, uint32_t n); /* n: BT_PROBE_TIMES_MAX at most */
/* Bytes per second of the largest probe, less the round trip; 0: not known. */
double    bt_doctor_checkup_goodput(const bt_checkup *c);
void      bt_doctor_advice_give(const bt_checkup *c, bt_findings *ret_findings);
/* As many servers are connected as the worker takes; whose they are is not known. */
bool      bt_doctor_checkup_full(const bt_checkup *c);
/* No problem among them. */
bool      bt_doctor_findings_well(const bt_findings *f);

#endif
