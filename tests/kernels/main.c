/* tests/kernels/main.c - checks every slot of one ISA: kernels_check [--isa NAME] [--seed N]
 * [--bench]. Without --isa, all ISAs of this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness.h"

/* The table is the ISA's name and one pointer per slot, nothing else. */
enum { N_SLOTS = 0
#define X(name) + 1
    KERNEL_SLOTS(X)
#undef X
};
_Static_assert(sizeof(bt_cpu_kernels)
                   == offsetof(bt_cpu_kernels, pack_bytes) + N_SLOTS * sizeof(void (*)(void)),
               "a slot of bt_cpu_kernels is missing in KERNEL_SLOTS");

static void check_tier(const bt_cpu_kernels *k, uint64_t seed)
{
    printf("isa %s, seed %llu\n", bt_cpu_isa_name(k->isa), (unsigned long long)seed);
#define X(name)                                     \
    check_begin(#name);                             \
    seed_set(seed);                                 \
    check_##name(k);
    KERNEL_SLOTS(X)
#undef X
}

static int usage(void)
{
    fprintf(stderr, "usage: kernels_check [--isa NAME] [--seed N] [--bench]\n");
    return 2;
}

int main(int argc, char **argv)
{
    bt_isa   only = BT_ISA_COUNT;
    uint64_t seed = (uint64_t)time(NULL);
    bool     bench = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
        } else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc) {
            if (!bt_cpu_isa_parse(argv[++i], &only)) {
                return usage();
            }
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 10);
        } else {
            return usage();
        }
    }
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        const bt_cpu_kernels *k = bt_cpu_kernels_get((bt_isa)isa);
        if (only != BT_ISA_COUNT && (int)only != isa) {
            continue;
        }
        if (!k) {
            if (only != BT_ISA_COUNT) {
                printf("this machine has no %s: nothing checked\n", bt_cpu_isa_name(only));
            }
        } else if (bench) {
            bench_all(k);
        } else {
            check_tier(k, seed);
        }
    }
    printf("%d failures\n", check_failures());
    return check_failures() != 0;
}
