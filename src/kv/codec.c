/* kv/codec.c - see codec.h. */
#include "kv/codec.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "kv/codec_fast.h"

/* ---- names ---- */

static bool find(const char *const *names, size_t n, const char *name, size_t *ret_index)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret_index = i;
            return true;
        }
    }
    return false;
}

#define X(codec, number, text) [number] = text,
static const char *const codecs[BT_KV_CODEC_COUNT] = { BT_KV_CODEC_LIST(X) };
#undef X

bool bt_kv_codec_parse(const char *name, bt_kv_codec *ret_codec)
{
    size_t i = 0;
    const bool found = find(codecs, BT_LEN(codecs), name, &i);
    *ret_codec = found ? (bt_kv_codec)i : *ret_codec;
    return found;
}

/* Lower case, as options are written. */
static void type_name(bt_type type, char *to, size_t size)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);
    (void)snprintf(to, size, "%s", info ? info->name : "unknown");
    for (char *c = to; *c; c++) {
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    }
}

char *bt_kv_codec_form_name(const bt_kv_form *f, char *to, size_t size)
{
    char k[16], v[16];
    type_name(f->type_k, k, sizeof k);
    type_name(f->type_v, v, sizeof v);
    (void)snprintf(to, size, "%s%s%s", k, f->type_k == f->type_v ? "" : "/",
           f->type_k == f->type_v ? "" : v);
    return to;
}

/* ---- sizes ---- */

bt_kv_form bt_kv_codec_stored(const bt_kv_layout *layout)
{
    return (bt_kv_form){ .layout = layout, .codec = BT_KV_CODEC_STORED, .type_k = layout->type_k,
                           .type_v = layout->type_v };
}

static bt_status check_dim(const char *what, uint32_t layer, bt_type type, uint32_t dim,
                           bt_error *err)
{
    const bt_type_info *info = bt_quant_type_find((uint32_t)type);
    uint64_t bytes;
    if (!bt_quant_type_row_bytes(info, dim, &bytes)) {
        return bt_fail(err, BT_E_UNSUPPORTED, "%s rows of layer %u have %u values, which %s cannot "
                       "hold: its blocks have %u", what, layer, dim, info->name,
                       info->block_elems);
    }
    return BT_OK;
}

bt_status bt_kv_codec_form_init(bt_kv_form *ret_form, const bt_kv_layout *layout,
                                     uint32_t codec, bt_error *err)
{
    if (codec >= BT_KV_CODEC_COUNT) {
        return bt_fail(err, BT_E_UNSUPPORTED, "rows in form %u, but only 0 to %d are known", codec,
                       (int)BT_KV_CODEC_COUNT - 1);
    }
    const bt_type type = codec == BT_KV_CODEC_F16 ? BT_TYPE_F16 : BT_TYPE_Q8_0;
    bt_kv_form f = bt_kv_codec_stored(layout);
    if (codec != BT_KV_CODEC_STORED && (layout->type_k != type || layout->type_v != type)) {
        f.codec = (bt_kv_codec)codec;
        f.type_k = f.type_v = type;
    }
    for (uint32_t i = 0; f.codec != BT_KV_CODEC_STORED && i < layout->n_layers; i++) {
        BT_TRY(check_dim("K", i, f.type_k, layout->layers[i].k_dim, err));
        BT_TRY(check_dim("V", i, f.type_v, layout->layers[i].v_dim, err));
    }
    *ret_form = f;
    return BT_OK;
}

static uint32_t row_bytes(bt_type type, uint32_t dim)
{
    uint64_t bytes = 0;
    const bool fits = bt_quant_type_row_bytes(bt_quant_type_find((uint32_t)type), dim, &bytes);
    BT_ASSERT(fits && bytes <= UINT32_MAX);        /* looked at by init */
    return (uint32_t)bytes;
}

uint32_t bt_kv_codec_k_bytes(const bt_kv_form *f, uint32_t layer)
{
    const bt_kv_layer *y = &f->layout->layers[layer];
    return f->codec != BT_KV_CODEC_STORED ? row_bytes(f->type_k, y->k_dim)
           : y->k_dim > 0             ? (uint32_t)y->k_row_bytes
                                      : 0;
}

uint32_t bt_kv_codec_v_bytes(const bt_kv_form *f, uint32_t layer)
{
    const bt_kv_layer *y = &f->layout->layers[layer];
    return f->codec != BT_KV_CODEC_STORED ? row_bytes(f->type_v, y->v_dim)
           : y->v_dim > 0             ? (uint32_t)y->v_row_bytes
                                      : 0;
}

