/* tests/unit/worker/probe.c - probe clients of a worker: what they see, what they may ask for,
 * and that they cost the worker and its servers nothing beyond it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "doctor/probe.h"
#include "handoff/identity.h"
#include "worker/worker.h"
#include "unit/handoff/fake_engine.h"

typedef struct {
    bt_engine *engine;
    bt_worker *worker;
} bench;

static int bench_open(void **state)
{
    bench *x = calloc(1, sizeof *x);
    bt_error err = { 0 };
    x->engine = fake_engine_new(true, 16, 1);
    const bt_worker_options o = { .listen = "127.0.0.1:0", .numerics = "ref", .n_peers = 3 };
    assert_int_equal(bt_worker_open(&o, x->engine, &x->worker, &err), BT_OK);
    *state = x;
    return 0;
}

static int bench_close(void **state)
{
    bench *x = *state;
    bt_worker_close(x->worker);
    fake_engine_free(x->engine);
    free(x);
    return 0;
}

static bt_probe *visit(const bench *x)
{
    bt_probe *v = NULL;
    bt_error err = { 0 };
    if (bt_doctor_probe_open(bt_worker_address(x->worker), &(bt_link_options){0}, &v,
                             &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return v;
}

static void facts_are_the_workers(void **state)
{
    const bench *x = *state;
    bt_probe *v = visit(x);
    const bt_probe_facts *f = bt_doctor_probe_facts_of(v);
    const bt_wire_hello own = bt_handoff_hello(x->engine, 0, "");
    bt_wire_misfit misfit;
    assert_true(bt_wire_identity_fits(&own, &f->own, &misfit));
    assert_int_equal(f->n_ctx, FAKE_CTX);
    assert_int_equal(f->chunk_tokens, 16);
    assert_int_equal(f->n_servers, 0);
    assert_int_equal(f->n_servers_max, 3);
    assert_false(f->draining || f->encrypted);
    assert_string_equal(f->numerics, "ref");
    assert_string_equal(f->model, "fake");
    assert_string_equal(f->program, BT_WIRE_PROGRAM);
    assert_true(f->send_buffer > 0 && f->system[0] != '\0');
    bt_doctor_probe_close(v);
    bt_worker_status s;
    bt_worker_status_get(x->worker, &s);
    assert_int_equal(s.n_connects + s.n_rejects, 0);        /* a visit is no server */
}

static void another_model_is_seen(void **state)
{
    const bench *x = *state;
    bt_engine *other = fake_engine_new(false, 16, 9);
    bt_probe *v = visit(x);
    const bt_wire_hello own = bt_handoff_hello(other, 0, "");
    bt_wire_misfit misfit;
    assert_false(bt_wire_identity_fits(&own, &bt_doctor_probe_facts_of(v)->own, &misfit));
    assert_string_equal(misfit.field, "weights");
    bt_doctor_probe_close(v);
    fake_engine_free(other);
}

static void probes_bring_what_was_asked_for(void **state)
{
    const bench *x = *state;
    static const uint32_t sizes[] = { 0, 1, 7, 256 << 10, (256 << 10) + 1, 5 << 20,
                                      BT_WIRE_PROBE_BYTES_MAX };
    bt_probe *v = visit(x);
    bt_link_socket socket;
    bt_error err = { 0 };
    double ms = -1;
    for (size_t i = 0; i < BT_LEN(sizes); i++) {
        if (bt_doctor_probe_measure(v, sizes[i], &ms, &err) != BT_OK) {
            fail_msg("%u: %s", sizes[i], err.text);
        }
        assert_true(ms > 0);
    }
    bt_doctor_probe_socket_get(v, &socket);
    assert_true(socket.receive_buffer > 0 && socket.segment_bytes > 0 && socket.loopback);
    assert_int_equal(bt_doctor_probe_rest(v, 50, &err), BT_OK);
    assert_int_equal(bt_doctor_probe_measure(v, BT_WIRE_PROBE_BYTES_MAX + 1, &ms, &err),
                     BT_E_BADINPUT);
    assert_int_equal(bt_doctor_probe_measure(v, 100, &ms, &err), BT_OK); /* the stream's end only */
    bt_doctor_probe_close(v);
}

/* Four large answers are the whole allowance; what more is granted comes at its pace. */
static void the_allowance_is_shared_and_bounded(void **state)
{
    const bench *x = *state;
    bt_probe *v = visit(x), *w = visit(x);
    bt_error err = { 0 };
    double ms = 0;
    const double begun = bt_clock_ms();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(bt_doctor_probe_measure(i % 2 ? v : w, BT_WIRE_PROBE_BYTES_MAX, &ms, &err),
                         BT_OK);
    }
    assert_int_equal(bt_doctor_probe_measure(v, 4 << 20, &ms, &err), BT_OK);
    const double needed = (4.0 * BT_WIRE_PROBE_BYTES_MAX + (4 << 20) - (128 << 20)) / (12 << 10);
    assert_true(bt_clock_ms() - begun >= needed - 1);
    bt_doctor_probe_close(v);
    bt_doctor_probe_close(w);
}

static void a_third_visitor_is_told_to_come_later(void **state)
{
    const bench *x = *state;
    bt_probe *v = visit(x), *w = visit(x), *u = NULL;
    bt_error err = { 0 };
    assert_int_equal(bt_doctor_probe_open(bt_worker_address(x->worker),
                                          &(bt_link_options){0}, &u, &err),
                     BT_E_FULL);
    bt_doctor_probe_close(v);
    for (int i = 0; i < 100 && u == NULL; i++) {            /* until the worker has noticed */
        (void)(bt_doctor_probe_open(bt_worker_address(x->worker), &(bt_link_options){0}, &u,
                                    &err) == BT_OK);
        bt_clock_sleep_ms(10);
    }
    assert_non_null(u);
    bt_doctor_probe_close(w);
    bt_doctor_probe_close(u);
}

