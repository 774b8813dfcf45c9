/* wire/codec.c - one encoder and one decoder per field type; messages are lists of fields.
 *
 * Both sides carry a sticky error: after the first field that does not fit, later ones do nothing,
 * and the end of the message asks once. The failing field's name comes from the table.
 */
#include "wire/codec.h"

#include "base/check.h"

/* ---- out ---- */

typedef struct {
    uint8_t    *to;
    size_t      room, at;
    const char *field;          /* the first that failed; NULL: none */
    const char *why;
} encoder;

static uint8_t *claim(encoder *e, size_t n, const char *field)
{
    if (e->field != NULL) {
        return NULL;
    }
    if (n > e->room - e->at) {
        e->field = field;
        e->why = "no room for it";
        return NULL;
    }
    uint8_t *p = e->to + e->at;
    e->at += n;
    return p;
}

static void put_u32(encoder *e, uint32_t v, const char *field)
{
    uint8_t *p = claim(e, 4, field);
    if (p != NULL) {
        bt_put_le32(p, v);
    }
}

static void put_u64(encoder *e, uint64_t v, const char *field)
{
    uint8_t *p = claim(e, 8, field);
    if (p != NULL) {
        bt_put_le64(p, v);
    }
}

static void put_digest(encoder *e, bt_digest v, const char *field)
{
    uint8_t *p = claim(e, sizeof v.bytes, field);
    if (p != NULL) {
        memcpy(p, v.bytes, sizeof v.bytes);
    }
}

/* A count, then `n` times `unit` bytes. */
static void put_span(encoder *e, const void *data, uint32_t n, uint32_t n_max, size_t unit,
                     const char *field)
{
    if (n > n_max && e->field == NULL) {
        e->field = field;
        e->why = "longer than allowed";
    }
    put_u32(e, n, field);
    uint8_t *p = claim(e, (size_t)n * unit, field);
    if (p != NULL && n > 0) {
        memcpy(p, data, (size_t)n * unit);
    }
}

static void put_text(encoder *e, bt_wire_text v, const char *field)
{
    put_span(e, v.data, v.size, BT_WIRE_TEXT_BYTES_MAX, 1, field);
}

static void put_tokens(encoder *e, bt_wire_ids v, const char *field)
{
    put_span(e, v.data, v.n, BT_WIRE_TOKENS_PER_FRAME_MAX, 4, field);
}

static void put_bytes(encoder *e, bt_wire_bytes v, const char *field)
{
    put_span(e, v.data, v.size, BT_WIRE_BODY_BYTES_MAX, 1, field);
}

static size_t size_u32(uint32_t v) { return (void)v, (size_t)4; }
static size_t size_u64(uint64_t v) { return (void)v, (size_t)8; }
static size_t size_digest(bt_digest v) { return sizeof v.bytes; }
static size_t size_text(bt_wire_text v) { return 4 + (size_t)v.size; }
static size_t size_tokens(bt_wire_ids v) { return 4 + (size_t)v.n * 4; }
static size_t size_bytes(bt_wire_bytes v) { return 4 + (size_t)v.size; }

/* ---- in ---- */

typedef struct {
    bt_reader   r;
    const char *field;          /* the first that failed; NULL: none */
    uint32_t    n, n_max;       /* why: n over n_max, or cut short when n is no larger */
} decoder;

static void note(decoder *d, const char *field)
{
    if (d->r.failed && d->field == NULL) {
        d->field = field;
    }
}

static uint32_t get_u32(decoder *d, const char *field)
{
    const uint32_t v = bt_reader_u32(&d->r);
    note(d, field);
    return v;
}

static uint64_t get_u64(decoder *d, const char *field)
{
    const uint64_t v = bt_reader_u64(&d->r);
    note(d, field);
    return v;
}

static bt_digest get_digest(decoder *d, const char *field)
{
    bt_digest v = {{0}};
    const uint8_t *p = bt_reader_take(&d->r, sizeof v.bytes);
    if (p != NULL) {
        memcpy(v.bytes, p, sizeof v.bytes);
    }
    note(d, field);
    return v;
}

