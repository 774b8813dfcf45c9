/* base/digest.h - 128-bit digests (XXH3) of bytes, whole or in pieces.
 *
 * Against accidents, not against forgers: integrity on a hostile link is TLS's work.
 * Threads: a bt_digester belongs to one thread at a time.
 */
#ifndef BT_BASE_DIGEST_H
#define BT_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct { uint8_t bytes[16]; } bt_digest;
typedef struct bt_digester bt_digester;

enum { BT_DIGEST_TEXT_MAX = 33 };

BT_MUST_CHECK bt_status bt_digester_create(bt_digester **ret_digester);
void      bt_digester_destroy(bt_digester *d);                 /* NULL is fine */
void      bt_digester_reset(bt_digester *d);
void      bt_digester_put(bt_digester *d, const void *bytes, size_t n);
bt_digest bt_digester_value(const bt_digester *d);

bt_digest bt_digest_of(const void *bytes, size_t n);
uint64_t  bt_hash64(const void *bytes, size_t n, uint64_t seed);
uint32_t  bt_checksum32(const void *bytes, size_t n);           /* low half of XXH3-64 */
bool      bt_digest_equal(const bt_digest *a, const bt_digest *b);
void      bt_digest_text(const bt_digest *d, char to[BT_DIGEST_TEXT_MAX]);

#endif
