/* cli/workers_file.h - the list of workers in a file, which may change while the server runs.
 *
 * One HOST:PORT a line; what follows a # is not read. Who may write the file decides who prefills,
 * so this is a file and not a route of the HTTP server: a client's key is no such permission.
 * While the file is gone or cannot be read, the last list holds.
 *
 * Lifetime: the path is borrowed. Threads: owned by one. Failure: a sentence that names the file.
 */
#ifndef BT_CLI_WORKERS_FILE_H
#define BT_CLI_WORKERS_FILE_H

#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/status.h"

enum { BT_WORKERS_FILE_BYTES_MAX = 16384 };

typedef struct {
    const char     *path;              /* set by the owner, the rest zeroed */
    struct timespec changed;           /* of what was read last */
    off_t           size;
    ino_t           inode;
    uint32_t        n_missed;          /* looks in a row that found none */
} bt_workers_file;

typedef enum {
    BT_WORKERS_FILE_SAME,              /* as it was read last, or still gone */
    BT_WORKERS_FILE_CHANGED,
    BT_WORKERS_FILE_GONE,              /* said once: no file, or none that may be read */
    BT_WORKERS_FILE_BACK               /* after that */
} bt_workers_file_news;

/* GONE only at the second look: who replaces a file may delete it first. *err says why. */
bt_workers_file_news bt_workers_file_look(bt_workers_file *f, bt_error *err);
/* Its addresses, with blanks between; remembers what it has read, well or not. */
BT_MUST_CHECK bt_status bt_workers_file_read(bt_workers_file *f,
                                             char ret_text[BT_WORKERS_FILE_BYTES_MAX + 1],
                                             bt_error *err);

#endif
