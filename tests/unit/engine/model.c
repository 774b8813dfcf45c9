/* The engine on real (tiny) models: what else runs, how prompts are cut, where rows come from and
 * how many threads compute never changes a bit. Compared are tokens and the bits of their log
 * probabilities, so that a difference too small to change a token shows too. */
#include <pthread.h>

#include "unit/engine/machine.h"

#include "base/memory.h"
#include "engine/external.h"
#include "engine/snapshots.h"

static const char *const models[] = { "hf-llama", "hf-qwen2", "hf-qwen3", "hf-gemma3",
                                      "tinyq-llama-q4_k_m", "tinyq-qwen3-q4_0",
                                      "hf-qwen3moe", "hf-qwen35", "hf-qwen35-r3-i2",
                                      "hf-qwen35moe", "hf-qwen3next" };

/* ---- company, cuts, cache, threads ---- */

static void nothing_around_a_request_changes_its_bits(void **state)
{
    (void)state;
    const uint32_t lengths[] = { 1, 33, 64, 150 }, chunks[] = { 1, 16, 64, BATCH };
    for (size_t i = 0; i < BT_LEN(models); i++) {
        answer alone[BT_LEN(lengths)][2];
        uint32_t prompt[PROMPT_MAX], others[3][PROMPT_MAX];
        machine m = open_machine(models[i], 1, BATCH, false);
        for (size_t k = 0; k < BT_LEN(lengths) * 2; k++) {
            make_prompt(&m, (uint32_t)k / 2, lengths[k / 2], prompt);
            alone[k / 2][k % 2] = ask(&m, prompt, lengths[k / 2], k % 2, true);
        }
        close_machine(&m);
        for (size_t c = 0; c < BT_LEN(chunks); c++) {
            m = open_machine(models[i], 1 + c % 2, chunks[c], false);
            for (size_t k = 0; k < BT_LEN(lengths) * 2; k++) {
                const uint32_t n = lengths[k / 2];
                bt_request *company[3];
                make_prompt(&m, (uint32_t)k / 2, n, prompt);
                for (uint32_t j = 0; j < 3; j++) {
                    make_prompt(&m, 50 + j, 20 + 40 * j, others[j]);
                    company[j] = submit(&m, others[j], 20 + 40 * j, j == 1, j == 2);
                }
                answer got = ask(&m, prompt, n, k % 2, false);
                assert_same(&got, &alone[k / 2][k % 2]);
                got = ask(&m, prompt, n, k % 2, false);           /* from the cache */
                assert_int_equal(got.stats.n_cached,
                                 is_hybrid(&m) ? (n - 1) / SNAPSHOT_EVERY * SNAPSHOT_EVERY : n - 1);
                assert_same(&got, &alone[k / 2][k % 2]);
                for (int j = 0; j < 3; j++) {
                    finish(company[j], &got);
                }
            }
            close_machine(&m);
        }
    }
}

/* ---- another machine's rows ---- */

typedef struct {
    machine *worker, *server;
    uint64_t ticket;
    uint32_t tokens[PROMPT_MAX], first, end;
    pthread_t thread;
} errand;

static void ignore_layer(void *context, uint32_t layer, uint32_t position, uint32_t n)
{
    (void)context;
    (void)layer;
    (void)position;
    (void)n;
}

static void ignore_chunk(void *context, uint32_t position_end)
{
    (void)context;
    (void)position_end;
}

/* The state of a layer in parts of an odd size. */
static void carry_state(const errand *w, const bt_request *r, uint32_t layer)
{
    uint8_t part[999];
    const uint64_t all = bt_engine_state_layer_bytes(w->worker->engine, layer);
    for (uint64_t at = 0, size; at < all; at += size) {
        size = all - at < sizeof part ? all - at : sizeof part;
        bt_engine_request_export_state(r, layer, at, size, part);
        assert_int_equal(bt_engine_external_import_state(w->server->engine, w->ticket, layer, at,
                                                         size, part), BT_OK);
    }
}

