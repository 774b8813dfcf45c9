/* tests/unit/wire/identity.c - what must be equal is, or the first that is not gets named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "wire/identity.h"

static bt_wire_hello hello(void)
{
    bt_wire_hello h = {.version_major = BT_WIRE_VERSION_MAJOR,
                       .version_minor = 3,
                       .session = 5,
                       .kv_format = 1,
                       .type_k = 1,
                       .type_v = 1,
                       .n_layers = 30,
                       .token_bytes = 4096,
                       .numerics = bt_wire_text_of("avx2"),
                       .model = bt_wire_text_of("a.gguf"),
                       .program = bt_wire_text_of("baton 1")};
    memset(h.weights.bytes, 0xAB, 16);
    return h;
}

static void equal_ones_fit(void **state)
{
    (void)state;
    bt_wire_hello server = hello();
    const bt_wire_hello worker = hello();
    bt_wire_misfit misfit;

    assert_true(bt_wire_identity_fits(&server, &worker, &misfit));
    /* None of these is a difference of meaning. */
    server.session = 6;
    server.numerics = bt_wire_text_of("neon");
    server.model = bt_wire_text_of("b.gguf");
    server.program = bt_wire_text_of("other");
    server.version_minor = 0;
    assert_true(bt_wire_identity_fits(&server, &worker, &misfit));
}

static void expect_misfit(const bt_wire_hello *server, const char *field, const char *server_value,
                          const char *worker_value)
{
    const bt_wire_hello worker = hello();
    bt_wire_misfit misfit;

    assert_false(bt_wire_identity_fits(server, &worker, &misfit));
    assert_int_equal(misfit.status, BT_E_REFUSED);
    assert_string_equal(misfit.field, field);
    assert_string_equal(misfit.server_value, server_value);
    assert_string_equal(misfit.worker_value, worker_value);
    /* The sentence begins a digest; the fields have all of it. */
    char begin[11];
    snprintf(begin, sizeof begin, "%s", server_value);
    assert_non_null(strstr(misfit.sentence, begin));
    snprintf(begin, sizeof begin, "%s", worker_value);
    assert_non_null(strstr(misfit.sentence, begin));

    /* And all of it goes through a REJECT. */
    const bt_wire_reject sent = bt_wire_misfit_reject(&misfit);
    bt_wire_reject got;
    uint8_t body[1024];
    char text[400];
    size_t size;
    assert_int_equal(bt_wire_reject_encode(&sent, body, sizeof body, &size, NULL), BT_OK);
    assert_int_equal(bt_wire_reject_decode(body, size, &got, NULL), BT_OK);
    assert_int_equal(got.status, BT_E_REFUSED);
    assert_string_equal(bt_wire_text_copy(got.field, text, sizeof text), field);
    assert_string_equal(bt_wire_text_copy(got.sentence, text, sizeof text), misfit.sentence);
}

static void versions_follow_their_rule(void **state)
{
    (void)state;
    bt_wire_hello server = hello();
    server.version_minor = 4;
    expect_misfit(&server, "version", "1.4", "1.3");
    server.version_minor = 0;
    server.version_major = 2;
    expect_misfit(&server, "version", "2.0", "1.3");
    server.version_major = 0;
    expect_misfit(&server, "version", "0.0", "1.3");
}

static void every_identity_field_is_compared(void **state)
{
    (void)state;
    static const char zeros[] = "00000000000000000000000000000000",
                      ones[] = "01000000000000000000000000000000";
    bt_wire_hello server;
    int n = 0;

#define TRY(field_, value_, server_value, worker_value)                \
    server = hello();                                                  \
    server.field_ = (value_);                                          \
    expect_misfit(&server, #field_, (server_value), (worker_value));   \
    n++;
    const bt_digest one = {{1}};
    TRY(kv_format, 2, "2", "1")
    TRY(geometry, one, ones, zeros)
    TRY(tokenizer, one, ones, zeros)
    TRY(weights, one, ones, "abababababababababababababababab")
    TRY(draft, one, ones, zeros)
    TRY(type_k, 8, "8", "1")
    TRY(type_v, 0, "0", "1")
    TRY(n_layers, 29, "29", "30")
    TRY(token_bytes, 1ull << 40, "1099511627776", "4096")
#undef TRY
    int fields = 0;
#define F(type, name, doc) fields++;
    BT_WIRE_IDENTITY_FIELDS(F)
#undef F
    assert_int_equal(n, fields);                /* a new field needs its line above */
}

static void the_first_difference_is_the_one_named(void **state)
{
    (void)state;
    bt_wire_hello server = hello();
    server.n_layers = 1;
    server.type_k = 8;
    expect_misfit(&server, "type_k", "8", "1");
}

static void names_of_strangers_do_not_reach_the_terminal(void **state)
{
    (void)state;
    bt_wire_hello server = hello();
    const bt_wire_hello worker = hello();
    bt_wire_misfit misfit;
    server.model = bt_wire_text_of("x\x1b]0;title\x07");
    server.n_layers = 1;
    assert_false(bt_wire_identity_fits(&server, &worker, &misfit));
    assert_null(strchr(misfit.sentence, '\x1b'));
    assert_non_null(strstr(misfit.sentence, "x?]0;title?"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_ones_fit),
        cmocka_unit_test(versions_follow_their_rule),
        cmocka_unit_test(every_identity_field_is_compared),
        cmocka_unit_test(the_first_difference_is_the_one_named),
        cmocka_unit_test(names_of_strangers_do_not_reach_the_terminal),
    };
    return cmocka_run_group_tests_name("wire/identity", tests, NULL, NULL);
}
