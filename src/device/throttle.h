/* device/throttle.h - a device that computes no faster than a given number of rows per second.
 *
 * To try out links and schedules with a machine of any speed: results are those of the device
 * inside, bit for bit, only later. The marks of a tape are spaced evenly over the time of a step,
 * as the layers of a slower machine would be. A step that took longer than its share is made up
 * for by the next ones, unless the device was idle in between.
 */
#ifndef BT_DEVICE_THROTTLE_H
#define BT_DEVICE_THROTTLE_H

#include "device/device.h"

/* Wraps `inner` (kept, closed with the wrapper). rows_per_second > 0. */
BT_MUST_CHECK bt_status bt_device_throttle_open(bt_device *inner, double rows_per_second,
                                                bt_device **ret_device, bt_error *err);

#endif
