/* handoff/dying.h - streams that were given up on the server, and that the worker still has.
 *
 * It holds a place for each until the step that runs is over. If those places were free at once,
 * clients that come and leave would fill its line with prompts of nobody. They count until the
 * worker has said its last word of the stream, or a time is over in which any worker would have.
 *
 * Pure: no clocks, no memory. Threads: none of its own; whoever has it guards it. Failure: none; of
 * more streams than it holds the last are not counted.
 */
#ifndef BT_HANDOFF_DYING_H
#define BT_HANDOFF_DYING_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_DYING_MAX = 64 };

typedef struct {
    struct { uint32_t stream; double until_ms; } streams[BT_DYING_MAX];
    uint32_t n;
} bt_dying;                            /* zeroed: none */

void     bt_handoff_cancelling_add(bt_dying *d, uint32_t stream, double now_ms);
bool bt_handoff_cancelling_over(bt_dying *d, uint32_t stream); /* false: it was none of them */
uint32_t bt_handoff_cancelling_count(bt_dying *d, double now_ms);

#endif
