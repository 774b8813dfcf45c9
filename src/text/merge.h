/* text/merge.h - repeated merging of the best adjacent pair, which both kinds of BPE consist of.
 *
 * Symbols form a list. As long as some adjacent pair can merge, the pair with the smallest key is
 * replaced by one symbol; of equal keys the leftmost. A heap gives O(n log n) for any text.
 *
 * Lifetime: a merger begins zeroed, is used for many texts, and ends with done. Threads: owned by
 * one. Failure: memory.
 */
#ifndef BT_TEXT_MERGE_H
#define BT_TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define BT_MERGE_NONE UINT32_MAX

typedef struct {
    uint32_t begin;       /* in the text, in bytes */
    uint32_t prev, next;  /* BT_MERGE_NONE at the ends */
    uint32_t symbol;
    uint32_t key;         /* of the pair with the next one; BT_MERGE_NONE: they do not merge */
    uint32_t merged;      /* what that pair becomes */
} bt_merge_node;

typedef struct {
    bt_merge_node *nodes;
    size_t         count, capacity;
    uint64_t      *heap;              /* key << 32 | node */
    size_t         heap_count, heap_capacity;
    bool         (*stop)(void *context);   /* as in bt_tokens, for pieces without end */
    void          *stop_context;
} bt_merger;

/* Sets key and merged of `left`, whose pair covers text[left->begin .. end). */
typedef void bt_merge_look(const void *context, bt_merge_node *left, const bt_merge_node *right,
                           uint32_t end);

/* Forgets the symbols of before. */
void bt_text_merger_begin(bt_merger *m);
BT_MUST_CHECK bt_status bt_text_merger_add(bt_merger *m, uint32_t begin, uint32_t symbol);
/* Merges until nothing more does. What is left is the list from node 0 on. */
BT_MUST_CHECK bt_status bt_text_merger_run(bt_merger *m, uint32_t end, bt_merge_look *look,
                                           const void *context);
/* Where a node's text ends. */
static inline uint32_t bt_text_merger_end(const bt_merger *m, uint32_t node, uint32_t end)
{
    const uint32_t next = m->nodes[node].next;
    return next == BT_MERGE_NONE ? end : m->nodes[next].begin;
}
void bt_text_merger_done(bt_merger *m);

#endif
