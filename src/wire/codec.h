/* wire/codec.h - messages to bytes and back: pure functions, no sockets, no allocation.
 *
 * bt_wire_NAME is the struct of message NAME, with bt_wire_NAME_size, _encode and _decode, for each
 * row of BT_WIRE_MESSAGE_LIST (hello, welcome, reject, prefill, tokens, rows, state, chunk, commit,
 * cancel, cancelled, error, credit, ping, pong, drain).
 *
 * Lifetime: texts, tokens and bytes of a decoded message point into the body it was decoded from
 *           and die with it (for a bt_frame: at the next receive).
 * Threads:  any.
 * Failure:  decode says BT_E_PROTOCOL with the message and the field where it was cut short or
 *           passed a limit, and leaves *ret as it was. encode says BT_E_BADINPUT for a text, token
 *           list or body over its limit, or too little room. Bytes behind the last known field are
 *           ignored.
 */
#ifndef BT_WIRE_CODEC_H
#define BT_WIRE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/limits.h"
#include "base/status.h"
#include "wire/messages.h"

/* Not NUL-terminated, and from a stranger: print it through bt_wire_text_copy. */
typedef struct {
    const char *data;
    uint32_t    size;
} bt_wire_text;

/* Little-endian ids at any address: read them by bt_wire_token or bt_wire_tokens_copy. */
typedef struct {
    const uint8_t *data;
    uint32_t       n;
} bt_wire_ids;

typedef struct {
    const uint8_t *data;
    uint32_t       size;
} bt_wire_bytes;

/* Field types by the names used in the tables. */
typedef uint32_t      bt_wire_field_u32;
typedef uint64_t      bt_wire_field_u64;
typedef bt_digest     bt_wire_field_digest;
typedef bt_wire_text  bt_wire_field_text;
typedef bt_wire_ids   bt_wire_field_tokens;
typedef bt_wire_bytes bt_wire_field_bytes;

#define BT_WIRE_FIELD_DECLARE(type, name, doc) bt_wire_field_##type name;
#define X(NAME, name, number, FIELDS, sender, doc)                                                 \
    typedef struct {                                                                               \
        FIELDS(BT_WIRE_FIELD_DECLARE)                                                              \
    } bt_wire_##name;                                                                              \
    /* Bytes that encode will write. */                                                            \
    size_t bt_wire_##name##_size(const bt_wire_##name *m);                                         \
    BT_MUST_CHECK bt_status bt_wire_##name##_encode(const bt_wire_##name *m, uint8_t *to,          \
                                                    size_t room, size_t *ret_size, bt_error *err); \
    BT_MUST_CHECK bt_status bt_wire_##name##_decode(const void *body, size_t size,                 \
                                                    bt_wire_##name *ret, bt_error *err);
BT_WIRE_MESSAGE_LIST(X)
#undef X

/* "HELLO", ...; "unknown" for a number that is not in the table. */
const char *bt_wire_type_name(unsigned type);
bool        bt_wire_type_known(unsigned type);

bt_wire_text bt_wire_text_of(const char *text);                 /* borrows; NULL gives "" */
/* NUL-terminated, cut to `room`; whatever is not printable UTF-8 becomes '?'. Returns `to`. */
char        *bt_wire_text_copy(bt_wire_text text, char *to, size_t room);
uint32_t     bt_wire_token(bt_wire_ids ids, uint32_t index);
void         bt_wire_tokens_copy(bt_wire_ids ids, uint32_t *to);

/* ROWS written in place, so that rows go from their pages to the send buffer with one copy: writes
 * all but the rows into to[0 .. bt_wire_rows_place_size()) and says where K and V rows go. */
size_t bt_wire_rows_place_size(size_t k_size, size_t v_size);
void   bt_wire_rows_place(uint8_t *to, uint32_t layer, uint32_t position, uint32_t n,
                          uint32_t k_size, uint32_t v_size, uint8_t **ret_k, uint8_t **ret_v);
/* STATE in the same way: `size` bytes of a layer's state. */
size_t   bt_wire_state_place_size(uint32_t size);
uint8_t *bt_wire_state_place(uint8_t *to, const bt_wire_state *m, uint32_t size);
/* Rows that fit one frame, given what K and V of one row take together; 0: not even one. */
uint32_t bt_wire_rows_fit(size_t row_bytes);

#endif
