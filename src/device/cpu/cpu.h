/* device/cpu/cpu.h - the device that runs on Baton's own kernels (cpu/kernels.h). */
#ifndef BT_DEVICE_CPU_CPU_H
#define BT_DEVICE_CPU_CPU_H

#include "cpu/kernels.h"
#include "device/device.h"

/* n_threads for up to 4 rows, n_threads_batch for more; 0: all cores. */
typedef struct {
    bt_isa   isa;
    uint32_t n_threads, n_threads_batch;
    bool     no_repack;        /* leave weights mapped; slower, half the memory */
} bt_device_cpu_options;

BT_MUST_CHECK bt_status bt_device_cpu_open(const bt_device_cpu_options *o, bt_device **ret_device,
                                           bt_error *err);

#endif
