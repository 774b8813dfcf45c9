/* engine/hedge.h - a prompt that is prefilled here as well as elsewhere. Private to engine/.
 *
 * Both sides have pages and a state of their own, and whichever is complete first is used whole: an
 * answer never rests on rows of both. Until that is decided nothing of it enters the prefix tree.
 * Engine's thread.
 */
#ifndef BT_ENGINE_HEDGE_H
#define BT_ENGINE_HEDGE_H

#include "engine/private.h"

/* The request is EXTERNAL, and PREFILL afterwards, with its ticket open; false, and nothing
 * changed, when there are no pages for it just now. */
bool bt_engine_hedge_begin(bt_engine *e, bt_request *r);
static inline bool bt_engine_hedge_runs(const bt_request *r) { return r->other_pages != NULL; }
/* The pages of one side are given back; with `elsewhere` what came in is what goes on. */
void bt_engine_hedge_end(bt_engine *e, bt_request *r, bool elsewhere);

#endif
