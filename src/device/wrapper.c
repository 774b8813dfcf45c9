/* Calls that a wrapper passes on. */
#include "device/wrapper.h"

static bt_device *inner(bt_device *d)
{
    return ((bt_device_wrapper *)(void *)d)->inner;
}

static const bt_device *inner_of(const bt_device *d)
{
    return ((const bt_device_wrapper *)(const void *)d)->inner;
}

bt_status bt_device_wrapper_buffer_alloc(bt_device *d, uint64_t size_bytes, bt_buffer *ret,
                                         bt_error *err)
{
    return inner(d)->ops->buffer_alloc(inner(d), size_bytes, ret, err);
}

void bt_device_wrapper_buffer_free(bt_device *d, bt_buffer b)
{
    inner(d)->ops->buffer_free(inner(d), b);
}

void bt_device_wrapper_buffer_read(const bt_device *d, bt_buffer b, uint64_t at, void *to,
                                   uint64_t size)
{
    inner_of(d)->ops->buffer_read(inner_of(d), b, at, to, size);
}

void bt_device_wrapper_buffer_write(bt_device *d, bt_buffer b, uint64_t at, const void *from,
                                    uint64_t size)
{
    inner(d)->ops->buffer_write(inner(d), b, at, from, size);
}

void bt_device_wrapper_buffer_copy(bt_device *d, bt_buffer b, uint64_t to, uint64_t from,
                                   uint64_t size)
{
    inner(d)->ops->buffer_copy(inner(d), b, to, from, size);
}

void bt_device_wrapper_buffer_fill(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte,
                                   uint64_t size)
{
    inner(d)->ops->buffer_fill(inner(d), b, at, byte, size);
}

bt_status bt_device_wrapper_weight_load(bt_device *d, const bt_weight_source *s, bt_weight *ret,
                                        bt_error *err)
{
    return inner(d)->ops->weight_load(inner(d), s, ret, err);
}

bt_status bt_device_wrapper_weight_shape(const bt_device *d, bt_weight w, bt_weight_shape *ret)
{
    return inner_of(d)->ops->weight_shape(inner_of(d), w, ret);
}

bt_status bt_device_wrapper_prepare(bt_device *d, const bt_tape *t, uint32_t n_rows,
                                    uint32_t n_logit_rows, bt_error *err)
{
    return inner(d)->ops->prepare(inner(d), t, n_rows, n_logit_rows, err);
}

bt_status bt_device_wrapper_wait(bt_device *d, bt_error *err)
{
    return inner(d)->ops->wait(inner(d), err);
}

const float *bt_device_wrapper_read_rows(bt_device *d, bt_rows rows, uint64_t *ret_stride)
{
    return inner(d)->ops->read_rows(inner(d), rows, ret_stride);
}

void bt_device_wrapper_write_rows(bt_device *d, bt_rows rows, uint32_t n, const float *from,
                                  uint64_t stride)
{
    inner(d)->ops->write_rows(inner(d), rows, n, from, stride);
}
