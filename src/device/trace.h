/* device/trace.h - a device that times every op of another, and shows its values on request. */
#ifndef BT_DEVICE_TRACE_H
#define BT_DEVICE_TRACE_H

#include "device/device.h"

typedef struct {
    const char *path;          /* JSON lines; NULL: no file */
    bool        values;        /* also a digest and the first values of each op's rows */
} bt_device_trace_options;

/* Wraps `inner` (kept, closed with the wrapper). */
BT_MUST_CHECK bt_status bt_device_trace_open(bt_device *inner, const bt_device_trace_options *o,
                                             bt_device **ret_device, bt_error *err);

#endif
