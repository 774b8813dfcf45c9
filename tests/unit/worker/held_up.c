/* tests/unit/worker/held_up.c - clients that let prompts stand still must not hold up others.
 *
 * One client gives no credit, sends no tokens or reads nothing; another one wants its turn. The
 * fake engine has seats for few requests at once, as a real one has pages.
 */
#include "unit/worker/hostile_client.h"

/* Rows of a prompt of LONG tokens are more than small socket buffers take. */
enum { STALL_MS = 400, SHORT = 500, LONG = 2000, SMALL_BUFFER = 16 << 10 };

static int open_impatient(void **state)
{
    *state = caller_new((bt_worker_options){ .stall_ms = STALL_MS,
                                             .link.buffer_bytes = SMALL_BUFFER });
    return 0;
}

/* For what must not happen by being impatient. */
static int open_patient(void **state)
{
    *state = caller_new((bt_worker_options){ .stall_ms = 3600000 });
    return 0;
}

/* Another client of the same worker. */
static caller other_of(caller *x)
{
    caller other = *x;
    other.link = call(&other, true);
    return other;
}

static void send_prompt(caller *x, uint32_t stream, uint32_t n, uint64_t credit)
{
    send_prefill(x, stream, n, credit);
    send_ids(x, stream, 0, n, 1);
}

static void expect_commit(caller *x, uint32_t stream)
{
    bt_frame f;
    assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
    assert_int_equal(f.stream, stream);
}

static void expect_held_up(caller *x, const char *why)
{
    bt_frame f;
    bt_wire_error m;
    char sentence[200];
    assert_true(receive(x->link, BT_WIRE_ERROR, &f));
    assert_int_equal(bt_wire_error_decode(f.body, f.size, &m, NULL), BT_OK);
    assert_int_equal(m.status, BT_E_TIMEOUT);
    assert_non_null(strstr(bt_wire_text_copy(m.sentence, sentence, sizeof sentence), why));
}

static int n_requests(const caller *x) { return atomic_load(&x->engine->n_requests); }

static uint32_t n_seated(caller *x)
{
    pthread_mutex_lock(&x->engine->lock);
    const uint32_t n = x->engine->n_seated;
    pthread_mutex_unlock(&x->engine->lock);
    return n;
}

/* D1: twelve prompts, and no credit for a row of any. */
static void no_credit_ends_with_an_error_that_says_so(void **state)
{
    caller *x = *state;
    x->engine->n_seats = 4;
    for (uint32_t stream = 1; stream <= 12; stream++) {
        send_prompt(x, stream, SHORT, 1);
    }
    WAIT_FOR(n_requests(x) == 12 && n_seated(x) == 4);     /* alone it has all of the worker */
    caller other = other_of(x);
    send_prompt(&other, 1, SHORT, 1 << 20);
    expect_commit(&other, 1);
    expect_held_up(x, "credit");
    send_prompt(&other, 2, SHORT, 1 << 20);
    expect_commit(&other, 2);
    /* The client itself is not disliked: with credit its next prompt is served. */
    send_prompt(x, 13, SHORT, 1 << 20);
    for (uint32_t stream = 1; stream <= 12; stream++) {
        SEND(x->link, CANCEL, cancel, stream, 0);
    }
    expect_commit(x, 13);
    bt_link_destroy(other.link);
}

/* Credit that comes, however slowly, keeps a prompt alive. */
static void slow_credit_is_no_stall(void **state)
{
    caller *x = *state;
    bt_frame f;
    bt_status s;
    x->engine->n_seats = 1;
    send_prompt(x, 1, SHORT, 1);
    WAIT_FOR(n_seated(x) == 1);
    caller other = other_of(x);
    send_prompt(&other, 1, SHORT, 1 << 20);
    do {                                /* twenty times as often as it has to */
        SEND(x->link, CREDIT, credit, 1, .bytes = 6000);
        s = bt_link_receive(x->link, bt_clock_after_ms(STALL_MS / 20), &f, NULL);
        assert_true(s == BT_OK || s == BT_E_AGAIN);
        assert_true(s != BT_OK || f.type != BT_WIRE_ERROR);
    } while (s != BT_OK || f.type != BT_WIRE_COMMIT);
    expect_commit(&other, 1);
    bt_link_destroy(other.link);
}

