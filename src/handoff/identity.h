/* handoff/identity.h - who we are on the wire: the identity of an engine's KV rows.
 *
 * Threads: any. Failure: none; texts are borrowed from the model and from `numerics`.
 */
#ifndef BT_HANDOFF_IDENTITY_H
#define BT_HANDOFF_IDENTITY_H

#include "engine/engine.h"
#include "wire/identity.h"

enum { BT_KV_FORMAT = 1 };             /* of the canonical layout: rows by token, K apart from V */

/* The HELLO of a server with this engine; a worker compares the one it gets with its own. */
bt_wire_hello bt_handoff_hello(const bt_engine *engine, uint64_t session, const char *numerics);

/* bt_wire_identity_fits, with types of keys and values by name: -ctk is given one, not a number. */
bool bt_handoff_identity_fits(const bt_wire_hello *server, const bt_wire_hello *worker,
                              bt_wire_misfit *ret_misfit);

/* Bytes of the state that each layer keeps, as [n_layers] for both ends; NULL where none
 * does. The caller's to free. BT_E_UNSUPPORTED when one is too large for the wire's numbers. */
BT_MUST_CHECK bt_status bt_handoff_states_layer_bytes(const bt_engine *engine, uint64_t **ret_bytes,
                                                      bt_error *err);

#endif
