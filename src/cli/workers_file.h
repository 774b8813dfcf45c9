/* cli/workers_file.h - the list of workers in a file, which may change while the server runs.
 *
 * One HOST:PORT a line; what follows a # is not read. Who may write the file decides who prefills,
 * so this is a file and not a route of the HTTP server: a client's key is no such permission.
 *
 * Lifetime: the path is borrowed. Threads: owned by one. Failure: a sentence that names the file.
 */
#ifndef BT_CLI_WORKERS_FILE_H
#define BT_CLI_WORKERS_FILE_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "base/status.h"

enum { BT_WORKERS_FILE_BYTES_MAX = 16384 };

typedef struct {
    const char     *path;              /* set by the owner, the rest zeroed */
    struct timespec changed;           /* of what was read last */
    off_t           size;
    ino_t           inode;
} bt_workers_file;

/* Whether it is another one than was read last; false also when it cannot be looked at. */
bool bt_workers_file_changed(const bt_workers_file *f);
/* Its addresses, with blanks between; remembers what it has read, well or not. */
BT_MUST_CHECK bt_status bt_workers_file_read(bt_workers_file *f,
                                             char ret_text[BT_WORKERS_FILE_BYTES_MAX + 1],
                                             bt_error *err);

#endif
