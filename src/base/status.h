/* base/status.h - every way a call can fail, said once.
 *
 * The table feeds the enum, the names in logs, the code on the wire and the HTTP status, so they
 * cannot drift apart. A wire code, once published, is never reused.
 *
 * A fallible function returns bt_status (0 is success), puts its results last but one (`ret_*`,
 * untouched on failure) and takes `bt_error *err` last (may be NULL): a sentence with the names
 * and numbers a person needs. The function that first decides on an error writes the sentence;
 * others pass it on. Libraries never print, exit or abort on outside data.
 */
#ifndef BT_BASE_STATUS_H
#define BT_BASE_STATUS_H

#include <stddef.h>

/*    name           wire  http  text */
#define BT_STATUS_LIST(X)                                                        \
    X(OK,             0,   200, "ok")                                            \
    X(E_NOMEM,        1,   503, "out of memory")                                 \
    X(E_FULL,         2,   429, "no room now; try again later")                  \
    X(E_AGAIN,        3,   202, "not finished; call again")                      \
    X(E_BADFILE,      4,   500, "the model file is damaged or not supported")    \
    X(E_BADINPUT,     5,   400, "the request cannot be understood")              \
    X(E_CANCELLED,    6,   499, "the caller gave up")                            \
    X(E_DEVICE,       7,   500, "the device failed")                             \
    X(E_IO,           8,   500, "reading or writing failed")                     \
    X(E_UNSUPPORTED,  9,   501, "this build cannot do that")                     \
    X(E_NOTFOUND,     10,  404, "there is no such thing")                        \
    X(E_CONTEXT,      11,  400, "the prompt does not fit the context")           \
    X(E_LOST,         12,  502, "the connection was lost")                       \
    X(E_TIMEOUT,      13,  504, "it took too long")                              \
    X(E_PROTOCOL,     14,  502, "the peer broke the protocol")                   \
    X(E_REFUSED,      15,  502, "the peer refused")                              \
    X(E_AUTH,         16,  401, "the key is missing or wrong")                   \
    X(E_CLOSED,       17,  503, "it is shutting down")

typedef enum {
#define X(name, wire, http, text) BT_##name = (wire),
    BT_STATUS_LIST(X)
#undef X
} bt_status;

enum { BT_ERROR_TEXT_MAX = 320 };

typedef struct {
    bt_status status;
    char      text[BT_ERROR_TEXT_MAX];
} bt_error;

#define BT_MUST_CHECK __attribute__((warn_unused_result))
#define BT_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* Passes a failure on; only where nothing has to be undone. */
#define BT_TRY(call)                                   \
    do {                                               \
        const bt_status bt_try_status = (call);        \
        if (bt_try_status != BT_OK) {                  \
            return bt_try_status;                      \
        }                                              \
    } while (0)

/* Writes the sentence and returns `status`, so that a failing line can read:
 *   return bt_fail(err, BT_E_BADFILE, "'%s': %u dimensions, at most 4", name, n);
 */
bt_status bt_fail(bt_error *err, bt_status status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* BT_E_NOMEM: "out of memory: 4096 bytes for a frame"; without a size, which is 0 where it is not
 * known, "out of memory for a frame". */
bt_status bt_fail_nomem(bt_error *err, size_t size, const char *purpose);

/* Static strings; an unknown number gives a text that says so. */
const char *bt_status_name(bt_status status);
const char *bt_status_text(bt_status status);
int         bt_status_http(bt_status status);
/* BT_E_PROTOCOL for a code that is not in the table. */
bt_status   bt_status_from_wire(unsigned code);

#endif
