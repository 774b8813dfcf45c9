/* rooms: transfer base
 *
 * Whatever happens to a prompt in whatever order: its ticket is ended exactly once, nothing is
 * stored or used but what may be, CANCEL is sent at most once, the credit is exact, and every wait
 * has a deadline. Two bytes an event; a model beside the machine keeps the account.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "transfer/client.h"

#define DO(name) BT_TRANSFER_CLIENT_DO_##name
#define ON(name) BT_TRANSFER_CLIENT_ON_##name

enum { WINDOW = 4096, EVENTS_MAX = 4096 };

typedef struct {
    bt_transfer_client c;
    uint64_t now_ns;
    uint64_t granted, received, stored;    /* bytes */
    uint32_t n_checkpoints, n_kept, n_ends, n_cancels, n_hedges;
    bool     committed, storing, lost;
    bool     broken;                       /* DISCONNECT: all that may follow is LOST */
} model;

/* ---- what must hold of each answer ---- */

static void check_order(const model *m, uint32_t todo, bt_transfer_client_state was)
{
    BT_ASSERT(m->c.state >= was);
    if (todo & DO(STORE)) {
        BT_ASSERT(m->n_ends == 0 && m->n_cancels == 0 && was == BT_TRANSFER_CLIENT_SENT);
    }
    if (todo & (DO(STORE_CHECKPOINT) | DO(KEEP_CHECKPOINT))) {
        BT_ASSERT(m->committed && m->n_cancels == 0);
    }
    if (todo & DO(SEND_CANCEL)) {
        BT_ASSERT(was != BT_TRANSFER_CLIENT_WAITING && m->n_cancels == 0);
    }
    if (m->lost) {
        BT_ASSERT(was == BT_TRANSFER_CLIENT_DONE && (todo & ~(uint32_t)DO(LATE)) == 0);
    }
    if (todo & DO(DISCONNECT)) {
        BT_ASSERT(was == BT_TRANSFER_CLIENT_SENT);
    }
}

static void check_account(const model *m)
{
    const bt_transfer_client *c = &m->c;
    BT_ASSERT(m->received <= m->granted && m->stored <= m->received);
    BT_ASSERT(c->credit_left == m->granted - m->received);
    BT_ASSERT(m->granted == 0 || m->granted <= WINDOW + m->stored);
    BT_ASSERT(bt_transfer_client_credit_due(c) <= m->stored);
    BT_ASSERT(m->n_ends <= 1 && m->n_cancels <= 1 && m->n_hedges <= 1);
    BT_ASSERT(m->n_kept <= m->n_checkpoints);
    BT_ASSERT(c->state != BT_TRANSFER_CLIENT_DONE || m->n_ends == 1);
    BT_ASSERT(c->ended == (m->n_ends == 1));
    if (c->state != BT_TRANSFER_CLIENT_WAITING && c->state != BT_TRANSFER_CLIENT_DONE) {
        BT_ASSERT(bt_transfer_client_deadline(c) != BT_TRANSFER_NEVER);
    }
}

static void carry_out(model *m, uint32_t todo, bt_transfer_client_state was, uint32_t size)
{
    check_order(m, todo, was);
    m->n_ends += (todo & BT_TRANSFER_CLIENT_END_ANY) != 0;
    m->n_cancels += (todo & DO(SEND_CANCEL)) != 0;
    m->n_hedges += (todo & DO(PREFILL_HERE)) != 0;
    m->n_kept += (todo & DO(KEEP_CHECKPOINT)) != 0;
    m->committed |= (todo & DO(END_COMMIT)) != 0;
    m->broken |= (todo & DO(DISCONNECT)) != 0;
    m->storing = (todo & (DO(STORE) | DO(STORE_CHECKPOINT))) != 0;
    m->received += m->storing ? size : 0;
    check_account(m);
}

/* ---- events ---- */

static void put(model *m, bt_transfer_client_input i)
{
    const bt_transfer_client_state was = m->c.state;
    carry_out(m, bt_transfer_client_put(&m->c, i, m->now_ns), was, 0);
}

/* A part is stored, or not, before anything else happens on this thread. */
static void finish_part(model *m, uint32_t size, uint8_t how)
{
    if (!m->storing) {
        return;
    }
    m->storing = false;
    m->stored += how < 224 ? size : 0;
    put(m, how < 224 ? ON(STORED) : how < 240 ? ON(GONE) : ON(UNSTORED));
    const uint64_t due = bt_transfer_client_credit_due(&m->c);
    if (due > 0 && how % 4 != 0) {         /* else the queue is full: tried again */
        m->granted += due;
        bt_transfer_client_credit_given(&m->c, due);
    }
}

static void frame(model *m, uint8_t kind, uint8_t with)
{
    const bt_transfer_client_state was = m->c.state;
    const uint32_t size = (uint32_t)with * 16;
    const uint32_t todo = bt_transfer_client_frame(&m->c, (bt_transfer_frame)(kind % 7), with % 16,
                                                   size, m->now_ns);
    carry_out(m, todo, was, size);
    finish_part(m, size, with);
}

static void tick(model *m, uint8_t by)
{
    m->now_ns += (uint64_t)by * by * 20000000;
    for (int i = 0; i < 4; i++) {
        const bt_transfer_client_state was = m->c.state;
        carry_out(m, bt_transfer_client_tick(&m->c, m->now_ns), was, 0);
    }
    BT_ASSERT(bt_transfer_client_deadline(&m->c) > m->now_ns);
}

static void post(model *m)
{
    const bt_transfer_client_state was = m->c.state;
    m->granted += was == BT_TRANSFER_CLIENT_WAITING ? WINDOW : 0;
    carry_out(m, bt_transfer_client_posted(&m->c, WINDOW, m->now_ns), was, 0);
}

static void lose(model *m)
{
    if (!m->lost) {
        put(m, ON(LOST));
        m->lost = true;
    }
}

static void one(model *m, uint8_t kind, uint8_t with)
{
    static const bt_transfer_client_input inputs[] = { ON(UNSENDABLE), ON(CANCEL), ON(DRAINING),
                                                       ON(CROWDED), ON(CANCEL) };
    const bt_transfer_forecast f = { with % 3 * 1e3, with % 5 * 1e9, with % 7 * 1e12 };
    switch (kind % 16) {
    case 0: case 1: post(m); break;
    case 2: tick(m, with); break;
    case 3: put(m, inputs[with % BT_LEN(inputs)]); break;
    case 4: bt_transfer_client_set_patience(&m->c, &f); break;
    case 5: if (with >= 250) { lose(m); } break;
    default: frame(m, (uint8_t)(kind >> 4), with); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model m = { .now_ns = 1 };
    if (size < 2) {
        return 0;
    }
    m.n_checkpoints = data[0] % 4;
    bt_transfer_client_init(&m.c, m.n_checkpoints,
                            data[1] % 2 ? BT_TRANSFER_NEVER : (uint64_t)data[1] * 10000000);
    bt_transfer_client_set_patience(&m.c, &(bt_transfer_forecast){ 0 });
    for (size_t at = 2; at + 1 < size && at < 2 * EVENTS_MAX; at += 2) {
        one(&m, data[at], data[at + 1]);
        if (m.broken) {
            lose(&m);
        }
    }
    lose(&m);                              /* in the end every connection ends */
    BT_ASSERT(m.c.state == BT_TRANSFER_CLIENT_DONE && m.n_ends == 1);
    return 0;
}
