/* engine/load.h - what a prefill here would meet: prompts under way and sequences that decode.
 * Private to engine/, for the placement, which compares it with the same of a worker. */
#ifndef BT_ENGINE_LOAD_H
#define BT_ENGINE_LOAD_H

#include "engine/private.h"

/* Engine's thread. Fills in the fields of the job that say so. */
void bt_engine_load_describe(const bt_engine *e, const bt_request *r, bt_prefill_job *job);

#endif
