#include "serve/run.h"

#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sync.h"
#include "base/waker.h"
#include "serve/connections.h"

/* Between two looks at the client's socket while events come so fast that nothing waits. */
#define LOOK_NS (10 * (uint64_t)BT_NS_PER_MS)

#ifdef POLLRDHUP
enum { GONE_EVENTS = POLLRDHUP };          /* sees the end even after bytes that nobody has read */
#else
enum { GONE_EVENTS = POLLIN };
#endif

struct bt_run {
    bt_run_options o;
    uint32_t       n, n_ended, turn;
    uint64_t       looked_ns;
    bool           client_gone, unwatched;  /* its next request is there, so its socket is quiet */
    bt_waker       waker;                   /* an engine event was put */
    bt_choice     *choices;
};

/* ---- submitting ---- */

static void wake(void *run)
{
    bt_waker_wake(&((const bt_run *)run)->waker);
}

static bt_request_options options_for(bt_run *r, const bt_choice *c)
{
    const bt_body *b = r->o.body;
    const bt_tokens *tokens = &r->o.prompts->tokens[c->prompt];
    bt_request_options o = bt_engine_request_defaults();
    o.tokens = tokens->ids;
    o.n_tokens = (uint32_t)tokens->count;
    o.borders = r->o.prompts->borders;
    o.n_borders = r->o.prompts->n_borders;
    o.n_predict = b->n_predict < 0 ? UINT32_MAX : (uint32_t)b->n_predict;
    o.ignore_eog = b->ignore_eog;
    o.special = b->special;
    o.no_cache = b->no_cache;
    o.cache_key = r->o.tenant;
    o.sampling = b->sampling;
    o.sampling.bias = r->o.prompts->bias;
    o.sampling.n_bias = r->o.prompts->n_bias;
    if (b->seed_given) {
        const uint32_t seed = b->sampling.seed + c->index % b->n;
        o.sampling.seed = seed == BT_SEED_RANDOM ? 0 : seed;
    }
    o.stops = b->stops;
    o.n_stops = b->n_stops;
    o.want_logprobs = b->want_logprobs;
    o.n_logprobs = b->n_logprobs;
    o.tag = bt_handoff_request_tag(c->handoff);
    o.on_event.fn = wake;
    o.on_event.context = r;
    return o;
}

/* A 429 at once is better than a wait that the client gives up on. */
static bt_status check_wait(const bt_run *r, bt_error *err)
{
    const double wait = r->o.queue_wait_s > 0
            ? bt_serve_metrics_wait(r->o.metrics, r->o.serving->engine) : 0;
    return wait <= r->o.queue_wait_s
            ? BT_OK : bt_fail(err, BT_E_FULL, "a request would have to wait for about %.0f s, more "
                              "than the %u s that this server lets wait; try again later", wait,
                              r->o.queue_wait_s);
}

static bt_status prepare_handoff(const bt_run *r, bt_choice *c, bt_error *err)
{
    const bt_body *b = r->o.body;
    const bt_handoff_wish wish = { .where = b->where, .policy = b->policy,
                                   .no_worker_cache = b->no_worker_cache,
                                   .has_workers = r->o.serving->prefill != NULL };
    return c->handoff ? BT_OK : bt_handoff_request_create(&wish, &c->handoff, err);
}

static bt_status submit(bt_run *r, bt_choice *c, bt_problem *problem)
{
    bt_error err = { 0 };
    bt_status status = prepare_handoff(r, c, &err);
    const bt_request_options o = options_for(r, c);
    status = status == BT_OK ? check_wait(r, &err) : status;
    if (status == BT_OK) {
        status = bt_engine_submit(r->o.serving->engine, &o, &c->request, &err);
    }
    if (status == BT_OK) {
        c->seed = bt_engine_request_seed(c->request);
    } else if (status == BT_E_CONTEXT) {
        bt_serve_problem_set_context(problem, o.n_tokens,
                                     bt_engine_options_of(r->o.serving->engine)->n_ctx, false);
    } else {
        bt_serve_problem_set_status(problem, status, err.text);
        if (status == BT_E_FULL) {
            problem->retry_after_s =
                    bt_serve_metrics_retry_after(r->o.metrics, r->o.serving->engine);
        }
    }
    return status;
}

