/* A device that only has memory: enough for pages. */
#ifndef TESTS_KV_MEMORY_DEVICE_H
#define TESTS_KV_MEMORY_DEVICE_H

#include <stdlib.h>

#include "unit/device/host_memory.h"

typedef struct {
    bt_device device;
    void     *memory;
    int       n_buffers;
    bool      refuse;
} memory_device;

static bt_status memory_alloc(bt_device *d, uint64_t size_bytes, bt_buffer *ret, bt_error *err)
{
    memory_device *m = (memory_device *)d;
    m->memory = m->refuse ? NULL : calloc(1, (size_t)size_bytes);
    if (!m->memory) {
        return bt_fail(err, BT_E_NOMEM, "no memory for %llu bytes", (unsigned long long)size_bytes);
    }
    m->n_buffers++;
    ret->id = 1;
    return BT_OK;
}

static void memory_free(bt_device *d, bt_buffer b)
{
    memory_device *m = (memory_device *)d;
    (void)b;
    free(m->memory);
    m->memory = NULL;
    m->n_buffers--;
}

HOST_MEMORY(memory_device)

static const bt_device_ops memory_ops = {
    .name = "memory", .buffer_alloc = memory_alloc, .buffer_free = memory_free,
    HOST_MEMORY_OPS,
};

#endif