/* ---- by hand ---- */

static bt_link *call(const bench *x)
{
    bt_link *link = NULL;
    assert_int_equal(bt_link_connect(bt_worker_address(x->worker), &(bt_link_options){0},
                                     &link, NULL),
                     BT_OK);
    return link;
}

static void say_visit(bt_link *link, uint32_t major, uint32_t minor)
{
    const bt_wire_visit m = { .version_major = major, .version_minor = minor };
    uint8_t body[64];
    size_t size;
    assert_int_equal(bt_wire_visit_encode(&m, body, sizeof body, &size, NULL), BT_OK);
    assert_int_equal(bt_link_send(link, BT_WIRE_VISIT, 0, body, size, NULL), BT_OK);
}

static bt_status next(bt_link *link, bt_frame *ret)
{
    bt_status s = BT_E_AGAIN;
    for (int i = 0; i < 50 && s == BT_E_AGAIN; i++) {
        s = bt_link_receive(link, bt_clock_after_ms(100), ret, NULL);
    }
    return s;
}

static void another_version_is_rejected_by_name(void **state)
{
    const bench *x = *state;
    static const uint32_t versions[][2] = { { 2, 0 }, { 1, 99 }, { 0, 0 } };
    for (size_t i = 0; i < BT_LEN(versions); i++) {
        bt_link *link = call(x);
        bt_frame f;
        bt_wire_reject m;
        char field[20];
        say_visit(link, versions[i][0], versions[i][1]);
        assert_int_equal(next(link, &f), BT_OK);
        assert_int_equal(f.type, BT_WIRE_REJECT);
        assert_int_equal(bt_wire_reject_decode(f.body, f.size, &m, NULL), BT_OK);
        assert_string_equal(bt_wire_text_copy(m.field, field, sizeof field), "version");
        bt_link_destroy(link);
    }
}

/* A visitor is never served as a server, and one answer is under way at most. */
static void what_a_visitor_may_not_say_ends_the_visit(void **state)
{
    const bench *x = *state;
    const bt_wire_probe large = { .n_bytes = BT_WIRE_PROBE_BYTES_MAX };
    static const uint16_t types[] = { BT_WIRE_HELLO, BT_WIRE_PREFILL, BT_WIRE_VISIT, BT_WIRE_CREDIT,
                                      BT_WIRE_PROBE };
    uint8_t body[64] = { 0 };
    size_t size;
    for (size_t i = 0; i <= BT_LEN(types); i++) {
        bt_link *link = call(x);
        bt_frame f;
        bt_status s;
        say_visit(link, BT_WIRE_VERSION_MAJOR, BT_WIRE_VERSION_MINOR);
        assert_int_equal(next(link, &f), BT_OK);
        assert_int_equal(f.type, BT_WIRE_FACTS);
        if (i < BT_LEN(types)) {
            assert_int_equal(bt_link_send(link, types[i], 0, body, sizeof body, NULL), BT_OK);
        } else {
            assert_int_equal(bt_wire_probe_encode(&large, body, sizeof body, &size, NULL), BT_OK);
            for (uint32_t stream = 1; stream <= 2; stream++) {
                s = bt_link_send(link, BT_WIRE_PROBE, stream, body, size, NULL);
                assert_int_equal(s, BT_OK);
            }
        }
        do {
            s = next(link, &f);
        } while (s == BT_OK);
        assert_int_equal(s, BT_E_LOST);
        bt_link_destroy(link);
    }
    bt_doctor_probe_close(visit(x));
}

/* Bytes asked for and never taken: the worker's queue stays as it is, and the visit ends when the
 * connection does. */
static void a_visitor_that_does_not_read_costs_nothing(void **state)
{
    bench *x = *state;
    const bt_wire_probe large = { .n_bytes = BT_WIRE_PROBE_BYTES_MAX };
    uint8_t body[16];
    size_t size;
    bt_link *link = call(x);
    bt_frame f;
    say_visit(link, BT_WIRE_VERSION_MAJOR, BT_WIRE_VERSION_MINOR);
    assert_int_equal(next(link, &f), BT_OK);
    assert_int_equal(bt_wire_probe_encode(&large, body, sizeof body, &size, NULL), BT_OK);
    assert_int_equal(bt_link_send(link, BT_WIRE_PROBE, 1, body, size, NULL), BT_OK);
    bt_clock_sleep_ms(300);
    bt_probe *v = visit(x);             /* others are served meanwhile */
    double ms;
    assert_int_equal(bt_doctor_probe_measure(v, 1 << 20, &ms, NULL), BT_OK);
    bt_doctor_probe_close(v);
    bt_worker_close(x->worker);         /* does not wait for it either */
    x->worker = NULL;
    bt_link_destroy(link);
}

int main(void)
{
    bt_log_set_level(BT_LOG_ERROR);
#define T(test) cmocka_unit_test_setup_teardown(test, bench_open, bench_close)
    const struct CMUnitTest tests[] = {
        T(facts_are_the_workers), T(another_model_is_seen), T(probes_bring_what_was_asked_for),
        T(the_allowance_is_shared_and_bounded), T(a_third_visitor_is_told_to_come_later),
        T(another_version_is_rejected_by_name), T(what_a_visitor_may_not_say_ends_the_visit),
        T(a_visitor_that_does_not_read_costs_nothing),
    };
    return cmocka_run_group_tests_name("handoff/probe", tests, NULL, NULL);
}
