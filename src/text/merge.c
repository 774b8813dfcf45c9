/* A heap entry is stale when its node's key is no longer the entry's: the node was absorbed, or its
 * pair is another one now. Stale entries are dropped when they come up. Short texts, which are
 * nearly all of them, do without the heap: looking at every pair each time is faster there. */
#include "text/merge.h"

#include "base/memory.h"

enum { SHORT_MAX = 24, NODES_FIRST = 64, STOP_MERGES = 4096 };

void bt_text_merger_begin(bt_merger *m)
{
    m->count = 0;
    m->heap_count = 0;
}

bt_status bt_text_merger_add(bt_merger *m, uint32_t begin, uint32_t symbol)
{
    if (m->count == m->capacity) {
        const size_t capacity = m->capacity ? m->capacity * 2 : NODES_FIRST;
        size_t size;
        bt_merge_node *nodes = bt_size_mul(capacity, sizeof *nodes, &size)
                                       ? bt_realloc(BT_MEM_text, m->nodes, size) : NULL;
        if (!nodes) {
            return BT_E_NOMEM;
        }
        m->nodes = nodes;
        m->capacity = capacity;
    }
    m->nodes[m->count++] = (bt_merge_node){ .begin = begin, .symbol = symbol };
    return BT_OK;
}

void bt_text_merger_done(bt_merger *m)
{
    bt_free(m->nodes);
    bt_free(m->heap);
    *m = (bt_merger){ 0 };
}

static void look_at(bt_merger *m, uint32_t left, uint32_t end, bt_merge_look *look,
                    const void *context)
{
    bt_merge_node *node = &m->nodes[left];
    node->key = BT_MERGE_NONE;
    if (node->next != BT_MERGE_NONE) {
        look(context, node, &m->nodes[node->next], bt_text_merger_end(m, node->next, end));
    }
}

/* Lets `left` absorb its neighbour; both pairs it is now in are looked up anew. */
static void absorb(bt_merger *m, uint32_t left, uint32_t end, bt_merge_look *look,
                   const void *context)
{
    bt_merge_node *node = &m->nodes[left];
    bt_merge_node *gone = &m->nodes[node->next];
    node->symbol = node->merged;
    node->next = gone->next;
    gone->key = BT_MERGE_NONE;
    if (node->next != BT_MERGE_NONE) {
        m->nodes[node->next].prev = left;
    }
    look_at(m, left, end, look, context);
    if (node->prev != BT_MERGE_NONE) {
        look_at(m, node->prev, end, look, context);
    }
}

static void run_short(bt_merger *m, uint32_t end, bt_merge_look *look, const void *context)
{
    for (;;) {
        uint32_t best = BT_MERGE_NONE, best_key = BT_MERGE_NONE;
        for (uint32_t i = 0; i != BT_MERGE_NONE; i = m->nodes[i].next) {
            if (m->nodes[i].key < best_key) {
                best = i;
                best_key = m->nodes[i].key;
            }
        }
        if (best == BT_MERGE_NONE) {
            return;
        }
        absorb(m, best, end, look, context);
    }
}

/* ---- heap ---- */

static bt_status push(bt_merger *m, uint32_t node)
{
    if (m->nodes[node].key == BT_MERGE_NONE) {
        return BT_OK;
    }
    if (m->heap_count == m->heap_capacity) {
        const size_t capacity = m->heap_capacity ? m->heap_capacity * 2 : NODES_FIRST;
        size_t size;
        uint64_t *heap = bt_size_mul(capacity, sizeof *heap, &size)
                                 ? bt_realloc(BT_MEM_text, m->heap, size) : NULL;
        if (!heap) {
            return BT_E_NOMEM;
        }
        m->heap = heap;
        m->heap_capacity = capacity;
    }
    const uint64_t entry = (uint64_t)m->nodes[node].key << 32 | node;
    size_t at = m->heap_count++;
    while (at > 0 && m->heap[(at - 1) / 2] > entry) {
        m->heap[at] = m->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->heap[at] = entry;
    return BT_OK;
}

static uint64_t pop(bt_merger *m)
{
    const uint64_t top = m->heap[0];
    const uint64_t last = m->heap[--m->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < m->heap_count; at = child) {
        if (child + 1 < m->heap_count && m->heap[child + 1] < m->heap[child]) {
            child++;
        }
        if (m->heap[child] >= last) {
            break;
        }
        m->heap[at] = m->heap[child];
    }
    m->heap[at] = last;
    return top;
}

static bt_status run_long(bt_merger *m, uint32_t end, bt_merge_look *look, const void *context)
{
    for (uint32_t i = 0; i < m->count; i++) {
        BT_TRY(push(m, i));
    }
    for (uint32_t n = 1; m->heap_count > 0; n++) {
        const uint64_t entry = pop(m);
        if (m->stop && n % STOP_MERGES == 0 && m->stop(m->stop_context)) {
            return BT_E_CANCELLED;
        }
        const uint32_t node = (uint32_t)entry;
        if (m->nodes[node].key != entry >> 32) {
            continue;
        }
        absorb(m, node, end, look, context);
        BT_TRY(push(m, node));
        if (m->nodes[node].prev != BT_MERGE_NONE) {
            BT_TRY(push(m, m->nodes[node].prev));
        }
    }
    return BT_OK;
}

bt_status bt_text_merger_run(bt_merger *m, uint32_t end, bt_merge_look *look, const void *context)
{
    if (m->count == 0) {
        return BT_OK;
    }
    const uint32_t n = (uint32_t)m->count;
    for (uint32_t i = 0; i < n; i++) {
        m->nodes[i].prev = i == 0 ? BT_MERGE_NONE : i - 1;
        m->nodes[i].next = i + 1 < n ? i + 1 : BT_MERGE_NONE;
    }
    for (uint32_t i = 0; i < n; i++) {
        look_at(m, i, end, look, context);
    }
    if (n > SHORT_MAX) {
        return run_long(m, end, look, context);
    }
    run_short(m, end, look, context);
    return BT_OK;
}
