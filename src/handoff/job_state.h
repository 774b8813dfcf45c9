/* handoff/job_state.h - recurrent states on the server: the one at the prompt's end, and the
 * snapshots that follow COMMIT (docs/handoff.md, "Recurrent states").
 *
 * A committed job whose worker owes snapshots stays with its peer as a "keeper" until all have
 * come, one does not hold, the connection ends, or too many others came after it.
 *
 * Threads: the peer's, with the lock free.
 */
#ifndef BT_HANDOFF_JOB_STATE_H
#define BT_HANDOFF_JOB_STATE_H

#include "handoff/prefill_private.h"

enum { BT_HANDOFF_KEEPERS_MAX = 16 };  /* of one worker */

/* A part of the state at the prompt's end. One that nobody asked for is the connection's end
 * (W-107). */
BT_MUST_CHECK bt_status bt_handoff_job_state(bt_handoff_peer *peer, bt_handoff_job *job,
                                             const bt_frame *frame, bt_error *err);
/* Which positions of the prompt a later one may begin from. */
void bt_handoff_job_set_borders(bt_handoff_job *job, const bt_prefill_job *from);
/* Takes over a committed job whose worker will send snapshots; false: it will send none. Of more
 * than BT_HANDOFF_KEEPERS_MAX the oldest is ended, and the worker told. */
bool bt_handoff_keeper_take(bt_handoff_peer *peer, bt_handoff_job *job);
/* A frame of such a stream, true; false: of none. */
bool bt_handoff_keeper_frame(bt_handoff_peer *peer, const bt_frame *frame);
void bt_handoff_keepers_drop(bt_handoff_peer *peer);   /* the connection is gone */

/* Abandons the ticket, after its report was written; the job stays. */
void bt_handoff_job_give_back(bt_prefill *p, bt_handoff_job *job, uint32_t position_complete,
                              bt_status status);

#endif
