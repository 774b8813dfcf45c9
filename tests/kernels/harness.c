/* tests/kernels/harness.c - see harness.h. */
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int         failures, failures_here;
static const char *slot_now = "";
static uint64_t    state;

void check_begin(const char *slot)
{
    slot_now = slot;
    failures_here = 0;
}

void check_failed(const char *format, ...)
{
    failures++;
    if (failures_here++ < 5) {
        va_list list;
        va_start(list, format);
        printf("  FAILED %s: ", slot_now);
        vprintf(format, list);
        printf("\n");
        va_end(list);
    }
}

int check_failures(void)
{
    return failures;
}

void seed_set(uint64_t seed)
{
    state = seed;
}

/* splitmix64 (Steele, Lea and Flood 2014). */
uint64_t random_u64(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t random_below(uint32_t n)
{
    return (uint32_t)(random_u64() % n);
}

float random_unit(void)
{
    return (float)(int64_t)(random_u64() >> 40) * 0x1p-23f - 1.0f;
}

float random_normal(void)
{
    float sum = 0.0f;

    for (int i = 0; i < 6; i++) {
        sum += random_unit();
    }
    return sum * 0.7071f;
}

void fill_pattern(pattern kind, float *to, size_t n)
{
    const size_t spike = n ? random_u64() % n : 0;

    for (size_t i = 0; i < n; i++) {
        switch (kind) {
        case PATTERN_NORMAL:
            to[i] = random_normal();
            break;
        case PATTERN_ZERO:
            to[i] = 0.0f;
            break;
        case PATTERN_ALTERNATING:
            to[i] = i % 2 ? -3.5f : 3.5f;
            break;
        case PATTERN_SPIKE:
            to[i] = i == spike ? -1000.0f : 0.01f * random_unit();
            break;
        case PATTERN_LARGE:
            to[i] = -1e6f;
            break;
        default:
            to[i] = 1e-35f * random_unit();
            break;
        }
    }
}

enum { PAINT = 0xa5, PAINTED_FRONT = 256 };

guarded guarded_alloc(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (size + PAINTED_FRONT + page - 1) / page * page;
    guarded      g = { .size = size, .map_size = body + page };

    g.map = mmap(NULL, g.map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect((char *)g.map + body, page, PROT_NONE) != 0) {
        perror("guarded_alloc");
        exit(2);
    }
    memset(g.map, PAINT, body);
    g.data = (char *)g.map + body - size;
    return g;
}

void guarded_free(guarded *g)
{
    const uint8_t *front = g->map, *data = g->data;

    for (const uint8_t *p = front; p < data; p++) {
        if (*p != PAINT) {
            check_failed("wrote %td bytes before a block", data - p);
            break;
        }
    }
    munmap(g->map, g->map_size);
    *g = (guarded){ 0 };
}

bool within(float got, double want, double bound)
{
    if (isnan(want)) {
        return isnan(got);
    }
    return fabs((double)got - want) <= bound;
}
