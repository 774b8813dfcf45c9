/* device/device.h: the CPU device, op by op against plain formulas, and bit by bit against itself.
 */
#include <stdio.h>

#include "device/check.h"
#include "unit/device/bench.h"
#include "unit/device/naive.h"

static const char *run_or_say(bench *b, const bt_step *s)
{
    static bt_error err;
    err = (bt_error){ 0 };
    return bt_device_run(b->device, b->tape, s, &err) == BT_OK ? NULL : err.text;
}

static void run(bench *b, bench_step *s)
{
    const char *what = run_or_say(b, &s->step);
    if (what) {
        fail_msg("%s", what);
    }
}

/* How much one op may differ from its formula, in relative square. Activations become 8 bits in
 * blocks of 32: each is off by up to 1/254 of the block's largest, evenly spread, so the errors of
 * a block are 32 * (largest / 127)^2 / 12 in square, and the block's own square is at least
 * largest^2. Their share is 32 / (12 * 127^2) at most, in the mean over the outputs; twice that is
 * six standard deviations for the 64 outputs of the narrowest linear here. All else is f32
 * rounding. */
static const double CLOSE = 2 * 32.0 / (12 * 127 * 127);

/* Prefill of several lengths, single rows, several sequences in one step, no logits at all. */
static void run_many_steps(bench *b)
{
    bench_step s;
    step_begin(b, &s);
    step_add(&s, 0, 0, 37, 1);
    run(b, &s);
    step_begin(b, &s);
    step_add(&s, 1, 0, 1, 1);
    run(b, &s);
    step_begin(b, &s);
    step_add(&s, 1, 1, 40, 0);
    step_add(&s, 0, 37, 1, 1);
    step_add(&s, 2, 0, 19, 5);
    run(b, &s);
    step_begin(b, &s);
    step_add(&s, 2, 19, 1, 1);
    step_add(&s, 0, 38, 2, 1);
    step_add(&s, 1, 41, 1, 0);
    run(b, &s);
    step_begin(b, &s);
    step_add(&s, 0, 40, 3, 0);
    run(b, &s);
}

static void every_op_follows_its_formula(void **state)
{
    static const bt_type caches[][2] = { { BT_TYPE_F32, BT_TYPE_F32 }, { BT_TYPE_F16, BT_TYPE_F16 },
                                         { BT_TYPE_Q8_0, BT_TYPE_Q4_0 } };
    (void)state;
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        if (!bt_cpu_isa_supported((bt_isa)isa)) {
            continue;
        }
        for (size_t i = 0; i < BT_LEN(all_types); i++) {
            bt_device *checked;
            bt_error err = { 0 };
            assert_int_equal(bt_device_check_open(bench_cpu((bt_isa)isa, 1 + i % 3),
                                                  &naive_open()->base, CLOSE, &checked, &err),
                             BT_OK);
            bench *b = bench_open(checked, all_types[i], caches[i % 3][0], caches[i % 3][1]);
            run_many_steps(b);
            bench_close(b);
        }
    }
}

/* ---- bits ---- */

typedef struct { float logits[ROWS_MAX][VOCAB]; uint8_t *pool; size_t pool_bytes; } outcome;

static void take_logits(bench *b, const bench_step *s, uint32_t position, outcome *o)
{
    uint64_t stride;
    const float *rows = bt_device_read_rows(b->device, bt_ops_tape_result(b->tape), &stride);
    for (uint32_t i = 0; i < s->step.n_logit_rows; i++) {
        const uint32_t row = s->logit_rows[i];
        if (s->positions[row] >= position && s->row_sequence[row] == 0) {
            memcpy(o->logits[s->positions[row]], rows + i * stride, sizeof o->logits[0]);
        }
    }
}

/* Sequence 0 of n tokens, `chunk` at a time; with company, each step carries other sequences too.
 */