/* The request stays until the next call: the caller may still read its last event's text. */
static void end_choice(bt_run *r, bt_choice *c)
{
    c->ended = true;
    r->n_ended++;
    if (c->request) {
        bt_engine_request_stats_get(c->request, &c->stats);
        bt_handoff_request_report(c->handoff, &c->stats, &c->prefill);
        if (c->finish == BT_FINISH_CONTEXT) {
            bt_log(BT_LOG_WARN, "answer_truncated", "reason=%s n_prompt=%u n_predicted=%u",
                   "the context is full", c->stats.n_prompt, c->stats.n_predicted);
        }
        bt_serve_metrics_answer(r->o.metrics, &c->stats, &c->prefill, &c->gaps, c->finish,
                                r->client_gone);
    }
}

static bool is_running(const bt_choice *c)
{
    return c->request && !c->ended;
}

/* A later choice that finds the queue full waits for its turn, as long as another one runs. */
static void submit_waiting(bt_run *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        bt_choice *c = &r->choices[i];
        const bt_choice *first = &r->choices[c->prompt * r->o.body->n];
        if (c->request || c->ended || (c != first && !first->has_token && !first->ended)) {
            continue;
        }
        bool others = false;
        for (uint32_t k = 0; k < r->n; k++) {
            others = others || is_running(&r->choices[k]);
        }
        bt_problem problem = { 0 };
        const bt_status status = submit(r, c, &problem);
        if (status == BT_E_FULL && others) {
            return;
        }
        if (status != BT_OK) {
            c->problem = problem;
            c->finish = BT_FINISH_ERROR;
            end_choice(r, c);
        }
    }
}

/* ---- open and close ---- */

static void init_choice(bt_run *r, uint32_t index)
{
    bt_choice *c = &r->choices[index];
    c->index = index;
    c->prompt = index / r->o.body->n;
    c->stop_index = -1;
    bt_buf_init(&c->text, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    bt_text_tokens_init(&c->tokens);
}

bt_run *bt_serve_run_open(const bt_run_options *o, bt_problem *problem)
{
    bt_run *r = bt_alloc_zero(BT_MEM_serve, 1, sizeof *r);
    const uint32_t n = o->prompts->n * o->body->n;
    bt_choice *choices = bt_alloc_zero(BT_MEM_serve, n, sizeof *choices);
    bt_error err = { .status = BT_E_NOMEM };
    if (!r || !choices || bt_waker_open(&r->waker, &err) != BT_OK) {
        bt_free(r);
        bt_free(choices);
        bt_serve_problem_set(problem, 503, NULL, "%s", err.text[0] ? err.text : "out of memory");
        return NULL;
    }
    r->o = *o;
    r->n = n;
    r->choices = choices;
    r->looked_ns = bt_clock_ns();
    for (uint32_t i = 0; i < n; i++) {
        init_choice(r, i);
    }
    /* Every prompt is checked before anything is answered: the first failure is the answer. */
    for (uint32_t i = 0; i < o->prompts->n; i++) {
        const uint32_t n_ctx = bt_engine_options_of(o->serving->engine)->n_ctx;
        if (o->prompts->tokens[i].count + 1 > n_ctx) {
            bt_serve_problem_set_context(problem, (uint32_t)o->prompts->tokens[i].count, n_ctx,
                                         false);
        }
    }
    if (o->body->where == BT_WHERE_REMOTE && o->body->policy == BT_POLICY_FAIL &&
        !o->serving->prefill) {
        bt_serve_problem_set(problem, 400, "prefill.where",
                             "Field 'prefill.where': this server has no "
                             "prefill workers, and policy 'fail' forbids to prefill here");
    }
    if (bt_serve_problem_is(problem) || submit(r, &choices[0], problem) != BT_OK) {
        bt_serve_run_close(r);
        return NULL;
    }
    return r;
}

static void free_choice(bt_choice *c)
{
    bt_engine_request_release(c->request);
    bt_handoff_request_unref(c->handoff);
    bt_buf_done(&c->text);
    bt_text_tokens_done(&c->tokens);
    bt_free(c->logprobs);
    bt_free(c->tops);
}

static void cancel_all(bt_run *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        bt_choice *c = &r->choices[i];
        if (is_running(c)) {
            bt_engine_request_cancel(c->request);
        }
        if (!c->ended) {
            c->finish = BT_FINISH_CANCELLED;
            end_choice(r, c);
        }
    }
}

