/* link/key.h - the shared key: a file that both sides have.
 *
 * The file holds at least 16 bytes, better 32, as they are or as hexadecimal digits; line ends at
 * its end do not count. What TLS gets is 32 bytes derived from them.
 * Threads: any. Failure: BT_E_BADINPUT with the file's name.
 */
#ifndef BT_LINK_KEY_H
#define BT_LINK_KEY_H

#include <stdint.h>

#include "base/status.h"

enum { BT_LINK_KEY_BYTES = 32, BT_LINK_KEY_FILE_BYTES_MAX = 4096, BT_LINK_KEY_FILE_BYTES_MIN = 16 };

typedef struct {
    uint8_t bytes[BT_LINK_KEY_BYTES];
} bt_link_key;

/* Warns in the log when others may read the file. */
BT_MUST_CHECK bt_status bt_link_key_load(const char *path, bt_link_key *ret_key, bt_error *err);
void bt_link_key_forget(bt_link_key *key);

#endif
