#include "serve/access.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

enum { KEYS_MAX = 1024, KEY_BYTES_MAX = 512 };

/* ---- names ---- */

/* The name in "name", "name:port", "[v6]" or "[v6]:port", without brackets; false for anything
 * else, so that "[::1].example" is not taken for what it begins with. */
static bool split_authority(const char *authority, const char **ret_name, size_t *ret_size)
{
    const bool v6 = authority[0] == '[';
    const char *name = authority + v6;
    const size_t size = strcspn(name, v6 ? "]" : ":");
    const char *rest = name + size;
    if (v6 && *rest++ != ']') {
        return false;
    }
    if (*rest == ':') {
        rest++;
        rest += strspn(rest, "0123456789");
    }
    *ret_name = name;
    *ret_size = size;
    return *rest == '\0';
}

static bool name_is(const char *name, size_t size, const char *wanted)
{
    return strlen(wanted) == size && strncasecmp(name, wanted, size) == 0;
}

static bool is_loopback_v4(const char *name, size_t size)
{
    unsigned a, b, c, d;
    char copy[16], after;
    if (size >= sizeof copy) {
        return false;
    }
    memcpy(copy, name, size);
    copy[size] = '\0';
    return sscanf(copy, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &after) == 4 && a == 127 && b < 256 &&
           c < 256 && d < 256;
}

bool bt_serve_access_is_local(const char *authority)
{
    const char *name;
    size_t size;
    static const char suffix[] = ".localhost";
    const size_t n = sizeof suffix - 1;
    if (!split_authority(authority, &name, &size)) {
        return false;
    }
    if (authority[0] == '[') {
        return name_is(name, size, "::1");
    }
    return name_is(name, size, "localhost") || is_loopback_v4(name, size) ||
           (size > n && strncasecmp(name + size - n, suffix, n) == 0);
}

static bool listed(const char *text, size_t size, const char *list)
{
    for (const char *at = list; *at;) {
        at += strspn(at, ", ");
        const size_t n = strcspn(at, ", ");
        if (n > 0 && n == size && strncasecmp(at, text, n) == 0) {
            return true;
        }
        at += n;
    }
    return false;
}

bool bt_serve_access_host_allowed(const char *host, const char *configured, const char *allowed)
{
    const char *name, *own;
    size_t size, own_size;
    if (!host || bt_serve_access_is_local(host)) {
        return true;
    }
    if (allowed && (listed("*", 1, allowed) || listed(host, strlen(host), allowed))) {
        return true;
    }
    if (!split_authority(host, &name, &size)) {
        return false;
    }
    return (split_authority(configured, &own, &own_size) && size == own_size &&
            strncasecmp(name, own, size) == 0) ||
           (allowed && listed(name, size, allowed));
}

static bool names_localhost(const char *origins)
{
    return !origins || listed("localhost", 9, origins);
}

bool bt_serve_access_origin_allowed(const char *origin, const char *host, const char *origins)
{
    if (origins && (listed("*", 1, origins) || listed(origin, strlen(origin), origins))) {
        return true;
    }
    const char *authority = strstr(origin, "://");
    if (!authority) {
        return false;                      /* "null": a sandboxed frame or a file */
    }
    authority += 3;
    if (host && strcasecmp(authority, host) == 0) {
        return true;
    }
    return names_localhost(origins) && bt_serve_access_is_local(authority);
}

/* ---- keys ---- */

static bt_status add_key(bt_access_keys *k, const char *text, size_t size, bt_error *err)
{
    if (size == 0) {
        return BT_OK;
    }
    if (size > KEY_BYTES_MAX || k->count == KEYS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "API keys: at most %d keys of at most %d bytes",
                       KEYS_MAX, KEY_BYTES_MAX);
    }
    char **keys = bt_realloc(BT_MEM_serve, k->keys, (k->count + 1) * sizeof *keys);
    if (!keys) {
        return bt_fail_nomem(err, size, "an API key");
    }
    k->keys = keys;
    char *copy = bt_strndup(BT_MEM_serve, text, size);
    if (!copy) {
        return bt_fail_nomem(err, size, "an API key");
    }
    k->keys[k->count++] = copy;
    return BT_OK;
}

bt_status bt_serve_access_keys_add_list(bt_access_keys *k, const char *list, bt_error *err)
{
    const size_t before = k->count;
    for (const char *at = list; *at;) {
        at += strspn(at, ", \t");
        const size_t n = strcspn(at, ", \t");
        BT_TRY(add_key(k, at, n, err));
        at += n;
    }
    if (k->count == before) {
        /* `--api-key "$UNSET"` must not mean "no key is asked for". */
        return bt_fail(err, BT_E_BADINPUT, "the list of API keys is empty: give a key, or leave "
                       "the option out to serve without one");
    }
    return BT_OK;
}

bt_status bt_serve_access_keys_add_file(bt_access_keys *k, const char *path, bt_error *err)
{
    FILE *file = fopen(path, "r");
    if (!file) {
        return bt_fail(err, BT_E_IO, "the API key file '%s' cannot be read: %s", path,
                       strerror(errno));
    }
    char line[KEY_BYTES_MAX + 64];
    bt_status status = BT_OK;
    const size_t before = k->count;
    while (status == BT_OK && fgets(line, sizeof line, file)) {
        const char *at = line + strspn(line, " \t");
        const size_t n = strcspn(at, " \t\r\n");
        if (at[0] != '#') {
            status = add_key(k, at, n, err);
        }
    }
    fclose(file);
    if (status == BT_OK && k->count == before) {
        /* An empty file must not mean "no key is asked for". */
        return bt_fail(err, BT_E_BADINPUT, "the API key file '%s' holds no key", path);
    }
    return status;
}

void bt_serve_access_keys_done(bt_access_keys *k)
{
    for (size_t i = 0; i < k->count; i++) {
        bt_free(k->keys[i]);
    }
    bt_free(k->keys);
    *k = (bt_access_keys){ 0 };
}

/* Always walks the whole of what the client sent. */
static unsigned differs(const char *key, const char *given, size_t given_size)
{
    const size_t size = strlen(key);
    unsigned difference = size != given_size;
    for (size_t i = 0; i < given_size; i++) {
        difference |= (unsigned char)given[i] ^ (unsigned char)key[size ? i % size : 0];
    }
    return difference;
}

bool bt_serve_access_key_valid(const bt_access_keys *k, const char *authorization,
                               const char *x_api_key, uint32_t *ret_number)
{
    const char *given = x_api_key;
    if (authorization) {
        given = authorization;
        if (strncasecmp(given, "Bearer ", 7) == 0) {
            given += 7 + strspn(given + 7, " ");
        }
    }
    *ret_number = 0;
    if (k->count == 0) {
        return true;
    }
    if (!given) {
        return false;
    }
    size_t size = strlen(given);
    while (size > 0 && (given[size - 1] == ' ' || given[size - 1] == '\t')) {
        size--;                            /* no part of the value (RFC 9110, 5.5) */
    }
    uint32_t number = 0;
    for (size_t i = 0; i < k->count; i++) {
        const uint32_t equal = differs(k->keys[i], given, size) == 0;
        number = number * !equal + (uint32_t)(i + 1) * equal;
    }
    *ret_number = number;
    return number != 0;
}
