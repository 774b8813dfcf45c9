/* device/check.h - a device whose every op is compared with a reference. */
#ifndef BT_DEVICE_CHECK_H
#define BT_DEVICE_CHECK_H

#include "device/device.h"

/* Runs each op on both (kept, closed with the wrapper) and fails at the first op whose rows differ
 * by more than `nmse_max`, naming it. Results are those of `device`. */
BT_MUST_CHECK bt_status bt_device_check_open(bt_device *device, bt_device *reference,
                                             double nmse_max, bt_device **ret_device,
                                             bt_error *err);

#endif