void bt_serve_run_close(bt_run *r)
{
    if (!r) {
        return;
    }
    if (r->choices[0].request || r->n_ended > 0) {
        r->client_gone = r->client_gone || r->n_ended < r->n;
        cancel_all(r);
    }
    for (uint32_t i = 0; i < r->n; i++) {
        free_choice(&r->choices[i]);
    }
    bt_waker_close(&r->waker);             /* no request is left that could wake it */
    bt_free(r->choices);
    bt_free(r);
}

/* ---- events ---- */

static bool more(void **list, size_t *capacity, size_t needed, size_t each)
{
    if (needed <= *capacity) {
        return true;
    }
    const size_t wanted = needed < 32 ? 64 : needed * 2;
    void *grown = bt_realloc(BT_MEM_serve, *list, wanted * each);
    if (!grown) {
        return false;
    }
    *list = grown;
    *capacity = wanted;
    return true;
}

static void keep_logprobs(bt_choice *c, const bt_event *e)
{
    void *logprobs = c->logprobs, *tops = c->tops;
    const bool ok =
            more(&logprobs, &c->logprobs_capacity, c->n_logprobs + 1, sizeof *c->logprobs) &&
            more(&tops, &c->tops_capacity, c->n_tops + e->n_top, sizeof *c->tops);
    c->logprobs = logprobs;
    c->tops = tops;
    if (!ok) {
        bt_serve_problem_set_status(&c->problem, BT_E_NOMEM, "");
        return;
    }
    c->logprobs[c->n_logprobs++] = (bt_choice_logprob){ .id = e->token, .logprob = e->logprob,
                                                        .top_first = c->n_tops, .n_top = e->n_top };
    for (uint32_t i = 0; i < e->n_top; i++) {
        c->tops[c->n_tops++] = e->top[i];
    }
}

static void keep(bt_run *r, bt_choice *c, const bt_event *e)
{
    bt_buf_put(&c->text, e->text, e->text_size);
    if (e->kind != BT_EVENT_TOKEN) {
        return;
    }
    if (bt_text_tokens_push(&c->tokens, e->token) != BT_OK) {
        bt_serve_problem_set_status(&c->problem, BT_E_NOMEM, "");
    }
    if (r->o.body->want_logprobs) {
        keep_logprobs(c, e);
    }
}

static void note_end(bt_run *r, bt_choice *c, const bt_event *e)
{
    c->finish = e->finish;
    c->stop_index = e->stop_index;
    if (e->finish == BT_FINISH_ERROR && e->status == BT_E_CONTEXT) {
        bt_serve_problem_set_prefill_too_long(&c->problem, e->message);
    } else if (e->finish == BT_FINISH_ERROR) {
        bt_serve_problem_set_status(&c->problem, e->status, e->message);
    } else if (e->finish == BT_FINISH_CANCELLED) {
        bt_serve_problem_set_status(&c->problem, BT_E_CLOSED, "the server is shutting down");
    } else if (bt_buf_status(&c->text) != BT_OK) {
        bt_serve_problem_set_status(&c->problem, bt_buf_status(&c->text), "");
    }
    end_choice(r, c);
}

static size_t count_characters(const char *text, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return n;
}

static void note_token(bt_run *r, bt_choice *c, const bt_event *e)
{
    const double now = bt_clock_ms();
    if (c->has_token) {
        bt_histogram_add(&c->gaps, (now - c->last_token_ms) / 1e3);
    }
    if (c->n_tokens++ == 0) {
        c->first_token_ms = now;
    }
    c->last_token_ms = now;
    c->has_token = true;
    size_t size;
    const char *piece = bt_text_tokenizer_piece(r->o.serving->tokenizer, e->token, true, &size);
    c->token_offset = c->next_offset;
    c->next_offset += count_characters(piece, size);
}

static void note(bt_run *r, bt_choice *c, const bt_event *e)
{
    if (e->kind == BT_EVENT_BEGIN) {
        c->begun = true;
        c->begun_ms = bt_clock_ms();
    } else if (e->kind == BT_EVENT_TOKEN) {
        note_token(r, c, e);
    }
    if (e->kind == BT_EVENT_TOKEN || e->kind == BT_EVENT_END) {
        c->has_newline = c->has_newline || (e->text_size && memchr(e->text, '\n', e->text_size));
    }
    if (r->o.keep && (e->kind == BT_EVENT_TOKEN || e->kind == BT_EVENT_END)) {
        keep(r, c, e);
    }
    if (e->kind == BT_EVENT_END) {
        note_end(r, c, e);
    }
}

