/* doctor/reach.h - whether an address can be connected to, and what listens there.
 *
 * Threads: any. Failure: kinds (link/reach.h) and sentences; nothing is kept open.
 */
#ifndef BT_DOCTOR_REACH_H
#define BT_DOCTOR_REACH_H

#include "link/reach.h"

typedef struct {
    char          peer[BT_LINK_PEER_MAX];  /* numeric address and port */
    bt_reach_kind kind;
    int           error;               /* errno; 0 when connected */
    double        ms;                  /* until connected or given up */
} bt_reach;

enum { BT_REACH_MAX = 8 };

/* Connects to each address that the name has, one after the other, and hangs up. BT_E_BADINPUT,
 * BT_E_NOTFOUND, BT_E_TIMEOUT when there is none. */
BT_MUST_CHECK bt_status bt_doctor_reach_try(const char *address, uint32_t timeout_ms,
                                            bt_reach list[BT_REACH_MAX], uint32_t *ret_n,
                                            bt_error *err);

/* Whether an HTTP server answers there: asks for / and looks how the answer begins. */
bool bt_doctor_reach_speaks_http(const char *address, uint32_t timeout_ms);

#endif