static outcome *go(bt_isa isa, uint32_t n_threads, bt_type type, uint32_t n, uint32_t chunk,
                   bool company)
{
    bench *b = bench_open(bench_cpu(isa, n_threads), type, BT_TYPE_F16, BT_TYPE_F16);
    outcome *o = calloc(1, sizeof *o);
    uint32_t others = 0;
    for (uint32_t at = 0; at < n; at += chunk) {
        bench_step s;
        step_begin(b, &s);
        step_add(&s, 0, at, n - at < chunk ? n - at : chunk, 1);
        if (company) {
            step_add(&s, 1, others, 1, 1);
            step_add(&s, 2, 3 * others, 3, 0);
            others++;
        }
        run(b, &s);
        take_logits(b, &s, at, o);
    }
    /* Pages of sequence 0 alone: every SEQUENCES_MAX-th of the pool. */
    o->pool_bytes = b->layout.page_bytes * PAGES_EACH;
    o->pool = malloc(o->pool_bytes);
    for (uint32_t i = 0; i < PAGES_EACH; i++) {
        bt_device_buffer_read(b->device, b->layout.buffer,
                              (uint64_t)i * SEQUENCES_MAX * b->layout.page_bytes,
                              o->pool + i * b->layout.page_bytes, b->layout.page_bytes);
    }
    bench_close(b);
    return o;
}

static void expect_same(const outcome *a, outcome *b, const char *what)
{
    if (memcmp(a->logits, b->logits, sizeof a->logits) != 0) {
        fail_msg("logits differ: %s", what);
    }
    if (memcmp(a->pool, b->pool, a->pool_bytes) != 0) {
        fail_msg("keys or values differ: %s", what);
    }
    free(b->pool);
    free(b);
}

static void bits_do_not_hang_on_how_it_is_run(void **state)
{
    static const uint32_t chunks[] = { 70, 1, 2, 4, 5, 1, 16, 33, 4 };
    enum { N = 70 };
    (void)state;
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        for (size_t type = 0; type < BT_LEN(all_types) && bt_cpu_isa_supported((bt_isa)isa);
             type += 3) {
            outcome *whole = go((bt_isa)isa, 1, all_types[type], N, N, false);
            for (size_t c = 0; c < BT_LEN(chunks); c++) {
                char what[80];
                const uint32_t threads = 1 + c % 3;
                snprintf(what, sizeof what, "%s, chunk %u, %u threads",
                         bt_cpu_isa_name((bt_isa)isa), chunks[c], threads);
                expect_same(whole, go((bt_isa)isa, threads, all_types[type], N, chunks[c], false),
                            what);
            }
            expect_same(whole, go((bt_isa)isa, 2, all_types[type], N, 5, true), "with company");
            free(whole->pool);
            free(whole);
        }
    }
}

/* ---- marks ---- */

