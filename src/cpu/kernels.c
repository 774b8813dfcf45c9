/* cpu/kernels.c - the tables of all ISAs, and weight matrices. */
#include "cpu/kernels.h"

#include <pthread.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/memory.h"
#include "cpu/tables.h"

static bt_cpu_kernels tables[BT_ISA_COUNT];     /* written once, under `once` */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    bt_cpu_kernels k;

    bt_cpu_kernels_ref(&k);
    bt_cpu_kernels_ref_recurrent(&k);
    bt_cpu_kernels_ref_experts(&k);
    tables[BT_ISA_REF] = k;
#if defined(__x86_64__)
    bt_cpu_kernels_avx2(&k);
    k.isa = BT_ISA_AVX2;
    tables[BT_ISA_AVX2] = k;
    bt_cpu_kernels_avx512(&k);
    k.isa = BT_ISA_AVX512;
    tables[BT_ISA_AVX512] = k;
    bt_cpu_kernels_avx512vnni(&k);
    k.isa = BT_ISA_AVX512VNNI;
    tables[BT_ISA_AVX512VNNI] = k;
#elif defined(__aarch64__)
    /* These ISAs have no kernels of their own yet: the reference serves them. */
    for (int isa = BT_ISA_NEON; isa <= BT_ISA_I8MM; isa++) {
        k.isa = (bt_isa)isa;
        tables[isa] = k;
    }
#endif
}

const bt_cpu_kernels *bt_cpu_kernels_get(bt_isa isa)
{
    if ((unsigned)isa >= BT_ISA_COUNT || !bt_cpu_isa_supported(isa)) {
        return NULL;
    }
    (void)pthread_once(&once, fill_tables);
    return &tables[isa];
}

size_t bt_cpu_attention_scratch(uint32_t n_heads, uint32_t head_dim, uint32_t page_tokens)
{
    /* Keys and values of a page as f32, and per line its scores and running sums. Vectors are at
     * most 16 wide, so both extents are rounded up to that. */
    const size_t dim = ((size_t)head_dim + 15) / 16 * 16;
    const size_t tokens = ((size_t)page_tokens + 15) / 16 * 16;

    (void)n_heads;
    return 2 * dim * tokens + BT_ATTENTION_LINES_MAX * (tokens + 16) + 4 * dim;
}

static bt_status check_shape(bt_type type, uint32_t n_out, uint32_t n_in, uint64_t *ret_row_bytes,
                             bt_error *err)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);

    if (!info) {
        return bt_fail(err, BT_E_UNSUPPORTED, "tensor type %u is not known", (unsigned)type);
    }
    if (!info->can_decode) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "tensors of type %s cannot be read by this build; use a file without them",
                       info->name);
    }
    if (n_in == 0 || n_out == 0 || !bt_quant_type_row_bytes(info, n_in, ret_row_bytes)) {
        return bt_fail(err, BT_E_BADFILE,
                       "a matrix of %u x %u values cannot be of type %s, whose blocks have %u",
                       n_out, n_in, info->name, info->block_elems);
    }
    return BT_OK;
}

bt_status bt_cpu_matrix_init(bt_cpu_matrix *m, const bt_cpu_kernels *k, bt_type type,
                             uint32_t n_out, uint32_t n_in, const void *rows, bool repack,
                             bt_error *err)
{
    uint64_t row_bytes = 0;

    BT_TRY(check_shape(type, n_out, n_in, &row_bytes, err));
    const size_t packed_bytes = repack ? k->pack_bytes(type, n_out, n_in) : 0;
    bt_cpu_matrix made = {
        .type = type,
        .n_in = n_in,
        .n_out = n_out,
        .layout = k->layout_of(type, packed_bytes != 0),
        .data = rows,
        .size_bytes = (size_t)row_bytes * n_out,
    };
    if (packed_bytes != 0) {
        void *packed = bt_alloc_aligned(BT_MEM_weights, 64, packed_bytes);
        if (!packed) {
            return bt_fail_nomem(err, packed_bytes, "repacked weights");
        }
        k->pack(type, n_out, n_in, rows, packed, 0, n_out);
        made.data = packed;
        made.size_bytes = packed_bytes;
        made.owned = true;
    }
    *m = made;
    return BT_OK;
}

void bt_cpu_matrix_done(bt_cpu_matrix *m)
{
    if (m->owned) {
        /* Owned data came from bt_alloc_aligned; the pointer is const for readers only. */
        union { const void *read; void *own; } data = { m->data };
        bt_free_aligned(data.own);
    }
    *m = (bt_cpu_matrix){ 0 };
}
