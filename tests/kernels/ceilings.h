/* tests/kernels/ceilings.h - what one core of this machine can do at most. */
#ifndef BT_TESTS_KERNELS_CEILINGS_H
#define BT_TESTS_KERNELS_CEILINGS_H

#include "cpu/kernels.h"

/* GB/s of reading memory that is in no cache. */
double ceiling_read_gbs(void);
/* Thousand million operations per second of byte dot products; 0 if unknown for the ISA. */
double ceiling_int8_gops(bt_isa isa);
double seconds_now(void);

/* ceilings_avx512vnni.c: operations done by n rounds. */
double dpbusd_rounds(uint64_t n);

#endif
