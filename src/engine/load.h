/* engine/load.h - what a prefill here would meet: prompts under way and sequences that decode.
 * Private to engine/, for whoever takes the offer, who compares it with the same elsewhere. */
#ifndef BT_ENGINE_LOAD_H
#define BT_ENGINE_LOAD_H

#include "engine/private.h"

/* Engine's thread. Fills in the fields of the offer that say so. */
void bt_engine_load_describe(const bt_engine *e, const bt_request *r, bt_external_offer *offer);

#endif
