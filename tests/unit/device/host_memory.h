/* For devices of tests with one buffer in host memory: HOST_MEMORY(type) defines the calls for a
 * struct that begins with its bt_device and has a field `memory`, HOST_MEMORY_OPS names them. */
#ifndef TESTS_DEVICE_HOST_MEMORY_H
#define TESTS_DEVICE_HOST_MEMORY_H

#include <string.h>

#include "device/device.h"

#define HOST_MEMORY(type)                                                                          \
    static uint8_t *host_at(const bt_device *d, uint64_t at)                                       \
    {                                                                                              \
        return (uint8_t *)((const type *)d)->memory + at;                                          \
    }                                                                                              \
    static void host_read(const bt_device *d, bt_buffer b, uint64_t at, void *to, uint64_t size)   \
    {                                                                                              \
        (void)b;                                                                                   \
        memcpy(to, host_at(d, at), size);                                                          \
    }                                                                                              \
    static void host_write(bt_device *d, bt_buffer b, uint64_t at, const void *from,               \
                           uint64_t size)                                                          \
    {                                                                                              \
        (void)b;                                                                                   \
        memcpy(host_at(d, at), from, size);                                                        \
    }                                                                                              \
    static void host_copy(bt_device *d, bt_buffer b, uint64_t to, uint64_t from, uint64_t size)    \
    {                                                                                              \
        (void)b;                                                                                   \
        memcpy(host_at(d, to), host_at(d, from), size);                                            \
    }                                                                                              \
    static void host_fill(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte, uint64_t size)     \
    {                                                                                              \
        (void)b;                                                                                   \
        memset(host_at(d, at), byte, size);                                                        \
    }

#define HOST_MEMORY_OPS                                                                            \
    .buffer_read = host_read, .buffer_write = host_write, .buffer_copy = host_copy,                \
    .buffer_fill = host_fill

#endif
