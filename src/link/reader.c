/* link/reader.c - bytes to frames, on the owner's reader thread.
 *
 * Small frames are read many at a time. What is missing of a large one is read straight to its
 * place, and no further, so nothing has to be moved afterwards.
 *
 * Time in which this process did not run (a laptop asleep, a virtual machine that was stopped, too
 * much to do) is not the peer's silence; nor is the time of an owner that comes back late, to a
 * socket full of heartbeats. So silence is not a difference of two times: it is added up, look by
 * look that found nothing, of which each counts half a heartbeat at most.
 *
 * Locks: a frame takes none; PING and PONG take the link's once.
 */
#include "link/private.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "link/address.h"
#include "link/socket.h"

enum {
    SMALL_READ_BYTES = BT_LINK_FIRST_READ_BYTES,
    STRANGER_BODY_BYTES_MAX = 32 << 10, /* the largest HELLO: three texts, 13 KiB */
    TIMED_BYTES_MIN = 64 << 10,         /* fewer are there at once, or tell more of the clock */
    TIMED_MS_MIN = 1,                   /* of all that make a sample: a thread that is late by a
                                           tenth of it is wrong by a tenth */
    OWN_FRAMES_IN_A_ROW = 32,           /* heartbeats and unknown types, between looks up */
    FULL_CAPACITY = BT_WIRE_HEADER_BYTES + (int)BT_WIRE_BODY_BYTES_MAX + SMALL_READ_BYTES
};

/* The connection ends here; whatever was recorded first is what the owner hears. */
static bt_status lose(bt_link *l, const bt_error *why, bt_error *err)
{
    bt_link_break(l, why);
    pthread_mutex_lock(&l->lock);
    const bt_status status = bt_link_fail_locked(l, err);
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* Whether bt_link_wake was called since this last said so. The order matters: a wake that comes
 * after the first line is either taken by the second or signals again. */
static bool take_wake(bt_link *l)
{
    if (!atomic_load(&l->woken)) {
        return false;
    }
    bt_waker_clear(&l->waker);
    l->gave_way = atomic_exchange(&l->woken, false);
    return l->gave_way;
}

/* Only this thread counts, so others need no more than whole numbers. */
static void count(_Atomic uint64_t *counter, uint64_t n)
{
    const uint64_t was = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, was + n, memory_order_relaxed);
}

/* ---- waiting ---- */

/* A byte has come. */
static void heard(bt_link *l)
{
    l->last_byte_ns = l->looked_ns = bt_clock_ns();
    l->silent_ns = 0;
}

/* Nothing has come. How long the next look should wait at most; 0: the peer is lost. */
static uint64_t count_silence(bt_link *l, uint64_t now)
{
    const uint64_t most = l->heartbeat_ns / 2, gap = now - l->looked_ns;
    l->silent_ns += gap < most ? gap : most;
    l->looked_ns = now;
    const uint64_t left = l->silent_ns < l->silence_ns ? l->silence_ns - l->silent_ns : 0;
    return left < most ? left : most;
}

/* Until the socket is ready, or for a while. BT_E_AGAIN at `end_ns` or when woken; lost when the
 * remote is silent. */
static bt_status wait_for(bt_link *l, bt_io io, uint64_t end_ns, bt_error *err)
{
    const uint64_t now = bt_clock_ns(), look_ns = count_silence(l, now);
    uint64_t until = end_ns < now + look_ns ? end_ns : now + look_ns;
    bt_error why;

    if (!l->established && l->first_frame_by_ns < until) {
        until = l->first_frame_by_ns;
    }
    if (look_ns == 0) {
        bt_fail(&why, BT_E_LOST, "%s: silent for %" PRIu64 " ms; the process hangs, or the network "
                "is gone", l->transport->peer, (now - l->last_byte_ns) / BT_NS_PER_MS);
        return lose(l, &why, err);
    }
    if (now >= end_ns) {
        return BT_E_AGAIN;
    }
    bt_link_socket_wait(l->transport->fd, io == BT_IO_WANT_WRITE ? POLLOUT : POLLIN, &l->waker,
                        until);
    return take_wake(l) ? BT_E_AGAIN : BT_OK;
}

