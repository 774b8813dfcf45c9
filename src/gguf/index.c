/* From a name to its place in a table. */
#include "gguf/file.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/memory.h"
#include "base/random.h"

bt_status bt_gguf_index_init(bt_gguf_index *x, uint32_t n)
{
    BT_ASSERT(n <= UINT32_C(1) << 30);
    uint32_t capacity = 8;
    while (capacity < n * 2) {
        capacity *= 2;
    }
    uint64_t seed;
    if (bt_random_u64(&seed) != BT_OK) {
        seed = bt_clock_ns();                     /* guessed less easily than a constant */
    }
    *x = (bt_gguf_index){ .mask = capacity - 1, .seed = seed };
    x->slots = bt_alloc_zero(BT_MEM_gguf, capacity, sizeof *x->slots);
    return x->slots ? BT_OK : BT_E_NOMEM;
}

void bt_gguf_index_done(bt_gguf_index *x)
{
    bt_free(x->slots);
    *x = (bt_gguf_index){ 0 };
}

/* The slot that holds `text`, or the free one where it belongs. At most half of the slots are
 * taken, so there always is one. */
static uint32_t slot_of(const bt_gguf_index *x, bt_gguf_index_text *text_of, const void *table,
                        bt_gguf_string text, uint32_t hash)
{
    uint32_t slot = hash & x->mask;
    while (x->slots[slot].number != 0) {
        if (x->slots[slot].hash == hash) {
            const bt_gguf_string other = text_of(table, x->slots[slot].number - 1);
            if (other.size == text.size && memcmp(other.data, text.data, text.size) == 0) {
                break;
            }
        }
        slot = (slot + 1) & x->mask;
    }
    return slot;
}

static uint32_t hash_of(const bt_gguf_index *x, bt_gguf_string text)
{
    return (uint32_t)bt_hash64(text.data, text.size, x->seed);
}

bool bt_gguf_index_add(bt_gguf_index *x, bt_gguf_index_text *text_of, const void *table, uint32_t i)
{
    const bt_gguf_string text = text_of(table, i);
    const uint32_t hash = hash_of(x, text);
    const uint32_t slot = slot_of(x, text_of, table, text, hash);
    if (x->slots[slot].number != 0) {
        return false;
    }
    x->slots[slot].hash = hash;
    x->slots[slot].number = i + 1;
    return true;
}

uint32_t bt_gguf_index_find(const bt_gguf_index *x, bt_gguf_index_text *text_of, const void *table,
                            bt_gguf_string text)
{
    const uint32_t slot = slot_of(x, text_of, table, text, hash_of(x, text));
    /* A free slot has number 0, which gives UINT32_MAX. */
    return x->slots[slot].number - 1;
}
