/* wire/frame.h - the 32-byte header in front of every body.
 *
 *   0 magic u32 | 4 type u16 | 6 flags u16 | 8 stream u32 | 12 length u32 | 16 sequence u64
 *   24 body checksum u32: low half of the XXH3-64 of the body
 *   28 header checksum u32: the same of bytes 0 .. 27
 *
 * Two checksums, so that a damaged length is known before anybody waits for that many bytes; the
 * second covers the first, so that a body is never taken for another frame's.
 * Threads: any. Failure: bt_wire_frame_parse alone.
 */
#ifndef BT_WIRE_FRAME_H
#define BT_WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"

enum { BT_WIRE_HEADER_BYTES = 32 };
#define BT_WIRE_MAGIC 0x4E544142u       /* "BATN" */

typedef struct {
    uint16_t type, flags;
    uint32_t stream;                    /* 0: the connection as a whole */
    uint64_t sequence;                  /* 0, 1, 2, ... in each direction */
    uint32_t size;                      /* of body */
    const uint8_t *body;
    uint64_t hash;                      /* XXH3-64 of body */
} bt_frame;

/* Writes the header for f->body (f->size bytes, at most BT_WIRE_BODY_BYTES_MAX) and sets f->hash.
 * */
void bt_wire_header_encode(bt_frame *f, uint8_t to[BT_WIRE_HEADER_BYTES]);

/* Looks at the bytes that have come so far.
 *   BT_OK          *ret_frame points into `data`; *ret_size bytes are consumed
 *   BT_E_AGAIN     more is needed; *ret_size bytes in all, at least
 *   BT_E_PROTOCOL  not a frame: what was wrong, in the sentence
 * body_max: at most BT_WIRE_BODY_BYTES_MAX; smaller while the peer is a stranger. */
BT_MUST_CHECK bt_status bt_wire_frame_parse(const uint8_t *data, size_t size, uint32_t body_max,
                                            bt_frame *ret_frame, size_t *ret_size, bt_error *err);

#endif
