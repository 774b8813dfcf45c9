/* Every row has its time; before a mark, and at the end of a run, the device sleeps until the rows
 * and layers so far are due. */
#include "device/throttle.h"

#include "base/clock.h"
#include "base/memory.h"
#include "device/wrapper.h"

/* A longer pause between two runs is idleness, which is not made up for; a shorter one is what the
 * engine does between the steps of a prompt. */
static const uint64_t IDLE_NS = 20 * 1000000u;

typedef struct {
    bt_device_wrapper wrapper;       /* first: bt_device * is cast to this */
    double            row_ns;
    uint64_t          due_ns;        /* when the rows so far should be ready; 0: none yet */
    uint64_t          ended_ns;      /* of the last run */
} throttle_device;

static uint32_t count_marks(const bt_tape *t, uint32_t first, uint32_t last)
{
    uint32_t n = 0;
    for (uint32_t i = first; i < last; i++) {
        n += bt_ops_tape_op(t, i)->kind == BT_OP_mark;
    }
    return n;
}

static void sleep_until(uint64_t due_ns)
{
    const uint64_t now = bt_clock_ns();
    if (due_ns > now) {
        bt_clock_sleep_ns(due_ns - now);
    }
}

static bt_status run_part(bt_device *d, const bt_tape *t, const bt_step *s, uint32_t first,
                          uint32_t last, bt_error *err)
{
    if (first < last) {
        BT_TRY(d->ops->run(d, t, s, first, last, err));
    }
    return d->ops->wait(d, err);
}

static bt_status run(bt_device *base, const bt_tape *t, const bt_step *s, uint32_t op_first,
                     uint32_t op_last, bt_error *err)
{
    throttle_device *d = (throttle_device *)(void *)base;
    const uint64_t now = bt_clock_ns(), pause = now - d->ended_ns;
    const uint64_t begin = pause > IDLE_NS && d->due_ns < now ? now : d->due_ns;
    /* A part of a tape takes its part of the time. */
    const double whole = d->row_ns * s->n_rows * (op_last - op_first) / bt_ops_tape_count(t);
    const uint32_t n_marks = count_marks(t, op_first, op_last);
    uint32_t first = op_first, marks = 0;
    for (uint32_t i = op_first; i < op_last; i++) {
        if (bt_ops_tape_op(t, i)->kind == BT_OP_mark) {
            BT_TRY(run_part(d->wrapper.inner, t, s, first, i, err));
            sleep_until(begin + (uint64_t)(whole * ++marks / n_marks));
            first = i;
        }
    }
    BT_TRY(run_part(d->wrapper.inner, t, s, first, op_last, err));
    d->due_ns = begin + (uint64_t)whole;
    sleep_until(d->due_ns);
    d->ended_ns = bt_clock_ns();
    return BT_OK;
}

static void close_device(bt_device *base)
{
    throttle_device *d = (throttle_device *)(void *)base;
    bt_device_close(d->wrapper.inner);
    bt_free(d);
}

static const bt_device_ops ops = {
    BT_DEVICE_WRAPPER_OPS,
    .name = "throttle",
    .close = close_device,
    .run = run,
};

bt_status bt_device_throttle_open(bt_device *inner, double rows_per_second, bt_device **ret_device,
                                  bt_error *err)
{
    /* One row in 1,000 seconds is slow enough; no sum of times can then overflow. */
    if (!(rows_per_second >= 1e-3)) {
        return bt_fail(err, BT_E_BADINPUT, "a rate of %g rows per second is below the 0.001 that "
                       "can be kept", rows_per_second);
    }
    throttle_device *d = bt_alloc_zero(BT_MEM_scratch, 1, sizeof *d);
    if (!d) {
        return bt_fail_nomem(err, sizeof *d, "a throttled device");
    }
    *d = (throttle_device){ .wrapper = { { &ops }, inner }, .row_ns = 1e9 / rows_per_second };
    *ret_device = &d->wrapper.base;
    return BT_OK;
}