/* ---- waiting ---- */

/* Whether to go on: the server still running, the client still there. */
static bt_status look_around(bt_run *r)
{
    if (atomic_load_explicit(r->o.stopping, memory_order_relaxed)) {
        cancel_all(r);
        return BT_E_CLOSED;
    }
    const uint64_t now = bt_clock_ns();
    if (now - r->looked_ns < LOOK_NS) {
        return BT_OK;
    }
    r->looked_ns = now;
    if (bt_serve_socket_is_gone(r->o.fd)) {
        r->client_gone = true;
        cancel_all(r);
        return BT_E_CANCELLED;
    }
    return BT_OK;
}

/* Sleeps until an event was put, the client leaves, the server stops, or the deadline. */
static void wait_until(bt_run *r, uint64_t deadline_ns)
{
    struct pollfd p[] = { { .fd = bt_waker_fd(&r->waker), .events = POLLIN },
                          { .fd = r->o.stop_fd, .events = POLLIN },
                          { .fd = r->unwatched ? -1 : r->o.fd, .events = GONE_EVENTS } };
    const uint64_t now = bt_clock_ns();
    const uint64_t left_ms = deadline_ns > now ? (deadline_ns - now) / BT_NS_PER_MS + 1 : 0;
    const int ms = deadline_ns == BT_NEVER_NS || left_ms > INT32_MAX ? -1 : (int)left_ms;
    if (poll(p, BT_LEN(p), ms) > 0 && p[2].revents) {
        r->looked_ns = 0;                  /* look at once */
        r->unwatched = !bt_serve_socket_is_gone(r->o.fd);
    }
    bt_waker_clear(&r->waker);
}

static void release_ended(bt_run *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->choices[i].ended) {
            bt_engine_request_release(r->choices[i].request);
            r->choices[i].request = NULL;
        }
    }
}

/* The next event that is there, of the choices in turn; NULL: of none. */
static bt_choice *take_event(bt_run *r, bt_event *ret_event, bool *ret_running)
{
    *ret_running = false;
    for (uint32_t i = 1; i <= r->n; i++) {
        bt_choice *c = &r->choices[(r->turn + i) % r->n];
        if (!is_running(c)) {
            continue;
        }
        const bt_status status = bt_engine_request_wait(c->request, 0, ret_event);
        if (status == BT_OK) {
            r->turn = c->index;
            return c;
        }
        if (status != BT_E_AGAIN) {
            bt_serve_problem_set_status(&c->problem, status, "");
            c->finish = BT_FINISH_ERROR;
            end_choice(r, c);
        }
        *ret_running = *ret_running || status == BT_E_AGAIN;
    }
    return NULL;
}

bt_status bt_serve_run_next(bt_run *r, uint64_t deadline_ns, bt_choice **ret_choice,
                            bt_event *ret_event)
{
    for (;;) {
        bool running;
        release_ended(r);
        BT_TRY(look_around(r));
        submit_waiting(r);
        bt_choice *c = take_event(r, ret_event, &running);
        if (c) {
            note(r, c, ret_event);
            *ret_choice = c;
            return BT_OK;
        }
        if (!running || bt_clock_ns() >= deadline_ns) {
            return BT_E_AGAIN;
        }
        wait_until(r, deadline_ns);
    }
}

bool bt_serve_run_ended(const bt_run *r) { return r->n_ended == r->n; }

uint32_t bt_serve_run_count(const bt_run *r) { return r->n; }

bt_request_stats bt_serve_choice_stats(const bt_choice *c)
{
    if (c->ended || !c->request) {
        return c->stats;
    }
    bt_request_stats s;
    bt_engine_request_stats_get(c->request, &s);
    if (c->n_tokens > 0 && s.n_predicted == 0) {
        s.n_predicted = c->n_tokens;
        s.prompt_ms = c->first_token_ms - c->begun_ms;
        s.predicted_ms = c->last_token_ms - c->first_token_ms;
    }
    return s;
}

bt_choice *bt_serve_run_choice(bt_run *r, uint32_t index) { return &r->choices[index]; }

const bt_run_options *bt_serve_run_options_of(const bt_run *r) { return &r->o; }
