/* Regions for keys, values and scratch: as large as options ask for, real only where touched. They
 * come from the system and not from the heap, since the heap would have to clear them. */
#include <sys/mman.h>

#include "device/cpu_private.h"

bt_status bt_cpu_region_map(bt_cpu_region *r, uint64_t size, const char *what, bt_error *err)
{
    int flags = MAP_PRIVATE | MAP_ANON;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    void *base = size <= SIZE_MAX / 2
                 ? mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, flags, -1, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        return bt_fail(err, BT_E_NOMEM, "no address space for %.1f MiB of %s",
                       (double)size / 1048576.0, what);
    }
#if defined(MADV_HUGEPAGE)
    /* Only a wish: one fault for 2 MiB instead of 512. */
    (void)madvise(base, (size_t)size, MADV_HUGEPAGE);
#endif
    *r = (bt_cpu_region){ base, size };
    return BT_OK;
}

void bt_cpu_region_unmap(bt_cpu_region *r)
{
    if (r->base) {
        (void)munmap(r->base, (size_t)r->size);
    }
    *r = (bt_cpu_region){ 0 };
}
