/* One file without its other parts: from a mapping to its header and back. */
#include <string.h>

#include "base/memory.h"
#include "gguf/file.h"

/* Takes the map: it is given back with the file, or here on failure. */
bt_status bt_gguf_part_read(const char *path, bt_gguf_map map, bt_gguf **ret_file, bt_error *err)
{
    bt_gguf *file = bt_alloc_zero(BT_MEM_gguf, 1, sizeof *file);
    if (!file) {
        bt_gguf_map_done(&map);
        return bt_fail_nomem(err, sizeof *file, "an open model file");
    }
    file->map = map;
    file->path = bt_strdup(BT_MEM_gguf, path);
    if (!file->path) {
        bt_gguf_close(file);
        return bt_fail_nomem(err, strlen(path) + 1, "the path of a model file");
    }
    bt_gguf_guard_add(&file->map, file->path);
    const char *slash = strrchr(file->path, '/');
    file->name = slash && slash[1] ? slash + 1 : file->path;
    const bt_status status = bt_gguf_header_read(file, err);
    if (status != BT_OK) {
        bt_gguf_close(file);
        return status;
    }
    *ret_file = file;
    return BT_OK;
}

bt_status bt_gguf_part_open(const char *path, bt_gguf **ret_file, bt_error *err)
{
    bt_gguf_map map;
    BT_TRY(bt_gguf_map_open(path, &map, err));
    return bt_gguf_part_read(path, map, ret_file, err);
}

void bt_gguf_close(bt_gguf *file)
{
    if (!file) {
        return;
    }
    for (uint32_t i = 0; i < file->n_others; i++) {
        bt_gguf_close(file->others[i]);
    }
    bt_free(file->others);
    bt_gguf_index_done(&file->names);
    bt_free(file->tensors);
    bt_gguf_index_done(&file->keys);
    bt_free(file->pairs);
    bt_gguf_guard_remove(&file->map);
    bt_gguf_map_done(&file->map);
    bt_free(file->path);
    bt_free(file);
}