static void marks_come_in_order_once_a_layer(void **state)
{
    bench_step s;
    (void)state;
    bench *b = bench_open(bench_cpu(bt_cpu_isa_detect(), 2), BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    step_begin(b, &s);
    step_add(&s, 0, 0, 20, 0);
    run(b, &s);
    assert_int_equal(b->n_marks, 2);
    assert_int_equal(b->marks[0], 0);
    assert_int_equal(b->marks[1], 1);
    bench_close(b);
}

/* At a mark the layer's rows of this step are in the pool, and stay as they are. */
typedef struct { bench *b; uint8_t seen[LAYERS][PAGE * KEY_HEADS * DIM * 4]; } witness;

/* K of the first page of sequence 0. */
static void read_first_page(bench *b, uint32_t layer, uint8_t to[PAGE * KEY_HEADS * DIM * 4])
{
    bt_device_buffer_read(b->device, b->layout.buffer,
                          3 * SEQUENCES_MAX * b->layout.page_bytes + b->layers[layer].k_offset, to,
                          PAGE * KEY_HEADS * DIM * 4);
}

static void look(void *context, uint32_t layer)
{
    witness *w = context;
    read_first_page(w->b, layer, w->seen[layer]);
}

static void rows_are_complete_at_their_mark(void **state)
{
    bench_step s;
    witness w = { 0 };
    (void)state;
    bench *b = bench_open(bench_cpu(bt_cpu_isa_detect(), 2), BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    w.b = b;
    step_begin(b, &s);
    step_add(&s, 0, 0, PAGE, 1);
    s.step.on_mark = look;
    s.step.mark_context = &w;
    run(b, &s);
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint8_t after[sizeof w.seen[i]];
        read_first_page(b, i, after);
        assert_memory_equal(w.seen[i], after, sizeof after);
        uint8_t any = 0;
        for (size_t j = 0; j < sizeof w.seen[i]; j++) {
            any |= w.seen[i][j];
        }
        assert_int_not_equal(any, 0);
    }
    bench_close(b);
}

/* ---- refusals ---- */

static void expect_refused(bench *b, bench_step *s, const char *words)
{
    const char *what = run_or_say(b, &s->step);
    if (!what || !strstr(what, words)) {
        fail_msg("'%s' does not say '%s'", what ? what : "(ran)", words);
    }
}

static void wrong_steps_are_refused(void **state)
{
    bench_step good, s;
    (void)state;
    bench *b = bench_open(bench_cpu(bt_cpu_isa_detect(), 1), BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    step_begin(b, &good);
    step_add(&good, 0, 0, 6, 1);
    /* A step points into itself, so each is made anew. */
#define WRONG(change, words)        \
    step_begin(b, &s);              \
    step_add(&s, 0, 0, 6, 1);       \
    change;                         \
    expect_refused(b, &s, words)
    WRONG(s.tokens[3] = VOCAB, "row 3 has token 77, the model knows 77");
    WRONG(s.tokens[0] = UINT32_MAX, "has token");
    WRONG(s.row_sequence[2] = 1, "row 2 is of sequence 1 of 1");
    WRONG(s.positions[4] = 9, "row 4 does not stand at position 4");
    WRONG(s.pages[0][1] = POOL_PAGES, "is 64 of 64");
    WRONG(s.logit_rows[5] = 6, "logits of row 6");
    WRONG(s.logit_rows[1] = 0, "logits of row 0");
    WRONG(s.step.n_rows = 0, "a step of 0 rows");
    WRONG(s.step.n_rows = ROWS_MAX + 1, "prepared for 1 to 96");
    WRONG(s.sequences[0].n_pages = 0, "0 pages exist");
    WRONG(s.sequences[0].n_rows = 5, "the sequences have 5 rows, the step 6");
    WRONG(s.sequences[0].n_rows = 7, "rows 0..7");
    WRONG(s.sequences[0].position = BT_CONTEXT_MAX, "at position");
    WRONG(s.step.kv = NULL, "no pages");
    WRONG(b->layers[1].k_dim = 32, "pages keep 32 and 64 values of layer 1");
    b->layers[1].k_dim = KEY_HEADS * DIM;
    WRONG(b->layout.n_layers = 1, "no pages");
    b->layout.n_layers = LAYERS;
#undef WRONG
    run(b, &good);
    bench_close(b);
}

static void unprepared_tapes_are_refused(void **state)
{
    bench_step s;
    bt_error err = { 0 };
    (void)state;
    bench *b = bench_open(bench_cpu(bt_cpu_isa_detect(), 1), BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    bt_tape *other = b->tape;
    bench_tape(b, BT_TYPE_F32);
    step_begin(b, &s);
    step_add(&s, 0, 0, 6, 1);
    assert_int_equal(bt_device_run(b->device, b->tape, &s.step, &err), BT_E_DEVICE);
    assert_non_null(strstr(err.text, "not prepared"));
    bt_ops_tape_destroy(b->tape);
    b->tape = other;
    run(b, &s);
    bench_close(b);
}

/* A new tape may stand where an old one stood: plans go by id. And old ones give way. */
static void tapes_come_and_go(void **state)
{
    (void)state;
    bench *b = bench_open(bench_cpu(bt_cpu_isa_detect(), 1), BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    bt_tape *first = b->tape;
    bench_step s;
    step_begin(b, &s);
    step_add(&s, 0, 0, 6, 1);
    for (int i = 0; i < 20; i++) {
        bt_tape *t;
        assert_int_equal(bt_device_tape_create(b->device, &t, NULL), BT_OK);
        const bt_rows x = bt_ops_tape_rows(t, WIDTH);
        bt_ops_put(t, embed, .table = bt_ops_tape_op(first, 0)->embed.table, .y = x,
                   .scale = (float)i);
        assert_int_equal(bt_ops_tape_finish(t, NULL), BT_OK);
        assert_int_equal(bt_device_run(b->device, t, &s.step, NULL), BT_E_DEVICE);
        assert_int_equal(bt_device_prepare(b->device, t, 8, 0, NULL), BT_OK);
        s.step.n_logit_rows = 0;
        assert_int_equal(bt_device_run(b->device, t, &s.step, NULL), BT_OK);
        bt_ops_tape_destroy(t);
    }
    assert_int_equal(bt_device_run(b->device, first, &s.step, NULL), BT_E_DEVICE);
    assert_int_equal(bt_device_prepare(b->device, first, ROWS_MAX, ROWS_MAX, NULL), BT_OK);
    s.step.n_logit_rows = 6;
    run(b, &s);
    bench_close(b);
}

static void bad_weights_are_refused(void **state)
{
    static const uint8_t bytes[4096];
    bt_weight w = { 0 };
    bt_error err = { 0 };
    bt_weight_source s = { .name = "some.weight", .type = (bt_type)16, .n_in = 256, .n_out = 2,
                           .rows = bytes, .size_bytes = 132 };
    (void)state;
    bt_device *d = bench_cpu(bt_cpu_isa_detect(), 1);
    assert_int_equal(bt_device_weight_load(d, &s, &w, &err), BT_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'some.weight' is of type IQ2_XXS"));
    s.type = BT_TYPE_Q4_K;
    assert_int_equal(bt_device_weight_load(d, &s, &w, &err), BT_E_BADFILE);
    assert_int_equal(w.id, 0);
    bt_device_close(d);
}

/* ---- memory ---- */

static void running_allocates_nothing(void **state)
{
    bench_step s;
    (void)state;
    bench *b =
            bench_open(bench_cpu(bt_cpu_isa_detect(), 2), BT_TYPE_Q8_0, BT_TYPE_F16, BT_TYPE_F16);
    const uint64_t before = bt_memory_calls();
    for (uint32_t i = 0; i < 20; i++) {
        step_begin(b, &s);
        step_add(&s, 0, i * 5, i % 2 ? 1 : 5, 1);
        if (i % 2 == 0) {
            run(b, &s);
        }
    }
    assert_int_equal(bt_device_prepare(b->device, b->tape, ROWS_MAX, 3, NULL), BT_OK);
    assert_int_equal(bt_memory_calls(), before);
    bench_close(b);
}

static void no_memory_leaves_nothing_behind(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        const bt_device_cpu_options o = { .isa = bt_cpu_isa_detect(), .n_threads = 2 };
        bt_device *d = NULL;
        bt_memory_fail_after(n);
        const bt_status status = bt_device_cpu_open(&o, &d, NULL);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            bt_device_close(d);
            assert_true(n > 1);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_null(d);
    }
    bench *b = bench_open(bench_cpu(bt_cpu_isa_detect(), 2), BT_TYPE_F32, BT_TYPE_F32, BT_TYPE_F32);
    bt_tape *first = b->tape;
    bench_tape(b, BT_TYPE_F32);
    for (uint64_t n = 1;; n++) {
        bt_memory_fail_after(n);
        const bt_status status = bt_device_prepare(b->device, b->tape, 8, 8, NULL);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
    }
    bt_ops_tape_destroy(first);
    bench_close(b);
}

static void buffers_read_as_zero(void **state)
{
    bt_buffer a, b;
    (void)state;
    bt_device *d = bench_cpu(bt_cpu_isa_detect(), 1);
    assert_int_equal(bt_device_buffer_alloc(d, 1 << 20, &a, NULL), BT_OK);
    /* More than this machine has: only what is touched counts. */
    assert_int_equal(bt_device_buffer_alloc(d, (uint64_t)1 << 38, &b, NULL), BT_OK);
    uint8_t bytes[2] = { 1, 1 };
    bt_device_buffer_read(d, b, 0, &bytes[0], 1);
    bt_device_buffer_read(d, b, ((uint64_t)1 << 38) - 1, &bytes[1], 1);
    assert_int_equal(bytes[0] | bytes[1], 0);
    bt_device_buffer_free(d, a);
    bt_device_close(d);
}

/* ---- angles ---- */

static void angles_are_right_to_the_last_bit_but_one(void **state)
{
    enum { N = 64 };
    static float frequencies[N];
    static const float ones[2 * N] = { 0 };
    bt_weight table, angles;
    (void)state;
    bt_device *d = bench_cpu(BT_ISA_REF, 1);
    for (int i = 0; i < N; i++) {
        frequencies[i] = (float)pow(10000.0, -i / (double)N);
    }
    static float row[2 * N];
    for (int i = 0; i < N; i++) {
        row[2 * i] = 1;                  /* (1, 0) turns into (cos, sin) */
    }
    (void)ones;
    const bt_weight_source t = { .name = "table", .type = BT_TYPE_F32, .n_in = 2 * N, .n_out = 1,
                                 .rows = row, .size_bytes = sizeof row, .as_table = true };
    const bt_weight_source f = { .name = "angles", .type = BT_TYPE_F32, .n_in = N, .n_out = 1,
                                 .rows = frequencies, .size_bytes = sizeof frequencies };
    assert_int_equal(bt_device_weight_load(d, &t, &table, NULL), BT_OK);
    assert_int_equal(bt_device_weight_load(d, &f, &angles, NULL), BT_OK);
    bt_tape *tape;
    assert_int_equal(bt_device_tape_create(d, &tape, NULL), BT_OK);
    const bt_rows x = bt_ops_tape_rows(tape, 2 * N);
    bt_ops_put(tape, embed, .table = table, .y = x, .scale = 1);
    bt_ops_put(tape, rope, .x = x, .frequencies = angles, .n_heads = 1, .n_rot = 2 * N,
               .style = BT_ROPE_NORM, .magnitude = 1);
    assert_int_equal(bt_ops_tape_finish(tape, NULL), BT_OK);
    assert_int_equal(bt_device_prepare(d, tape, 1, 0, NULL), BT_OK);
    for (uint32_t position = 0; position < BT_CONTEXT_MAX; position += 1 + position / 7) {
        const uint32_t zero = 0;
        const bt_step_sequence q = { .n_rows = 1, .position = position };
        const bt_step s = { .n_rows = 1, .tokens = &zero, .positions = &position,
                            .row_sequence = &zero, .n_sequences = 1, .sequences = &q };
        uint64_t stride;
        assert_int_equal(bt_device_run(d, tape, &s, NULL), BT_OK);
        const float *y = bt_device_read_rows(d, x, &stride);
        for (int i = 0; i < N; i++) {
            const double a = (double)position * frequencies[i];
            /* Half a unit in the last place of f32 below 1, and what double loses. */
            if (fabs(y[2 * i] - cos(a)) > 3.1e-8 || fabs(y[2 * i + 1] - sin(a)) > 3.1e-8) {
                fail_msg("position %u, pair %d: (%.9g, %.9g), not (%.9g, %.9g)", position, i,
                         y[2 * i], y[2 * i + 1], cos(a), sin(a));
            }
        }
    }
    bt_ops_tape_destroy(tape);
    bt_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_come_in_order_once_a_layer),
        cmocka_unit_test(every_op_follows_its_formula),
        cmocka_unit_test(bits_do_not_hang_on_how_it_is_run),
        cmocka_unit_test(rows_are_complete_at_their_mark),
        cmocka_unit_test(wrong_steps_are_refused),
        cmocka_unit_test(unprepared_tapes_are_refused),
        cmocka_unit_test(tapes_come_and_go),
        cmocka_unit_test(bad_weights_are_refused),
        cmocka_unit_test(running_allocates_nothing),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
        cmocka_unit_test(buffers_read_as_zero),
        cmocka_unit_test(angles_are_right_to_the_last_bit_but_one),
    };
    return cmocka_run_group_tests_name("device/cpu", tests, NULL, NULL);
}
