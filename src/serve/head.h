/* serve/head.h - what can be decided from the head of a request, before its body.
 *
 * Framing comes first (RFC 9112, sections 3.2 and 6.3): a head that two programs could read in two
 * ways is answered by 400, and its connection closed. Then who may ask, and for what.
 * Threads: owned by the connection's thread.
 */
#ifndef BT_SERVE_HEAD_H
#define BT_SERVE_HEAD_H

#include "serve/http.h"

/* The path of a target that may be absolute ("http://host:1/path"); *ret_authority: what it names,
 * size 0 where it names none. */
const char *bt_serve_head_target(const char *url, const char **ret_authority, size_t *ret_size);
/* Sets x->problem, and x->close where the connection cannot be used any more. `route` NULL: no such
 * path. */
void bt_serve_head_check(bt_exchange *x, const bt_route *route, const char *version);
/* Bytes of body that the head announces; SIZE_MAX: chunked, so not known. */
size_t bt_serve_head_length(const bt_exchange *x);

#endif
