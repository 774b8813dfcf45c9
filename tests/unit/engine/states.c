/* Recurrent states: what a later prompt has to compute again, and that it computes it right. The
 * measure of "right" is the same prompt without any cache, bit by bit. */
#include <pthread.h>

#include "unit/engine/machine.h"

#include "engine/external.h"
#include "engine/snapshots.h"

static const char *const hybrids[] = { "hf-qwen35", "hf-qwen35-r3-i2", "hf-qwen35moe",
                                       "hf-qwen3next" };

typedef struct {
    const uint32_t *borders;
    uint32_t        n_borders, n_predict;
    bool            no_cache;
} way;

static bt_request *submit_way(const machine *m, const uint32_t *prompt, uint32_t n, way w)
{
    bt_request_options o = bt_engine_request_defaults();
    bt_request *r = NULL;
    o.tokens = prompt;
    o.n_tokens = n;
    o.borders = w.borders;
    o.n_borders = w.n_borders;
    o.n_predict = PREDICT;
    o.ignore_eog = o.want_logprobs = true;
    o.no_cache = w.no_cache;
    o.sampling.temperature = 0;
    must(bt_engine_submit(m->engine, &o, &r, &err));
    return r;
}

static answer ask_way(const machine *m, const uint32_t *prompt, uint32_t n, way w)
{
    answer a;
    finish(submit_way(m, prompt, n, w), &a);
    return a;
}

/* The answer is the one without a cache; gives how many tokens were evaluated. */
static uint32_t check(const machine *m, const uint32_t *prompt, uint32_t n, way w)
{
    const answer got = ask_way(m, prompt, n, w);
    const answer want = ask_way(m, prompt, n, (way){ .no_cache = true });
    assert_memory_equal(got.tokens, want.tokens, sizeof got.tokens);
    assert_memory_equal(got.logprobs, want.logprobs, sizeof got.logprobs);
    return n - got.stats.n_cached;
}

static machine open_small(const char *name, uint64_t snapshots)
{
    machine m = open_machine_with(name, 1, 64, false, 1024, 0);
    const uint64_t bytes = bt_engine_state_bytes(m.engine);
    close_machine(&m);
    /* Slots are a little larger than what they hold. */
    return open_machine_with(name, 1, 64, false, 1024, snapshots * (bytes + bytes / 8 + 4096));
}

/* A conversation: system and question 0 up to `border`, generation prompt up to `n`. */
static void turns_of_a_conversation(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_LEN(hybrids); i++) {
        machine m = open_machine_with(hybrids[i], 1, 64, false, 1024, 64u << 20);
        uint32_t prompt[PROMPT_MAX], other[PROMPT_MAX];
        const uint32_t borders[] = { 60, 144 }, n = 150;
        const way w = { .borders = borders, .n_borders = 2 };
        make_prompt(&m, 5, PROMPT_MAX, prompt);
        assert_int_equal(check(&m, prompt, n, w), n);            /* nothing is known */
        assert_int_equal(check(&m, prompt, n, w), n - 144);      /* regenerate */

        memcpy(other, prompt, sizeof prompt);                     /* edited last message */
        other[100] ^= 1;
        assert_int_equal(check(&m, other, n, w), n - 60);

        const answer a = ask_way(&m, prompt, n, w);               /* second turn */
        for (uint32_t k = 0; k + 1 < PREDICT; k++) {
            prompt[n + k] = a.tokens[k];
        }
        const uint32_t second[] = { 60, 144, 195 };
        const way w2 = { .borders = second, .n_borders = 3 };
        assert_int_equal(check(&m, prompt, 200, w2), 200 - (n + PREDICT - 1));

        other[100] ^= 1;                                          /* the answer is left out */
        other[146] ^= 1;
        assert_int_equal(check(&m, other, 170, w), 170 - 144);
        close_machine(&m);
    }
}

static void without_borders_at_most_an_interval(void **state)
{
    (void)state;
    machine m = open_machine(hybrids[0], 1, 64, false);
    uint32_t prompt[PROMPT_MAX];
    for (uint32_t n = 40; n < 290; n += 23) {
        make_prompt(&m, n, n, prompt);
        assert_int_equal(check(&m, prompt, n, (way){ 0 }), n);
        assert_true(check(&m, prompt, n, (way){ 0 }) <= SNAPSHOT_EVERY);
        prompt[n - 1] ^= 1;
        assert_true(check(&m, prompt, n, (way){ 0 }) <= SNAPSHOT_EVERY);
    }
    close_machine(&m);
    m = open_machine_with(hybrids[0], 1, 64, false, 1024, 64u << 20);
    make_prompt(&m, 1, 290, prompt);                              /* long: cut before its end */
    assert_int_equal(check(&m, prompt, 290, (way){ 0 }), 290);
    assert_int_equal(check(&m, prompt, 290, (way){ 0 }), 1);
    close_machine(&m);
}

