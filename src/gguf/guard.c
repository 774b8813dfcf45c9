/* What is left to do when somebody writes into a model file that is in use. A file cut short takes
 * the process with it at the next touch (SIGBUS): nothing can be computed any more, so all that can
 * be done is to say which file it was. One written in place is noticed by its size and time. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf/file.h"

enum { GUARDED_MAX = 64 };

/* Read by the signal handler, so without a lock: `path` is written last and taken away first. */
static struct {
    _Atomic(const char *) path;            /* NULL: free */
    atomic_uintptr_t      base, end;
} guarded[GUARDED_MAX];

void bt_gguf_guard_add(const bt_gguf_map *map, const char *path)
{
    for (size_t i = 0; map->mapped && i < GUARDED_MAX; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&guarded[i].base, &none, (uintptr_t)map->data)) {
            atomic_store(&guarded[i].end, (uintptr_t)map->data + map->size);
            atomic_store(&guarded[i].path, path);
            return;
        }
    }
}

void bt_gguf_guard_remove(const bt_gguf_map *map)
{
    for (size_t i = 0; map->mapped && i < GUARDED_MAX; i++) {
        if (atomic_load(&guarded[i].base) == (uintptr_t)map->data) {
            atomic_store(&guarded[i].path, NULL);
            atomic_store(&guarded[i].base, 0);
            return;
        }
    }
}

static void put(const char *text)
{
    /* Nothing can be done about a failure here. */
    const ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    for (size_t i = 0; i < GUARDED_MAX; i++) {
        const char *path = atomic_load(&guarded[i].path);
        if (path && at >= atomic_load(&guarded[i].base) && at < atomic_load(&guarded[i].end)) {
            put("error: the model file '");
            put(path);
            put("' was cut short, or cannot be read, while it was in use. Restart with a whole "
                "file; replace model files by renaming, never by writing into them.\n");
        }
    }
    signal(number, SIG_DFL);               /* happens again at once, and ends the process */
}

void bt_gguf_guard_start(void)
{
    struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
    sigemptyset(&action.sa_mask);
    /* Fails for bad arguments only. */
    (void)sigaction(SIGBUS, &action, NULL);
}

static bt_status check_part(const bt_gguf *file, bt_error *err)
{
    const bt_gguf_map *m = &file->map;
    struct stat now;
    if (!m->mapped || fstat(m->fd, &now) != 0) {
        return BT_OK;
    }
    if ((uint64_t)now.st_size == m->size && now.st_mtime == m->time_s &&
        BT_GGUF_STAT_NS(now) == m->time_ns) {
        return BT_OK;
    }
    return bt_fail(err, BT_E_IO, "the model file '%s' was written to while it was in use (%s): "
                   "answers would be those of another model. Restart to load it; replace model "
                   "files by renaming", file->path,
                   (uint64_t)now.st_size != m->size ? "its size changed" : "its time changed");
}

bt_status bt_gguf_unchanged(const bt_gguf *file, bt_error *err)
{
    BT_TRY(check_part(file, err));
    for (uint32_t i = 0; i < file->n_others; i++) {
        BT_TRY(check_part(file->others[i], err));
    }
    return BT_OK;
}
