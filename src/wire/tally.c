/* wire/tally.c - see docs/wire.md, "The running digest". */
#include "wire/tally.h"

#include <inttypes.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/memory.h"

struct bt_wire_tally {
    bt_digester *digester;
    uint64_t     nonce, epoch;
    uint32_t     position_first, position_end;
    uint64_t     n_frames, n_bytes;
};

bt_status bt_wire_tally_open(uint32_t stream, const bt_wire_prefill *prefill,
                             bt_wire_tally **ret_tally, bt_error *err)
{
    bt_wire_tally *t = bt_alloc_zero(BT_MEM_wire, 1, sizeof *t);

    if (t == NULL || bt_digester_create(&t->digester) != BT_OK) {
        bt_free(t);
        return bt_fail(err, BT_E_NOMEM, "no memory for the digest of a stream");
    }
    t->nonce = prefill->nonce;
    t->epoch = prefill->epoch;
    t->position_first = prefill->position_first;
    t->position_end = prefill->position_end;

    uint8_t opening[28];
    bt_put_le64(opening, prefill->nonce);
    bt_put_le64(opening + 8, prefill->epoch);
    bt_put_le32(opening + 16, stream);
    bt_put_le32(opening + 20, prefill->position_first);
    bt_put_le32(opening + 24, prefill->position_end);
    bt_digester_put(t->digester, opening, sizeof opening);
    *ret_tally = t;
    return BT_OK;
}

void bt_wire_tally_close(bt_wire_tally *t)
{
    if (t != NULL) {
        bt_digester_destroy(t->digester);
        bt_free(t);
    }
}

void bt_wire_tally_put(bt_wire_tally *t, uint16_t type, uint32_t size, uint64_t hash)
{
    BT_ASSERT(type == BT_WIRE_ROWS || type == BT_WIRE_STATE);

    uint8_t entry[16];
    bt_put_le32(entry, type);
    bt_put_le32(entry + 4, size);
    bt_put_le64(entry + 8, hash);
    bt_digester_put(t->digester, entry, sizeof entry);
    t->n_frames++;
    t->n_bytes += size;
}

uint64_t  bt_wire_tally_frames(const bt_wire_tally *t) { return t->n_frames; }
uint64_t  bt_wire_tally_bytes(const bt_wire_tally *t) { return t->n_bytes; }
bt_digest bt_wire_tally_value(const bt_wire_tally *t) { return bt_digester_value(t->digester); }

static bt_status check_number(const char *message, const char *field, uint64_t theirs,
                              uint64_t ours, bt_error *err)
{
    if (theirs == ours) {
        return BT_OK;
    }
    return bt_fail(err, BT_E_PROTOCOL, "%s: '%s' is %" PRIu64 " there and %" PRIu64 " here",
                   message, field, theirs, ours);
}

static bt_status check_digest(const char *message, const bt_wire_tally *t, const bt_digest *theirs,
                              bt_error *err)
{
    const bt_digest ours = bt_wire_tally_value(t);
    if (bt_digest_equal(&ours, theirs)) {
        return BT_OK;
    }
    char there[BT_DIGEST_TEXT_MAX], here[BT_DIGEST_TEXT_MAX];
    bt_digest_text(theirs, there);
    bt_digest_text(&ours, here);
    return bt_fail(err, BT_E_PROTOCOL, "%s: the digest of the rows is %s there and %s here",
                   message, there, here);
}

bt_status bt_wire_tally_check_chunk(const bt_wire_tally *t, const bt_wire_chunk *m, bt_error *err)
{
    if (m->position_end <= t->position_first || m->position_end > t->position_end) {
        return bt_fail(err, BT_E_PROTOCOL,
                       "CHUNK: 'position_end' is %u, not above %u and up to %u", m->position_end,
                       t->position_first, t->position_end);
    }
    BT_TRY(check_number("CHUNK", "n_frames", m->n_frames, t->n_frames, err));
    return check_digest("CHUNK", t, &m->digest, err);
}

bt_status bt_wire_tally_check_commit(const bt_wire_tally *t, const bt_wire_commit *m, bt_error *err)
{
    BT_TRY(check_number("COMMIT", "nonce", m->nonce, t->nonce, err));
    BT_TRY(check_number("COMMIT", "epoch", m->epoch, t->epoch, err));
    BT_TRY(check_number("COMMIT", "position_first", m->position_first, t->position_first, err));
    BT_TRY(check_number("COMMIT", "position_end", m->position_end, t->position_end, err));
    BT_TRY(check_number("COMMIT", "n_frames", m->n_frames, t->n_frames, err));
    BT_TRY(check_number("COMMIT", "n_bytes", m->n_bytes, t->n_bytes, err));
    return check_digest("COMMIT", t, &m->digest, err);
}