static void snapshots_stay_under_their_limit(void **state)
{
    (void)state;
    machine m = open_small(hybrids[0], 3);
    uint32_t prompt[PROMPT_MAX];
    bt_engine_stats stats;
    const uint32_t border = 64;
    for (uint32_t k = 0; k < 12; k++) {
        make_prompt(&m, k, 100, prompt);
        check(&m, prompt, 100, (way){ .borders = &border, .n_borders = 1 });
        bt_engine_stats_get(m.engine, &stats);
        assert_true(stats.snapshot_bytes <= bt_engine_options_of(m.engine)->snapshot_bytes);
        assert_in_range(stats.n_snapshots, 1, 3);
    }
    assert_int_equal(check(&m, prompt, 100, (way){ .borders = &border, .n_borders = 1 }), 36);
    make_prompt(&m, 0, 100, prompt);                              /* long gone */
    assert_int_equal(check(&m, prompt, 100, (way){ 0 }), 100);
    close_machine(&m);

    m = open_small(hybrids[0], 0);                                /* none at all: right, not fast */
    assert_int_equal(check(&m, prompt, 100, (way){ 0 }), 100);
    assert_int_equal(check(&m, prompt, 100, (way){ 0 }), 100);
    close_machine(&m);
}

/* Choices of one prompt: one computes, the others fork from its state and never touch it. */
static void forks_copy_the_state(void **state)
{
    (void)state;
    enum { CHOICES = 4, N = 200 };
    const uint32_t border = 192;               /* so that it does not matter who comes when */
    const way w = { .borders = &border, .n_borders = 1 };
    for (size_t i = 0; i < BT_LEN(hybrids); i++) {
        machine m = open_machine_with(hybrids[i], 1, 64, false, 1024, 64u << 20);
        uint32_t prompt[PROMPT_MAX];
        bt_request *r[CHOICES];
        answer a[CHOICES];
        make_prompt(&m, 77, N, prompt);
        for (uint32_t k = 0; k < CHOICES; k++) {
            prompt[N - 1] = k + 1;                                /* they part at the last token */
            r[k] = submit_way(&m, prompt, N, w);
        }
        uint32_t evaluated = 0;
        for (uint32_t k = 0; k < CHOICES; k++) {
            finish(r[k], &a[k]);
            evaluated += N - a[k].stats.n_cached;
        }
        assert_true(evaluated <= N + (CHOICES - 1) * 2 * BT_KV_PAGE_TOKENS);
        for (uint32_t k = 0; k < CHOICES; k++) {
            prompt[N - 1] = k + 1;
            const answer want = ask_way(&m, prompt, N, (way){ .no_cache = true });
            assert_memory_equal(a[k].logprobs, want.logprobs, sizeof want.logprobs);
        }
        close_machine(&m);
    }
}

/* Cancelled anywhere, a prompt leaves nothing wrong behind, and what it has done is not lost. */
static void a_cancelled_prompt_leaves_a_sound_state(void **state)
{
    (void)state;
    machine m = open_machine(hybrids[0], 1, 16, false);
    uint32_t prompt[PROMPT_MAX];
    make_prompt(&m, 3, 280, prompt);
    for (uint32_t k = 0; k < 30; k++) {
        prompt[k] ^= 1;
        bt_event event = { 0 };
        bt_request *r = submit_way(&m, prompt, 280, (way){ 0 });
        while (event.kind != BT_EVENT_END && !(event.kind == BT_EVENT_PROGRESS &&
                                               event.n_done > 9 * k)) {
            assert_int_equal(bt_engine_request_wait(r, PATIENCE_MS, &event), BT_OK);
        }
        bt_engine_request_release(r);
        assert_true(check(&m, prompt, 280, (way){ 0 }) < 280 - (event.n_done < 16 ? 0 : 15));
    }
    close_machine(&m);
}

enum { N = 4, LENGTH = 40, ANSWER = 56 };     /* which fits a ring unread */

