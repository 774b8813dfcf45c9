/* link/key.c - see key.h. */
#include "link/key.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

/* What the file's bytes are hashed with, so that the same file used elsewhere gives another key. */
static const char label[] = "baton link key 1";

typedef struct {
    uint8_t bytes[BT_LINK_KEY_FILE_BYTES_MAX + 1];
    size_t  size;
} secret;

static bt_status read_file(const char *path, secret *s, bt_error *err)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return bt_fail(err, BT_E_BADINPUT, "key file '%s': %s", path, strerror(errno));
    }
    s->size = 0;
    ssize_t n = 1;
    while (n != 0 && s->size < sizeof s->bytes) {
        n = read(fd, s->bytes + s->size, sizeof s->bytes - s->size);
        if (n < 0 && errno != EINTR) {
            const int error = errno;
            close(fd);
            return bt_fail(err, BT_E_BADINPUT, "key file '%s': %s", path, strerror(error));
        }
        s->size += n > 0 ? (size_t)n : 0;
    }
    const bool known = fstat(fd, &info) == 0;
    close(fd);
    if (s->size > BT_LINK_KEY_FILE_BYTES_MAX) {
        return bt_fail(err, BT_E_BADINPUT,
                       "key file '%s': more than %d bytes; is it the right file?", path,
                       BT_LINK_KEY_FILE_BYTES_MAX);
    }
    if (known && S_ISREG(info.st_mode) && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        bt_log(BT_LOG_WARN, "key_file_exposed", "file=%s effect=%s fix=%s", path,
               "other users of this machine can use it", "chmod 600");
    }
    return BT_OK;
}

static int digit(uint8_t c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Hexadecimal digits only, and an even number of them, are the bytes they stand for. */
static void decode_hex(secret *s)
{
    for (size_t i = 0; i < s->size; i++) {
        if (digit(s->bytes[i]) < 0) {
            return;
        }
    }
    if (s->size % 2 == 0) {
        s->size /= 2;
        for (size_t i = 0; i < s->size; i++) {
            s->bytes[i] = (uint8_t)(digit(s->bytes[2 * i]) << 4 | digit(s->bytes[2 * i + 1]));
        }
    }
}

bt_status bt_link_key_load(const char *path, bt_link_key *ret_key, bt_error *err)
{
    secret s;
    bt_link_key key;
    unsigned size = sizeof key.bytes;

    bt_status status = read_file(path, &s, err);
    if (status == BT_OK) {
        while (s.size > 0 && (s.bytes[s.size - 1] == '\n' || s.bytes[s.size - 1] == '\r')) {
            s.size--;
        }
        decode_hex(&s);
        if (s.size < BT_LINK_KEY_FILE_BYTES_MIN) {
            status = bt_fail(err, BT_E_BADINPUT,
                             "key file '%s': a key of %zu bytes, at least %d; "
                             "`openssl rand -hex 32 > FILE` makes a good one",
                             path, s.size, BT_LINK_KEY_FILE_BYTES_MIN);
        } else if (HMAC(EVP_sha256(), label, (int)sizeof label - 1, s.bytes, s.size, key.bytes,
                        &size) == NULL) {
            status = bt_fail(err, BT_E_NOMEM, "key file '%s': no memory to derive the key", path);
        } else {
            *ret_key = key;
        }
    }
    OPENSSL_cleanse(&s, sizeof s);
    OPENSSL_cleanse(&key, sizeof key);
    return status;
}

void bt_link_key_forget(bt_link_key *key)
{
    OPENSSL_cleanse(key, sizeof *key);
}
