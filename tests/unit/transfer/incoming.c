/* tests/unit/transfer/incoming.c - frames of a prompt's stream: kinds, credit, reasons. What the
 * receipt expects is in unit/transfer/receipt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "transfer/incoming.h"

enum { LAYERS = 1, ROW = 8, END = 10 };

static bt_kv_layer layer = { .k_dim = 4, .v_dim = 4, .k_row_bytes = ROW, .v_row_bytes = ROW };
static const bt_kv_layout layout = { .page_tokens = 32, .type_k = BT_TYPE_F16,
                                     .type_v = BT_TYPE_F16, .n_layers = LAYERS, .layers = &layer };
static const uint64_t state_bytes[LAYERS] = { 16 };
static uint8_t body[512];

typedef struct {
    bt_kv_form form;
    bt_transfer_client  c;
    bt_transfer_receipt receipt;
} stream;

static stream open_stream(uint64_t credit)
{
    stream s = { .form = bt_kv_codec_stored(&layout) };
    bt_transfer_client_init(&s.c, 1, BT_TRANSFER_NEVER);
    (void)bt_transfer_client_posted(&s.c, credit, 1);
    return s;
}

static bt_status take(stream *s, const bt_frame *f, uint32_t position, bt_error *err)
{
    bt_transfer_message m;
    return bt_transfer_incoming_read(&s->c, &s->receipt, position, f, &m, err);
}

static void open_receipt(stream *s)
{
    const bt_wire_prefill asked = { .nonce = 1, .epoch = 1, .position_end = END };
    assert_int_equal(bt_transfer_receipt_open(&s->receipt, &s->form, state_bytes, 1, &asked, NULL),
                     BT_OK);
}

#define FRAME(TYPE, name, ...)                                                          \
    frame_of(BT_WIRE_##TYPE, encode_##name(&(bt_wire_##name){ __VA_ARGS__ }))
#define ENCODER(name)                                                                   \
    static uint32_t encode_##name(const bt_wire_##name *m)                              \
    {                                                                                   \
        size_t size = 0;                                                                \
        assert_int_equal(bt_wire_##name##_encode(m, body, sizeof body, &size, NULL), BT_OK); \
        return (uint32_t)size;                                                          \
    }
ENCODER(rows)
ENCODER(state)
ENCODER(chunk)
ENCODER(error)

static bt_frame frame_of(uint16_t type, uint32_t size)
{
    return (bt_frame){ .type = type, .stream = 1, .size = size, .body = body };
}

static void kinds(void **state)
{
    (void)state;
    static const struct { uint16_t type; bt_transfer_frame kind; } cases[] = {
        { BT_WIRE_ROWS, BT_TRANSFER_FRAME_ROWS }, { BT_WIRE_STATE, BT_TRANSFER_FRAME_STATE },
        { BT_WIRE_CHUNK, BT_TRANSFER_FRAME_CHUNK }, { BT_WIRE_COMMIT, BT_TRANSFER_FRAME_COMMIT },
        { BT_WIRE_ERROR, BT_TRANSFER_FRAME_ERROR },
        { BT_WIRE_CANCELLED, BT_TRANSFER_FRAME_CANCELLED },
        { BT_WIRE_HELLO, BT_TRANSFER_FRAME_OTHER }, { 0xFFFF, BT_TRANSFER_FRAME_OTHER },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        const bt_frame f = { .type = cases[i].type };
        assert_int_equal(bt_transfer_incoming_kind(&f), cases[i].kind);
    }
}

static void parts_are_held_against_the_credit(void **state)
{
    (void)state;
    static const uint8_t rows[2 * ROW] = { 0 };
    const bt_wire_bytes two = { rows, sizeof rows };
    for (int over = 0; over < 2; over++) {
        bt_error err = { 0 };
        const bt_frame f = FRAME(ROWS, rows, .n = 2, .k = two, .v = two);
        stream s = open_stream(f.size - (uint32_t)over);
        open_receipt(&s);
        assert_int_equal(take(&s, &f, END, &err), over ? BT_E_PROTOCOL : BT_OK);
        assert_true(!over || strstr(err.text, "credit"));
        const bt_frame g = FRAME(STATE, state, .position = END, .total = 16, .data = two);
        s.c.credit_left = g.size - (uint32_t)over;
        assert_int_equal(take(&s, &g, END, &err), over ? BT_E_PROTOCOL : BT_OK);
        bt_transfer_receipt_close(&s.receipt);
    }
}

/* A checkpoint is closed when all of it has come, or nothing; at its own position only. */
static void checkpoints_are_whole_or_nothing(void **state)
{
    (void)state;
    static const uint8_t half[8] = { 0 };
    stream s = open_stream(1 << 20);
    bt_error err;
    open_receipt(&s);
    s.c.state = BT_TRANSFER_CLIENT_PENDING;
    const bt_digest digest = bt_wire_tally_value(s.receipt.tally);
    bt_frame f = FRAME(CHUNK, chunk, .position_end = 7, .digest = digest);
    assert_int_equal(take(&s, &f, 6, &err), BT_E_PROTOCOL);
    assert_int_equal(take(&s, &f, 7, &err), BT_OK);
    const bt_wire_state m = { .position = 7, .total = 16, .data = { half, sizeof half } };
    const bt_frame part = frame_of(BT_WIRE_STATE, encode_state(&m));
    bt_transfer_receipt_enter_state(&s.receipt, &m, &part);
    f = FRAME(CHUNK, chunk, .position_end = 7, .n_frames = 1,
              .digest = bt_wire_tally_value(s.receipt.tally));
    assert_int_equal(take(&s, &f, 7, &err), BT_E_PROTOCOL);
    assert_non_null(strstr(err.text, "not whole"));
    bt_transfer_receipt_close(&s.receipt);
}

static void an_error_is_always_one(void **state)
{
    (void)state;
    static const struct { uint32_t wire; bt_status status; } cases[] = {
        { BT_OK, BT_E_PROTOCOL }, { BT_E_AGAIN, BT_E_PROTOCOL }, { BT_E_FULL, BT_E_FULL },
        { BT_E_DEVICE, BT_E_DEVICE }, { UINT32_MAX, BT_E_PROTOCOL },
    };
    for (size_t i = 0; i < BT_LEN(cases); i++) {
        bt_error err;
        const bt_frame f = FRAME(ERROR, error, .status = cases[i].wire,
                                 .sentence = bt_wire_text_of("enough"));
        assert_int_equal(bt_transfer_incoming_error(&f, "it said: ", &err), cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_string_equal(err.text, "it said: enough");
    }
    bt_error err;
    const bt_frame cut = { .type = BT_WIRE_ERROR, .size = 3, .body = body };
    assert_int_equal(bt_transfer_incoming_error(&cut, "", &err), BT_E_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(parts_are_held_against_the_credit),
        cmocka_unit_test(checkpoints_are_whole_or_nothing),
        cmocka_unit_test(an_error_is_always_one),
    };
    return cmocka_run_group_tests_name("transfer/incoming", tests, NULL, NULL);
}
