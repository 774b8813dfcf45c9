/* Promise 1 of docs/architecture.md on one machine: how a prompt is cut into steps, how many
 * threads work and who else is in a step changes no bit of a logit, a key or a value. And no step
 * allocates. */
#include "kv/pages.h"
#include "kv/states.h"
#include "unit/model/tiny.h"

enum { N = 150, PAGES = 32, SEQUENCES = 3 };

typedef struct {
    tiny_model  m;
    bt_kv_pool *pool;
    bt_state_pool *states;         /* NULL: the model keeps none */
    uint32_t    pages[SEQUENCES][PAGES];
    uint32_t    tokens[N * SEQUENCES], positions[N * SEQUENCES], row_sequence[N * SEQUENCES];
    uint32_t    logit_rows[N * SEQUENCES];
    bt_step_sequence sequences[SEQUENCES];
    bt_step     step;
} runner;

static runner *open_runner(const tiny_options *o, bt_isa isa, uint32_t n_threads, bt_type kv_type)
{
    runner *r = calloc(1, sizeof *r);
    bt_error err;
    if (tiny_open(&r->m, o, tiny_device(isa, n_threads), &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
    const bt_model_config *c = bt_model_config_of(r->m.model);
    uint32_t k_dims[TINY_LAYERS], v_dims[TINY_LAYERS];
    for (uint32_t i = 0; i < TINY_LAYERS; i++) {
        k_dims[i] = bt_model_k_dim(c, i);
        v_dims[i] = bt_model_v_dim(c, i);
    }
    const bt_kv_pool_options po = { .n_layers = TINY_LAYERS, .k_dims = k_dims, .v_dims = v_dims,
                                    .type_k = kv_type, .type_v = kv_type,
                                    .n_pages = PAGES * SEQUENCES };
    assert_int_equal(bt_kv_pool_create(r->m.device, &po, &r->pool, NULL), BT_OK);
    bt_state_layer layers[TINY_LAYERS];
    for (uint32_t i = 0; i < TINY_LAYERS; i++) {
        bt_model_state_layer(c, i, &layers[i]);
    }
    const bt_state_pool_options so = { .n_layers = TINY_LAYERS, .layers = layers,
                                       .n_live = SEQUENCES };
    for (uint32_t s = 0; s < SEQUENCES && bt_model_has_state(c); s++) {
        uint32_t slot;
        if (s == 0) {
            assert_int_equal(bt_kv_state_pool_create(r->m.device, &so, &r->states, NULL), BT_OK);
        }
        assert_int_equal(bt_kv_state_take(r->states, &slot), BT_OK);
        assert_int_equal(slot, s);
    }
    for (uint32_t i = 0; i < PAGES; i++) {
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            assert_int_equal(bt_kv_page_take(r->pool, &r->pages[s][i]), BT_OK);
        }
    }
    for (int push = 0; push < 2; push++) {
        assert_int_equal(bt_device_prepare(r->m.device, bt_model_tape(r->m.model, push),
                                           N * SEQUENCES, N * SEQUENCES, NULL), BT_OK);
    }
    return r;
}

static void close_runner(runner *r)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t i = 0; i < PAGES; i++) {
            bt_kv_page_unref(r->pool, r->pages[s][i]);
        }
    }
    bt_kv_pool_destroy(r->pool);
    for (uint32_t s = 0; s < SEQUENCES && r->states; s++) {
        bt_kv_state_give(r->states, s);
    }
    bt_kv_state_pool_destroy(r->states);
    tiny_close(&r->m);
    free(r);
}

static void begin(runner *r)
{
    r->step = (bt_step){ .tokens = r->tokens, .positions = r->positions,
                         .row_sequence = r->row_sequence, .sequences = r->sequences,
                         .logit_rows = r->logit_rows, .kv = bt_kv_pool_layout(r->pool),
                         .state = r->states ? bt_kv_state_pool_layout(r->states) : NULL };
}

