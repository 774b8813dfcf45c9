/* route/cache_hint.h - what a worker's prefix cache should hold, guessed from what was given to it.
 *
 * Prompts are remembered as chained hashes of blocks of tokens, so that a prompt which begins like
 * an earlier one is known to be cheap there: turn 2 of a chat costs a worker that has turn 1 only
 * what is new. A wrong guess costs time, never an answer.
 *
 * Threads: callers lock. Failure: none. Zeroed is empty.
 */
#ifndef BT_ROUTE_CACHE_HINT_H
#define BT_ROUTE_CACHE_HINT_H

#include <stdint.h>

enum {
    BT_CACHE_HINT_BLOCK = 64,               /* tokens */
    BT_CACHE_HINT_SLOTS = 4096              /* blocks remembered; the newest stay */
};

typedef struct { uint64_t slots[BT_CACHE_HINT_SLOTS]; } bt_cache_hint;

/* Prompts of one tenant are not known for another: they do not meet in the worker's cache. */
void bt_route_cache_hint_put(bt_cache_hint *k, uint64_t tenant, const uint32_t *tokens, uint32_t n);
/* Tokens of the beginning that are known, in whole blocks. */
uint32_t bt_route_cache_hint_find(const bt_cache_hint *k, uint64_t tenant, const uint32_t *tokens,
                                  uint32_t n);
void bt_route_cache_hint_clear(bt_cache_hint *k);

#endif
