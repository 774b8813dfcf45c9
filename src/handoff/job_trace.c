/* handoff/job_trace.c - see job_trace.h. */
#include "base/clock.h"
#include "handoff/job_trace.h"

/* Two per prompt: what happens to it, and the rows that come. Ticket numbers are not in order. */
uint64_t bt_handoff_trace_lane(const bt_handoff_job *job)
{
    return 2 * job->ticket + 2;
}

void bt_handoff_trace_sent(const bt_handoff_peer *peer, const bt_handoff_job *job)
{
    bt_timeline *t = peer->owner->trace;
    bt_timeline_name_lane(t, bt_handoff_trace_lane(job), "prompt %llu",
                          (unsigned long long)job->ticket);
    bt_timeline_name_lane(t, bt_handoff_trace_lane(job) + 1, "prompt %llu: rows put in place",
                          (unsigned long long)job->ticket);
    bt_timeline_moment(t, bt_handoff_trace_lane(job), "sent", peer->address);
}

/* By the worker's words and our clock, as the report has it. */
void bt_handoff_trace_committed(bt_timeline *t, const bt_handoff_job *job, const bt_wire_commit *m,
                            double round_trip_ms)
{
    const uint64_t lane = bt_handoff_trace_lane(job);
    const double now = bt_clock_ms(), there = job->sent_ms + round_trip_ms / 2;
    const double begun = there + (double)m->queue_us / 1000;
    const double done = begun + (double)m->compute_us / 1000;
    bt_timeline_span(t, lane, "prompt", job->start_ms, now, "\"tokens\":%u,\"bytes\":%llu",
                     job->end - job->first, (unsigned long long)job->report.bytes);
    bt_timeline_span(t, lane, "waits here", job->start_ms, job->sent_ms, "%s", "");
    bt_timeline_span(t, lane, "waits there", there, begun, "%s", "");
    bt_timeline_span(t, lane, "computing there", begun, done < now ? done : now, "\"cached\":%u",
                     m->n_cached);
    if (job->rows_ms > 0) {
        const double from = done > job->rows_ms ? done : job->rows_ms;
        bt_timeline_span(t, lane, "exposed", from < now ? from : now, now, "%s", "");
    }
}

void bt_handoff_trace_given_up(bt_timeline *t, const bt_handoff_job *job)
{
    bt_timeline_span(t, bt_handoff_trace_lane(job), "prompt", job->start_ms, bt_clock_ms(),
                     "\"tokens\":%u,\"complete\":%u", job->end - job->first,
                     job->complete - job->first);
    bt_timeline_moment(t, bt_handoff_trace_lane(job), "given up", job->report.reason);
}