/* Also while bytes trickle in. */
static bt_status check_stranger(bt_link *l, bt_error *err)
{
    if (l->established || bt_clock_ns() < l->first_frame_by_ns) {
        return BT_OK;
    }
    bt_error why;
    bt_fail(&why, BT_E_TIMEOUT, "%s: connected, but sent no complete frame within %" PRIu32 " ms",
            l->transport->peer, l->handshake_timeout_ms);
    return lose(l, &why, err);
}

/* ---- handshake of the transport ---- */

bt_status bt_link_handshake(bt_link *l, uint64_t deadline_ns, bt_error *err)
{
    bt_transport *t = l->transport;

    for (;;) {
        bt_error why = {.status = BT_OK};
        const bt_io io = t->ops->handshake(t, &why);
        if (io == BT_IO_DONE) {
            pthread_mutex_lock(&l->lock);
            l->ready = true;
            pthread_cond_signal(&l->work);
            pthread_mutex_unlock(&l->lock);
            heard(l);
            return BT_OK;
        }
        if (io == BT_IO_END) {
            bt_fail(&why, BT_E_LOST, "%s: closed the connection during the handshake", t->peer);
        }
        if (io == BT_IO_END || io == BT_IO_FAILED) {
            return lose(l, &why, err);
        }
        BT_TRY(check_stranger(l, err));
        if (atomic_load(&l->closed)) {
            return lose(l, &why, err);
        }
        BT_TRY(wait_for(l, io, deadline_ns, err));
    }
}

/* ---- bytes ---- */

/* Room for a frame of `need` bytes at in_first. */
static bt_status make_room(bt_link *l, size_t need, bt_error *err)
{
    if (l->in_first == l->in_end) {
        l->in_first = l->in_end = 0;
    }
    if (need > l->in_capacity) {
        uint8_t *in = bt_realloc(BT_MEM_link, l->in, FULL_CAPACITY);
        if (in == NULL) {
            bt_error why;
            bt_fail(&why, BT_E_NOMEM, "%s: no memory for a frame of %zu bytes", l->transport->peer,
                    need);
            return lose(l, &why, err);
        }
        l->in = in;
        l->in_capacity = FULL_CAPACITY;
    }
    if (l->in_first + need > l->in_capacity) {
        memmove(l->in, l->in + l->in_first, l->in_end - l->in_first);
        l->in_end -= l->in_first;
        l->in_first = 0;
    }
    return BT_OK;
}

/* ---- what the link carries ----
 *
 * A frame is given to the kernel as a whole, so inside a large one the sender does not pause. From
 * the moment that the socket is found empty in its middle, its other bytes come as fast as the link
 * carries them, however late we were before. Of smaller frames, and where bytes come faster than
 * they are read, nothing is learnt. One frame of 64 KiB may take 8 us of a fast link, which is less
 * than a thread is late; so frames count together until they took a time that can be measured. */

static void note_empty(bt_link *l)
{
    if (l->empty_ns == 0 && l->in_end > l->in_first) {
        l->empty_ns = bt_clock_ns();
        l->empty_have = l->in_end - l->in_first;
    }
}

/* The median of the last samples: where a machine, or something on the way, has much else to do,
 * single ones are far too small (we were late) or far too large (what was late came at once). */
static double median_rate(const bt_link *l)
{
    double sorted[BT_LINK_RATES];
    int n = 0;
    for (int i = 0; i < BT_LINK_RATES; i++) {
        int at = n;
        if (l->rates[i] <= 0) {
            continue;
        }
        while (at > 0 && sorted[at - 1] > l->rates[i]) {
            sorted[at] = sorted[at - 1];
            at--;
        }
        sorted[at] = l->rates[i];
        n++;
    }
    return n > 0 ? sorted[n / 2] : 0;
}

