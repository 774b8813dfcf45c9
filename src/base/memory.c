#include "base/memory.h"

#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Relaxed counters: they are totals for tests and reports and order nothing else. */
static atomic_uint_fast64_t calls[BT_MEM_COUNT];
static atomic_uint_fast64_t fail_countdown;      /* 0: never fail */

static bool must_fail(bt_memory_tag tag)
{
    atomic_fetch_add_explicit(&calls[tag], 1, memory_order_relaxed);
    uint_fast64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (left != 0) {
        if (atomic_compare_exchange_weak_explicit(&fail_countdown, &left, left - 1,
                                                  memory_order_relaxed, memory_order_relaxed)) {
            return left == 1;
        }
    }
    return false;
}

void *bt_alloc(bt_memory_tag tag, size_t size)
{
    return must_fail(tag) ? NULL : malloc(size ? size : 1);
}

void *bt_alloc_zero(bt_memory_tag tag, size_t count, size_t size)
{
    size_t total;
    if (must_fail(tag) || !bt_size_mul(count, size, &total)) {
        return NULL;
    }
    return calloc(1, total ? total : 1);
}

void *bt_realloc(bt_memory_tag tag, void *old, size_t size)
{
    return must_fail(tag) ? NULL : realloc(old, size ? size : 1);
}

char *bt_strndup(bt_memory_tag tag, const char *text, size_t length)
{
    size_t size;
    if (!bt_size_add(length, 1, &size)) {
        return NULL;
    }
    char *copy = bt_alloc(tag, size);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *bt_strdup(bt_memory_tag tag, const char *text)
{
    return bt_strndup(tag, text, strlen(text));
}

void bt_free(void *p)
{
    free(p);
}

size_t bt_memory_size(const void *p)
{
#ifdef __APPLE__
    return p ? malloc_size(p) : 0;
#else
    return malloc_usable_size((void *)(uintptr_t)p);
#endif
}

void bt_memory_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void *bt_alloc_aligned(bt_memory_tag tag, size_t alignment, size_t size)
{
    void *p = NULL;
    if (must_fail(tag) || posix_memalign(&p, alignment, size ? size : 1) != 0) {
        return NULL;
    }
    return p;
}

void bt_free_aligned(void *p)
{
    free(p);
}

bool bt_size_mul(size_t a, size_t b, size_t *ret_product)
{
    if (a != 0 && b > SIZE_MAX / a) {
        return false;
    }
    *ret_product = a * b;
    return true;
}

bool bt_size_add(size_t a, size_t b, size_t *ret_sum)
{
    if (b > SIZE_MAX - a) {
        return false;
    }
    *ret_sum = a + b;
    return true;
}

uint64_t bt_memory_calls_of(bt_memory_tag tag)
{
    return atomic_load_explicit(&calls[tag], memory_order_relaxed);
}

uint64_t bt_memory_calls(void)
{
    uint64_t sum = 0;
    for (int tag = 0; tag < BT_MEM_COUNT; tag++) {
        sum += bt_memory_calls_of((bt_memory_tag)tag);
    }
    return sum;
}

const char *bt_memory_tag_name(bt_memory_tag tag)
{
    static const char *const names[] = {
#define X(name) #name,
        BT_MEMORY_TAG_LIST(X)
#undef X
    };
    return tag < BT_MEM_COUNT ? names[tag] : "unknown";
}

void bt_memory_fail_after(uint64_t n)
{
    atomic_store_explicit(&fail_countdown, n, memory_order_relaxed);
}
