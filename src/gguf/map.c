/* Files mapped for reading only. */
#include "gguf/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bt_status map_descriptor(int fd, const char *path, bt_gguf_map *ret_map, bt_error *err)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return bt_fail(err, BT_E_IO, "'%s' cannot be examined: %s", path, strerror(errno));
    }
    if (!S_ISREG(about.st_mode)) {
        return bt_fail(err, BT_E_BADFILE, "'%s' is not a file but %s", path,
                       S_ISDIR(about.st_mode) ? "a folder" : "a device or pipe");
    }
    if (about.st_size <= 0) {
        return bt_fail(err, BT_E_BADFILE, "'%s' is empty", path);
    }
    if ((uint64_t)about.st_size > SIZE_MAX / 2) {
        return bt_fail(err, BT_E_UNSUPPORTED, "'%s' is larger than this machine can address", path);
    }
    void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        return bt_fail(err, BT_E_IO, "'%s' cannot be mapped: %s", path, strerror(errno));
    }
    *ret_map = (bt_gguf_map){ .data = data, .size = (size_t)about.st_size, .mapped = true,
                              .fd = fd, .time_s = about.st_mtime,
                              .time_ns = BT_GGUF_STAT_NS(about) };
    return BT_OK;
}

bt_status bt_gguf_map_open(const char *path, bt_gguf_map *ret_map, bt_error *err)
{
    /* Not blocking, so that a path which names a pipe gives an answer instead of waiting. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return bt_fail(err, errno == ENOENT ? BT_E_NOTFOUND : BT_E_IO, "'%s' cannot be opened: %s",
                       path, strerror(errno));
    }
    const bt_status status = map_descriptor(fd, path, ret_map, err);
    if (status != BT_OK) {
        close(fd);
    }
    return status;
}

void bt_gguf_map_done(bt_gguf_map *map)
{
    if (map->mapped) {
        munmap((void *)(uintptr_t)map->data, map->size);
        close(map->fd);
    }
    *map = (bt_gguf_map){ 0 };
}

void bt_gguf_drop_pages(const bt_gguf *file, const bt_gguf_tensor *tensor)
{
    const long page = sysconf(_SC_PAGESIZE);
    if (!file->map.mapped || page <= 0) {
        return;
    }
    /* Only whole pages: the ends may hold bytes of the neighbours. */
    const uintptr_t mask = (uintptr_t)page - 1;
    const uintptr_t begin = ((uintptr_t)tensor->data + mask) & ~mask;
    const uintptr_t end = ((uintptr_t)tensor->data + (size_t)tensor->size_bytes) & ~mask;
    if (begin < end) {
        /* The mapping is read only and private, so the pages come back from the file if needed.
         * A hint: there is nothing to do if the system does not take it. */
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}