/* The frame at in_first is complete. */
static void learn_goodput(bt_link *l)
{
    const size_t n = l->in_end - l->in_first;
    if (l->empty_ns == 0 || n < l->empty_have + TIMED_BYTES_MIN) {
        return;
    }
    const double ms = (double)(l->last_byte_ns - l->empty_ns) / BT_NS_PER_MS;
    l->timed_bytes += (double)(n - l->empty_have);
    l->timed_ms += ms;
    if (l->timed_ms >= TIMED_MS_MIN) {
        l->rates[l->rate_next] = l->timed_bytes / l->timed_ms;
        l->rate_next = (l->rate_next + 1) % BT_LINK_RATES;
        atomic_store(&l->goodput, median_rate(l));
        l->timed_bytes = l->timed_ms = 0;
    }
}

/* At least one more byte towards a frame of `need`, or BT_E_AGAIN. */
static bt_status read_more(bt_link *l, size_t need, uint64_t end_ns, bt_error *err)
{
    bt_transport *t = l->transport;
    bt_error why = {.status = BT_OK};
    size_t n = 0;

    BT_TRY(make_room(l, need, err));
    const size_t missing = need - (l->in_end - l->in_first);
    const size_t room = l->in_capacity - l->in_end;
    const size_t want = missing >= SMALL_READ_BYTES ? missing
                        : room < SMALL_READ_BYTES   ? room
                                                    : SMALL_READ_BYTES;

    const bt_io io = t->ops->recv(t, l->in + l->in_end, want, &n, &why);
    switch (io) {
    case BT_IO_DONE:
        l->in_end += n;
        heard(l);
        count(&l->bytes_received, n);
        if (n < want) {
            note_empty(l);
        }
        return BT_OK;
    case BT_IO_END:
        bt_fail(&why, BT_E_LOST, "%s: closed the connection%s", t->peer,
                l->in_end > l->in_first ? " in the middle of a frame" : "");
        return lose(l, &why, err);
    case BT_IO_FAILED:
        return lose(l, &why, err);
    default:
        note_empty(l);
        return wait_for(l, io, end_ns, err);
    }
}

/* ---- frames that are the link's own business ---- */

static void learn_load_locked(bt_link *l, const bt_wire_ping *m)
{
    l->peer_load = (bt_link_load){.running = m->running,
                                  .waiting = m->waiting,
                                  .queued_tokens = m->queued_tokens,
                                  .token_ns = m->token_ns};
    l->peer_load_ns = bt_clock_ns();
}

/* A time that we did not send is not worth a broken connection, nor a wrong average. */
static void learn_round_trip_locked(bt_link *l, uint64_t time)
{
    for (uint32_t i = 0; i < BT_LINK_PINGS_OUT_MAX; i++) {
        if (time != 0 && l->pings[i] == time) {
            const double ms = (double)(bt_clock_ns() - time) / BT_NS_PER_MS;
            const bool first = l->round_trip_ms <= 0;
            l->pings[i] = 0;
            l->round_trip_ms = first ? ms : l->round_trip_ms + (ms - l->round_trip_ms) / 8;
            if (first || ms < l->round_trip_ms_min) {
                l->round_trip_ms_min = ms;
            }
            return;
        }
    }
}

static bt_status take_heartbeat(bt_link *l, const bt_frame *f, bt_error *err)
{
    bt_wire_ping m;
    bt_error why;

    if (bt_wire_ping_decode(f->body, f->size, &m, &why) != BT_OK) {
        return lose(l, &why, err);
    }
    pthread_mutex_lock(&l->lock);
    learn_load_locked(l, &m);
    if (f->type == BT_WIRE_PING) {
        l->pong_due = true;
        l->pong_time = m.time;
        pthread_cond_signal(&l->work);
    } else {
        learn_round_trip_locked(l, m.time);
    }
    pthread_mutex_unlock(&l->lock);
    return BT_OK;
}