/* D1: the rows lie in the sockets, and the client reads none. */
static void a_client_that_reads_nothing_is_let_go(void **state)
{
    caller *x = *state;
    x->engine->n_seats = 1;
    caller deaf = *x;
    deaf.link = call_with(&deaf, true, SMALL_BUFFER);
    send_prompt(&deaf, 1, LONG, 1 << 30);
    WAIT_FOR(n_seated(x) == 1);
    send_prompt(x, 1, SHORT, 1 << 20);
    expect_commit(x, 1);
    assert_true(link_ends(deaf.link));
    bt_link_destroy(deaf.link);
}

/* Where several have prompts each has a share, one prompt in any case; more wait. */
static void a_client_has_its_share_and_no_more(void **state)
{
    caller *x = *state;
    bt_frame f;
    caller other = other_of(x);
    send_prefill(&other, 2, SHORT, 1);  /* it has a prompt from here on, */
    send_prompt(&other, 3, SHORT, 1 << 20);
    expect_commit(&other, 3);
    for (uint32_t stream = 1; stream <= 12; stream++) {
        send_prompt(x, stream, SHORT, 1);
    }
    WAIT_FOR(n_requests(x) == FAKE_CTX / 2 / SHORT);
    for (uint32_t stream = 4; stream <= 6; stream++) {
        send_prompt(&other, stream, LONG, 1 << 20);    /* more than its half; one at a time */
        expect_commit(&other, stream);
        assert_in_range(n_requests(x), FAKE_CTX / 2 / SHORT, FAKE_CTX / 2 / SHORT + 1);
    }
    SEND(other.link, CANCEL, cancel, 2, 0);            /* and until here */
    WAIT_FOR(n_requests(x) == 12);
    for (uint32_t stream = 1; stream <= 12; stream++) {
        SEND(x->link, CREDIT, credit, stream, .bytes = 1 << 20);
    }
    for (uint32_t n = 0; n < 12; n++) {
        assert_true(receive(x->link, BT_WIRE_COMMIT, &f));
    }
    bt_link_destroy(other.link);
}

static void tokens_that_never_come_are_not_waited_for(void **state)
{
    caller *x = *state;
    send_prefill(x, 1, SHORT, 1 << 20);
    send_ids(x, 1, 0, SHORT - 1, 1);
    expect_held_up(x, "tokens");
    send_prompt(x, 2, SHORT, 1 << 20);
    expect_commit(x, 2);
}

/* D4: sums that pass 2^63, also those that would wrap to something small. */
static void credit_beyond_measure_ends_the_connection(void **state)
{
    static const uint64_t first[] = { UINT64_C(1) << 63, 1, UINT64_C(1) << 63, 0 };
    static const uint64_t then[] = { UINT64_C(1) << 63, UINT64_C(1) << 63, 1, UINT64_MAX };
    caller *x = *state;
    x->engine->n_seats = 0;
    for (size_t i = 0; i < BT_LEN(first); i++) {
        caller liar = other_of(x);
        atomic_store(&x->engine->layer_us, 20000);
        send_prompt(&liar, 1, SHORT, first[i]);
        SEND(liar.link, CREDIT, credit, 1, .bytes = then[i]);
        assert_true(link_ends(liar.link));
        bt_link_destroy(liar.link);
        atomic_store(&x->engine->layer_us, 0);
        WAIT_FOR(n_requests(x) == 0);
    }
    caller liar = other_of(x);          /* twice, as two frames */
    send_prefill(&liar, 1, SHORT, 1);
    SEND(liar.link, CREDIT, credit, 1, .bytes = (UINT64_C(1) << 63) - 1);
    SEND(liar.link, CREDIT, credit, 1, .bytes = UINT64_C(1) << 63);
    assert_true(link_ends(liar.link));
    bt_link_destroy(liar.link);
    send_prompt(x, 1, SHORT, UINT64_C(1) << 63);       /* as much as there may be */
    expect_commit(x, 1);
}

#define IMPATIENT(test) cmocka_unit_test_setup_teardown(test, open_impatient, caller_close)
#define PATIENT(test) cmocka_unit_test_setup_teardown(test, open_patient, caller_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IMPATIENT(no_credit_ends_with_an_error_that_says_so),
        IMPATIENT(slow_credit_is_no_stall),
        IMPATIENT(a_client_that_reads_nothing_is_let_go),
        PATIENT(a_client_has_its_share_and_no_more),
        IMPATIENT(tokens_that_never_come_are_not_waited_for),
        PATIENT(credit_beyond_measure_ends_the_connection),
    };
    return cmocka_run_group_tests_name("handoff/held_up", tests, quiet, NULL);
}
