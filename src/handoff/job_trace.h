/* handoff/job_trace.h - what the timeline shows of a prompt on the server. Without a timeline all
 * of it does nothing. Threads: any. Failure: none. */
#ifndef BT_HANDOFF_JOB_TRACE_H
#define BT_HANDOFF_JOB_TRACE_H

#include "handoff/prefill_private.h"

/* Two lanes a prompt: what happens to it, and behind it the rows that come. */
uint64_t bt_handoff_trace_lane(const bt_handoff_job *job);
void bt_handoff_trace_sent(const bt_handoff_peer *peer, const bt_handoff_job *job);
void bt_handoff_trace_committed(bt_timeline *t, const bt_handoff_job *job, const bt_wire_commit *m,
                                double round_trip_ms);
void bt_handoff_trace_given_up(bt_timeline *t, const bt_handoff_job *job);

#endif
