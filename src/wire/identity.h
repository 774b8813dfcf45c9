/* wire/identity.h - may this worker prefill for that server?
 *
 * Compares version and identity of two HELLOs: the server's as received, and the one the worker
 * would send were it a server (texts and session do not matter). Numerics are not compared: another
 * tier is placement, told in WELCOME, not a difference of meaning.
 * Threads: any.
 */
#ifndef BT_WIRE_IDENTITY_H
#define BT_WIRE_IDENTITY_H

#include <stdbool.h>

#include "wire/codec.h"

/* What HELLO, WELCOME, VISIT and FACTS say of the program. */
#define BT_WIRE_PROGRAM "baton " BATON_VERSION

typedef struct {
    bt_status status;
    char field[32];
    char server_value[80], worker_value[80];
    char sentence[BT_ERROR_TEXT_MAX];
} bt_wire_misfit;

/* True when all fits; else *ret_misfit names the first field that does not, and both values. */
bool bt_wire_identity_fits(const bt_wire_hello *server, const bt_wire_hello *worker,
                           bt_wire_misfit *ret_misfit);
/* A REJECT whose texts borrow from *misfit. */
bt_wire_reject bt_wire_misfit_reject(const bt_wire_misfit *misfit);

#endif
