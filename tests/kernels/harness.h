/* tests/kernels/harness.h - what all kernel checks share: seeded numbers, guarded memory, findings.
 *
 * A guarded block ends where an unreadable page begins, so that a read or write one byte too far
 * dies at once; the bytes in front of it are painted and looked at again when it is given back.
 */
#ifndef BT_TESTS_KERNELS_HARNESS_H
#define BT_TESTS_KERNELS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels.h"

/* Every slot of bt_cpu_kernels. A slot that is not here breaks the build of main.c, one without a
 * check_NAME function breaks the linking. */
#define KERNEL_SLOTS(X)                                                                        \
    X(pack_bytes) X(pack) X(layout_of) X(act_row_bytes) X(act_form) X(act_convert) X(linear)    \
    X(decode_row) X(rmsnorm) X(add) X(scale) X(glu) X(softcap) X(rope) X(kv_store) X(attention) \
    X(short_conv) X(delta_scan) X(route) X(combine)

/* Checks of the ISA `k`; findings go to check_failed(). */
#define X(name) void check_##name(const bt_cpu_kernels *k);
KERNEL_SLOTS(X)
#undef X

/* A part of check_delta_scan: whole sequences, and the form that takes chunks of tokens at once. */
void check_delta_chunks(const bt_cpu_kernels *k);

/* Prints speeds of all slots. */
void bench_all(const bt_cpu_kernels *k);

/* Counts and prints (the first few of each slot). */
void check_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
int  check_failures(void);
void check_begin(const char *slot);

/* ---- Numbers ---- */
void     seed_set(uint64_t seed);
uint64_t random_u64(void);
uint32_t random_below(uint32_t n);
float    random_unit(void);         /* [-1, 1) */
float    random_normal(void);       /* about; sum of uniforms */

typedef enum {
    PATTERN_NORMAL, PATTERN_ZERO, PATTERN_ALTERNATING, PATTERN_SPIKE, PATTERN_LARGE, PATTERN_TINY,
    PATTERN_COUNT
} pattern;
void fill_pattern(pattern kind, float *to, size_t n);

/* ---- Memory ---- */
typedef struct {
    void  *data;            /* `size` bytes; as aligned as the size is, up to a page */
    size_t size;
    void  *map;
    size_t map_size;
} guarded;
guarded guarded_alloc(size_t size);
void    guarded_free(guarded *g);    /* reports painted bytes that changed */

/* ---- Comparing ---- */
/* |got - want| <= bound, elementwise; NaN equals NaN. */
bool within(float got, double want, double bound);

static inline double gamma_of(double n)
{
    const double u = 1.0 / (1 << 24);
    return n * u / (1.0 - n * u);
}

#endif
