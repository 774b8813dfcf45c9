/* base/memory.h - the only way to the heap, counted by purpose.
 *
 * Threads:  all functions may be called from any thread.
 * Failure:  allocation returns NULL; callers say BT_E_NOMEM. Sizes from outside are computed with
 *           bt_size_mul / bt_size_add, held against a limit of base/limits.h, and only then
 *           allocated. Size 0 gives a valid pointer that may be freed.
 * Tests:    bt_memory_fail_after(n) makes the n-th allocation from now fail (0: never), and
 *           bt_memory_calls() proves that the token path allocates nothing.
 */
#ifndef BT_BASE_MEMORY_H
#define BT_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_MEMORY_TAG_LIST(X)                                                              \
    X(base) X(gguf) X(weights) X(kv) X(scratch) X(model) X(text) X(sample) X(engine) X(wire) \
    X(link) X(handoff) X(serve) X(cli) X(test)

typedef enum {
#define X(name) BT_MEM_##name,
    BT_MEMORY_TAG_LIST(X)
#undef X
    BT_MEM_COUNT
} bt_memory_tag;

void *bt_alloc(bt_memory_tag tag, size_t size);
void *bt_alloc_zero(bt_memory_tag tag, size_t count, size_t size);  /* overflow gives NULL */
void *bt_realloc(bt_memory_tag tag, void *old, size_t size);        /* `old` stays on failure */
char *bt_strdup(bt_memory_tag tag, const char *text);
char *bt_strndup(bt_memory_tag tag, const char *text, size_t length);
void  bt_free(void *p);                                             /* NULL is fine */

/* Aligned blocks (`alignment` a power of two); freed by bt_free_aligned only. */
void *bt_alloc_aligned(bt_memory_tag tag, size_t alignment, size_t size);
void  bt_free_aligned(void *p);

/* What a block takes, at least what was asked for; NULL: 0. */
size_t bt_memory_size(const void *p);
/* Gives what the allocator keeps of freed blocks back to the system, where it can. */
void bt_memory_trim(void);

/* false, and nothing written, when the result does not fit. */
bool bt_size_mul(size_t a, size_t b, size_t *ret_product);
bool bt_size_add(size_t a, size_t b, size_t *ret_sum);

uint64_t    bt_memory_calls(void);                    /* allocations since start, all tags */
uint64_t    bt_memory_calls_of(bt_memory_tag tag);
const char *bt_memory_tag_name(bt_memory_tag tag);
void        bt_memory_fail_after(uint64_t n);         /* tests only */

#endif
