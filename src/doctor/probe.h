/* doctor/probe.h - a probe client: what a worker says of itself, and the time that bytes take from
 * there to here.
 *
 * What `baton doctor` stands on: no model, no prompt, no place of a server is needed.
 *
 * Lifetime: open to close. Threads: one at a time; open and probe block.
 * Failure:  open as bt_link_connect, and BT_E_REFUSED (another version), BT_E_FULL, BT_E_TIMEOUT
 *           (connected, but no FACTS: a worker from before version 1.1, or one that hangs).
 */
#ifndef BT_DOCTOR_PROBE_H
#define BT_DOCTOR_PROBE_H

#include "link/link.h"
#include "link/tuning.h"
#include "wire/codec.h"
#include "wire/identity.h"

typedef struct bt_probe bt_probe;

typedef struct {
    bt_wire_hello own;                 /* the HELLO that would fit; its texts are empty */
    uint32_t n_ctx, n_prefill, chunk_tokens, n_servers, n_servers_max;
    bool     draining, encrypted;
    uint64_t send_buffer, wmem_max, tcp_wmem_max;  /* of its machine; 0: not known */
    uint32_t idle_restart;             /* 0: not known, 1: no, 2: yes */
    char     congestion[32], system[32], numerics[32], model[128], program[64];
    char     peer[128];                /* numeric address and port */
} bt_probe_facts;

BT_MUST_CHECK bt_status bt_doctor_probe_open(const char *address, const bt_link_options *o,
                                             bt_probe **ret_visit, bt_error *err);
const bt_probe_facts *bt_doctor_probe_facts_of(const bt_probe *v);
/* Asks for n_bytes, at most BT_WIRE_PROBE_BYTES_MAX, and waits for all of them. *ret_ms: from
 * asking to the last byte. When measured too often it waits and asks once more. BT_E_TIMEOUT when
 * nothing comes for 3 s. */
BT_MUST_CHECK bt_status bt_doctor_probe_measure(bt_probe *v, uint32_t n_bytes, double *ret_ms,
                                              bt_error *err);
/* Buffers grow while bytes flow, so ask after the probes. */
void bt_doctor_probe_socket_get(const bt_probe *v, bt_link_socket *ret_socket);
/* Keeps the connection alive (heartbeats) and otherwise at rest. */
BT_MUST_CHECK bt_status bt_doctor_probe_rest(bt_probe *v, uint32_t ms, bt_error *err);
void bt_doctor_probe_close(bt_probe *v);      /* NULL is fine */

#endif
