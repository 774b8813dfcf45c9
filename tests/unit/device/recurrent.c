/* ops/ops.h: recurrent layers and experts on the CPU device, against plain loops in double and,
 * bit by bit, against themselves however the rows are cut into steps and over threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "device/cpu/cpu.h"

enum {
    KEY_HEADS = 2, VALUE_HEADS = 4, DIM = 24, TAPS = 4,
    KEYS = KEY_HEADS * DIM, VALUES = VALUE_HEADS * DIM, CHANNELS = 2 * KEYS + VALUES,
    EXPERTS = 6, USED = 3, WIDE = 64,
    COLUMNS = CHANNELS + 2 * VALUE_HEADS + EXPERTS + 1,      /* ... scores, one gate */
    TOKENS = 61, SLOTS = 3
};

typedef struct {
    float table[TOKENS][COLUMNS], taps[CHANNELS][TAPS], decay[VALUE_HEADS], dt_bias[VALUE_HEADS];
    float gate_up[EXPERTS][2 * WIDE][CHANNELS];      /* merged: rows of gate, then of up */
    float down[EXPERTS][CHANNELS][WIDE];
} numbers;

typedef struct {
    float conv[TOKENS][CHANNELS], scan[TOKENS][VALUES], route[TOKENS][2 * USED];
    float wide[TOKENS][2 * USED * WIDE], sum[TOKENS][CHANNELS], gated[TOKENS][CHANNELS];
    float state[(TAPS - 1) * CHANNELS + VALUE_HEADS * DIM * DIM];
} outcome;

typedef struct {
    bt_device *device;
    bt_tape   *tape;
    bt_rows    conv, scan, route, wide, sum, gated;
    bt_state_layer  layer;
    bt_state_layout layout;
} rig;

static numbers given;
static bool    tiled;

static float draw(bt_mt19937 *random)
{
    return (float)(2.0 * (bt_mt19937_unit(random) + bt_mt19937_unit(random) - 1.0));
}

static void make_numbers(void)
{
    bt_mt19937 random;
    float *to = (float *)&given;
    bt_mt19937_init(&random, 4711);
    for (size_t i = 0; i < sizeof given / sizeof *to; i++) {
        to[i] = draw(&random);
    }
    for (int h = 0; h < VALUE_HEADS; h++) {
        given.decay[h] = -0.2f - fabsf(given.decay[h]);
    }
}

/* ---- plain loops ---- */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void plain_conv(outcome *o)
{
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < CHANNELS; c++) {
            double sum = 0;
            for (int m = 0; m < TAPS; m++) {
                const int from = t - TAPS + 1 + m;
                sum += from < 0 ? 0 : (double)given.taps[c][m] * given.table[from][c];
            }
            o->conv[t][c] = (float)(sum * sigmoid(sum));
        }
    }
}

static void plain_scan(outcome *o)
{
    for (int h = 0; h < VALUE_HEADS; h++) {
        static double state[DIM][DIM];           /* [key][value] */
        const int head = tiled ? h % KEY_HEADS : h / (VALUE_HEADS / KEY_HEADS);
        memset(state, 0, sizeof state);
        for (int t = 0; t < TOKENS; t++) {
            const float *q = o->conv[t] + head * DIM, *k = q + KEYS;
            const float *v = o->conv[t] + 2 * KEYS + h * DIM;
            const double beta = sigmoid(given.table[t][CHANNELS + h]);
            const double alpha = (double)given.dt_bias[h] +
                                 given.table[t][CHANNELS + VALUE_HEADS + h];
            const double keep = exp(given.decay[h] * log1p(exp(alpha)));
            double q_length = 0, k_length = 0;
            for (int i = 0; i < DIM; i++) {
                q_length += (double)q[i] * q[i];
                k_length += (double)k[i] * k[i];
            }
            for (int c = 0; c < DIM; c++) {
                double held = 0, answer = 0;
                for (int i = 0; i < DIM; i++) {
                    state[i][c] *= keep;
                    held += state[i][c] * k[i] / sqrt(k_length);
                }
                const double d = beta * (v[c] - held);
                for (int i = 0; i < DIM; i++) {
                    state[i][c] += k[i] / sqrt(k_length) * d;
                    answer += state[i][c] * q[i] / sqrt(q_length);
                }
                o->scan[t][h * DIM + c] = (float)(0.25 * answer);
            }
        }
        for (int c = 0; c < DIM; c++) {
            for (int i = 0; i < DIM; i++) {
                o->state[(TAPS - 1) * CHANNELS + (h * DIM + c) * DIM + i] = (float)state[i][c];
            }
        }
    }
    for (int m = 0; m < TAPS - 1; m++) {
        memcpy(o->state + m * CHANNELS, given.table[TOKENS - TAPS + 1 + m],
               CHANNELS * sizeof(float));
    }
}

