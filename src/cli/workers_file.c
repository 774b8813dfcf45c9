/* cli/workers_file.c - see workers_file.h. */
#include "cli/workers_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__APPLE__)
#define CHANGED_AT(s) ((s).st_mtimespec)
#else
#define CHANGED_AT(s) ((s).st_mtim)
#endif

bt_workers_file_news bt_workers_file_look(bt_workers_file *f, bt_error *err)
{
    struct stat s;
    /* Opened, since only that tells whether it may be read; a pipe must not hold us up. */
    const int fd = open(f->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        (void)bt_fail(err, BT_E_BADINPUT, "list of workers '%s': %s", f->path, strerror(errno));
    }
    const bool there = fd >= 0 && fstat(fd, &s) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (!there) {
        f->n_missed += f->n_missed < 3;
        return f->n_missed == 2 ? BT_WORKERS_FILE_GONE : BT_WORKERS_FILE_SAME;
    }
    const bool was_gone = f->n_missed >= 2;
    f->n_missed = 0;
    const bool changed = CHANGED_AT(s).tv_sec != f->changed.tv_sec ||
                         CHANGED_AT(s).tv_nsec != f->changed.tv_nsec || s.st_size != f->size ||
                         s.st_ino != f->inode;
    return was_gone ? BT_WORKERS_FILE_BACK : changed ? BT_WORKERS_FILE_CHANGED
                                                     : BT_WORKERS_FILE_SAME;
}

/* Blanks over everything from a # to the end of its line. */
static void drop_comments(char *text)
{
    bool comment = false;
    for (char *c = text; *c; c++) {
        comment = *c == '#' || (comment && *c != '\n');
        *c = comment ? ' ' : *c;
    }
}

bt_status bt_workers_file_read(bt_workers_file *f, char ret_text[BT_WORKERS_FILE_BYTES_MAX + 1],
                               bt_error *err)
{
    struct stat s;
    FILE *file = fopen(f->path, "r");
    if (!file) {
        return bt_fail(err, BT_E_BADINPUT, "list of workers '%s': %s", f->path, strerror(errno));
    }
    if (fstat(fileno(file), &s) == 0) {
        f->changed = CHANGED_AT(s);
        f->size = s.st_size;
        f->inode = s.st_ino;
    }
    const size_t n = fread(ret_text, 1, BT_WORKERS_FILE_BYTES_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed || n > BT_WORKERS_FILE_BYTES_MAX || memchr(ret_text, 0, n)) {
        return bt_fail(err, BT_E_BADINPUT, "list of workers '%s': %s", f->path,
                       failed ? "it cannot be read" : "it is no list of at most 16 KiB");
    }
    ret_text[n] = '\0';
    drop_comments(ret_text);
    return BT_OK;
}
