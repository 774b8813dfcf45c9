/* handoff/visit.h - a look at a worker, and the time that bytes take from there to here.
 *
 * What `baton doctor` stands on: no model, no prompt, no place of a server is needed.
 *
 * Lifetime: open to close. Threads: one at a time; open and probe block.
 * Failure:  open as bt_link_connect, and BT_E_REFUSED (another version), BT_E_FULL, BT_E_TIMEOUT
 *           (connected, but no FACTS: a worker from before version 1.1, or one that hangs).
 */
#ifndef BT_HANDOFF_VISIT_H
#define BT_HANDOFF_VISIT_H

#include "link/link.h"
#include "link/tuning.h"
#include "wire/codec.h"
#include "wire/identity.h"

typedef struct bt_visit bt_visit;

typedef struct {
    bt_wire_hello own;                 /* the HELLO that would fit; its texts are empty */
    uint32_t n_ctx, n_prefill, chunk_tokens, n_servers, n_servers_max;
    bool     draining, encrypted;
    uint64_t send_buffer, wmem_max, tcp_wmem_max;  /* of its machine; 0: not known */
    uint32_t idle_restart;             /* 0: not known, 1: no, 2: yes */
    char     congestion[32], system[32], numerics[32], model[128], program[64];
    char     peer[128];                /* numeric address and port */
} bt_visit_facts;

BT_MUST_CHECK bt_status bt_doctor_visit_open(const char *address, const bt_link_options *o,
                                             bt_visit **ret_visit, bt_error *err);
const bt_visit_facts *bt_doctor_visit_facts_of(const bt_visit *v);
/* Asks for n_bytes, at most BT_WIRE_PROBE_BYTES_MAX, and waits for all of them. *ret_ms: from
 * asking to the last byte. When measured too often it waits and asks once more. BT_E_TIMEOUT when
 * nothing comes for 3 s. */
BT_MUST_CHECK bt_status bt_doctor_visit_probe(bt_visit *v, uint32_t n_bytes, double *ret_ms,
                                              bt_error *err);
/* Buffers grow while bytes flow, so ask after the probes. */
void bt_doctor_visit_socket_get(const bt_visit *v, bt_link_socket *ret_socket);
/* Keeps the connection alive (heartbeats) and otherwise at rest. */
BT_MUST_CHECK bt_status bt_doctor_visit_rest(bt_visit *v, uint32_t ms, bt_error *err);
void bt_doctor_visit_close(bt_visit *v);      /* NULL is fine */

#endif
