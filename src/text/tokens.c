/* Lists of ids. */
#include "base/memory.h"
#include "text/tokenizer.h"

void bt_text_tokens_init(bt_tokens *t)
{
    *t = (bt_tokens){ 0 };
}

void bt_text_tokens_done(bt_tokens *t)
{
    bt_free(t->ids);
    *t = (bt_tokens){ 0 };
}

/* Tokens between two looks: well under a millisecond of work. */
enum { STOP_TOKENS = 512 };

bt_status bt_text_tokens_push(bt_tokens *t, uint32_t id)
{
    if (t->stop && t->count % STOP_TOKENS == 0 && t->stop(t->stop_context)) {
        return BT_E_CANCELLED;
    }
    if (t->count == t->capacity) {
        const size_t capacity = t->capacity ? t->capacity * 2 : 64;
        size_t size;
        uint32_t *ids = bt_size_mul(capacity, sizeof *ids, &size)
                                ? bt_realloc(BT_MEM_text, t->ids, size) : NULL;
        if (!ids) {
            return BT_E_NOMEM;
        }
        t->ids = ids;
        t->capacity = capacity;
    }
    t->ids[t->count++] = id;
    return BT_OK;
}