static void add(runner *r, uint32_t sequence, uint32_t position, uint32_t n, bool logits)
{
    const uint32_t index = r->step.n_sequences++;
    r->sequences[index] = (bt_step_sequence){ .row_first = r->step.n_rows, .n_rows = n,
                                              .position = position, .pages = r->pages[sequence],
                                              .n_pages = PAGES, .state_slot = sequence };
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = r->step.n_rows++;
        r->tokens[row] = ((position + i) * 37 + sequence * 11) % TINY_VOCAB;
        r->positions[row] = position + i;
        r->row_sequence[row] = index;
        if (logits) {
            r->logit_rows[r->step.n_logit_rows++] = row;
        }
    }
}

static void run(runner *r, bool push)
{
    bt_error err = { 0 };
    if (bt_device_run(r->m.device, bt_model_tape(r->m.model, push), &r->step, &err) != BT_OK) {
        fail_msg("%s", err.text);
    }
}

typedef struct { float logits[N][TINY_VOCAB]; uint8_t *rows; size_t size; } outcome;

static void keep_logits(const runner *r, bool push, uint32_t position, uint32_t n, outcome *o)
{
    uint64_t stride;
    const float *rows = bt_device_read_rows(
            r->m.device, bt_ops_tape_result(bt_model_tape(r->m.model, push)), &stride);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(o->logits[position + i], rows + i * stride, sizeof o->logits[0]);
    }
}

static void keep_rows(const runner *r, outcome *o)
{
    const bt_kv_layout *l = bt_kv_pool_layout(r->pool);
    size_t each = 0, at = 0;
    for (uint32_t i = 0; i < TINY_LAYERS; i++) {
        each += l->layers[i].k_row_bytes + l->layers[i].v_row_bytes;
    }
    const size_t state = r->states ? bt_kv_state_bytes(r->states) : 0;
    o->size = each * N + state;
    o->rows = malloc(o->size);
    for (uint32_t i = 0; i < TINY_LAYERS; i++) {
        const size_t k = N * l->layers[i].k_row_bytes, v = N * l->layers[i].v_row_bytes;
        if (k > 0) {
            bt_kv_rows_export(r->pool, r->pages[0], i, 0, N, o->rows + at, o->rows + at + k);
        }
        at += k + v;
    }
    for (uint32_t i = 0; i < TINY_LAYERS && state > 0; i++) {
        if (bt_kv_state_layer_bytes(r->states, i) > 0) {
            bt_kv_state_export(r->states, 0, i, 0, bt_kv_state_layer_bytes(r->states, i),
                               o->rows + at);
        }
        at += bt_kv_state_layer_bytes(r->states, i);
    }
}

/* Sequence 0 in chunks; the others, if asked for, one row or a few beside each. */
static outcome *go(const tiny_options *o, bt_isa isa, uint32_t n_threads, bt_type kv_type,
                   uint32_t chunk, bool company)
{
    runner *r = open_runner(o, isa, n_threads, kv_type);
    outcome *out = calloc(1, sizeof *out);
    uint32_t steps = 0;
    for (uint32_t at = 0; at < N; at += chunk, steps++) {
        const uint32_t n = N - at < chunk ? N - at : chunk;
        begin(r);
        add(r, 0, at, n, true);
        if (company) {
            add(r, 1, steps, 1, true);
            add(r, 2, 5 * steps, 5, false);
        }
        run(r, company);
        keep_logits(r, company, at, n, out);
    }
    keep_rows(r, out);
    close_runner(r);
    return out;
}

static void drop(outcome *o)
{
    free(o->rows);
    free(o);
}

static void expect_same(const outcome *a, outcome *b, const char *arch, const char *how)
{
    if (memcmp(a->logits, b->logits, sizeof a->logits) != 0) {
        fail_msg("%s: logits differ, %s", arch, how);
    }
    assert_int_equal(a->size, b->size);
    if (memcmp(a->rows, b->rows, a->size) != 0) {
        fail_msg("%s: keys or values differ, %s", arch, how);
    }
    drop(b);
}

