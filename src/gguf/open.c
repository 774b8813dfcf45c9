/* From a path or bytes to an open file, and back. */
#include "gguf/file.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"

/* What is left to do when the first part has been read. Takes it. */
static bt_status finish(bt_gguf *file, bt_gguf **ret_file, bt_error *err)
{
    bt_status status = bt_gguf_parts_join(file, err);
    if (status == BT_OK) {
        status = bt_gguf_names_index(file, err);
    }
    if (status != BT_OK) {
        bt_gguf_close(file);
        return status;
    }
    *ret_file = file;
    return BT_OK;
}

bt_status bt_gguf_open(const char *path, bt_gguf **ret_file, bt_error *err)
{
    BT_ASSERT(path && ret_file);
    bt_gguf *file = NULL;
    BT_TRY(bt_gguf_part_open(path, &file, err));
    return finish(file, ret_file, err);
}

bt_status bt_gguf_open_memory(const void *bytes, size_t size, const char *name, bt_gguf **ret_file,
                              bt_error *err)
{
    BT_ASSERT((bytes || size == 0) && name && ret_file);
    bt_gguf *file = NULL;
    BT_TRY(bt_gguf_part_read(name, (bt_gguf_map){ .data = bytes, .size = size }, &file, err));
    return finish(file, ret_file, err);
}

const char *bt_gguf_path(const bt_gguf *file)
{
    return file->path;
}

uint64_t bt_gguf_size_bytes(const bt_gguf *file)
{
    uint64_t size = file->map.size;
    for (uint32_t i = 0; i < file->n_others; i++) {
        size += file->others[i]->map.size;
    }
    return size;
}

uint32_t bt_gguf_version(const bt_gguf *file)
{
    return file->version;
}

uint32_t bt_gguf_alignment(const bt_gguf *file)
{
    return file->alignment;
}

uint32_t bt_gguf_part_count(const bt_gguf *file)
{
    return file->n_others + 1;
}

uint32_t bt_gguf_pair_count(const bt_gguf *file)
{
    return file->n_pairs;
}

const bt_gguf_pair *bt_gguf_pair_at(const bt_gguf *file, uint32_t index)
{
    BT_ASSERT(index < file->n_pairs);
    return &file->pairs[index];
}

uint32_t bt_gguf_tensor_count(const bt_gguf *file)
{
    return file->n_tensors;
}

const bt_gguf_tensor *bt_gguf_tensor_at(const bt_gguf *file, uint32_t index)
{
    BT_ASSERT(index < file->n_tensors);
    return &file->tensors[index];
}