static void plain_experts(outcome *o)
{
    for (int t = 0; t < TOKENS; t++) {
        const float *scores = given.table[t] + CHANNELS + 2 * VALUE_HEADS;
        bool taken[EXPERTS] = { false };
        double all = 0, shares = 0, sum[CHANNELS] = { 0 };
        for (int e = 0; e < EXPERTS; e++) {
            all += exp(scores[e]);
        }
        for (int j = 0; j < USED; j++) {
            int best = -1;
            for (int e = 0; e < EXPERTS; e++) {
                best = !taken[e] && (best < 0 || scores[e] > scores[best]) ? e : best;
            }
            taken[best] = true;
            o->route[t][j] = (float)best;
            shares += exp(scores[best]) / all;
        }
        for (int j = 0; j < USED; j++) {
            const int e = (int)o->route[t][j];
            const double share = exp(scores[e]) / all / shares;
            o->route[t][USED + j] = (float)share;
            double glu[WIDE];
            for (int i = 0; i < WIDE; i++) {
                double gate = 0, up = 0;
                for (int c = 0; c < CHANNELS; c++) {
                    gate += (double)given.gate_up[e][i][c] * o->conv[t][c];
                    up += (double)given.gate_up[e][WIDE + i][c] * o->conv[t][c];
                }
                o->wide[t][j * WIDE + i] = (float)gate;
                o->wide[t][(USED + j) * WIDE + i] = (float)up;
                glu[i] = gate * sigmoid(gate) * up;
            }
            for (int c = 0; c < CHANNELS; c++) {
                double y = 0;
                for (int i = 0; i < WIDE; i++) {
                    y += given.down[e][c][i] * glu[i];
                }
                sum[c] += share * y;
            }
        }
        for (int c = 0; c < CHANNELS; c++) {
            const double by = sigmoid(given.table[t][COLUMNS - 1]);
            o->sum[t][c] = (float)(o->conv[t][c] + sum[c]);
            o->gated[t][c] = (float)(o->conv[t][c] * by + o->conv[t][c]);
        }
    }
}

/* ---- the device ---- */

