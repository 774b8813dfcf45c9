/* 16 clients at once, for a thousand requests: they read, dawdle, cancel, leave; whoever takes
 * their prompts commits, lies, gives up; pages are short. Every whole answer is the right one,
 * every part of one a beginning of it, and nothing is left behind. */
#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/external.h"
#include "unit/engine/ask.h"

enum { CLIENTS = 16, REQUESTS = 1000, IMPORTERS = 2, JOBS_MAX = 4096, PROMPT_MAX = 260 };

/* ---- a careless taker of offers ---- */

typedef struct { uint64_t ticket; uint32_t tokens[PROMPT_MAX], first, end; bool cancelled; } job;

typedef struct {
    bt_engine      *engine;
    pthread_mutex_t lock;
    job             jobs[JOBS_MAX];
    uint32_t        n_jobs, n_taken;
    bool            closing;
    uint32_t        n_commits, n_given_up, n_gone;
} careless;

static careless place;

static bt_external_answer offer(void *context, const bt_external_offer *j, bt_error *err)
{
    (void)err;
    careless *p = context;
    pthread_mutex_lock(&p->lock);
    const bool take = !p->closing && p->n_jobs < JOBS_MAX && j->ticket % 3 != 0;
    if (take) {
        job *to = &p->jobs[p->n_jobs++];
        memcpy(to->tokens, j->tokens, j->n_tokens * sizeof *j->tokens);
        to->ticket = j->ticket;
        to->first = j->position_first;
        to->end = j->position_end;
    }
    pthread_mutex_unlock(&p->lock);
    return take ? BT_EXTERNAL_TAKEN : BT_EXTERNAL_LOCAL;
}

static void cancel(void *context, uint64_t ticket, void *tag, bt_external_reason reason)
{
    (void)tag, (void)reason;
    careless *p = context;
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n_jobs; i++) {
        p->jobs[i].cancelled |= p->jobs[i].ticket == ticket;
    }
    pthread_mutex_unlock(&p->lock);
}

static void serve_job(careless *p, const job *j, uint32_t mood)
{
    const uint32_t end = mood < 5 ? j->end : j->first + (j->end - j->first) * mood / 16;
    for (uint32_t at = j->first; at < end; at += 40) {
        const uint32_t n = end - at < 40 ? end - at : 40;
        for (uint32_t layer = 0; layer < FAKE_LAYERS; layer++) {
            uint64_t k[40], v[40];
            fake_rows_of(j->tokens, layer, at, n, k, v);
            if (bt_engine_external_import_rows(p->engine, j->ticket, layer, at, n, k, v) !=
                BT_OK) {
                pthread_mutex_lock(&p->lock);
                p->n_gone++;
                pthread_mutex_unlock(&p->lock);
            }
        }
    }
    bt_error err;
    bt_external_end give_up = { .position_complete = mood % 2 ? end : j->first,
                                .status = BT_E_LOST };
    bt_status s = BT_E_PROTOCOL;
    if (mood < 8) {                                       /* 5, 6, 7: not all rows came */
        s = bt_engine_external_commit(p->engine, j->ticket, &err);
        assert_true(s == BT_OK || s == BT_E_CANCELLED || (mood >= 5 && s == BT_E_PROTOCOL));
    }
    if (s == BT_E_PROTOCOL) {
        bt_engine_external_abandon(p->engine, j->ticket, &give_up);
    }
    pthread_mutex_lock(&p->lock);
    p->n_commits += s == BT_OK;
    p->n_given_up += s == BT_E_PROTOCOL;
    pthread_mutex_unlock(&p->lock);
}

static void *importer(void *context)
{
    careless *p = context;
    bt_mt19937 g;
    bt_mt19937_init(&g, 4711);
    for (;;) {
        job j;
        pthread_mutex_lock(&p->lock);
        const bool any = p->n_taken < p->n_jobs, closing = p->closing;
        if (any) {
            j = p->jobs[p->n_taken++];
        }
        pthread_mutex_unlock(&p->lock);
        if (any) {
            serve_job(p, &j, bt_mt19937_next(&g) % 16);
        } else if (closing) {
            return NULL;
        } else {
            bt_clock_sleep_ms(1);
        }
    }
}

/* ---- clients ---- */

typedef struct {
    bt_engine *engine;
    uint32_t   seed, n_requests;
    uint32_t   n_whole, n_part;
    long       kib_after_warm_up;
} client;

static long resident_kib(void)
{
#if defined(__linux__)
    long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &total, &resident) != 2) {
            resident = 0;
        }
        fclose(f);
    }
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
#else
    return 0;
#endif
}

static bt_request_options random_request(bt_mt19937 *g, uint32_t *tokens)
{
    const uint32_t n = 1 + bt_mt19937_next(g) % (PROMPT_MAX - 1);
    fake_prompt(bt_mt19937_next(g) % 6, n, tokens);
    if (n > 40 && bt_mt19937_next(g) % 2) {
        tokens[n - 1 - bt_mt19937_next(g) % 40] = 60;
    }
    bt_request_options o = fake_request(tokens, n, bt_mt19937_next(g) % 60);
    o.sampling.temperature = bt_mt19937_next(g) % 2 ? 0.8f : 0;
    o.sampling.seed = bt_mt19937_next(g) % 1000;
    o.ignore_eog = bt_mt19937_next(g) % 4 != 0;
    o.no_cache = bt_mt19937_next(g) % 5 == 0;
    o.n_logprobs = bt_mt19937_next(g) % 3;
    o.n_prefill_chunk = bt_mt19937_next(g) % 3 * 11;
    return o;
}

