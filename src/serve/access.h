/* serve/access.h - who may ask: keys, the Host header, the Origin header. Pure functions.
 *
 * Host:   a server bound to a loopback address answers only to names of this machine, so that a
 *         foreign name that resolves to 127.0.0.1 (DNS rebinding) reaches nothing.
 * Origin: a page of another site may not drive the server unless it was named (--cors-origins).
 */
#ifndef BT_SERVE_ACCESS_H
#define BT_SERVE_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* "localhost", "*.localhost", "127.x.y.z", "[::1]", with or without a port. */
bool bt_serve_access_is_local(const char *authority);

/* The Host header (NULL: HTTP/1.0, allowed) of a server bound to a loopback address: a name of this
 * machine, the configured one, or one of the comma list `allowed` (NULL: none, "*": any). */
bool bt_serve_access_host_allowed(const char *host, const char *configured, const char *allowed);

/* `origins`: NULL, "*", or a comma list of origins and the word "localhost". `host` is the Host
 * header; an origin with the same authority is always allowed. */
bool bt_serve_access_origin_allowed(const char *origin, const char *host, const char *origins);

typedef struct {
    char   **keys;
    size_t   count;
} bt_access_keys;

/* Adds the keys of a comma list, and of a file's lines. The sentence never holds a key. */
BT_MUST_CHECK bt_status bt_serve_access_keys_add_list(bt_access_keys *k, const char *list,
                                                      bt_error *err);
BT_MUST_CHECK bt_status bt_serve_access_keys_add_file(bt_access_keys *k, const char *path,
                                                      bt_error *err);
void bt_serve_access_keys_done(bt_access_keys *k);
/* In time that does not depend on how much of a key is right. "Bearer KEY" or KEY alone.
 * *ret_number: which key it is, from 1 on; 0 where none is asked for. */
bool bt_serve_access_key_valid(const bt_access_keys *k, const char *authorization,
                               const char *x_api_key, uint32_t *ret_number);

#endif
