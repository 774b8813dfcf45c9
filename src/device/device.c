/* Calls go to the device's table; what callers must hold to is asserted here, once. */
#include "device/device.h"

#include "base/check.h"

void bt_device_close(bt_device *d)
{
    if (d) {
        d->ops->close(d);
    }
}

const char *bt_device_name(const bt_device *d)
{
    return d->ops->name;
}

static bt_status shape_of(const void *context, bt_weight w, bt_weight_shape *ret)
{
    const bt_device *d = context;
    return d->ops->weight_shape(d, w, ret);
}

bt_status bt_device_tape_create(const bt_device *d, bt_tape **ret_tape, bt_error *err)
{
    return bt_ops_tape_create(&(bt_op_weights){ d, shape_of }, ret_tape, err);
}

bt_status bt_device_buffer_alloc(bt_device *d, uint64_t size_bytes, bt_buffer *ret, bt_error *err)
{
    BT_ASSERT(size_bytes > 0);
    return d->ops->buffer_alloc(d, size_bytes, ret, err);
}

void bt_device_buffer_free(bt_device *d, bt_buffer b)
{
    if (b.id != 0) {
        d->ops->buffer_free(d, b);
    }
}

void bt_device_buffer_read(const bt_device *d, bt_buffer b, uint64_t at, void *to, uint64_t size)
{
    BT_ASSERT(b.id != 0);
    d->ops->buffer_read(d, b, at, to, size);
}

void bt_device_buffer_write(bt_device *d, bt_buffer b, uint64_t at, const void *from, uint64_t size)
{
    BT_ASSERT(b.id != 0);
    d->ops->buffer_write(d, b, at, from, size);
}

void bt_device_buffer_copy(bt_device *d, bt_buffer b, uint64_t to, uint64_t from, uint64_t size)
{
    BT_ASSERT(b.id != 0);
    BT_ASSERT(to >= from + size || from >= to + size);
    d->ops->buffer_copy(d, b, to, from, size);
}

void bt_device_buffer_fill(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte, uint64_t size)
{
    BT_ASSERT(b.id != 0);
    d->ops->buffer_fill(d, b, at, byte, size);
}

bt_status bt_device_weight_load(bt_device *d, const bt_weight_source *s, bt_weight *ret,
                                bt_error *err)
{
    BT_ASSERT(s->name && s->rows);
    return d->ops->weight_load(d, s, ret, err);
}

bt_status bt_device_weight_shape(const bt_device *d, bt_weight w, bt_weight_shape *ret)
{
    return d->ops->weight_shape(d, w, ret);
}

bt_status bt_device_prepare(bt_device *d, const bt_tape *t, uint32_t n_rows, uint32_t n_logit_rows,
                            bt_error *err)
{
    BT_ASSERT(n_rows > 0);
    BT_ASSERT(n_logit_rows <= n_rows);
    return d->ops->prepare(d, t, n_rows, n_logit_rows, err);
}

bt_status bt_device_run(bt_device *d, const bt_tape *t, const bt_step *s, bt_error *err)
{
    BT_TRY(d->ops->run(d, t, s, 0, bt_ops_tape_count(t), err));
    return d->ops->wait(d, err);
}

const float *bt_device_read_rows(bt_device *d, bt_rows rows, uint64_t *ret_stride)
{
    BT_ASSERT(rows.slot != 0);
    return d->ops->read_rows(d, rows, ret_stride);
}
