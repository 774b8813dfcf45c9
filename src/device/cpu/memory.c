/* Memory from the system and not from the heap: regions for keys, values and scratch, as large as
 * options ask for and real only where touched, and the store of packed weights. Both ask for large
 * pages. The heap would have to clear the former, and would lay weights out on small pages, which
 * costs decoding 10 to 20 % in address translation. */
#include <sys/mman.h>

#include "base/memory.h"
#include "device/cpu/private.h"

enum { LARGE_PAGE = 2 << 20, STORE_CHUNK = 64 << 20 };

static bt_status map(bt_cpu_region *r, uint64_t size, int flags, const char *what, bt_error *err)
{
    void *base = size <= SIZE_MAX / 2
                 ? mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | flags,
                        -1, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        return bt_fail_nomem(err, (size_t)size, what);
    }
#if defined(MADV_HUGEPAGE)
    /* Only a wish. */
    (void)madvise(base, (size_t)size, MADV_HUGEPAGE);
#endif
    *r = (bt_cpu_region){ base, size };
    return BT_OK;
}

bt_status bt_device_cpu_region_map(bt_cpu_region *r, uint64_t size, const char *what, bt_error *err)
{
#if defined(MAP_NORESERVE)
    return map(r, size, MAP_NORESERVE, what, err);
#else
    return map(r, size, 0, what, err);
#endif
}

void bt_device_cpu_region_unmap(bt_cpu_region *r)
{
    if (r->base) {
        (void)munmap(r->base, (size_t)r->size);
    }
    *r = (bt_cpu_region){ 0 };
}

static bt_status add_chunk(bt_cpu_store *s, uint64_t size, bt_error *err)
{
    if (s->n_chunks == s->capacity) {
        const uint32_t capacity = s->capacity ? s->capacity * 2 : 16;
        bt_cpu_region *chunks = bt_realloc(BT_MEM_weights, s->chunks, capacity * sizeof *chunks);
        if (!chunks) {
            return bt_fail_nomem(err, capacity * sizeof *chunks, "the list of weight memory");
        }
        s->chunks = chunks;
        s->capacity = capacity;
    }
    const uint64_t rounded = (size + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    BT_TRY(map(&s->chunks[s->n_chunks], rounded > STORE_CHUNK ? rounded : STORE_CHUNK, 0, "weights",
               err));
    s->n_chunks++;
    s->used = 0;
    return BT_OK;
}

bt_status bt_device_cpu_store_take(bt_cpu_store *s, uint64_t size, void **ret_at, bt_error *err)
{
    if (size > SIZE_MAX / 4) {
        return bt_fail_nomem(err, (size_t)size, "weights");
    }
    if (s->n_chunks == 0 || size > s->chunks[s->n_chunks - 1].size - s->used) {
        BT_TRY(add_chunk(s, size, err));
    }
    *ret_at = (char *)s->chunks[s->n_chunks - 1].base + s->used;
    const uint64_t used = bt_device_cpu_line(s->used + size);
    s->used = used < s->chunks[s->n_chunks - 1].size ? used : s->chunks[s->n_chunks - 1].size;
    return BT_OK;
}

void bt_device_cpu_store_done(bt_cpu_store *s)
{
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        bt_device_cpu_region_unmap(&s->chunks[i]);
    }
    bt_free(s->chunks);
    *s = (bt_cpu_store){ 0 };
}
