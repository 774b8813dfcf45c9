/* tests/kernels/bench.c - speeds of one core, best of several, next to its ceilings. Sizes are
 * those of a model of 135 million weights (576 wide, 1536 inside, 9 heads of 64 on 3). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "harness.h"

enum { REPEATS = 7, ROWS = 256, BIG_BYTES = 96 << 20 };

static const bt_cpu_kernels *kernels;
static double                read_gbs, int8_gops;

/* Best seconds of one call of the expression. */
#define BEST(call)                                                   \
    __extension__({                                                  \
        double bench_best = 1e30;                                    \
        for (int bench_i = 0; bench_i < REPEATS; bench_i++) {        \
            const double bench_start = seconds_now();                \
            call;                                                    \
            const double bench_took = seconds_now() - bench_start;   \
            bench_best = bench_took < bench_best ? bench_took : bench_best; \
        }                                                            \
        bench_best;                                                  \
    })

static float *numbers(size_t n)
{
    float *x = aligned_alloc(64, (sizeof(float) * n + 63) / 64 * 64);

    if (!x) {
        abort();
    }
    fill_pattern(PATTERN_NORMAL, x, n);
    return x;
}

/* Weights of n_out outputs, all made of one random row. */
static uint8_t *weights(bt_type type, uint32_t n_in, uint32_t n_out, uint64_t *ret_row_bytes)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);

    if (!bt_quant_type_row_bytes(info, n_in, ret_row_bytes)) {
        abort();
    }
    uint8_t *rows = malloc(*ret_row_bytes * n_out);
    float   *values = numbers(n_in);
    if (bt_quant_type_encode(type, values, rows, n_in) != BT_OK) {
        for (uint64_t i = 0; i < *ret_row_bytes; i++) {
            rows[i] = (uint8_t)(16 + random_below(40));     /* f16 fields are small numbers */
        }
    }
    free(values);
    for (uint32_t o = 1; o < n_out; o++) {
        memcpy(rows + o * *ret_row_bytes, rows, *ret_row_bytes);
    }
    return rows;
}

/* Many rows from the second level of cache, one row from memory. */
static void bench_type(bt_type type)
{
    const char *name = bt_quant_type_find((uint32_t)type)->name;
    const uint32_t n_in = 768, n_out = 1536;
    uint64_t row_bytes = 0;
    uint8_t *rows = weights(type, n_in, n_out, &row_bytes);
    bt_cpu_matrix m;

    if (bt_cpu_matrix_init(&m, kernels, type, n_out, n_in, rows, true, NULL) != BT_OK) {
        abort();
    }
    const size_t stride = (kernels->act_row_bytes(&m) + 63) / 64 * 64;
    uint8_t     *acts = aligned_alloc(64, stride * ROWS);
    float       *x = numbers((size_t)ROWS * n_in), *y = numbers((size_t)ROWS * n_out);
    const double packing = BEST(kernels->pack(type, n_out, n_in, rows, (void *)(uintptr_t)m.data, 0,
                                              m.owned ? n_out : 0));
    for (uint32_t r = 0; r < ROWS; r++) {
        kernels->act_convert(&m, x + r * n_in, acts + r * stride);
    }
    const double many = BEST(kernels->linear(&m, acts, stride, ROWS, 0, n_out, NULL, false, y,
                                             n_out));
    const double gops = 2e-9 * ROWS * n_in * n_out / many;
    printf("linear %-7s many rows %6.1f GOPS", name, gops);
    if (int8_gops > 0.0 && bt_quant_type_find((uint32_t)type)->block_elems > 1) {
        printf(" (%4.1f %%)", 100.0 * gops / int8_gops);
    }
    const size_t copies = BIG_BYTES / m.size_bytes + 1;
    uint8_t     *big = aligned_alloc(64, copies * m.size_bytes / 64 * 64 + 64);
    for (size_t i = 0; i < copies; i++) {
        memcpy(big + i * m.size_bytes, m.data, m.size_bytes);
    }
    bt_cpu_matrix one = m;
    const double seconds = BEST(for (size_t i = 0; i < copies; i++) {
        one.data = big + i * m.size_bytes;
        kernels->linear(&one, acts, stride, 1, 0, n_out, NULL, false, y, n_out);
    });
    const double gbs = 1e-9 * (double)copies * (double)m.size_bytes / seconds;
    printf("  one row %5.1f GB/s (%3.0f %% of memory)  packing %.2f ns/weight\n", gbs,
           100.0 * gbs / read_gbs, 1e9 * packing / n_in / n_out);
    bt_cpu_matrix_done(&m);
    free(rows);
    free(acts);
    free(x);
    free(y);
    free(big);
}