static bt_weight load(rig *r, bt_weight_source s)
{
    bt_weight w;
    bt_error err = { 0 };
    s.name = s.name ? s.name : "numbers";
    s.type = BT_TYPE_F32;
    if (bt_device_weight_load(r->device, &s, &w, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return w;
}

#define ROWS_OF(x) .rows = (x), .size_bytes = sizeof(x)

static void put_recurrent(rig *r, bt_rows x)
{
    const bt_weight taps = load(r, (bt_weight_source){ ROWS_OF(given.taps), .n_in = TAPS,
                                                       .n_out = CHANNELS, .as_taps = true });
    const bt_weight decay = load(r, (bt_weight_source){ ROWS_OF(given.decay), .n_in = VALUE_HEADS,
                                                        .n_out = 1 });
    const bt_weight bias = load(r, (bt_weight_source){ ROWS_OF(given.dt_bias),
                                                       .n_in = VALUE_HEADS, .n_out = 1 });
    r->conv = bt_ops_tape_rows(r->tape, CHANNELS);
    r->scan = bt_ops_tape_rows(r->tape, VALUES);
    bt_ops_put(r->tape, short_conv, .x = bt_ops_rows_slice(x, 0, CHANNELS), .y = r->conv, .w = taps,
               .layer = 1, .act = BT_ACT_SILU);
    bt_ops_put(r->tape, delta_scan, .q = bt_ops_rows_slice(r->conv, 0, KEYS),
               .k = bt_ops_rows_slice(r->conv, KEYS, KEYS),
               .v = bt_ops_rows_slice(r->conv, 2 * KEYS, VALUES),
               .beta = bt_ops_rows_slice(x, CHANNELS, VALUE_HEADS),
               .alpha = bt_ops_rows_slice(x, CHANNELS + VALUE_HEADS, VALUE_HEADS), .y = r->scan,
               .decay = decay, .dt_bias = bias, .layer = 1, .state = 1,
               .n_k_heads = KEY_HEADS,
               .n_v_heads = VALUE_HEADS, .tiled = tiled, .l2_eps = 1e-6f, .scale = 0.25f);
}

static void put_experts(rig *r, bt_rows x)
{
    bt_weight_source half = { ROWS_OF(given.gate_up), .n_in = CHANNELS, .n_out = WIDE,
                              .n_slices = EXPERTS, .row_run = WIDE, .row_step = 2 * WIDE };
    const bt_weight gate = load(r, half);
    half.row_first = WIDE;
    const bt_weight up = load(r, half);
    const bt_weight down = load(r, (bt_weight_source){ ROWS_OF(given.down), .n_in = WIDE,
                                                       .n_out = CHANNELS, .n_slices = EXPERTS });
    const bt_rows glu = bt_ops_tape_rows(r->tape, USED * WIDE);
    const bt_rows parts = bt_ops_tape_rows(r->tape, USED * CHANNELS);
    r->route = bt_ops_tape_rows(r->tape, 2 * USED);
    r->wide = bt_ops_tape_rows(r->tape, 2 * USED * WIDE);
    r->sum = bt_ops_tape_rows(r->tape, CHANNELS);
    r->gated = bt_ops_tape_rows(r->tape, CHANNELS);
    bt_ops_put(r->tape, route, .scores = bt_ops_rows_slice(x, CHANNELS + 2 * VALUE_HEADS, EXPERTS),
               .y = r->route, .n_used = USED, .renormalise = true);
    bt_ops_put(r->tape, expert_linear, .x = r->conv, .route = r->route, .y = r->wide,
               .w = { gate, up }, .n_used = USED);
    bt_ops_put(r->tape, glu, .gate = bt_ops_rows_slice(r->wide, 0, USED * WIDE),
               .up = bt_ops_rows_slice(r->wide, USED * WIDE, USED * WIDE), .y = glu,
               .act = BT_ACT_SILU);
    bt_ops_put(r->tape, expert_linear, .x = glu, .route = r->route, .y = parts, .w = { down },
               .n_used = USED, .per_expert = true);
    const bt_rows one = bt_ops_rows_slice(x, COLUMNS - 1, 1);
    bt_ops_put(r->tape, mul, .x = r->conv, .gate = one, .y = r->gated, .act = BT_ACT_SIGMOID);
    bt_ops_put(r->tape, add, .x = r->conv, .y = r->gated);
    /* sum = conv + experts: once through the op's own adding. */
    bt_ops_put(r->tape, mul, .x = r->conv, .gate = one, .y = r->sum, .act = BT_ACT_SIGMOID);
    bt_ops_put(r->tape, scale, .x = r->sum, .by = 0);
    bt_ops_put(r->tape, add, .x = r->conv, .y = r->sum);
    bt_ops_put(r->tape, combine, .x = parts, .route = r->route, .y = r->sum, .n_used = USED,
               .add = true);
}

static rig open_rig(bt_isa isa, uint32_t n_threads, bool repack)
{
    rig r = { 0 };
    bt_error err = { 0 };
    const bt_device_cpu_options o = { .isa = isa, .n_threads = n_threads, .no_repack = !repack };
    assert_int_equal(bt_device_cpu_open(&o, &r.device, NULL), BT_OK);
    assert_int_equal(bt_device_tape_create(r.device, &r.tape, NULL), BT_OK);
    const bt_rows x = bt_ops_tape_rows(r.tape, COLUMNS);
    bt_ops_put(r.tape, embed,
               .table = load(&r, (bt_weight_source){ ROWS_OF(given.table), .n_in = COLUMNS,
                                                           .n_out = TOKENS, .as_table = true }),
               .y = x, .scale = 1);
    put_recurrent(&r, x);
    put_experts(&r, x);
    bt_ops_put(r.tape, mark, .layer = 1);
    if (bt_ops_tape_finish(r.tape, &err) != BT_OK ||
        bt_device_prepare(r.device, r.tape, TOKENS, 0, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    return r;
}

/* Layer 0 keeps nothing; the slots are apart by more than a state. */
static void open_states(rig *r, bt_state_layer layers[2])
{
    const uint64_t conv = (TAPS - 1) * CHANNELS * sizeof(float);
    memset(layers, 0, 2 * sizeof *layers);
    layers[1] = (bt_state_layer){ .n_tensors = 2, .tensors = {
        { "conv", 1, TAPS - 1, CHANNELS, 0 }, { "delta", VALUE_HEADS, DIM, DIM, conv } } };
    r->layout = (bt_state_layout){ .slot_bytes = conv + VALUE_HEADS * DIM * DIM * 4 + 64,
                                   .n_slots = SLOTS, .n_layers = 2, .layers = layers };
    assert_int_equal(bt_device_buffer_alloc(r->device, SLOTS * r->layout.slot_bytes,
                                            &r->layout.buffer, NULL), BT_OK);
}

static void take(rig *r, bt_rows rows, uint32_t row, uint32_t n, float *to, uint32_t cols)
{
    uint64_t stride;
    const float *from = bt_device_read_rows(r->device, rows, &stride);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(to + (size_t)i * cols, from + (row + i) * stride, cols * sizeof *to);
    }
}

/* Tokens [at, at + n) of the sequence in slot 1; with company, two others around them. */
static void run_part(rig *r, uint32_t at, uint32_t n, bool company, outcome *o)
{
    uint32_t tokens[TOKENS], positions[TOKENS], sequence[TOKENS], n_rows = 0;
    bt_step_sequence q[3] = { { 0 } };
    bt_error err = { 0 };
    const uint32_t lengths[] = { company ? 2 : 0, n, company ? 1 : 0 };
    for (uint32_t s = 0; s < 3; s++) {
        q[s] = (bt_step_sequence){ .row_first = n_rows, .n_rows = lengths[s],
                                   .position = s == 1 ? at : at * lengths[s], .state_slot = s };
        for (uint32_t i = 0; i < lengths[s]; i++, n_rows++) {
            tokens[n_rows] = s == 1 ? at + i : (at + 7 * s + i) % TOKENS;
            positions[n_rows] = q[s].position + i;
            sequence[n_rows] = s;
        }
    }
    const bt_step step = { .n_rows = n_rows, .tokens = tokens, .positions = positions,
                           .row_sequence = sequence, .n_sequences = 3, .sequences = q,
                           .state = &r->layout };
    if (bt_device_run(r->device, r->tape, &step, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    take(r, r->conv, q[1].row_first, n, o->conv[at], CHANNELS);
    take(r, r->scan, q[1].row_first, n, o->scan[at], VALUES);
    take(r, r->route, q[1].row_first, n, o->route[at], 2 * USED);
    take(r, r->wide, q[1].row_first, n, o->wide[at], 2 * USED * WIDE);
    take(r, r->sum, q[1].row_first, n, o->sum[at], CHANNELS);
    take(r, r->gated, q[1].row_first, n, o->gated[at], CHANNELS);
}

static outcome *go(bt_isa isa, uint32_t n_threads, uint32_t chunk, bool company, bool repack)
{
    rig r = open_rig(isa, n_threads, repack);
    bt_state_layer layers[2];
    outcome *o = calloc(1, sizeof *o);
    open_states(&r, layers);
    for (uint32_t at = 0; at < TOKENS; at += chunk) {
        run_part(&r, at, TOKENS - at < chunk ? TOKENS - at : chunk, company, o);
    }
    bt_device_buffer_read(r.device, r.layout.buffer, r.layout.slot_bytes, o->state,
                          sizeof o->state);
    bt_ops_tape_destroy(r.tape);
    bt_device_close(r.device);
    return o;
}

/* ---- tests ---- */

/* Relative to the largest value: f32 sums of at most a few hundred terms, carried through 61 tokens
 * by a state that forgets. 2^-24 times the square root of all that is 2^-15 at the very most. */
static void expect_close(const char *what, const float *a, const float *b, size_t n)
{
    double most = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs(b[i]));
        worst = fmax(worst, fabs((double)a[i] - b[i]));
    }
    if (!(worst <= most * 0x1p-15) || most == 0) {
        fail_msg("%s: off by %g, largest %g", what, worst, most);
    }
}

#define CLOSE(field) expect_close(#field, (float *)found->field, (float *)want->field, \
                                  sizeof want->field / sizeof(float))

static void ops_follow_their_formulas(void **state)
{
    (void)state;
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        for (int way = 0; way < 4 && bt_cpu_isa_supported((bt_isa)isa); way++) {
            tiled = way & 1;
            outcome *want = calloc(1, sizeof *want);
            plain_conv(want);
            plain_scan(want);
            plain_experts(want);
            outcome *found = go((bt_isa)isa, 2, TOKENS, false, way & 2);
            CLOSE(conv);
            CLOSE(scan);
            CLOSE(route);
            CLOSE(wide);
            CLOSE(sum);
            CLOSE(gated);
            CLOSE(state);
            free(want);
            free(found);
        }
    }
}

static void bits_do_not_hang_on_how_it_is_run(void **state)
{
    static const uint32_t chunks[] = { 1, 2, 3, 4, 5, 16, 33 };
    (void)state;
    tiled = true;
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        if (!bt_cpu_isa_supported((bt_isa)isa)) {
            continue;
        }
        outcome *whole = go((bt_isa)isa, 1, TOKENS, false, true);
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            for (uint32_t threads = 1; threads <= 3; threads++) {
                outcome *part = go((bt_isa)isa, threads, chunks[c], threads == 2, true);
                if (memcmp(whole, part, sizeof *whole) != 0) {
                    fail_msg("%s, chunk %u, %u threads", bt_cpu_isa_name((bt_isa)isa), chunks[c],
                             threads);
                }
                free(part);
            }
        }
        free(whole);
    }
}

