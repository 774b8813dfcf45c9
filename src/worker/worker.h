/* worker/worker.h - the worker's side: prefills for servers and pushes the rows as they appear.
 *
 * Listens, compares identities, and turns each PREFILL into a prefill-only request of its engine.
 * When a layer of a chunk is computed its rows are sent, while later layers compute. Several
 * servers and several prompts are served at once; the engine packs a chunk of each into one step.
 *
 * Lifetime: open to close, before the engine is destroyed.
 * Threads:  one listener; per client a reader and the link's writer. All functions here may be
 *           called from any thread, close from the owner's.
 * Failure:  open only (address, key file, memory). A peer that breaks the protocol or vanishes
 *           loses its own prompts and nothing else.
 */
#ifndef BT_WORKER_H
#define BT_WORKER_H

#include "engine/engine.h"
#include "link/link.h"

typedef struct bt_worker bt_worker;

typedef struct {
    const char     *listen;            /* "host:port"; port 0: any free one */
    uint32_t        n_prefill;         /* prompts computed at once; 0: the engine's n_parallel */
    uint32_t        n_peers;           /* servers at once; 0: 16 */
    bool            share_cache;       /* servers find each other's prompts in the prefix cache */
    uint32_t        stall_ms;          /* a prompt that its client holds up ends after so long while
                                          others wait; 0: 30 s */
    const char     *trace_file;        /* a timeline of all prompts (base/timeline.h); NULL: none */
    const char     *numerics;          /* ISA here, by name; NULL: unknown */
    bt_link_options link;              /* key_file, heartbeat, buffers */
} bt_worker_options;

/* `engine` was created with push and is borrowed. */
BT_MUST_CHECK bt_status bt_worker_open(const bt_worker_options *o, bt_engine *engine,
                                       bt_worker **ret_worker, bt_error *err);
const char *bt_worker_address(const bt_worker *w); /* with the real port */
/* Asks clients to send no more and finishes what is in flight. BT_E_TIMEOUT when some is left. */
BT_MUST_CHECK bt_status bt_worker_drain(bt_worker *w, uint32_t timeout_ms);
void bt_worker_close(bt_worker *w); /* NULL is fine */

typedef struct {
    uint32_t n_peers;     /* connected now */
    uint32_t n_in_flight; /* prompts now */
    uint64_t tokens_in_flight;
    uint64_t n_connects, n_rejects;
    uint64_t n_prompts, n_tokens, n_bytes; /* committed; bytes of rows sent */
    uint64_t n_cancelled;              /* by the server, or because it vanished */
    uint64_t n_errors;                 /* answered with ERROR */
    uint64_t n_corrupt;                /* connections ended for frames that did not hold */
    bool     draining;
} bt_worker_status;
void bt_worker_status_get(const bt_worker *w, bt_worker_status *ret_status);

#endif
