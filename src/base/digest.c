#include "base/digest.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"

struct bt_digester {
    XXH3_state_t *state;
};

bt_status bt_digester_create(bt_digester **ret_digester)
{
    bt_digester *d = bt_alloc(BT_MEM_base, sizeof *d);
    if (!d) {
        return BT_E_NOMEM;
    }
    d->state = XXH3_createState();
    if (!d->state) {
        bt_free(d);
        return BT_E_NOMEM;
    }
    bt_digester_reset(d);
    *ret_digester = d;
    return BT_OK;
}

void bt_digester_destroy(bt_digester *d)
{
    if (d) {
        XXH3_freeState(d->state);
        bt_free(d);
    }
}

void bt_digester_reset(bt_digester *d)
{
    XXH3_128bits_reset(d->state);
}

void bt_digester_put(bt_digester *d, const void *bytes, size_t n)
{
    XXH3_128bits_update(d->state, bytes, n);
}

static bt_digest canonical(XXH128_hash_t hash)
{
    bt_digest d;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, hash);
    memcpy(d.bytes, c.digest, sizeof d.bytes);
    return d;
}

bt_digest bt_digester_value(const bt_digester *d)
{
    return canonical(XXH3_128bits_digest(d->state));
}

bt_digest bt_digest_of(const void *bytes, size_t n)
{
    return canonical(XXH3_128bits(bytes, n));
}

uint64_t bt_hash64(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, n, seed);
}

uint32_t bt_checksum32(const void *bytes, size_t n)
{
    return (uint32_t)XXH3_64bits(bytes, n);
}

bool bt_digest_equal(const bt_digest *a, const bt_digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void bt_digest_text(const bt_digest *d, char to[BT_DIGEST_TEXT_MAX])
{
    for (size_t i = 0; i < sizeof d->bytes; i++) {
        snprintf(to + 2 * i, 3, "%02x", d->bytes[i]);
    }
}