/* NULL with *ret_n 0 after a failure. n * unit cannot overflow: the count is held against its limit
 * first, and the largest limit times 4 fits 32 bits. */
static const uint8_t *get_span(decoder *d, uint32_t n_max, size_t unit, uint32_t *ret_n,
                               const char *field)
{
    const uint32_t n = bt_reader_u32(&d->r);
    if (!d->r.failed && n > n_max) {
        d->r.failed = true;
        d->n = n;
        d->n_max = n_max;
    }
    const uint8_t *p = bt_reader_take(&d->r, (size_t)n * unit);
    note(d, field);
    *ret_n = p != NULL ? n : 0;
    return p;
}

static bt_wire_text get_text(decoder *d, const char *field)
{
    bt_wire_text v;
    v.data = (const char *)get_span(d, BT_WIRE_TEXT_BYTES_MAX, 1, &v.size, field);
    return v;
}

static bt_wire_ids get_tokens(decoder *d, const char *field)
{
    bt_wire_ids v;
    v.data = get_span(d, BT_WIRE_TOKENS_PER_FRAME_MAX, 4, &v.n, field);
    return v;
}

static bt_wire_bytes get_bytes(decoder *d, const char *field)
{
    bt_wire_bytes v;
    v.data = get_span(d, BT_WIRE_BODY_BYTES_MAX, 1, &v.size, field);
    return v;
}

static bt_status fail_decode(const decoder *d, const char *message, size_t size, bt_error *err)
{
    if (d->n > d->n_max) {
        return bt_fail(err, BT_E_PROTOCOL, "%s from the peer: '%s' has %u, at most %u", message,
                       d->field, d->n, d->n_max);
    }
    return bt_fail(err, BT_E_PROTOCOL, "%s from the peer: cut short in '%s' (%zu bytes)", message,
                   d->field, size);
}

/* ---- messages ---- */

#define SIZE_OF(type, name, doc) n += size_##type(m->name);
#define PUT(type, name, doc) put_##type(&e, m->name, #name);
#define GET(type, name, doc) m.name = get_##type(&d, #name);

#define X(NAME, message, number, FIELDS, sender, doc)                                              \
    size_t bt_wire_##message##_size(const bt_wire_##message *m)                                    \
    {                                                                                              \
        size_t n = 0;                                                                              \
        FIELDS(SIZE_OF)                                                                            \
        return n;                                                                                  \
    }                                                                                              \
                                                                                                   \
    bt_status bt_wire_##message##_encode(const bt_wire_##message *m, uint8_t *to, size_t room,     \
                                         size_t *ret_size, bt_error *err)                          \
    {                                                                                              \
        encoder e = {.to = to,                                                                     \
                     .room = room < BT_WIRE_BODY_BYTES_MAX ? room : BT_WIRE_BODY_BYTES_MAX};       \
        FIELDS(PUT)                                                                                \
        if (e.field != NULL) {                                                                     \
            return bt_fail(err, BT_E_BADINPUT, #NAME ": '%s' %s", e.field, e.why);                 \
        }                                                                                          \
        *ret_size = e.at;                                                                          \
        return BT_OK;                                                                              \
    }                                                                                              \
                                                                                                   \
    bt_status bt_wire_##message##_decode(const void *body, size_t size, bt_wire_##message *ret,    \
                                         bt_error *err)                                            \
    {                                                                                              \
        decoder d = {.field = NULL};                                                               \
        bt_wire_##message m;                                                                       \
        bt_reader_init(&d.r, body, size);                                                          \
        FIELDS(GET)                                                                                \
        if (d.field != NULL) {                                                                     \
            return fail_decode(&d, #NAME, size, err);                                              \
        }                                                                                          \
        *ret = m;                                                                                  \
        return BT_OK;                                                                              \
    }
BT_WIRE_MESSAGE_LIST(X)
#undef X

const char *bt_wire_type_name(unsigned type)
{
    switch (type) {
#define X(NAME, name, number, FIELDS, sender, doc)                                                 \
    case number:                                                                                   \
        return #NAME;
        BT_WIRE_MESSAGE_LIST(X)
#undef X
    default:
        return "unknown";
    }
}

bool bt_wire_type_known(unsigned type)
{
    switch (type) {
#define X(NAME, name, number, FIELDS, sender, doc) case number:
        BT_WIRE_MESSAGE_LIST(X)
#undef X
        return true;
    default:
        return false;
    }
}

/* ---- fields ---- */

bt_wire_text bt_wire_text_of(const char *text)
{
    const size_t n = text != NULL ? strlen(text) : 0;
    return (bt_wire_text){.data = n > 0 ? text : "",
                          .size = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX};
}

/* Bytes of the well-formed character at p[0 .. n), 0 if there is none. */
static size_t utf8_length(const uint8_t *p, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t length = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3
                          : p[0] < 0xF5 ? 4 : 0;
    if (length <= 1 || length > n) {
        return length <= 1 ? length : 0;
    }
    uint32_t c = p[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return 0;
        }
        c = c << 6 | (p[i] & 0x3Fu);
    }
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    /* U+0080 .. U+009F control a terminal too. */
    return c < least[length] || c > 0x10FFFF || surrogate || c < 0xA0 ? 0 : length;
}