static void wrong_states_are_refused(void **state)
{
    const uint32_t zero[2] = { 0, 0 }, which[2] = { 0, 1 };
    bt_state_layer layers[2];
    bt_error err = { 0 };
    (void)state;
    rig r = open_rig(bt_cpu_isa_detect(), 1, true);
    open_states(&r, layers);
    bt_step_sequence q[2] = { { .n_rows = 1 }, { .row_first = 1, .n_rows = 1, .state_slot = 1 } };
    bt_step s = { .n_rows = 2, .tokens = zero, .positions = zero, .row_sequence = which,
                  .n_sequences = 2, .sequences = q, .state = &r.layout };
    assert_int_equal(bt_device_run(r.device, r.tape, &s, &err), BT_OK);
#define WRONG(change, back, words)                                              \
    change;                                                                     \
    assert_int_equal(bt_device_run(r.device, r.tape, &s, &err), BT_E_DEVICE);   \
    assert_non_null(strstr(err.text, words));                                   \
    back
    WRONG(s.state = NULL, s.state = &r.layout, "no recurrent states");
    WRONG(q[1].state_slot = 0, q[1].state_slot = 1, "another one has too");
    WRONG(q[1].state_slot = SLOTS, q[1].state_slot = 1, "has state 3 of 3");
    WRONG(layers[1].tensors[1].cols = 8, layers[1].tensors[1].cols = DIM, "states keep");
    WRONG(layers[1].tensors[0].rows = 2, layers[1].tensors[0].rows = 3, "states keep");
    WRONG(layers[1].tensors[0].offset = 1 << 30, layers[1].tensors[0].offset = 0, "states keep");
    WRONG(layers[1].n_tensors = 1, layers[1].n_tensors = 2, "states keep");
    WRONG(r.layout.n_layers = 1, r.layout.n_layers = 2, "no recurrent states");
    WRONG(r.layout.n_slots = 1000, r.layout.n_slots = SLOTS, "no recurrent states");
#undef WRONG
    assert_int_equal(bt_device_run(r.device, r.tape, &s, &err), BT_OK);
    bt_ops_tape_destroy(r.tape);
    bt_device_close(r.device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_follow_their_formulas),
        cmocka_unit_test(bits_do_not_hang_on_how_it_is_run),
        cmocka_unit_test(wrong_states_are_refused),
    };
    make_numbers();
    return cmocka_run_group_tests_name("device/recurrent", tests, NULL, NULL);
}