static void check(const bt_request_options *o, const uint32_t *got, uint32_t n, bt_finish finish,
                  client *c)
{
    uint32_t expected[64];
    const uint32_t m = fake_answer(o->tokens, o->n_tokens, o->n_predict, &o->sampling,
                                   o->ignore_eog, 512, expected);
    assert_true(n <= m);
    assert_memory_equal(got, expected, n * sizeof *got);
    if (finish != BT_FINISH_CANCELLED) {
        assert_true(finish == BT_FINISH_LENGTH || finish == BT_FINISH_EOG);
        assert_int_equal(n, m);
        c->n_whole++;
    } else {
        c->n_part++;
    }
}

static void one_request(client *c, bt_mt19937 *g)
{
    uint32_t tokens[PROMPT_MAX], got[64], n = 0;
    const bt_request_options o = random_request(g, tokens);
    bt_request *r = fake_submit(c->engine, &o);
    const uint32_t mood = bt_mt19937_next(g) % 8, patience = bt_mt19937_next(g) % 40;
    bt_event event = { 0 };
    uint32_t n_events = 0;
    while (event.kind != BT_EVENT_END) {
        if (mood == 0 && n_events == patience) {
            bt_engine_request_cancel(r);
        }
        if (mood == 1 && n_events == patience) {
            break;                                        /* and release without END */
        }
        if (mood == 2) {
            bt_clock_sleep_ms(1);
        }
        const bt_status status = bt_engine_request_wait(r, 50, &event);
        if (status == BT_OK && event.kind == BT_EVENT_TOKEN) {
            assert_true(n < 64);
            got[n++] = event.token;
        }
        n_events++;
    }
    if (event.kind == BT_EVENT_END) {
        if (event.finish == BT_FINISH_ERROR) {
            print_error("%s\n", event.message);
        }
        assert_int_not_equal(event.finish, BT_FINISH_ERROR);
        check(&o, got, n, event.finish, c);
    }
    bt_request_stats s;
    bt_engine_request_stats_get(r, &s);
    bt_engine_request_release(r);
}

static void *client_main(void *context)
{
    client *c = context;
    bt_mt19937 g;
    bt_mt19937_init(&g, c->seed);
    for (uint32_t i = 0; i < c->n_requests; i++) {
        one_request(c, &g);
        if (i == c->n_requests / 4) {
            c->kib_after_warm_up = resident_kib();
        }
    }
    return NULL;
}

static void a_thousand_requests_leave_nothing_behind(void **state)
{
    (void)state;
    bt_engine_options options = fake_options();
    options.n_parallel = 6;
    options.n_ctx = 512;                                  /* far too few for six */
    options.queue_max = CLIENTS;
    bt_log_set_level(BT_LOG_ERROR);                       /* lies are warned about */
    fixture *f = fake_open(&options);
    pthread_mutex_init(&place.lock, NULL);
    place.engine = f->engine;
    const bt_external external = { .context = &place, .offer = offer, .cancel = cancel };
    bt_engine_set_external(f->engine, &external);
    pthread_t threads[CLIENTS], importers[IMPORTERS];
    static client clients[CLIENTS];
    for (uint32_t i = 0; i < IMPORTERS; i++) {
        assert_int_equal(pthread_create(&importers[i], NULL, importer, &place), 0);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i] = (client){ .engine = f->engine, .seed = i + 1,
                               .n_requests = REQUESTS / CLIENTS + 1 };
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    uint32_t n_whole = 0, n_part = 0;
    long before = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        n_whole += clients[i].n_whole;
        n_part += clients[i].n_part;
        before = clients[i].kib_after_warm_up > before ? clients[i].kib_after_warm_up : before;
    }
    const long after = resident_kib();
    pthread_mutex_lock(&place.lock);
    place.closing = true;
    pthread_mutex_unlock(&place.lock);
    for (uint32_t i = 0; i < IMPORTERS; i++) {
        pthread_join(importers[i], NULL);
    }
    const bt_engine_stats s = fake_stats_idle(f->engine);
    print_message("whole %u part %u external tokens %llu given up %u commits %u late rows %u, "
                  "resident %ld then %ld KiB\n", n_whole, n_part,
                  (unsigned long long)s.n_external_tokens, place.n_given_up, place.n_commits,
                  place.n_gone, before, after);
    assert_true(n_whole > REQUESTS / 3);
    assert_true(s.n_preemptions > 0 && s.n_contexts_full == 0);
    assert_true(s.n_external_tokens > 0 && place.n_given_up > 0);
    assert_int_equal(s.kv_pages_used, s.kv_pages_cached);
    assert_true(s.n_tokens_max <= 512);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
    assert_true(after <= before + 2048);                  /* the allocator's own slack */
#endif
    fake_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_requests_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("engine/stress", tests, NULL, NULL);
}
