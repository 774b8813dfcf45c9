/* sample/window.h - how often each token occurs among the last accepted ones.
 *
 * Lifetime: init to done. Threads: owned by one. Failure: init (memory); put never allocates.
 */
#ifndef BT_SAMPLE_WINDOW_H
#define BT_SAMPLE_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct { uint32_t id, count; } bt_window_entry;

typedef struct {
    uint32_t  size;              /* tokens remembered at most; 0: off, all else unused */
    uint32_t  n_vocab;
    uint32_t *ring;              /* [size] */
    uint32_t  n_ring, ring_next;
    bt_window_entry *entries;    /* [n_entries <= size] distinct tokens, any order */
    uint32_t  n_entries;
    uint32_t *entry_of;          /* [n_vocab] index into entries + 1; 0: not in the window.
                                    Zero pages of the system until touched. */
} bt_window;

BT_MUST_CHECK bt_status bt_sample_window_init(bt_window *w, uint32_t size, uint32_t n_vocab);
void bt_sample_window_done(bt_window *w);
/* The oldest leaves when the window is full. Gives what entered and left: *ret_left is UINT32_MAX
 * unless its last occurrence went; true when `token` was not in the window before. */
bool bt_sample_window_put(bt_window *w, uint32_t token, uint32_t *ret_left);
uint32_t bt_sample_window_count(const bt_window *w, uint32_t token);

#endif
