/* Tensor records: the second part of the header. */
#include "gguf/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/memory.h"

/* n rounded up to a multiple of a power of two; false if that does not fit. */
static bool round_up(uint64_t n, uint32_t alignment, uint64_t *ret)
{
    const uint64_t mask = alignment - 1;
    if (n > UINT64_MAX - mask) {
        return false;
    }
    *ret = (n + mask) & ~mask;
    return true;
}

static bt_status bad_tensor(const bt_gguf *file, const bt_gguf_tensor *t, const char *problem,
                            uint64_t number, bt_error *err)
{
    const bt_gguf_string name = { .data = t->name, .size = strlen(t->name) };
    char shown[BT_GGUF_SHOWN_MAX];
    return bt_fail(err, BT_E_BADFILE, "'%s': tensor '%s': %s (%" PRIu64 ")", file->name,
                   bt_gguf_show(name, shown), problem, number);
}

static bt_status shape_read(const bt_gguf *file, bt_reader *r, bt_gguf_tensor *t, bt_error *err)
{
    t->n_dims = bt_reader_u32(r);
    if (t->n_dims > 4) {
        return bad_tensor(file, t, "it has more than 4 dimensions", t->n_dims, err);
    }
    t->n_elems = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = d < t->n_dims ? bt_reader_u64(r) : 1;
        if (t->ne[d] > INT64_MAX) {
            return bad_tensor(file, t, "a dimension is too large or negative", t->ne[d], err);
        }
        if (t->ne[d] != 0 && t->n_elems > (uint64_t)INT64_MAX / t->ne[d]) {
            return bad_tensor(file, t, "it has more values than can be counted; dimension",
                              t->ne[d], err);
        }
        t->n_elems *= t->ne[d];
    }
    return BT_OK;
}

static bt_status size_find(const bt_gguf *file, bt_gguf_tensor *t, uint32_t type, bt_error *err)
{
    t->type = bt_quant_type_find(type);
    if (!t->type) {
        return bad_tensor(file, t, "its type is not known or was retired", type, err);
    }
    if (t->ne[0] % t->type->block_elems != 0) {
        char problem[96];
        snprintf(problem, sizeof problem, "its rows are not whole %s blocks of %u values",
                 t->type->name, t->type->block_elems);
        return bad_tensor(file, t, problem, t->ne[0], err);
    }
    /* The whole tensor as one row: rows are packed without padding. */
    if (!bt_quant_type_row_bytes(t->type, t->n_elems, &t->size_bytes) ||
        t->size_bytes > SIZE_MAX / 2) {
        return bad_tensor(file, t, "it is larger than this machine can address; values", t->n_elems,
                          err);
    }
    return BT_OK;
}

static bt_status info_read(const bt_gguf *file, bt_reader *r, bt_gguf_tensor *t, bt_error *err)
{
    bt_gguf_string name;
    BT_TRY(bt_gguf_name_read(file, r, "a tensor name", BT_GGUF_NAME_BYTES_MAX, &name, err));
    memcpy(t->name, name.data, name.size);
    BT_TRY(shape_read(file, r, t, err));
    const uint32_t type = bt_reader_u32(r);
    t->offset = bt_reader_u64(r);
    if (r->failed) {
        return bad_tensor(file, t, "the file ends inside its record, at byte", r->at, err);
    }
    return size_find(file, t, type, err);
}

/* Payloads lie one after the other in the order of the records, each rounded up to the alignment.
 * That one rule also keeps them apart and aligned. */
static bt_status place(const bt_gguf *file, bt_reader *r, uint32_t n, bt_error *err)
{
    uint64_t start = 0, next = 0;
    if (n > 0 && (!round_up(r->at, file->alignment, &start) || start > file->map.size)) {
        return bt_fail(err, BT_E_BADFILE, "'%s' ends at byte %zu, before the tensor data; it is "
                       "damaged or not fully copied", file->name, file->map.size);
    }
    const uint64_t region = file->map.size - start;
    for (uint32_t i = 0; i < n; i++) {
        bt_gguf_tensor *t = &file->tensors[i];
        if (t->offset != next) {
            return bad_tensor(file, t, "its data does not follow that of the tensor before; offset",
                              t->offset, err);
        }
        if (t->offset > region || t->size_bytes > region - t->offset) {
            return bad_tensor(file, t, "its data goes past the end of the file, which is damaged "
                              "or not fully copied; bytes", t->size_bytes, err);
        }
        t->data = file->map.data + start + t->offset;
        /* In range: offset + size is within the file. */
        if (!round_up(t->offset + t->size_bytes, file->alignment, &next)) {
            return bad_tensor(file, t, "its end cannot be aligned; offset", t->offset, err);
        }
    }
    return BT_OK;
}

bt_status bt_gguf_infos_read(bt_gguf *file, bt_reader *r, uint32_t n, bt_error *err)
{
    file->tensors = bt_alloc_zero(BT_MEM_gguf, n, sizeof *file->tensors);
    if (!file->tensors) {
        return bt_fail_nomem(err, n * sizeof *file->tensors, "the tensors of a model file");
    }
    for (uint32_t i = 0; i < n; i++) {
        BT_TRY(info_read(file, r, &file->tensors[i], err));
    }
    BT_TRY(place(file, r, n, err));
    file->n_tensors = n;
    return BT_OK;
}

static bt_gguf_string name_of(const void *table, uint32_t i)
{
    const char *name = ((const bt_gguf_tensor *)table)[i].name;
    return (bt_gguf_string){ .data = name, .size = strlen(name) };
}

bt_status bt_gguf_names_index(bt_gguf *file, bt_error *err)
{
    if (bt_gguf_index_init(&file->names, file->n_tensors) != BT_OK) {
        return bt_fail_nomem(err, file->n_tensors * sizeof *file->names.slots,
                             "the names of tensors");
    }
    for (uint32_t i = 0; i < file->n_tensors; i++) {
        if (!bt_gguf_index_add(&file->names, name_of, file->tensors, i)) {
            return bad_tensor(file, &file->tensors[i], "the name is there twice; record", i, err);
        }
    }
    return BT_OK;
}

const bt_gguf_tensor *bt_gguf_tensor_find(const bt_gguf *file, const char *name)
{
    const bt_gguf_string text = { .data = name, .size = strlen(name) };
    const uint32_t i = bt_gguf_index_find(&file->names, name_of, file->tensors, text);
    return i == UINT32_MAX ? NULL : &file->tensors[i];
}