size_t bt_kv_codec_layer_bytes(const bt_kv_form *f, uint32_t layer)
{
    return (size_t)bt_kv_codec_k_bytes(f, layer) + bt_kv_codec_v_bytes(f, layer);
}

uint64_t bt_kv_codec_token_bytes(const bt_kv_form *f)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < f->layout->n_layers; i++) {
        sum += bt_kv_codec_layer_bytes(f, i);
    }
    return sum;
}

size_t bt_kv_codec_layer_bytes_max(const bt_kv_form *f)
{
    size_t most = 0;
    for (uint32_t i = 0; i < f->layout->n_layers; i++) {
        const size_t n = bt_kv_codec_layer_bytes(f, i);
        most = n > most ? n : most;
    }
    return most;
}

/* ---- conversion ---- */

bt_status bt_kv_codec_scratch_open(bt_kv_scratch *ret_scratch, const bt_kv_form *f, bt_error *err)
{
    uint64_t k = 1, v = 1;
    uint32_t dim = 1;
    for (uint32_t i = 0; i < f->layout->n_layers; i++) {
        const bt_kv_layer *y = &f->layout->layers[i];
        k = y->k_row_bytes > k ? y->k_row_bytes : k;
        v = y->v_row_bytes > v ? y->v_row_bytes : v;
        dim = y->k_dim > dim ? y->k_dim : dim;
        dim = y->v_dim > dim ? y->v_dim : dim;
    }
    bt_kv_scratch scratch = {
        .k = bt_alloc(BT_MEM_kv, k * BT_KV_ROWS_AT_ONCE),
        .v = bt_alloc(BT_MEM_kv, v * BT_KV_ROWS_AT_ONCE),
        .values = bt_alloc_zero(BT_MEM_kv, dim, sizeof *scratch.values),
    };
    if (!scratch.k || !scratch.v || !scratch.values) {
        bt_kv_codec_scratch_close(&scratch);
        return bt_fail(err, BT_E_NOMEM, "out of memory: scratch to convert rows");
    }
    *ret_scratch = scratch;
    return BT_OK;
}

void bt_kv_codec_scratch_close(bt_kv_scratch *scratch)
{
    bt_free(scratch->k);
    bt_free(scratch->v);
    bt_free(scratch->values);
    *scratch = (bt_kv_scratch){ 0 };
}

/* n rows from one type to the other: through f32, which holds values of both exactly, or in one
 * step with the same result. */
static void convert(bt_type from_type, const uint8_t *from, bt_type to_type, uint8_t *to,
                    uint32_t dim,
                 uint32_t n, float *values)
{
    if (dim == 0) {
        return;
    }
    if (from_type == BT_TYPE_F16 && to_type == BT_TYPE_Q8_0) {
        bt_kv_codec_f16_to_q8_0(from, to, (size_t)n * dim);
        return;
    }
    if (from_type == BT_TYPE_Q8_0 && to_type == BT_TYPE_F16) {
        bt_kv_codec_q8_0_to_f16(from, to, (size_t)n * dim);
        return;
    }
    const uint32_t from_bytes = row_bytes(from_type, dim), to_bytes = row_bytes(to_type, dim);
    for (uint32_t i = 0; i < n; i++) {
        const bt_status decoded = bt_quant_type_decode(from_type, from, values, dim);
        const bt_status encoded = bt_quant_type_encode(to_type, values, to, dim);
        BT_ASSERT(decoded == BT_OK && encoded == BT_OK);
        from += from_bytes;
        to += to_bytes;
    }
}

void bt_kv_codec_encode(const bt_kv_form *f, const bt_kv_scratch *scratch, uint32_t layer,
                             uint32_t n, uint8_t *to_k, uint8_t *to_v)
{
    const bt_kv_layout *l = f->layout;
    const bt_kv_layer *y = &l->layers[layer];
    BT_ASSERT(n <= BT_KV_ROWS_AT_ONCE);
    convert(l->type_k, scratch->k, f->type_k, to_k, y->k_dim, n, scratch->values);
    convert(l->type_v, scratch->v, f->type_v, to_v, y->v_dim, n, scratch->values);
}

void bt_kv_codec_decode(const bt_kv_form *f, const bt_kv_scratch *scratch, uint32_t layer,
                             uint32_t n, const uint8_t *from_k, const uint8_t *from_v)
{
    const bt_kv_layout *l = f->layout;
    const bt_kv_layer *y = &l->layers[layer];
    BT_ASSERT(n <= BT_KV_ROWS_AT_ONCE);
    convert(f->type_k, from_k, l->type_k, scratch->k, y->k_dim, n, scratch->values);
    convert(f->type_v, from_v, l->type_v, scratch->v, y->v_dim, n, scratch->values);
}
