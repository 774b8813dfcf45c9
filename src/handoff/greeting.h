/* handoff/greeting.h - who we are on the wire: the identity of an engine's KV rows.
 *
 * Threads: any. Failure: none; texts are borrowed from the model and from `numerics`.
 */
#ifndef BT_HANDOFF_GREETING_H
#define BT_HANDOFF_GREETING_H

#include "engine/engine.h"
#include "wire/codec.h"

enum { BT_KV_FORMAT = 1 };             /* of the canonical layout: rows by token, K apart from V */

#define BT_HANDOFF_PROGRAM "baton " BATON_VERSION

/* The HELLO of a server with this engine; a worker compares the one it gets with its own. */
bt_wire_hello bt_handoff_hello(const bt_engine *engine, uint64_t session, const char *numerics);

#endif
