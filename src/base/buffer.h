/* base/buffer.h - a growable run of bytes with a ceiling and a sticky error.
 *
 * After the first append that would pass `max` or finds no memory, later appends do nothing;
 * bt_buf_status() tells once at the end. The text form is always NUL-terminated behind `size`.
 * Threads: owned by one thread. Lifetime: bt_buf_init to bt_buf_done; bt_buf_clear keeps memory.
 */
#ifndef BT_BASE_BUFFER_H
#define BT_BASE_BUFFER_H

#include "base/memory.h"
#include "base/status.h"

typedef struct {
    char         *data;       /* NULL until the first append */
    size_t        size;
    size_t        capacity;
    size_t        max;        /* bytes; a named limit of base/limits.h */
    bt_memory_tag tag;
    bt_status     status;
} bt_buf;

void bt_buf_init(bt_buf *b, bt_memory_tag tag, size_t max);
void bt_buf_done(bt_buf *b);
void bt_buf_clear(bt_buf *b);                       /* empty again, error forgotten */
void bt_buf_put(bt_buf *b, const void *bytes, size_t n);
void bt_buf_puts(bt_buf *b, const char *text);
void bt_buf_printf(bt_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Room for `n` bytes at the end, uninitialised, already counted in size; NULL on failure. */
void *bt_buf_grow(bt_buf *b, size_t n);
/* Makes room for `n` bytes in all without changing size. */
BT_MUST_CHECK bt_status bt_buf_reserve(bt_buf *b, size_t n);
static inline bt_status bt_buf_status(const bt_buf *b) { return b->status; }
static inline const char *bt_buf_text(const bt_buf *b) { return b->data ? b->data : ""; }

#endif