static void all_ways_give_the_same_bits(void **state)
{
    static const tiny_options models[] = {
        { .arch = "llama", .type = BT_TYPE_Q4_K, .type_v = BT_TYPE_Q6_K },
        { .arch = "llama", .type = BT_TYPE_Q4_1, .type_v = BT_TYPE_Q4_1, .fused = true },
        { .arch = "qwen2", .type = BT_TYPE_Q8_0, .type_v = BT_TYPE_F16, .tied = true },
        { .arch = "qwen3", .type = BT_TYPE_F32, .type_v = BT_TYPE_BF16 },
        { .arch = "gemma3", .type = BT_TYPE_Q5_K, .type_v = BT_TYPE_Q4_0, .tied = true },
        { .arch = "llama", .type = BT_TYPE_Q8_0, .type_v = BT_TYPE_F16, .experts = true },
        { .arch = "qwen3moe", .type = BT_TYPE_Q4_K, .type_v = BT_TYPE_Q6_K, .merged = true },
        { .arch = "qwen35", .type = BT_TYPE_F16, .type_v = BT_TYPE_F16 },
        { .arch = "qwen35moe", .type = BT_TYPE_Q8_0, .type_v = BT_TYPE_Q4_0, .interval = 2 },
        { .arch = "qwen3next", .type = BT_TYPE_F32, .type_v = BT_TYPE_F32, .merged = true },
    };
    static const struct { uint32_t chunk, n_threads; bool company; } ways[] = {
        { 1, 1, false }, { 1, 2, false }, { 16, 1, false }, { 16, 2, false }, { 64, 2, false },
        { 256, 2, false }, { 3, 3, false }, { 7, 2, true }, { 1, 2, true },
    };
    (void)state;
    for (size_t i = 0; i < BT_LEN(models); i++) {
        const bt_type kv_type = i == 2 ? BT_TYPE_Q8_0 : BT_TYPE_F16;
        outcome *whole = go(&models[i], bt_cpu_isa_detect(), 1, kv_type, N, false);
        for (size_t w = 0; w < BT_LEN(ways); w++) {
            char how[80];
            snprintf(how, sizeof how, "chunk %u, %u threads%s", ways[w].chunk, ways[w].n_threads,
                     ways[w].company ? ", with company" : "");
            expect_same(whole,
                        go(&models[i], bt_cpu_isa_detect(), ways[w].n_threads, kv_type,
                           ways[w].chunk, ways[w].company),
                        models[i].arch, how);
        }
        drop(whole);
    }
}

static void every_tier_keeps_the_promise(void **state)
{
    const tiny_options o = { .arch = "llama", .type = BT_TYPE_Q4_0, .type_v = BT_TYPE_Q8_0 };
    (void)state;
    for (int isa = 0; isa < BT_ISA_COUNT; isa++) {
        if (!bt_cpu_isa_supported((bt_isa)isa)) {
            continue;
        }
        outcome *whole = go(&o, (bt_isa)isa, 1, BT_TYPE_F16, N, false);
        expect_same(whole, go(&o, (bt_isa)isa, 2, BT_TYPE_F16, 1, true),
                    bt_cpu_isa_name((bt_isa)isa), "one by one");
        expect_same(whole, go(&o, (bt_isa)isa, 2, BT_TYPE_F16, 41, true),
                    bt_cpu_isa_name((bt_isa)isa), "in chunks");
        drop(whole);
    }
}

static void steps_allocate_nothing(void **state)
{
    const tiny_options o = { .arch = "qwen3", .type = BT_TYPE_Q4_K, .type_v = BT_TYPE_Q6_K };
    (void)state;
    runner *r = open_runner(&o, bt_cpu_isa_detect(), 2, BT_TYPE_F16);
    const uint64_t before = bt_memory_calls();
    for (uint32_t i = 0; i < 100; i++) {
        begin(r);
        add(r, 0, i, 1, true);
        run(r, false);
    }
    begin(r);
    add(r, 1, 0, 60, false);
    run(r, true);
    assert_int_equal(bt_memory_calls(), before);
    close_runner(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(all_ways_give_the_same_bits),
        cmocka_unit_test(every_tier_keeps_the_promise),
    };
    return cmocka_run_group_tests_name("model/bits", tests, NULL, NULL);
}