static bt_request *submit_long(const machine *m, uint32_t seed, bool no_cache)
{
    uint32_t prompt[LENGTH];
    bt_request_options o = bt_engine_request_defaults();
    bt_request *r = NULL;
    make_prompt(m, 60 + seed, LENGTH, prompt);
    o.tokens = prompt;
    o.n_tokens = LENGTH;
    o.n_predict = ANSWER;
    o.ignore_eog = o.want_logprobs = true;
    o.no_cache = no_cache;
    o.sampling.temperature = 0;
    must(bt_engine_submit(m->engine, &o, &r, &err));
    return r;
}

/* Gives how often it lost its pages. */
static uint32_t read_answer(bt_request *r, float *logprobs)
{
    bt_event event = { 0 };
    bt_request_stats stats;
    for (uint32_t n = 0; event.kind != BT_EVENT_END;) {
        assert_int_equal(bt_engine_request_wait(r, PATIENCE_MS, &event), BT_OK);
        if (event.kind == BT_EVENT_TOKEN) {
            assert_true(n < ANSWER);
            logprobs[n++] = event.logprob;
        }
    }
    assert_int_equal(event.finish, BT_FINISH_LENGTH);
    bt_engine_request_stats_get(r, &stats);
    assert_int_equal(stats.n_predicted, ANSWER);
    bt_engine_request_release(r);
    return stats.n_preemptions;
}

/* Pages end under answers: those that lose theirs go on from a snapshot, or from nothing where none
 * is kept, and say the same. */
static void a_preempted_answer_is_the_same(void **state)
{
    (void)state;
    static float logprobs[2][N][ANSWER];
    for (size_t i = 0; i < 2 * BT_LEN(hybrids); i++) {
        machine m = open_machine_context(hybrids[i / 2], 1, 64, false, SNAPSHOT_EVERY,
                                         i % 2 ? 64u << 20 : 0, 128);
        uint32_t n_preemptions = 0;
        for (uint32_t k = 0; k < N; k++) {             /* alone */
            (void)read_answer(submit_long(&m, k, true), logprobs[0][k]);
        }
        bt_request *r[N];
        for (uint32_t k = 0; k < N; k++) {             /* at once */
            r[k] = submit_long(&m, k, false);
        }
        for (uint32_t k = 0; k < N; k++) {
            n_preemptions += read_answer(r[k], logprobs[1][k]);
        }
        assert_memory_equal(logprobs[0], logprobs[1], sizeof logprobs[0]);
        assert_true(n_preemptions > 0);
        close_machine(&m);
    }
}

/* ---- a step that fails ---- */

static const bt_device_ops *sound_ops;
static int fail_in;                    /* runs until one fails, after it has done its work */

static bt_status run_or_fail(bt_device *d, const bt_tape *t, const bt_step *s, uint32_t op_first,
                             uint32_t op_last, bt_error *err)
{
    const bt_status status = sound_ops->run(d, t, s, op_first, op_last, err);
    if (status != BT_OK || --fail_in != 0) {
        return status;
    }
    (void)sound_ops->wait(d, err);
    return bt_fail(err, BT_E_DEVICE, "a fuse blew");
}

/* The states have moved, the positions have not: nobody may go on from there. */
static void a_failed_step_leaves_no_state_ahead(void **state)
{
    (void)state;
    machine m = open_machine(hybrids[0], 1, 16, false);
    sound_ops = m.device->ops;
    bt_device_ops ops = *sound_ops;
    ops.run = run_or_fail;
    m.device->ops = &ops;
    uint32_t prompt[PROMPT_MAX];
    for (int k = 1; k < 25; k += 3) {
        make_prompt(&m, 300 + (uint32_t)k, 280, prompt);
        fail_in = k;
        bt_event event = { 0 };
        bt_request *r = submit_way(&m, prompt, 280, (way){ 0 });
        while (event.kind != BT_EVENT_END) {
            assert_int_equal(bt_engine_request_wait(r, PATIENCE_MS, &event), BT_OK);
        }
        assert_int_equal(event.finish, BT_FINISH_ERROR);
        assert_int_equal(event.status, BT_E_DEVICE);
        bt_engine_request_release(r);
        assert_true(check(&m, prompt, 280, (way){ 0 }) >= (k < 18 ? 280u - 16u * (uint32_t)k : 1));
    }
    m.device->ops = sound_ops;
    close_machine(&m);
}

/* ---- a state that is on its way ---- */

typedef struct {
    machine  *m;
    uint64_t  ticket;
    uint32_t  first;
    int       stage;               /* how much of the state comes before it is given up */
    pthread_t thread;
} liar;

