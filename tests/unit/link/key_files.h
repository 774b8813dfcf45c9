/* tests/unit/link/key_files.h - two keys in files, and options that name them. */
#ifndef TESTS_UNIT_LINK_KEY_FILES_H
#define TESTS_UNIT_LINK_KEY_FILES_H

#include "pair.h"

#include <fcntl.h>
#include <sys/stat.h>

static char folder[] = "/tmp/baton-tls-XXXXXX";
static char paths[8][64];

/* A file number `i` with these bytes. */
static inline const char *key_file(int i, const void *bytes, size_t n)
{
    snprintf(paths[i], sizeof paths[i], "%s/key%d", folder, i);
    const int fd = open(paths[i], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
    return paths[i];
}

static const char *hex_key = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
static bt_link_options with_key, with_other_key;

static inline int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    with_key = (bt_link_options){.key_file = key_file(0, hex_key, 64), .heartbeat_ms = 5000,
                                 .handshake_timeout_ms = 30000};
    with_other_key = with_key;
    with_other_key.key_file = key_file(1, "0123456789abcdef0123456789abcdeX", 32);
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        if (paths[i][0] != '\0') {
            unlink(paths[i]);
        }
    }
    return rmdir(folder);
}

#endif