char *bt_wire_text_copy(bt_wire_text text, char *to, size_t room)
{
    BT_ASSERT(room > 0);

    const uint8_t *from = (const uint8_t *)text.data;
    size_t at = 0;

    for (size_t i = 0; i < text.size;) {
        const size_t length = utf8_length(from + i, text.size - i);
        const bool printable = length > 1 || (length == 1 && from[i] >= 0x20 && from[i] != 0x7F);
        const size_t out = printable ? length : 1;
        if (out > room - 1 - at) {
            break;
        }
        if (printable) {
            memcpy(to + at, from + i, length);
        } else {
            to[at] = '?';
        }
        at += out;
        i += out;
    }
    to[at] = '\0';
    return to;
}

uint32_t bt_wire_token(bt_wire_ids ids, uint32_t index)
{
    BT_ASSERT_HOT(index < ids.n);
    return bt_get_le32(ids.data + (size_t)index * 4);
}

void bt_wire_tokens_copy(bt_wire_ids ids, uint32_t *to)
{
    for (uint32_t i = 0; i < ids.n; i++) {
        to[i] = bt_get_le32(ids.data + (size_t)i * 4);
    }
}

/* ---- ROWS in place: layer, position, n, size of K, K, size of V, V ---- */

enum { ROWS_K_AT = 16, ROWS_FIXED_BYTES = 20 };

size_t bt_wire_rows_place_size(size_t k_size, size_t v_size)
{
    return ROWS_FIXED_BYTES + k_size + v_size;
}

void bt_wire_rows_place(uint8_t *to, uint32_t layer, uint32_t position, uint32_t n, uint32_t k_size,
                        uint32_t v_size, uint8_t **ret_k, uint8_t **ret_v)
{
    bt_put_le32(to, layer);
    bt_put_le32(to + 4, position);
    bt_put_le32(to + 8, n);
    bt_put_le32(to + 12, k_size);
    bt_put_le32(to + ROWS_K_AT + k_size, v_size);
    *ret_k = to + ROWS_K_AT;
    *ret_v = to + ROWS_FIXED_BYTES + k_size;
}

uint32_t bt_wire_rows_fit(size_t row_bytes)
{
    BT_ASSERT(row_bytes > 0);
    return (uint32_t)((BT_WIRE_BODY_BYTES_MAX - ROWS_FIXED_BYTES) / row_bytes);
}

enum { STATE_FIXED_BYTES = 24 };

size_t bt_wire_state_place_size(uint32_t size)
{
    return STATE_FIXED_BYTES + (size_t)size;
}

uint8_t *bt_wire_state_place(uint8_t *to, const bt_wire_state *m, uint32_t size)
{
    bt_put_le32(to, m->layer);
    bt_put_le32(to + 4, m->kind);
    bt_put_le32(to + 8, m->position);
    bt_put_le32(to + 12, m->offset);
    bt_put_le32(to + 16, m->total);
    bt_put_le32(to + 20, size);
    return to + STATE_FIXED_BYTES;
}