static void *lie(void *context)
{
    liar *l = context;
    uint8_t part[64];
    memset(part, 0x7f, sizeof part);
    bt_engine *e = l->m->engine;
    uint32_t layer = 0;
    while (bt_engine_state_layer_bytes(e, layer) == 0) {
        layer++;
    }
    const uint64_t all = bt_engine_state_layer_bytes(e, layer);
    if (l->stage > 0) {
        assert_int_equal(bt_engine_external_import_state(e, l->ticket, layer, 0, sizeof part, part),
                         BT_OK);
    }
    if (l->stage > 1) {            /* a gap, beyond the end, of a layer without, empty */
        assert_int_equal(bt_engine_external_import_state(e, l->ticket, layer, 0, sizeof part, part),
                         BT_OK);
        assert_int_equal(bt_engine_external_import_state(e, l->ticket, layer, 4, sizeof part, part),
                         BT_E_BADINPUT);
        assert_int_equal(bt_engine_external_import_state(e, l->ticket, layer, sizeof part, all,
                                                         part), BT_E_BADINPUT);
        assert_int_equal(bt_engine_external_import_state(e, l->ticket, 9999, 0, sizeof part, part),
                         BT_E_BADINPUT);
        assert_int_equal(bt_engine_external_import_state(e, l->ticket, layer, sizeof part, 0, part),
                         BT_E_BADINPUT);
    }
    const bt_external_end end = { .position_complete = l->first + 40, .status = BT_E_LOST };
    if (l->stage == 3) {           /* a commit that says too much */
        bt_error why;
        assert_int_equal(bt_engine_external_commit(e, l->ticket, &why), BT_E_PROTOCOL);
    }
    bt_engine_external_abandon(e, l->ticket, &end);
    assert_int_equal(bt_engine_external_import_state(e, l->ticket, layer, sizeof part, 4, part),
                     BT_E_CANCELLED);
    return NULL;
}

static bt_external_answer start_lying(void *context, const bt_external_offer *job, bt_error *why)
{
    liar *l = context;
    (void)why;
    if (job->tag) {                /* of the requests that stay here */
        return BT_EXTERNAL_LOCAL;
    }
    l->ticket = job->ticket;
    l->first = job->position_first;
    assert_int_equal(pthread_create(&l->thread, NULL, lie, l), 0);
    return BT_EXTERNAL_TAKEN;
}

static void ignore_cancel(void *context, uint64_t ticket, void *tag, bt_external_reason reason)
{
    (void)context, (void)ticket, (void)tag, (void)reason;
}

static void what_was_not_committed_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_LEN(hybrids); i++) {
        machine m = open_machine(hybrids[i], 1, 64, false);
        uint32_t prompt[PROMPT_MAX];
        liar l = { .m = &m };
        const bt_external external = { .context = &l, .offer = start_lying,
                                       .cancel = ignore_cancel };
        bt_engine_set_external(m.engine, &external);
        for (l.stage = 0; l.stage < 4; l.stage++) {
            for (uint32_t n = 3; n < 250; n += 81) {
                make_prompt(&m, 40 + (uint32_t)l.stage, n, prompt);
                bt_request_options o = bt_engine_request_defaults();
                bt_request *r = NULL;
                answer here, there;
                o.tokens = prompt;
                o.n_tokens = n;
                o.n_predict = PREDICT;
                o.ignore_eog = o.want_logprobs = true;
                o.sampling.temperature = 0;
                must(bt_engine_submit(m.engine, &o, &r, &err));
                finish(r, &there);
                pthread_join(l.thread, NULL);
                assert_int_equal(there.stats.n_external, 0);
                o.no_cache = true;
                o.tag.data = &l;
                must(bt_engine_submit(m.engine, &o, &r, &err));
                finish(r, &here);
                assert_memory_equal(here.logprobs, there.logprobs, sizeof here.logprobs);
            }
        }
        close_machine(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_of_a_conversation),
        cmocka_unit_test(without_borders_at_most_an_interval),
        cmocka_unit_test(snapshots_stay_under_their_limit),
        cmocka_unit_test(forks_copy_the_state),
        cmocka_unit_test(a_cancelled_prompt_leaves_a_sound_state),
        cmocka_unit_test(a_preempted_answer_is_the_same),
        cmocka_unit_test(a_failed_step_leaves_no_state_ahead),
        cmocka_unit_test(what_was_not_committed_changes_nothing),
    };
    return cmocka_run_group_tests_name("engine/states", tests, NULL, NULL);
}