/* ---- receive ---- */

/* The first bytes are a TLS record: an alert, or the peer's greeting. */
static bool speaks_tls(const bt_link *l)
{
    const uint8_t *first = l->in + l->in_first;
    return l->in_sequence == 0 && !l->transport->ops->encrypted && l->in_end - l->in_first >= 2 &&
           (first[0] == 0x15 || first[0] == 0x16) && first[1] == 3;
}

/* The frame that begins at in_first. BT_E_AGAIN: *ret_need bytes are needed. */
static bt_status next_frame(bt_link *l, bt_frame *ret_frame, size_t *ret_need, bt_error *err)
{
    const uint32_t body_max = l->established ? BT_WIRE_BODY_BYTES_MAX : STRANGER_BODY_BYTES_MAX;
    bt_error why, parsed;
    size_t size = 0;

    const bt_status status = bt_wire_frame_parse(l->in + l->in_first, l->in_end - l->in_first,
                                                 body_max, ret_frame, &size, &parsed);
    if (status == BT_E_AGAIN) {
        *ret_need = size;
        return status;
    }
    if (status != BT_OK && speaks_tls(l)) {
        bt_fail(&why, BT_E_AUTH, "%s: has a key, and this side has none; give both sides the same "
                "--key-file", l->transport->peer);
        return lose(l, &why, err);
    }
    if (status != BT_OK) {
        bt_fail(&why, status, "%s: %.240s", l->transport->peer, parsed.text);
        return lose(l, &why, err);
    }
    if (ret_frame->sequence != l->in_sequence) {
        bt_fail(&why, BT_E_PROTOCOL, "%s: frame %" PRIu64 " (%s) came where %" PRIu64 " was due: "
                "frames were lost or repeated", l->transport->peer, ret_frame->sequence,
                bt_wire_type_name(ret_frame->type), l->in_sequence);
        return lose(l, &why, err);
    }
    l->in_sequence++;
    l->in_held = size;
    learn_goodput(l);
    count(&l->frames_received, 1);
    count(&l->frames_skipped, !bt_wire_type_known(ret_frame->type));
    return BT_OK;
}

static void let_go(bt_link *l)
{
    l->in_first += l->in_held;
    l->empty_ns = l->in_held > 0 ? 0 : l->empty_ns;
    l->in_held = 0;
}

bt_status bt_link_receive(bt_link *l, uint64_t deadline_ns, bt_frame *ret_frame, bt_error *err)
{
    uint32_t n_own = 0;

    let_go(l);
    if (!l->gave_way && take_wake(l)) {
        return BT_E_AGAIN;
    }
    l->gave_way = false;
    for (;;) {
        const bt_error none = {.status = BT_E_CLOSED, .text = "closed"};
        bt_frame f;
        size_t need = 0;

        if (atomic_load(&l->closed)) {
            return lose(l, &none, err);
        }
        if (!l->ready) {                /* only this thread sets it */
            BT_TRY(bt_link_handshake(l, deadline_ns, err));
        }
        const bt_status status = next_frame(l, &f, &need, err);
        if (status == BT_E_AGAIN) {
            BT_TRY(check_stranger(l, err));
            BT_TRY(read_more(l, need, deadline_ns, err));
            continue;
        }
        BT_TRY(status);
        if (f.type == BT_WIRE_PING || f.type == BT_WIRE_PONG) {
            BT_TRY(take_heartbeat(l, &f, err));
        } else if (bt_wire_type_known(f.type)) {
            l->established = true;
            *ret_frame = f;
            return BT_OK;
        }
        let_go(l);
        /* A flood of them must not hold the caller longer than it asked for. */
        if (++n_own % OWN_FRAMES_IN_A_ROW == 0 &&
            (take_wake(l) || bt_clock_ns() >= deadline_ns)) {
            return BT_E_AGAIN;
        }
    }
}
