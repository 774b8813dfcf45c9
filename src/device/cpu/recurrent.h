/* device/cpu_recurrent.h - inside the CPU device: ops of recurrent layers (cpu_recurrent.c) and of
 * experts (cpu_experts.c). */
#ifndef BT_CPU_RECURRENT_H
#define BT_CPU_RECURRENT_H

#include "device/cpu/private.h"

void bt_device_cpu_run_short_conv(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                  const bt_op_short_conv *o);
void bt_device_cpu_run_delta_scan(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                  const bt_op_delta_scan *o);
void bt_device_cpu_run_route(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_route *o);
void bt_device_cpu_run_expert_linear(const bt_cpu_worker *w, const bt_cpu_stage *s,
                                     const bt_op_expert_linear *o);
void bt_device_cpu_run_mul(const bt_cpu_worker *w, const bt_cpu_stage *s, const bt_op_mul *o);
void bt_device_cpu_run_combine(const bt_cpu_worker *w, const bt_cpu_stage *s,
                               const bt_op_combine *o);
/* Bytes of a thread's scratch that the op needs for n_rows rows. */
uint64_t bt_device_cpu_experts_bytes(const bt_cpu_device *d, const bt_op_expert_linear *o,
                                     uint32_t n_rows);
/* The step has states that fit the plan. */
bt_status bt_device_cpu_check_states(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                                     bt_error *err);

#endif
