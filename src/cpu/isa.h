/* cpu/isa.h - what a record of CPUID and XCR0 answers, separated from asking, so that recorded
 * machines can be tested. Private to cpu/ and its tests. Threads: pure functions. */
#ifndef BT_CPU_ISA_H
#define BT_CPU_ISA_H

#include <stdint.h>

#include "cpu/kernels.h"

/* x86: leaf 1 ECX; leaf 7.0 EBX and ECX; XCR0, which is 0 when OSXSAVE is off. */
typedef struct {
    uint32_t leaf_max;
    uint32_t leaf1_ecx;
    uint32_t leaf7_ebx, leaf7_ecx;
    uint64_t xcr0;
} bt_cpuid;

/* The best x86 ISA that the record allows. */
bt_isa bt_cpu_isa_of_cpuid(const bt_cpuid *record);

#endif