static void bench_rows(void)
{
    const uint32_t n = 1536;
    float *x = numbers(n), *y = numbers(n), *w = numbers(n), *acts = numbers(2 * n);
    bt_cpu_matrix m = { .type = BT_TYPE_Q4_0, .n_in = n, .n_out = 16 };

    m.layout = kernels->layout_of(m.type, kernels->pack_bytes(m.type, 16, n) != 0);
#define ROW(name, call)                                                                        \
    printf("%-9s %6.3f ns/value\n", name,                                                      \
           1e9 / n / 100.0 * BEST(for (int i = 0; i < 100; i++) { call; }))
    ROW("convert", kernels->act_convert(&m, x, acts));
    ROW("rmsnorm", kernels->rmsnorm(y, x, w, n, 1e-5f));
    ROW("add", kernels->add(y, x, n));
    ROW("scale", kernels->scale(y, x, n, 1.01f));
    ROW("silu", kernels->glu(y, x, w, n, BT_ACT_SILU));
    ROW("gelu", kernels->glu(y, x, w, n, BT_ACT_GELU_TANH));
    ROW("softcap", kernels->softcap(y, n, 30.0f));
    ROW("rope norm", kernels->rope(y, x, w, 64, BT_ROPE_NORM));
    ROW("rope neox", kernels->rope(y, x, w, 64, BT_ROPE_NEOX));
    ROW("store f16", kernels->kv_store(BT_TYPE_F16, x, acts, n));
    ROW("store q8", kernels->kv_store(BT_TYPE_Q8_0, x, acts, n));
#undef ROW
    free(x);
    free(y);
    free(w);
    free(acts);
}

static void bench_attention(uint32_t n_heads, uint32_t n_kv_heads, uint32_t dim, uint32_t n_keys)
{
    const uint32_t tokens = 32, rows = 64;
    const size_t   row_bytes = 2 * (size_t)n_kv_heads * dim, page_bytes = 2 * tokens * row_bytes;
    uint8_t       *pool = malloc(page_bytes * n_keys / tokens);
    uint32_t      *pages = malloc(sizeof(uint32_t) * n_keys / tokens);
    const size_t   scratch = bt_cpu_attention_scratch(n_heads, dim, tokens);
    bt_cpu_attention a = {
        .q = numbers((size_t)rows * n_heads * dim), .y = numbers((size_t)rows * n_heads * dim),
        .n_rows = rows, .q_stride = n_heads * dim, .y_stride = n_heads * dim, .n_heads = n_heads,
        .n_kv_heads = n_kv_heads, .head_dim = dim, .head_dim_v = dim, .position = n_keys - rows,
        .scale = 1.0f / sqrtf(dim), .type_k = BT_TYPE_F16, .type_v = BT_TYPE_F16, .kv_base = pool,
        .page_bytes = page_bytes, .page_tokens = tokens, .pages = pages,
        .v_offset = tokens * row_bytes, .k_row_bytes = row_bytes, .v_row_bytes = row_bytes,
        .head_last = n_heads, .scratch = numbers(scratch),
    };

    float *some = numbers((size_t)n_kv_heads * dim * 2 * n_keys);
    kernels->kv_store(BT_TYPE_F16, some, pool, n_kv_heads * dim * 2 * n_keys);
    free(some);
    for (uint32_t i = 0; i < n_keys / tokens; i++) {
        pages[i] = i;
    }
    const double many = BEST(kernels->attention(&a));
    a.n_rows = 1;
    a.position = n_keys - 1;
    const double one = BEST(kernels->attention(&a));
    printf("attention %2u/%u heads of %3u, %5u keys: %u rows %6.1f GFLOPS, one row %5.1f GB/s\n",
           n_heads, n_kv_heads, dim, n_keys, rows,
           4e-9 * rows * (n_keys - rows / 2.0) * n_heads * dim / many,
           2e-9 * (double)row_bytes * n_keys / one);
    free(pool);
    free(pages);
    free((void *)(uintptr_t)a.q);
    free(a.y);
    free(a.scratch);
}

void bench_all(const bt_cpu_kernels *k)
{
    kernels = k;
    seed_set(1);
    read_gbs = ceiling_read_gbs();
    int8_gops = ceiling_int8_gops(k->isa);
    printf("isa %s: memory reads %.1f GB/s", bt_cpu_isa_name(k->isa), read_gbs);
    if (int8_gops > 0.0) {
        printf(", byte dot products %.0f GOPS", int8_gops);
    }
    printf("; one core\n");
    for (uint32_t id = 0; id < BT_TYPE_ID_MAX; id++) {
        const bt_type_info *type = bt_quant_type_find(id);
        if (type && type->can_decode && k->pack_bytes((bt_type)id, 16, 256)) {
            bench_type((bt_type)id);
        }
    }
    bench_rows();
    if (k->isa != BT_ISA_REF) {
        bench_attention(9, 3, 64, 512);
        bench_attention(9, 3, 64, 4096);
        bench_attention(16, 8, 128, 4096);
        bench_attention(4, 1, 256, 4096);
    }
}