static void *run_errand(void *context)
{
    const errand *w = context;
    const bt_kv_layout *kv = bt_engine_kv_layout(w->worker->engine);
    const bt_push push = { .layer_done = ignore_layer, .chunk_done = ignore_chunk };
    bt_request_options o = bt_engine_request_defaults();
    bt_request *r = NULL;
    bt_event event = { 0 };
    o.tokens = w->tokens;
    o.n_tokens = w->end;
    o.prefill_only = true;
    o.push = &push;
    must(bt_engine_submit(w->worker->engine, &o, &r, &err));
    while (event.kind != BT_EVENT_END) {
        assert_int_equal(bt_engine_request_wait(r, PATIENCE_MS, &event), BT_OK);
    }
    for (uint32_t layer = 0; layer < kv->n_layers; layer++) {
        const uint32_t n = w->end - w->first;
        void *k = malloc(n * kv->layers[layer].k_row_bytes);
        void *v = malloc(n * kv->layers[layer].v_row_bytes);
        bt_engine_request_export_rows(r, layer, w->first, n, k, v);
        assert_int_equal(bt_engine_external_import_rows(w->server->engine, w->ticket, layer,
                                                        w->first, n, k, v), BT_OK);
        free(k);
        free(v);
        carry_state(w, r, layer);
    }
    bt_engine_request_release(r);
    bt_error why;
    assert_int_equal(bt_engine_external_commit(w->server->engine, w->ticket, &why), BT_OK);
    return NULL;
}

static bt_external_answer start_errand(void *context, const bt_external_offer *job, bt_error *why)
{
    errand *w = context;
    (void)why;
    w->ticket = job->ticket;
    w->first = job->position_first;
    w->end = job->position_end;
    memcpy(w->tokens, job->tokens, job->n_tokens * sizeof *job->tokens);
    assert_int_equal(pthread_create(&w->thread, NULL, run_errand, w), 0);
    return BT_EXTERNAL_TAKEN;
}

static void cancel_errand(void *context, uint64_t ticket, void *tag, bt_external_reason reason)
{
    (void)context, (void)ticket, (void)tag, (void)reason;
}

static void remote_equals_local_bit_for_bit(void **state)
{
    (void)state;
    const uint32_t chunks[] = { 1, 16, 64, BATCH }, lengths[] = { 2, 3, 63, 64, 65, 250 };
    for (size_t i = 0; i < BT_LEN(models); i++) {
        uint32_t prompt[PROMPT_MAX];
        machine local = open_machine(models[i], 1, BATCH, false);
        for (size_t c = 0; c < BT_LEN(chunks); c++) {
            machine worker = open_machine(models[i], 1 + c % 2, chunks[c], true);
            machine server = open_machine(models[i], 2 - c % 2, 32, false);
            errand w = { .worker = &worker, .server = &server };
            const bt_external external = { .context = &w, .offer = start_errand,
                                           .cancel = cancel_errand };
            bt_engine_set_external(server.engine, &external);
            for (size_t k = 0; k < BT_LEN(lengths); k++) {
                make_prompt(&local, 90 + (uint32_t)k, lengths[k], prompt);
                const answer here = ask(&local, prompt, lengths[k], false, true);
                const answer there = ask(&server, prompt, lengths[k], false, true);
                pthread_join(w.thread, NULL);
                assert_int_equal(there.stats.n_external, lengths[k] - 1);
                assert_same(&here, &there);
            }
            close_machine(&server);
            close_machine(&worker);
        }
        close_machine(&local);
    }
}

/* ---- memory ---- */

static void nothing_allocates_per_token(void **state)
{
    (void)state;
    machine m = open_machine(models[0], 2, BATCH, false);
    uint32_t prompt[10];
    make_prompt(&m, 1, 10, prompt);
    bt_request_options o = bt_engine_request_defaults();
    bt_request *r = NULL;
    o.tokens = prompt;
    o.n_tokens = 10;
    o.n_predict = 200;
    o.ignore_eog = true;
    must(bt_engine_submit(m.engine, &o, &r, &err));
    bt_event event;
    uint64_t before = 0;
    for (int n = 0; n < 120;) {
        assert_int_equal(bt_engine_request_wait(r, PATIENCE_MS, &event), BT_OK);
        n += event.kind == BT_EVENT_TOKEN;
        before = n == 20 && before == 0 ? bt_memory_calls() : before;
    }
    assert_int_equal(bt_memory_calls(), before);
    bt_engine_request_release(r);
    close_machine(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_around_a_request_changes_its_bits),
        cmocka_unit_test(remote_equals_local_bit_for_bit),
        cmocka_unit_test(nothing_allocates_per_token),
    };
    return cmocka_run_group_tests_name("engine/model", tests, NULL, NULL);
}
