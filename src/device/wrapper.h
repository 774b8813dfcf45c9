/* device/wrapper.h - for devices that stand before another one and pass most calls on.
 *
 * A wrapper's struct begins with bt_device_wrapper. Its table takes BT_DEVICE_WRAPPER_OPS and names
 * the calls that it answers itself, `name`, `close` and `run` at least. Private to device/.
 */
#ifndef BT_DEVICE_WRAPPER_H
#define BT_DEVICE_WRAPPER_H

#include "device/device.h"

typedef struct {
    bt_device  base;                 /* first: bt_device * is cast to this */
    bt_device *inner;                /* closed by the wrapper */
} bt_device_wrapper;

bt_status bt_device_wrapper_buffer_alloc(bt_device *d, uint64_t size_bytes, bt_buffer *ret,
                                         bt_error *err);
void      bt_device_wrapper_buffer_free(bt_device *d, bt_buffer b);
void      bt_device_wrapper_buffer_read(const bt_device *d, bt_buffer b, uint64_t at, void *to,
                                        uint64_t size);
void      bt_device_wrapper_buffer_write(bt_device *d, bt_buffer b, uint64_t at, const void *from,
                                         uint64_t size);
void      bt_device_wrapper_buffer_copy(bt_device *d, bt_buffer b, uint64_t to, uint64_t from,
                                        uint64_t size);
void      bt_device_wrapper_buffer_fill(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte,
                                        uint64_t size);
bt_status bt_device_wrapper_weight_load(bt_device *d, const bt_weight_source *s, bt_weight *ret,
                                        bt_error *err);
bt_status bt_device_wrapper_weight_shape(const bt_device *d, bt_weight w, bt_weight_shape *ret);
bt_status bt_device_wrapper_prepare(bt_device *d, const bt_tape *t, uint32_t n_rows,
                                    uint32_t n_logit_rows, bt_error *err);
bt_status bt_device_wrapper_wait(bt_device *d, bt_error *err);
const float *bt_device_wrapper_read_rows(bt_device *d, bt_rows rows, uint64_t *ret_stride);
void      bt_device_wrapper_write_rows(bt_device *d, bt_rows rows, uint32_t n, const float *from,
                                       uint64_t stride);

#define BT_DEVICE_WRAPPER_OPS                        \
    .buffer_alloc = bt_device_wrapper_buffer_alloc,  \
    .buffer_free = bt_device_wrapper_buffer_free,    \
    .buffer_read = bt_device_wrapper_buffer_read,    \
    .buffer_write = bt_device_wrapper_buffer_write,  \
    .buffer_copy = bt_device_wrapper_buffer_copy,    \
    .buffer_fill = bt_device_wrapper_buffer_fill,    \
    .weight_load = bt_device_wrapper_weight_load,    \
    .weight_shape = bt_device_wrapper_weight_shape,  \
    .prepare = bt_device_wrapper_prepare,            \
    .wait = bt_device_wrapper_wait,                  \
    .read_rows = bt_device_wrapper_read_rows,        \
    .write_rows = bt_device_wrapper_write_rows

#endif
