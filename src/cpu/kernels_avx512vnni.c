/* tier file: overrides nothing yet. */
#include "cpu/tiers.h"

#if defined(__x86_64__)
void bt_cpu_kernels_avx512vnni(bt_cpu_kernels *k)
{
    (void)k;
}
#endif
